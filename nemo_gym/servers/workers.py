"""Several processes that serve as one: the parent starts them, passes a stop on, and ends with the first that dies.

They share a port by ``SO_REUSEPORT``: the kernel gives each connection to one of them by chance. One socket that all
accept from does worse: asyncio takes every connection that waits, so a burst goes to whoever woke up first (measured:
8 and 16 connections at once to one of two processes; with a socket each they got 3 and 5, 6 and 10).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import mmap
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from nemo_gym.servers.logs import logger
from nemo_gym.servers.process import EXIT_FAILED, EXIT_OK

_STOPS = (signal.SIGTERM, signal.SIGINT)
# Past their own grace, and before the engine's patience with the container ends.
_LATE_S = 0.5


@dataclass(frozen=True)
class Worker:
    """What a worker is given: its number, from 0, and a bound socket of its own."""

    index: int
    socket: socket.socket


class StartedWorkers:
    """Which workers serve; each of them sees all."""

    def __init__(self, count: int) -> None:
        self._flags = mmap.mmap(-1, count)

    def note(self, worker: Worker) -> None:
        self._flags[worker.index] = 1

    def missing(self) -> int:
        return self._flags[:].count(0)


class ProcessLock:
    """Held by one process at a time; given up when its holder dies."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def bind_all(host: str, port: int, count: int) -> list[socket.socket]:
    """Sockets that share an address, none of them listening yet; ``OSError`` when it cannot be had."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    sockets = [socket.socket(family, socket.SOCK_STREAM) for _ in range(count)]
    try:
        # Whoever else listens there, and allows others too, would get a part of the requests: bound alone, it shows.
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(address)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def run_workers(sockets: list[socket.socket], serve: Callable[[Worker], int], *, grace_s: float) -> int:
    """Call ``serve``, which returns an exit code, in one process per socket; this process's own exit code.

    Ends with SIGTERM or SIGINT, or with the first worker that ends. The others are asked to end then, and killed when
    that takes them more than ``grace_s`` seconds. They do not outlive this process, whatever ends it.
    """
    waited_for = {*_STOPS, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    gc.collect()
    gc.freeze()  # what the collector touches would no longer be shared
    watched, kept_open = os.pipe()
    workers: dict[int, int] = {}
    for index, own in enumerate(sockets):
        pid = os.fork()
        if pid == 0:
            os.close(kept_open)
            for other in sockets[:index] + sockets[index + 1 :]:
                other.close()
            _work(Worker(index, own), serve, watched, grace_s)
        workers[pid] = index
    os.close(watched)
    for own in sockets:
        own.close()
    ended: list[str] = []
    while not ended and signal.sigwait(waited_for) == signal.SIGCHLD:
        ended = _reap(workers)
    for said in ended:
        logger.error("%s: a server ends when one of its workers does", said)
    _stop(workers, grace_s + _LATE_S)
    os.close(kept_open)
    return EXIT_FAILED if ended else EXIT_OK


def _work(worker: Worker, serve: Callable[[Worker], int], watched: int, grace_s: float) -> None:
    """The life of a worker. It never returns: what the parent cleans up at its end is the parent's."""
    code = EXIT_FAILED
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the parent too, which passes it on
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_STOPS, signal.SIGCHLD})
        threading.Thread(target=_end_with_parent, args=(watched, grace_s), name="parent", daemon=True).start()
        code = serve(worker)
    except BaseException:  # there is nobody above
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _end_with_parent(watched: int, grace_s: float) -> None:
    os.read(watched, 1)  # returns when the parent's end of the pipe is closed, by its death too
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os._exit(EXIT_FAILED)


def _reap(workers: dict[int, int]) -> list[str]:
    """What has become of those that have ended; they are no longer among the workers."""
    ended = []
    for pid, index in list(workers.items()):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            del workers[pid]
            code = os.waitstatus_to_exitcode(status)
            how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
            ended.append(f"worker {index} (process {pid}) has ended {how}")
    return ended


def _stop(workers: Iterable[int], patience_s: float) -> None:
    """End all workers: asked first, and killed when that takes too long."""
    remaining = set(workers)

    def send(number: int) -> None:
        for pid in list(remaining):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    send(signal.SIGTERM)
    killer = threading.Timer(patience_s, send, args=(signal.SIGKILL,))
    killer.daemon = True
    killer.start()
    for pid in sorted(remaining):
        os.waitpid(pid, 0)
        remaining.discard(pid)
    killer.cancel()
