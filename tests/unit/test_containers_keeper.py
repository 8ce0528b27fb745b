"""The keeper as a real process: let go, carrying connections, and left alone with a session."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nemo_gym.containers import keeper as keeper_module
from nemo_gym.containers.keeper import Keeper
from nemo_gym.containers.relay import Target, bind_listener
from nemo_gym.errors import ConfigError, NemoGymError
from tests.unit.fake_daemon import Request, fake_daemon

SESSION = "0a1b2c3d4e"
NO_ENGINE = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    """A keeper that reaches no engine; killed after the test if it still runs."""
    made = Keeper.start(SESSION, NO_ENGINE)
    process = psutil.Process(made.pid)
    try:
        yield made
    finally:
        made.abandon()
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        made._process.wait()


def eventually(holds: Callable[[], bool], timeout_s: float = 8.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


@contextlib.contextmanager
def echo_server() -> Iterator[Target]:
    """Sends back what it gets, one connection after the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        while data := connection.recv(65536):
                            connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Target("127.0.0.1", server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def ask(port: int, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


class TestRelease:
    def test_ends_at_once_and_well(self, keeper: Keeper) -> None:
        keeper.release()
        assert keeper._process.returncode == 0

    def test_lives_apart_from_its_owner(self, keeper: Keeper) -> None:
        """Ctrl-C in the owner's terminal does not reach it, and it keeps no folder busy."""
        assert eventually(lambda: psutil.Process(keeper.pid).cmdline()[-2:] == [SESSION, str(os.getpid())])
        assert os.getsid(keeper.pid) == keeper.pid != os.getsid(0)
        assert psutil.Process(keeper.pid).cwd() == "/"
        keeper.release()

    def test_has_room_for_many_connections(self, keeper: Keeper) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        assert eventually(lambda: resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE)[0] == wanted)
        keeper.release()

    def test_one_that_was_killed(self, keeper: Keeper) -> None:
        os.kill(keeper.pid, signal.SIGKILL)
        keeper._process.wait()
        keeper.release()

    def test_one_that_hangs(self, keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeper_module, "_STOP_TIMEOUT_S", 0.2)
        os.kill(keeper.pid, signal.SIGSTOP)
        keeper.release()
        assert keeper._process.returncode == -signal.SIGKILL

    def test_never_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(FileNotFoundError):
            Keeper.start(SESSION)


class TestPythonPath:
    def test_absolute_as_it_runs_in_another_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        root = str(Path(keeper_module.__file__).parents[2])
        path = keeper_module._python_path({"PYTHONPATH": os.pathsep.join(["lib", "", "/abs"])})
        assert path.split(os.pathsep) == [root, str(tmp_path / "lib"), "/abs"]
        assert keeper_module._python_path({}) == root


class TestCarry:
    def test_connections_reach_their_targets(self, keeper: Keeper) -> None:
        with echo_server() as one, echo_server() as two:
            listeners = [(bind_listener("127.0.0.1", target), target) for target in (one, two)]
            ports = [listener.getsockname()[1] for listener, _ in listeners]
            keeper.carry(listeners, "127.0.0.0/8")
            assert [listener.fileno() for listener, _ in listeners] == [-1, -1]
            assert ask(ports[0], b"hello") == b"hello"
            assert ask(ports[1], b"x" * 1_000_000) == b"x" * 1_000_000
            keeper.release()
            with pytest.raises(ConnectionRefusedError):
                ask(ports[0], b"hello")

    def test_only_for_the_sessions_own_network(self, keeper: Keeper) -> None:
        with echo_server() as target:
            listener = bind_listener("127.0.0.1", target)
            port = listener.getsockname()[1]
            keeper.carry([(listener, target)], "10.0.0.0/8")
            with contextlib.suppress(ConnectionError):
                assert ask(port, b"hello") == b""

    def test_nothing_to_carry(self, keeper: Keeper) -> None:
        keeper.carry([], "127.0.0.0/8")
        keeper.release()
        assert keeper._process.returncode == 0

    def test_more_than_one_message_holds(self, keeper: Keeper) -> None:
        listeners = [(bind_listener("127.0.0.1", target), target) for target in [Target("127.0.0.1", 0)] * 65]
        with pytest.raises(ConfigError, match="names 65 different endpoints"):
            keeper.carry(listeners, "127.0.0.0/8")
        assert {listener.fileno() for listener, _ in listeners} == {-1}

    def test_a_keeper_that_is_gone(self, keeper: Keeper) -> None:
        os.kill(keeper.pid, signal.SIGKILL)
        keeper._process.wait()
        listener = bind_listener("127.0.0.1", Target("127.0.0.1", 0))
        with pytest.raises(NemoGymError, match="has ended before its session did"):
            keeper.carry([(listener, Target("127.0.0.1", 1))], "127.0.0.0/8")
        assert listener.fileno() == -1


class TestLeftAlone:
    """Whatever ends the owner, the keeper goes for the engine, and goes on trying."""

    @contextlib.contextmanager
    def engine_that_refuses(self) -> Iterator[tuple[dict[str, str], list[str]]]:
        with fake_daemon({}) as daemon:
            daemon.routes["GET /version"] = lambda request: request.send_json({"message": "starting"}, 500)
            yield {**os.environ, "DOCKER_HOST": daemon.url}, daemon.seen

    def ends_on(self, pid: int, seen: list[str], end: signal.Signals) -> None:
        assert eventually(lambda: len(seen) >= 2)
        os.kill(pid, end)

    def test_the_owner_lets_go_of_the_connection(self) -> None:
        with self.engine_that_refuses() as (environ, seen):
            keeper = Keeper.start(SESSION, environ)
            keeper.abandon()
            self.ends_on(keeper.pid, seen, signal.SIGTERM)
            assert keeper._process.wait(5) == -signal.SIGTERM

    def test_asked_to_end_itself(self) -> None:
        """The machine goes down: the session goes with it."""
        with self.engine_that_refuses() as (environ, seen), echo_server() as target:
            keeper = Keeper.start(SESSION, environ)
            listener = bind_listener("127.0.0.1", target)
            port = listener.getsockname()[1]
            keeper.carry([(listener, target)], "127.0.0.0/8")
            assert ask(port, b"up") == b"up"
            os.kill(keeper.pid, signal.SIGTERM)
            self.ends_on(keeper.pid, seen, signal.SIGKILL)
            keeper.abandon()
            keeper._process.wait(5)

    def test_the_owner_is_killed_and_its_child_keeps_the_connection(self) -> None:
        """Only the owner's own end counts: a forked child has a copy of everything the owner held."""
        with self.engine_that_refuses() as (environ, seen):
            owner = subprocess.Popen(
                [sys.executable, "-c", OWNER], env=environ, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
            )
            with owner:
                assert owner.stdout is not None
                keeper_pid, child_pid = map(int, owner.stdout.readline().split())
                owner.kill()
                try:
                    self.ends_on(keeper_pid, seen, signal.SIGKILL)
                finally:
                    os.kill(child_pid, signal.SIGKILL)

    def test_removed_in_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An engine that is away comes back; what a killed owner had under way appears late."""
        there = {"c1": True, "n1": True}
        answers = iter([500, 500])
        looks = 0

        def version(request: Request) -> None:
            request.send_json({"ApiVersion": "1.41", "message": "away"}, next(answers, 200))

        def containers(request: Request) -> None:
            nonlocal looks
            looks += 1
            if looks == 3:
                there["late"] = True
            request.send_json([{"Id": name} for name in ("c1", "late") if there.get(name)])

        def remove(request: Request) -> None:
            name = request.path.split("?")[0].rsplit("/", 1)[-1]
            there.pop(name, None)
            request.send_json({}, 204)

        routes = {
            "GET /version": version,
            "GET /containers/json": containers,
            "GET /networks": lambda request: request.send_json([{"Id": "n1"}] if "n1" in there else []),
            "GET /volumes": lambda request: request.send_json({"Volumes": []}),
            **{f"DELETE /{kind}": remove for kind in ("containers/c1", "containers/late", "networks/n1")},
        }
        with fake_daemon(routes) as daemon:
            monkeypatch.setenv("DOCKER_HOST", daemon.url)
            keeper_module._remove(SESSION, settle_s=0.2)
        assert there == {}
        assert looks > 3


OWNER = """
import os, subprocess, sys
from nemo_gym.containers.keeper import Keeper
keeper = Keeper.start("0a1b2c3d4e")
os.set_inheritable(keeper._control.fileno(), True)
child = subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
print(keeper.pid, child.pid, flush=True)
child.wait()
"""


def test_what_it_costs() -> None:
    """A keeper that is let go never loads the SDK."""
    code = "import sys, nemo_gym.containers.keeper; print([m for m in ('docker', 'requests') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_the_owner_is_told_by_pid(keeper: Keeper) -> None:
    assert eventually(lambda: bool(re.search(rf" {os.getpid()}$", " ".join(psutil.Process(keeper.pid).cmdline()))))
