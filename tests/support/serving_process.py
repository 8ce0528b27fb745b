"""Another process that serves the stub benchmark, and what can be done to it.

Run as a program it serves what its only argument (JSON) says. It prints its log and the words ``serving`` and
``leaving``, and takes one command on its standard input: ``return``, ``raise`` or ``exit`` (with the block left open).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]


class ServingProcess:
    """In a process group of its own; with ``terminal`` also on a terminal, which ``close_terminal`` shuts."""

    def __init__(
        self,
        overrides: dict[str, Any],
        *,
        benchmark: str = "stub",
        registry_port: int | None = None,
        terminal: bool = False,
        environ: dict[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
    ) -> None:
        given = {"benchmark": benchmark, "overrides": overrides, "registry_port": registry_port}
        self._terminal: int | None = None
        slave = None
        if terminal:
            self._terminal, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, "-u", "-m", "tests.support.serving_process", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            start_new_session=True,
            preexec_fn=None if slave is None else lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
            env={**os.environ, **(environ or {})},
        )
        if slave is not None:
            os.close(slave)
        self.said: list[str] = []
        self.errors: list[str] = []
        self._new = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.said)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            with self._new:
                lines.append(line.rstrip("\n"))
                self._new.notify_all()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, text: str, timeout_s: float = 60.0) -> str:
        """The first line of its standard output that holds ``text``."""
        deadline = time.monotonic() + timeout_s
        with self._new:
            while True:
                found = next((line for line in self.said if text in line), None)
                if found is not None:
                    return found
                assert self._readers[0].is_alive(), f"it ended before it said {text!r}: {self.said} {self.errors}"
                assert time.monotonic() < deadline, f"it has not said {text!r}: {self.said} {self.errors}"
                self._new.wait(0.1)

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def signal_group(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def close_terminal(self) -> None:
        assert self._terminal is not None
        os.close(self._terminal)
        self._terminal = None

    def wait(self, timeout_s: float = 60.0) -> int:
        """Its exit code."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def __enter__(self) -> ServingProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.signal_group(signal.SIGKILL)
        self.wait()
        if self._terminal is not None:
            os.close(self._terminal)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def keepers_of(owner: int) -> list[int]:
    """The keepers of one owner: processes that run the keeper's module with the owner's pid as an argument."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # ended meanwhile
            continue
        if "nemo_gym.containers.keeper" in words and str(owner) in words:
            found.append(int(entry.name))
    return found


def main() -> None:
    from nemo_gym.environment import serve_benchmark
    from tests.support.stub_servers import MODEL_TYPE

    given = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    serving = serve_benchmark(
        given["benchmark"],
        model_type=MODEL_TYPE,
        overrides=given["overrides"],
        registry_port=given["registry_port"],
    )
    registry_server = serving.__enter__()
    try:
        print(f"serving on {registry_server.port}", flush=True)
        command = sys.stdin.readline().strip()
        print("leaving", flush=True)
        if command == "exit":
            global left_open
            left_open = serving
            sys.exit(0)
        if command == "raise":
            raise ZeroDivisionError
    except SystemExit:
        raise
    except BaseException:
        if not serving.__exit__(*sys.exc_info()):
            raise
    else:
        serving.__exit__(None, None, None)


if __name__ == "__main__":
    main()
