"""A program in a process of its own, asked for one call after the other, and ended with all that it has.

::

    with Program(Limits()) as program:
        program.load("def double(x): return 2 * x", "double")
        assert program.call((21,), {}) == 42

What the process may do stands in ``confinement``. That it lies does no harm: all it can say is what a call returned.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import images
from images.resources_servers.code_execution import plain_data
from nemo_gym.errors import NemoGymError

_START_TIMEOUT_S: Final = 60.0
_CHUNK: Final = 1 << 16
# The interpreter sees no site-packages and no environment but this; the order of sets is the same each time.
_ENVIRONMENT: Final = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
_OPTIONS: Final = ("-s", "-S", "-P", "-B")
# Our own modules, and where they are, are forgotten before a program runs.
_BOOT: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from images.resources_servers.code_execution.program import serve
del sys.path[0]
for name in [name for name in sys.modules if name.partition(".")[0] == "images"]:
    del sys.modules[name]
arguments = list(map(int, sys.argv[2:]))
sys.argv[1:] = []
serve(*arguments)
"""


@dataclass(frozen=True)
class Limits:
    """What a program may take. ``deadline_s`` counts all of it, from when it is loaded, on the clock."""

    cpu_s: int = 5
    deadline_s: float = 20.0
    memory_bytes: int = 512 << 20
    reply_bytes: int = 4 << 20


class SandboxError(NemoGymError):
    """The sandbox itself does not work: no fault of any program."""


class ProgramEndedError(BaseException):
    """A program gives no further answer; ``reason`` says why. Not to be caught by the tests that call it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ProgramRaisedError(Exception):
    """Loading or calling a program raised. ``kinds`` are the names that it gave of the exception's type and bases."""

    def __init__(self, kinds: tuple[str, ...], text: str) -> None:
        super().__init__(text)
        self.kinds = kinds
        self.text = text


class Program:
    """A started process; its ``confinement`` is what of ``seccomp`` and ``landlock`` is in force in it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.confinement: tuple[str, ...] = ()
        self._ended: ProgramEndedError | None = None

    def __enter__(self) -> Program:
        theirs, self._requests = os.pipe()
        self._replies, theirs_too = os.pipe()
        try:
            self._process = self._started(theirs, theirs_too)
        except BaseException:
            self._close()
            raise
        finally:
            os.close(theirs)
            os.close(theirs_too)
        try:
            os.set_blocking(self._requests, False)
            self._deadline = time.monotonic() + _START_TIMEOUT_S
            self._receive_ready()
        except BaseException:
            self.__exit__()
            raise
        self._deadline = time.monotonic() + self.limits.deadline_s
        return self

    def __exit__(self, *exception: object) -> None:
        self._kill()
        self._close()

    def load(self, source: str, entry_point: str) -> None:
        """Run a program's top level. ``ProgramRaisedError`` where that raises, ``ProgramEndedError`` where it ends."""
        self._ask({"source": source, "entry_point": entry_point})

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What the program's function returns for these values. Raises as ``load`` does.

        ``PlainDataError`` where the arguments are none that can be passed.
        """
        answer = self._ask({"arguments": plain_data.encode(list(arguments)), "keywords": plain_data.encode(keywords)})
        try:
            return plain_data.decode(answer)
        except (plain_data.PlainDataError, MemoryError):
            raise self._end("unreadable_value") from None

    def _started(self, requests: int, replies: int) -> subprocess.Popen[bytes]:
        root = Path(next(iter(images.__path__))).parent
        numbers = (requests, replies, self.limits.memory_bytes, self.limits.cpu_s)
        command = [sys.executable, *_OPTIONS, "-c", _BOOT, str(root), *map(str, numbers)]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_ENVIRONMENT,
            cwd="/", pass_fds=(requests, replies), start_new_session=True,
        )  # fmt: skip

    def _receive_ready(self) -> None:
        try:
            message = self._receive()
        except ProgramEndedError as error:
            raise SandboxError(f"a program's process does not start: {error.reason}") from None
        if "ready" not in message:
            raise SandboxError(f"a program's process cannot be confined: {message.get('failed')}")
        self.confinement = tuple(message["ready"])

    def _ask(self, request: Any) -> Any:
        if self._ended is not None:
            raise self._ended
        data = plain_data.dumps(request)
        self._send(struct.pack(">I", len(data)) + data)
        answer = self._receive()
        if "value" in answer:
            return answer["value"]
        if "fault" in answer:
            raise self._end("no_function")
        kinds = answer.get("raised")
        raise ProgramRaisedError(tuple(map(str, kinds)) if isinstance(kinds, list) else (), str(answer.get("text")))

    def _receive(self) -> dict[str, Any]:
        (size,) = struct.unpack(">I", self._read(4))
        if size > self.limits.reply_bytes:
            raise self._end("output_limit")
        try:
            message = plain_data.loads(self._read(size))
        except (plain_data.PlainDataError, MemoryError):
            raise self._end("unreadable_value") from None
        if not isinstance(message, dict):
            raise self._end("unreadable_value")
        return message

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._wait(self._replies, select.POLLIN)
            chunk = os.read(self._replies, min(size - len(data), _CHUNK))
            if not chunk:
                raise self._end(None)
            data += chunk
        return bytes(data)

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(self._requests, select.POLLOUT)
            try:
                rest = rest[os.write(self._requests, rest[:_CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._end(None) from None

    def _wait(self, descriptor: int, event: int) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        left_s = self._deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise self._end("timeout")

    def _end(self, reason: str | None) -> ProgramEndedError:
        """The program is over, for ``reason`` or for what its process died of."""
        died_of = self._kill(at_once=reason is not None)
        self._ended = ProgramEndedError(reason or died_of)
        return self._ended

    def _kill(self, *, at_once: bool = True) -> str:
        """Kill the process and all of its group; what it died of. It has closed its pipe if not ``at_once``."""
        if self._process.returncode is not None:
            return "crashed"
        is_over = not at_once and self._is_over()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self._process.pid, 0)
        # The number may be somebody else's from here on.
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if not is_over:
            return "crashed"
        if self._process.returncode == -signal.SIGXCPU:
            return "timeout"
        if self._process.returncode == -signal.SIGKILL:  # a program cannot send that, not even to itself
            # The kernel's limit counts in ticks, which on a busy machine are more than what was used.
            if usage.ru_utime + usage.ru_stime > self.limits.cpu_s / 2:
                return "timeout"
            raise SandboxError("a program was killed from outside, probably for lack of memory of the container")
        return "crashed"

    def _is_over(self) -> bool:
        """Whether a process that has closed its pipe comes to its own end; it has a second for that."""
        until = min(self._deadline, time.monotonic() + 1)
        while os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= until:
                return False
            time.sleep(0.005)
        return True

    def _close(self) -> None:
        os.close(self._requests)
        os.close(self._replies)
