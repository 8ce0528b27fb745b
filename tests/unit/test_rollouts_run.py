from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.collection import RolloutCollectionHelper
from nemo_gym.rollouts.registry_client import RegistryAddress
from nemo_gym.rollouts.replies import Failure, Outcome
from nemo_gym.rollouts.report import RunTally, distribution, report
from nemo_gym.rollouts.results import (
    ResultPaths,
    ResultWriter,
    agents_of,
    read_results,
    write_aggregate_metrics,
    write_json_lines,
)
from nemo_gym.rollouts.run import Attempt, Tried, run_rows
from tests.unit.fake_gym import FakeGym, answer, make_row, never_answers


async def run(
    gym: FakeGym, rows: list[dict[str, Any]], concurrency: int = 4, **more: Any
) -> tuple[list[Attempt], Failure | None]:
    attempts: list[Attempt] = []
    end = await run_rows(
        RolloutCollectionHelper(),
        RegistryAddress(gym.host, gym.port),
        rows,
        run_id="run",
        concurrency=concurrency,
        on_attempt=attempts.append,
        **more,
    )
    return attempts, end


class TestRunRows:
    async def test_every_row_once_and_no_more_at_a_time_than_asked(self) -> None:
        async def slow(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(0.01)
            return web.json_response({"reward": 1})

        async with FakeGym(slow) as gym:
            attempts, end = await run(gym, [make_row(None, n) for n in range(40)], concurrency=7)
        assert end is None
        assert sorted(attempt.row["_ng_task_index"] for attempt in attempts) == list(range(40))
        assert all(attempt.final and attempt.number == 0 for attempt in attempts)
        assert gym.most_in_flight == 7
        assert {row["_ng_rollout_id"] for row in gym.rows} == {f"run-t{n}-r0" for n in range(40)}

    async def test_infrastructure_failures_are_new_attempts_up_to_a_limit(self) -> None:
        async def fails_twice(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            status = 200 if row["_ng_task_index"] == 0 and row["_ng_attempt_index"] == 2 else 503
            return web.json_response({"reward": 1}, status=status)

        async with FakeGym(fails_twice) as gym:
            attempts, end = await run(gym, [make_row(None, 0), make_row(None, 1)])
        assert end is None
        by_task = {task: [a for a in attempts if a.row["_ng_task_index"] == task] for task in (0, 1)}
        assert [(a.number, a.final, a.outcome.reward) for a in by_task[0]] == [
            (0, False, None),
            (1, False, None),
            (2, True, 1.0),
        ]
        assert [(a.number, a.final) for a in by_task[1]] == [(0, False), (1, False), (2, True)]
        assert [row["_ng_rollout_id"] for row in gym.rows if row["_ng_task_index"] == 1] == [
            "run-t1-r0",
            "run-t1-r0-a1",
            "run-t1-r0-a2",
        ]

    @pytest.mark.parametrize("script", [answer({"reward": None}), answer({"detail": "x"}, 422), answer("text")])
    async def test_answers_are_not_tried_again(self, script: Any) -> None:
        async with FakeGym(script) as gym:
            attempts, end = await run(gym, [make_row(None, 0), make_row(None, 1)])
        assert end is None
        assert [attempt.final for attempt in attempts] == [True, True]

    async def test_a_dead_server_ends_the_run_at_once(self) -> None:
        async def dies(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            if row["_ng_task_index"] == 0:
                return web.json_response({"reward": 1})
            gym.dead = [{"name": "policy_model", "exit_code": 9}]
            return await never_answers(gym, row, request)

        async with asyncio.timeout(3), FakeGym(dies) as gym:
            attempts, end = await run(gym, [make_row(None, n) for n in range(1000)])
        assert end is not None
        assert (end.failure_class, end.server) == ("server_dead", "policy_model")
        assert [a.outcome.reward for a in attempts if a.outcome.failure is None] == [1.0]
        assert len(gym.rows) <= 8

    async def test_a_request_that_makes_no_sense_is_raised_as_it_is(self) -> None:
        stray = make_row("a", agent_ref={"type": "responses_api_agents", "name": "nobody"})
        async with FakeGym() as gym:
            with pytest.raises(ConfigError, match="nobody"):
                await run(gym, [stray, stray])

    async def test_attempts_of_earlier_segments_count(self) -> None:
        tried = {(0, 0): Tried(next_number=2, counted=2), (1, 0): Tried(next_number=3, counted=0)}
        async with FakeGym(answer({}, 503)) as gym:
            attempts, _ = await run(gym, [make_row(None, 0), make_row(None, 1)], tried=tried)
        numbers = {task: [(a.number, a.final) for a in attempts if a.row["_ng_task_index"] == task] for task in (0, 1)}
        assert numbers == {0: [(2, True)], 1: [(3, False), (4, False), (5, True)]}
        assert [row["_ng_rollout_id"] for row in gym.rows if row["_ng_task_index"] == 0] == ["run-t0-r0-a2"]

    async def test_a_drain_begins_nothing_and_ends_nothing(self) -> None:
        drain = asyncio.Event()

        async def drained(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            await gym.until(lambda gym: len(gym.rows) == 3)
            drain.set()
            await asyncio.sleep(0.05)
            return web.json_response({"reward": 1})

        async with FakeGym(drained) as gym:
            attempts, end = await run(gym, [make_row(None, n) for n in range(100)], concurrency=3, drain=drain)
        assert end is None
        assert sorted(attempt.row["_ng_task_index"] for attempt in attempts) == [0, 1, 2]
        assert all(attempt.outcome.reward == 1.0 for attempt in attempts)

    async def test_none_is_lost_with_hundreds_in_flight(self) -> None:
        full = asyncio.Event()

        async def waits_for_company(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            if gym.in_flight == 300:
                full.set()
            await full.wait()
            return web.json_response({"reward": row["_ng_task_index"]})

        async with FakeGym(waits_for_company) as gym:
            attempts, end = await run(gym, [make_row(None, n) for n in range(900)], concurrency=300)
        assert end is None
        assert sorted(attempt.outcome.reward or 0.0 for attempt in attempts) == [float(n) for n in range(900)]
        assert gym.most_in_flight == 300

    async def test_nothing_to_run(self) -> None:
        async with FakeGym() as gym:
            assert await run(gym, []) == ([], None)


class TestAggregateMetrics:
    async def test_the_agents_own_summary(self) -> None:
        async with FakeGym() as gym:
            helper, registry = RolloutCollectionHelper(), RegistryAddress(gym.host, gym.port)
            reply = await helper.aggregate_metrics(registry, "agent", [{"reward": 1}, {"reward": 0}])
            assert isinstance(reply, dict)
            assert reply["key_metrics"] == {"accuracy": 0.5}

    async def test_an_answer_that_is_none(self) -> None:
        async with FakeGym(aggregate=[1]) as gym:
            helper, registry = RolloutCollectionHelper(), RegistryAddress(gym.host, gym.port)
            assert isinstance(await helper.aggregate_metrics(registry, "agent", [{"reward": 1}]), Failure)


def scored(task: int, repeat: int = 0, reward: float = 1.0, **reply: Any) -> Attempt:
    row = make_row(f"t{task}", task, _ng_rollout_index=repeat, _ng_rollout_id="x", _ng_attempt_index=0)
    return Attempt(row, 0, Outcome(reply={"reward": reward, **reply}, reward=reward), 0.25, final=True)


def failed(task: int, *, final: bool = True, reason: str = "broke.") -> Attempt:
    row = make_row(f"t{task}", task, _ng_rollout_id="x", _ng_attempt_index=0)
    outcome = Outcome(reply={"_ng_failure_class": "odd"}, failure=Failure("odd", reason, "agent", 200, "body"))
    return Attempt(row, 0, outcome, 0.5, final=final)


class TestResultFiles:
    def test_names(self, tmp_path: Path) -> None:
        names = [path.name for path in ResultPaths(tmp_path / "x.jsonl").all()]
        assert names == [
            "x.jsonl",
            "x_materialized_inputs.jsonl",
            "x_failures.jsonl",
            "x_aggregate_metrics.json",
            "x_images.lock.json",
            "x_records.jsonl",
            "x_plan.json",
            "x_config.yaml",
            "x_run.json",
        ]

    def test_results_are_there_as_they_arrive_and_in_order_at_the_end(self, tmp_path: Path) -> None:
        paths = ResultPaths(tmp_path / "x.jsonl")
        with ResultWriter(paths) as writer:
            for task, repeat in [(2, 0), (0, 1), (10, 0), (0, 0)]:
                writer.add(scored(task, repeat, text="ü\ud800" if task == 2 else "ü"))
                assert json.loads(paths.rollouts.read_text().splitlines()[-1])["_ng_task_index"] == task
            writer.finish()
        results = list(read_results(paths.rollouts))
        assert [(r["_ng_task_index"], r["_ng_rollout_index"]) for r in results] == [(0, 0), (0, 1), (2, 0), (10, 0)]
        assert results[2]["text"] == "ü\ud800"
        assert results[0]["_ng_elapsed_s"] == 0.25
        assert results[0]["agent_ref"]["name"] == "agent"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x.jsonl", "x_failures.jsonl"]

    def test_failures_have_a_file_of_their_own_and_no_secret_in_it(self, tmp_path: Path) -> None:
        paths = ResultPaths(tmp_path / "x.jsonl")
        with ResultWriter(paths, redact=lambda text: text.replace("sesame", "****")) as writer:
            writer.add(failed(3, final=False, reason="said sesame."))
            writer.finish()
        (record,) = read_results(paths.failures)
        assert record["reason"] == "said ****."
        assert (record["failure_class"], record["status"], record["final"]) == ("odd", 200, False)
        assert (record["_ng_task_index"], record["_ng_failure_class"]) == (3, "odd")
        assert paths.rollouts.read_bytes() == b""

    def test_earlier_results_are_not_overwritten_unasked(self, tmp_path: Path) -> None:
        paths = ResultPaths(tmp_path / "deep" / "x.jsonl")
        paths.check(overwrite=False)
        paths.failures.write_text("old")
        with pytest.raises(ConfigError, match=r"x_failures\.jsonl exists already.*--overwrite"):
            paths.check(overwrite=False)
        paths.check(overwrite=True)
        assert paths.failures.read_text() == "old"
        paths.clear()
        paths.check(overwrite=False)

    def test_places_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for path in (tmp_path / "file" / "x.jsonl", tmp_path):
            with pytest.raises(ConfigError, match="Cannot write"):
                ResultPaths(path).check(overwrite=True)

    def test_inputs_and_metrics(self, tmp_path: Path) -> None:
        rows = [make_row("a"), make_row("b", 1)]
        write_json_lines(tmp_path / "rows", rows)
        assert list(read_results(tmp_path / "rows")) == rows
        assert agents_of(rows) == ["agent"]
        write_aggregate_metrics(tmp_path / "metrics", {"agent": {"key_metrics": {"x": 1}}})
        (entry,) = json.loads((tmp_path / "metrics").read_text())
        assert entry == {"agent_ref": {"type": "responses_api_agents", "name": "agent"}, "key_metrics": {"x": 1}}


def by_task_id(row: Any) -> str:
    return str(row["task_id"])


def tally_of(*attempts: Attempt, name_task: Callable[[Any], str] = by_task_id) -> RunTally:
    tally = RunTally(total=len(attempts), name_task=name_task)
    for attempt in attempts:
        tally.add(attempt)
    return tally


class TestReport:
    def test_figures(self) -> None:
        usage = {"response": {"usage": {"input_tokens": 3, "output_tokens": 2}}}
        tally = tally_of(
            scored(1, 1, 0.0), scored(1, 0, 1.0, **usage), scored(0, 0, 1.0), scored(0, 1, 1.0, **usage), failed(2)
        )
        tally.add(failed(2, final=False))
        figures = report(tally, {"accuracy": 0.5})
        assert figures["rollouts"] == {"total": 5, "scored": 4, "failed": 1, "retries": 1}
        assert figures["mean_reward"] == 0.75
        # two tasks tell next to nothing
        assert figures["mean_reward_interval_95"] == pytest.approx([0.0136, 0.9985], abs=1e-4)
        assert figures["mean_reward_interval_method"] == "wilson"
        assert figures["pass_rates"] == pytest.approx({"pass@1": 0.75, "pass@2": 1.0, "pass^2": 0.5})
        assert figures["rewards"] == {"t0": [1.0, 1.0], "t1": [1.0, 0.0]}
        assert list(figures["rewards"]) == ["t0", "t1"]
        assert figures["tokens"] == {"input_tokens": 6, "output_tokens": 4}
        assert figures["tokens_per_rollout"]["output_tokens"] == {"p50": 2.0, "p95": 2.0, "p99": 2.0, "max": 2}
        assert figures["failure_classes"] == {"odd": 1}
        assert figures["latency_s"] == {"p50": 0.25, "p95": 0.25, "p99": 0.25, "max": 0.25}
        assert json.loads(json.dumps(figures)) == figures

    def test_nothing_scored(self) -> None:
        figures = report(tally_of(failed(0)), {})
        assert (figures["mean_reward"], figures["mean_reward_interval_95"], figures["latency_s"]) == (None, None, {})

    def test_few_rewards_are_counted_and_many_are_binned(self) -> None:
        assert distribution([0.0, 1.0, 0.0, 0.5]) == [("0", 2), ("0.5", 1), ("1", 1)]
        assert distribution([]) == []
        binned = distribution([n / 100 for n in range(101)])
        assert len(binned) == 10
        assert sum(count for _, count in binned) == 101
        assert binned[-1] == ("0.9 to 1", 11)
