"""``gym eval run``: servers that run already, shards, sampling, concurrency, and the record of a run."""

from __future__ import annotations

import json
import platform
import re
import resource
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.cli import concurrency as concurrency_module
from nemo_gym.cli.concurrency import concurrency_here
from nemo_gym.cli.main import main
from nemo_gym.eval.eval_plan import EvalPlan
from nemo_gym.eval.plan_difference import plan_digest
from nemo_gym.rollouts.registry_client import HostView
from tests.unit.fake_gym import FakeGym
from tests.unit.test_cli_eval_run import MODEL, Served, by_task, in_thread, lines, run, serve_tiny


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    return serve_tiny(tmp_path, monkeypatch)


def run_there(gym: FakeGym, *options: str) -> int:
    where = ["--registry", f"127.0.0.1:{gym.port}", "--output", "out/x.jsonl"]
    return main(["eval", "run", "--benchmark", "tiny", *where, *options])


def record(name: str = "x") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(f"out/{name}_run.json").read_text())
    return loaded


class TestServersThatRunAlready:
    def test_they_are_used_and_left_running(
        self, served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("NEMO_GYM_TOKEN", "canary-token")
        with in_thread(FakeGym(by_task(1.0, 0.0, 0.5), agent_name="tiny_agent", token="canary-token")) as gym:
            assert run_there(gym) == 0
            assert run_there(gym, "--resume", "--num-repeats", "2") == 0
            assert len(gym.rows) == 6
        assert served.asked == {}
        assert [row["reward"] for row in lines("x.jsonl")] == [1.0, 1.0, 0.0, 0.0, 0.5, 0.5]
        assert record()["registry"] == f"http://127.0.0.1:{gym.port}"
        assert record()["image_lock_digest"] is None
        assert "openai_model" in Path("out/x_config.yaml").read_text()  # what they are configured with
        assert "canary" not in "".join(path.read_text() for path in Path("out").iterdir())

    def test_they_are_those_of_another_benchmark(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        with in_thread(FakeGym(agent_name="other_agent")) as gym:
            assert run_there(gym) == 2
        assert "ask for agent 'tiny_agent'" in capsys.readouterr().err
        assert list(Path("out").glob("x*")) == []

    def test_nobody_is_there(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["eval", "run", "--benchmark", "tiny", "--registry", "127.0.0.1:1"]) == 2
        assert "The registry at http://127.0.0.1:1 is not ready" in capsys.readouterr().err

    def test_others_than_those_of_the_run(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run() == 0
        with in_thread(FakeGym(agent_name="tiny_agent")) as gym:
            assert run_there(gym, "--resume") == 2
        assert "they were started for the run, and --no-serve asks for others" in capsys.readouterr().err

    def test_another_model_behind_the_same_address(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        fake = FakeGym(by_task(1.0, 0.0, 0.5), agent_name="tiny_agent")
        with in_thread(fake) as gym:
            assert run_there(gym) == 0
            gym.config = {**gym.host_view(), "policy_model_name": "another"}
            assert run_there(gym, "--resume", "--num-repeats", "2") == 2
        assert "the configuration: policy_model_name" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--no-serve", *MODEL], "--model says what to serve, and --no-serve"),
            (["--registry", "h:1", "--locked", "x"], "--locked says what to serve, and --registry"),
            (["--registry", "nowhere"], "needed HOST:PORT"),
            (["--registry", "h:99999"], "needed HOST:PORT"),
        ],
    )
    def test_options_that_make_no_sense(
        self, options: list[str], message: str, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["eval", "run", "--benchmark", "tiny", *options]) == 2
        assert message in capsys.readouterr().err


class TestShards:
    def test_together_they_are_the_whole(self, served: Served) -> None:
        assert run("--num-repeats", "2", "--run-id", "r") == 0
        whole, plan = lines("x.jsonl"), record()["plan_digest"]
        for shard in ("1/2", "2/2"):
            assert run("--num-repeats", "2", "--run-id", "r", "--shard", shard) == 0
        first, second = lines("x-1-of-2.jsonl"), lines("x-2-of-2.jsonl")
        assert [row["task_id"] for row in first] == ["t0", "t0", "t2", "t2"]
        assert [row["task_id"] for row in second] == ["t1", "t1"]
        for row in (*whole, *first, *second):
            del row["_ng_elapsed_s"]
        assert sorted([*first, *second], key=lambda row: row["_ng_rollout_id"]) == whole
        assert record("x-2-of-2")["shard"] == {"index": 2, "count": 2}
        assert {record(f"x-{n}-of-2")["plan_digest"] for n in (1, 2)} == {plan}
        assert len(lines("x-2-of-2_materialized_inputs.jsonl")) == 2

    def test_one_that_would_be_empty(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--shard", "4/4") == 2
        assert "3 tasks make 3 shards at most" in capsys.readouterr().err
        assert run("--shard", "0/4") == 2
        assert "must be i/n with i from 1 to n" in capsys.readouterr().err

    def test_a_shard_is_resumed_as_that_shard(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--shard", "1/2") == 0
        assert main(["eval", "run", "--benchmark", "tiny", *MODEL, "--output", "out/x-1-of-2.jsonl", "--resume"]) == 2
        assert "the shard: it was 1/2 and is none" in capsys.readouterr().err
        assert run("--shard", "1/2", "--resume") == 0


class TestSampling:
    OPTIONS = ("--temperature", "0.5", "--top-p", "0.9", "--max-output-tokens", "99", "--reasoning-effort", "low")

    def test_every_row_asks_for_it_and_the_plan_says_so(
        self, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(*self.OPTIONS) == 0
        for row in served.gym.rows:
            assert row["responses_create_params"] == {
                "input": f"question {row['_ng_task_index']}",
                "temperature": 0.5,
                "top_p": 0.9,
                "max_output_tokens": 99,
                "reasoning": {"effort": "low"},
            }
        plan = EvalPlan.from_json(Path("out/x_plan.json").read_text())
        capsys.readouterr()
        for options, same in ((self.OPTIONS, True), ((), False)):
            assert main(["eval", "plan", "--benchmark", "tiny", *options]) == 0
            assert (EvalPlan.from_json(capsys.readouterr().out) == plan) is same

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--temperature", "-1"], "must be a number from 0 on"),
            (["--temperature", "nan"], "must be a number from 0 on"),
            (["--top-p", "1.5"], "must be a number from 0 to 1"),
            (["--max-output-tokens", "0"], "whole number from 1 on"),
            (
                ["--temperature", "1", "++responses_create_params.temperature=0"],
                "--temperature and responses_create_params.temperature=... both set the same key",
            ),
            (["--reasoning-effort", "low", "++responses_create_params.reasoning=x"], "leaves no place for it"),
        ],
    )
    def test_what_cannot_be(
        self, options: list[str], message: str, served: Served, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(*options) == 2
        assert message in capsys.readouterr().err


class TestRecord:
    def test_what_was_run_and_how(self, served: Served) -> None:
        assert run("--limit", "2", "--num-repeats", "2", "--concurrency", "7") == 0
        found = record()
        assert found["schema"] == "nemo-gym.run.v1"
        assert found["benchmark"] == "tiny"
        assert found["command"][:5] == ["gym", "eval", "run", "--benchmark", "tiny"]
        assert "env:MY_KEY" in found["command"]
        assert (found["versions"]["nemo_gym"], found["versions"]["python"]) == (
            nemo_gym.__version__,
            platform.python_version(),
        )
        assert found["host"]["cpus"] >= 1
        assert (found["num_repeats"], found["shard"], found["registry"]) == (2, None, None)
        plan = EvalPlan.from_json(Path("out/x_plan.json").read_text())
        assert plan.selected_task_ids == ("t0", "t1")
        assert found["plan_digest"] == plan_digest(plan)
        (segment,) = found["segments"]
        assert (segment["status"], segment["attempts"], segment["scored"], segment["concurrency"]) == (
            "finished",
            4,
            4,
            7,
        )
        assert segment["started"] < segment["ended"]
        assert set(segment["phases_s"]) == {"prepare", "images", "start", "run", "teardown"}
        assert found["timeline"] == [{"segment": 0, "phase": "images", "server": "", "begin_s": 0.0, "end_s": 0.25}]
        assert all(row["_ng_rollout_id"].startswith(f"{found['run_id']}-t") for row in lines("x.jsonl"))

    def test_it_is_there_while_the_run_is(self, served: Served) -> None:
        seen: list[Any] = []
        plan = Path("out/x_plan.json").is_file

        async def script(gym: FakeGym, row: dict[str, Any], request: Any) -> Any:
            seen.append((record()["segments"][0]["status"], plan()))
            return await by_task(1.0, 1.0, 1.0)(gym, row, request)

        served.gym.script = script
        assert run() == 0
        assert seen[0] == ("running", True)

    def test_its_config_resolves_to_itself(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        assert run() == 0
        stored = Path("out/x_config.yaml").read_text()
        capsys.readouterr()
        assert main(["env", "resolve", "--config", "out/x_config.yaml"]) == 0
        resolved = capsys.readouterr().out
        assert re.sub("^#.*\n", "", resolved, flags=re.MULTILINE) == re.sub("^#.*\n", "", stored, flags=re.MULTILINE)


class TestConcurrency:
    VIEW = HostView({"agent": "http://127.0.0.1:4000"}, {})

    def test_no_more_than_the_engines_proxy_carries(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(concurrency_module, "find_connection_limit", {4000: 150}.get)
        assert concurrency_here(500, self.VIEW, 10_000) == 150
        assert "150 rollouts at a time instead of 500" in capsys.readouterr().err
        assert concurrency_here(150, self.VIEW, 10_000) == 150
        assert concurrency_here(500, self.VIEW, 140) == 500
        assert concurrency_here(500, HostView({"agent": "http://10.0.0.5:4000"}, {}), 10_000) == 500
        assert capsys.readouterr().err == ""

    def test_no_more_than_this_process_may_have_open(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(concurrency_module, "find_connection_limit", lambda port: None)
        monkeypatch.setattr(concurrency_module, "connection_budget", lambda: 100)
        monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
        assert concurrency_here(500, self.VIEW, 10_000) == 100
        assert "this process has file descriptors for (`ulimit -n`)" in capsys.readouterr().err
