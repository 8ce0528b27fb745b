"""A server that runs what models write: it serves its agent, and reaches nothing and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import docker
import pytest
import yaml

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.config.resolve import load_config, to_plain
from nemo_gym.deployment.launch import RunningSession, serve_config
from nemo_gym.environment import PlannedBenchmark, TaskRunner, serve_benchmark
from nemo_gym.environment.serving import serving_config_paths
from nemo_gym.errors import ConfigError
from tests.support.inside import Target, reached_from
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import containers_of, get, session_of
from tests.support.truthful import always_right

SANDBOX = "truthfulqa_mc1_resources_server"
AGENT = "truthfulqa_mc1_simple_agent"

# Addresses of well-known services; from a machine without a way to them the test still shows all the rest.
OUTSIDE: list[Target] = [("1.1.1.1", 443), ("8.8.8.8", 53), ("9.9.9.9", 443)]


def contained(**container: Any) -> dict[str, Any]:
    return {SANDBOX: {"resources_servers": {"mcqa": {"container": container}}}}


@pytest.fixture
def endpoint(planned: PlannedBenchmark) -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(always_right(planned)) as endpoint:
        yield endpoint


@pytest.fixture
def another_session(endpoint: ScriptedEndpoint) -> Iterator[RunningSession]:
    """A session beside the one that the test serves."""
    paths = serving_config_paths("truthfulqa_mc1", "openai_model")
    config = load_config(paths, endpoint.overrides(), serving=True)
    with serve_config(to_plain(config)) as session:
        yield session


async def rewards_of(planned: PlannedBenchmark, registry_server: BaseServerConfig) -> list[float]:
    async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
        return (await runner.run_task(planned.task_ids()[0], num_repeats=4)).rewards


def test_it_is_served_without_a_port_and_scores(
    engine: docker.APIClient, planned: PlannedBenchmark, endpoint: ScriptedEndpoint
) -> None:
    overrides = endpoint.overrides(**contained(network="internal"))
    with serve_benchmark("truthfulqa_mc1", overrides=overrides) as registry_server:
        session = session_of(registry_server.port)
        containers = containers_of(engine, session)
        view = yaml.safe_load(get(registry_server.port, "/global_config_dict_yaml"))
        instances = {entry["name"]: entry for entry in get(registry_server.port, "/server_instances")}
        probed = get(registry_server.port, f"/inside/{SANDBOX}/ready")
        rewards = asyncio.run(rewards_of(planned, registry_server))
        ways_out = {name: default_gateway(engine, containers[name]["Id"]) for name in ("registry", AGENT)}
    assert rewards == [1.0] * 4
    # who stands on both networks leaves by the session's own, on which alone there is a way
    assert ways_out == {
        name: containers[name]["NetworkSettings"]["Networks"][f"nemo-gym-{session}"]["Gateway"] for name in ways_out
    }
    assert probed["server"] == SANDBOX
    assert not any(containers[SANDBOX]["NetworkSettings"]["Ports"].values())
    networks = {name: sorted(c["NetworkSettings"]["Networks"]) for name, c in containers.items()}
    outer, inner = f"nemo-gym-{session}", f"nemo-gym-{session}-internal"
    assert networks == {
        "registry": [outer, inner],
        "policy_model": [outer],
        SANDBOX: [inner],
        AGENT: [outer, inner],
    }
    entry = view[SANDBOX]["resources_servers"]["mcqa"]
    assert (entry["host"], entry["port"], entry["network"]) == (None, None, "internal")
    instance = instances[SANDBOX]
    assert {key: instance[key] for key in ("host", "port", "url", "network", "status")} == {
        "host": None,
        "port": None,
        "url": None,
        "network": "internal",
        "status": "running",
    }


def default_gateway(engine: docker.APIClient, container_id: str) -> str:
    """The address that a container sends everything to that is not on its networks (proc(5), ``/proc/net/route``)."""
    command = ["python", "-c", "print(open('/proc/net/route').read())"]
    table = engine.exec_start(engine.exec_create(container_id, command)["Id"]).decode()
    (gateway,) = [words[2] for line in table.splitlines()[1:] if (words := line.split()) and words[1] == "00000000"]
    return socket.inet_ntoa(bytes.fromhex(gateway)[::-1])


def test_it_may_call_a_model_whose_endpoint_is_outside(
    engine: docker.APIClient, planned: PlannedBenchmark, endpoint: ScriptedEndpoint
) -> None:
    """The model server then stands on both networks: the endpoint is its way out, and nobody else's."""
    inside = contained(network="internal")
    inside[SANDBOX]["resources_servers"]["mcqa"]["judge"] = {"type": "responses_api_models", "name": "policy_model"}
    with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides(**inside)) as registry_server:
        containers = containers_of(engine, session_of(registry_server.port))
        rewards = asyncio.run(rewards_of(planned, registry_server))
        from_sandbox = reached_from(engine, containers[SANDBOX]["Id"], [("policy_model", 8000), *OUTSIDE])
    assert rewards == [1.0] * 4
    assert from_sandbox == {("policy_model", 8000)}


def test_an_endpoint_that_an_internal_server_cannot_reach_is_told_as_such() -> None:
    overrides = {
        "policy_base_url": "http://api.example.com/v1",
        "policy_api_key": "k",
        "policy_model_name": "m",
        "policy_model": {"responses_api_models": {"openai_model": {"container": {"network": "internal"}}}},
        "model_endpoint_readiness_timeout_seconds": 600,
    }
    with pytest.raises(ConfigError) as failed, serve_benchmark("truthfulqa_mc1", overrides=overrides):
        pass
    assert "Check policy_base_url in the config or overrides. The server stands on the internal network" in (
        str(failed.value)
    )


class HostListener:
    """Listens on every address of this machine, over TCP and UDP, and counts the datagrams that come."""

    def __init__(self) -> None:
        self.tcp = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.port = int(self.tcp.getsockname()[1])
        self.udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.udp.bind(("::", self.port))
        self.udp.settimeout(0.5)

    def datagrams(self) -> int:
        """How many have come since the last look."""
        count = 0
        with contextlib.suppress(TimeoutError):
            while self.udp.recv(100):
                count += 1
        return count

    def __enter__(self) -> HostListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.tcp.close()
        self.udp.close()


def host_addresses() -> list[str]:
    """Every address of this machine but its loopback, link-local ones as a container would write them."""
    shown = json.loads(subprocess.run(["ip", "-j", "addr"], capture_output=True, check=True).stdout)
    found = [a["local"] for link in shown if link.get("ifname") != "lo" for a in link.get("addr_info", [])]
    return [f"{address}%eth0" if address.startswith("fe80:") else address for address in found]


def gateways_of(engine: docker.APIClient) -> list[str]:
    pools = [pool for network in engine.networks() for pool in network["IPAM"]["Config"] or []]
    return [pool["Gateway"] for pool in pools if "Gateway" in pool]


def test_from_inside_there_is_nothing_but_the_servers_that_call_it(
    engine: docker.APIClient, endpoint: ScriptedEndpoint, another_session: RunningSession
) -> None:
    overrides = endpoint.overrides(**contained(network="internal"))
    with serve_benchmark("truthfulqa_mc1", overrides=overrides) as registry_server, HostListener() as listener:
        own = containers_of(engine, session_of(registry_server.port))
        others = containers_of(engine, another_session.session_id)
        addresses = dict.fromkeys([*host_addresses(), *gateways_of(engine)])
        host = [(address, listener.port) for address in addresses]
        relay = [(address, endpoint.port) for address in addresses]
        published = [(a, s.port) for a in addresses for s in another_session.servers if s.port is not None]
        neighbours = [
            (network["IPAddress"], 8000)
            for container in [*others.values(), own["policy_model"]]
            for network in container["NetworkSettings"]["Networks"].values()
        ]
        ssh_and_engine = [(address, port) for address in addresses for port in (22, 2375, 2376)]
        targets = [*OUTSIDE, *host, *relay, *published, *neighbours, *ssh_and_engine]
        names = ["example.com", "policy_model", "host.docker.internal"]

        from_agent = reached_from(engine, own[AGENT]["Id"], targets, ["policy_model"], host)
        datagrams_of_agent = listener.datagrams()
        from_sandbox = reached_from(engine, own[SANDBOX]["Id"], targets, names, host)
        datagrams_of_sandbox = listener.datagrams()
        of_its_own = reached_from(engine, own[SANDBOX]["Id"], [(AGENT, 8000), ("registry", 8000)])
    # the same attempts from a server on the session's network find the host and their own: they can
    assert from_agent >= {*neighbours[-1:], "policy_model"}
    assert from_agent & set(host)
    assert datagrams_of_agent
    assert from_sandbox == set()
    assert datagrams_of_sandbox == 0
    assert of_its_own == {(AGENT, 8000), ("registry", 8000)}


def test_names_that_lead_nowhere_do_not_hold_it_up(engine: docker.APIClient, endpoint: ScriptedEndpoint) -> None:
    """A lookup that would have to leave does not keep a server waiting for name servers out of reach."""
    timing = (
        "import socket, time\nbegan = time.monotonic()\ntry: socket.getaddrinfo('example.com', 80)\n"
        "except OSError: print(time.monotonic() - began)"
    )
    overrides = endpoint.overrides(**contained(network="internal"))
    with serve_benchmark("truthfulqa_mc1", overrides=overrides) as registry_server:
        sandbox = containers_of(engine, session_of(registry_server.port))[SANDBOX]["Id"]
        took = engine.exec_start(engine.exec_create(sandbox, ["python", "-c", timing])["Id"])
    assert float(took) < 3


def test_what_a_server_needs_beyond_the_defaults_it_gets_and_no_other_does(
    engine: docker.APIClient, planned: PlannedBenchmark, endpoint: ScriptedEndpoint
) -> None:
    asked = contained(
        memory="300m",
        pids_limit=77,
        cpus=0.75,
        tmpfs="32m",
        shm="16m",
        read_only=False,
        user="12345:12345",
        cap_add=["SYS_PTRACE"],
        no_new_privileges=False,
    )
    with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides(**asked)) as registry_server:
        containers = containers_of(engine, session_of(registry_server.port))
        rewards = asyncio.run(rewards_of(planned, registry_server))
        sandbox = containers[SANDBOX]
        who = engine.exec_start(engine.exec_create(sandbox["Id"], ["id", "-u"])["Id"]).decode().strip()
    host = sandbox["HostConfig"]
    assert rewards == [1.0] * 4
    assert who == "12345"
    assert sandbox["Config"]["User"] == "12345:12345"
    assert host["Memory"] == host["MemorySwap"] == 300 * 1024**2
    assert (host["PidsLimit"], host["NanoCpus"], host["ShmSize"]) == (77, 750_000_000, 16 * 1024**2)
    assert f"size={32 * 1024**2}" in host["Tmpfs"]["/tmp"]
    assert host["ReadonlyRootfs"] is False
    assert [cap.removeprefix("CAP_") for cap in host["CapAdd"]] == ["SYS_PTRACE"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["SecurityOpt"]
    for name in {*containers} - {SANDBOX}:
        other = containers[name]["HostConfig"]
        assert (other["ReadonlyRootfs"], other["CapAdd"]) == (True, [])
        assert other["SecurityOpt"] == ["no-new-privileges:true"]
