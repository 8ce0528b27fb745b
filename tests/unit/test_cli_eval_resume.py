"""``gym eval run --resume``: whatever ended a run, it goes on to the same files."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from filelock import FileLock

from nemo_gym.cli.main import main
from tests.unit import test_cli_eval_run
from tests.unit.fake_gym import FakeGym, never_answers
from tests.unit.test_cli_eval_run import KEY, Served, by_task, in_thread, lines, serve_tiny

# the plan names the checkout's commit, and a commit may be made while a test runs
TIMES = re.compile(rb'"_ng_elapsed_s":[0-9.e-]+|"commit":"[0-9a-f]+"')
CACHED = "use_cached_prepared_benchmarks=true"
SAME_RUN = ("--run-id", "r", "--num-repeats", "4")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    return serve_tiny(tmp_path, monkeypatch)


def run(*options: str) -> int:
    """Data is prepared once."""
    return test_cli_eval_run.run(*options, CACHED)


def without_times(name: str) -> bytes:
    return TIMES.sub(b"", Path("out", name).read_bytes())


def files() -> dict[str, bytes]:
    """Everything a run leaves but the record of it, apart from times."""
    return {
        path.name: without_times(path.name)
        for path in sorted(Path("out").iterdir())
        if path.suffix in (".json", ".jsonl", ".yaml") and not path.name.endswith("_run.json")
    }


def record() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path("out/x_run.json").read_text())
    return loaded


def pretend_killed(keep_bytes: int | None = None) -> None:
    """Leave the files as a SIGKILL during the run would have."""
    document = record()
    document["segments"][-1] |= {"status": "running", "ended": None}
    Path("out/x_run.json").write_text(json.dumps(document))
    Path("out/x_aggregate_metrics.json").unlink()
    if keep_bytes is not None:
        with Path("out/x.jsonl").open("r+b") as stream:
            stream.truncate(keep_bytes)


class TestGoingOn:
    @pytest.mark.parametrize("lines_kept", [0, 1, 7, 11])
    def test_after_a_kill_in_mid_line_with_another_concurrency(
        self, lines_kept: int, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(*SAME_RUN) == 0
        undisturbed = files()
        whole = Path("out/x.jsonl").read_bytes().splitlines(keepends=True)
        kept = whole[:lines_kept]
        random.Random(lines_kept).shuffle(kept)
        Path("out/x.jsonl").write_bytes(b"".join([*kept, whole[lines_kept][:40]]))
        pretend_killed()
        served.gym.rows.clear()
        capsys.readouterr()
        assert run(*SAME_RUN, "--resume", "--concurrency", "1") == 0
        said = capsys.readouterr()
        assert "out/x.jsonl: the last line was cut off mid-write; its 40 bytes are removed" in said.err
        assert f"{lines_kept} of 12 rollouts have a reward already" in said.err
        assert "12 of 12 with a reward" in said.out
        assert len(served.gym.rows) == 12 - lines_kept
        assert files() == undisturbed
        assert [segment["status"] for segment in record()["segments"]] == ["killed", "finished"]
        assert [segment["concurrency"] for segment in record()["segments"]] == [32, 1]
        assert [segment["attempts"] for segment in record()["segments"]] == [12, 12 - lines_kept]

    def test_when_only_the_sums_are_missing(self, served: Served) -> None:
        assert run(*SAME_RUN) == 0
        undisturbed = files()
        pretend_killed()
        served.gym.rows.clear()
        assert run(*SAME_RUN, "--resume") == 0
        assert served.gym.rows == []
        assert files() == undisturbed

    def test_a_finished_run_has_nothing_to_do(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(*SAME_RUN) == 0
        before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
        served.asked = {}
        capsys.readouterr()
        assert run("--resume") == 0  # the repeats and the id are known
        said = capsys.readouterr()
        assert "nothing to do" in said.err
        assert re.search(r"^accuracy +0\.5000$", said.out, re.MULTILINE)
        assert "12 of 12 with a reward" in said.out
        assert served.asked == {}
        assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before

    def test_where_there_is_nothing_yet_it_begins(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--resume") == 0
        assert "nothing to resume in out/x.jsonl yet" in capsys.readouterr().err
        assert len(lines("x.jsonl")) == 3

    def test_more_repeats_keep_those_there_are(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--run-id", "r", "--num-repeats", "4") == 0
        undisturbed = files()
        shutil.rmtree("out")
        assert run("--run-id", "r", "--num-repeats", "2") == 0
        served.gym.rows.clear()
        assert run("--resume", "--num-repeats", "4") == 0
        assert len(served.gym.rows) == 6
        assert files() == undisturbed
        assert record()["num_repeats"] == 4
        capsys.readouterr()
        assert run("--resume", "--num-repeats", "3") == 2
        assert "This run has 4 repeats of each task, and --num-repeats 3 asks for fewer" in capsys.readouterr().err
        assert files() == undisturbed

    def test_failures_are_tried_again_as_new_attempts_and_results_never(self, served: Served) -> None:
        refuses = True

        async def script(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            if row["_ng_task_index"] == 1 and refuses:
                return web.json_response({}, status=422)
            return web.json_response({"reward": 1.0})

        served.gym.script = script
        assert run("--run-id", "r") == 1
        assert record()["segments"][0]["status"] == "finished"
        assert run("--resume") == 1
        refuses = False
        served.gym.rows.clear()
        assert run("--resume") == 0
        assert [(row["_ng_attempt_index"], row["_ng_rollout_id"]) for row in served.gym.rows] == [(2, "r-t1-r0-a2")]
        assert [failure["_ng_attempt_index"] for failure in lines("x_failures.jsonl")] == [0, 1]
        assert [row["reward"] for row in lines("x.jsonl")] == [1.0, 1.0, 1.0]
        assert [segment["failed"] for segment in record()["segments"]] == [1, 1, 0]

    def test_metrics_of_fewer_repeats_do_not_outlive_them(self, served: Served) -> None:
        assert run("--run-id", "r") == 0

        async def interrupted(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.2)
            return web.json_response({"reward": 0.0})

        served.gym.script = interrupted
        assert run("--resume", "--num-repeats", "2", "--concurrency", "1") == 130
        assert len(lines("x.jsonl")) == 4
        assert not Path("out/x_aggregate_metrics.json").exists()

    def test_servers_that_do_not_start_change_nothing(self, served: Served) -> None:
        assert run(*SAME_RUN) == 0
        pretend_killed(100)
        before = record()
        served.start_error = RuntimeError("no engine")
        with pytest.raises(RuntimeError):
            run(*SAME_RUN, "--resume")
        assert record() == before


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--limit", "2"], "- the tasks: 1 task is missing ('t2')"),
            (["--temperature", "0.5"], "- the tasks: 3 tasks get another input ('t0', 't1', 't2')"),
            (["++tiny_agent.responses_api_agents.simple_agent.max_steps=3"], "- the configuration: tiny_agent."),
            (["--run-id", "other"], "- the run's id: it is r, and --run-id asks for other"),
            (["++policy_model_name=x"], "policy_model_name"),
        ],
    )
    def test_what_differs_is_named(
        self, options: list[str], message: str, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("--run-id", "r") == 0
        pretend_killed(100)
        before = files()
        served.asked = {}
        capsys.readouterr()
        assert run("--resume", *options) == 2
        assert message in capsys.readouterr().err
        assert (served.asked, files()) == ({}, before)

    def test_data_that_changed(self, served: Served, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert run() == 0
        pretend_killed(100)
        script = tmp_path / "mine/benchmarks/tiny/prepare.py"
        script.write_text(script.read_text().replace('f"question {n}"', 'f"question {max(n, 1)}"'))
        assert test_cli_eval_run.run("--resume") == 2
        assert "1 task gets another input ('t0')" in capsys.readouterr().err

    def test_what_may_change(self, served: Served) -> None:
        assert run() == 0
        pretend_killed(100)
        moved = ["--model-url", "http://127.0.0.1:8/v1", "server_ready_timeout_seconds=5", "--registry-port", "12345"]
        assert main(["eval", "run", "--benchmark", "tiny", "--model", "m", "--model-api-key", "k2", *moved,
                     "--output", "out/x.jsonl", "--resume"]) == 0  # fmt: skip
        assert len(lines("x.jsonl")) == 3

    def test_images_must_be_those_of_the_lock_file(self, served: Served, tmp_path: Path) -> None:
        assert run() == 0
        pretend_killed(100)
        lock = {"version": 1, "images": {"registry": {"reference": "r", "context": "c", "image_id": "sha256:1"}}}
        Path("out/x_images.lock.json").write_text(json.dumps(lock))
        assert run("--resume") == 0
        assert served.asked["overrides"]["image_lock"] == "out/x_images.lock.json"
        assert len(record()["image_lock_digest"]) == 64

    def test_another_lock_file_than_the_runs_own(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run() == 0
        pretend_killed(100)
        for path, context in (("out/x_images.lock.json", "c"), ("other.json", "d")):
            entry = {"reference": "r", "context": context, "image_id": "sha256:1"}
            Path(path).write_text(json.dumps({"version": 1, "images": {"registry": entry}}))
        assert run("--resume", "--locked", "other.json") == 2
        assert "other.json are not those of this run (out/x_images.lock.json): registry" in capsys.readouterr().err

    def test_results_without_a_record(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run() == 0
        Path("out/x_run.json").unlink()
        assert run("--resume") == 2
        assert "out/x_run.json is missing" in capsys.readouterr().err

    def test_somebody_else_writes_there(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        Path("out").mkdir()
        with FileLock("out/.x.lock"):
            assert run("--overwrite") == 2
            assert run("--resume") == 2
        assert "Another process is writing to out/x.jsonl" in capsys.readouterr().err
        assert served.asked == {}

    def test_options_that_exclude_each_other(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--resume", "--overwrite") == 2
        assert main(["eval", "run", "--benchmark", "tiny", "--resume"]) == 2
        assert "say where they are with --output" in capsys.readouterr().err


class TestStopping:
    def test_ctrl_c_once_lets_what_is_under_way_finish(
        self, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def interrupted(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            if row["_ng_rollout_id"] == "r-t1-r0":
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.2)
            return web.json_response({**row, "reward": 1.0})

        served.gym.script = interrupted
        assert run("--concurrency", "2", *SAME_RUN) == 130
        said = capsys.readouterr()
        assert "no further rollout begins, and those under way are finished. Ctrl-C again stops at once." in said.err
        assert "with --resume goes on" in said.err
        assert "with a reward" in said.out
        done = lines("x.jsonl")
        assert 5 <= len(done) < 12
        assert {row["_ng_rollout_id"] for row in done} == {row["_ng_rollout_id"] for row in served.gym.rows}
        assert record()["segments"][0]["status"] == "drained"
        assert not Path("out/x_aggregate_metrics.json").exists()
        served.gym.script = by_task(1.0, 1.0, 1.0)
        assert run("--resume", *SAME_RUN) == 0
        assert len(lines("x.jsonl")) == 12

    def test_a_pause_before_another_attempt_is_cut_short(self, served: Served) -> None:
        async def fails(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            os.kill(os.getpid(), signal.SIGINT)
            return web.json_response({}, status=503)

        served.gym.script = fails
        started = time.monotonic()
        assert run("--limit", "1", "--run-id", "r") == 130
        assert time.monotonic() - started < 30
        assert [(f["_ng_attempt_index"], f["final"]) for f in lines("x_failures.jsonl")] == [(0, False)]
        served.gym.script, served.gym.rows = by_task(1.0), []
        assert run("--limit", "1", "--resume") == 0
        assert [row["_ng_rollout_id"] for row in served.gym.rows] == ["r-t0-r0-a1"]

    def test_a_dead_server_leaves_a_run_that_can_be_resumed(self, served: Served) -> None:
        async def dies(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            gym.dead = [{"name": "verifier", "exit_code": 1}]
            return await never_answers(gym, row, request)

        served.gym.script = dies
        assert run() == 1
        (segment,) = record()["segments"]
        assert segment["status"] == "failed"
        assert "'verifier' died" in segment["reason"]
        served.gym.script, served.gym.dead = by_task(1.0, 1.0, 1.0), []
        assert run("--resume") == 0


class TestKills:
    def test_a_run_killed_again_and_again_equals_an_undisturbed_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With SIGKILL, at random moments, against servers that go on running."""
        serve_tiny(tmp_path, monkeypatch)
        rng = random.Random(20)

        async def slow(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(0.02)
            text = f"{row['_ng_task_index']}/{row['_ng_rollout_index']} " * 300
            return web.json_response({"reward": float(row["_ng_rollout_index"] % 2), "text": text})

        with in_thread(FakeGym(slow, agent_name="tiny_agent")) as gym:
            where = ["--registry", f"127.0.0.1:{gym.port}", "--output", "out/x.jsonl"]
            command = [sys.executable, "-m", "nemo_gym", "eval", "run", "--benchmark", "tiny", *where, "--run-id", "r"]
            command += ["--num-repeats", "40", CACHED]
            subprocess.run(command, check=True, capture_output=True)
            undisturbed = files()
            shutil.rmtree("out")
            kills = 0
            while kills < 3:
                with subprocess.Popen(
                    [*command, "--resume", "--concurrency", str(rng.randint(1, 8))],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                ) as process:
                    wanted = len(gym.rows) + rng.randint(1, 25)
                    while process.poll() is None and len(gym.rows) < wanted:
                        time.sleep(0.002)
                    assert process.poll() is None
                    process.kill()
                kills += 1
            assert b"\n" in Path("out/x.jsonl").read_bytes()
            subprocess.run([*command, "--resume"], check=True, capture_output=True)
        assert files() == undisturbed
        assert [segment["status"] for segment in record()["segments"]] == ["killed"] * 3 + ["finished"]


def test_no_secret_is_in_any_file(served: Served) -> None:
    assert run("++extra.hf_token=hf_canary123", "++env.MY_PASSWORD=p4ssw0rd", "--limit", "1") == 0
    url = ["--model-url", "http://user:canary-pw@127.0.0.1:9/v1?api_key=canary-query"]
    assert main(["eval", "run", "--benchmark", "tiny", "--model", "m", *url, "--model-api-key", "canary-key",
                 "--output", "out/y.jsonl", "policy_extra_secret=canary-other"]) == 0  # fmt: skip
    names = {path.name for path in Path("out").iterdir()}
    assert {"x_run.json", "x_config.yaml", "x_plan.json", "y_run.json", "y_config.yaml"} <= names
    written = b"".join(path.read_bytes() for path in Path("out").iterdir())
    for secret in (KEY, "hf_canary123", "p4ssw0rd", "canary"):
        assert secret.encode() not in written, secret
    command = json.loads(Path("out/y_run.json").read_text())["command"]
    assert command[:3] == ["gym", "eval", "run"]
    assert command[command.index("--model-api-key") + 1] == "***"
    assert "policy_extra_secret=***" in command
