"""Calls that must not hold up a server: run in worker processes, each with a deadline after which it is killed.

::

    async def running(self) -> AsyncIterator[None]:
        async with BoundedPool(preload=["comparison"], deadline_s=20, cpu_s=5) as self.pool:
            yield

    async def verify(self, row: Row) -> JsonDict:
        try:
            equal = await self.pool.run(comparison.is_equal, row.text(), row.expected_answer)
        except BoundedCallError as error:  # late, out of memory, or its process died
            return {"reward": 0.0, "reason": str(error)}
        return {"reward": float(equal)}

A function and its arguments travel by pickle, so the function stands at the top level of a module that imports little:
each worker has that module, and none of the server's own state.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
import multiprocessing
import os
import pickle
import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pebble import ProcessExpired, ProcessPool

from nemo_gym.errors import ConfigError, NemoGymError
from nemo_gym.servers.logs import logger

ReturnT = TypeVar("ReturnT")

# Workers that die while none of them works take pebble's pool with them; it is made anew so often for one call.
_ATTEMPTS: Final = 3
_START_TIMEOUT_S: Final = 60.0
_EVERY_SERVERS_IMPORTS: Final = ("nemo_gym.servers.process", "nemo_gym.servers.resources")


class BoundedCallError(NemoGymError):
    """A call that did not come to its end. It says more about what it was given than about the server."""


class CallLateError(BoundedCallError):
    """A call took longer than it may, and was killed."""


class CallDiedError(BoundedCallError):
    """A call's process died, or reached its limit of memory."""


class PoolError(NemoGymError):
    """The pool itself does not work: no fault of any call."""


class BoundedPool:
    """Worker processes for calls of ordinary functions; calls wait for one in the order they came.

    ``workers`` is how many calls run at a time, by default the CPUs that this process may use. A call ends after
    ``deadline_s`` seconds on the clock or ``cpu_s`` seconds of computing, whichever comes first: the second makes what
    happens to a call independent of how busy the machine is. ``memory_bytes`` limits the address space of a worker.
    ``preload`` names modules that workers share in memory instead of importing them one by one. A worker is replaced
    after ``recycle_after`` calls.

    The workers are forked by a small server process that never ran any of this process's threads. They end with
    ``close``, with the process, and, when it is killed, as soon as they notice or have used up ``cpu_s``.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        deadline_s: float = 30.0,
        cpu_s: float | None = None,
        memory_bytes: int | None = None,
        preload: Sequence[str] = (),
        recycle_after: int = 1000,
    ) -> None:
        self.workers = workers or available_cpus()
        self._deadline_s = deadline_s
        self._cpu_s = cpu_s
        self._memory_bytes = memory_bytes
        self._preload = list(preload)
        self._recycle_after = recycle_after
        self._turns = asyncio.Semaphore(self.workers)
        self._restart = asyncio.Lock()
        self._pool: ProcessPool | None = None

    async def __aenter__(self) -> BoundedPool:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the workers; when it returns, each has what it needs. ``ConfigError`` when they cannot work."""
        self._pool = await asyncio.to_thread(self._started)
        payload = pickle.dumps((_import_all, (self._preload,)))
        ready = [self._schedule(self._pool, payload, _START_TIMEOUT_S, None) for _ in range(self.workers)]
        try:
            for answer in await asyncio.gather(*ready):
                _value_of(answer)
        except Exception as error:
            await self.close()
            raise ConfigError(f"the worker processes of this server cannot start: {error!r}") from error

    async def close(self) -> None:
        """End the workers at once, and with them the calls that still run. Can be called again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(_end, pool)

    async def run(self, function: Callable[..., ReturnT], *arguments: Any, deadline_s: float | None = None) -> ReturnT:
        """What ``function(*arguments)`` returns or raises in a worker; ``BoundedCallError`` when it comes to no end.

        The deadline counts from when a worker begins. A caller that is cancelled ends its call.
        """
        payload = pickle.dumps((function, arguments))
        deadline_s = self._deadline_s if deadline_s is None else deadline_s
        async with self._turns:
            answer = await self._answer(payload, deadline_s)
        try:
            return _value_of(answer)  # type: ignore[no-any-return]
        except MemoryError:
            raise CallDiedError(f"out of memory{self._memory_limit()}") from None

    async def _answer(self, payload: bytes, deadline_s: float) -> bytes:
        for _ in range(_ATTEMPTS):
            pool = self._pool
            if pool is None:
                raise PoolError("the worker processes of this server are not running")
            try:
                return await self._schedule(pool, payload, deadline_s, self._cpu_s)
            except TimeoutError:
                raise CallLateError(f"it took longer than {deadline_s:g} s") from None
            except ProcessExpired as error:
                raise self._death(error) from None
            except RuntimeError as error:  # BrokenProcessPool is one too
                logger.warning("the worker processes died: %s; starting others", error)
                await self._replace(pool)
        raise PoolError(f"the worker processes of this server died {_ATTEMPTS} times in a row")

    async def _schedule(self, pool: ProcessPool, payload: bytes, deadline_s: float, cpu_s: float | None) -> bytes:
        future = pool.schedule(_answer_of, args=(payload, cpu_s), timeout=deadline_s)
        return await asyncio.wrap_future(future)

    def _death(self, error: ProcessExpired) -> BoundedCallError:
        if error.exitcode == -signal.SIGPROF:
            return CallLateError(f"it computed for longer than {self._cpu_s:g} s")
        if error.exitcode == -signal.SIGKILL:
            return CallDiedError(f"its process was killed, probably for lack of memory{self._memory_limit()}")
        return CallDiedError(f"its process ended with exit code {error.exitcode}")

    def _memory_limit(self) -> str:
        return "" if self._memory_bytes is None else f" (it may have {self._memory_bytes >> 20} MiB)"

    async def _replace(self, broken: ProcessPool) -> None:
        async with self._restart:
            if self._pool is broken:
                self._pool = await asyncio.to_thread(self._started)
                await asyncio.to_thread(_end, broken)

    def _started(self) -> ProcessPool:
        context = multiprocessing.get_context("forkserver")
        # A worker runs the server's main module again, under another name: with what every server imports already
        # there, that takes no time. The modules are those of the first pool in a process; later ones share its server.
        context.set_forkserver_preload([__name__, *_EVERY_SERVERS_IMPORTS, *self._preload])
        pool = ProcessPool(
            self.workers, self._recycle_after, _prepare_worker, (self._memory_bytes, self._preload), context
        )
        _ = pool.active  # starts it
        return pool


def available_cpus() -> int:
    """The CPUs that this process may use, a container's own limit included; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, math.ceil(min(allowed, _cpu_quota(Path("/sys/fs/cgroup")))))


def _cpu_quota(root: Path) -> float:
    """CPUs that the control group grants, of version 2 (``cpu.max``) or 1 (``cpu.cfs_*``); infinite without a limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (root / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = ((root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


def _end(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()


# -- what runs in a worker ----------------------------------------------------------------------------------------


def _prepare_worker(memory_bytes: int | None, preload: Sequence[str]) -> None:
    # A handler in Python would not run before a long computation in C has ended.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    # Where the server of workers could not: importing is no part of a call. What fails is reported by ``start``.
    with contextlib.suppress(Exception):
        _import_all(preload)


def _import_all(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)


def _answer_of(payload: bytes, cpu_s: float | None) -> bytes:
    """Run the call in ``payload``: ``(True, its value)`` or ``(False, what it raised)``, as pickle.

    Both ways are bytes for the pool: what cannot be unpickled would break all of it, not one call.
    """
    try:
        function, arguments = pickle.loads(payload)
        if cpu_s is not None:
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            return pickle.dumps((True, function(*arguments)))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except BaseException as error:
        return _pickled_error(error)


def _pickled_error(error: BaseException) -> bytes:
    """``(False, error)``; the error's name and text where it does not survive pickle, or would end the server."""
    with contextlib.suppress(Exception):
        pickled = pickle.dumps((False, error))
        pickle.loads(pickled)
        if isinstance(error, Exception):
            return pickled
    return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


def _value_of(answer: bytes) -> Any:
    succeeded, value = pickle.loads(answer)
    if not succeeded:
        raise value
    return value
