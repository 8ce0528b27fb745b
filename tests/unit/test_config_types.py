from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

import nemo_gym.config
from nemo_gym.config import ConfigError
from nemo_gym.config.config_types import (
    SERVER_TYPES,
    BaseNeMoGymCLIConfig,
    BaseServerConfig,
    DatasetConfig,
    ServerInstance,
    ServerRef,
    find_server_refs,
    parse_server_instances,
)


def server(**settings: Any) -> dict[str, Any]:
    return {"resources_servers": {"mcqa": {"entrypoint": "app.py", "domain": "math", **settings}}}


def refusal(name: str, entry: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_server_instances({name: entry})
    return str(caught.value)


def test_what_the_package_exports() -> None:
    assert nemo_gym.config.__all__ == ["ConfigError"]


def test_base_server_config() -> None:
    config = BaseServerConfig(host="127.0.0.1", port=11000)
    assert (config.host, config.port, config.num_workers, config.token) == ("127.0.0.1", 11000, None, None)
    assert list(inspect.signature(BaseServerConfig).parameters) == ["host", "port", "num_workers", "token"]
    assert "t0ken" not in repr(BaseServerConfig(host="h", port=1, token="t0ken"))
    with pytest.raises(ValidationError):
        BaseServerConfig(host="h", port="http")


def test_cli_configs_ignore_the_keys_of_others() -> None:
    class Wanted(BaseNeMoGymCLIConfig):
        verbose: bool = False

    assert Wanted.model_validate({"verbose": True, "mcqa": {}}).verbose


def test_dataset_config_keeps_what_it_does_not_know() -> None:
    entry = {"name": "x", "type": "benchmark", "jsonl_fpath": "x.jsonl", "prompt_config": None, "license": "MIT"}
    dataset = DatasetConfig.model_validate(entry)
    assert (dataset.num_repeats, dataset.prepare_script, dataset.prepare_dependencies) == (1, None, [])
    assert dataset.model_extra == {"license": "MIT"}
    with pytest.raises(ValidationError):
        DatasetConfig.model_validate({**entry, "num_repeats": 0})


def test_paths_of_a_dataset_may_be_path_objects() -> None:
    paths = {key: Path("b", key) for key in ("jsonl_fpath", "prepare_script", "prompt_config")}
    dataset = DatasetConfig.model_validate({"name": "x", "type": "benchmark", **paths})
    assert (dataset.jsonl_fpath, dataset.prepare_script, dataset.prompt_config) == (
        "b/jsonl_fpath",
        "b/prepare_script",
        "b/prompt_config",
    )
    with pytest.raises(ValidationError):
        DatasetConfig.model_validate({"name": "x", "type": "benchmark", "jsonl_fpath": 5})


def test_instances_come_in_the_order_of_declaration() -> None:
    config = {
        "config_paths": ["x"],
        "b": server(n=1),
        "free": {"x": {"y": 1}},
        "verbose": True,
        "policy_model": {"responses_api_models": {"m": {"entrypoint": "app.py"}}},
        "a": {"environment_servers": {"relay": {"entrypoint": "app.py"}}},
        "query": {"resources_servers": {}},
    }
    assert parse_server_instances(config) == [
        ServerInstance("b", "resources_servers", "mcqa", {"entrypoint": "app.py", "domain": "math", "n": 1}),
        ServerInstance("policy_model", "responses_api_models", "m", {"entrypoint": "app.py"}),
        ServerInstance("a", "environment_servers", "relay", {"entrypoint": "app.py"}),
    ]
    assert SERVER_TYPES == ("responses_api_models", "responses_api_agents", "resources_servers", "environment_servers")


def test_a_config_still_alive_is_parsed_like_a_plain_one() -> None:
    config = OmegaConf.create({"domain": "math", "s": server(domain="${domain}", key="???")})
    assert parse_server_instances(config)[0].settings == {"entrypoint": "app.py", "domain": "math", "key": "???"}


def test_references_are_found_anywhere_each_once() -> None:
    ref = {"type": "resources_servers", "name": "a"}
    node = {"x": ref, "y": [{"z": {**ref, "name": "b", "extra": 1}}, [ref]], "t": {"type": "function", "name": "a"}}
    assert find_server_refs(node) == [ServerRef("resources_servers", "a"), ServerRef("resources_servers", "b")]
    assert find_server_refs({"type": "resources_servers", "name": None}) == []


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            {"resource_servers": {"mcqa": {}}},
            (
                "Server 's' stands under the unknown server type 'resource_servers'. Did you mean 'resources_servers'? "
                "Server types are responses_api_models, responses_api_agents, resources_servers, environment_servers."
            ),
        ),
        (
            {"judges": {"j": {"entrypoint": "app.py"}}},
            "stands under the unknown server type 'judges'. Server types are",
        ),
        (
            {**server(), "responses_api_agents": {"a": {"entrypoint": "app.py"}}},
            "Server 's' stands under resources_servers and responses_api_agents; a server has exactly one server type.",
        ),
        (
            {**server(), "entrypoint": "app.py"},
            "Server 's' has 'entrypoint' beside 'resources_servers'; settings belong one level deeper",
        ),
        ({"resources_servers": None}, "s.resources_servers needs one implementation with its settings; found nothing."),
        ({"resources_servers": {}}, "s.resources_servers needs one implementation with its settings; found nothing."),
        ({"resources_servers": ["mcqa"]}, "needs one implementation with its settings; found a list."),
        (
            {"resources_servers": {"a": {}, "b": {}}},
            "s.resources_servers holds 2 implementations, 'a', 'b'; exactly one is needed.",
        ),
        ({"resources_servers": {"mcqa": None}}, "s.resources_servers.mcqa needs its settings"),
        (
            {"resources_servers": {"mcqa": {"domain": "math"}}},
            "s.resources_servers.mcqa.entrypoint must name the file to run, such as app.py; it is missing.",
        ),
        (server(entrypoint=5), "entrypoint must name the file to run, such as app.py; found a number."),
        (server(port="http"), "s.resources_servers.mcqa.port must be a number from 1 to 65535; found 'http'."),
        (server(port=True), "port must be a number from 1 to 65535; found True."),
        (server(port=70000), "port must be a number from 1 to 65535; found 70000."),
        (server(host=5), "s.resources_servers.mcqa.host must be a host name or address; found 5."),
        (server(domain=None), "s.resources_servers.mcqa.domain must be one of math, coding, agent, knowledge,"),
        (server(domain="maths"), "found 'maths'. Did you mean 'math'?"),
    ],
)
def test_almost_servers_are_refused_with_a_readable_reason(entry: Any, expected: str) -> None:
    assert expected in refusal("s", entry)


@pytest.mark.parametrize("name", ["a.b", "a b", "ä", "-a", "x" * 64])
def test_server_names_must_be_network_names(name: str) -> None:
    assert f"Server name {name!r}: a server's name becomes its network name" in refusal(name, server())


@pytest.mark.parametrize(
    "domain",
    [
        "math",
        "coding",
        "agent",
        "knowledge",
        "instruction_following",
        "long_context",
        "safety",
        "games",
        "translation",
        "e2e",
        "rlhf",
        "other",
    ],
)
def test_every_domain_of_the_protocol(domain: str) -> None:
    assert parse_server_instances({"s": server(domain=domain)})[0].settings["domain"] == domain


def test_listing_and_resolving_import_no_heavy_library() -> None:
    code = (
        "import sys, nemo_gym.config.resolve, nemo_gym.config.discovery, nemo_gym.config.process_config\n"
        "import nemo_gym.config.redaction\n"
        "print([m for m in ('omegaconf', 'pydantic', 'docker', 'aiohttp', 'asyncio') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
