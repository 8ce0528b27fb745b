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
