"""Addresses, token, deadlines and logs of a session: from the config and the environment alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.containers.engine import Endpoint
from nemo_gym.containers.image_lock import ImageLock
from nemo_gym.containers.readiness import Deadlines
from nemo_gym.deployment.settings import ServingSettings, build_timeout_s, parse_serving_settings, start_timeout_s
from nemo_gym.errors import ConfigError
from tests.unit.fake_engine import LOCAL

REMOTE = Endpoint(url="tcp://build.example:2376", source="DOCKER_HOST", dial_host="build.example", is_local=False)
TOKEN = {"NEMO_GYM_TOKEN": "t0ken"}


def parse(
    config: dict[str, Any] | None = None,
    endpoint: Endpoint = LOCAL,
    environ: dict[str, str] | None = None,
    registry_port: Any = None,
    default_registry_port: int | None = None,
) -> ServingSettings:
    return parse_serving_settings(
        config or {},
        endpoint,
        environ or {},
        registry_port=registry_port,
        default_registry_port=default_registry_port,
    )


def refusal(*arguments: Any, **named: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*arguments, **named)
    return str(caught.value)


def test_by_default_everything_stays_on_this_machine() -> None:
    assert parse() == ServingSettings(
        registry_port=None,
        port_option="registry_port",
        bind_address="127.0.0.1",
        published_host="127.0.0.1",
        token=None,
        deadlines=Deadlines(server_s=120.0, endpoint_s=60.0),
        stop_grace_s=5.0,
        log_folder=Path("results/logs"),
        keep_logs=False,
    )


class TestRegistryPort:
    @pytest.mark.parametrize(
        ("argument", "config", "default", "option", "port"),
        [
            (11001, {"head_server": {"port": 11002}}, 11003, "registry_port", 11001),
            (None, {"head_server": {"port": 11002}}, 11003, "head_server.port", 11002),
            (None, {"head_server": {"host": "x"}}, 11003, "registry_port", 11003),
            (None, {"head_server": None}, None, "registry_port", None),
        ],
    )
    def test_who_says_it(
        self, argument: int | None, config: dict[str, Any], default: int | None, option: str, port: int | None
    ) -> None:
        found = parse(config, registry_port=argument, default_registry_port=default)
        assert (found.port_option, found.registry_port) == (option, port)

    @pytest.mark.parametrize("port", [0, -1, 65536, "11000", 1.5, True])
    def test_none_that_can_be(self, port: Any) -> None:
        expected = f"must be a TCP port from 1 to 65535, and is {port!r}"
        assert f"registry_port {expected}" in refusal(registry_port=port)
        assert f"head_server.port {expected}" in refusal({"head_server": {"port": port}})


class TestAddresses:
    def test_an_address_of_this_machine(self) -> None:
        found = parse({"bind_address": "10.0.0.5"}, environ=TOKEN)
        assert (found.bind_address, found.published_host, found.token) == ("10.0.0.5", "10.0.0.5", "t0ken")

    def test_a_name_that_callers_know(self) -> None:
        found = parse({"bind_address": "10.0.0.5", "published_host": "gym.example"}, environ=TOKEN)
        assert (found.bind_address, found.published_host) == ("10.0.0.5", "gym.example")

    @pytest.mark.parametrize("address", ["0.0.0.0", "::"])
    def test_all_addresses_need_one_to_be_called_at(self, address: str) -> None:
        assert "set published_host" in refusal({"bind_address": address}, environ=TOKEN)
        found = parse({"bind_address": address, "published_host": "10.0.0.5"}, environ=TOKEN)
        assert (found.bind_address, found.published_host) == (address, "10.0.0.5")

    @pytest.mark.parametrize("address", ["0.0.0.0", "10.0.0.5", "::"])
    @pytest.mark.parametrize("environ", [{}, {"NEMO_GYM_TOKEN": ""}])
    def test_beyond_loopback_only_with_a_token(self, address: str, environ: dict[str, str]) -> None:
        message = refusal({"bind_address": address, "published_host": "x"}, environ=environ)
        assert message.startswith(f"bind_address {address} lets other machines reach the servers")
        assert "export NEMO_GYM_TOKEN=$(openssl rand -hex 32)" in message

    def test_a_token_on_loopback_is_asked_for_too(self) -> None:
        assert parse(environ=TOKEN).token == "t0ken"
        assert "t0ken" not in repr(parse(environ=TOKEN))

    @pytest.mark.parametrize("token", ["a b", "a\nb", "a\r", "\u00fc", "\x7f", "a\tb"])
    def test_a_token_that_no_header_can_carry(self, token: str) -> None:
        assert "The token in NEMO_GYM_TOKEN holds a space" in refusal(environ={"NEMO_GYM_TOKEN": token})

    @pytest.mark.parametrize("address", ["eth0", "host.example", "10.0.0", "10.0.0.5:80", 5])
    def test_no_address(self, address: Any) -> None:
        assert f"bind_address must be an IP address of the engine's machine, such as 0.0.0.0, and is '{address}'" in (
            refusal({"bind_address": address}, environ=TOKEN)
        )


class TestRemoteEngine:
    def test_its_loopback_cannot_be_reached(self) -> None:
        message = refusal(endpoint=REMOTE, environ=TOKEN)
        assert "tcp://build.example:2376 (DOCKER_HOST) is on another machine" in message
        assert "Set bind_address" in message
        assert "NEMO_GYM_TOKEN" in message

    def test_the_host_of_its_address_is_dialled(self) -> None:
        found = parse({"bind_address": "0.0.0.0"}, REMOTE, TOKEN)
        assert (found.bind_address, found.published_host) == ("0.0.0.0", "build.example")

    def test_unless_another_is_named(self) -> None:
        assert parse({"bind_address": "10.0.0.5"}, REMOTE, TOKEN).published_host == "10.0.0.5"
        named = parse({"bind_address": "0.0.0.0", "published_host": "gym.example"}, REMOTE, TOKEN)
        assert named.published_host == "gym.example"

    def test_a_token_there_too(self) -> None:
        assert "then need a token" in refusal({"bind_address": "0.0.0.0"}, REMOTE)


class TestSeconds:
    KEYS = ("server_ready_timeout_seconds", "model_endpoint_readiness_timeout_seconds", "server_stop_grace_seconds")

    def test_as_set(self) -> None:
        found = parse(dict(zip(self.KEYS, [1, 2.5, 0], strict=True)))
        assert (found.deadlines, found.stop_grace_s) == (Deadlines(server_s=1.0, endpoint_s=2.5), 0.0)

    @pytest.mark.parametrize("key", KEYS)
    @pytest.mark.parametrize("value", ["5", -1, True, float("nan"), [5]])
    def test_no_number(self, key: str, value: Any) -> None:
        assert refusal({key: value}) == f"{key} must be a number of seconds, and is {value!r}."

    @pytest.mark.parametrize("key", KEYS)
    @pytest.mark.parametrize("value", [float("inf"), 1e10, 10**400])
    def test_more_than_a_timer_takes(self, key: str, value: float) -> None:
        assert refusal({key: value}) == f"{key} must be a number of seconds, at most 100000000, and is {value!r}."


class TestLogs:
    @pytest.mark.parametrize(
        ("config", "folder", "keeps"),
        [
            ({"results_dir": "out"}, "out/logs", False),
            ({"nemo_gym_log_dir": "my/logs"}, "my/logs", True),
            ({"results_dir": "out", "nemo_gym_log_dir": "my/logs"}, "my/logs", True),
        ],
    )
    def test_where(self, config: dict[str, Any], folder: str, keeps: bool) -> None:
        found = parse(config)
        assert (found.log_folder, found.keep_logs) == (Path(folder), keeps)


class TestImageLock:
    def test_read(self, tmp_path: Path) -> None:
        assert parse().image_lock is None
        path = tmp_path / "images.lock.json"
        path.write_text(ImageLock(()).to_json())
        assert parse({"image_lock": str(path)}).image_lock == ImageLock((), str(path))

    def test_refused(self, tmp_path: Path) -> None:
        assert refusal({"image_lock": 5}) == "image_lock must be the path of a lock file, and is 5."
        assert f"The lock file {tmp_path}/gone cannot be read" in refusal({"image_lock": f"{tmp_path}/gone"})


class TestDeadlines:
    def test_defaults(self) -> None:
        assert (start_timeout_s({}), build_timeout_s({})) == (60.0, 3600.0)

    def test_as_configured(self) -> None:
        config = {"server_start_timeout_seconds": 7, "image_build_timeout_seconds": 90.5}
        assert (start_timeout_s(config), build_timeout_s(config)) == (7.0, 90.5)

    @pytest.mark.parametrize("value", [0, -1, "soon", True, float("nan")])
    def test_what_is_no_time_to_work_in_is_refused(self, value: object) -> None:
        with pytest.raises(ConfigError, match="server_start_timeout_seconds must be a number of seconds, at least 1"):
            start_timeout_s({"server_start_timeout_seconds": value})

    @pytest.mark.parametrize(
        ("read", "key"),
        [(start_timeout_s, "server_start_timeout_seconds"), (build_timeout_s, "image_build_timeout_seconds")],
    )
    def test_more_than_a_timer_takes_is_refused(self, read: Callable[[Mapping[str, Any]], float], key: str) -> None:
        assert read({key: 100_000_000}) == 100_000_000
        with pytest.raises(ConfigError, match=f"^{key} must be a number of seconds, at most 100000000, and is 1"):
            read({key: 1e10})
