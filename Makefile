# Each target is a script that runs by itself as well. All are idempotent, and say what they install before they do.
export PYTHON

.PHONY: demo test gate check docs setup lock clean

demo: ; @scripts/demo    # all set-up, then a benchmark with a real model, from nothing to its rewards
test: ; @scripts/test    # all set-up, then every check and test
gate: ; @scripts/gate    # all set-up, then the checks, the documentation and a look at each image
check: ; @scripts/check  # formatting, linting, types and unit tests: needs no engine
docs: ; @scripts/docs    # the documentation as a site, in site/
setup: ; @scripts/setup  # virtual environment, container engine, Python image
lock: ; @scripts/lock    # write the locks anew
clean: ; @scripts/clean  # remove what the above made in this folder
