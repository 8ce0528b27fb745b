"""``gym eval run`` on the real engine: with the embedded model, and with endpoints and servers that fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker

from nemo_gym.environment import PlannedBenchmark
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import OWNER_PID, SERVER
from tests.support.truthful import always_right

STOPPING = "Stopping: no further rollout begins, and those under way are finished. Ctrl-C again stops at once.\n"


@contextlib.contextmanager
def gym(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which does not outlive a test that fails."""
    with subprocess.Popen(
        [sys.executable, "-m", "nemo_gym", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def run_arguments(endpoint: ScriptedEndpoint, output: Path, *more: str) -> list[str]:
    where = ["--model", "scripted", "--model-url", endpoint.url, "--model-api-key", "none"]
    return ["eval", "run", "--benchmark", "truthfulqa_mc1", *where, "--output", str(output), *more]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_embedded_model_answers_for_real(tmp_path: Path) -> None:
    """No endpoint and no key: the model inside the image generates every answer."""
    output = tmp_path / "x.jsonl"
    arguments = ["--benchmark", "truthfulqa_mc1", "--model-type", "llama_cpp_model", "--limit", "4"]
    with gym("eval", "run", *arguments, "--output", str(output)) as process:
        shown, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    results = read_lines(output)
    assert len(results) == 4
    for result in results:
        assert result["reward"] in (0.0, 1.0)
        assert result["response"]["usage"]["output_tokens"] > 0
        assert "SmolLM2" in result["response"]["model"]
        text = result["response"]["output"][0]["content"][0]["text"]
        assert text.strip()
    assert len({result["response"]["output"][0]["content"][0]["text"] for result in results}) > 1
    metrics = json.loads((tmp_path / "x_aggregate_metrics.json").read_text(encoding="utf-8"))
    mean = sum(result["reward"] for result in results) / 4
    assert metrics[0]["key_metrics"]["mean/reward"] == mean
    assert "mean reward" in shown
    assert str(output) in shown
    assert len(read_lines(tmp_path / "x_materialized_inputs.jsonl")) == 4


def test_all_rows_with_a_model_that_knows(planned: PlannedBenchmark, tmp_path: Path) -> None:
    with ScriptedEndpoint(always_right(planned)) as endpoint:
        with gym(*run_arguments(endpoint, tmp_path / "x.jsonl", "--json", "--num-repeats", "2")) as process:
            shown, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    results = read_lines(tmp_path / "x.jsonl")
    assert [result["reward"] for result in results] == [1.0] * 200
    assert {result["task_id"] for result in results} == set(planned.task_ids())
    order = [(result["_ng_task_index"], result["_ng_rollout_index"]) for result in results]
    assert order == sorted(order)
    assert json.loads(shown)["mean_reward"] == 1.0
    assert (tmp_path / "x_failures.jsonl").read_text(encoding="utf-8") == ""


def test_ctrl_c_during_the_run_keeps_what_is_there(planned: PlannedBenchmark, tmp_path: Path) -> None:
    """Half of the answers come at once, the others never: Ctrl-C twice ends the run, and the first half is on disk."""
    held = threading.Event()
    answer = always_right(planned)
    counted = iter(range(1000))
    lock = threading.Lock()

    def answer_half(prompt: str) -> str:
        with lock:
            number = next(counted)
        if number >= 50:
            held.wait(120)
        return answer(prompt)

    output = tmp_path / "x.jsonl"
    with ScriptedEndpoint(answer_half) as endpoint:
        with gym(*run_arguments(endpoint, output, "--concurrency", "10")) as process:
            # lines are counted, not read: the last one may be half written
            while not (output.is_file() and output.read_bytes().count(b"\n") == 50):
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGINT)
            assert process.stderr is not None
            said = "".join(iter(process.stderr.readline, STOPPING))
            os.kill(process.pid, signal.SIGINT)
            said += process.communicate(timeout=60)[1]
        held.set()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "50 of 100 rollouts are in" in said
    assert [result["reward"] for result in read_lines(output)] == [1.0] * 50


def test_death_of_a_server_ends_the_run_and_is_named(
    engine: docker.APIClient, planned: PlannedBenchmark, tmp_path: Path
) -> None:
    with (
        ScriptedEndpoint(always_right(planned), delay_s=120) as endpoint,
        gym(*run_arguments(endpoint, tmp_path / "x.jsonl")) as process,
    ):
        assert endpoint.asked.wait(60)
        labels = [f"{OWNER_PID}={process.pid}", f"{SERVER}=truthfulqa_mc1_resources_server"]
        (container,) = engine.containers(filters={"label": labels})
        engine.kill(container["Id"])
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "truthfulqa_mc1_resources_server" in said
    assert "exit code 137" in said
    assert "Traceback" not in said


def test_a_key_is_in_no_output_of_a_run_and_the_search_would_find_it(planned: PlannedBenchmark, tmp_path: Path) -> None:
    """The endpoint repeats the key in its errors, as some do: half of the rollouts fail with it in the text."""
    key = "sk-canary-77aa01c9e2"
    answer = always_right(planned)

    def answer_or_leak(prompt: str) -> str:
        if len(prompt) % 2:
            raise ValueError(f"the key {key} is over its quota")
        return answer(prompt)

    (tmp_path / "key").write_text(key, encoding="utf-8")
    with ScriptedEndpoint(answer_or_leak, key=key) as endpoint:
        out = tmp_path / "out"
        arguments = run_arguments(endpoint, out / "x.jsonl", "-v", f"nemo_gym_log_dir={out}")
        arguments[arguments.index("none")] = f"@{tmp_path / 'key'}"
        with gym(*arguments) as process:
            shown, said = process.communicate(timeout=300)
    assert process.returncode == 1
    written = {path: path.read_text(encoding="utf-8") for path in out.rglob("*") if path.is_file()}
    assert any("over its quota" in text for text in written.values())  # the failure itself is told
    assert any(path.suffix == ".log" for path in written)
    found = [str(path) for path, text in written.items() if key in text]
    assert not found
    assert key not in shown
    assert key not in said
    assert key not in planned.to_json()
    (out / "planted").write_text(f"... {key} ...", encoding="utf-8")
    everything = [path.read_text(encoding="utf-8") for path in out.rglob("*") if path.is_file()]
    assert sum(key in text for text in everything) == 1
