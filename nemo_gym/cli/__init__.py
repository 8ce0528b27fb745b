"""The ``gym`` command: arguments in, functions of ``nemo_gym`` called, data to stdout, an exit code out."""
