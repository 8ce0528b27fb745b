"""The scripted endpoint's container where no engine answers, or another one than testcontainers would use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from testcontainers.core.config import testcontainers_config

from nemo_gym.errors import ConfigError, EngineUnavailableError
from nemo_gym.testing import ModelEndpointContainer
from nemo_gym.testing.model_endpoint import _restore_docker_host, _script_of, hardened_kwargs


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"unix://{tmp_path}/none.sock"
    monkeypatch.setenv("DOCKER_HOST", url)
    monkeypatch.setattr(testcontainers_config, "tc_properties", {})
    return url


def test_no_engine_is_our_own_error_with_what_to_type() -> None:
    with pytest.raises(EngineUnavailableError, match="Check the address in DOCKER_HOST"):
        ModelEndpointContainer()


def test_another_engine_of_testcontainers_is_refused(no_engine: str) -> None:
    testcontainers_config.tc_properties["tc.host"] = "tcp://10.0.0.9:2375"
    with pytest.raises(ConfigError, match=r"tcp://10\.0\.0\.9:2375 \(tc\.host .* Set DOCKER_HOST=tcp://10\.0\.0\.9"):
        ModelEndpointContainer()


def test_a_script_is_a_text_or_a_script() -> None:
    assert _script_of("B").otherwise.text == "B"
    assert _script_of("").otherwise.text == "This is a scripted answer."
    with pytest.raises(ConfigError, match="A script is a Script, or a text that is every answer; found list"):
        ModelEndpointContainer(["B"])  # type: ignore[arg-type]


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://set.by.testcontainers")
    _restore_docker_host({"DOCKER_HOST": "x"})
    assert os.environ["DOCKER_HOST"] == "tcp://set.by.testcontainers"
    _restore_docker_host({})
    assert "DOCKER_HOST" not in os.environ


def test_it_gives_up_what_every_server_gives_up() -> None:
    kwargs = hardened_kwargs({"a": "b"})
    assert (kwargs["labels"], kwargs["network"], kwargs["init"]) == ({"a": "b"}, "bridge", True)
    assert (kwargs["read_only"], kwargs["cap_drop"]) == (True, ["ALL"])
    assert kwargs["security_opt"] == ["no-new-privileges:true"]
    assert (kwargs["pids_limit"], kwargs["mem_limit"], kwargs["memswap_limit"]) == (64, 512 << 20, 512 << 20)
    assert kwargs["log_config"]["Config"] == {"max-size": str(25 << 20), "max-file": "2"}
