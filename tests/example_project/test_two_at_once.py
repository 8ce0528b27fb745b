"""Containers as context managers, of which a process may have several at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.testing import (
    BenchmarkContainers,
    ModelEndpointContainer,
    Reply,
    Rule,
    Script,
    ServedBenchmark,
    SharedBenchmarks,
    ToolCall,
)


@pytest.fixture(scope="session")
def counter(shared_benchmarks: SharedBenchmarks, benchmark_overrides: dict[str, Any]) -> Iterator[ServedBenchmark]:
    with shared_benchmarks.served(BenchmarkContainers("counter").with_overrides(benchmark_overrides)) as served:
        yield served


def test_two_have_servers_of_their_own(
    counter: ServedBenchmark, model_endpoint: ModelEndpointContainer, benchmark_overrides: dict[str, Any]
) -> None:
    one_step = "counter_simple_agent.responses_api_agents.simple_agent.max_steps"
    again = Reply(tool_calls=(ToolCall(name="increment", arguments={"by": 13}),))
    model_endpoint.load(Script(rules=(Rule(contains="Add 26", reply=again), Rule(contains="52", reply=again))))
    with counter.containers.with_override(one_step, 1) as hasty:
        assert hasty.session_id != counter.session_id
        rewards = [asyncio.run(served.task_runner().run_task("add-1")).rewards for served in (counter, hasty)]
    assert rewards == [[1.0], [0.0]]
