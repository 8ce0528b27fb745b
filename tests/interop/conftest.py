"""Servers that nobody here wrote, one of each for the whole run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.tools import AIMOCK, NODE, PYTHON_PACKAGES, python, running, with_packages

if not (AIMOCK.is_file() and NODE.is_file()):
    raise pytest.UsageError("What these tests talk to is not installed. Type: scripts/test-tools")
# Behind .venv's own packages, which the locks of both agree with.
sys.path.append(str(PYTHON_PACKAGES))

FIXTURES = Path(__file__).parent / "aimock" / "fixtures.json"


@pytest.fixture(scope="session")
def aimock() -> Iterator[str]:
    """The base URL of aimock, an endpoint that answers from tests/interop/aimock/fixtures.json."""
    command = [str(NODE), str(AIMOCK), "--port", "0", "--fixtures", str(FIXTURES), "--strict", "--validate-on-load"]
    with running(command, says="listening on") as line:
        yield line.split("listening on ")[1].strip() + "/v1"


@pytest.fixture(scope="session")
def llama_server() -> Iterator[str]:
    """The base URL of llama.cpp's own HTTP server, with the weights that llama_cpp_model has."""
    with running(python("-c", _LLAMA_SERVER), says="http://", env=with_packages()) as line:
        yield line.strip() + "/v1"


_LLAMA_SERVER = """
import os, signal
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin take each other's time on a busy machine
import xllamacpp
from images.responses_api_models.llama_cpp_model.app import find_weights

params = xllamacpp.CommonParams()
params.model.path = str(find_weights(None))
params.n_ctx, params.n_parallel = 2048, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup = params.ui = params.fit_params = False
params.verbosity = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
signal.sigwait({signal.SIGTERM})
os._exit(0)
"""
