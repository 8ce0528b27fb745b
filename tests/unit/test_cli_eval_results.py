from __future__ import annotations

import contextlib
import csv
import io
import json
import platform
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from nemo_gym.cli.main import main
from nemo_gym.containers.image_lock import ImageLock, LockedImage
from nemo_gym.environment import verifiers
from nemo_gym.eval.eval_plan import GymVersion, PlannedFrom, PlannedTask, TaskId, build_plan
from nemo_gym.eval.plan_difference import plan_digest
from nemo_gym.rollouts.provenance import RunRecord, Segment
from nemo_gym.rollouts.shards import Shard
from nemo_gym.rollouts.verification import Verifier
from tests.support.stored_results import failure, result, row, write_results

Output = pytest.CaptureFixture[str]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three tasks twice each: one always right, one never, one now and then; a fourth that failed."""
    rewards = {0: (1, 1), 1: (0, 0), 2: (0, 1)}
    return write_results(
        tmp_path / "x.jsonl",
        [result(task, repeat, reward) for task, both in rewards.items() for repeat, reward in enumerate(both)],
        [failure(3)],
        [row(task, repeat) for task in range(4) for repeat in range(2)],
    )


def printed(capsys: Output, *command: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(["eval", *command]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


class TestProfile:
    def test_a_table_and_figures(self, results: Path, capsys: Output) -> None:
        out, err = printed(capsys, "profile", str(results), "--sort", "unstable", "--limit", "2")
        lines = out.splitlines()
        assert lines[0].split("  ")[0] == "task"
        assert [line.split()[0] for line in lines[2:4]] == ["t2", "t0"]
        assert "6 of 8 with a reward, 1 failed" in out
        assert "0.5000 (95% interval" in out
        assert "2 of 4 tasks; the figures below are of all." in err
        assert "1 of 8 rollouts have not ended" in err

    def test_json_and_csv_hold_the_same(self, results: Path, capsys: Output) -> None:
        out, _ = printed(capsys, "profile", str(results), "--json", "--below", "0.9")
        found = json.loads(out)
        assert [task["task"] for task in found["tasks"]] == ["t1", "t2"]
        assert found["summary"]["pass_rates"]["pass@2"] == pytest.approx(2 / 3)
        out, _ = printed(capsys, "profile", str(results), "--csv", "--task-ids", "t2,t3")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [(r["task"], r["repeats"], r["failed"], r["mean"]) for r in rows] == [
            ("t2", "2", "0", "0.5"),
            ("t3", "0", "1", ""),
        ]

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (["--csv", "--json"], "two ways to print the same"),
            (["--task-ids", "t22"], "has no rollout of task 't22'. Did you mean 't2'"),
        ],
    )
    def test_what_cannot_be(self, results: Path, capsys: Output, more: list[str], said: str) -> None:
        assert said in printed(capsys, "profile", str(results), *more, code=2)[1]

    def test_a_bad_line_is_a_sentence(self, tmp_path: Path, capsys: Output) -> None:
        (tmp_path / "x.jsonl").write_text("junk\n", encoding="utf-8")
        assert "x.jsonl, line 1: needed a JSON object" in printed(capsys, "profile", str(tmp_path), code=2)[1]


class TestCompare:
    def test_the_difference_and_what_flipped(self, results: Path, tmp_path: Path, capsys: Output) -> None:
        (tmp_path / "b").mkdir()
        better = [result(task, repeat, 1.0) for task in range(3) for repeat in range(2)]
        other = write_results(tmp_path / "b" / "y.jsonl", better)
        out, err = printed(capsys, "compare", str(results), str(other))
        assert "+0.5000 (95% interval -0.7421 to +1.7421: no difference can be told)" in out
        assert "won 2, lost 0, left the same 1" in out
        assert "p = 0.5 for a split this uneven" in out
        assert "left out, only in A" in out
        assert "1 (t3)" in out
        assert "Won by B: 2 tasks" in out
        assert "Whether tasks of one id ask the same is not known" in err
        found = json.loads(printed(capsys, "compare", str(results), str(other), "--json")[0])
        assert found["mean_difference"] == 0.5
        assert [pair["task"] for pair in found["won"]] == ["t1", "t2"]
        assert found["files"] == {"first": str(results), "second": str(other)}

    def test_check_fails_when_the_second_run_fell_behind(self, results: Path, tmp_path: Path, capsys: Output) -> None:
        (tmp_path / "b").mkdir()
        whole = write_results(tmp_path / "b" / "whole.jsonl", [result(task, 0, 1.0) for task in range(3)])
        worse = write_results(tmp_path / "b" / "worse.jsonl", [result(task, 0, float(task > 0)) for task in range(3)])
        fewer = write_results(tmp_path / "b" / "fewer.jsonl", [result(0, 0, 1.0)])
        printed(capsys, "compare", str(whole), str(worse))
        printed(capsys, "compare", str(whole), str(whole), "--check")
        printed(capsys, "compare", str(worse), str(whole), "--check")
        printed(capsys, "compare", str(fewer), str(whole), "--check")
        printed(capsys, "compare", str(whole), str(worse), "--check", code=1)
        printed(capsys, "compare", str(whole), str(fewer), "--check", code=1)

    def test_no_task_in_common(self, results: Path, tmp_path: Path, capsys: Output) -> None:
        other = write_results(tmp_path / "y.jsonl", [result(9, 0, 1.0)])
        assert "no task in common" in printed(capsys, "compare", str(results), str(other), code=2)[1]


class TestShow:
    def test_a_run_with_a_record(self, results: Path, capsys: Output) -> None:
        segment = Segment(
            "2026-01-01T00:00:00.000Z", ["gym"], 32, ended="2026-01-01T00:01:00.000Z", status="failed",
            reason="server 'x' died.", scored=6, failed=1, attempts=8, phases_s={"start": 1.5, "run": 58.0},
        )  # fmt: skip
        record = RunRecord(
            run_id="r1", benchmark="demo/hard", command=["gym", "eval", "run", "--task-ids", "a b"],
            versions={"nemo_gym": "1.2"}, host={"cpus": 2}, plan_digest="p", config_digest="c" * 64, num_repeats=2,
            shard=Shard(1, 3), segments=[segment],
        )  # fmt: skip
        results.with_name("x_run.json").write_text(record.to_json(), encoding="utf-8")
        config = "policy_model_name: m\npolicy_base_url: http://h/v1\npolicy_api_key: sk-left-in-by-hand\n"
        results.with_name("x_config.yaml").write_text(config, encoding="utf-8")
        out, _ = printed(capsys, "show", str(results.parent), "--config")
        pairs = dict(line.split("  ", 1) for line in out.splitlines() if "  " in line)
        shown = {name: value.strip() for name, value in pairs.items()}
        assert (shown["benchmark"], shown["model"], shown["status"]) == ("demo/hard", "m at http://h/v1", "failed")
        assert shown["command"] == "gym eval run --task-ids 'a b'"
        assert (shown["repeats"], shown["shard"], shown["versions"]) == ("2", "1 of 3", "nemo_gym 1.2")
        assert shown["plan"] == shown["images"] == "(not recorded)"
        assert "start 1.5, run 58.0" in out
        assert "Segment 1: server 'x' died." in out
        assert "1 rollouts have not ended" in out
        assert "policy_api_key: '***'" in out
        assert "sk-left-in-by-hand" not in out
        (found,) = json.loads(printed(capsys, "show", str(results.parent), "--json")[0])
        assert found["segments"][0]["phases_s"] == {"start": 1.5, "run": 58.0}
        assert found["config"]["policy_api_key"] == "***"
        assert found["figures"]["rollouts"] == {"total": 8, "scored": 6, "failed": 1, "retries": 0}
        assert found["unrecorded"]["x_plan.json"] == "not there"

    def test_a_foreign_run_and_one_that_was_killed_at_once(self, tmp_path: Path, capsys: Output) -> None:
        write_results(tmp_path / "a.jsonl", [{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0}])
        (tmp_path / "b_run.json").write_text("{}", encoding="utf-8")
        out, err = printed(capsys, "show", str(tmp_path))
        assert "a_run.json                not there" in out
        assert "b_run.json                cannot be read: " in out
        assert "b.jsonl is not there: the run has written no result." in err
        found = json.loads(printed(capsys, "show", str(tmp_path / "a.jsonl"), "--json")[0])
        assert (found["status"], found["benchmark"], found["figures"]["mean_reward"]) == ("unknown", None, 1.0)

    def test_plan_and_images(self, results: Path, capsys: Output) -> None:
        tasks = [PlannedTask(TaskId("demo", f"t{task}"), f"{task}" * 64) for task in range(4)]
        plan = build_plan(PlannedFrom("demo", ("demo.yaml",)), GymVersion("c0ffee" * 6), tasks, ["t0", "t1"])
        results.with_name("x_plan.json").write_text(plan.to_json(), encoding="utf-8")
        image = LockedImage(
            "registry", "nemo-gym/registry:1", "c" * 64, "sha256:" + "f" * 64, packages={"aiohttp": "3"}
        )
        results.with_name("x_images.lock.json").write_text(ImageLock((image,)).to_json(), encoding="utf-8")
        out, _ = printed(capsys, "show", str(results))
        assert f"4 tasks, selected, digest {plan_digest(plan)[:12]}, made with commit c0ffeec0ffee" in out
        assert f"images     1, digest {ImageLock((image,)).digest()[:12]}" in out
        assert "registry  nemo-gym/registry:1  ffffffffffff         1" in out
        found = json.loads(printed(capsys, "show", str(results), "--json")[0])
        assert found["plan"]["digest"] == plan_digest(plan)
        assert found["images"]["images"][0]["context"] == "c" * 64
        assert found["benchmark"] == "demo"

    def test_one_that_nobody_writes_any_more_was_killed(self, results: Path, capsys: Output) -> None:
        def status(host: str) -> tuple[str, str]:
            segment = Segment("2026-01-01T00:00:00.000Z", ["gym"], 32, host={"name": host})
            record = RunRecord("r", "demo", ["gym"], {}, {}, "p", "c", 2, segments=[segment])
            results.with_name("x_run.json").write_text(record.to_json(), encoding="utf-8")
            found = json.loads(printed(capsys, "show", str(results), "--json")[0])
            return found["status"], found["segments"][-1]["status"]

        assert status(platform.node()) == ("killed", "killed")
        assert not results.with_name(".x.lock").exists()
        with FileLock(results.with_name(".x.lock")):
            assert status(platform.node()) == ("running", "running")
        assert status(platform.node()) == ("killed", "killed")
        assert status("another-machine") == ("running", "running")


class TestAggregate:
    def test_shards_without_an_engine(self, results: Path, tmp_path: Path, capsys: Output) -> None:
        more = write_results(tmp_path / "y.jsonl", [result(4, 0, 1.0)], [], [row(4)])
        output = tmp_path / "out" / "z.jsonl"
        command = ["aggregate", str(results), str(more), "--output", str(output), "--no-verifier-metrics"]
        out, _ = printed(capsys, *command)
        assert "7 of 9 with a reward, 1 failed" in out
        assert f"rollouts:  {output}" in out
        assert "exists already" in printed(capsys, *command, code=2)[1]
        found = json.loads(printed(capsys, *command, "--overwrite", "--json")[0])
        assert found["rewards"]["t4"] == [1.0]

    def test_onto_its_own_input(self, results: Path, capsys: Output) -> None:
        command = ["aggregate", str(results), "--output", str(results), "--overwrite"]
        assert f"--output {results} would replace {results}, which is read" in printed(capsys, *command, code=2)[1]
        assert results.stat().st_size > 0

    def test_onto_what_stands_beside_its_input(self, results: Path, tmp_path: Path, capsys: Output) -> None:
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        old = results.rename(tmp_path / "x.txt")
        command = ["aggregate", str(old), "--output", str(results), "--overwrite"]
        assert "x_materialized_inputs.jsonl, which is read" in printed(capsys, *command, code=2)[1]
        old.rename(results)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    @pytest.mark.parametrize("command", ["aggregate", "reverify"])
    def test_onto_a_run_that_is_under_way(self, command: str, results: Path, tmp_path: Path, capsys: Output) -> None:
        output = write_results(tmp_path / "z.jsonl", [result(0, 0, 1.0)])
        with FileLock(tmp_path / ".z.lock"):
            _, err = printed(capsys, command, str(results), "--output", str(output), "--overwrite", code=2)
        assert f"Another process is writing to {output}" in err
        assert len(output.read_text(encoding="utf-8").splitlines()) == 1

    def test_no_key_is_in_the_new_record(self, results: Path, tmp_path: Path, capsys: Output) -> None:
        record = RunRecord("r", "demo", ["gym"], {}, {}, "p", "c", 2)
        results.with_name("x_run.json").write_text(record.to_json(), encoding="utf-8")
        keys = ["++judge.headers={Authorization: Token sk canary}", "++a.api_keys=[canary1,canary2]"]
        output = ["--output", str(tmp_path / "z.jsonl"), "--no-verifier-metrics"]
        printed(capsys, "aggregate", str(results), *output, *keys)
        text = (tmp_path / "z_run.json").read_text(encoding="utf-8")
        assert "canary" not in text
        assert json.loads(text)["command"][-2:] == ["++judge.headers={Authorization: ***}", "++a.api_keys=***,***]"]

    def test_a_benchmark_that_nobody_names(self, results: Path, tmp_path: Path, capsys: Output) -> None:
        command = ["aggregate", str(results), "--output", str(tmp_path / "z.jsonl")]
        _, err = printed(capsys, *command, code=2)
        assert "does not say which benchmark it is of. Give it: --benchmark NAME" in err
        assert "--no-verifier-metrics --overwrite leaves them out" in err


class _AlwaysRight(BaseHTTPRequestHandler):
    """A verifier for which every answer is right."""

    def do_GET(self) -> None:
        self._answer('"stateless"')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        metrics = {"key_metrics": {"judged": len(body.get("verify_responses", []))}}
        self._answer(json.dumps(metrics if self.path == "/aggregate_metrics" else {**body, "reward": 1.0}))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A config whose verifier is served in this process, as options."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _AlwaysRight)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()

    @contextlib.contextmanager
    def serve(config: Any, found: verifiers.VerifierConfig, search_dirs: Any = ()) -> Iterator[Any]:
        url = f"http://127.0.0.1:{server.server_address[1]}"

        session = SimpleNamespace(images={"registry": "image"})
        yield session, {agent: Verifier(name, url) for agent, name in found.verifier_of_agent.items()}

    monkeypatch.setattr(verifiers, "serve_verifiers", serve)
    path = tmp_path / "demo.yaml"
    path.write_text(
        """
demo_server: {resources_servers: {mcqa: {entrypoint: app.py, domain: other, strict: true}}}
demo_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: demo_server}
      model_server: {type: responses_api_models, name: policy_model}
""",
        encoding="utf-8",
    )
    yield ["--config", str(path)]
    server.shutdown()
    thread.join()
    server.server_close()


class TestReverify:
    def test_what_changes_is_told(self, results: Path, benchmark: list[str], tmp_path: Path, capsys: Output) -> None:
        out, _ = printed(capsys, "reverify", str(results), *benchmark)
        assert "Rewards that changed: 3" in out
        assert "6 of 6 rollouts, 0 could not be" in out
        assert "0.5000 (95% interval" in out
        assert sorted(p.name for p in tmp_path.glob("*.jsonl")) == [
            "x.jsonl", "x_failures.jsonl", "x_materialized_inputs.jsonl"
        ]  # fmt: skip
        assert main(["eval", "reverify", str(results), *benchmark, "--check"]) == 1

    def test_new_results(self, results: Path, benchmark: list[str], tmp_path: Path, capsys: Output) -> None:
        stored = (
            "demo_server: {resources_servers: {mcqa: {entrypoint: app.py, domain: other}}}\n"
        )  # fmt: skip
        results.with_name("x_config.yaml").write_text(stored, encoding="utf-8")
        output = tmp_path / "new" / "y.jsonl"
        record = RunRecord("r", "demo", ["gym"], {}, {}, "p", "c", 2)
        results.with_name("x_run.json").write_text(record.to_json(), encoding="utf-8")
        command = ["reverify", str(results), *benchmark, "--output", str(output), "--json", "judge_api_key=sk-typed"]
        out, err = printed(capsys, *command)
        found = json.loads(out)
        assert (found["verified"], found["changed"], found["failed"]) == (6, 3, 0)
        assert found["changes"][0] == {"task": "t1", "repeat": 0, "before": 0.0, "after": 1.0, "fields": {}}
        assert (found["mean_reward_before"]["mean"], found["mean_reward_after"]["mean"]) == (0.5, 1.0)
        assert "demo_server.resources_servers.mcqa.strict was None, is true" in err
        (entry,) = json.loads(output.with_name("y_run.json").read_bytes())["reverified"]
        assert entry["command"] == ["gym", "eval", *command[:-1], "judge_api_key=***"]
        shown = json.loads(printed(capsys, "show", str(output), "--json")[0])
        assert shown["figures"]["mean_reward"] == 1.0
        assert shown["figures"]["key_metrics"] == {"judged": 6}
        assert shown["figures"]["rollouts"]["failed"] == 1

    def test_aggregate_asks_the_verifier_for_its_metrics(
        self, results: Path, benchmark: list[str], tmp_path: Path, capsys: Output
    ) -> None:
        output = tmp_path / "z.jsonl"
        out, _ = printed(capsys, "aggregate", str(results), *benchmark, "--output", str(output), "--json")
        assert json.loads(out)["key_metrics"] == {"judged": 6}

    def test_nothing_to_verify(self, tmp_path: Path, capsys: Output) -> None:
        path = write_results(tmp_path / "x.jsonl", [], [failure(0)])
        assert "nothing to verify" in printed(capsys, "reverify", str(path), code=2)[1]
