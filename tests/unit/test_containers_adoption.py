"""What a keeper does once a session is its own: an engine in memory, and the whole keeper against a fake daemon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from nemo_gym.containers import keeper as keeper_module
from nemo_gym.containers.adoption import Adoption
from nemo_gym.containers.keeper import Keeper
from nemo_gym.errors import EngineError, NemoGymError
from tests.unit.fake_daemon import Request, fake_daemon
from tests.unit.fake_engine import FakeEngine, FakeStdin

SESSION = "0a1b2c3d4e"
SERVERS = {"id-model": "policy_model", "id-agent": "agent"}


def eventually(holds: Callable[[], bool], timeout_s: float = 8.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


class RegistryEngine(FakeEngine):
    """Hands out the stdins that a test prepared, then ordinary ones, and keeps each."""

    def __init__(self, *stdins: FakeStdin) -> None:
        super().__init__()
        self.prepared = list(stdins)
        self.stdins: list[FakeStdin] = []

    def open_stdin(self, container_id: str) -> FakeStdin:
        self._called("open_stdin")
        assert container_id == "id-registry"
        self.stdins.append(self.prepared.pop(0) if self.prepared else FakeStdin())
        return self.stdins[-1]

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for stdin in self.stdins for line in stdin.sent.splitlines()]


def session_of(engine: FakeEngine) -> None:
    for name in ("registry", "model", "agent"):
        engine.add(name)


class TestAdoption:
    def adopt(self, engine: RegistryEngine) -> tuple[Adoption, threading.Event]:
        over = threading.Event()
        return Adoption(engine, SESSION, "id-registry", SERVERS, over.set), over

    def test_tells_the_registry_of_each_death(self) -> None:
        engine = RegistryEngine()
        session_of(engine)
        adoption, over = self.adopt(engine)
        assert engine.told() == []
        engine.kill("id-agent", 137, oom_killed=True)
        engine.streams[0].put("id-agent", 137)
        assert eventually(lambda: len(engine.told()) == 1)
        assert engine.told() == [
            {
                "type": "server_died",
                "name": "agent",
                "exit_code": 137,
                "oom_killed": True,
                "detail": "killed for using too much memory",
            }
        ]
        assert not over.is_set()
        adoption.close()
        adoption.close()
        assert engine.stdins[0].closed
        assert engine.streams[0].closed.is_set()
        assert engine.calls["close"] == 1

    def test_the_end_of_the_registry_is_the_end_of_the_session(self) -> None:
        engine = RegistryEngine()
        session_of(engine)
        adoption, over = self.adopt(engine)
        engine.containers.pop("id-registry")  # removed by `gym env stop`
        engine.streams[0].put("id-registry", 137)
        assert over.wait(5)
        assert engine.told() == []
        adoption.close()

    def test_what_died_before_the_watch_began(self) -> None:
        engine = RegistryEngine()
        session_of(engine)
        engine.kill("id-model", 3)
        engine.containers.pop("id-agent")
        adoption, over = self.adopt(engine)
        assert [(told["name"], told["exit_code"]) for told in engine.told()] == [("policy_model", 3), ("agent", None)]
        assert not over.is_set()
        adoption.close()
        engine.containers.pop("id-registry")
        adoption, over = self.adopt(engine)
        assert over.is_set()
        adoption.close()

    def test_a_connection_that_the_engine_has_cut_is_made_anew(self) -> None:
        cut = FakeStdin(EngineError("closed"))
        engine = RegistryEngine(cut)
        session_of(engine)
        engine.kill("id-model", 1)
        adoption, _ = self.adopt(engine)
        assert [told["name"] for told in engine.told()] == ["policy_model"]
        assert cut.closed
        adoption.close()
        assert [stdin.closed for stdin in engine.stdins] == [1, 1]

    def test_a_registry_that_cannot_be_told(self) -> None:
        engine = RegistryEngine(FakeStdin(EngineError("closed")), FakeStdin(EngineError("closed")))
        session_of(engine)
        engine.kill("id-model", 1)
        adoption, over = self.adopt(engine)
        assert engine.told() == []
        assert not over.is_set()
        adoption.close()

    def test_strangers_die_unheard(self) -> None:
        engine = RegistryEngine()
        session_of(engine)
        engine.add("other")
        adoption, over = self.adopt(engine)
        engine.streams[0].put("id-other", 1)
        engine.streams[0].put("id-agent", 2)
        assert eventually(lambda: [told["name"] for told in engine.told()] == ["agent"])
        assert not over.is_set()
        adoption.close()

    @pytest.mark.parametrize("verb", ["open_stdin", "deaths", "inspect_container"])
    def test_a_session_that_cannot_be_adopted_leaves_no_connection(self, verb: str) -> None:
        engine = RegistryEngine()
        session_of(engine)
        engine.errors[verb] = [EngineError("not running")]
        with pytest.raises(EngineError, match="not running"):
            self.adopt(engine)
        assert engine.calls["close"] == 1
        assert all(stdin.closed for stdin in engine.stdins)
        assert all(stream.closed.is_set() for stream in engine.streams)


class Daemon:
    """As much of an engine as a keeper needs that adopts: three containers, their deaths, the registry's stdin."""

    def __init__(self) -> None:
        self.there = {"id-registry": True, "id-model": True}  # whether it runs
        self.told: list[bytes] = []
        self.deaths: list[bytes] = []
        self.over = threading.Event()

    def routes(self) -> dict[str, Callable[[Request], None]]:
        named = {}
        for name in self.there:
            named[f"GET /containers/{name}/json"] = self._inspect(name)
            named[f"DELETE /containers/{name}"] = self._remove(name)
        return {
            "POST /containers/id-registry/attach": self._attach,
            "GET /events": self._events,
            "GET /containers/json": lambda request: request.send_json([{"Id": name} for name in self.there]),
            "GET /networks": lambda request: request.send_json([]),
            "GET /volumes": lambda request: request.send_json({"Volumes": []}),
            **named,
        }

    def _inspect(self, name: str) -> Callable[[Request], None]:
        def inspect(request: Request) -> None:
            if name not in self.there:
                request.send_json({"message": "No such container"}, 404)
                return
            running = self.there[name]
            state = {"Status": "running" if running else "exited", "ExitCode": 0 if running else 9, "OOMKilled": False}
            request.send_json({"Id": name, "Name": f"/{name}", "State": state, "Config": {"Labels": {}}})

        return inspect

    def _remove(self, name: str) -> Callable[[Request], None]:
        def remove(request: Request) -> None:
            self.there.pop(name, None)
            request.send_json({}, 204)

        return remove

    def _attach(self, request: Request) -> None:
        request.send_response(101)
        request.send_header("Connection", "Upgrade")
        request.send_header("Upgrade", "tcp")
        request.end_headers()
        for line in iter(request.rfile.readline, b""):
            self.told.append(line)
        request.close_connection = True

    def _events(self, request: Request) -> None:
        request.begin_chunks()
        while not self.over.wait(0.02):
            while self.deaths:
                request.send_chunk(self.deaths.pop(0))
        request.close_connection = True

    def die(self, name: str) -> None:
        self.there[name] = False
        event = {"Actor": {"ID": name, "Attributes": {"exitCode": "9"}}}
        self.deaths.append(json.dumps(event).encode() + b"\n")


@contextlib.contextmanager
def adopting(daemon: Daemon) -> Iterator[tuple[Keeper, psutil.Process]]:
    """A keeper on the fake daemon; killed afterwards if it still runs."""
    with fake_daemon(daemon.routes()) as server:
        keeper = Keeper.start(SESSION, {**os.environ, "DOCKER_HOST": server.url})
        process = psutil.Process(keeper.pid)
        try:
            yield keeper, process
        finally:
            daemon.over.set()
            keeper.abandon()
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            keeper._process.wait()


class TestKeeper:
    def test_lives_on_without_its_owner_until_the_registry_ends(self) -> None:
        daemon = Daemon()
        with adopting(daemon) as (keeper, process):
            keeper.adopt("id-registry", {"id-model": "policy_model"})
            assert keeper._control.fileno() == -1  # what the owner's death would have closed
            daemon.die("id-model")
            assert eventually(lambda: len(daemon.told) == 1)
            assert json.loads(daemon.told[0])["name"] == "policy_model"
            assert process.is_running()
            assert set(daemon.there) == {"id-registry", "id-model"}
            daemon.die("id-registry")
            # nobody adds to it any more: it is removed, and the keeper ends, without waiting for late pieces
            assert keeper._process.wait(4) == 0
            assert daemon.there == {}

    @pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
    def test_takes_the_session_along_when_it_is_asked_to_end(self, end: signal.Signals) -> None:
        daemon = Daemon()
        with adopting(daemon) as (keeper, _):
            keeper.adopt("id-registry", {"id-model": "policy_model"})
            os.kill(keeper.pid, end)
            assert keeper._process.wait(4) == 0
            assert daemon.there == {}

    def test_a_session_that_is_over_is_not_taken(self) -> None:
        daemon = Daemon()
        routes = daemon.routes()
        routes["POST /containers/id-registry/attach"] = lambda request: request.send_json({"message": "not up"}, 409)
        daemon.routes = lambda: routes  # type: ignore[method-assign]
        with adopting(daemon) as (keeper, process):
            with pytest.raises(NemoGymError, match=r"did not take it over: .*not up"):
                keeper.adopt("id-registry", {})
            assert process.is_running()
            keeper.release()  # the connection to it is still there
            assert keeper._process.returncode == 0

    def test_a_keeper_that_is_gone(self) -> None:
        with adopting(Daemon()) as (keeper, _):
            os.kill(keeper.pid, signal.SIGKILL)
            keeper._process.wait()
            with pytest.raises(NemoGymError, match="did not take it over"):
                keeper.adopt("id-registry", {})

    def test_a_keeper_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeper_module, "_ADOPTION_TIMEOUT_S", 0.2)
        with adopting(Daemon()) as (keeper, _):
            os.kill(keeper.pid, signal.SIGSTOP)
            with pytest.raises(NemoGymError, match="did not take it over: timed out"):
                keeper.adopt("id-registry", {})

    def test_an_owner_that_dies_before_it_hears_of_it(self) -> None:
        """Nobody was told that the session runs, so it does not."""
        daemon = Daemon()
        with adopting(daemon) as (keeper, _):
            message = {"op": "adopt", "registry": "id-registry", "servers": {}}
            keeper._control.sendall(json.dumps(message).encode() + b"\n")
            assert keeper._control.recv(100, socket.MSG_PEEK)  # the answer is there, and stays unread
            keeper._control.close()
            assert keeper._process.wait(4) == 0
            assert daemon.there == {}
