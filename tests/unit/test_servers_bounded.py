"""Calls in worker processes end by their deadline, whatever they do, and leave nothing running."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from nemo_gym.errors import ConfigError
from nemo_gym.servers import bounded
from nemo_gym.servers.bounded import (
    BoundedCallError,
    BoundedPool,
    CallDiedError,
    CallLateError,
    PoolError,
    available_cpus,
)
from nemo_gym.servers.testing import start_worker_server
from tests.support import bounded_calls as calls

PRELOAD = ["nemo_gym.servers.bounded", "tests.support.bounded_calls"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[BoundedPool]:
    start_worker_server(*PRELOAD)
    async with BoundedPool(workers=2, deadline_s=10, cpu_s=5, memory_bytes=1 << 30, preload=PRELOAD) as running:
        yield running


async def test_a_call_returns_what_its_function_returns(pool: BoundedPool) -> None:
    assert await pool.run(calls.double, "ab") == "abab"
    assert await pool.run(calls.double, "\ud800") == "\ud800\ud800"
    assert len(await pool.run(calls.double, "x" * 3_000_000)) == 6_000_000


@pytest.mark.parametrize(
    ("function", "arguments", "kind", "text"),
    [
        (calls.complain, ("of this",), LookupError, "of this"),
        (calls.complain_stubbornly, (), RuntimeError, "StubbornError: not picklable"),
        (calls.exit_politely, (), RuntimeError, "SystemExit: 4"),
        (calls.double, (), TypeError, "double"),
        (calls.return_a_function, (), Exception, "lambda"),
    ],
)
async def test_an_error_is_raised_to_its_own_caller(
    pool: BoundedPool, function: Callable[..., Any], arguments: tuple[Any, ...], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        await pool.run(function, *arguments)
    assert await pool.run(calls.double, 2) == 4


async def test_what_cannot_be_sent_is_the_callers_error(pool: BoundedPool) -> None:
    with pytest.raises(Exception, match=r"pickle|local object"):
        await pool.run(lambda: None)


@pytest.mark.parametrize(
    ("function", "arguments", "kind", "text"),
    [
        (calls.nap, (30,), CallLateError, "longer than 0.2 s"),
        (calls.power_tower, (), CallLateError, "longer than 0.2 s"),
        (calls.leave, (3,), CallDiedError, "exit code 3"),
        (calls.die_by, (signal.SIGKILL,), CallDiedError, r"lack of memory \(it may have 1024 MiB\)"),
        (calls.die_by, (signal.SIGSEGV,), CallDiedError, "exit code -11"),
        (calls.eat_memory, (), CallDiedError, r"out of memory \(it may have 1024 MiB\)"),
    ],
)
async def test_a_call_that_comes_to_no_end_is_ended(
    pool: BoundedPool, function: Callable[..., Any], arguments: tuple[Any, ...], kind: type[Exception], text: str
) -> None:
    deadline_s = 0.2 if kind is CallLateError else 10
    with pytest.raises(kind, match=text) as raised:
        await pool.run(function, *arguments, deadline_s=deadline_s)
    assert isinstance(raised.value, BoundedCallError)
    assert await pool.run(calls.double, 2) == 4


async def test_computing_is_counted_apart_from_the_clock() -> None:
    async with BoundedPool(workers=1, deadline_s=60, cpu_s=0.2, preload=PRELOAD) as pool:
        assert await pool.run(calls.nap, 0.3) == "awake"
        with pytest.raises(CallLateError, match=r"computed for longer than 0\.2 s"):
            await pool.run(calls.power_tower)
        assert await pool.run(calls.double, 2) == 4


async def test_waiting_calls_get_their_turn_in_order_and_late_ones_cost_the_others_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with BoundedPool(workers=1, deadline_s=10, preload=PRELOAD) as pool:
        late = asyncio.create_task(pool.run(calls.nap, 60, deadline_s=0.1))
        many = [asyncio.create_task(pool.run(calls.write_and_return, str(trace), number)) for number in range(3000)]
        assert await asyncio.gather(*many) == list(range(3000))
        with pytest.raises(CallLateError):
            await late
    assert trace.read_text().split() == [str(number) for number in range(3000)]


async def test_a_caller_that_goes_away_ends_its_call_whether_it_runs_or_waits(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with BoundedPool(workers=1, deadline_s=60, preload=PRELOAD) as pool:
        running = asyncio.create_task(pool.run(calls.nap, 60))
        await asyncio.sleep(0.2)
        waiting = asyncio.create_task(pool.run(calls.write_and_return, str(trace), "unwanted"))
        await asyncio.sleep(0)
        for task in (waiting, running):
            task.cancel()
        began = time.monotonic()
        assert await pool.run(calls.double, 2) == 4
        assert time.monotonic() - began < 30
    assert [running.cancelled(), waiting.cancelled(), trace.exists()] == [True, True, False]


async def test_workers_that_die_while_nobody_calls_are_replaced() -> None:
    async with BoundedPool(workers=1, deadline_s=10, preload=PRELOAD) as pool:
        for _ in range(2):
            psutil.Process(await pool.run(calls.own_pid)).kill()
            await asyncio.sleep(0.3)
            assert await pool.run(calls.double, 2) == 4


async def test_a_worker_is_replaced_after_so_many_calls() -> None:
    async with BoundedPool(workers=1, deadline_s=10, preload=PRELOAD, recycle_after=4) as pool:
        pids = [await pool.run(calls.own_pid) for _ in range(11)]
    assert len(set(pids)) in (3, 4)  # the first call of the first worker asked whether it had started


async def test_nothing_runs_after_the_end_not_even_what_was_busy() -> None:
    pool = BoundedPool(workers=2, deadline_s=60, preload=PRELOAD)
    await pool.start()
    pids = {await pool.run(calls.own_pid) for _ in range(20)}
    busy = [asyncio.create_task(pool.run(calls.power_tower)) for _ in range(2)]
    await asyncio.sleep(0.2)
    await pool.close()
    await pool.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    for task in busy:
        task.cancel()
    assert len(await asyncio.gather(*busy, return_exceptions=True)) == 2
    with pytest.raises(PoolError, match="not running"):
        await pool.run(calls.double, 2)


async def test_a_pool_that_cannot_start_says_so() -> None:
    with pytest.raises(ConfigError, match="no_such_module"):
        await BoundedPool(workers=1, preload=["no_such_module"]).start()


async def test_a_pool_whose_workers_always_die_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async with BoundedPool(workers=1, preload=PRELOAD) as pool:
        monkeypatch.setattr(bounded, "_prepare_worker", calls.leave_at_once)
        psutil.Process(await pool.run(calls.own_pid)).kill()
        with pytest.raises(PoolError, match="3 times in a row"):
            await pool.run(calls.double, 2)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({}, math.inf),
    ],
)
async def test_a_containers_limit_of_cpus_counts(tmp_path: Path, files: dict[str, str], cpus: float) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert bounded._cpu_quota(tmp_path) == cpus
    assert available_cpus() >= 1
