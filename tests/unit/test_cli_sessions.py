"""``gym env status|logs|stop`` on the engine in memory: what is printed where, and the exit codes."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli import env
from nemo_gym.cli.main import main
from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.engine import LogLine
from nemo_gym.deployment import status
from nemo_gym.deployment.running import PhaseTime, RunningServer, RunningSession
from nemo_gym.environment import serving
from tests.unit.session_engine import SessionEngine, dead_owner, owner_elsewhere

ONE, TWO, FAR = "aa00000001", "aa00000002", "ff00000003"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SessionEngine:
    engine = SessionEngine()
    monkeypatch.setattr(DockerEngine, "connect", lambda environ: engine)
    return engine


def as_json(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["env", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


class TestStatus:
    def test_a_table_for_each(self, engine: SessionEngine, capsys: pytest.CaptureFixture[str]) -> None:
        engine.add_session(ONE, detached=True)
        engine.add_session(TWO, dead_owner())
        engine.kill(f"id-{ONE}-agent", 137, oom_killed=True)
        engine.change(f"id-{ONE}-agent", host_ports=())
        engine.change(f"id-{ONE}-policy_model", host_ports=())
        engine.kill(f"id-{TWO}-agent", 3)
        assert main(["env", "status"]) == 0
        first, second = capsys.readouterr().out.split("\n\n")
        lines = first.splitlines()
        assert lines[0].startswith(f"session {ONE}  tiny, detached, kept by pid ")
        assert lines[0].endswith(" (alive)")
        rows = {line.split()[0]: line for line in lines[3:]}
        assert "running" in rows["registry"]
        assert "http://127.0.0.1:40000" in rows["registry"]
        assert "2026-11-29T17:00:00" in rows["registry"]
        assert "exited (137, out of memory)" in rows["agent"]
        assert " internal " in rows["policy_model"]
        assert "(dead)" in second
        assert "exited (3)" in second

    def test_json(self, engine: SessionEngine, capsys: pytest.CaptureFixture[str]) -> None:
        engine.add_session(ONE, owner_elsewhere())
        (found,) = as_json(capsys, "status")
        assert (found["session_id"], found["benchmark"], found["detached"]) == (ONE, "tiny", False)
        assert found["owner"] == {"pid": 77, "host": "far-away", "liveness": "unknown"}
        assert found["registry"] == {
            "name": "registry",
            "server_type": "registry",
            "state": "running",
            "exit_code": None,
            "oom_killed": False,
            "host": "127.0.0.1",
            "port": 40000,
            "url": "http://127.0.0.1:40000",
            "started_at": "2026-11-29T17:00:00.5Z",
            "container_id": f"id-{ONE}-registry",
        }
        assert [server["name"] for server in found["servers"]] == ["agent", "policy_model"]

    def test_less_than_a_session(self, engine: SessionEngine, capsys: pytest.CaptureFixture[str]) -> None:
        engine.networks["n"] = {"nemo-gym.session": ONE}
        (found,) = as_json(capsys, "status")
        assert (found["registry"], found["servers"]) == (None, [])
        assert found["owner"] == {"pid": None, "host": None, "liveness": "unknown"}

    def test_one_of_them(self, engine: SessionEngine, capsys: pytest.CaptureFixture[str]) -> None:
        engine.add_session(ONE)
        engine.add_session(FAR)
        assert [found["session_id"] for found in as_json(capsys, "status", "ff")] == [FAR]
        assert main(["env", "status", "zz"]) == 2
        assert ONE in capsys.readouterr().err

    def test_none(self, engine: SessionEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert as_json(capsys, "status") == []
        assert main(["env", "status"]) == 0
        output = capsys.readouterr()
        assert (output.out, output.err) == ("", "No session is on this engine.\n")

    def test_the_engine_is_let_go(self, engine: SessionEngine) -> None:
        assert main(["env", "status", "zz"]) == 2
        assert engine.calls["close"] == 1


class TestLogs:
    @pytest.fixture(autouse=True)
    def written(self, engine: SessionEngine) -> None:
        engine.add_session(ONE)
        record = {"time": "own", "level": "warning", "server": "policy_model", "message": "asking again"}
        engine.written[f"id-{ONE}-policy_model"] = [
            LogLine("2026-11-29T17:00:01.123456789Z", json.dumps({**record, "rollout_id": "r1", "status": 503})),
            LogLine("2026-11-29T17:00:03.000000000Z", json.dumps({**record, "traceback": "Traceback\nError: x"})),
        ]
        engine.written[f"id-{ONE}-agent"] = [LogLine("2026-11-29T17:00:02.500000000Z", "plain text")]

    def test_for_people(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["env", "logs"]) == 0
        assert capsys.readouterr().out == (
            "17:00:01.123 policy_model warning asking again (rollout_id=r1, status=503)\n"
            "17:00:02.500 agent plain text\n"
            "17:00:03.000 policy_model warning asking again\n"
            "Traceback\nError: x\n"
        )

    def test_for_programs(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["env", "logs", ONE, "--json"]) == 0
        first, second, _ = map(json.loads, capsys.readouterr().out.splitlines())
        assert (first["time"], first["server"], first["status"]) == ("own", "policy_model", 503)
        assert second == {"time": "2026-11-29T17:00:02.500000000Z", "message": "plain text", "server": "agent"}

    def test_some_of_them(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["env", "logs", "--server", "policy_model", "--tail", "1"]) == 0
        assert capsys.readouterr().out.startswith("17:00:03.000")
        assert main(["env", "logs", "--rollout-id", "r1"]) == 0
        assert capsys.readouterr().out.count("\n") == 1
        assert main(["env", "logs", "--server", "modle"]) == 2
        assert "policy_model" in capsys.readouterr().err
        assert main(["env", "logs", "--tail", "0"]) == 2

    def test_followed_until_interrupted(
        self, engine: SessionEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown: list[str] = []

        def emit(text: str) -> None:
            shown.append(text)
            if len(shown) == 2:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr("nemo_gym.cli.sessions.emit", emit)
        assert main(["env", "logs", "--server", "policy_model", "-f"]) == 130
        assert len(shown) == 2
        assert engine.open_logs[f"id-{ONE}-policy_model"].closed


class TestStop:
    def test_one(self, engine: SessionEngine, capsys: pytest.CaptureFixture[str]) -> None:
        engine.add_session(ONE)
        engine.add_session(TWO)
        assert main(["env", "stop"]) == 2
        assert "There are 2 sessions" in capsys.readouterr().err
        assert main(["env", "stop", ONE]) == 0
        assert capsys.readouterr().out == f"stopped {ONE}\n"
        assert as_json(capsys, "stop") == {"stopped": [TWO], "left": {}}
        assert engine.containers == {}
        assert main(["env", "stop"]) == 2

    def test_one_of_elsewhere(self, engine: SessionEngine, capsys: pytest.CaptureFixture[str]) -> None:
        engine.add_session(FAR, owner_elsewhere())
        assert main(["env", "stop"]) == 2
        assert f"gym env stop --force {FAR}" in capsys.readouterr().err
        assert engine.containers
        assert main(["env", "stop", "--force"]) == 0
        assert not engine.containers

    def test_all(self, engine: SessionEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert as_json(capsys, "stop", "--all") == {"stopped": [], "left": {}}
        assert main(["env", "stop", "--all"]) == 0
        assert "No session" in capsys.readouterr().err
        for session_id, owner in ((ONE, None), (TWO, dead_owner()), (FAR, owner_elsewhere())):
            engine.add_session(session_id, owner)
        said = as_json(capsys, "stop", "--all", code=1)
        assert said["stopped"] == [ONE, TWO]
        assert list(said["left"]) == [FAR]
        assert main(["env", "stop", "--all", "--force"]) == 0
        assert not engine.containers
        assert main(["env", "stop", "--all", ONE]) == 2


class TestStart:
    SESSION = RunningSession(
        session_id=ONE,
        registry_server=BaseServerConfig(host="127.0.0.1", port=11000),
        servers=(
            RunningServer("agent", "responses_api_agents", "simple_agent", "c1", "127.0.0.1", 40001),
            RunningServer("tools", "resources_servers", "shell", "c2", None, None),
        ),
        timeline=(
            PhaseTime("images", "", 0.0, 0.25),
            PhaseTime("create", "agent", 0.5, 0.75),
            PhaseTime("servers", "", 0.5, 2.0),
        ),
    )

    @pytest.fixture(autouse=True)
    def detaches(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        asked: dict[str, Any] = {}

        def serve_detached(paths: list[Path], overrides: dict[str, Any], **options: Any) -> RunningSession:
            asked.update(options, overrides=overrides)
            return self.SESSION

        monkeypatch.setattr(serving, "serve_detached", serve_detached)
        return asked

    def start(self, *options: str) -> int:
        model = ["--model", "m", "--model-url", "http://127.0.0.1:9/v1", "--model-api-key", "none"]
        return main(["env", "start", "--benchmark", "truthfulqa_mc1", *model, "--detach", *options])

    def test_detached(self, detaches: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        assert self.start("--registry-port", "12000") == 0
        output = capsys.readouterr()
        assert output.out.startswith(f"session: {ONE}\nregistry: http://127.0.0.1:11000\n")
        rows = [line.split() for line in output.out.splitlines()[4:]]
        assert [row[-1] for row in rows] == ["http://127.0.0.1:40001", "internal"]
        assert f"`gym env stop {ONE}`" in output.err
        assert (detaches["registry_port"], detaches["default_registry_port"]) == (12000, 11000)

    def test_an_ipv6_address(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        on_ipv6 = dataclasses.replace(self.SESSION, registry_server=BaseServerConfig(host="::1", port=11000))
        monkeypatch.setattr(serving, "serve_detached", lambda *_, **__: on_ipv6)
        assert self.start() == 0
        assert capsys.readouterr().out.startswith(f"session: {ONE}\nregistry: http://[::1]:11000\n")

    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.start("--json") == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["session_id"] == ONE
        assert [(server["name"], server["host"], server["port"]) for server in shown["servers"]] == [
            ("agent", "127.0.0.1", 40001),
            ("tools", None, None),
        ]

    def test_the_timeline(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.start("-v") == 0
        said = capsys.readouterr().err
        assert env.format_timeline(self.SESSION.timeline) in said
        assert env.format_timeline(self.SESSION.timeline).splitlines() == [
            "phase    server  from s  took s",
            "-------  ------  ------  ------",
            "images            0.000   0.250",
            "servers           0.500   1.500",
            "create   agent    0.500   0.250",
        ]

    def test_the_end_of_a_session_is_waited_for_on_this_engine(
        self, engine: SessionEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(status, "wait_until_over", lambda found, session_id: f"{found is engine} {session_id}")
        assert env.wait_until_over(self.SESSION) == f"True {ONE}"
        assert engine.calls["close"] == 1
