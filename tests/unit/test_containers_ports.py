"""A taken port is told apart from a free one, and its holder is named as far as that can be known."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from nemo_gym.containers.labels import Owner, session_labels
from nemo_gym.containers.ports import check_port_free, port_taken_error, start_on_free_port
from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.errors import ConfigError, PortTakenError
from tests.unit.fake_engine import LOCAL, FakeEngine

FAR = dataclasses.replace(LOCAL, url="tcp://far:2376", dial_host="far", is_local=False)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def check(engine: FakeEngine, port: Any) -> None:
    check_port_free(engine, "127.0.0.1", port, "registry_port")


def test_a_free_port() -> None:
    check(FakeEngine(), free_port())


def test_one_whose_last_connection_is_fading() -> None:
    """A registry that has just stopped leaves connections in TIME_WAIT; they do not count."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    check(FakeEngine(), port)


@pytest.mark.parametrize("port", [0, -1, 65536, "11000", True, 1.5])
def test_no_port(port: Any) -> None:
    with pytest.raises(ConfigError, match="registry_port must be a TCP port from 1 to 65535, and is "):
        check(FakeEngine(), port)


class TestAddresses:
    @pytest.mark.parametrize("address", ["203.0.113.9", "2001:db8::9"])
    def test_that_are_none_of_this_machines(self, address: str) -> None:
        with pytest.raises(
            ConfigError, match=rf"^bind_address {address} is no address of this machine \(.*\)\. Set it"
        ):
            check_port_free(FakeEngine(), address, free_port(), "registry_port")
        check_port_free(FakeEngine(endpoint=FAR), address, free_port(), "registry_port")

    def test_whatever_else_is_wrong_is_the_engines_to_say(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(probe: socket.socket, address: object) -> None:
            raise OSError(errno.ENETDOWN, "Network is down")

        monkeypatch.setattr(socket.socket, "bind", refuse)
        check_port_free(FakeEngine(), "127.0.0.1", 11000, "registry_port")

    def test_of_a_process_that_listens_on_another(self) -> None:
        port = free_port()
        with socket.create_server(("127.0.0.2", port)), socket.create_server(("127.0.0.1", port)):
            check_port_free(FakeEngine(), "127.0.0.3", port, "registry_port")


class TestProcesses:
    def test_named(self, listener: socket.socket) -> None:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            check(FakeEngine(), port)
        assert str(caught.value) == (
            f"registry_port {port} is in use by {psutil.Process().name()} (pid {os.getpid()}). "
            f"Stop it with `kill {os.getpid()}`, or choose another port."
        )

    def test_one_on_all_addresses(self) -> None:
        with socket.create_server(("0.0.0.0", 0)) as server, pytest.raises(ConfigError, match="is in use by"):
            check(FakeEngine(), server.getsockname()[1])

    def test_of_another_user(self, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(kind: str) -> None:
            raise psutil.AccessDenied

        monkeypatch.setattr(psutil, "net_connections", refuse)
        with pytest.raises(ConfigError, match=r"is in use by another process or container\. Stop it, or choose"):
            check(FakeEngine(), listener.getsockname()[1])

    def test_gone_while_it_is_named(self, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
        def gone(pid: int) -> None:
            raise psutil.NoSuchProcess(pid)

        monkeypatch.setattr(psutil, "Process", gone)
        with pytest.raises(ConfigError, match=rf"is in use by a process \(pid {os.getpid()}\)"):
            check(FakeEngine(), listener.getsockname()[1])

    def test_a_remote_engines_ports_are_not_this_machines(self, listener: socket.socket) -> None:
        check(FakeEngine(endpoint=FAR), listener.getsockname()[1])


class TestContainers:
    def test_a_foreign_one(self) -> None:
        engine, port = FakeEngine(), free_port()
        engine.add("web", host_ports=(1, port))
        with pytest.raises(ConfigError, match=r"in use by the container web\. Remove it with `docker rm -f web`\."):
            check(engine, port)

    def test_a_session_that_lives(self) -> None:
        engine, port = FakeEngine(), free_port()
        engine.add("r", session_labels("0a1b2c3d4e", Owner.current()), host_ports=(port,))
        expected = (
            rf"session 0a1b2c3d4e of this machine \(pid {os.getpid()}\)\. Stop it with `gym env stop 0a1b2c3d4e`\."
        )
        with pytest.raises(ConfigError, match=expected):
            check(engine, port)

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_session_whose_owner_is_not_known(self, whole: bool) -> None:
        engine, port = FakeEngine(), free_port()
        owner = dataclasses.replace(Owner.current(), host="elsewhere", boot="another")
        labels = session_labels("0a1b2c3d4e", owner)
        engine.add("r", labels if whole else {"nemo-gym.session": "0a1b2c3d4e"}, host_ports=(port,))
        with pytest.raises(
            ConfigError, match=r"whose owner is not known to live\. Remove it with `gym env stop --force 0a1b2c3d4e`"
        ):
            check(engine, port)

    def test_the_container_is_named_before_the_engines_proxy(self, listener: socket.socket) -> None:
        """On Linux a proxy process of the engine's listens for a published port; that is not who holds it."""
        engine, port = FakeEngine(), listener.getsockname()[1]
        engine.add("web", host_ports=(port,))
        assert "the container web" in str(port_taken_error(engine, "127.0.0.1", port, "head_server.port"))

    @pytest.mark.parametrize(
        ("bound", "wanted"),
        [("10.0.0.7", "127.0.0.1"), ("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("127.0.0.2", "127.0.0.1")],
    )
    def test_one_on_another_address_does_not_matter(self, bound: str, wanted: str) -> None:
        engine, port = FakeEngine(endpoint=FAR), free_port()
        engine.add("web", host_ports=(port,), address=bound)
        check_port_free(engine, wanted, port, "registry_port")

    @pytest.mark.parametrize(
        ("bound", "wanted"),
        [("10.0.0.7", "10.0.0.7"), ("0.0.0.0", "10.0.0.7"), ("::", "::1"), ("10.0.0.7", "0.0.0.0"), ("", "10.0.0.7")],
    )
    def test_one_on_every_address_or_on_this_one_does(self, bound: str, wanted: str) -> None:
        engine, port = FakeEngine(endpoint=FAR), free_port()
        engine.add("web", host_ports=(port,), address=bound)
        with pytest.raises(ConfigError, match="in use by the container web"):
            check_port_free(engine, wanted, port, "registry_port")

    def test_other_ports_do_not_matter(self) -> None:
        engine = FakeEngine()
        engine.add("web", host_ports=(1, 2))
        check(engine, free_port())


class TestPortsThatTheEngineChooses:
    def test_taken_ones_are_tried_past(self) -> None:
        engine = FakeEngine(errors={"start_container": [PortTakenError("address already in use")] * 3})
        start_on_free_port(engine, self.container(engine), threading.Event())
        assert [state.status for state in engine.list_containers("")] == ["running"]

    def test_not_once_the_start_is_given_up(self) -> None:
        engine = FakeEngine(errors={"start_container": [PortTakenError("address already in use")] * 3})
        cancelled = threading.Event()
        cancelled.set()
        with pytest.raises(PortTakenError):
            start_on_free_port(engine, self.container(engine), cancelled)

    def container(self, engine: FakeEngine) -> str:
        return engine.create_container(ContainerSpec(name="a", alias="a", image="image", networks=("net",)))


def test_a_dead_session_of_ours_on_the_port_is_swept() -> None:
    engine = FakeEngine()
    dead = dataclasses.replace(Owner.current(), start="another")
    port = free_port()
    engine.add("orphan", session_labels("dead", dead), host_ports=(port,))
    check(engine, port)
    assert engine.list_containers("") == []


def test_the_engines_own_proxy_is_not_named(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that is about to run: its port is held, and it is not listed with it yet."""
    monkeypatch.setattr(psutil.Process, "name", lambda process: "docker-proxy")
    with pytest.raises(ConfigError, match="another process or container") as caught:
        check(FakeEngine(), listener.getsockname()[1])
    assert "kill" not in str(caught.value)
