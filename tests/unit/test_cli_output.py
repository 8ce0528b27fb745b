"""What cannot be told costs nothing: streams that are closed, full, or not read any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.cli.output import format_table
from tests.support.stored_results import result, write_results
from tests.unit.fake_gym import FakeGym
from tests.unit.test_cli_eval_run import in_thread, lines
from tests.unit.tiny_benchmark import write_tiny_benchmark


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGym]:
    """Servers that run already, for the tiny benchmark."""
    write_tiny_benchmark(tmp_path, monkeypatch)
    with in_thread(FakeGym(agent_name="tiny_agent")) as gym:
        yield gym


def run_command(gym: FakeGym, *options: str) -> list[str]:
    where = ["--benchmark", "tiny", "--registry", f"127.0.0.1:{gym.port}", "--output", "out/x.jsonl"]
    return [sys.executable, "-m", "nemo_gym", "eval", "run", *where, *options]


def shell(redirection: str, command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sh", "-c", f'"$@" {redirection}', "sh", *command], capture_output=True, check=False)


def test_a_ctrl_c_that_ends_the_reader_of_stderr_too_costs_no_rollout_under_way(running: FakeGym) -> None:
    """As with ``2>&1 | tee log``, where it ends ``tee``."""
    released = threading.Event()

    async def held_up(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(released.wait)
        return web.json_response({**row, "reward": 1.0})

    running.script = held_up
    reading, writing = os.pipe()
    command = run_command(running, "--concurrency", "2")
    with subprocess.Popen(command, stdout=writing, stderr=writing) as process:
        os.close(writing)
        deadline = time.monotonic() + 60
        while running.in_flight < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.close(reading)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # the signal comes before the answers
        released.set()
        assert process.wait(60) == 130
    assert len(lines("x.jsonl")) == 2
    assert json.loads(Path("out/x_run.json").read_text())["segments"][0]["status"] == "drained"


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_without_a_stderr_that_takes_anything_stdout_holds_data_only(redirection: str, running: FakeGym) -> None:
    if "full" in redirection and not Path("/dev/full").exists():  # Linux
        redirection = "2>&-"
    done = shell(redirection, run_command(running, "--json", "-v"))
    assert done.returncode == 0
    assert json.loads(done.stdout)["rollouts"]["scored"] == 3


def test_half_a_character_is_escaped(tmp_path: Path) -> None:
    path = write_results(tmp_path / "x.jsonl", [result(0, 0, 1.0, task_id="a\ud83d")])
    command = [sys.executable, "-m", "nemo_gym", "eval", "profile", str(path)]
    assert b"\na\\ud83d " in shell("", command).stdout
    done = shell("", [*command, "--json"])
    assert json.loads(done.stdout)["tasks"][0]["task"] == "a\ud83d"


def test_results_under_a_name_that_is_no_utf_8(running: FakeGym) -> None:
    command = run_command(running, "--json", "--output", os.fsdecode(b"out/\xff.jsonl"))
    with contextlib.suppress(OSError):  # macOS has no such names
        done = shell("", command)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["files"]["rollouts"] == "out/\udcff.jsonl"
        written = json.loads(Path("out/\udcff_run.json").read_bytes())
        assert written["command"][-1] == "out/\udcff.jsonl"


def test_tables_are_aligned_and_numbers_stand_right() -> None:
    assert format_table(["name", "n"], [["a", "10"], ["long", "2"]], title="T") == (
        "T\nname   n\n----  --\na     10\nlong   2"
    )
