"""A TaskRunner against a registry and an agent that others wrote and started, in a process of their own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import TaskRunner
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.collection import RolloutCollectionHelper
from nemo_gym.rollouts.registry_client import RegistryAddress, parse_host_view

PROGRAM = Path(__file__).parents[1] / "support" / "foreign" / "registry.py"
ROWS: list[dict[str, Any]] = [
    {
        "task_id": task_id,
        "responses_create_params": {"input": asked},
        "agent_ref": {"type": "responses_api_agents", "name": "agent"},
    }
    for task_id, asked in (("short", "x" * 10), ("long", "x" * 70))
]


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """The file that says that its servers are up."""
    path = tmp_path / "started"
    path.touch()
    return path


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    command = [sys.executable, str(PROGRAM), str(tmp_path / "started")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        yield int(program.stdout.readline())
        program.stdin.close()
        assert program.wait(10) == 0


async def test_tasks_run_where_its_config_says(port: int, started: Path) -> None:
    async with TaskRunner(ROWS, BaseServerConfig(host="127.0.0.1", port=port)) as runner:
        short, long = await asyncio.gather(runner.run_task("short", num_repeats=3), runner.run_task("long"))
    assert (short.rewards, long.rewards) == ([0.1] * 3, [0.7])
    assert [reply["_ng_rollout_id"][-3:] for reply in short.results] == ["-r0", "-r1", "-r2"]


async def test_it_is_waited_for_until_it_has_a_config(port: int, tmp_path: Path) -> None:
    async with TaskRunner(ROWS, BaseServerConfig(host="127.0.0.1", port=port)) as runner:
        with pytest.raises(ConfigError, match=r"was not ready within 0\.3 s: it answered HTTP 500"):
            await runner.wait_until_ready(0.3)
        waiting = asyncio.create_task(runner.wait_until_ready(20))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        (tmp_path / "started").touch()
        await waiting
        assert (await runner.run_task("long")).rewards == [0.7]


async def test_its_agents_metrics(port: int, started: Path) -> None:
    helper = RolloutCollectionHelper()
    address = RegistryAddress("127.0.0.1", port)
    assert await helper.aggregate_metrics(address, "agent", [{"reward": 1.0}] * 4) == {"key_metrics": {"count": 4}}


def agents(registry: str = "http://10.0.0.5:11000", **settings: Any) -> dict[str, str]:
    config = {"agent": {"responses_api_agents": {"x": {"entrypoint": "app.py", **settings}}}}
    # a foreign registry's YAML, of which JSON is a part
    return dict(parse_host_view(json.dumps(json.dumps(config)).encode(), registry).agent_urls)


class TestAddresses:
    @pytest.mark.parametrize("everywhere", ["0.0.0.0", "::", "[::]"])
    def test_every_address_of_a_machine_is_the_registrys(self, everywhere: str) -> None:
        assert agents(host=everywhere, port=8080) == {"agent": "http://10.0.0.5:8080"}
        inside = agents("http://[fd00::5]:11000", host=everywhere, port=8080)
        assert inside == {"agent": "http://[fd00::5]:8080"}

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "node7.example.com", "10.1.1.1"])
    def test_any_other_is_its_own(self, host: str) -> None:
        assert agents(host=host, port=8080) == {"agent": f"http://{host}:8080"}

    def test_a_port_as_text(self) -> None:
        assert agents(host="10.1.1.1", port="8080") == {"agent": "http://10.1.1.1:8080"}

    @pytest.mark.parametrize("port", [None, "", "???", True, 80.5, {}])
    def test_no_port_no_address(self, port: Any) -> None:
        assert agents(host="10.1.1.1", port=port) == {}

    @pytest.mark.parametrize("host", [None, "", 5])
    def test_no_host_no_address(self, host: Any) -> None:
        assert agents(host=host, port=8080) == {}
