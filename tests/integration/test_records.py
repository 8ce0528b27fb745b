"""Records of rollouts from real containers: by Python, on the command line, and beside a run's results."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import PlannedBenchmark, TaskRunner, serve_benchmark
from nemo_gym.errors import RolloutFailedError
from nemo_gym.rollouts.records import RolloutRecord
from tests.support.command import gym
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import session_of
from tests.support.truthful import always_right, prompt_of

KEY = "sk-canary-5d20b7e1f4"
KINDS = ["run", "seed", "model_call", "verification"]
SERVERS = {
    "run": "truthfulqa_mc1_simple_agent",
    "seed": "truthfulqa_mc1_resources_server",
    "model_call": "policy_model",
    "verification": "truthfulqa_mc1_resources_server",
}


async def run_two(planned: PlannedBenchmark, server: BaseServerConfig) -> dict[str, list[RolloutRecord]]:
    """One rollout that goes well and one that the endpoint refuses: what is recorded of each."""
    good, refused = planned.task_ids()[:2]
    async with TaskRunner(planned.rows, registry_server=server) as runner:
        assert (await runner.run_task(good, rollout_id="good")).rewards == [1.0]
        with pytest.raises(RolloutFailedError) as failed:
            await runner.run_task(refused, rollout_id="refused")
        assert KEY not in str(failed.value)
        return {rollout_id: await runner.rollout_records(rollout_id) for rollout_id in ("good", "refused")}


def test_a_rollout_is_read_back_by_its_id(planned: PlannedBenchmark) -> None:
    answer, refused = always_right(planned), prompt_of(dict(planned.rows[1]))

    def answer_or_refuse(prompt: str) -> str:
        if prompt == refused:
            raise ValueError(f"refused, said Authorization: Bearer {KEY}")
        return answer(prompt)

    with ScriptedEndpoint(answer_or_refuse, key=KEY) as endpoint:
        overrides = endpoint.overrides(observability_enabled=True)
        with serve_benchmark("truthfulqa_mc1", overrides=overrides) as registry_server:
            found = asyncio.run(run_two(planned, registry_server))
            session = session_of(registry_server.port)
            shown = gym("env", "records", session, "--rollout-id", "good")
            whole = gym("env", "records", session, "--rollout-id", "refused", "--json")
            listed = json.loads(gym("env", "records", session, "--json"))
            unknown = gym("env", "records", session, "--rollout-id", "goood", code=2)
    run, seed, called, verified = found["good"]
    assert [record.kind for record in found["good"]] == KINDS
    assert {record.kind: record.server for record in found["good"]} == SERVERS
    assert prompt_of(called.request | {"responses_create_params": called.request}) == prompt_of(dict(planned.rows[0]))
    assert called.response["output"][0]["content"][0]["text"] == answer(prompt_of(dict(planned.rows[0])))
    assert (called.model, called.usage and called.usage["total_tokens"]) == ("scripted", 2)
    assert verified.reward == run.response["reward"] == 1.0
    assert run.duration_s >= called.duration_s > 0
    assert seed.status == 200

    assert [(record.kind, record.status) for record in found["refused"]] == [
        ("run", 502),
        ("seed", 200),
        ("model_call", 400),
    ]
    assert "refused, said Authorization: Bearer ***" in json.dumps(found["refused"][2].response)
    assert [record["kind"] for record in json.loads(whole)] == ["run", "seed", "model_call"]
    for text in (shown, whole, repr(found)):
        assert KEY not in text

    lines = shown.splitlines()
    assert [line.split()[2] for line in lines[2:]] == KINDS
    assert lines[4].endswith(f"1+1     {answer(prompt_of(dict(planned.rows[0])))}")
    assert lines[5].endswith("reward 1.0")
    assert [rollout["rollout_id"] for rollout in listed] == ["refused", "good"]
    assert "did you mean good?" in unknown


def test_a_run_keeps_them_beside_its_results(planned: PlannedBenchmark, tmp_path: Path) -> None:
    with ScriptedEndpoint(always_right(planned)) as endpoint:
        where = ["--model", "scripted", "--model-url", endpoint.url, "--model-api-key", "none"]
        what = ["--benchmark", "truthfulqa_mc1", "--limit", "3", "--num-repeats", "2", "observability_enabled=true"]
        gym("eval", "run", *where, *what, "--output", str(tmp_path / "x.jsonl"))
    results = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    records = [json.loads(line) for line in (tmp_path / "x_records.jsonl").read_text().splitlines()]
    assert len(results) == 6
    for result in results:
        own = [record for record in records if record["rollout_id"] == result["_ng_rollout_id"]]
        assert [record["kind"] for record in own] == KINDS
        assert own[0]["response"]["reward"] == own[3]["reward"] == result["reward"] == 1.0
        assert own[2]["response"]["output"] == result["response"]["output"]
    assert len(records) == 24
