"""Runs repeated without a model: ``--model-type replay_model``."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

from nemo_gym.environment import PlannedBenchmark, TaskRunner, serve_benchmark
from tests.support.command import gym
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import get

MODEL = ["--benchmark", "truthfulqa_mc1", "--model-type"]
SOME = ["--limit", "3", "--num-repeats", "4", "--output"]


def one_letter_after_another() -> Any:
    """A model that says something else each time it is asked."""
    letters, lock = itertools.cycle("ABCDEFGHIJK"), threading.Lock()

    def answer(prompt: str) -> str:
        with lock:
            return f"Answer: {next(letters)}"

    return answer


def results(path: Path) -> list[Any]:
    """What counts of each result."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row["_ng_task_index"], row["_ng_rollout_index"], row["reward"], row["response"]) for row in rows]


def test_a_run_is_repeated_from_its_results_however_large_the_file(tmp_path: Path) -> None:
    first, again, some = (tmp_path / f"{name}.jsonl" for name in ("first", "again", "some"))
    with ScriptedEndpoint(one_letter_after_another()) as endpoint:
        where = ["--model", "scripted", "--model-url", endpoint.url, "--model-api-key", "none"]
        gym("eval", "run", *MODEL, "openai_model", *where, *SOME, str(first))
    assert len({json.dumps(result[3]["output"]) for result in results(first)}) > 1
    recordings = tmp_path / "recordings.jsonl"
    other = {"request": {"input": "x" * 20_000_000}, "response": {"output": []}}
    recordings.write_text(json.dumps(other) + "\n" + first.read_text(encoding="utf-8"), encoding="utf-8")

    gym(
        "eval",
        "run",
        *MODEL,
        "replay_model",
        f"policy_recordings={recordings}",
        *SOME,
        str(again),
        "--concurrency",
        "2",
    )
    assert results(again) == results(first)

    more = ["--limit", "4", "--output", str(some)]
    said = gym("eval", "run", *MODEL, "replay_model", f"policy_recordings={recordings}", *more, code=1)
    assert "1 of 4 rollouts" in said
    said_by_model = (tmp_path / "some_failures.jsonl").read_text(encoding="utf-8")
    assert "has been recorded; the most similar of 13 recorded requests has another input" in said_by_model


def test_answers_are_recorded_and_replayed_in_one_program(planned: PlannedBenchmark) -> None:
    task_id = planned.task_ids()[0]

    async def run(registry: Any) -> list[float]:
        async with TaskRunner(planned.rows, registry_server=registry) as runner:
            return (await runner.run_task(task_id, num_repeats=4)).rewards

    def model_url(registry: Any) -> str:
        instances = get(registry.port, "/server_instances")
        return next(f"{entry['url']}/recordings" for entry in instances if entry["name"] == "policy_model")

    with ScriptedEndpoint(one_letter_after_another(), key="sk-secret-0123456789abcdef") as endpoint:
        recording = serve_benchmark("truthfulqa_mc1", model_type="replay_model/record", overrides=endpoint.overrides())
        with recording as registry:
            rewards = asyncio.run(run(registry))
            recordings = urllib.request.urlopen(model_url(registry), timeout=30).read()
    assert len(recordings.splitlines()) == 4
    assert b"sk-secret" not in recordings
    with serve_benchmark("truthfulqa_mc1", model_type="replay_model") as registry:
        sent = urllib.request.Request(model_url(registry), data=recordings)
        assert json.load(urllib.request.urlopen(sent, timeout=30)) == {"added": 4, "recordings": 4}
        assert asyncio.run(run(registry)) == rewards
