"""The small process that outlives its owner: carries the relay, and removes the session when the owner dies.

The owner holds one end of a socket pair and the keeper, a child in a process session of its own, the other. The end of
that connection is the owner's death, whatever its cause; a pidfd of the owner is watched as well, because a
forked child of the owner keeps the connection open. An owner that has torn its session down says so
first, and the keeper just ends. A detached session is adopted: it is the keeper's own from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.containers import relay
from nemo_gym.errors import ConfigError, NemoGymError

if TYPE_CHECKING:
    from nemo_gym.containers.adoption import Adoption

_CONTROL_FD = 0
_MAX_LISTENERS = 64
_MAX_MESSAGE = 65536
_ENGINE_PATIENCE_S = 300.0
_SETTLE_S = 5.0
_STOP_TIMEOUT_S = 5.0
_ADOPTION_TIMEOUT_S = 30.0
_ADOPTED = "adopted"
# each relayed connection takes two; the usual limit of 1024 is for programs that use select()
_DESCRIPTORS = 65536


class Keeper:
    """The owner's handle. Use one per session; every method is for the thread that serves."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control

    @classmethod
    def start(cls, session_id: str, environ: Mapping[str, str] | None = None) -> Keeper:
        """Start a keeper for a session that is about to be created.

        ``environ`` (default: this process's) leads it to the engine; see ``engine_endpoint.pinned_environ``.
        """
        environ = os.environ if environ is None else environ
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "nemo_gym.containers.keeper", session_id, str(os.getpid())],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # signals to the owner's process group and terminal pass it by
                    cwd="/",  # keeps no folder of the caller's busy
                    env={**environ, "PYTHONPATH": _python_path(environ)},
                )
        except BaseException:
            ours.close()
            raise
        return cls(process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def carry(self, listeners: Sequence[tuple[socket.socket, relay.Target]], subnet: str) -> None:
        """Hand listening sockets over, to be relayed to their targets. The owner's copies are closed.

        Raises ``ConfigError`` when there are more than one message can carry.
        """
        if not listeners:
            return
        with contextlib.ExitStack() as copies:
            for listener, _ in listeners:
                copies.enter_context(listener)
            self._hand_over(listeners, subnet)

    def _hand_over(self, listeners: Sequence[tuple[socket.socket, relay.Target]], subnet: str) -> None:
        if len(listeners) > _MAX_LISTENERS:
            raise ConfigError(
                f"The config names {len(listeners)} different endpoints on this machine's loopback, and at most "
                f"{_MAX_LISTENERS} can be carried to the containers. Let some listen on another address."
            )
        message = {
            "op": "relay",
            "subnet": subnet,
            "targets": [[target.host, target.port] for _, target in listeners],
        }
        fds = [listener.fileno() for listener, _ in listeners]
        try:
            socket.send_fds(self._control, [json.dumps(message).encode() + b"\n"], fds)
        except OSError as error:
            raise NemoGymError(
                f"The session's keeper (pid {self.pid}) has ended before its session did ({error}). Something killed "
                "it, such as a lack of memory. Try again."
            ) from error

    def release(self) -> None:
        """The session is gone from the engine: let the keeper end, and wait for it."""
        with contextlib.suppress(OSError), self._control:
            self._control.sendall(b'{"op": "release"}\n')
            self._control.shutdown(socket.SHUT_WR)
        self._wait()

    def adopt(self, registry_id: str, servers: Mapping[str, str]) -> None:
        """Make the session the keeper's own: it lives on when this process ends, until its registry does.

        ``servers``: container ID -> server name, for telling the registry of deaths. Returns once the keeper has
        taken over; raises ``NemoGymError`` when it does not.
        """
        message = {"op": "adopt", "registry": registry_id, "servers": dict(servers)}
        try:
            self._control.settimeout(_ADOPTION_TIMEOUT_S)
            self._control.sendall(json.dumps(message).encode() + b"\n")
            answer = self._control.recv(_MAX_MESSAGE).decode(errors="replace")
        except OSError as error:
            answer = str(error)
        if answer != _ADOPTED:  # the connection stays, for release() or abandon()
            raise NemoGymError(
                f"The session's keeper (pid {self.pid}) did not take it over: {answer or 'it has ended'}"
            )
        self.abandon()

    def abandon(self) -> None:
        """Leave the session to the keeper: one that it has adopted, or one that it is to go on removing."""
        self._control.close()
        # it may outlive this process, and is no leak then; if it ends first, it is not left a zombie
        threading.Thread(target=self._process.wait, name="nemo-gym-keeper-end", daemon=True).start()

    def _wait(self) -> None:
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _python_path(environ: Mapping[str, str]) -> str:
    """Where the keeper finds this package and what the owner found; absolute, as it runs in another folder."""
    given = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join([str(Path(__file__).resolve().parents[2]), *map(os.path.abspath, given)])


class _Watch:
    """What a keeper does until its session ends, in one event loop."""

    def __init__(self, control: socket.socket, session_id: str) -> None:
        self._control = control
        self._session_id = session_id
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._released = False
        self._adoption: Adoption | None = None
        self._relays: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def keep(self, owner_pid: int) -> float | None:
        """Do what the owner says until the session is over.

        None when the owner has removed it; else for how long pieces of it may still appear: an owner may have been
        killed in the middle of a call, while nobody adds anything to a session that has been adopted.
        """
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read_control)
        for end in (signal.SIGTERM, signal.SIGHUP):  # the machine is going down: the session goes with it
            self._loop.add_signal_handler(end, self._over.set)
        owner_fd = _open_pidfd(owner_pid)
        if owner_fd is not None:
            self._loop.add_reader(owner_fd, self._owner_is_gone, owner_fd)
        await self._over.wait()
        relay.close_all(self._relays)
        if self._adoption is not None:
            self._adoption.close()
        if self._released:
            return None
        return _SETTLE_S if self._adoption is None else 0.0

    def _owner_is_gone(self, reader: int | socket.socket) -> None:
        self._loop.remove_reader(reader)
        if self._adoption is None:
            self._over.set()

    def _read_control(self) -> None:
        # one message a read: each is sent in one piece, small enough to arrive in one
        try:
            data, fds, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, _MAX_LISTENERS)
        except ConnectionResetError:  # the owner died before it had read our answer: nobody knows of the session
            self._loop.remove_reader(self._control)
            self._over.set()
            return
        for line in data.splitlines():
            message = json.loads(line)
            if message["op"] == "release":
                self._released = True
                self._over.set()
            elif message["op"] == "relay":
                self._run(self._open_relays(message, fds))
            elif message["op"] == "adopt":
                self._run(self._adopt(message))
        if not data:
            self._owner_is_gone(self._control)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_relays(self, message: dict[str, Any], fds: list[int]) -> None:
        for fd, (host, port) in zip(fds, message["targets"], strict=True):
            listener = socket.socket(fileno=fd)
            listener.setblocking(False)
            self._relays.append(await relay.serve(listener, relay.Target(host, port), message["subnet"]))

    async def _adopt(self, message: dict[str, Any]) -> None:
        from nemo_gym.containers.adoption import Adoption  # the SDK, which most keepers never need

        def registry_died() -> None:
            self._loop.call_soon_threadsafe(self._over.set)

        try:
            self._adoption = await asyncio.to_thread(
                Adoption.begin, self._session_id, message["registry"], message["servers"], registry_died
            )
            answer = _ADOPTED
        except NemoGymError as error:
            answer = str(error)
        try:
            self._control.sendall(answer.encode())
        except OSError:  # the owner died before it could tell anybody of the session
            self._over.set()


def _open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none (not Linux)."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # the owner is gone already: the control connection says so too
        return None


def _remove(session_id: str, settle_s: float) -> None:
    """Remove the session, waiting for an engine that is away (restarting, say) up to some minutes."""
    # imported here: the SDK costs 0.1 s and 29 MB, and most keepers never need it
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

    from nemo_gym.containers.docker_engine import DockerEngine
    from nemo_gym.containers.reaper import remove_session

    def connect_and_remove() -> None:
        engine = DockerEngine.connect(os.environ)
        try:
            remove_session(engine, session_id, settle_s=settle_s)
        finally:
            engine.close()

    Retrying(
        retry=retry_if_exception_type(NemoGymError),
        wait=wait_exponential(multiplier=0.2, max=5.0),
        stop=stop_after_delay(_ENGINE_PATIENCE_S),
    )(connect_and_remove)


def main(session_id: str, owner_pid: int) -> None:
    """The keeper's whole life. Exit code 0: the owner let go, or the session was removed."""
    control = socket.socket(fileno=_CONTROL_FD)
    _lift_descriptor_limit()
    settle_s = asyncio.run(_keep(control, session_id, owner_pid))
    if settle_s is not None:
        _remove(session_id, settle_s)


async def _keep(control: socket.socket, session_id: str, owner_pid: int) -> float | None:
    return await _Watch(control, session_id).keep(owner_pid)


def _lift_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    with contextlib.suppress(OSError, ValueError):  # the relay works with fewer as well
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
