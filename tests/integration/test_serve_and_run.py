"""The whole path for real: plan, build, serve, run, score; with a model that knows and one that never does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.config.process_config import get_process_config
from nemo_gym.environment import PlannedBenchmark, TaskRunner, serve_benchmark
from nemo_gym.errors import ConfigError, RolloutFailedError
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import containers_of, session_of
from tests.support.truthful import always_right, always_wrong

SERVERS = {
    "registry",
    "policy_model",
    "truthfulqa_mc1_resources_server",
    "truthfulqa_mc1_simple_agent",
}


async def run_all(planned: PlannedBenchmark, registry_server: BaseServerConfig) -> list[float]:
    async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
        results = await asyncio.gather(*(runner.run_task(task_id) for task_id in planned.task_ids()))
    return [reward for result in results for reward in result.rewards]


@pytest.mark.parametrize(
    ("script", "mean_reward"), [(always_right, 1.0), (always_wrong, 0.0)], ids=["always right", "always wrong"]
)
def test_rewards_are_the_models_own(
    engine: docker.APIClient,
    planned: PlannedBenchmark,
    script: Callable[[PlannedBenchmark], Callable[[str], str]],
    mean_reward: float,
) -> None:
    with ScriptedEndpoint(script(planned)) as endpoint:
        with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server:
            session = session_of(registry_server.port)
            before = containers_of(engine, session)
            rewards = asyncio.run(run_all(planned, registry_server))
            after = containers_of(engine, session)
        assert len(endpoint.prompts) == 100
    assert len(rewards) == 100
    assert sum(rewards) / len(rewards) == mean_reward
    for containers in (before, after):
        assert set(containers) == SERVERS
        assert all(container["State"]["Running"] for container in containers.values())
    assert containers_of(engine, session) == {}


def test_repeats_come_in_order_and_one_by_one_named(planned: PlannedBenchmark) -> None:
    answers = iter(["Answer: Z", *["Answer: A", "Answer: B", "Answer: C", "Answer: D"]])
    lock = threading.Lock()

    def answer(prompt: str) -> str:
        with lock:
            return next(answers)

    task_id = planned.task_ids()[0]
    with (
        ScriptedEndpoint(answer) as endpoint,
        serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server,
    ):
        runner = TaskRunner(planned.rows, registry_server=registry_server)

        async def both() -> tuple[Any, Any]:
            return await runner.run_task(task_id), await runner.run_task(task_id, num_repeats=4)

        first, repeated = asyncio.run(both())
    assert first.rewards == [0.0]  # an answer that is none of the options
    assert len(repeated.rewards) == len(repeated.results) == 4
    assert sorted(repeated.rewards) == [0.0, 0.0, 0.0, 1.0]  # each of the four options once
    assert [result["reward"] for result in repeated.results] == repeated.rewards


def test_process_is_as_before_and_serves_once_at_a_time(planned: PlannedBenchmark) -> None:
    environment = dict(os.environ)
    threads = set(threading.enumerate())
    with ScriptedEndpoint(always_right(planned)) as endpoint:
        with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()):
            config = get_process_config()
            assert config is not None
            assert config.policy_model_name == "scripted"
            with (
                pytest.raises(ConfigError, match="already serves"),
                serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()),
            ):
                pass
        assert get_process_config() is None
    assert dict(os.environ) == environment
    assert set(threading.enumerate()) == threads


def test_exception_inside_the_block_is_the_callers_own(engine: docker.APIClient, planned: PlannedBenchmark) -> None:
    sessions = []

    def serve_and_fail() -> None:
        with (
            ScriptedEndpoint(always_right(planned)) as endpoint,
            serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server,
        ):
            sessions.append(session_of(registry_server.port))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        serve_and_fail()
    assert containers_of(engine, sessions[0]) == {}


def test_another_process_started_before_the_servers_runs_a_task(
    planned: PlannedBenchmark, tmp_path: Path, free_port: int
) -> None:
    """Process B knows the registry's port ahead, waits for it, and runs a task over it."""
    (tmp_path / "planned.json").write_text(planned.to_json(), encoding="utf-8")
    program = """
import asyncio, json, sys
from pathlib import Path
from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import PlannedBenchmark, TaskRunner

async def main():
    planned = PlannedBenchmark.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    address = BaseServerConfig(host="127.0.0.1", port=int(sys.argv[2]))
    async with TaskRunner(planned.rows, registry_server=address) as runner:
        print("waiting", flush=True)
        await runner.wait_until_ready(timeout_s=120)
        result = await runner.run_task(planned.task_ids()[0], num_repeats=2, rollout_id="from-b")
    print(json.dumps({"task_id": result.task_id, "rewards": result.rewards}), flush=True)

asyncio.run(main())
"""
    command = [sys.executable, "-c", program, str(tmp_path / "planned.json"), str(free_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process_b:
        assert process_b.stdout is not None
        assert process_b.stdout.readline() == "waiting\n"
        time.sleep(0.5)  # B is in its wait before anything of the registry exists
        with (
            ScriptedEndpoint(always_right(planned)) as endpoint,
            serve_benchmark(
                "truthfulqa_mc1", overrides=endpoint.overrides(), registry_port=free_port
            ) as registry_server,
        ):
            assert registry_server.port == free_port
            said = json.loads(process_b.stdout.readline())
            assert process_b.wait(timeout=60) == 0
    assert said == {"task_id": planned.task_ids()[0], "rewards": [1.0, 1.0]}


def test_death_of_a_server_ends_a_rollout_and_names_it(engine: docker.APIClient, planned: PlannedBenchmark) -> None:
    """The resources server is killed while the model thinks: the rollout fails, with no reward of 0."""
    endpoint = ScriptedEndpoint(always_right(planned), delay_s=60.0)
    with endpoint, serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server:
        container = containers_of(engine, session_of(registry_server.port))["truthfulqa_mc1_resources_server"]

        async def run_and_kill() -> None:
            async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
                rollout = asyncio.create_task(runner.run_task(planned.task_ids()[0]))
                await asyncio.to_thread(endpoint.asked.wait, 60)
                await asyncio.to_thread(engine.kill, container["Id"])
                await asyncio.wait_for(rollout, timeout=30)

        with pytest.raises(RolloutFailedError) as failed:
            asyncio.run(run_and_kill())
    assert failed.value.server == "truthfulqa_mc1_resources_server"
    assert failed.value.task_id == planned.task_ids()[0]
    assert failed.value.results == [None]
