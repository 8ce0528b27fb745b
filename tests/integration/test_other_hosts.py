"""Servers and callers on different machines, and an engine on another one."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import PlannedBenchmark, TaskRunner, serve_benchmark
from nemo_gym.errors import ConfigError
from tests.support.namespaces import OtherMachine, other_machine
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.second_engine import copy_images, second_engine
from tests.support.sessions import containers_of, session_of
from tests.support.truthful import always_right

TOKEN = "7e57-0f-70ken"

WAIT_AND_RUN = """
import asyncio, json, sys
from pathlib import Path
from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import PlannedBenchmark, TaskRunner
from nemo_gym.errors import ConfigError

planned = PlannedBenchmark.from_json(Path(sys.argv[1]).read_text())


async def main():
    async with TaskRunner(planned.rows, BaseServerConfig(host=sys.argv[2], port=int(sys.argv[3]))) as runner:
        print("waiting", flush=True)
        await runner.wait_until_ready(120)
        return (await runner.run_task(planned.task_ids()[0], num_repeats=2)).rewards


try:
    print(json.dumps(asyncio.run(main())))
except ConfigError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def machine() -> Iterator[OtherMachine]:
    with other_machine() as machine:
        yield machine
    left = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert machine.namespace not in left


@pytest.fixture
def plan_file(planned: PlannedBenchmark, tmp_path: Path) -> Path:
    path = tmp_path / "planned.json"
    path.write_text(planned.to_json(), encoding="utf-8")
    return path


@pytest.fixture
def endpoint(planned: PlannedBenchmark) -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(always_right(planned)) as endpoint:
        yield endpoint


def status_of(host: str, port: int, path: str, token: str | None = None) -> int:
    """The HTTP status of a GET."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{host}:{port}{path}", headers=headers), timeout=10
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def answer_of(host: str, port: int, path: str) -> Any:
    """The JSON that a server answers one who has the token."""
    request = urllib.request.Request(f"http://{host}:{port}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


async def rewards_of(planned: PlannedBenchmark, registry_server: BaseServerConfig) -> list[float]:
    async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
        return (await runner.run_task(planned.task_ids()[0])).rewards


def test_a_caller_on_another_machine_that_was_started_first(
    machine: OtherMachine,
    endpoint: ScriptedEndpoint,
    plan_file: Path,
    free_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = [str(plan_file), machine.near, str(free_port)]
    stranger = machine.python(WAIT_AND_RUN, *where)
    monkeypatch.setenv("NEMO_GYM_TOKEN", TOKEN)
    caller = machine.python(WAIT_AND_RUN, *where)
    with stranger, caller:
        assert stranger.stdout is not None
        assert caller.stdout is not None
        assert [process.stdout.readline() for process in (stranger, caller)] == ["waiting\n"] * 2  # type: ignore[union-attr]
        overrides = endpoint.overrides(bind_address=machine.near)
        with serve_benchmark("truthfulqa_mc1", overrides=overrides, registry_port=free_port) as registry_server:
            assert (registry_server.host, registry_server.port) == (machine.near, free_port)
            assert registry_server.token == TOKEN
            assert TOKEN not in repr(registry_server)
            rewards, errors = caller.communicate(timeout=60)
            refusal, _ = stranger.communicate(timeout=60)
            with pytest.raises(ConnectionRefusedError):  # where it was not asked to listen
                socket.create_connection(("127.0.0.1", free_port), timeout=5)
    assert json.loads(rewards) == [1.0, 1.0], errors
    message = json.loads(refusal)
    assert f"http://{machine.near}:{free_port} answered HTTP 401: it asks for a token" in message
    assert "Set NEMO_GYM_TOKEN here" in message


def test_every_route_of_every_server_wants_the_token_on_loopback_too(
    planned: PlannedBenchmark, machine: OtherMachine, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMO_GYM_TOKEN", TOKEN)
    overrides = endpoint.overrides(bind_address="0.0.0.0", published_host=machine.near)
    with serve_benchmark("truthfulqa_mc1", overrides=overrides) as registry_server:
        assert registry_server.host == machine.near
        port = registry_server.port
        instances = answer_of("127.0.0.1", port, "/server_instances")
        assert {instance["host"] for instance in instances} == {machine.near}
        asked = [(port, path) for path in ("/", "/ready", "/global_config_dict_yaml", "/server_instances", "/x")]
        asked += [(instance["port"], path) for instance in instances for path in ("/", "/ready", "/x")]
        for host in ("127.0.0.1", machine.near):
            assert {status_of(host, port, path) for port, path in asked} == {401}
            assert {status_of(host, port, path, "wrong") for port, path in asked} == {401}
            assert {status_of(host, port, path, TOKEN) for port, path in asked} == {200, 404}
        monkeypatch.delenv("NEMO_GYM_TOKEN")
        with pytest.raises(ConfigError, match="asks for a token"):
            asyncio.run(rewards_of(planned, BaseServerConfig(host="127.0.0.1", port=port)))
        with pytest.raises(ConfigError, match="refuses the token"):
            asyncio.run(rewards_of(planned, BaseServerConfig(host="127.0.0.1", port=port, token="wrong")))
        assert asyncio.run(rewards_of(planned, registry_server)) == [1.0]


def test_a_token_is_asked_for_on_loopback_when_there_is_one(
    planned: PlannedBenchmark, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMO_GYM_TOKEN", TOKEN)
    with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server:
        assert status_of("127.0.0.1", registry_server.port, "/ready") == 401
        assert asyncio.run(rewards_of(planned, registry_server)) == [1.0]


def test_beyond_loopback_without_a_token_nothing_starts(
    engine: docker.APIClient, endpoint: ScriptedEndpoint, machine: OtherMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEMO_GYM_TOKEN", raising=False)
    overrides = endpoint.overrides(bind_address=machine.near)
    with (
        pytest.raises(ConfigError, match=r"export NEMO_GYM_TOKEN=\$\(openssl rand -hex 32\)"),
        serve_benchmark("truthfulqa_mc1", overrides=overrides),
    ):
        pass


def test_an_engine_on_another_machine(
    engine: docker.APIClient,
    planned: PlannedBenchmark,
    machine: OtherMachine,
    endpoint: ScriptedEndpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over TCP, with nothing shared but the wire: no mount, no port and no name of this machine helps."""
    with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server:  # builds what is missing
        needed = images_of(engine, containers_of(engine, session_of(registry_server.port)).values())
    with second_engine(machine, str(engine.api_version)) as far:
        copy_images(engine, far, needed)
        monkeypatch.setenv("DOCKER_HOST", f"tcp://{machine.far}:2375")
        monkeypatch.setenv("NEMO_GYM_TOKEN", TOKEN)
        images = {image["Id"] for image in far.images()}
        began = time.monotonic()
        refuse(endpoint.overrides(), f"tcp://{machine.far}:2375 (DOCKER_HOST) is on another machine", "bind_address")
        everywhere = {"bind_address": "0.0.0.0"}
        refuse(endpoint.overrides(**everywhere), f"127.0.0.1:{endpoint.port}", "that machine can reach")
        assert time.monotonic() - began < 5
        with ScriptedEndpoint(always_right(planned), address=machine.near) as reachable:
            overrides = reachable.overrides(**everywhere)
            with serve_benchmark("truthfulqa_mc1", overrides=overrides) as registry_server:
                assert registry_server.host == machine.far
                rewards = asyncio.run(rewards_of(planned, registry_server))
                session = answer_of(machine.far, registry_server.port, "/")["session_id"]
                containers = containers_of(far, session)
                assert not containers_of(engine, session)
            assert far.containers(all=True) == []
            assert {network["Name"] for network in far.networks()} == {"bridge", "host", "none"}
        assert {image["Id"] for image in far.images()} == images  # nothing was built
    assert rewards == [1.0]
    assert len(containers) == 4
    for container in containers.values():
        assert container["Mounts"] == []
        assert not container["HostConfig"]["Binds"]


def images_of(engine: docker.APIClient, containers: Iterable[dict[str, Any]]) -> set[str]:
    """The tags that containers run from, and of all that these are built on: a tag ends with its base image's ID."""
    listed = {image["Id"].removeprefix("sha256:")[:12]: image["RepoTags"] or [] for image in engine.images()}
    pending = [container["Config"]["Image"] for container in containers]
    found: set[str] = set()
    while pending:
        tag = pending.pop()
        found.add(tag)
        pending += listed.get(tag.rpartition("-")[2], [])
    return found


def refuse(overrides: dict[str, Any], *said: str) -> None:
    """Serving ends in a ``ConfigError`` that says all of ``said``."""
    with pytest.raises(ConfigError) as failed, serve_benchmark("truthfulqa_mc1", overrides=overrides):
        pass
    for part in said:
        assert part in str(failed.value)
