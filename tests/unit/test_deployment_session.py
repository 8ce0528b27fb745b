"""A session's end while the engine is in the middle of a call, and deaths at the last moment of a start."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.containers.engine import NetworkState
from nemo_gym.containers.labels import SESSION
from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.deployment import session as session_module
from nemo_gym.deployment.session import Session
from nemo_gym.deployment.settings import parse_serving_settings
from nemo_gym.deployment.topology import build_topology
from nemo_gym.errors import EngineError, EngineUnavailableError, NemoGymError, ServerStartError
from tests.unit.fake_engine import FakeEngine, FakeStdin
from tests.unit.session_engine import SessionEngine

TIMED_OUT = EngineUnavailableError("The container engine stopped answering (ReadTimeout)")
CONFIG: dict[str, Any] = {
    "m": {"responses_api_models": {"openai_model": {"entrypoint": "app.py"}}},
    "r": {
        "resources_servers": {
            "counter": {"entrypoint": "app.py", "domain": "other", "container": {"network": "internal"}}
        }
    },
}
MODEL_ALONE = {"m": CONFIG["m"]}


class FakeKeeper:
    """Notes how its owner let go of it."""

    pid = 1
    ends: list[str]

    def carry(self, listeners: object, subnet: str) -> None: ...

    def release(self) -> None:
        self.ends.append("released")

    def abandon(self) -> None:
        self.ends.append("abandoned")


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> FakeKeeper:
    """The keeper of the session that is started; the images of its servers are there."""
    keeper = FakeKeeper()
    keeper.ends = []
    monkeypatch.setattr(session_module.Keeper, "start", lambda *_: keeper)
    monkeypatch.setattr(session_module, "ensure_locked_images", lambda *_: {"registry": "i", "m": "i", "r": "i"})
    monkeypatch.setattr(session_module, "named", lambda *_: {})
    return keeper


def session_of(engine: FakeEngine, config: Mapping[str, Any], results: Path) -> Session:
    config = {**config, "results_dir": str(results)}
    settings = parse_serving_settings(config, engine.endpoint, {}, registry_port=None, default_registry_port=None)
    return Session(engine, build_topology(config), settings)  # type: ignore[arg-type]


@dataclass
class SlowNetworks(FakeEngine):
    """Goes on with a network after the Ctrl-C that comes in the middle of the call; ``hit`` says in which call."""

    hit_internal: bool = False
    under_way: list[threading.Thread] = field(default_factory=list)

    def create_network(self, name: str, labels: Mapping[str, str], *, internal: bool = False) -> NetworkState:
        if internal is not self.hit_internal:
            return super().create_network(name, labels, internal=internal)

        def go_on() -> None:
            time.sleep(0.3)
            FakeEngine.create_network(self, name, labels, internal=internal)

        call = threading.Thread(target=go_on)
        call.start()
        self.under_way.append(call)
        time.sleep(0.1)  # whoever began it waits for it
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        while call.is_alive():
            time.sleep(0.01)
        return NetworkState(id=name, name=name, gateway="172.30.0.1", subnet="172.30.0.0/16")


@pytest.mark.parametrize("internal", [False, True])
def test_a_network_that_ctrl_c_interrupts_is_removed(keeper: FakeKeeper, tmp_path: Path, internal: bool) -> None:
    engine = SlowNetworks(hit_internal=internal)
    session = session_of(engine, CONFIG, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        session.start(())
    session.stop()
    for call in engine.under_way:
        call.join()
    assert engine.calls["create_network"] == 1 + internal
    assert engine.networks == {}
    assert keeper.ends == ["released"]


@pytest.mark.parametrize("verb", ["create_network", "create_container", "start_container"])
@pytest.mark.parametrize(
    ("error", "end"), [(TIMED_OUT, "abandoned"), (EngineError("no such image", status=404), "released")]
)
def test_a_call_that_the_engine_may_go_on_with_is_left_to_the_keeper(
    keeper: FakeKeeper, tmp_path: Path, verb: str, error: Exception, end: str
) -> None:
    """It looks again for some seconds; the session's own removal, which finds nothing, is no proof."""
    engine = SessionEngine(errors={verb: [error, error]})  # of each container
    session = session_of(engine, MODEL_ALONE, tmp_path)
    with pytest.raises(NemoGymError, match=str(error)[:20]):
        session.start(())
    session.stop()
    assert keeper.ends == [end]


class Answers(BaseHTTPRequestHandler):
    """Answers as one server of a session."""

    server: Served

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        status, body = self.server.answer(self.path)
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Served(ThreadingHTTPServer):
    """The published port of one container."""

    def __init__(self, engine: ServingEngine, spec: ContainerSpec) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self._engine = engine
        self._spec = spec

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        if path == "/":
            return 200, {"server": self._spec.alias, "session_id": self._spec.labels[SESSION]}
        if self._spec.alias == "registry" and self._engine.dies:
            self._engine.kill_model()
            return 503, {"status": "waiting"}
        return 200, {"status": "ready"}


@dataclass
class ServingEngine(SessionEngine):
    """Its containers answer; if it ``dies``, the model server does when the registry is first asked if it is ready."""

    dies: bool = True
    served: list[Served] = field(default_factory=list)
    registry_lines: list[FakeStdin] = field(default_factory=list)
    _once: threading.Lock = field(default_factory=threading.Lock)

    def create_container(self, spec: ContainerSpec) -> str:
        container_id = super().create_container(spec)
        served = Served(self, spec)
        threading.Thread(target=served.serve_forever, args=(0.01,)).start()
        self.served.append(served)
        self.change(container_id, host_ports=(served.server_port,))
        return container_id

    def open_stdin(self, container_id: str) -> FakeStdin:
        stdin = super().open_stdin(container_id)
        if container_id.endswith("-registry"):
            self.registry_lines.append(stdin)
        return stdin

    def kill_model(self) -> None:
        model = next(name for name in self.containers if name.endswith("-m"))
        with self._once:
            if not self.containers[model].is_dead:
                self.kill(model, 137, oom_killed=True)
                self.streams[0].put(model, 137)


@pytest.fixture
def serving_engine() -> Iterator[ServingEngine]:
    engine = ServingEngine()
    yield engine
    for served in engine.served:
        served.shutdown()
        served.server_close()


def test_deaths_are_told_by_a_line_that_is_opened_anew(
    keeper: FakeKeeper, serving_engine: ServingEngine, tmp_path: Path
) -> None:
    """The engine has restarted under living containers, and cut the connection to the registry."""
    serving_engine.dies = False
    session = session_of(serving_engine, MODEL_ALONE, tmp_path)
    try:
        session.start(())
        first = serving_engine.registry_lines[0]
        first.error = EngineError("a container's standard input is closed")
        serving_engine.kill_model()
        deadline = time.monotonic() + 10
        while len(serving_engine.registry_lines) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        session.stop()
    _, second = serving_engine.registry_lines
    told = json.loads(second.sent)
    assert (told["type"], told["name"], told["exit_code"]) == ("server_died", "m", 137)
    assert (first.closed, second.closed) == (1, 1)


def test_a_death_between_ready_and_the_registry_ready_names_the_server(
    keeper: FakeKeeper, serving_engine: ServingEngine, tmp_path: Path
) -> None:
    session = session_of(serving_engine, MODEL_ALONE, tmp_path)
    try:
        with pytest.raises(ServerStartError, match="model server 'm' was killed for using more memory") as caught:
            session.start(())
    finally:
        session.stop()
    assert (caught.value.server, caught.value.phase, caught.value.oom_killed) == ("m", "serving", True)
    assert keeper.ends == ["released"]
