"""Servers as processes of their own, started as an image starts them: configuration on stdin, log lines on stderr."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOWHERE = {"host": "127.0.0.1", "port": 9}
OTHERS = {"other": {"resources_servers": {"x": NOWHERE}}, "model": {"responses_api_models": {"x": NOWHERE}}}


def free_port() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return int(holder.getsockname()[1])


def bootstrap_line(folder: str, port: int, settings: Mapping[str, Any], **fields: Any) -> bytes:
    """For a server of the name ``mine``. ``folder`` is ``<server type>/<implementation>``."""
    server_type, _, implementation = folder.partition("/")
    entry = {server_type: {implementation or server_type: {"host": "127.0.0.1", "port": port, **settings}}}
    config = {"mine": entry, **OTHERS}
    line = {"v": 1, "session_id": "s1", "server_name": "mine", "config": config, "session_secret": "ab" * 16}
    return json.dumps({**line, "token": None, **fields}).encode() + b"\n"


@contextmanager
def process(program: Path, first_input: bytes | None, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """The server's process, with these environment variables; its stdin stays open, as a session's owner leaves it."""
    started = subprocess.Popen(
        [sys.executable, program.name],
        cwd=program.parent,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **variables},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with started:
        try:
            if first_input is not None and started.stdin:
                started.stdin.write(first_input)
                started.stdin.flush()
            yield started
        finally:
            started.kill()


def get(port: int, path: str) -> tuple[int, Any]:
    """The answer, as soon as there is one."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 20
    while (answer := get(port, "/ready"))[0] != 200:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ready: {answer}")
        time.sleep(0.02)


def wait_for(path: Path) -> None:
    """Until a file is there."""
    deadline = time.monotonic() + 20
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"there is no {path}")
        time.sleep(0.01)


def post(port: int, path: str, value: Any) -> Any:
    """The JSON that is answered, by a connection of its own."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(value).encode())
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)


def end_of(started: subprocess.Popen[bytes]) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the log lines."""
    _, errors = started.communicate(timeout=20)
    return started.returncode, [json.loads(line) for line in errors.splitlines()]
