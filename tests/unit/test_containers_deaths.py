"""Deaths are noticed from the event stream, and when the stream was away, by looking."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nemo_gym.containers import deaths
from nemo_gym.containers.deaths import Death, DeathWatch, death_line
from nemo_gym.errors import EngineError, EngineUnavailableError
from tests.unit.fake_engine import FakeEngine, FakeEvents

LABEL = "nemo-gym.session=s"


@contextmanager
def watching(engine: FakeEngine) -> Iterator[DeathWatch]:
    watch = DeathWatch(engine, LABEL)
    try:
        yield watch
    finally:
        watch.close()
        assert not any(thread.name == "nemo-gym-deaths" for thread in threading.enumerate())


def next_stream(engine: FakeEngine, number: int) -> FakeEvents:
    """The ``number``-th subscription, once it is there."""
    for _ in range(500):
        if len(engine.streams) > number:
            return engine.streams[number]
        threading.Event().wait(0.01)
    raise AssertionError("nobody subscribed again")


@pytest.mark.parametrize(
    ("death", "log_tail", "told"),
    [
        (Death("id", 3, False, ""), "", {"exit_code": 3, "oom_killed": False, "detail": "its process ended"}),
        (
            Death("id", 137, True, ""),
            "",
            {"exit_code": 137, "oom_killed": True, "detail": "killed for using too much memory"},
        ),
        (
            Death("id", None, False, "the container was removed"),
            "one\nzwei: ü",
            {
                "exit_code": None,
                "oom_killed": False,
                "detail": "the container was removed; the end of its log: one\nzwei: ü",
            },
        ),
    ],
)
def test_what_the_registry_is_told(death: Death, log_tail: str, told: dict[str, object]) -> None:
    line = death_line("agent", death, log_tail)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"type": "server_died", "name": "agent", **told}


def test_subscribed_before_anything_is_started() -> None:
    engine = FakeEngine()
    with watching(engine):
        assert engine.calls["deaths"] == 1


def test_a_death() -> None:
    engine = FakeEngine()
    one, two = engine.add("one"), engine.add("two")
    with watching(engine) as watch:
        event, other = watch.watch(one), watch.watch(two)
        assert watch.watch(one) is event
        assert not event.is_set()
        assert watch.find_death(one) is None
        engine.kill(one, 137, oom_killed=True, error="oom")
        engine.streams[0].put(one, 137)
        assert event.wait(5)
        assert watch.find_death(one) == Death(one, 137, True, "oom")
        assert not other.is_set()


def test_a_death_before_anybody_waits() -> None:
    engine = FakeEngine()
    one = engine.add("one")
    engine.kill(one, 1)
    with watching(engine) as watch:
        told: queue.Queue[Death] = queue.Queue()
        watch.notify(told.put)
        engine.streams[0].put(one, 1)
        assert told.get(timeout=5).exit_code == 1
        assert watch.watch(one).is_set()


class TestWhatTheEngineCannotSay:
    """The event has the exit code; that is kept when looking closer fails."""

    def told(self, engine: FakeEngine, container_id: str) -> Death | None:
        with watching(engine) as watch:
            event = watch.watch(container_id)
            engine.streams[0].put(container_id, 3)
            assert event.wait(5)
            return watch.find_death(container_id)

    def test_removed_meanwhile(self) -> None:
        assert self.told(FakeEngine(), "gone") == Death("gone", 3, False, "the container was removed")

    def test_not_yet_recorded_as_exited(self) -> None:
        engine = FakeEngine()
        one = engine.add("one")
        assert self.told(engine, one) == Death(one, 3, False, "")

    @pytest.mark.parametrize("error", [EngineError("busy"), EngineUnavailableError("busy")])
    def test_an_engine_that_refuses(self, error: Exception) -> None:
        engine = FakeEngine(errors={"inspect_container": [error]})
        one = engine.add("one")
        assert self.told(engine, one) == Death(one, 3, False, "busy")


class TestNotify:
    def test_every_death_once(self) -> None:
        engine = FakeEngine()
        names = [engine.add(f"c{number}") for number in range(20)]
        told: queue.Queue[Death] = queue.Queue()
        with watching(engine) as watch:
            for name in names:
                engine.kill(name, 0)
                watch.watch(name)
            for name in names[:10]:
                engine.streams[0].put(name, 0)
            assert watch.watch(names[9]).wait(5)
            watch.notify(told.put)
            for name in names:  # the engine may tell of one twice
                engine.streams[0].put(name, 0)
            assert sorted(told.get(timeout=5).container_id for _ in names) == sorted(names)
        assert told.empty()

    def test_not_after_the_end(self) -> None:
        engine = FakeEngine()
        one = engine.add("one")
        told: list[Death] = []
        with watching(engine) as watch:
            watch.notify(told.append)
            watch.close()
            engine.streams[0].put(one, 0)
        assert told == []


def test_giving_up_wakes_everybody() -> None:
    engine = FakeEngine()
    with watching(engine) as watch:
        events = [watch.watch("one"), watch.watch("two")]
        watch.give_up()
        assert [event.is_set() for event in events] == [True, True]
        assert watch.find_death("one") is None


class TestBrokenStream:
    def test_subscribes_again_and_looks_what_it_missed(self) -> None:
        engine = FakeEngine()
        lives, dies, removed = (engine.add(name) for name in ("lives", "dies", "removed"))
        with watching(engine) as watch:
            events = {name: watch.watch(name) for name in (lives, dies, removed)}
            engine.kill(dies, 1)
            engine.remove_container(removed)
            engine.streams[0].end()
            assert events[dies].wait(5)
            assert events[removed].wait(5)
            assert watch.find_death(dies) == Death(dies, 1, False, "")
            assert watch.find_death(removed) == Death(removed, None, False, "the container was removed")
            assert not events[lives].is_set()

            engine.kill(lives, 2)
            next_stream(engine, 1).put(lives, 2)
            assert events[lives].wait(5)

    def test_an_engine_that_comes_back(self) -> None:
        engine = FakeEngine()
        one = engine.add("one")
        with watching(engine) as watch:
            event = watch.watch(one)
            engine.errors["deaths"] = [EngineUnavailableError("restarting"), EngineError("starting")]
            engine.streams[0].end()
            stream = next_stream(engine, 1)
            assert not event.is_set()
            engine.kill(one, 0)
            stream.put(one, 0)
            assert event.wait(5)

    def test_a_look_that_fails_is_no_death(self) -> None:
        engine = FakeEngine()
        one, two = engine.add("one"), engine.add("two")
        with watching(engine) as watch:
            first, second = watch.watch(one), watch.watch(two)
            engine.errors["inspect_container"] = [EngineUnavailableError("busy")]
            engine.kill(two, 1)
            engine.streams[0].end()
            assert second.wait(5)
            assert not first.is_set()

    def test_an_engine_that_stays_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deaths, "_RECONNECT_S", 0.1)
        engine = FakeEngine()
        one = engine.add("one")
        with watching(engine) as watch:
            event = watch.watch(one)
            engine.errors["deaths"] = [EngineUnavailableError("gone")] * 100
            engine.streams[0].end()
            assert event.wait(5)
            assert watch.find_death(one) == Death(one, None, False, "the container engine stopped answering")


class TestClose:
    def close_in_time(self, watch: DeathWatch) -> None:
        closed = threading.Thread(target=watch.close)
        closed.start()
        closed.join(3)
        assert not closed.is_alive()

    def test_twice(self) -> None:
        engine = FakeEngine()
        with watching(engine) as watch:
            self.close_in_time(watch)
            assert engine.streams[0].closed.is_set()

    def test_while_the_engine_is_away(self) -> None:
        engine = FakeEngine()
        refused = threading.Event()
        with watching(engine) as watch:
            engine.deaths = refusing(refused)  # type: ignore[method-assign]
            engine.streams[0].end()
            assert refused.wait(5)
            self.close_in_time(watch)

    def test_while_it_subscribes_again(self) -> None:
        """The stream that comes too late is closed by whoever opened it."""
        engine = FakeEngine()
        asked, answer = threading.Event(), threading.Event()
        subscribe = engine.deaths

        def slow(label: str) -> FakeEvents:
            asked.set()
            assert answer.wait(5)
            return subscribe(label)

        watch = DeathWatch(engine, LABEL)
        engine.deaths = slow  # type: ignore[method-assign]
        engine.streams[0].end()
        assert asked.wait(5)
        closing = threading.Thread(target=watch.close)
        closing.start()
        assert engine.streams[0].closed.wait(5)
        answer.set()
        closing.join(5)
        assert not closing.is_alive()
        assert engine.streams[1].closed.is_set()


def refusing(refused: threading.Event) -> Callable[[str], FakeEvents]:
    def deaths_of(label: str) -> FakeEvents:
        refused.set()
        raise EngineUnavailableError("away")

    return deaths_of
