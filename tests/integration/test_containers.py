"""What a served session looks like from the engine: hardened, on loopback, and without a secret anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from nemo_gym.environment import PlannedBenchmark, serve_benchmark
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import containers_of, get, session_of
from tests.support.truthful import always_right

CANARY = "sk-canary-5f0c2a77d1"


@pytest.fixture
def endpoint(planned: PlannedBenchmark) -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(always_right(planned), key=CANARY) as endpoint:
        yield endpoint


def test_every_server_is_hardened_and_on_loopback(engine: docker.APIClient, endpoint: ScriptedEndpoint) -> None:
    with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server:
        containers = containers_of(engine, session_of(registry_server.port))
        for container in containers.values():
            host = container["HostConfig"]
            assert host["ReadonlyRootfs"] is True
            assert host["CapDrop"] == ["ALL"]
            assert not host["CapAdd"]
            assert host["SecurityOpt"] == ["no-new-privileges:true"]
            assert host["Init"] is True
            assert host["Memory"] > 0
            assert host["PidsLimit"] > 0
            assert not host["Privileged"]
            assert not container["Mounts"]
            assert host["LogConfig"]["Config"]["max-size"]
            (bindings,) = container["NetworkSettings"]["Ports"].values()
            assert [binding["HostIp"] for binding in bindings] == ["127.0.0.1"]
            what_it_is = engine.exec_start(
                engine.exec_create(container["Id"], ["python", "-c", HARDENED])["Id"]
            ).decode()
            assert json.loads(what_it_is) == {"uid": 10001, "capabilities": 0, "root_is_read_only": True}
    assert len(containers) == 4


HARDENED = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
try:
    open("/opt/server/app/new", "w")
except OSError as error:
    refused = error.errno == 30
print(json.dumps({"uid": os.getuid(), "capabilities": int(status["CapEff"], 16), "root_is_read_only": refused}))
"""


def test_registry_serves_the_host_view_without_secrets(endpoint: ScriptedEndpoint) -> None:
    with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server:
        assert get(registry_server.port, "/")["status"] == "ok"
        view = yaml.safe_load(get(registry_server.port, "/global_config_dict_yaml"))
        instances = get(registry_server.port, "/server_instances")
        agent = view["truthfulqa_mc1_simple_agent"]["responses_api_agents"]["simple_agent"]
        # an address of the host view works from here, and it is the server that it says
        assert get(agent["port"], "/")["server"] == "truthfulqa_mc1_simple_agent"
    assert view["head_server"] == {"host": "127.0.0.1", "port": registry_server.port}
    assert view["policy_base_url"] == endpoint.url  # the caller's own address, not the relay's
    assert view["policy_api_key"] == "***"
    assert {entry["name"]: entry["status"] for entry in instances} == {
        "policy_model": "running",
        "truthfulqa_mc1_resources_server": "running",
        "truthfulqa_mc1_simple_agent": "running",
    }
    assert CANARY not in json.dumps([view, instances])


def everything_shown(engine: docker.APIClient, registry_port: int) -> str:
    """All that others can see of a session: inspect, history, logs, processes' arguments and environment, answers."""
    seen: list[Any] = []
    for container in containers_of(engine, session_of(registry_port)).values():
        seen += [
            container,
            engine.history(container["Image"]),
            engine.inspect_image(container["Image"]),
            engine.logs(container["Id"]).decode(errors="replace"),
            engine.top(container["Id"]),
            engine.exec_start(
                engine.exec_create(container["Id"], ["sh", "-c", "cat /proc/[0-9]*/environ"])["Id"]
            ).decode(errors="replace"),
        ]
    seen += [get(registry_port, "/global_config_dict_yaml"), get(registry_port, "/server_instances")]
    seen += engine.networks()
    seen.append(subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout)
    return json.dumps(seen)


def test_a_key_is_nowhere_to_be_seen_and_the_search_would_find_it(
    engine: docker.APIClient, endpoint: ScriptedEndpoint
) -> None:
    with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server:
        shown = everything_shown(engine, registry_server.port)
        # planted: the same key on the command line of a process
        planted = subprocess.Popen(
            [sys.executable, "-c", "input()", CANARY], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        try:
            shown_with_plant = everything_shown(engine, registry_server.port)
        finally:
            planted.communicate()
    assert "truthfulqa_mc1_simple_agent" in shown
    assert CANARY not in shown
    assert CANARY in shown_with_plant


def test_each_server_gets_only_what_it_needs(engine: docker.APIClient, endpoint: ScriptedEndpoint) -> None:
    """The key's only holder is the model server's memory: no other server's process has it."""
    with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server:
        pids = {name: c["State"]["Pid"] for name, c in containers_of(engine, session_of(registry_server.port)).items()}
        holders = {name for name, pid in pids.items() if _memory_holds(pid, CANARY.encode())}
    assert holders == {"policy_model"}


def _memory_holds(init_pid: int, needle: bytes) -> bool:
    """Whether any process of a container holds the bytes in its writable memory. Needs root, as the engine does."""
    children = subprocess.run(
        ["pgrep", "--parent", str(init_pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    for pid in [str(init_pid), *children]:
        process = Path("/proc") / pid
        with (process / "maps").open(encoding="utf-8") as maps, (process / "mem").open("rb", buffering=0) as memory:
            for line in maps:
                span, permissions = line.split()[:2]
                if not permissions.startswith("rw"):
                    continue
                begin, end = (int(edge, 16) for edge in span.split("-"))
                try:
                    memory.seek(begin)
                    if needle in memory.read(end - begin):
                        return True
                except (OSError, ValueError):  # a part that cannot be read, such as a device's
                    continue
    return False
