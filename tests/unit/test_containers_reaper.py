"""A session is removed whole and proven gone; sessions of others are touched only when their owner is proven dead."""

from __future__ import annotations

import dataclasses
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nemo_gym.containers import reaper
from nemo_gym.containers.engine import Leftovers
from nemo_gym.containers.labels import SESSION, Owner, session_labels
from nemo_gym.containers.reaper import remove_session, sweep
from nemo_gym.errors import EngineError, EngineUnavailableError, TeardownError
from tests.unit.fake_engine import FakeEngine

ME = Owner.current()
DEAD = dataclasses.replace(ME, start="before anything else")
ELSEWHERE = dataclasses.replace(ME, host="elsewhere", boot="another")


def add_session(engine: FakeEngine, session_id: str, owner: Owner | None = ME, containers: int = 2) -> None:
    labels = session_labels(session_id, owner) if owner is not None else {SESSION: session_id}
    for number in range(containers):
        engine.add(f"{session_id}-{number}", labels)
    engine.networks[f"net-{session_id}"] = labels
    engine.volumes[f"vol-{session_id}"] = labels


def left(engine: FakeEngine) -> set[str]:
    everything = engine.find_leftovers(SESSION)
    return {*everything.containers, *everything.networks, *everything.volumes}


class TestRemoveSession:
    def test_everything_of_it_and_nothing_else(self) -> None:
        engine = FakeEngine()
        add_session(engine, "one", containers=20)
        add_session(engine, "two")
        engine.add("foreign", {"other": "label"})
        remove_session(engine, "one")
        assert left(engine) == {"id-two-0", "id-two-1", "net-two", "vol-two"}
        assert "id-foreign" in engine.containers

    def test_twice_and_of_nothing(self) -> None:
        engine = FakeEngine()
        add_session(engine, "one")
        remove_session(engine, "one")
        remove_session(engine, "one")
        remove_session(FakeEngine(), "never")

    def test_two_looks_have_to_find_nothing(self) -> None:
        engine = FakeEngine()
        remove_session(engine, "one")
        assert engine.calls["find_leftovers"] == 2

    def test_a_piece_that_a_call_under_way_creates_late(self) -> None:
        class Late(FakeEngine):
            def find_leftovers(self, label: str) -> Leftovers:
                if self.calls["find_leftovers"] == 2:
                    add_session(self, "one")
                return super().find_leftovers(label)

        engine = Late()
        add_session(engine, "one")
        remove_session(engine, "one")
        assert left(engine) == set()
        assert engine.calls["find_leftovers"] >= 5

    def test_looks_apart(self) -> None:
        """What a killed owner had under way may take its time."""
        engine = FakeEngine()
        add_session(engine, "one")
        late = threading.Timer(0.05, add_session, (engine, "one"))
        late.start()
        remove_session(engine, "one", settle_s=0.25)
        late.join()
        assert left(engine) == set()

    def test_one_that_fails_is_tried_again(self) -> None:
        engine = FakeEngine(
            errors={
                "remove_container": [EngineError("device busy")] * 2,
                "remove_network": [EngineError("has active endpoints", status=403)] * 3,
                "remove_volume": [EngineError("in use")],
            }
        )
        add_session(engine, "one")
        remove_session(engine, "one")
        assert left(engine) == set()

    def test_what_stays_is_named(self) -> None:
        class Stuck(FakeEngine):
            def remove_network(self, network_id: str) -> None:
                raise EngineError("has active endpoints", status=403)

        engine = Stuck()
        add_session(engine, "one")
        with pytest.raises(TeardownError) as caught:
            remove_session(engine, "one", deadline_s=0.05)
        assert caught.value.left == ["network net-one"]
        assert str(caught.value).startswith(
            "1 pieces of session one are still on the engine after 0 s: network net-one."
        )
        assert left(engine) == {"net-one"}

    def test_an_engine_that_went_away(self) -> None:
        engine = FakeEngine(errors={"find_leftovers": [EngineUnavailableError("gone")]})
        add_session(engine, "one")
        with pytest.raises(EngineUnavailableError):
            remove_session(engine, "one")

    def test_a_removal_that_is_lost_is_done_again(self) -> None:
        engine = FakeEngine(errors={"remove_container": [EngineUnavailableError("timed out")]})
        add_session(engine, "one")
        remove_session(engine, "one")
        assert left(engine) == set()

    def test_several_at_once(self) -> None:
        """The owner, its keeper and another process's sweep may meet."""
        engine = FakeEngine()
        add_session(engine, "one", containers=10)
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(remove_session, engine, "one") for _ in range(4)]:
                done.result(10)
        assert left(engine) == set()

    def test_with_time_to_end_well(self) -> None:
        engine = FakeEngine()
        add_session(engine, "one")
        remove_session(engine, "one", grace_s=3)
        assert sorted(engine.stopped) == [("id-one-0", 3), ("id-one-1", 3)]
        assert left(engine) == set()
        remove_session(engine, "one")
        assert len(engine.stopped) == 2


class TestSweep:
    def test_dead_owners_only(self) -> None:
        engine = FakeEngine()
        for session_id, owner in {"mine": ME, "dead": DEAD, "far": ELSEWHERE, "odd": None}.items():
            add_session(engine, session_id, owner)
        engine.add("foreign", {"other": "label"})
        report = sweep(engine)
        assert report.removed == ["dead"]
        assert sorted(report.unjudged) == ["far", "odd"]
        assert {name.split("-")[1] for name in left(engine)} == {"mine", "far", "odd"}
        assert "id-foreign" in engine.containers

    def test_a_network_alone(self) -> None:
        engine = FakeEngine()
        add_session(engine, "dead", DEAD, containers=0)
        assert sweep(engine).removed == ["dead"]
        assert left(engine) == set()

    def test_nothing(self) -> None:
        report = sweep(FakeEngine())
        assert (report.removed, report.unjudged) == ([], [])

    def test_one_that_cannot_be_removed_does_not_stop_the_start(self, caplog: pytest.LogCaptureFixture) -> None:
        engine = FakeEngine(errors={"find_leftovers": [EngineError("busy")]})
        add_session(engine, "dead1", DEAD)
        add_session(engine, "dead2", DEAD)
        with caplog.at_level(logging.WARNING):
            report = sweep(engine)
        assert report.removed == ["dead2"]
        assert "session dead1 could not be removed: busy" in caplog.text

    def test_a_network_that_the_engine_no_longer_removes_holds_nobody_up_for_long(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reaper, "SWEEP_DEADLINE_S", 0.05)
        refusal = EngineError("network net-dead has active endpoints")
        engine = FakeEngine(errors={"remove_network": [refusal] * 1000})
        add_session(engine, "dead", DEAD)
        with caplog.at_level(logging.WARNING):
            assert sweep(engine).removed == []
        assert "session dead could not be removed" in caplog.text
        assert "goes when the engine is restarted" in caplog.text
        assert left(engine) == {"net-dead"}

    def test_an_engine_that_does_not_answer(self) -> None:
        engine = FakeEngine(errors={"list_containers": [EngineUnavailableError("gone")]})
        with pytest.raises(EngineUnavailableError):
            sweep(engine)
