"""Reading, merging and checking of config files. Pure after the read."""

from nemo_gym.errors import ConfigError

__all__ = ["ConfigError"]
