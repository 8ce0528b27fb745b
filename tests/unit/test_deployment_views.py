"""A session with a server on its internal network: on which networks each one stands, and what each side is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.deployment.topology import Topology, build_topology, container_specs
from nemo_gym.deployment.views import bootstrap_line, container_view, host_view, inside_urls, server_instances
from nemo_gym.errors import ConfigError

MODEL = {"type": "responses_api_models", "name": "policy_model"}
SANDBOX = {"type": "resources_servers", "name": "sandbox"}
ADDRESSES = {name: ("127.0.0.1", 32768 + n) for n, name in enumerate(["registry", "policy_model", "plain", "agent"])}


def config(sandbox: Mapping[str, Any] | None = None, agent: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A model, an agent, a server that runs what models write, and one that nobody of these calls."""
    inside = {"entrypoint": "app.py", "domain": "coding", "container": {"network": "internal"}, **(sandbox or {})}
    caller = {"entrypoint": "app.py", "resources_server": SANDBOX, "model_server": MODEL, **(agent or {})}
    model = {"entrypoint": "app.py", "openai_base_url": "http://127.0.0.1:8000/v1"}
    return {
        "sandbox": {"resources_servers": {"runner": inside}},
        "plain": {"resources_servers": {"mcqa": {"entrypoint": "app.py", "domain": "other"}}},
        "policy_model": {"responses_api_models": {"openai_model": model}},
        "agent": {"responses_api_agents": {"simple_agent": caller}},
    }


def specs_of(topology: Topology) -> dict[str, ContainerSpec]:
    specs = container_specs(
        topology,
        session_id="s",
        network="net",
        internal_network="inner",
        labels={},
        images=dict.fromkeys(["registry", *topology.names], "i"),
        registry_port=None,
    )
    return {spec.alias: spec for spec in specs}


class TestWhoStandsWhere:
    def test_the_server_its_callers_and_the_registry(self) -> None:
        topology = build_topology(config())
        assert topology.internal_names == ["sandbox"]
        assert topology.on_internal_network() == {"sandbox", "agent"}
        specs = specs_of(topology)
        assert {name: spec.networks for name, spec in specs.items()} == {
            "registry": ("net", "inner"),  # which asks it whether it is ready
            "sandbox": ("inner",),
            "agent": ("net", "inner"),
            "policy_model": ("net",),
            "plain": ("net",),
        }
        assert {name for name, spec in specs.items() if spec.publish is None} == {"sandbox"}
        assert {name for name, spec in specs.items() if spec.is_isolated} == {"sandbox"}

    def test_and_those_that_it_calls(self) -> None:
        topology = build_topology(config(sandbox={"judge_model_server": MODEL}))
        assert topology.on_internal_network() == {"sandbox", "agent", "policy_model"}
        assert specs_of(topology)["policy_model"].networks == ("net", "inner")

    def test_two_that_call_each_other(self) -> None:
        both = config(sandbox={"helper": {"type": "resources_servers", "name": "plain"}})
        both["plain"]["resources_servers"]["mcqa"]["container"] = {"network": "internal"}
        topology = build_topology(both)
        assert topology.internal_names == ["sandbox", "plain"]
        assert topology.on_internal_network() == {"sandbox", "plain", "agent"}
        assert specs_of(topology)["plain"].networks == ("inner",)

    def test_without_one_nobody(self) -> None:
        topology = build_topology(config(sandbox={"container": {"network": "session"}}))
        assert (topology.internal_names, topology.on_internal_network()) == ([], set())
        assert {spec.networks for spec in specs_of(topology).values()} == {("net",)}

    def test_an_agent_is_called_from_outside(self) -> None:
        with pytest.raises(ConfigError) as caught:
            build_topology(config(agent={"container": {"network": "internal"}}))
        assert str(caught.value).startswith("The agent 'agent' cannot stand on the internal network: callers send it")

    def test_an_endpoint_on_loopback_is_out_of_reach(self) -> None:
        with pytest.raises(ConfigError) as caught:
            build_topology(config(sandbox={"search": {"url": "http://localhost:9200"}}))
        message = str(caught.value)
        assert "'sandbox' stands on the internal network, from which http://localhost:9200 (search.url)" in message

    @pytest.mark.parametrize("network", ["host", "none", "", None, 1])
    def test_no_other_network(self, network: Any) -> None:
        with pytest.raises(ConfigError, match=r"container\.network: .*'session' or 'internal'"):
            build_topology(config(sandbox={"container": {"network": network}}))


class TestHostView:
    def test_no_address_and_why(self) -> None:
        view = host_view(build_topology(config()), ADDRESSES)
        inside = view["sandbox"]["resources_servers"]["runner"]
        assert {key: inside[key] for key in ("host", "port", "network")} == {
            "host": None,
            "port": None,
            "network": "internal",
        }
        agent = view["agent"]["responses_api_agents"]["simple_agent"]
        assert (agent["host"], agent["port"]) == ("127.0.0.1", 32771)
        assert "network" not in agent

    def test_instances(self) -> None:
        entries = {e["name"]: e for e in server_instances(build_topology(config()), ADDRESSES, {"sandbox": "then"})}
        assert entries["sandbox"] == {
            "name": "sandbox",
            "process_name": "sandbox",
            "server_type": "resources_servers",
            "implementation": "runner",
            "host": None,
            "port": None,
            "network": "internal",
            "url": None,
            "status": "running",
            "start_time": "then",
        }
        assert entries["agent"]["url"] == "http://127.0.0.1:32771"

    def test_an_ipv6_address_in_brackets(self) -> None:
        addresses = {**ADDRESSES, "agent": ("fd00::5", 4000)}
        entries = {e["name"]: e for e in server_instances(build_topology(config()), addresses, {})}
        assert (entries["agent"]["host"], entries["agent"]["url"]) == ("fd00::5", "http://[fd00::5]:4000")


class TestContainerView:
    def test_callers_reach_it_by_its_name_as_any_other(self) -> None:
        topology = build_topology(config())
        agent = next(server for server in topology.servers if server.name == "agent")
        view = container_view(topology, agent, {})
        assert view["sandbox"]["resources_servers"]["runner"] == {
            "entrypoint": "app.py",
            "host": "sandbox",
            "port": 8000,
        }

    def test_how_its_container_is_run_is_not_its_business(self) -> None:
        topology = build_topology(config())
        assert "container" not in json.dumps(container_view(topology, topology.servers[1], {}))

    def test_the_registry_learns_where_to_ask(self) -> None:
        urls = inside_urls(build_topology(config()))
        assert urls == {"sandbox": "http://sandbox:8000"}
        line = bootstrap_line(session_id="s", server_name="registry", config={}, session_secret="x", inside=urls)
        assert json.loads(line)["inside"] == urls
