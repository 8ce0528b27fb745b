"""The server: what it answers and refuses, and that no program scores, stays or harms it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from images.resources_servers.code_execution import app
from images.resources_servers.code_execution.app import CodeExecution
from images.resources_servers.code_execution.sandbox import Limits
from nemo_gym.errors import ConfigError
from nemo_gym.servers.testing import Running, bootstrap_for, serving, start_worker_server
from tests.support.hostile_programs import HOSTILE

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Little enough to wait for: nothing that these programs should do takes half a second.
SETTINGS = {"program_cpu_s": 1, "program_deadline_s": 4, "program_memory_mib": 256, "workers": 8}

# They compute until they are ended, as others do that are tried here.
COSTLY = {
    "endless loop at the top level",
    "endless computation in C",
    "takes the pipe's writing away",
    "a value without end",
    "much output",
}

TEST = """
def check(candidate):
    for x in (0, 1, 2.5, -3):
        assert candidate(x) == 2 * x
    assert candidate([1]) == [1, 1]
    assert candidate("ab") == "abab"
"""
RIGHT = "def double(x):\n    return 2 * x\n"


def fenced(code: str) -> str:
    return f"So:\n```python\n{code}\n```\n"


def row(text: str, **fields: Any) -> dict[str, Any]:
    """A row, and a response to it that says ``text`` after some reasoning that has the right program."""
    reasoning = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": fenced(RIGHT)}]}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {
        "responses_create_params": {"input": "Double it."},
        "response": {"id": "resp", "output": [reasoning, message]},
        "prompt": 'def double(x):\n    """Twice."""\n',
        "entry_point": "double",
        "test": TEST,
        "_ng_task_index": 7,
        **fields,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running[CodeExecution]]:
    start_worker_server("images.resources_servers.code_execution.app")
    async with serving(CodeExecution, SETTINGS) as running:
        yield running


async def verified(running: Running[CodeExecution], text: str, **fields: Any) -> dict[str, Any]:
    reply = await running.post("/verify", row(text, **fields))
    assert reply.status == 200, reply.body
    return dict(reply.json())


async def test_a_reply_is_the_row_with_reward_and_what_explains_it(server: Running[CodeExecution]) -> None:
    sent = row(fenced(RIGHT))
    reply = (await server.post("/verify", sent)).json()
    assert reply == {**sent, "reward": 1.0, "reason": "passed", "extracted_code": f"{RIGHT}\n"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (fenced(RIGHT.replace("2", "3")), "wrong_answer"),
        ("    return 2 * x", "passed"),
        ("", "no_code"),
        ("I cannot say.", "no_code"),
        ("\ufffd", "no_code"),
        (f"<think>{fenced(RIGHT)}</think> Hm, no.", "no_code"),
        ("word " * 200_000 + "\n" + fenced(RIGHT), "passed"),
        (fenced("x = '" + "y" * 150_000 + "'\n" + RIGHT), "passed"),
        (fenced(RIGHT + "# " + "y" * 1_000_000), "no_code"),
    ],
    ids=["wrong", "continued", "empty", "prose", "undecodable", "thought", "long", "long program", "too long program"],
)
async def test_answers_get_their_verdict(server: Running[CodeExecution], text: str, reason: str) -> None:
    reply = await verified(server, text)
    assert (reply["reward"], reply["reason"]) == (float(reason == "passed"), reason)


async def test_no_hostile_program_scores_or_stays(server: Running[CodeExecution]) -> None:
    programs = [program for program in HOSTILE if not program.harmful and program.name not in COSTLY]
    replies = await asyncio.gather(*(verified(server, fenced(program.named("double"))) for program in programs))
    verdicts = {program.name: reply["reason"] for program, reply in zip(programs, replies, strict=True)}
    expected = {program.name: program.reasons for program in programs}
    assert {name: reason for name, reason in verdicts.items() if reason not in expected[name]} == {}
    assert {reply["reward"] for reply in replies} == {0.0}
    assert len(programs) > 60
    assert not await asyncio.to_thread(Path("/tmp/forged").exists)
    assert (await verified(server, fenced(RIGHT)))["reward"] == 1.0
    assert programs_running() == []


def programs_running() -> list[str]:
    """The command lines of programs' processes on this machine that this test's server started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"code_execution.program import serve" in command and str(os.getpid()).encode() in ancestors(folder.name):
            found.append(command.decode())
    return found


def ancestors(pid: str) -> list[bytes]:
    """The numbers of a process's parents, from the nearest on."""
    found: list[bytes] = []
    while pid not in ("0", "1"):
        try:
            pid = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()[1]
        except OSError:
            break
        found.append(pid.encode())
    return found


async def test_many_at_once_all_get_an_answer_and_others_do_not_wait(server: Running[CodeExecution]) -> None:
    texts = [fenced("def double(x):\n    while True: pass\n"), *[fenced(RIGHT)] * 20]
    verdicts = asyncio.gather(*(verified(server, text) for text in texts))
    slowest = 0.0
    while not verdicts.done():
        began = time.monotonic()
        assert (await server.get("/ready")).status == 200
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.05)
    late, *others = await verdicts
    assert late["reason"] == "timeout"
    assert [reply["reward"] for reply in others] == [1.0] * 20
    assert slowest < 1.0


async def test_a_program_ends_with_its_request(server: Running[CodeExecution]) -> None:
    """The request's end kills the process of the tests, and that the program's."""
    asleep = asyncio.create_task(verified(server, fenced("import time\ndef double(x): time.sleep(1000)\n")))
    await until(lambda: len(programs_running()) == 1, 30)
    asleep.cancel()
    await until(lambda: not programs_running(), SETTINGS["program_deadline_s"] - 1)


async def until(holds: Callable[[], bool], within_s: float) -> None:
    """Wait for what has to come true."""
    deadline = time.monotonic() + within_s
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_what_takes_the_tests_too_long_to_compare_is_wrong(
    server: Running[CodeExecution], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integers of one hash, of which each that is added to a set is compared with all before it."""
    monkeypatch.setattr(app, "_TESTS_CPU_S", 0.5)
    async with serving(CodeExecution, {**SETTINGS, "workers": 1}) as running:
        source = "def double(x): return [i * (2 ** 61 - 1) for i in range(60_000)]"
        test = "def check(candidate):\n    assert len(set(candidate(1))) == 2\n"
        reply = await verified(running, fenced(source), test=test)
        assert (reply["reward"], reply["reason"]) == (0.0, "timeout")
        assert (await verified(running, fenced(RIGHT)))["reward"] == 1.0


async def test_what_ends_the_process_of_the_tests_is_wrong(server: Running[CodeExecution]) -> None:
    test = "import os\ndef check(candidate):\n    candidate(1)\n    os._exit(3)\n"
    reply = await verified(server, fenced(RIGHT), test=test)
    assert (reply["reward"], reply["reason"]) == (0.0, "crashed")
    assert (await verified(server, fenced(RIGHT)))["reward"] == 1.0


async def test_no_verdict_where_programs_cannot_be_run(
    server: Running[CodeExecution], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.server, "_limits", Limits(memory_bytes=1 << 70))
    reply = await server.post("/verify", row(fenced(RIGHT)))
    assert reply.status == 500
    assert "a program's process" in reply.json()["error"]["message"]


@pytest.mark.parametrize("field", ["entry_point", "test", "response", "responses_create_params"])
async def test_a_row_without_a_field_is_refused_by_name(server: Running[CodeExecution], field: str) -> None:
    sent = row(fenced(RIGHT))
    del sent[field]
    reply = await server.post("/verify", sent)
    assert reply.status == 422
    assert reply.json()["detail"][0]["loc"] == ["body", field]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"test": "def check("}, "test"),
        ({"test": ""}, "test"),
        ({"prompt": "def ("}, "prompt"),
        ({"entry_point": "a b"}, "entry_point"),
        ({"test": 5}, "test"),
    ],
)
async def test_a_row_that_cannot_be_used_is_refused_by_name(
    server: Running[CodeExecution], fields: dict[str, Any], named: str
) -> None:
    reply = await server.post("/verify", row(fenced(RIGHT), **fields))
    assert reply.status == 422
    assert reply.json()["detail"][0]["loc"] == ["body", named]


async def test_a_row_needs_no_prompt(server: Running[CodeExecution]) -> None:
    assert (await verified(server, fenced(RIGHT), prompt=""))["reason"] == "passed"


@pytest.mark.parametrize("settings", [{"program_cpu_s": 0}, {"program_deadline_s": 0}, {"program_memory_mib": 1}])
async def test_settings_that_cannot_be_used_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        CodeExecution(bootstrap_for(CodeExecution, settings))


async def test_metrics_count_the_reasons(server: Running[CodeExecution]) -> None:
    texts = [fenced(RIGHT), fenced(RIGHT.replace("2", "3")), fenced(RIGHT.replace("2", "y")), "?"]
    replies = [await verified(server, text) for text in texts]
    metrics = (await server.post("/aggregate_metrics", {"verify_responses": replies})).json()
    empty = (await server.post("/aggregate_metrics", {"verify_responses": []})).json()
    assert metrics["key_metrics"] == {"mean/reward": 0.25, "pass_rate": 0.25}
    reasons = {key: value for key, value in metrics["agent_metrics"].items() if key.startswith("reason/")}
    assert reasons == {"reason/NameError": 1, "reason/no_code": 1, "reason/passed": 1, "reason/wrong_answer": 1}
    assert empty["key_metrics"] == {}


async def test_without_seccomp_it_does_not_start_unless_told_to(
    server: Running[CodeExecution], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(*arguments: Any) -> tuple[str, ...]:
        return ("landlock",)

    monkeypatch.setattr(server.server._pool, "run", run)
    with pytest.raises(ConfigError, match="To run programs all the same: require_seccomp: false"):
        await server.server._check_confinement()
    monkeypatch.setattr(server.server.settings, "require_seccomp", False)
    await server.server._check_confinement()
    assert "without seccomp" in caplog.text
