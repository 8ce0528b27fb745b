"""Results made from results: rewards computed anew, and shards made into one run, by verifiers served alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import docker

from nemo_gym.environment import PlannedBenchmark, plan_benchmark
from tests.integration.test_command_line import gym, read_lines
from tests.support.scripted_endpoint import ScriptedEndpoint, message_item
from tests.support.truthful import always_right

BENCHMARK = "truthfulqa_mc1"


def run(planned: PlannedBenchmark, output: Path, *more: str) -> dict[str, Any]:
    """Run eight tasks with a model that knows every answer; what the command printed."""
    with ScriptedEndpoint(always_right(planned)) as endpoint:
        where = ["--model", "scripted", "--model-url", endpoint.url, "--model-api-key", "none"]
        what = ["--benchmark", BENCHMARK, "--limit", "8", "--output", str(output), "--json"]
        return told(*("eval", "run", *what, *where, *more))


def told(*command: str, code: int = 0) -> dict[str, Any]:
    """The JSON that a command prints."""
    with gym(*command) as process:
        shown, said = process.communicate(timeout=300)
    assert process.returncode == code, said
    found: dict[str, Any] = json.loads(shown)
    return found


def test_shards_come_to_what_one_run_comes_to(
    engine: docker.APIClient, planned: PlannedBenchmark, tmp_path: Path
) -> None:
    whole = run(planned, tmp_path / "whole.jsonl")
    for shard in ("1/2", "2/2"):
        run(planned, tmp_path / "part.jsonl", "--shard", shard)
    shards = [str(tmp_path / f"part-{index}-of-2.jsonl") for index in (1, 2)]
    together = told("eval", "aggregate", *shards, "--output", str(tmp_path / "together.jsonl"), "--json")
    compared = ("rollouts", "tasks", "mean_reward", "mean_reward_interval_95", "pass_rates", "key_metrics", "tokens")
    assert {key: together[key] for key in compared} == {key: whole[key] for key in compared}
    assert together["rewards"] == whole["rewards"]
    assert together["key_metrics"]["mean/reward"] == 1.0

    def without_run(name: str) -> list[dict[str, Any]]:
        """The results, without what differs from one run to the next."""
        own = {"_ng_rollout_id", "_ng_elapsed_s", "response"}
        return [{k: v for k, v in result.items() if k not in own} for result in read_lines(tmp_path / name)]

    assert without_run("together.jsonl") == without_run("whole.jsonl")
    for side in ("_materialized_inputs.jsonl", "_plan.json"):
        assert (tmp_path / f"together{side}").read_bytes() == (tmp_path / f"whole{side}").read_bytes()
    shown = told("eval", "show", str(tmp_path / "together.jsonl"), "--json")
    assert (shown["status"], shown["shard"], len(shown["segments"])) == ("finished", None, 2)
    assert shown["unrecorded"] == {}


def test_rewards_are_computed_anew_without_a_model(
    engine: docker.APIClient, planned: PlannedBenchmark, tmp_path: Path
) -> None:
    output, new = tmp_path / "x.jsonl", tmp_path / "new.jsonl"
    run(planned, output)
    results = read_lines(output)
    results[3]["reward"] = 0.0  # as an earlier verifier might have had it
    output.write_text("".join(json.dumps(result) + "\n" for result in results), encoding="utf-8")
    again = told("eval", "reverify", str(output), "--output", str(new), "--json", "--check", code=1)
    task = results[3]["task_id"]
    assert (again["verified"], again["changed"], again["failed"]) == (8, 1, 0)
    assert [(change["task"], change["before"], change["after"]) for change in again["changes"]] == [(task, 0.0, 1.0)]
    assert again["verifiers"] == [f"{BENCHMARK}_resources_server"]
    mended = read_lines(new)
    assert [result["reward"] for result in mended] == [1.0] * 8
    assert [{**result, "reward": 1.0} for result in results] == mended
    metrics = json.loads((tmp_path / "new_aggregate_metrics.json").read_text(encoding="utf-8"))
    assert metrics[0]["key_metrics"]["mean/reward"] == 1.0
    assert json.loads((tmp_path / "new_run.json").read_text(encoding="utf-8"))["reverified"][0]["changed"] == 1


def test_a_verifier_that_needs_its_session_refuses(engine: docker.APIClient, tmp_path: Path) -> None:
    output = tmp_path / "x.jsonl"
    row = {
        "responses_create_params": {"input": "x"}, "agent_ref": {"name": "counter_simple_agent"},
        "_ng_task_index": 0, "_ng_rollout_index": 0, "response": {"output": []}, "reward": 1.0,
    }  # fmt: skip
    output.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with gym("eval", "reverify", str(output), "--benchmark", "counter") as process:
        shown, said = process.communicate(timeout=120)
    assert (process.returncode, shown) == (2, "")
    assert "'counter_resources_server' cannot verify again" in said


def test_a_judge_is_asked_anew_and_no_model(engine: docker.APIClient, tmp_path: Path) -> None:
    judged = plan_benchmark("judge_demo/endpoint")
    answers = {"responses_create_params": {}, "response": {"output": [message_item("I know.")]}, "reward": 0.0}
    results = [{**answers, **row, "_ng_rollout_index": 0} for row in judged.rows[:3]]
    output = tmp_path / "x.jsonl"
    output.write_text("".join(json.dumps(result) + "\n" for result in results), encoding="utf-8")
    command = ("eval", "reverify", str(output), "--benchmark", "judge_demo/endpoint")
    with gym(*command) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "judge_base_url=..." in said
    verdicts = iter(["VERDICT: CORRECT", "VERDICT: CORRECT", *["I would rather not say."] * 20])
    lock = threading.Lock()

    def judge(prompt: str) -> str:
        with lock:
            return next(verdicts)

    with ScriptedEndpoint(judge, key="sk-judge") as endpoint:
        keys = {"judge_base_url": endpoint.url, "judge_api_key": "sk-judge", "judge_model_name": "judge"}
        overrides = [f"++{key}={value}" for key, value in keys.items()]
        again = told(*command, *overrides, "--json", "--concurrency", "1", code=1)
    assert (again["verified"], again["changed"], again["failed"]) == (2, 2, 1)
    assert [failure["failure_class"] for failure in again["failures"]] == ["judge_no_verdict"]
    assert again["mean_reward_after"]["mean"] == 1.0
