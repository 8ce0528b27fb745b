"""A process that serves one benchmark for another one, which may then have several served at the same time.

The child reads what to serve from its standard input, one JSON line, and says how that went on a pipe of its own. It
serves until that input ends or its parent has died, whatever the parent died of; then it tears its session down. It is
in a process session of its own, so that a Ctrl-C is the parent's alone to handle.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from nemo_gym.errors import NemoGymError

if TYPE_CHECKING:
    from nemo_gym.deployment.running import RunningSession

# longer than any teardown: servers get seconds to end, and what is left is removed within a minute
STOP_TIMEOUT_S: Final = 150.0
_PARENT_POLL_S: Final = 0.5


class ServingProcess:
    """The parent's handle: ``start`` returns once everything answers, ``stop`` once nothing is left."""

    def __init__(self, benchmark: str, model_type: str, overrides: Mapping[str, Any]) -> None:
        self._request = {"benchmark": benchmark, "model_type": model_type, "overrides": dict(overrides)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> RunningSession:
        """Serve. Raises what ``serve_benchmark`` would; nothing is left running then."""
        line = json.dumps(self._request).encode() + b"\n"
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb") as said:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "nemo_gym.testing.serving_process", str(write_end), str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=2,  # what a prepare script prints, say; a test worker's own stdout may be a protocol's
                    pass_fds=[write_end],
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": _python_path()},
                )
            finally:
                os.close(write_end)
            try:
                return self._wait_until_serving(said, line)
            except BaseException:
                self.stop()
                raise

    def _wait_until_serving(self, said: IO[bytes], line: bytes) -> RunningSession:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and said why
            self._process.stdin.write(line)
            self._process.stdin.flush()
        message = said.read()
        if not message:
            code = self._end()
            raise NemoGymError(f"The process that was to serve the benchmark ended with exit code {code}; see stderr.")
        session: RunningSession | BaseException = pickle.loads(message)  # our own child's
        if isinstance(session, BaseException):
            raise session
        return session

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """End it and wait until its session is gone. May be called at any time, and again."""
        code = self._end()
        if code != 0:
            raise NemoGymError(f"The process that served a benchmark ended with exit code {code}; see stderr.")

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its keeper removes the session
            process.wait()
            raise NemoGymError(
                f"The process that served a benchmark had not removed its containers after {STOP_TIMEOUT_S:.0f} s, "
                "and was killed. Its keeper goes on removing them; `gym env status` shows what is left."
            ) from None


def _python_path() -> str:
    """Where the child finds this package, and what this process was told; absolute."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join([str(Path(__file__).resolve().parents[2]), *map(os.path.abspath, given)])


# -- the child -----------------------------------------------------------------------------------------------------


def _interrupt_when_let_go(parent: int) -> None:
    """Interrupt this process's main thread once standard input has ended or the parent has."""
    while True:
        ready, _, _ = select.select([0], [], [], _PARENT_POLL_S)
        # a forked child of the parent keeps the pipe open, but cannot become the parent
        if (ready and not os.read(0, 1)) or os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGINT)
            return


def _read_line() -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return bytes(line)


def _serve(request: Mapping[str, Any], write_end: int) -> None:
    from nemo_gym.config.overrides import checked_overrides
    from nemo_gym.environment.serving import serve, serving_config_paths

    with contextlib.ExitStack() as serving:
        try:
            paths = serving_config_paths(request["benchmark"], request["model_type"])
            session = serving.enter_context(serve(paths, checked_overrides(request["overrides"])))
        except (NemoGymError, RuntimeError) as error:
            _say(write_end, error)
            return
        _say(write_end, session)
        while True:
            signal.pause()


def _say(write_end: int, value: object) -> None:
    with os.fdopen(write_end, "wb") as pipe, contextlib.suppress(BrokenPipeError):
        pickle.dump(value, pipe)


def main(write_end: int, parent: int) -> int:
    """The child's whole life."""
    os.set_inheritable(write_end, False)
    # a shell starts background jobs with SIGINT ignored, and so are their children's
    signal.signal(signal.SIGINT, signal.default_int_handler)
    line = _read_line()
    if not line:
        return 0
    threading.Thread(target=_interrupt_when_let_go, args=(parent,), name="parent-watch", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        _serve(json.loads(line), write_end)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), int(sys.argv[2])))
