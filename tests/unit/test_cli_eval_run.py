from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import pty
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.cli import run_servers
from nemo_gym.cli.main import main
from nemo_gym.cli.progress import Pace, fitting
from nemo_gym.cli.run_files import RunFiles
from nemo_gym.cli.stopping import Stopped, run_async, signals_raise
from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.deployment.launch import PhaseTime, RunningServer, RunningSession
from nemo_gym.environment import serving
from nemo_gym.errors import ConfigError, ServerStartError, TeardownError
from nemo_gym.rollouts.report import RunTally
from tests.unit.fake_gym import FakeGym, Script, never_answers
from tests.unit.test_rollouts_records import RECORD, gathered
from tests.unit.tiny_benchmark import write_tiny_benchmark

MODEL = ["--model", "m", "--model-url", "http://127.0.0.1:9/v1", "--model-api-key", "env:MY_KEY"]
KEY = "sk-most-secret-key"


@contextlib.contextmanager
def in_thread(gym: FakeGym) -> Iterator[FakeGym]:
    """The fake served from an event loop in another thread."""
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with gym:
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield gym
    finally:
        done.set()
        thread.join()


class Served:
    """Stands in for the function that serves with containers; what it was asked is kept."""

    def __init__(self, gym: FakeGym) -> None:
        self.gym = gym
        self.asked: dict[str, Any] = {}
        self.running = False
        self.start_error: Exception | None = None
        self.stop_error: Exception | None = None

    @contextlib.contextmanager
    def __call__(
        self, config_paths: Sequence[str | Path], overrides: dict[str, Any], **options: Any
    ) -> Iterator[RunningSession]:
        self.asked = {"paths": [Path(path).parent.name for path in config_paths], "overrides": overrides, **options}
        if self.start_error is not None:
            raise self.start_error
        with in_thread(self.gym) as gym:
            self.running = True
            try:
                yield RunningSession(
                    session_id="s1",
                    registry_server=BaseServerConfig(host=gym.host, port=gym.port),
                    servers=(RunningServer("agent", "responses_api_agents", "simple_agent", "c1", gym.host, gym.port),),
                    timeline=(PhaseTime("images", "", 0.0, 0.25),),
                )
            finally:
                self.running = False
        if self.stop_error is not None:
            raise self.stop_error


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    return serve_tiny(tmp_path, monkeypatch)


def serve_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The tiny benchmark, and a fake in the place of its containers."""
    write_tiny_benchmark(tmp_path, monkeypatch)
    monkeypatch.setenv("MY_KEY", KEY)
    fake = Served(FakeGym(by_task(1.0, 0.0, 0.5), agent_name="tiny_agent"))
    monkeypatch.setattr(run_servers, "serve", fake)
    monkeypatch.setattr(serving, "serve", fake)
    return fake


def by_task(*rewards: float) -> Script:
    async def script(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
        return web.json_response({**row, "reward": rewards[row["_ng_task_index"]]})

    return script


def run(*options: str) -> int:
    return main(["eval", "run", "--benchmark", "tiny", *MODEL, "--output", "out/x.jsonl", *options])


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out", name).read_text().splitlines()]


def send_and_wait(number: signal.Signals) -> None:
    """Send ourselves a signal, which is to interrupt the waiting."""
    os.kill(os.getpid(), number)
    time.sleep(5)


class TestRun:
    def test_a_whole_run(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run() == 0
        output = capsys.readouterr()
        assert re.search(r"^t1 +0\.000 +0 +0$", output.out, re.MULTILINE)
        assert re.search(r"^mean reward +0\.5000 \(95% interval -0\.742 to 1\.742\)$", output.out, re.MULTILINE)
        assert re.search(r"^accuracy +0\.5000$", output.out, re.MULTILINE)
        assert "out/x_aggregate_metrics.json" in output.out
        assert "3/3 rollouts" in output.err
        assert re.search(r"^time: prepare .* s, images 0\.2 s, start .* s, run .* s, teardown .* s; ", output.err, re.M)
        assert [(row["_ng_task_index"], row["reward"]) for row in lines("x.jsonl")] == [(0, 1.0), (1, 0.0), (2, 0.5)]
        assert [row["task_id"] for row in lines("x_materialized_inputs.jsonl")] == ["t0", "t1", "t2"]
        assert lines("x_failures.jsonl") == []
        (metrics,) = json.loads(Path("out/x_aggregate_metrics.json").read_text())
        assert (metrics["agent_ref"]["name"], metrics["key_metrics"]) == ("tiny_agent", {"accuracy": 0.5})
        assert not served.running

    def test_what_is_served_is_what_was_asked_for(self, served: Served) -> None:
        assert run("--registry-port", "12345", "--search-dir", ".", "++a.b=1") == 0
        assert served.asked == {
            "paths": ["tiny", "openai_model"],
            "overrides": {
                "policy_model_name": "m",
                "policy_base_url": "http://127.0.0.1:9/v1",
                "policy_api_key": KEY,
                "a": {"b": 1},
            },
            "registry_port": 12345,
            "search_dirs": (".",),
        }

    def test_json(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--json") == 0
        figures = json.loads(capsys.readouterr().out)
        assert figures["mean_reward"] == 0.5
        assert figures["rewards"] == {"t0": [1.0], "t1": [0.0], "t2": [0.5]}
        assert figures["files"]["rollouts"] == "out/x.jsonl"
        assert set(figures["phases_s"]) == {"prepare", "images", "start", "run", "teardown"}

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (["--limit", "2"], [("t0", 0), ("t1", 0)]),
            (["--task-ids", "t2,t1"], [("t1", 0), ("t2", 0)]),
            (["--limit", "1", "--num-repeats", "3"], [("t0", 0), ("t0", 1), ("t0", 2)]),
            (["--limit", "9"], [("t0", 0), ("t1", 0), ("t2", 0)]),
        ],
    )
    def test_selections(self, options: list[str], expected: list[tuple[str, int]], served: Served) -> None:
        assert run(*options, "--concurrency", "2") == 0
        assert [(row["task_id"], row["_ng_rollout_index"]) for row in lines("x.jsonl")] == expected
        assert [(row["task_id"], row["_ng_rollout_index"]) for row in lines("x_materialized_inputs.jsonl")] == expected
        assert served.gym.most_in_flight <= 2

    def test_results_that_are_there_stay_unless_told_otherwise(
        self, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run() == 0
        before = Path("out/x.jsonl").read_bytes()
        assert run("--limit", "1") == 2
        assert "--overwrite" in capsys.readouterr().err
        assert Path("out/x.jsonl").read_bytes() == before
        assert run("--limit", "1", "--overwrite") == 0
        assert len(lines("x.jsonl")) == 1

    def test_what_the_servers_record_is_kept_beside_the_results(
        self, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        served.gym.records_of = lambda rollout_id: gathered({**RECORD, "rollout_id": rollout_id})
        assert run() == 0
        assert not Path("out/x_records.jsonl").exists()
        assert "records" not in capsys.readouterr().out
        assert run("observability_enabled=true", "--overwrite", "--json") == 0
        assert json.loads(capsys.readouterr().out)["files"]["records"] == "out/x_records.jsonl"
        rollouts = {result["_ng_rollout_id"] for result in lines("x.jsonl")}
        assert len(rollouts) == 3
        assert {record["rollout_id"] for record in lines("x_records.jsonl")} == rollouts
        assert run("--overwrite") == 0
        assert not Path("out/x_records.jsonl").exists()

    def test_a_name_for_the_results_is_made_up(self, served: Served) -> None:
        assert main(["eval", "run", "--benchmark", "tiny", *MODEL]) == 0
        (results,) = Path("results").glob("tiny-*Z.jsonl")
        assert len(results.read_text().splitlines()) == 3


class TestFailures:
    def test_failed_rollouts_end_in_1_and_the_others_are_kept(
        self, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def one_fails(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            if row["_ng_task_index"] == 1:
                return web.json_response({"detail": f"the key {KEY} was refused"}, status=422)
            return web.json_response({"reward": 1})

        served.gym.script = one_fails
        assert run() == 1
        output = capsys.readouterr()
        assert "1 of 3 rollouts have no reward" in output.err
        assert "task t1 failed: server 'tiny_agent' answered HTTP 422" in output.err
        assert re.search(r"^t1 +1$", output.out, re.MULTILINE)
        assert len(lines("x.jsonl")) == 2
        (failure,) = lines("x_failures.jsonl")
        assert (failure["failure_class"], failure["status"], failure["final"]) == ("http_error", 422, True)
        assert KEY not in Path("out/x_failures.jsonl").read_text() + output.err + output.out

    def test_a_dead_server_ends_the_run_within_seconds(
        self, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def dies(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            if row["_ng_task_index"] == 0:
                return web.json_response({"reward": 1})
            gym.dead = [{"name": "verifier", "exit_code": 137, "oom_killed": True}]
            return await never_answers(gym, row, request)

        served.gym.script = dies
        started = time.monotonic()
        assert run() == 1
        assert time.monotonic() - started < 30
        assert "server 'verifier' was killed because its memory limit" in capsys.readouterr().err
        assert [row["_ng_task_index"] for row in lines("x.jsonl")] == [0]
        assert not served.running

    def test_servers_that_do_not_start(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        served.start_error = ServerStartError("policy_model died", server="policy_model", phase="ready")
        assert run() == 2
        output = capsys.readouterr()
        assert "policy_model died" in output.err
        assert "time: prepare" in output.err
        assert output.out == ""
        assert not Path("out/x.jsonl").exists()

    def test_a_full_disk_is_what_the_run_failed_of(
        self, served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write, fsync = os.write, os.fsync

        def fills_up(file: int, data: bytes) -> int:
            if b'"_ng_task_index":1' in bytes(data):
                raise OSError(28, "No space left on device")
            return write(file, data)

        def full(file: int) -> None:  # nor is there room to put anything in order
            fsync(file)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", fills_up)
        monkeypatch.setattr(os, "fsync", full)
        assert run("--concurrency", "1") == 1
        assert "failed: cannot write to out/x.jsonl: No space left on device. What had" in capsys.readouterr().err
        (segment,) = json.loads(Path("out/x_run.json").read_text())["segments"]
        assert segment["status"] == "failed"
        assert segment["reason"].startswith("cannot write to out/x.jsonl: No space left")

    def test_a_record_that_cannot_be_written_does_not_hide_how_the_run_ended(
        self, served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def locks_up(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            monkeypatch.setattr(RunFiles, "write", no_room)
            return web.json_response({}, status=422)

        def no_room(files: RunFiles) -> None:
            raise ConfigError("Cannot write out/x_run.json: No space left on device.")

        served.gym.script = locks_up
        assert run() == 1
        said = capsys.readouterr().err
        assert "how the run ended is not recorded: Cannot write out/x_run.json" in said
        assert "failed: 3 of 3 rollouts have no reward" in said

    def test_a_failed_teardown_costs_no_figures(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        served.stop_error = TeardownError("one container is left")
        assert run() == 1
        output = capsys.readouterr()
        assert "mean reward" in output.out
        assert "one container is left" in output.err

    def test_an_agent_without_metrics_costs_no_figures(
        self, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        served.gym.aggregate = "nothing"
        assert run() == 0
        assert "no metrics" in capsys.readouterr().err
        assert not Path("out/x_aggregate_metrics.json").exists()

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
    def test_a_signal_stops_the_servers_and_keeps_what_there_is(
        self, number: signal.Signals, code: int, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def second_interrupts(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            if row["_ng_task_index"] == 0:
                return web.json_response({"reward": 1})
            os.kill(os.getpid(), number)
            if number == signal.SIGINT:  # the first only lets this rollout finish
                await asyncio.sleep(0.1)
                os.kill(os.getpid(), number)
            return await never_answers(gym, row, request)

        served.gym.script = second_interrupts
        before = signal.getsignal(number)
        assert run("--concurrency", "1") == code
        output = capsys.readouterr()
        assert f"stopped by {number.name}" in output.err
        assert "1 of 3 rollouts are in out/x.jsonl; the same command with --resume goes on" in output.err
        assert len(lines("x.jsonl")) == 1
        assert json.loads(Path("out/x_run.json").read_text())["segments"][0]["status"] == "stopped"
        assert not served.running
        assert signal.getsignal(number) is before

    def test_the_caller_has_its_logging_back_afterwards(self, served: Served) -> None:
        logger = logging.getLogger("nemo_gym")
        before = (list(logger.handlers), logger.propagate, logger.level)
        assert run("-v") == 0
        assert (logger.handlers, logger.propagate, logger.level) == before


class TestStart:
    def test_it_serves_until_told_to_stop(
        self, served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(session: RunningSession) -> str:
            assert served.running
            send_and_wait(signal.SIGINT)
            return "not interrupted"

        monkeypatch.setattr("nemo_gym.cli.env.wait_until_over", interrupted)
        for options in (["--json"], []):
            assert main(["env", "start", "--benchmark", "tiny", *MODEL, *options]) == 130
            assert not served.running
            output = capsys.readouterr().out
            if options:
                shown = json.loads(output)
                assert shown["registry_server"] == {"host": "127.0.0.1", "port": served.gym.port}
                assert shown["servers"][0]["name"] == "agent"
            else:
                assert f"registry: http://127.0.0.1:{served.gym.port}" in output
        assert served.asked["default_registry_port"] == 11000


class TestSignals:
    def test_without_an_event_loop_they_raise(self) -> None:
        with signals_raise(), pytest.raises(Stopped) as stopped:
            send_and_wait(signal.SIGTERM)
        assert stopped.value.exit_code == 143
        assert isinstance(stopped.value, KeyboardInterrupt)

    def test_an_ignored_signal_stays_ignored(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with signals_raise():
                os.kill(os.getpid(), signal.SIGHUP)
                assert run_async(asyncio.sleep(0.01, "done")) == "done"
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_after_an_event_loop_they_raise_again(self) -> None:
        with signals_raise():
            assert run_async(asyncio.sleep(0, 7)) == 7
            with pytest.raises(Stopped):
                send_and_wait(signal.SIGINT)

    def test_a_cancellation_of_ones_own_is_no_signal(self) -> None:
        async def cancels_itself() -> None:
            raise asyncio.CancelledError

        with signals_raise(), pytest.raises(asyncio.CancelledError):
            run_async(cancels_itself())


def read_available(descriptor: int) -> bytes:
    """What can be read at once; nothing when there is nothing."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return b""


class TestProgress:
    def test_figures(self) -> None:
        tally = RunTally(total=10, name_task=str)
        tally.done = 1  # of an earlier segment
        pace = Pace(tally)
        tally.done = 5
        assert "left" not in " ".join(pace.figures(1.0))
        tally.done = 1
        assert pace.figures(0.0) == ["0.0/s", "no reward yet", "0 failed"]
        for task, reward in (("a", 0.0), ("b", 1.0)):
            tally.running.add(task, reward)
        tally.token_totals.update(input_tokens=12_345, output_tokens=900)
        tally.done, tally.failures, tally.retries = 7, 2, 3
        assert pace.figures(2.0) == [
            "3.0/s",
            "mean reward 0.500 (0.095 to 0.905)",
            "2 failed",
            "0:01 left",
            "tokens 12.3k in 900 out (450/s)",
            "3 tried again",
        ]

    def test_a_narrow_terminal_gets_what_fits(self) -> None:
        parts = ["2.0/s", "mean reward 0.500", "2 failed"]
        assert fitting(parts, 200) == "2.0/s  mean reward 0.500  2 failed"
        assert fitting(parts, 33) == "2.0/s  mean reward 0.500"
        assert fitting(parts, 23) == "2.0/s"
        assert fitting(parts, 3) == "2.0"
        assert fitting(parts, -5) == ""

    @pytest.mark.parametrize(("columns", "bar"), [(200, True), (60, False)])
    def test_no_line_of_the_display_is_broken(
        self, columns: int, bar: bool, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rich.console import Console

        written = io.StringIO()
        console = Console(file=written, force_terminal=True, width=columns, color_system=None)
        monkeypatch.setattr("nemo_gym.cli.progress.is_terminal", lambda stream: True)
        monkeypatch.setattr("nemo_gym.cli.output._stderr_console", console)
        assert run() == 0
        frames = [line for line in re.split(r"[\r\n]|\x1b\[[0-9;?]*[A-Za-z]", written.getvalue()) if "3/3" in line]
        assert frames
        assert all(len(line) <= columns and "/s" in line for line in frames)
        assert any("━" in line for line in frames) is bar

    def test_a_terminal_gets_a_live_display_and_a_drawn_table(self, served: Served) -> None:
        controller, terminal = pty.openpty()
        os.set_blocking(controller, False)
        with os.fdopen(terminal, "w", encoding="utf-8") as stream, pytest.MonkeyPatch.context() as patch:
            patch.setenv("TERM", "xterm")
            patch.setattr(sys, "stderr", stream)
            patch.setattr(sys, "stdout", stream)
            patch.setattr("nemo_gym.cli.output._stderr_console", None)
            assert run() == 0
            shown = b"".join(iter(lambda: read_available(controller), b"")).decode()
        os.close(controller)
        assert "3/3" in shown
        assert "mean reward 0.500" in shown
        assert "┃" in shown
