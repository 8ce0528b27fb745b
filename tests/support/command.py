"""The ``gym`` command as people type it: a process of its own, in a folder that has nothing to do with the checkout."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import session_of

GYM = [sys.executable, "-P", "-m", "nemo_gym"]


def start_command(endpoint: ScriptedEndpoint, port: int, *options: str) -> list[str]:
    """``gym env start`` of the benchmark that tests serve."""
    model = ["--model", "scripted", "--model-url", endpoint.url, "--model-api-key", endpoint.key or "none"]
    benchmark = ["--benchmark", "truthfulqa_mc1", "--registry-port", str(port)]
    return [*GYM, "env", "start", *benchmark, *model, *options]


def gym(*words: str, code: int = 0, folder: str | Path = "/") -> str:
    """What a command prints on stdout, where it ends with ``code``, and on stderr otherwise."""
    done = subprocess.run([*GYM, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def status_of(session_id: str) -> dict[str, Any]:
    """``gym env status SESSION --json``."""
    (session,) = json.loads(gym("env", "status", session_id, "--json"))
    return dict(session)


@contextlib.contextmanager
def detached(endpoint: ScriptedEndpoint, port: int, folder: Path) -> Iterator[str]:
    """A detached session's id. The block is to end it; only one that failed is ended here, for the tests after it."""
    command = start_command(endpoint, port, "--detach")
    started = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert started.returncode == 0, started.stderr
    session_id = session_of(port)
    try:
        yield session_id
    except BaseException:
        subprocess.run([*GYM, "env", "stop", session_id], check=False, capture_output=True, timeout=120)
        raise


@contextlib.contextmanager
def running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command under way, in a process group of its own; killed when the block fails."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
