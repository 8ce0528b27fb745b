"""Whole runs on the real engine: killed and resumed, split up, against servers that run already."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.environment import PlannedBenchmark, serve_benchmark
from tests.support.command import GYM, gym
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.truthful import always_right

# the plan names the checkout's commit, and a commit may be made while the test runs
TIMES = re.compile(rb'"(_ng_elapsed_s|created_at)":[0-9.e-]+|"commit":"[0-9a-f]+"')


def files(folder: Path) -> dict[str, bytes]:
    """Everything that a run leaves but its record and its images' lock file, apart from times and the commit."""
    return {
        path.name: TIMES.sub(b"", path.read_bytes())
        for path in sorted(folder.iterdir())
        if path.suffix in (".json", ".jsonl", ".yaml") and not path.name.endswith(("_run.json", ".lock.json"))
    }


def segments(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "x_run.json").read_text(encoding="utf-8"))["segments"]
    return found


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.full)])
def test_a_run_killed_again_and_again_and_resumed_equals_an_undisturbed_one(
    kills: int, planned: PlannedBenchmark, tmp_path: Path
) -> None:
    """With recorded answers, and SIGKILL at random moments of the start, the run and the sorting at its end."""
    benchmark = ["--benchmark", "truthfulqa_mc1", "use_cached_prepared_benchmarks=true"]
    recorded = tmp_path / "recorded.jsonl"
    with ScriptedEndpoint(always_right(planned)) as endpoint:
        where = ["--model", "scripted", "--model-url", endpoint.url, "--model-api-key", "none"]
        gym("eval", "run", *benchmark, *where, "--output", str(recorded))
    same = ["--model-type", "replay_model", f"policy_recordings={recorded}", "--num-repeats", "3", "--run-id", "r"]
    command = ["eval", "run", *benchmark, *same, "--output", str(tmp_path / "out" / "x.jsonl")]
    gym(*command)
    undisturbed = files(tmp_path / "out")
    assert undisturbed["x.jsonl"].count(b"\n") == 300
    shutil.rmtree(tmp_path / "out")

    rng = random.Random(8)
    for _ in range(kills):
        concurrency = ["--concurrency", str(rng.randint(1, 4))]
        with subprocess.Popen(
            [*GYM, *command, "--resume", *concurrency], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            results = tmp_path / "out" / "x.jsonl"
            wanted = results.stat().st_size + rng.randint(0, 60_000) if results.is_file() else rng.randint(0, 20_000)
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                if results.is_file() and results.stat().st_size > wanted:
                    break
                time.sleep(0.001)
            process.kill()
    gym(*command, "--resume")
    assert files(tmp_path / "out") == undisturbed
    statuses = [segment["status"] for segment in segments(tmp_path / "out")]
    assert statuses.count("killed") >= kills // 2
    assert statuses[-1] == "finished"
    assert "nothing to do" in gym_said(*command, "--resume")


def gym_said(*words: str) -> str:
    """What a command that ends well says on stderr."""
    return subprocess.run([*GYM, *words], cwd="/", capture_output=True, text=True, timeout=120, check=True).stderr


def test_shards_against_servers_that_run_already_are_the_whole(planned: PlannedBenchmark, tmp_path: Path) -> None:
    with (
        ScriptedEndpoint(always_right(planned)) as endpoint,
        serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry,
    ):
        where = ["--benchmark", "truthfulqa_mc1", "--registry", f"{registry.host}:{registry.port}", "--run-id", "r"]
        for shard in ([], ["--shard", "1/2"], ["--shard", "2/2"]):
            gym("eval", "run", *where, "--limit", "31", "--output", str(tmp_path / "x.jsonl"), *shard)
    whole, *parts = (
        TIMES.sub(b"", (tmp_path / name).read_bytes()).splitlines()
        for name in ("x.jsonl", "x-1-of-2.jsonl", "x-2-of-2.jsonl")
    )
    assert [len(part) for part in parts] == [16, 15]
    assert sorted(parts[0] + parts[1]) == sorted(whole)
