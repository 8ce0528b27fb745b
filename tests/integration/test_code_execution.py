"""What a model writes is run, held, and judged in the container that code benchmarks use, on its internal network."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import docker
import pytest

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import PlannedBenchmark, TaskRunner, plan_benchmark, serve_benchmark
from tests.support.hostile_programs import HOSTILE
from tests.support.made_benchmark import asks, make_benchmark
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import containers_of, session_of

NAME = "doubled"
SERVER = "code_execution"
TEST = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate('ab') == 'abab'\n"
# The harmful ones that no other test runs, and some whose fate depends on what the container lets happen.
PROGRAMS = {
    "right": "def double(x):\n    return 2 * x\n",
    **{
        program.name.replace(" ", "-"): program.named("double")
        for program in HOSTILE
        if program.harmful
        or program.name in ("a socket", "a file in /tmp", "the parent's memory", "much memory at once")
    },
    "right-after-all": "def double(x):\n    return x + x\n",
}
CONFIG = {"config_paths": ["images/resources_servers/code_execution/config.yaml"]}
AGENT = {
    "resources_server": {"type": "resources_servers", "name": SERVER},
    "model_server": {"type": "responses_api_models", "name": "policy_model"},
}


async def replies_of(planned: PlannedBenchmark, registry_server: BaseServerConfig) -> dict[str, dict[str, Any]]:
    async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
        first, *others, last = PROGRAMS
        results = [await runner.run_task(first)]
        results += await asyncio.gather(*map(runner.run_task, others))
        results.append(await runner.run_task(last))
    return {result.task_id: result.results[0] for result in results}


def test_programs_are_judged_and_held(
    engine: docker.APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [asks(task, task_id=task, entry_point="double", test=TEST) for task in PROGRAMS]
    make_benchmark(tmp_path, NAME, rows=rows, config=CONFIG)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    agent = {f"{NAME}_agent": {"responses_api_agents": {"simple_agent": AGENT}}}
    planned = plan_benchmark(NAME, overrides=agent)
    limits = {SERVER: {"resources_servers": {SERVER: {"program_cpu_s": 2, "program_deadline_s": 15}}}}
    with (
        ScriptedEndpoint(lambda asked: f"```python\n{PROGRAMS[asked]}```") as endpoint,
        serve_benchmark(NAME, overrides=endpoint.overrides(**agent, **limits)) as registry_server,
    ):
        container = containers_of(engine, session_of(registry_server.port))[SERVER]
        before = engine.inspect_container(container["Id"])["State"]
        replies = asyncio.run(replies_of(planned, registry_server))
        after = engine.inspect_container(container["Id"])["State"]
        log = engine.logs(container["Id"]).decode()
        left = engine.top(container["Id"])["Processes"]
        files = engine.exec_start(engine.exec_create(container["Id"], ["ls", "-A", "/tmp"])["Id"]).decode()
    rewards = {task: reply["reward"] for task, reply in replies.items()}
    assert rewards == {task: float(task.startswith("right")) for task in PROGRAMS}
    expected = {program.name.replace(" ", "-"): program.reasons for program in HOSTILE}
    wrong = {
        task: reply["reason"]
        for task, reply in replies.items()
        if reply["reason"] not in expected.get(task, ("passed",))
    }
    assert wrong == {}
    assert (after["Pid"], after["StartedAt"], after["OOMKilled"]) == (before["Pid"], before["StartedAt"], False)
    assert "programs run under " in log
    assert not [process for process in left if "code_execution.program" in " ".join(process)]
    assert "forged" not in files
