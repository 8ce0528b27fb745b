"""Logs of several servers as one sequence, on the engine in memory."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from nemo_gym.containers.engine import LogLine
from nemo_gym.deployment.session_logs import ServerLine, choose_servers, open_logs
from nemo_gym.deployment.status import SessionStatus, read_sessions
from nemo_gym.errors import ConfigError, EngineError
from tests.unit.session_engine import SessionEngine

SESSION = "aa00000001"
MODEL, AGENT = f"id-{SESSION}-policy_model", f"id-{SESSION}-agent"


def at(second: int, message: str, **more: Any) -> LogLine:
    """A line as our own servers write it."""
    return LogLine(f"2026-11-29T17:00:{second:02}.000000000Z", json.dumps({"message": message, **more}))


@pytest.fixture
def engine() -> SessionEngine:
    engine = SessionEngine()
    engine.add_session(SESSION)
    engine.written[MODEL] = [at(1, "m1"), at(3, "m3", rollout_id="r1"), at(5, "m5", rollout_id="r2")]
    engine.written[AGENT] = [
        at(2, "a2", rollout_id="r1"),
        LogLine("2026-11-29T17:00:04.000000000Z", "Traceback r1"),
        LogLine("2026-11-29T17:00:05.500000000Z", '{"message": cut'),
        LogLine("2026-11-29T17:00:06.000000000Z", '{"other": "r1"}'),
    ]
    return engine


def session(engine: SessionEngine) -> SessionStatus:
    (found,) = read_sessions(engine)
    return found


def texts(lines: list[ServerLine]) -> list[str]:
    return [line.text if line.record is None else f"{line.server} {line.record['message']}" for line in lines]


def read(engine: SessionEngine, *names: str, **options: Any) -> list[str]:
    with open_logs(engine, choose_servers(session(engine), names), **options) as lines:
        return texts(list(lines))


class TestUpToNow:
    def test_in_the_order_of_their_times(self, engine: SessionEngine) -> None:
        assert read(engine) == [
            "policy_model m1",
            "agent a2",
            "policy_model m3",
            "Traceback r1",
            "policy_model m5",
            '{"message": cut',
            '{"other": "r1"}',
        ]
        assert {log.closed for log in engine.open_logs.values()} == {1}

    def test_of_some_servers(self, engine: SessionEngine) -> None:
        assert read(engine, "policy_model", "registry", "policy_model") == [f"policy_model m{n}" for n in (1, 3, 5)]
        assert set(engine.open_logs) == {MODEL, f"id-{SESSION}-registry"}

    def test_of_one_rollout(self, engine: SessionEngine) -> None:
        assert read(engine, rollout_id="r1") == ["agent a2", "policy_model m3"]
        assert read(engine, rollout_id="r") == []

    def test_of_late(self, engine: SessionEngine) -> None:
        assert read(engine, tail_lines=1) == ["policy_model m5", '{"other": "r1"}']
        assert read(engine, tail_lines=1, rollout_id="r2") == ["policy_model m5"]

    def test_a_server_that_is_gone(self, engine: SessionEngine) -> None:
        servers = choose_servers(session(engine), [])
        del engine.containers[AGENT]
        with open_logs(engine, servers) as lines:
            assert texts(list(lines)) == [f"policy_model m{n}" for n in (1, 3, 5)]

    def test_an_engine_that_refuses_leaves_no_log_open(self, engine: SessionEngine) -> None:
        servers = choose_servers(session(engine), [])
        real, calls = engine.open_log, iter([True, False])

        def refuse_the_second(container_id: str, **options: Any) -> Any:
            if next(calls):
                return real(container_id, **options)
            raise EngineError("no")

        engine.open_log = refuse_the_second  # type: ignore[method-assign]
        with pytest.raises(EngineError), open_logs(engine, servers):
            pass
        assert [log.closed for log in engine.open_logs.values()] == [1]

    def test_unknown_servers_are_refused(self, engine: SessionEngine) -> None:
        with pytest.raises(ConfigError, match="no server 'modle'"):
            choose_servers(session(engine), ["modle"])
        engine.containers.clear()
        with pytest.raises(ConfigError, match="none any more"):
            choose_servers(session(engine), ["agent"])


class TestFollowed:
    def test_lines_come_as_they_are_written_until_every_server_has_ended(self, engine: SessionEngine) -> None:
        servers = choose_servers(session(engine), ["policy_model", "agent"])
        with open_logs(engine, servers, follow=True, rollout_id="r1") as lines:
            assert sorted(texts([next(lines), next(lines)])) == ["agent a2", "policy_model m3"]
            engine.open_logs[AGENT].end()
            engine.open_logs[MODEL].write(at(7, "m7", rollout_id="r2"))
            engine.open_logs[MODEL].write(at(8, "m8", rollout_id="r1"))
            assert texts([next(lines)]) == ["policy_model m8"]
            engine.open_logs[MODEL].end()
            assert list(lines) == []

    def test_whoever_stops_reading_ends_the_threads(self, engine: SessionEngine) -> None:
        before = set(threading.enumerate())
        with open_logs(engine, choose_servers(session(engine), []), follow=True) as lines:
            next(lines)
        assert set(threading.enumerate()) == before
        assert all(log.closed for log in engine.open_logs.values())
