"""Servers written elsewhere: what they are told, how it reaches their process, and what they cannot be or do."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.containers.engine import Endpoint, ImageState
from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.deployment.first_lines import first_line
from nemo_gym.deployment.foreign import (
    MOST_CONFIG_BYTES,
    check,
    config_line,
    with_entries,
    with_entry,
    yaml_line,
)
from nemo_gym.deployment.settings import ServingSettings, parse_serving_settings
from nemo_gym.deployment.topology import Topology, build_topology, container_specs
from nemo_gym.deployment.views import foreign_view, inside_view
from nemo_gym.errors import ConfigError
from tests.unit.fake_engine import FakeEngine

LOCAL = Endpoint("unix:///x", "default", "127.0.0.1", True)
IMAGE = ImageState("sha256:1", (), (), {}, "", 0, (), command=("python", "app.py"), user="gym")
MODEL = {"type": "responses_api_models", "name": "policy_model"}
VERIFIER = {"type": "resources_servers", "name": "verifier"}


def config(
    verifier: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
    container: Mapping[str, Any] | None = None,
    **top: Any,
) -> dict[str, Any]:
    """A verifier of another make, with an agent and a model of ours."""
    elsewhere = {"config_from": "environment", **(container or {})}
    model = {"entrypoint": "app.py", "openai_base_url": "http://127.0.0.1:8000/v1", "openai_api_key": "sk-policy"}
    return {
        "policy_base_url": "http://127.0.0.1:8000/v1",
        "policy_api_key": "sk-policy",
        "policy_model_name": "some-model",
        **top,
        "verifier": {
            "resources_servers": {
                "till": {"entrypoint": "main.py", "domain": "agent", "container": elsewhere, **(verifier or {})}
            }
        },
        "agent": {
            "responses_api_agents": {
                "simple_agent": {
                    "entrypoint": "app.py",
                    "resources_server": VERIFIER,
                    "model_server": MODEL,
                    **(agent or {}),
                }
            }
        },
        "policy_model": {"responses_api_models": {"openai_model": model}},
    }


def view_of(name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    topology = build_topology(wanted)
    return foreign_view(topology, next(s for s in topology.servers if s.name == name), {})


class TestView:
    def test_of_one_that_calls_nobody(self) -> None:
        assert view_of("verifier", config(verifier={"api_key": "sk-own", "image": {"reference": "team/till:1"}})) == {
            "dry_run": False,
            "policy_model_name": "some-model",
            "head_server": {"host": "registry", "port": 8000},
            "verifier": {
                "resources_servers": {
                    "till": {
                        "entrypoint": "main.py",
                        "domain": "agent",
                        "api_key": "sk-own",
                        "host": "0.0.0.0",
                        "port": 8000,
                    }
                }
            },
        }

    def test_of_one_that_calls_others(self) -> None:
        view = view_of("agent", config(agent={"container": {"config_from": "environment"}}))
        called = {"host": "policy_model", "port": 8000, "entrypoint": "app.py"}
        assert view["policy_model"] == {"responses_api_models": {"openai_model": called}}
        assert view["verifier"]["resources_servers"]["till"]["host"] == "verifier"
        assert "sk-policy" not in json.dumps(view)

    def test_single_settings_of_the_top_level_that_are_no_secret_and_not_the_callers_machine(self) -> None:
        more = {
            "uvicorn_logging_show_200_ok": True,
            "judge_temperature": 0.5,
            "observability_enabled": True,
            "use_absolute_ip": True,
            "hf_token": "hf-x",
            "search_api_key": "sk-search",
            "search_url": "https://me:pw@example.com/",
            "copied_from_it": "sk-search",
            "results_dir": "/home/me/results",
            "bind_address": "0.0.0.0",
            "some_block": {"api_base": "x"},
            "nothing": None,
        }
        view = view_of("verifier", config(**more))
        assert {key: value for key, value in view.items() if key in more} == {
            "uvicorn_logging_show_200_ok": True,
            "judge_temperature": 0.5,
            "observability_enabled": True,
        }

    def test_as_the_sessions_network_sees_it(self) -> None:
        view = inside_view(build_topology(config()))
        assert view["head_server"] == {"host": "registry", "port": 8000}
        entry = view["agent"]["responses_api_agents"]["simple_agent"]
        assert (entry["host"], entry["port"], entry["model_server"]) == ("agent", 8000, MODEL)
        assert "sk-policy" not in json.dumps(view)


class TestLine:
    @pytest.mark.parametrize(
        "value",
        [
            *[1e-07, 1e16, -2.5e300, 0.1, 5e-324, 1.0, 0, -7, 10**30, True, None, "", "1e-07", "null", "0x1", "~"],
            *["\x7f", "\x85", "\u2028", "\u2029", "\ufeff", "\uffff", "\t\r\n\x00\x1b", "ünï 😀 \\ \" ' #: {}", "${x}"],
            *[[], {}, [[1], {"a": []}], {"": 1, "a b: c": {"d": [None]}}, {"1": 1}],
        ],
    )
    def test_yaml_and_json_readers_find_what_was_written(self, value: Any) -> None:
        line = yaml_line({"key": value})
        assert "\n" not in line
        assert yaml.safe_load(line) == {"key": value}
        assert json.loads(line) == {"key": value}

    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                        | st.text(st.characters(exclude_categories=["Cs"])), lambda inner: st.lists(inner)
                        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=100), inner),
                        max_leaves=10))  # fmt: skip
    def test_whatever_it_is(self, value: Any) -> None:
        assert yaml.safe_load(yaml_line(value)) == value
        assert json.loads(yaml_line(value)) == value

    def test_numbers_that_json_has_none_for(self) -> None:
        found = yaml.safe_load(yaml_line([math.inf, -math.inf, math.nan]))
        assert found[:2] == [math.inf, -math.inf]
        assert math.isnan(found[2])

    def test_what_is_no_json_is_written_as_its_text(self) -> None:
        assert yaml_line({"path": Path("/a")}) == '{"path": "/a"}'

    def test_omegaconf_reads_it(self) -> None:
        line = config_line(view_of("verifier", config(verifier={"factor": 1e-07}))).decode()
        read = OmegaConf.create(line)
        assert read.verifier.resources_servers.till.factor == 1e-07
        assert read.head_server.port == 8000
        assert read["dry_run"] is False


def settings(bind_address: str = "127.0.0.1", token: str | None = None) -> ServingSettings:
    environ = {} if token is None else {"NEMO_GYM_TOKEN": token}
    given = {"bind_address": bind_address, "published_host": "gym.example.com"}
    return parse_serving_settings(given, LOCAL, environ, registry_port=None, default_registry_port=None)


TOKEN = "t" * 32


class TestCheck:
    def test_on_the_loopback_without_a_token_everything_goes(self) -> None:
        check(build_topology(config(agent={"container": {"config_from": "environment"}})), settings())

    def test_one_that_is_called_may_be_told_no_token_on_the_loopback(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            check(build_topology(config()), settings(token=TOKEN))
        assert caplog.messages == ["server verifier was written elsewhere and does not ask for the token"]

    def test_but_not_where_others_reach_it(self) -> None:
        with pytest.raises(ConfigError) as caught:
            check(build_topology(config()), settings("0.0.0.0", TOKEN))
        assert "server 'verifier' was written elsewhere (container.config_from: environment) and asks" in str(
            caught.value
        )
        assert "at 0.0.0.0 everybody could call it" in str(caught.value)
        assert "`container: {network: internal}`, or set bind_address to 127.0.0.1" in str(caught.value)

    def test_unless_it_stands_inside(self, caplog: pytest.LogCaptureFixture) -> None:
        check(build_topology(config(container={"network": "internal"})), settings("0.0.0.0", TOKEN))
        assert not caplog.messages

    def test_one_that_calls_ours_cannot_in_a_session_with_a_token(self) -> None:
        with pytest.raises(ConfigError) as caught:
            check(build_topology(config(agent={"container": {"config_from": "environment"}})), settings(token=TOKEN))
        assert "The server 'agent' was written elsewhere" in str(caught.value)
        assert "calls 'verifier', which asks for this session's token (NEMO_GYM_TOKEN)" in str(caught.value)

    def test_as_much_as_a_variable_holds(self) -> None:
        empty = len(config_line(view_of("verifier", config(verifier={"text": ""}))))
        fitting = "x" * (MOST_CONFIG_BYTES - empty)
        check(build_topology(config(verifier={"text": fitting})), settings())
        with pytest.raises(ConfigError) as caught:
            check(build_topology(config(verifier={"text": fitting + "x"})), settings())
        assert f"of server 'verifier' has {MOST_CONFIG_BYTES + 1} bytes. It comes in an environment variable" in str(
            caught.value
        )
        assert "Its largest setting is 'text': let it read what is large from a file" in str(caught.value)

    def test_one_of_ours_may_be_told_more(self) -> None:
        large = config(container={"config_from": "stdin"}, verifier={"text": "x" * 200_000})
        check(build_topology(large), settings())


def spec_of(topology: Topology, name: str) -> ContainerSpec:
    images = dict.fromkeys(["registry", *topology.names], "image")
    specs = container_specs(topology, session_id="s", network="n", labels={}, images=images, registry_port=None)
    return next(spec for spec in specs if spec.alias == name)


class TestEntry:
    def entered(self, image: ImageState | None = IMAGE, **container: Any) -> ContainerSpec:
        topology = build_topology(config(container=container))
        server = next(server for server in topology.servers if server.name == "verifier")
        return with_entry(spec_of(topology, "verifier"), server, image)

    def command_of(self, spec: ContainerSpec) -> tuple[str, ...]:
        assert spec.command is not None
        assert spec.command[:2] == ("/bin/sh", "-c")
        assert spec.command[3:5] == ("sh", "verifier")
        return spec.command[5:]

    def test_our_base_images_command_runs_the_entrypoint(self) -> None:
        spec = self.entered()
        assert self.command_of(spec) == ("python", "main.py")
        assert spec.hardening.user is None  # the image's own

    def test_an_image_runs_what_it_would_run(self) -> None:
        image = dataclasses.replace(IMAGE, command=("uvicorn", "till:app", "--port", "8000"), user="1000:1000")
        spec = self.entered(image)
        assert self.command_of(spec) == ("uvicorn", "till:app", "--port", "8000")
        assert spec.hardening.user is None

    def test_unless_its_config_names_a_command(self) -> None:
        assert self.command_of(self.entered(command=["node", "server.js"])) == ("node", "server.js")

    @pytest.mark.parametrize("user", ["", "0", "root", "root:root", "0:5"])
    def test_nobodys_root(self, user: str) -> None:
        image = dataclasses.replace(IMAGE, user=user)
        assert self.entered(image).hardening.user == "10001:10001"
        assert self.entered(image, user=0).hardening.user == "0"  # what is asked for is done

    def test_an_image_without_a_command(self) -> None:
        with pytest.raises(ConfigError) as caught:
            self.entered(dataclasses.replace(IMAGE, command=()))
        assert "The image image of server 'verifier' names no command" in str(caught.value)
        assert "`container: {command: [python, app.py]}`" in str(caught.value)

    def test_others_are_left_as_they_are(self) -> None:
        topology = build_topology(config())
        engine = FakeEngine(images={"image": "sha256:1"})
        with pytest.raises(ConfigError, match="names no command"):
            with_entries(engine, topology, [spec_of(topology, "verifier")])
        others = [spec_of(topology, "agent"), spec_of(topology, "policy_model")]
        assert with_entries(engine, topology, others) == others

    def test_one_of_ours_may_have_a_command_too(self) -> None:
        topology = build_topology(config(container={"config_from": "stdin", "command": ["python", "-O", "app.py"]}))
        body = spec_of(topology, "verifier").to_create_kwargs()["config"]
        assert (body["Entrypoint"], body["Cmd"]) == (["python"], ["-O", "app.py"])

    @pytest.mark.parametrize("command", [[], "python app.py", [1]])
    def test_a_command_is_a_list_of_words(self, command: Any) -> None:
        with pytest.raises(ConfigError, match=r"container\.command"):
            build_topology(config(container={"command": command}))

    @pytest.mark.parametrize("config_from", ["file", "", None])
    def test_no_other_way(self, config_from: Any) -> None:
        with pytest.raises(ConfigError, match=r"container\.config_from: .*'stdin' or 'environment'"):
            build_topology(config(container={"config_from": config_from}))


SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), sys.stdin.read()]))"


class TestInAShell:
    """The entry itself, run by this machine's shell."""

    def run(self, line: bytes, *command: str, home: str = "/nowhere") -> subprocess.CompletedProcess[bytes]:
        topology = build_topology(config(container={"command": list(command)}))
        server = next(server for server in topology.servers if server.name == "verifier")
        entry = with_entry(spec_of(topology, "verifier"), server, IMAGE).command
        assert entry is not None
        environ = {"PATH": os.environ["PATH"], "HOME": home}
        return subprocess.run(entry, input=line, capture_output=True, env=environ, check=False, timeout=30)

    def test_the_command_gets_the_pair_and_no_input(self, tmp_path: Path) -> None:
        view = view_of("verifier", config(verifier={"text": "a\\b 'c' \"d\" $HOME `e` %s \n\t ü \\n  "}))
        done = self.run(config_line(view), sys.executable, "-c", SHOW, "an argument", home=str(tmp_path))
        arguments, environ, stdin = json.loads(done.stdout)
        assert yaml.safe_load(environ["NEMO_GYM_CONFIG_DICT"]) == view
        assert environ["NEMO_GYM_CONFIG_PATH"] == "verifier"
        assert environ["HOME"] == str(tmp_path)
        assert (arguments, stdin) == (["an argument"], "")

    def test_a_home_that_cannot_be_written_to_is_tmp(self) -> None:
        done = self.run(b"{}\n", sys.executable, "-c", SHOW)
        assert json.loads(done.stdout)[1]["HOME"] == "/tmp"

    def test_the_largest_that_is_let_through_arrives(self) -> None:
        line = config_line({"x": "y" * (MOST_CONFIG_BYTES - 10)})
        assert len(line) == MOST_CONFIG_BYTES
        done = self.run(line, sys.executable, "-c", SHOW)
        assert json.loads(done.stdout)[1]["NEMO_GYM_CONFIG_DICT"] == line.decode().rstrip("\n")

    def test_its_exit_code_is_the_commands(self) -> None:
        assert self.run(b"{}\n", sys.executable, "-c", "raise SystemExit(7)").returncode == 7

    def test_a_command_that_is_not_there(self) -> None:
        done = self.run(b"{}\n", "no-such-program")
        assert done.returncode == 127
        assert b"no-such-program" in done.stderr

    def test_no_configuration(self) -> None:
        done = self.run(b"", sys.executable, "-c", SHOW)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"no configuration came on standard input" in done.stderr


class TestFirstLine:
    def line(self, name: str) -> bytes:
        topology = build_topology(config(container={"network": "internal"}))
        return first_line(topology, name, {}, session_id="s", session_secret="secret", token="t")

    def test_one_written_elsewhere_gets_its_config_and_no_more(self) -> None:
        read = yaml.safe_load(self.line("verifier"))
        assert read == view_of("verifier", config())
        assert self.line("verifier").count(b"\n") == 1

    def test_one_of_ours_gets_its_bootstrap(self) -> None:
        read = json.loads(self.line("agent"))
        assert (read["server_name"], read["session_secret"], read["token"]) == ("agent", "secret", "t")
        assert set(read["config"]) == {"agent", "verifier", "policy_model"}

    def test_the_registry_gets_the_view_from_inside(self) -> None:
        read = json.loads(self.line("registry"))
        inside = yaml.safe_load(read["config"]["inside_view"])
        assert inside["verifier"]["resources_servers"]["till"]["host"] == "verifier"
        assert "sk-policy" not in self.line("registry").decode()
        assert read["inside"] == {"verifier": "http://verifier:8000"}
        assert read["awaited"] == ["policy_model", "verifier", "agent"]
