"""Answers judged by a model at an endpoint of its own: verdicts, judges that fail, and judges that are not there."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import docker
import pytest

from nemo_gym.environment import PlannedBenchmark, TaskRunner, plan_benchmark, serve_benchmark
from nemo_gym.errors import ConfigError, RolloutFailedError
from tests.integration.test_command_line import gym, read_lines
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import containers_of, session_of

BENCHMARK = "judge_demo/endpoint"
TASKS = ("seasons", "sky-blue", "ice-floats", "moon-phases")


@pytest.fixture(scope="module")
def judged() -> PlannedBenchmark:
    return plan_benchmark(BENCHMARK)


def judge_overrides(judge: ScriptedEndpoint, **more: Any) -> dict[str, Any]:
    return {
        "judge_base_url": judge.url,
        "judge_api_key": judge.key or "none",
        "judge_model_name": "scripted-judge",
        **more,
    }


class Moody:
    """A judge of the four tasks: right, wrong, no verdict at its first two tries, never any."""

    def __init__(self, planned: PlannedBenchmark) -> None:
        self._questions = {row["question"]: row["task_id"] for row in planned.rows}
        self._lock = threading.Lock()
        self.asked: Counter[str] = Counter()

    def __call__(self, prompt: str) -> str:
        task = next(task for question, task in self._questions.items() if f"\n{question}\n" in prompt)
        with self._lock:
            self.asked[task] += 1
            times = self.asked[task]
        assert "\nI know.\n" in prompt
        if task == "moon-phases" or (task == "ice-floats" and times <= 2):
            return "I would rather not say."
        return f"A reason.\nVERDICT: {'INCORRECT' if task == 'sky-blue' else 'CORRECT'}"


def test_a_run_has_the_judges_rewards_and_failures_where_it_gave_none(judged: PlannedBenchmark, tmp_path: Path) -> None:
    output = tmp_path / "x.jsonl"
    moody = Moody(judged)
    with ScriptedEndpoint(lambda _: "I know.") as policy, ScriptedEndpoint(moody, key="sk-judge") as judge:
        judge_keys = [f"++{key}={value}" for key, value in judge_overrides(judge).items()]
        where = ["--model", "scripted", "--model-url", policy.url, "--model-api-key", "none", *judge_keys]
        what = ["--benchmark", BENCHMARK, "--limit", "4", "--output", str(output), "--json"]
        with gym("eval", "run", *what, *where) as process:
            shown, said = process.communicate(timeout=300)
    assert process.returncode == 1, said
    assert "1 of 4 rollouts have no reward" in said
    assert {result["task_id"]: result["reward"] for result in read_lines(output)} == {
        "seasons": 1.0, "sky-blue": 0.0, "ice-floats": 1.0
    }  # fmt: skip
    failures = read_lines(tmp_path / "x_failures.jsonl")
    assert {failure["failure_class"] for failure in failures} == {"judge_no_verdict"}
    assert all("gave no verdict in 2 attempts" in failure["_ng_failure_judge_error"] for failure in failures)
    assert sum(failure["final"] for failure in failures) == 1
    # Each attempt asks the judge twice; the one that did better at last is asked once more.
    assert moody.asked["ice-floats"] == 3
    assert moody.asked["moon-phases"] == 2 * (len(failures) - 1)
    metrics = json.loads((tmp_path / "x_aggregate_metrics.json").read_text(encoding="utf-8"))[0]["agent_metrics"]
    assert (metrics["judged"], metrics["judge_verdicts"]) == (3, {"CORRECT": 2, "INCORRECT": 1})
    assert "sk-judge" not in shown + said + "".join(path.read_text(encoding="utf-8") for path in tmp_path.iterdir())


def test_a_judged_run_is_repeated_from_its_own_records_without_any_endpoint(tmp_path: Path) -> None:
    first, again, records = tmp_path / "x.jsonl", tmp_path / "y.jsonl", tmp_path / "x_records.jsonl"

    def say(prompt: str) -> str:
        return f"VERDICT: {'INCORRECT' if 'blue' in prompt else 'CORRECT'}"

    with ScriptedEndpoint(lambda _: "I know.") as policy, ScriptedEndpoint(say) as judge:
        keys = {**policy.overrides(), **judge_overrides(judge), "observability_enabled": "true"}
        finish("--benchmark", BENCHMARK, "--limit", "4", "--output", str(first), overrides=keys)
    replayed = ["--benchmark", "judge_demo/replayed", "--model-type", "replay_model", "--limit", "4"]
    keys = {"policy_recordings": records, "judge_recordings": records}
    finish(*replayed, "--output", str(again), overrides=keys)
    figures = ("task_id", "reward", "judge_verdicts", "judge_calls", "judge_output_tokens")
    results, repeated = (
        [{name: line[name] for name in figures} for line in read_lines(path)] for path in (first, again)
    )
    assert repeated == results
    assert [result["reward"] for result in results] == [1.0, 0.0, 1.0, 1.0]


def finish(*arguments: str, overrides: dict[str, Any]) -> None:
    """``gym eval run``, which is to end well."""
    with gym("eval", "run", *arguments, *(f"++{key}={value}" for key, value in overrides.items())) as process:
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said


def test_a_judge_that_refuses_its_key_is_told_by_the_keys_own_name() -> None:
    with ScriptedEndpoint(lambda _: "I know.") as policy, ScriptedEndpoint(lambda _: "", key="sk-right") as judge:
        overrides = policy.overrides(**judge_overrides(judge, judge_api_key="sk-wrong"))
        with pytest.raises(ConfigError) as failed, serve_benchmark(BENCHMARK, overrides=overrides):
            pytest.fail("served")
    assert "inside the container of 'judge_model'. Check judge_api_key in the config or overrides." in str(failed.value)
    assert "sk-wrong" not in str(failed.value)


def test_a_judges_server_that_dies_is_named(engine: docker.APIClient, judged: PlannedBenchmark) -> None:
    with (
        ScriptedEndpoint(lambda _: "I know.") as policy,
        ScriptedEndpoint(lambda _: "VERDICT: CORRECT", delay_s=60) as judge,
        serve_benchmark(BENCHMARK, overrides=policy.overrides(**judge_overrides(judge))) as registry_server,
    ):
        container = containers_of(engine, session_of(registry_server.port))["judge_model"]

        async def run() -> None:
            async with TaskRunner(judged.rows, registry_server=registry_server) as runner:
                rollout = asyncio.create_task(runner.run_task("seasons"))
                assert await asyncio.to_thread(judge.asked.wait, 30)
                await asyncio.to_thread(engine.kill, container["Id"])
                await rollout

        with pytest.raises(RolloutFailedError, match="judge_model") as failed:
            asyncio.run(run())
    assert (failed.value.server, failed.value.failure_class) == ("judge_model", "server_dead")
