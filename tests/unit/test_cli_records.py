"""``gym env records`` on the engine in memory: what is printed where, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.cli.main import main
from nemo_gym.cli.records import said_by
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.rollouts.records import parse_record
from tests.unit.fake_gym import FakeGym
from tests.unit.session_engine import SessionEngine
from tests.unit.test_cli_eval_run import in_thread
from tests.unit.test_rollouts_records import LISTED, RECORD, error, gathered

ONE = "aa00000001"
MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Answer:\n B"}]}
RECORDS: list[dict[str, Any]] = [
    {**RECORD, "response": {"output": [MESSAGE]}, "endpoint_failures": []},
    {
        **RECORD, "time": "2026-11-29T10:00:01.500000+00:00", "server": "agent", "kind": "tool_call", "path": "/add",
        "duration_s": 0.0123, "usage": None, "response": {"count": 1}, "endpoint_failures": [],
    },
]  # fmt: skip


@pytest.fixture
def gym() -> Iterator[FakeGym]:
    answers = {"r1": gathered(*RECORDS, agent="it has died"), "": (200, LISTED)}
    fake = FakeGym(records_of=lambda i: answers.get(i) or error("no_records", "nothing is known of it"), token="t0ken")
    with in_thread(fake):
        yield fake


@pytest.fixture(autouse=True)
def engine(gym: FakeGym, monkeypatch: pytest.MonkeyPatch) -> SessionEngine:
    engine = SessionEngine()
    engine.add_session(ONE, first_port=gym.port)
    monkeypatch.setattr(DockerEngine, "connect", lambda environ: engine)
    monkeypatch.setenv("NEMO_GYM_TOKEN", "t0ken")
    return engine


def test_a_table_of_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "records", "--rollout-id", "r1"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "time (UTC)    server        what            status     ms  tokens  said",
        "------------  ------------  --------------  ------  -----  ------  ---------",
        "10:00:00.000  policy_model  model_call         200  500.0  3+4     Answer: B",
        "10:00:01.500  agent         tool_call /add     200   12.3",
    ]
    assert "No records of server agent: it has died." in output.err


def test_json_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "records", "aa", "--rollout-id", "r1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == [{**record, "reward": None} for record in RECORDS]


def test_one_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "records", "--rollout-id", "r1", "--server", "policy_model", "--json"]) == 0
    output = capsys.readouterr()
    assert [record["server"] for record in json.loads(output.out)] == ["policy_model"]
    assert output.err == ""
    assert main(["env", "records", "--rollout-id", "r1", "--server", "nobody"]) == 2
    assert "has no server 'nobody'" in capsys.readouterr().err


def test_without_an_id_the_rollouts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "records"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["r1", "2026-11-29T10:00:00"]
    assert main(["env", "records", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == LISTED["rollouts"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rollout-id", "r9"], "nothing is known of it"),
        (["--rollout-id", "../x"], "A rollout id must start with"),
        (["bb"], "There is no session 'bb'"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "records", *words]) == 2
    output = capsys.readouterr()
    assert said in output.err
    assert output.out == ""


def test_a_session_without_its_registry(engine: SessionEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.kill(f"id-{ONE}-registry", 1)
    engine.change(f"id-{ONE}-registry", host_ports=())
    assert main(["env", "records"]) == 2
    assert f"`gym env status {ONE}` shows what is left" in capsys.readouterr().err


def test_the_token_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NEMO_GYM_TOKEN")
    assert main(["env", "records"]) == 2
    assert "it asks for a token" in capsys.readouterr().err


CHAT = {
    "choices": [
        {
            "message": {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}],
            }
        }
    ]
}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"response": {"output": [MESSAGE]}, "endpoint_failures": ["busy"]}, "(asked 2 times) Answer:\n B"),
        ({"response": CHAT, "endpoint_failures": []}, "Let me see. add({})"),
        ({"response": {"reward": 0.5}}, "reward 0.5"),
        ({"response": {"head": "…", "tail": "…"}, "reward": 1.0}, "reward 1.0"),
        ({"response": {"head": "begins so", "tail": "x"}, "endpoint_failures": []}, "begins so"),
        ({"status": 422, "response": {"error": {"message": "by: must be a number"}}}, "by: must be a number"),
        ({"status": 500, "response": {"error": "internal"}}, "internal"),
        ({"status": 500, "response": "it broke"}, "it broke"),
        ({"status": 502, "response": None}, ""),
        ({"status": None}, "the caller left before the answer"),
    ],
)
def test_what_an_answer_comes_down_to(fields: dict[str, Any], said: str) -> None:
    assert said_by(parse_record({**RECORD, **fields})) == said
