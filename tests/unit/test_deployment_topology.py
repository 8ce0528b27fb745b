"""What follows from a config alone: servers, what each may see, and the containers to create, pinned whole."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.containers.spec import ContainerSpec, Hardening, HostBinding, Limits
from nemo_gym.deployment.endpoints import LoopbackEndpoint
from nemo_gym.deployment.topology import build_topology, container_specs, images_needed
from nemo_gym.deployment.views import bootstrap_line, container_view, host_view, server_instances
from nemo_gym.errors import ConfigError

GIB = 1024**3
MIB = 1024**2

CONFIG: dict[str, Any] = {
    "config_paths": ["benchmarks/x/config.yaml"],
    "policy_base_url": "http://127.0.0.1:8000/v1",
    "policy_api_key": "sk-policy",
    "hf_token": "hf-global",
    "skip_verification": False,
    "verbose": True,
    "agent": {
        "responses_api_agents": {
            "simple_agent": {
                "entrypoint": "app.py",
                "resources_server": {"type": "resources_servers", "name": "verifier"},
                "model_server": {"type": "responses_api_models", "name": "policy_model"},
                "tools": [{"server": {"type": "resources_servers", "name": "tools"}}],
                "max_steps": 3,
            }
        }
    },
    "verifier": {
        "resources_servers": {
            "mcqa": {
                "entrypoint": "app.py",
                "domain": "knowledge",
                "judge_model_server": {"type": "responses_api_models", "name": "judge"},
                "service_token": "tok-verifier",
                "container": {"memory": "512m"},
            }
        }
    },
    "tools": {"resources_servers": {"toolbox": {"entrypoint": "main.py", "domain": "other", "api_key": "sk-tools"}}},
    "policy_model": {
        "responses_api_models": {
            "openai_model": {
                "entrypoint": "app.py",
                "host": "from.the.file",
                "port": 1,
                "openai_base_url": "http://127.0.0.1:8000/v1",
                "openai_api_key": "sk-policy",
                "fallbacks": ["http://user:pw-fallback@localhost:9000/v1", "https://far.example/v1"],
            }
        }
    },
    "judge": {
        "responses_api_models": {
            "openai_model": {
                "entrypoint": "app.py",
                "openai_base_url": "http://127.0.0.1:8000/v1",
                "openai_api_key": "sk-judge",
            }
        }
    },
}
SECRETS = {
    "policy_model": {"sk-policy", "pw-fallback"},
    "judge": {"sk-judge"},
    "verifier": {"tok-verifier"},
    "tools": {"sk-tools"},
    "agent": set[str](),
}
RELAYS = {("127.0.0.1", 8000): ("172.30.0.1", 8000), ("localhost", 9000): ("172.30.0.1", 41000)}


def with_server(settings: Mapping[str, Any], name: str = "one") -> dict[str, Any]:
    return {name: {"resources_servers": {"mcqa": {"entrypoint": "app.py", "domain": "other", **settings}}}}


def view_of(name: str, config: Mapping[str, Any] = CONFIG) -> dict[str, Any]:
    topology = build_topology(config)
    (server,) = (server for server in topology.servers if server.name == name)
    return container_view(topology, server, RELAYS)


class TestBuild:
    def test_models_first_then_resources_then_agents_each_as_declared(self) -> None:
        topology = build_topology(CONFIG)
        assert topology.names == ["policy_model", "judge", "verifier", "tools", "agent"]
        assert images_needed(topology) == [
            ("responses_api_models", "openai_model"),
            ("resources_servers", "mcqa"),
            ("resources_servers", "toolbox"),
            ("responses_api_agents", "simple_agent"),
        ]

    def test_the_callers_endpoints_each_once(self) -> None:
        topology = build_topology(CONFIG)
        assert topology.loopback_targets() == [("127.0.0.1", 8000), ("localhost", 9000)]
        assert topology.servers[0].endpoints == (
            LoopbackEndpoint("openai_base_url", "http://127.0.0.1:8000/v1", "127.0.0.1", 8000),
            LoopbackEndpoint("fallbacks[0]", "http://user:pw-fallback@localhost:9000/v1", "localhost", 9000),
        )

    def test_pure(self) -> None:
        before = copy.deepcopy(CONFIG)
        for name in SECRETS:
            view_of(name)
        assert before == CONFIG

    @pytest.mark.parametrize("config", [{}, {"verbose": True, "x": {"y": 1}}])
    def test_no_server(self, config: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="declares no server"):
            build_topology(config)

    @pytest.mark.parametrize("name", ["_x", "x-", "a b", "a/b", "x" * 64, "grün"])
    def test_a_name_that_is_no_host_name(self, name: str) -> None:
        with pytest.raises(ConfigError):
            build_topology(with_server({}, name))

    def test_the_registrys_name(self) -> None:
        with pytest.raises(ConfigError, match="may not be named 'registry'"):
            build_topology(with_server({}, "registry"))

    def test_an_environment_server_is_served_last_where_there_is_an_image(self) -> None:
        relay = {"entrypoint": "app.py", "agent_server": {"type": "responses_api_agents", "name": "agent"}}
        topology = build_topology({"relay": {"environment_servers": {"relay": relay}}, **CONFIG})
        assert topology.names[-2:] == ["agent", "relay"]
        relayed = container_view(topology, topology.servers[-1], {})
        assert relayed["agent"]["responses_api_agents"]["simple_agent"]["host"] == "agent"

    def test_and_left_out_where_there_is_none(self, caplog: pytest.LogCaptureFixture) -> None:
        config = {**with_server({}), "relay": {"environment_servers": {"relay": {"entrypoint": "app.py"}}}}
        with caplog.at_level(logging.WARNING):
            topology = build_topology(config, lambda instance: instance.name == "relay")
        assert topology.names == ["one"]
        assert (
            "server relay is left out: there is no image folder images/environment_servers/relay for it, and its "
            "config names no image"
        ) in caplog.text
        addresses = {"registry": ("127.0.0.1", 1), "one": ("127.0.0.1", 2)}
        assert host_view(topology, addresses)["relay"] == config["relay"]


class TestContainerSettings:
    def served(self, block: Any) -> tuple[Limits, Hardening]:
        (server,) = build_topology(with_server({"container": block})).servers
        return server.limits, server.hardening

    @pytest.mark.parametrize("block", [None, {}])
    def test_defaults(self, block: Any) -> None:
        assert self.served(block) == (
            Limits(memory_bytes=4 * GIB, pids=512, nano_cpus=None, tmpfs_bytes=256 * MIB, shm_bytes=64 * MIB),
            Hardening(read_only=True, user=None, cap_add=(), no_new_privileges=True),
        )

    def test_all(self) -> None:
        block = {
            "memory": "2g",
            "pids_limit": 64,
            "cpus": 1.5,
            "tmpfs": "1G",
            "shm": 1024,
            "read_only": False,
            "user": "1000:1000",
            "cap_add": ["SYS_PTRACE"],
            "no_new_privileges": False,
        }
        assert self.served(block) == (
            Limits(memory_bytes=2 * GIB, pids=64, nano_cpus=1_500_000_000, tmpfs_bytes=GIB, shm_bytes=1024),
            Hardening(read_only=False, user="1000:1000", cap_add=("SYS_PTRACE",), no_new_privileges=False),
        )

    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("8388608", 8 * MIB),
            ("8m", 8 * MIB),
            ("8 MB", 8 * MIB),
            ("8MiB", 8 * MIB),
            ("8192k", 8 * MIB),
            (" 1g ", GIB),
        ],
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert self.served({"memory": text})[0].memory_bytes == size

    @pytest.mark.parametrize("size", [0, -1, "0", "5m", "1.5g", "lots", "", "1t", True])
    def test_no_size(self, size: Any) -> None:
        """An engine takes 0 for no limit at all."""
        with pytest.raises(ConfigError, match=r"container\.memory of server 'one' is .*512m"):
            self.served({"memory": size})

    @pytest.mark.parametrize("user", [1000, "1000"])
    def test_a_user_by_number(self, user: Any) -> None:
        assert self.served({"user": user})[1].user == "1000"

    @pytest.mark.parametrize(
        ("block", "problem"),
        [
            ({"memroy": "1g"}, r"container\.memroy: Extra inputs are not permitted"),
            ({"pids_limit": 0}, r"container\.pids_limit: "),
            ({"cpus": -1}, r"container\.cpus: "),
            ({"cpus": float("inf")}, r"container\.cpus: Input should be a finite number"),
            ({"privileged": True}, r"container\.privileged: Extra inputs"),
            ({"cap_add": "ALL"}, r"container\.cap_add: "),
            ("big", r"container: Input should be"),
        ],
    )
    def test_wrong(self, block: Any, problem: str) -> None:
        expected = rf"The container settings of server 'one' are wrong: {problem}.*Known keys: cap_add, command,"
        with pytest.raises(ConfigError, match=expected):
            self.served(block)


class TestBenchmarkName:
    BENCHMARK: ClassVar = {"name": "tiny", "type": "benchmark"}

    def name(self, datasets: Any) -> str:
        return build_topology(with_server({"datasets": datasets})).benchmark_name

    def test_of_data_sets(self) -> None:
        assert self.name([{"name": "other", "type": "train"}, self.BENCHMARK]) == "tiny"
        assert self.name(None) == self.name([]) == ""

    @pytest.mark.parametrize("datasets", [BENCHMARK, [BENCHMARK, "tiny"], ["tiny"], "tiny", 5])
    def test_of_no_list_of_data_sets(self, datasets: Any) -> None:
        with pytest.raises(
            ConfigError, match=r"^one\.datasets must be a list of data sets, .* \(`- name: \.\.\.`\), and"
        ):
            self.name(datasets)


class TestContainerView:
    def test_a_model(self) -> None:
        assert view_of("policy_model") == {
            "skip_verification": False,
            "policy_model": {
                "responses_api_models": {
                    "openai_model": {
                        "entrypoint": "app.py",
                        "host": "0.0.0.0",
                        "port": 8000,
                        "openai_base_url": "http://172.30.0.1:8000/v1",
                        "openai_api_key": "sk-policy",
                        "fallbacks": ["http://user:pw-fallback@172.30.0.1:41000/v1", "https://far.example/v1"],
                    }
                }
            },
        }

    def test_an_agent_sees_where_others_are_and_nothing_more(self) -> None:
        view = view_of("agent")
        assert set(view) == {"skip_verification", "verifier", "policy_model", "tools", "agent"}
        assert view["verifier"] == {
            "resources_servers": {"mcqa": {"entrypoint": "app.py", "host": "verifier", "port": 8000}}
        }
        assert view["tools"] == {
            "resources_servers": {"toolbox": {"entrypoint": "main.py", "host": "tools", "port": 8000}}
        }
        assert view["policy_model"] == {
            "responses_api_models": {"openai_model": {"entrypoint": "app.py", "host": "policy_model", "port": 8000}}
        }

    def test_how_its_container_is_limited_is_not_its_business(self) -> None:
        assert "container" not in view_of("verifier")["verifier"]["resources_servers"]["mcqa"]

    @pytest.mark.parametrize("name", list(SECRETS))
    def test_only_the_secrets_of_its_own_entry(self, name: str) -> None:
        text = json.dumps(view_of(name))
        everything = {*(secret for held in SECRETS.values() for secret in held), "hf-global"}
        assert {secret for secret in everything if secret in text} == SECRETS[name]

    def test_a_reference_to_itself(self) -> None:
        config = with_server({"me": {"type": "resources_servers", "name": "one"}, "token": "tok"})
        view = view_of("one", config)
        assert view["one"]["resources_servers"]["mcqa"]["token"] == "tok"

    def test_without_a_relay_an_endpoint_stays_as_it_is(self) -> None:
        topology = build_topology(CONFIG)
        view = container_view(topology, topology.servers[1], {})
        assert view["judge"]["responses_api_models"]["openai_model"]["openai_base_url"] == "http://127.0.0.1:8000/v1"

    def test_every_key_shared_by_all(self) -> None:
        shared = {
            "observability_enabled": True,
            "skip_verification": True,
            "skip_verification_reward": 0.5,
            "model_endpoint_readiness_timeout_seconds": 7,
        }
        view = view_of("one", {**with_server({}), **shared, "results_dir": "x", "ray_head_node_address": "y"})
        del view["one"]
        assert view == shared


class TestBootstrapLine:
    def test_its_shape(self) -> None:
        line = bootstrap_line(session_id="s", server_name="n", config={"a": 1}, session_secret="x", awaited=["m"])
        assert json.loads(line) == {
            "v": 1,
            "session_id": "s",
            "server_name": "n",
            "config": {"a": 1},
            "session_secret": "x",
            "token": None,
            "awaited": ["m"],
        }

    @given(st.dictionaries(st.text(), st.text()))
    def test_one_line_whatever_it_holds(self, config: dict[str, str]) -> None:
        line = bootstrap_line(session_id="s", server_name="n", config=config, session_secret="x")
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert json.loads(line)["config"] == config


ADDRESSES = {
    name: ("127.0.0.1", 32768 + number)
    for number, name in enumerate(["policy_model", "judge", "verifier", "tools", "agent", "registry"])
}


class TestHostView:
    def test_the_callers_addresses_over_the_config(self) -> None:
        view = host_view(build_topology(CONFIG), ADDRESSES)
        assert view["head_server"] == {"host": "127.0.0.1", "port": 32773}
        assert view["agent"]["responses_api_agents"]["simple_agent"] == {
            **CONFIG["agent"]["responses_api_agents"]["simple_agent"],
            "host": "127.0.0.1",
            "port": 32772,
        }
        model = view["policy_model"]["responses_api_models"]["openai_model"]
        assert (model["host"], model["port"]) == ("127.0.0.1", 32768)
        # what the caller wrote, not what the container is told
        assert model["openai_base_url"] == "http://127.0.0.1:8000/v1"
        assert {key: view[key] for key in CONFIG if key not in ADDRESSES} == {
            key: CONFIG[key] for key in CONFIG if key not in ADDRESSES
        }

    def test_instances(self) -> None:
        entries = server_instances(build_topology(CONFIG), ADDRESSES, {"judge": "2026-01-01T00:00:00+00:00"})
        assert [entry["name"] for entry in entries] == ["policy_model", "judge", "verifier", "tools", "agent"]
        assert entries[1] == {
            "name": "judge",
            "process_name": "judge",
            "server_type": "responses_api_models",
            "implementation": "openai_model",
            "host": "127.0.0.1",
            "port": 32769,
            "url": "http://127.0.0.1:32769",
            "status": "running",
            "start_time": "2026-01-01T00:00:00+00:00",
        }


class TestContainerSpecs:
    def specs(self, registry_port: int | None = None, bind_address: str = "127.0.0.1") -> list[ContainerSpec]:
        topology = build_topology(CONFIG)
        return container_specs(
            topology,
            session_id="0a1b2c3d4e",
            network="net",
            labels={"nemo-gym.session": "0a1b2c3d4e"},
            images={name: f"image-of-{name}" for name in ["registry", *topology.names]},
            registry_port=registry_port,
            bind_address=bind_address,
        )

    def test_the_registry_first_and_small(self) -> None:
        registry = self.specs()[0]
        assert registry == ContainerSpec(
            name="nemo-gym-0a1b2c3d4e-registry",
            alias="registry",
            image="image-of-registry",
            networks=("net",),
            labels={
                "nemo-gym.session": "0a1b2c3d4e",
                "nemo-gym.server": "registry",
                "nemo-gym.server-type": "registry",
                "nemo-gym.role": "server",
            },
            publish=HostBinding("127.0.0.1", None),
            limits=Limits(memory_bytes=512 * MIB, pids=128),
            keeps_stdin=True,
        )

    def test_then_every_server(self) -> None:
        specs = self.specs()
        assert [spec.alias for spec in specs] == ["registry", "policy_model", "judge", "verifier", "tools", "agent"]
        verifier = specs[3]
        assert verifier == ContainerSpec(
            name="nemo-gym-0a1b2c3d4e-verifier",
            alias="verifier",
            image="image-of-verifier",
            networks=("net",),
            labels={
                "nemo-gym.session": "0a1b2c3d4e",
                "nemo-gym.server": "verifier",
                "nemo-gym.server-type": "resources_servers",
                "nemo-gym.role": "server",
            },
            publish=HostBinding("127.0.0.1", None),
            limits=Limits(memory_bytes=512 * MIB),
        )

    def test_only_the_registrys_port_may_be_fixed(self) -> None:
        ports = [spec.publish and spec.publish.port for spec in self.specs(registry_port=11000)]
        assert ports == [11000, None, None, None, None, None]

    def test_another_address_for_all(self) -> None:
        assert {spec.publish and spec.publish.address for spec in self.specs(bind_address="0.0.0.0")} == {"0.0.0.0"}

    def test_without_internal_servers_there_is_one_network(self) -> None:
        assert {spec.networks for spec in self.specs()} == {("net",)}
        assert [spec.keeps_stdin for spec in self.specs()] == [True, False, False, False, False, False]

    def test_nothing_secret_reaches_the_engine(self) -> None:
        text = json.dumps([spec.to_create_kwargs() for spec in self.specs()])
        assert not [secret for held in SECRETS.values() for secret in held if secret in text]
        assert "hf-global" not in text
