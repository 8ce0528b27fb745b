"""Sessions read back from labels, found, waited for and stopped, on the engine in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from nemo_gym.containers.engine import ContainerState
from nemo_gym.containers.labels import PUBLISHED_HOST, SERVER, Liveness, Owner
from nemo_gym.deployment import status
from nemo_gym.deployment.status import find_session, read_sessions, stop_session, wait_until_over
from nemo_gym.errors import ConfigError, EngineError, EngineUnavailableError, TeardownError
from tests.unit.session_engine import SessionEngine, dead_owner, owner_elsewhere

ONE, TWO, THREE = "aa00000001", "aa00000002", "bb00000003"


@pytest.fixture
def engine() -> SessionEngine:
    return SessionEngine()


class TestRead:
    def test_everything_that_labels_and_engine_tell(self, engine: SessionEngine) -> None:
        engine.add_session(ONE, detached=True, published_host="gpu-box")
        engine.add("somebody-elses")
        engine.kill(f"id-{ONE}-agent", 137, oom_killed=True)
        engine.change(f"id-{ONE}-agent", host_ports=())
        engine.change(f"id-{ONE}-policy_model", host_ports=(), started_at="0001-01-01T00:00:00Z")
        (found,) = read_sessions(engine)
        assert (found.session_id, found.benchmark, found.detached) == (ONE, "tiny", True)
        assert (found.owner, found.liveness) == (Owner.current(), Liveness.ALIVE)
        assert found.registry is not None
        assert found.registry.url == "http://gpu-box:40000"
        assert found.registry.started_at == "2026-11-29T17:00:00.5Z"
        agent, model = found.servers
        assert (agent.name, agent.server_type) == ("agent", "responses_api_agents")
        assert (agent.state, agent.exit_code, agent.oom_killed, agent.url) == ("exited", 137, True, None)
        assert (model.name, model.state, model.host, model.port) == ("policy_model", "running", None, None)
        assert model.is_running
        assert model.started_at == ""
        assert [server.name for server in found.everything] == ["registry", "agent", "policy_model"]

    def test_an_ipv6_address(self, engine: SessionEngine) -> None:
        engine.add_session(ONE, published_host="::1")
        (found,) = read_sessions(engine)
        assert [server.url for server in found.everything][:2] == ["http://[::1]:40000", "http://[::1]:40002"]

    def test_whose_they_are(self, engine: SessionEngine) -> None:
        engine.add_session(THREE, dead_owner())
        engine.add_session(ONE, owner_elsewhere())
        engine.add_session(TWO)
        found = read_sessions(engine)
        assert [(session.session_id, session.liveness) for session in found] == [
            (ONE, Liveness.UNKNOWN),
            (TWO, Liveness.ALIVE),
            (THREE, Liveness.DEAD),
        ]
        assert status.describe_owner(found[0]) == "of pid 77 on far-away (unknown)"

    def test_one_that_ends_at_this_moment(self, engine: SessionEngine) -> None:
        engine.add_session(ONE)
        listed = engine.list_containers("")
        engine.list_containers = lambda label: listed  # type: ignore[method-assign]
        engine.containers.clear()
        (found,) = read_sessions(engine)
        assert (found.session_id, found.registry, found.servers) == (ONE, None, ())
        assert found.liveness is Liveness.ALIVE

    def test_labels_that_tell_less(self, engine: SessionEngine) -> None:
        engine.add("odd", {"nemo-gym.session": ONE}, host_ports=(1234,))
        (found,) = read_sessions(engine)
        assert (found.owner, found.liveness, found.detached) == (None, Liveness.UNKNOWN, False)
        (server,) = found.servers
        assert (server.name, server.url) == ("odd", "http://127.0.0.1:1234")
        assert status.described(found) == f"{ONE}  (no benchmark), its owner is not told by its labels"

    def test_none(self, engine: SessionEngine) -> None:
        assert read_sessions(engine) == []


class TestFind:
    @pytest.mark.parametrize(("wanted", "found"), [(ONE, ONE), ("bb", THREE), ("aa00000002", TWO)])
    def test_by_id_or_how_it_begins(self, engine: SessionEngine, wanted: str, found: str) -> None:
        for session_id in (ONE, TWO, THREE):
            engine.add_session(session_id)
        assert find_session(read_sessions(engine), wanted).session_id == found

    def test_the_only_one(self, engine: SessionEngine) -> None:
        engine.add_session(ONE)
        assert find_session(read_sessions(engine), None).session_id == ONE

    @pytest.mark.parametrize(
        ("wanted", "said", "listed"),
        [
            (None, "There are 3 sessions; say which", [ONE, TWO, THREE]),
            ("aa", "2 sessions begin with 'aa'", [ONE, TWO]),
            ("cc", "There is no session 'cc'", [ONE, TWO, THREE]),
        ],
    )
    def test_those_there_are_are_listed(
        self, engine: SessionEngine, wanted: str | None, said: str, listed: list[str]
    ) -> None:
        for session_id in (ONE, TWO, THREE):
            engine.add_session(session_id)
        with pytest.raises(ConfigError) as refused:
            find_session(read_sessions(engine), wanted)
        assert said in str(refused.value)
        assert [line.split()[0] for line in str(refused.value).splitlines()[1:]] == listed

    def test_there_is_none(self) -> None:
        with pytest.raises(ConfigError, match="gym env start"):
            find_session([], None)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when its stdin does."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as made:
        yield made
        made.kill()


class TestStop:
    def stop(self, engine: SessionEngine, session_id: str = ONE, **options: bool) -> None:
        stop_session(engine, find_session(read_sessions(engine), session_id), **options)

    @pytest.mark.parametrize("owner", [None, dead_owner()], ids=["alive", "dead"])
    def test_removes_it_and_no_other(self, engine: SessionEngine, owner: Owner | None) -> None:
        engine.add_session(ONE, owner)
        engine.add_session(TWO)
        engine.kill(f"id-{ONE}-agent", 1)
        self.stop(engine)
        assert [session.session_id for session in read_sessions(engine)] == [TWO]
        assert list(engine.networks) == [f"net-{TWO}"]
        # the registry is not asked: its end is what others act on, and the dead one cannot be
        assert engine.stopped == [(f"id-{ONE}-policy_model", 5)]

    def test_a_server_that_cannot_be_asked_is_removed_all_the_same(self, engine: SessionEngine) -> None:
        engine.add_session(ONE)
        engine.errors["stop_container"] = [EngineError("no")]
        self.stop(engine)
        assert read_sessions(engine) == []

    def test_one_that_cannot_be_judged_needs_force(self, engine: SessionEngine) -> None:
        engine.add_session(ONE, owner_elsewhere())
        with pytest.raises(ConfigError, match=rf"pid 77 on far-away .* `gym env stop --force {ONE}`"):
            self.stop(engine)
        assert len(engine.containers) == 3
        self.stop(engine, force=True)
        assert engine.containers == {}

    def test_waits_for_the_keeper_of_a_detached_one(
        self, engine: SessionEngine, process: subprocess.Popen[bytes]
    ) -> None:
        engine.add_session(ONE, Owner.of_pid(process.pid), detached=True)

        def end_once_removed() -> None:
            while engine.containers:
                time.sleep(0.001)
            assert process.stdin is not None
            process.stdin.close()

        keeper = threading.Thread(target=end_once_removed)
        keeper.start()
        self.stop(engine)
        keeper.join()
        assert process.wait(5) == 1

    def test_a_keeper_that_stays_is_told(
        self, engine: SessionEngine, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(status, "_KEEPER_PATIENCE_S", 0.1)
        engine.add_session(ONE, Owner.of_pid(process.pid), detached=True)
        with pytest.raises(TeardownError, match=f"kill -9 {process.pid}") as failed:
            self.stop(engine)
        assert failed.value.left == [f"process {process.pid}"]
        assert engine.containers == {}

    def test_nobody_waits_for_the_owner_of_one_in_the_foreground(self, engine: SessionEngine) -> None:
        engine.add_session(ONE)  # this very process
        self.stop(engine)
        assert engine.containers == {}


class TestWaitUntilOver:
    @pytest.fixture(autouse=True)
    def quickly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(status, "_STOPPED_TOGETHER_S", 0.2)

    def while_waiting(self, engine: SessionEngine, happens: str, exit_code: int | None = None, **how: object) -> str:
        """What is said when the registry, as an event tells, ends or is removed with everything else."""

        def happen() -> None:
            while not engine.streams or not engine.calls["inspect_container"]:
                time.sleep(0.001)
            if happens == "removed":
                engine.containers.clear()
            else:
                engine.kill(f"id-{ONE}-registry", exit_code or 0, **how)  # type: ignore[arg-type]
            engine.streams[0].put(f"id-{ONE}-registry", exit_code or 0)

        thread = threading.Thread(target=happen)
        thread.start()
        try:
            return wait_until_over(engine, ONE)
        finally:
            thread.join()
            assert engine.streams[0].closed.is_set()

    def test_the_registry_dies(self, engine: SessionEngine) -> None:
        engine.add_session(ONE)
        said = self.while_waiting(engine, "dies", 3)
        assert said.startswith(f"The registry of session {ONE} has died (exit code 3)")

    def test_the_registry_takes_too_much_memory(self, engine: SessionEngine) -> None:
        engine.add_session(ONE)
        assert "(killed for using too much memory)" in self.while_waiting(engine, "dies", 137, oom_killed=True)

    def test_the_engine_goes_away(self, engine: SessionEngine) -> None:
        """The look at the others fails as well, and is not what is reported."""
        engine.add_session(ONE)
        engine.kill(f"id-{ONE}-registry", 137, error="the engine ended")
        listed = engine.list_containers("")
        looks = iter([listed])

        def look_once(label: str) -> list[ContainerState]:
            try:
                return next(looks)
            except StopIteration:
                raise EngineUnavailableError("no engine answers") from None

        engine.list_containers = look_once  # type: ignore[method-assign]
        assert "has died (the engine ended)" in wait_until_over(engine, ONE)

    def test_the_registry_is_asked_to_end(self, engine: SessionEngine) -> None:
        engine.add_session(ONE)
        assert "was stopped from elsewhere" in self.while_waiting(engine, "dies", 0)

    def test_everything_is_removed(self, engine: SessionEngine) -> None:
        engine.add_session(ONE)
        assert "was stopped from elsewhere" in self.while_waiting(engine, "removed", 137)

    def test_it_was_over_before(self, engine: SessionEngine) -> None:
        assert "was stopped from elsewhere" in wait_until_over(engine, ONE)
        engine.add_session(ONE)
        engine.kill(f"id-{ONE}-registry", 3, error="no space left")
        assert "has died (no space left)" in wait_until_over(engine, ONE)
        listed = engine.list_containers("")
        engine.containers.clear()
        looks = iter([listed])
        engine.list_containers = lambda label: next(looks, [])  # type: ignore[method-assign]
        assert "was stopped from elsewhere" in wait_until_over(engine, ONE)

    def test_a_server_that_dies_does_not_end_it(self, engine: SessionEngine) -> None:
        engine.add_session(ONE)
        engine.kill(f"id-{ONE}-agent", 1)
        waiting = threading.Thread(target=wait_until_over, args=(engine, ONE))
        waiting.start()
        while not engine.streams:
            time.sleep(0.001)
        engine.streams[0].put(f"id-{ONE}-agent", 1)
        waiting.join(timeout=0.3)
        assert waiting.is_alive()
        engine.kill(f"id-{ONE}-registry", 0)
        engine.streams[0].put(f"id-{ONE}-registry", 0)
        waiting.join(timeout=5)
        assert not waiting.is_alive()


def test_labels_are_those_that_a_session_writes(engine: SessionEngine) -> None:
    engine.add_session(ONE)
    labels = engine.containers[f"id-{ONE}-agent"].labels
    assert (labels[SERVER], labels[PUBLISHED_HOST]) == ("agent", "127.0.0.1")
    assert labels["nemo-gym.owner-pid"] == str(os.getpid())
