"""The benchmarks with state and tools in containers, used by a scripted model that does what is asked, or does not."""

from __future__ import annotations

import asyncio
from typing import Any

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import PlannedBenchmark, TaskRunner, plan_benchmark, serve_benchmark
from tests.support.tool_use import Calls, ToolUser


async def rewards_of(planned: PlannedBenchmark, registry_server: BaseServerConfig) -> dict[str, float]:
    """Each task's reward, all tasks run at the same time."""
    async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
        results = await asyncio.gather(*(runner.run_task(task_id) for task_id in planned.task_ids()))
    return {result.task_id: result.rewards[0] for result in results}


def test_a_workplace_is_judged_by_what_it_holds_in_the_end() -> None:
    planned = plan_benchmark("workplace")
    rows = {row["task"]: row for row in planned.rows}
    lazy = {row["task_id"] for row in list(rows.values())[::2] if row["reference_actions"]}
    assert len(planned.rows) >= 40
    assert len(lazy) >= 20

    def do_all(task: str, outputs: list[Any]) -> Calls:
        actions = rows[task]["reference_actions"][len(outputs) :]
        return [(action["name"], action["arguments"]) for action in actions[:1]]

    def do_every_other(task: str, outputs: list[Any]) -> Calls:
        return [] if rows[task]["task_id"] in lazy else do_all(task, outputs)

    def do_harm(task: str, outputs: list[Any]) -> Calls:
        done = {"deleted": "/office/rooms.md"} in outputs
        return do_all(task, outputs) or ([] if done else [("delete_file", {"path": "/office/rooms.md"})])

    with (
        ToolUser(do_all) as endpoint,
        serve_benchmark("workplace", overrides=endpoint.overrides()) as registry_server,
    ):
        everything = asyncio.run(rewards_of(planned, registry_server))
        endpoint.policy = do_every_other
        every_other = asyncio.run(rewards_of(planned, registry_server))
        endpoint.policy = do_harm
        harm = asyncio.run(rewards_of(planned, registry_server))
    task_ids = planned.task_ids()
    assert everything == dict.fromkeys(task_ids, 1.0)
    assert every_other == {task_id: 0.0 if task_id in lazy else 1.0 for task_id in task_ids}
    assert harm == dict.fromkeys(task_ids, 0.0)


def test_thirty_counters_at_the_same_time_do_not_mix() -> None:
    planned = plan_benchmark("counter")
    row = next(row for row in planned.rows if row["kind"] == "double")
    right, wrong = row["start_value"], row["start_value"] + 1
    begun: list[int] = []

    def double(task: str, outputs: list[Any]) -> Calls:
        """The first to read does right, the second wrong, and so on: each sees only what it has done itself."""
        if not outputs:
            return [("increment", {"by": 1000}), ("decrement", {"by": 1000}), ("read", {})]
        if len(outputs) > 3:
            return []
        assert outputs[2]["value"] == row["start_value"]
        begun.append(len(begun))
        return [("increment", {"by": right if begun[-1] % 2 == 0 else wrong})]

    async def thirty(registry_server: BaseServerConfig) -> list[dict[str, Any]]:
        async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
            return (await runner.run_task(str(row["task_id"]), num_repeats=30)).results

    with (
        ToolUser(double) as endpoint,
        serve_benchmark("counter", overrides=endpoint.overrides()) as registry_server,
    ):
        results = asyncio.run(thirty(registry_server))
    assert len(begun) == 30
    assert sorted(result["reward"] for result in results) == [0.0] * 15 + [1.0] * 15
    missed = f"the counter shows {row['expected_value'] + 1}; expected {row['expected_value']}"
    assert [result["differences"] for result in results if not result["reward"]] == [[missed]] * 15
