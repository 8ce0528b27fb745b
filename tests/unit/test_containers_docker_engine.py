"""The SDK behind the engine's verbs, against a daemon in this process: what is asked, and what errors become."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.containers.docker_engine import DockerEngine, published_port
from nemo_gym.containers.engine import ContainerState, Leftovers, NetworkState
from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.errors import (
    EngineError,
    EngineNotFoundError,
    EngineUnavailableError,
    NoAddressRangeError,
    PortTakenError,
)
from tests.unit.fake_daemon import Request, Route, fake_daemon
from tests.unit.fake_engine import FakeEngine

SPEC = ContainerSpec(name="c", alias="a", image="i", networks=("n",))


@contextmanager
def engine_with(routes: dict[str, Route], **environ: str) -> Iterator[DockerEngine]:
    with fake_daemon(routes) as daemon:
        engine = DockerEngine.connect({"DOCKER_HOST": daemon.url, **environ})
        try:
            yield engine
        finally:
            engine.close()


def says(content: Any, status: int = 200) -> Route:
    return lambda request: request.send_json(content, status)


def refuses(status: int, message: str) -> Route:
    return says({"message": message}, status)


class TestConnect:
    def test_asks_for_the_version_once(self) -> None:
        with fake_daemon({}) as daemon:
            engine = DockerEngine.connect({"DOCKER_HOST": daemon.url})
            engine.close()
            engine.close()
            assert daemon.seen == ["GET /version"]

    @pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
    def test_proxies_are_for_the_internet(self, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            monkeypatch.setenv(variable, f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with engine_with({"GET /containers/json": says([])}) as engine:
            assert engine.list_containers("") == []

    def test_nobody_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EngineUnavailableError, match=r"none answers at tcp://127\.0\.0\.1"):
            DockerEngine.connect({"DOCKER_HOST": url})

    def test_no_socket(self, tmp_path: Path) -> None:
        with pytest.raises(EngineUnavailableError, match=r"none answers at unix://.*gone\.sock"):
            DockerEngine.connect({"DOCKER_HOST": f"unix://{tmp_path}/gone.sock"})

    @pytest.mark.parametrize(
        ("content", "status"), [("<html>", 200), ([], 200), ({"message": "no"}, 403), ({"ApiVersion": "1.1"}, 200)]
    )
    def test_something_else_answers(self, content: Any, status: int) -> None:
        with fake_daemon({}) as daemon:
            daemon.routes["GET /version"] = says(content, status)
            with pytest.raises(EngineUnavailableError, match="A Docker engine is needed"):
                DockerEngine.connect({"DOCKER_HOST": daemon.url})

    def test_no_certificates(self, tmp_path: Path) -> None:
        environ = {"DOCKER_HOST": "tcp://127.0.0.1:1", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)}
        with pytest.raises(EngineUnavailableError, match="A Docker engine is needed"):
            DockerEngine.connect(environ)


class TestErrors:
    @pytest.mark.parametrize(
        "text",
        [
            "driver failed programming external connectivity: Bind for 127.0.0.1:1 failed: port is already allocated",
            "Error starting userland proxy: listen tcp4 127.0.0.1:1: bind: address already in use",
            "driver failed programming external connectivity: failed to bind host port 127.0.0.1:1/tcp",
        ],
    )
    def test_a_taken_port(self, text: str) -> None:
        with (
            engine_with({"POST /containers/c/start": refuses(500, text)}) as engine,
            pytest.raises(PortTakenError) as caught,
        ):
            engine.start_container("c")
        assert (str(caught.value), caught.value.status) == (text, 500)

    def test_no_address_range_left(self) -> None:
        text = "could not find an available, non-overlapping IPv4 address pool among the defaults to assign"
        with (
            engine_with({"POST /networks/create": refuses(404, text)}) as engine,
            pytest.raises(NoAddressRangeError, match="docker network prune") as caught,
        ):
            engine.create_network("n", {})
        assert not isinstance(caught.value, EngineNotFoundError)

    def test_not_found(self) -> None:
        with engine_with({}) as engine:
            assert engine.find_image_id("gone:1") is None
            with pytest.raises(EngineNotFoundError) as caught:
                engine.inspect_container("gone")
        assert caught.value.status == 404

    def test_any_other_refusal(self) -> None:
        with (
            engine_with({"POST /containers/create": refuses(400, "invalid CapAdd")}) as engine,
            pytest.raises(EngineError, match="invalid CapAdd") as caught,
        ):
            engine.create_container(SPEC)
        assert caught.value.status == 400
        assert caught.value.__cause__ is not None

    def test_the_engine_went_away(self) -> None:
        with fake_daemon({}) as daemon:
            engine = DockerEngine.connect({"DOCKER_HOST": daemon.url})
        with pytest.raises(EngineUnavailableError, match="stopped answering"):
            engine.list_containers("")
        engine.close()

    @pytest.mark.parametrize(
        ("verb", "route", "status"),
        [
            (lambda engine: engine.remove_container("x"), "DELETE /containers/x", 404),
            (lambda engine: engine.remove_container("x"), "DELETE /containers/x", 409),
            (lambda engine: engine.remove_network("x"), "DELETE /networks/x", 404),
            (lambda engine: engine.remove_volume("x"), "DELETE /volumes/x", 404),
            (lambda engine: engine.stop_container("x", 1), "POST /containers/x/stop", 404),
        ],
    )
    def test_what_is_gone_already(self, verb: Callable[[DockerEngine], None], route: str, status: int) -> None:
        with engine_with({route: refuses(status, "removal is already in progress")}) as engine:
            verb(engine)

    def test_what_cannot_be_removed(self) -> None:
        with (
            engine_with({"DELETE /containers/x": refuses(500, "device busy")}) as engine,
            pytest.raises(EngineError, match="device busy"),
        ):
            engine.remove_container("x")


class TestVerbs:
    def test_a_network(self) -> None:
        def create(request: Request) -> None:
            asked.append(request.body)
            request.send_json({"Id": "n1"}, 201)

        asked: list[bytes] = []
        pool = {"IPAM": {"Config": [{"Subnet": "172.30.0.0/16", "Gateway": "172.30.0.1"}]}}
        with engine_with({"POST /networks/create": create, "GET /networks/n1": says(pool)}) as engine:
            assert engine.create_network("n", {"k": "v"}) == NetworkState("n1", "n", "172.30.0.1", "172.30.0.0/16")
        assert b'"Labels": {"k": "v"}' in asked[0]
        assert b'"Driver": "bridge"' in asked[0]
        assert b'"Internal": true' not in asked[0]
        assert b"inhibit_ipv4" not in asked[0]

    def test_an_internal_network_takes_no_address_of_the_host(self) -> None:
        def create(request: Request) -> None:
            asked.append(json.loads(request.body))
            request.send_json({"Id": "n1"}, 201)

        asked: list[dict[str, Any]] = []
        pool = {"IPAM": {"Config": [{"Subnet": "172.30.0.0/16", "Gateway": "172.30.0.1"}]}}
        with engine_with({"POST /networks/create": create, "GET /networks/n1": says(pool)}) as engine:
            engine.create_network("n", {"k": "v"}, internal=True)
        assert asked[0]["Internal"] is True
        assert asked[0]["Options"] == {"com.docker.network.bridge.inhibit_ipv4": "true"}
        assert asked[0]["Labels"] == {"k": "v"}

    def test_a_container_on_several_networks(self) -> None:
        """It is on all of them, under its alias, before it starts."""

        def connect(request: Request) -> None:
            asked.append((request.path.rpartition("/v")[2], json.loads(request.body)))
            request.send_json({})

        asked: list[tuple[str, dict[str, Any]]] = []
        routes = {
            "POST /containers/create": says({"Id": "1"}, 201),
            "POST /networks/second/connect": connect,
            "POST /networks/third/connect": connect,
        }
        with engine_with(routes) as engine:
            spec = dataclasses.replace(SPEC, networks=("n", "second", "third"))
            assert engine.create_container(spec) == "1"
        assert [path.split("/", 1)[1] for path, _ in asked] == ["networks/second/connect", "networks/third/connect"]
        assert [body["Container"] for _, body in asked] == ["1", "1"]
        assert [body["EndpointConfig"]["Aliases"] for _, body in asked] == [["a"], ["a"]]

    def test_a_state(self) -> None:
        found = {
            "Id": "1",
            "Name": "/c",
            "State": {"Status": "exited", "ExitCode": 137, "OOMKilled": True, "Error": "", "StartedAt": "then"},
            "Config": {"Labels": {"k": "v"}},
            "NetworkSettings": {
                "Ports": {
                    "7/tcp": None,
                    "9/udp": [{"HostIp": "127.0.0.1", "HostPort": "9"}],
                    "8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "32768"}, {"HostIp": "::", "HostPort": "32768"}],
                }
            },
        }
        with engine_with({"GET /containers/c/json": says(found)}) as engine:
            state = engine.inspect_container("c")
        bindings = (("0.0.0.0", 32768), ("::", 32768))
        assert state == ContainerState("1", "c", "exited", {"k": "v"}, 137, True, "", bindings, "then")
        assert (state.is_dead, state.host_port) == (True, 32768)

    def test_a_child_that_ran_out_of_memory_is_no_death(self) -> None:
        found: dict[str, Any] = {
            "Id": "1",
            "Name": "/c",
            "State": {"Status": "running", "ExitCode": 0, "OOMKilled": True},
            "Config": {"Labels": None},
            "NetworkSettings": {},
        }
        with engine_with({"GET /containers/c/json": says(found)}) as engine:
            state = engine.inspect_container("c")
        assert (state.exit_code, state.oom_killed, state.is_dead, state.host_port) == (None, False, False, None)

    def test_lists(self) -> None:
        ports = [
            {"PrivatePort": 7, "Type": "tcp"},
            {"PrivatePort": 9, "PublicPort": 9, "Type": "udp"},
            {"PrivatePort": 8000, "PublicPort": 32768, "Type": "tcp"},
            {"IP": "10.0.0.7", "PrivatePort": 8000, "PublicPort": 32769, "Type": "tcp"},
        ]
        containers = [{"Id": "1", "Names": ["/c"], "State": "running", "Labels": {"k": "v"}, "Ports": ports}]
        routes = {
            "GET /containers/json": says(containers),
            "GET /networks": says([{"Id": "n1", "Labels": {"k": "v"}}, {"Id": "n2", "Labels": None}]),
            "GET /volumes": says({"Volumes": None}),
        }
        with engine_with(routes) as engine:
            assert engine.list_containers("k") == [
                ContainerState("1", "c", "running", {"k": "v"}, None, False, "", (("", 32768), ("10.0.0.7", 32769)))
            ]
            assert engine.find_leftovers("k") == Leftovers(containers=("1",), networks=("n1", "n2"))
            assert engine.list_network_labels("k") == [{"k": "v"}, {}]

    def test_a_busy_network_is_freed_and_removed(self) -> None:
        def remove(request: Request) -> None:
            request.send_json({"message": "network x has active endpoints"}, 403 if not freed else 204)

        def disconnect(request: Request) -> None:
            freed.append(request.body)
            request.send_json({})

        freed: list[bytes] = []
        routes = {
            "DELETE /networks/x": remove,
            "GET /networks/x": says({"Containers": {"c1": {}}}),
            "POST /networks/x/disconnect": disconnect,
        }
        with engine_with(routes) as engine:
            engine.remove_network("x")
        assert b'"c1"' in freed[0]
        assert b'"Force": true' in freed[0]


class TestBuildCredentials:
    def sent(self) -> list[str | None]:
        """The credentials that a build is sent with; its log is read to the end."""

        def serve(request: Request) -> None:
            seen.append(request.headers.get("X-Registry-Config"))
            request.begin_chunks()
            request.send_message(stream="Successfully built 00\n")
            request.end_chunks()

        seen: list[str | None] = []
        with engine_with({"POST /build": serve}) as engine:
            log = engine.build_image(io.BytesIO(b"tar"), tag="x:y", build_args={}, labels={})
            assert list(log) == ["Successfully built 00\n"]
        return seen

    @pytest.fixture
    def config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        return tmp_path / "config.json"

    def test_of_dockers_own_config(self, config: Path) -> None:
        config.write_text(json.dumps({"auths": {"host:1": {"auth": base64.b64encode(b"me:secret").decode()}}}))
        (sent,) = self.sent()
        assert json.loads(base64.urlsafe_b64decode(sent or ""))["host:1"]["password"] == "secret"

    @pytest.mark.filterwarnings("ignore:docker-credential-none")  # the SDK's own, before its error
    @pytest.mark.parametrize("stale", [{"credsStore": "none-such"}, {"credHelpers": {"host:1": "none-such"}}])
    def test_of_a_store_that_is_gone_are_not_waited_for(self, config: Path, stale: dict[str, Any]) -> None:
        config.write_text(json.dumps(stale))
        assert self.sent() == [None]


class TestPublishedPort:
    def test_read_until_it_is_there(self) -> None:
        engine = FakeEngine()
        container = engine.add("c")
        looks = 0

        def inspect(container_id: str) -> ContainerState:
            nonlocal looks
            looks += 1
            if looks == 3:
                engine.change(container_id, host_ports=(32768,))
            return FakeEngine.inspect_container(engine, container_id)

        engine.inspect_container = inspect  # type: ignore[method-assign]
        assert published_port(engine, container) == 32768  # type: ignore[arg-type]
        assert looks == 3

    def test_dead_before_it_had_one(self) -> None:
        engine = FakeEngine()
        container = engine.add("c")
        engine.kill(container, 1)
        assert published_port(engine, container) is None  # type: ignore[arg-type]
        assert engine.calls["inspect_container"] == 1

    def test_never(self) -> None:
        engine = FakeEngine()
        assert published_port(engine, engine.add("c"), deadline_s=0.05) is None  # type: ignore[arg-type]
