from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from omegaconf import OmegaConf

from nemo_gym.config import ConfigError
from nemo_gym.config import process_config as module
from nemo_gym.config.process_config import get_process_config, process_config


def test_there_is_none_until_one_is_set_and_none_after_it() -> None:
    assert get_process_config() is None
    outer, inner = OmegaConf.create({"a": 1}), OmegaConf.create({"a": 2})
    with process_config(outer) as given:
        assert given is outer is get_process_config()
        with process_config(inner):
            assert get_process_config() is inner
        assert get_process_config() is outer
    assert get_process_config() is None


@pytest.mark.parametrize("serving", [False, True])
def test_it_is_restored_whatever_happens(serving: bool) -> None:
    with pytest.raises(KeyboardInterrupt), process_config(OmegaConf.create({}), serving=serving):
        raise KeyboardInterrupt
    assert get_process_config() is None


def test_threads_that_plan_see_their_own() -> None:
    barrier = threading.Barrier(4)

    def plan(number: int) -> bool:
        config = OmegaConf.create({"n": number})
        with process_config(config):
            barrier.wait(timeout=10)
            seen = get_process_config() is config
            barrier.wait(timeout=10)
        return seen and get_process_config() is None

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(plan, range(4)))


def test_serving_is_seen_by_the_whole_process_and_planning_stands_above_it() -> None:
    served, planned = OmegaConf.create({"a": 1}), OmegaConf.create({"a": 2})
    with process_config(served, serving=True), ThreadPoolExecutor(1) as pool:
        assert pool.submit(get_process_config).result() is served
        with process_config(planned):
            assert get_process_config() is planned
            assert pool.submit(get_process_config).result() is served
        assert get_process_config() is served
    assert get_process_config() is None


def test_serving_twice_is_refused_and_leaves_the_first() -> None:
    first = OmegaConf.create({"a": 1})
    with process_config(first, serving=True):
        for config in (OmegaConf.create({"a": 2}), first):
            with (
                pytest.raises(ConfigError, match="This process already serves a benchmark"),
                process_config(config, serving=True),
            ):
                pass
        assert get_process_config() is first
    with process_config(first, serving=True):
        assert get_process_config() is first


def test_a_forked_worker_does_not_inherit_its_parents_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    with process_config(OmegaConf.create({"a": 1}), serving=True):
        monkeypatch.setattr(module.os, "getpid", lambda: -1)
        assert get_process_config() is None
        with process_config(OmegaConf.create({"a": 2}), serving=True):
            pass
        monkeypatch.undo()
    assert get_process_config() is None


def test_leaving_from_another_context_harms_no_one() -> None:
    manager = process_config(OmegaConf.create({"a": 1}))
    contextvars.copy_context().run(manager.__enter__)
    manager.__exit__(None, None, None)
    assert get_process_config() is None


async def test_tasks_see_their_own() -> None:
    async def plan(number: int) -> bool:
        config = OmegaConf.create({"n": number})
        with process_config(config):
            await asyncio.sleep(0.001)
            return get_process_config() is config

    assert await asyncio.gather(*(plan(n) for n in range(5))) == [True] * 5
