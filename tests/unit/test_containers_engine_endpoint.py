"""The engine that the ``docker`` command would use, and what is said when there is none."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.containers import engine_endpoint
from nemo_gym.containers.engine import Endpoint
from nemo_gym.containers.engine_endpoint import find_endpoint, pinned_environ, tls_config, unreachable_message
from nemo_gym.errors import EngineUnavailableError


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of docker's own configuration."""
    folder = tmp_path / "docker-config"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder


def add_context(
    docker_config: Path, name: str, content: str | None = None, host: str = "tcp://far.example:2376"
) -> None:
    folder = docker_config / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    folder.mkdir(parents=True)
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": False}}}
    (folder / "meta.json").write_text(json.dumps(meta) if content is None else content)


class TestDockerHost:
    @pytest.mark.parametrize(
        ("url", "dial_host", "is_local"),
        [
            ("unix:///run/x.sock", "127.0.0.1", True),
            ("unix://", "127.0.0.1", True),
            ("npipe:////./pipe/docker_engine", "127.0.0.1", True),
            ("tcp://localhost:2375", "127.0.0.1", True),
            ("tcp://127.0.0.1:2375", "127.0.0.1", True),
            ("tcp://127.0.0.53:2375", "127.0.0.1", True),
            ("tcp://[::1]:2375", "127.0.0.1", True),
            ("tcp://:2375", "127.0.0.1", True),
            ("127.0.0.1:2375", "127.0.0.1", True),
            ("localhost:2375", "127.0.0.1", True),
            ("tcp://far.example:2376", "far.example", False),
            ("far.example:2376", "far.example", False),
            ("far:2376", "far", False),
            ("tcp://10.0.0.7:2376", "10.0.0.7", False),
            ("tcp://[fd00::7]:2376", "fd00::7", False),
            ("ssh://me@far.example", "far.example", False),
            ("ssh://me@localhost", "127.0.0.1", True),
        ],
    )
    def test_where_it_is(self, url: str, dial_host: str, is_local: bool) -> None:
        assert find_endpoint({"DOCKER_HOST": url}) == Endpoint(url, "DOCKER_HOST", dial_host, is_local)

    @pytest.mark.parametrize("url", ["tcp://[::1:2375", "tcp://[x]:1"])
    def test_no_address(self, url: str) -> None:
        with pytest.raises(EngineUnavailableError, match=r"\(DOCKER_HOST\) is no address of a Docker engine"):
            find_endpoint({"DOCKER_HOST": url})

    @given(st.text(min_size=1))
    def test_nothing_else_is_raised(self, url: str) -> None:
        try:
            endpoint = find_endpoint({"DOCKER_HOST": url})
        except EngineUnavailableError:
            return
        assert endpoint.dial_host

    def test_it_wins_over_a_context(self, docker_config: Path) -> None:
        environ = {"DOCKER_HOST": "unix:///x.sock", "DOCKER_CONTEXT": "far"}
        assert find_endpoint(environ).source == "DOCKER_HOST"


class TestContexts:
    def test_the_current_one(self, docker_config: Path) -> None:
        add_context(docker_config, "far")
        (docker_config / "config.json").write_text('{"currentContext": "far"}')
        expected = Endpoint("tcp://far.example:2376", "context 'far'", "far.example", False)
        assert find_endpoint({}) == expected
        assert find_endpoint({"DOCKER_HOST": "", "DOCKER_CONTEXT": ""}) == expected

    def test_the_one_named(self, docker_config: Path) -> None:
        add_context(docker_config, "far")
        add_context(docker_config, "desktop-linux", host="unix:///home/me/.docker/desktop/docker.sock")
        (docker_config / "config.json").write_text('{"currentContext": "far"}')
        found = find_endpoint({"DOCKER_CONTEXT": "desktop-linux"})
        assert (found.url, found.is_local) == ("unix:///home/me/.docker/desktop/docker.sock", True)
        assert find_endpoint({"DOCKER_CONTEXT": "default"}).url == "unix:///var/run/docker.sock"

    @pytest.mark.parametrize("config", ["{}", '{"currentContext": "default"}', '{"currentContext": ""}', "no json"])
    def test_none(self, docker_config: Path, config: str) -> None:
        (docker_config / "config.json").write_text(config)
        assert find_endpoint({}).url == "unix:///var/run/docker.sock"

    def test_one_that_does_not_exist(self, docker_config: Path) -> None:
        with pytest.raises(EngineUnavailableError, match=r"'far' does not exist.*docker context ls"):
            find_endpoint({"DOCKER_CONTEXT": "far"})

    @pytest.mark.parametrize("content", ["no json", "{}", '{"Endpoints": {"docker": 1}}'])
    def test_one_that_cannot_be_read(self, docker_config: Path, content: str) -> None:
        add_context(docker_config, "far", content)
        with pytest.raises(EngineUnavailableError, match="'far' cannot be read"):
            find_endpoint({"DOCKER_CONTEXT": "far"})


def test_a_rootless_engine_where_only_that_is(docker_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"/run/user/1000/docker.sock"}
    monkeypatch.setattr(engine_endpoint.Path, "exists", lambda path: str(path) in there)
    environ = {"XDG_RUNTIME_DIR": "/run/user/1000"}
    found = find_endpoint(environ)
    assert (found.url, found.source) == ("unix:///run/user/1000/docker.sock", "rootless socket")
    there.add("/var/run/docker.sock")
    assert find_endpoint(environ).source == "default"
    assert find_endpoint({}).source == "default"


class TestTls:
    def test_off(self) -> None:
        assert tls_config({}) is False

    def test_on(self, tmp_path: Path) -> None:
        for name in ("ca.pem", "cert.pem", "key.pem"):
            (tmp_path / name).touch()
        found = tls_config({"DOCKER_CERT_PATH": str(tmp_path), "DOCKER_TLS_VERIFY": "1"})
        assert found.cert == (f"{tmp_path}/cert.pem", f"{tmp_path}/key.pem")
        assert found.ca_cert == f"{tmp_path}/ca.pem"
        assert found.verify is True
        assert tls_config({"DOCKER_CERT_PATH": str(tmp_path)}).verify is False


class TestPinned:
    """What the keeper gets, which may have to reach the same engine much later."""

    def test_a_named_host_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        environ = {"DOCKER_HOST": "tcp://far:2376", "DOCKER_CERT_PATH": "certs", "DOCKER_TLS_VERIFY": "1", "A": "b"}
        pinned = pinned_environ(find_endpoint(environ), environ)
        assert pinned == {**environ, "DOCKER_CERT_PATH": str(tmp_path / "certs")}

    def test_the_current_context_is_named(self, docker_config: Path) -> None:
        add_context(docker_config, "far")
        (docker_config / "config.json").write_text('{"currentContext": "far"}')
        endpoint = find_endpoint({})
        pinned = pinned_environ(endpoint, {"A": "b"})
        assert pinned == {"A": "b", "DOCKER_CONTEXT": "far"}
        (docker_config / "config.json").write_text("{}")
        assert find_endpoint(pinned) == endpoint

    def test_a_socket_is_named(self, docker_config: Path) -> None:
        endpoint = find_endpoint({})
        add_context(docker_config, "far")
        (docker_config / "config.json").write_text('{"currentContext": "far"}')
        pinned = pinned_environ(endpoint, {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "certs"})
        assert pinned == {"DOCKER_HOST": "unix:///var/run/docker.sock"}
        assert find_endpoint(pinned).url == endpoint.url


class TestUnreachable:
    def test_an_address_in_docker_host(self) -> None:
        text = unreachable_message(find_endpoint({"DOCKER_HOST": "tcp://far:1"}), OSError("refused"))
        assert text.startswith("A Docker engine is needed, and none answers at tcp://far:1 (DOCKER_HOST).")
        assert "unset DOCKER_HOST" in text
        assert text.endswith("(The connection failed with OSError: refused)")

    def test_a_socket_that_may_not_be_used(self) -> None:
        endpoint = Endpoint("unix:///var/run/docker.sock", "default", "127.0.0.1", True)
        text = unreachable_message(endpoint, PermissionError(13, "Permission denied"))
        assert "sudo usermod -aG docker $USER" in text

    def test_a_context(self) -> None:
        endpoint = Endpoint("tcp://far:1", "context 'far'", "far", False)
        assert "docker context use NAME" in unreachable_message(endpoint, OSError("x" * 1000))
        assert "x" * 301 not in unreachable_message(endpoint, OSError("x" * 1000))

    @pytest.mark.parametrize(("platform", "typed"), [("linux", "systemctl start docker"), ("darwin", "Docker Desktop")])
    def test_this_machines_own(self, monkeypatch: pytest.MonkeyPatch, platform: str, typed: str) -> None:
        monkeypatch.setattr(engine_endpoint.sys, "platform", platform)
        endpoint = Endpoint("unix:///var/run/docker.sock", "default", "127.0.0.1", True)
        assert typed in unreachable_message(endpoint, FileNotFoundError(2, "No such file or directory"))


def test_nothing_is_read_from_the_environment_but_by_the_caller(docker_config: Path) -> None:
    os.environ["DOCKER_HOST"], before = "unix:///never.sock", os.environ.get("DOCKER_HOST")
    try:
        assert find_endpoint({}).url == "unix:///var/run/docker.sock"
    finally:
        del os.environ["DOCKER_HOST"]
        if before is not None:
            os.environ["DOCKER_HOST"] = before
    assert socket.getdefaulttimeout() is None
