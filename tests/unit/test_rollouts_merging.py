from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.environment.aggregation import aggregate_runs
from nemo_gym.environment.stored_runs import read_run
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.provenance import RunRecord, Segment
from nemo_gym.rollouts.results import ResultPaths
from nemo_gym.rollouts.shards import Shard
from tests.support.stored_results import failure, result, row, write_results

TASKS = range(5)


def record(shard: Shard | None = None, **more: Any) -> RunRecord:
    values: dict[str, Any] = {
        "run_id": f"run{shard.index if shard else 0}",
        "benchmark": "demo",
        "command": ["gym"],
        "versions": {"nemo_gym": "1"},
        "host": {},
        "plan_digest": "p",
        "config_digest": "c",
        "num_repeats": 2,
        "shard": shard,
    }
    return RunRecord(**{**values, **more})


def write_shard(folder: Path, index: int, count: int = 2) -> Path:
    """Shard ``index`` of a run of five tasks twice each, of which one rollout failed."""
    tasks = Shard(index, count).of(list(TASKS))
    path = folder / f"part-{index}.jsonl"
    write_results(
        path,
        [result(t, r, float(t % 2)) for t in tasks for r in range(2) if (t, r) != (2, 1)],
        [failure(t, 1) for t in tasks if t == 2],
        [row(t, r) for t in tasks for r in range(2)],
    )
    segment = Segment(f"2026-01-0{3 - index}T00:00:00.000Z", ["gym"], 4, status="finished")
    entry = {"segment": 0, "phase": "servers", "server": "", "begin_s": float(index), "end_s": 3.0}
    made = record(Shard(index, count), segments=[segment], timeline=[entry])
    (folder / f"part-{index}_run.json").write_text(made.to_json(), encoding="utf-8")
    return path


def test_shards_make_the_files_of_one_run(tmp_path: Path) -> None:
    shards = [write_shard(tmp_path, index) for index in (2, 1)]
    whole = write_results(
        tmp_path / "whole.jsonl",
        [result(t, r, float(t % 2)) for t in TASKS for r in range(2) if (t, r) != (2, 1)],
        [failure(2, 1)],
        [row(t, r) for t in TASKS for r in range(2)],
    )
    output = ResultPaths(tmp_path / "out.jsonl")
    assert aggregate_runs(shards, output, command=["gym", "eval", "aggregate"]) == []
    for suffix in (".jsonl", "_failures.jsonl", "_materialized_inputs.jsonl"):
        assert (tmp_path / f"out{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    run = read_run(output.rollouts)
    assert run.figures() == read_run(whole).figures()
    assert run.record is not None
    assert (run.record.shard, run.record.command) == (None, ["gym", "eval", "aggregate"])
    assert [segment.started[:10] for segment in run.record.segments] == ["2026-01-01", "2026-01-02"]
    # shard 2 began first
    assert [(entry["segment"], entry["begin_s"]) for entry in run.record.timeline] == [(0, 2.0), (1, 1.0)]
    document = json.loads(output.run.read_bytes())
    assert [part["shard"]["index"] for part in document["aggregated_from"]] == [2, 1]
    assert list(tmp_path.glob(".*")) == []


def test_plain_files_without_a_record_go_together(tmp_path: Path) -> None:
    first = write_results(tmp_path / "a.jsonl", [result(1, 0, 1.0)])
    second = write_results(tmp_path / "b.jsonl", [result(0, 0, 0.0)])
    output = ResultPaths(tmp_path / "out.jsonl")
    assert aggregate_runs([first, second], output) == ["Not every run has kept its inputs: they are left out."]
    assert [r.task for r in read_run(output.rollouts).results.rollouts] == ["t0", "t1"]
    assert not output.run.exists()


def test_records_come_together_without_a_line_that_was_cut_off(tmp_path: Path) -> None:
    parts = [write_results(tmp_path / f"{name}.jsonl", [result(n, 0, 1.0)]) for n, name in enumerate("abc")]
    for part, text in zip(parts, ('{"id":"1"}\n{"id":"cut', '{"id":"2"}\n{"id":"3"}', None), strict=True):
        if text is not None:
            part.with_name(f"{part.stem}_records.jsonl").write_text(text, encoding="utf-8")
    output = ResultPaths(tmp_path / "out.jsonl")
    notices = aggregate_runs(parts, output)
    assert output.records.read_text(encoding="utf-8") == '{"id":"1"}\n{"id":"2"}\n{"id":"3"}\n'
    assert any("a_records.jsonl, line 2: cut off after 10 bytes" in notice for notice in notices)


def test_files_that_are_not_there_are_all_named(tmp_path: Path) -> None:
    there = write_results(tmp_path / "a.jsonl", [result(0, 0, 1.0)])
    output = ResultPaths(tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=r"There are no results at \S*/no\.jsonl, \S*/nor\.jsonl\. Give the rollouts"):
        aggregate_runs([tmp_path / "no.jsonl", there, tmp_path / "nor.jsonl"], output)
    assert not output.rollouts.exists()


def test_a_result_without_a_reward_does_not_stand_in_the_way_of_one_that_has_it(tmp_path: Path) -> None:
    marked = result(0, 0, 0.0, _ng_failure_class="judge")
    first = write_results(tmp_path / "a.jsonl", [marked, result(0, 0, 1.0)])
    second = write_results(tmp_path / "b.jsonl", [result(1, 0, 0.0)])
    output = ResultPaths(tmp_path / "out.jsonl")
    aggregate_runs([first, second], output)
    run = read_run(output.rollouts)
    assert [r.reward for r in run.results.rollouts] == [1.0, 0.0]
    assert run.figures()["rollouts"] == {"total": 2, "scored": 2, "failed": 0, "retries": 0}


def test_a_shard_that_is_missing_is_refused_or_told(tmp_path: Path) -> None:
    shards = [write_shard(tmp_path, index, 4) for index in (1, 3)]
    output = ResultPaths(tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=r"2 of 4 shards are not among these files: 2/4, 4/4\."):
        aggregate_runs(shards, output)
    assert not output.rollouts.exists()
    notices = aggregate_runs(shards, output, allow_missing=True)
    assert notices == ["2 of 4 shards are missing (2/4, 4/4): the figures are not those of the whole run."]


def test_the_same_rollout_in_two_files_is_refused(tmp_path: Path) -> None:
    first = write_results(tmp_path / "a.jsonl", [result(0, 0, 1.0), result(1, 0, 1.0)])
    second = write_results(tmp_path / "b.jsonl", [result(1, 0, 0.0)])
    output = ResultPaths(tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=r"both hold the rollout of task index 1, repeat 0: they are no shards"):
        aggregate_runs([first, second], output)
    with pytest.raises(ConfigError, match="given twice"):
        aggregate_runs([first, tmp_path / "." / "a.jsonl"], output)
    assert not output.rollouts.exists()


def test_rollouts_that_failed_in_one_file_and_were_planned_in_another_overlap_too(tmp_path: Path) -> None:
    first = write_results(tmp_path / "a.jsonl", [], [failure(0)], [row(0)])
    second = write_results(tmp_path / "b.jsonl", [result(0, 0, 1.0)], [], [row(0)])
    with pytest.raises(ConfigError, match="no shards of one run"):
        aggregate_runs([first, second], ResultPaths(tmp_path / "out.jsonl"))


def test_shards_of_different_counts(tmp_path: Path) -> None:
    (tmp_path / "four").mkdir()
    shards = [write_shard(tmp_path, 1, 2), write_shard(tmp_path / "four", 2, 4)]
    with pytest.raises(ConfigError, match="shards of 2 and of 4"):
        aggregate_runs(shards, ResultPaths(tmp_path / "out.jsonl"))


def test_other_settings_are_refused_or_told(tmp_path: Path) -> None:
    shards = [write_shard(tmp_path, index) for index in (1, 2)]
    for index, model in ((1, "small"), (2, "large")):
        (tmp_path / f"part-{index}_config.yaml").write_text(f"policy_model_name: {model}\n", encoding="utf-8")
    output = ResultPaths(tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=r"configured otherwise than .*: policy_model_name\. Add --allow-differing"):
        aggregate_runs(shards, output)
    (notice,) = aggregate_runs(shards, output, allow_differing=True)
    assert notice.endswith("part-1.jsonl: policy_model_name.")


def test_another_plan_is_refused_in_any_case(tmp_path: Path) -> None:
    from nemo_gym.eval.eval_plan import GymVersion, PlannedFrom, PlannedTask, TaskId, build_plan

    shards = [write_shard(tmp_path, index) for index in (1, 2)]
    for index in (1, 2):
        task = PlannedTask(TaskId("demo", "t0"), f"{index}" * 64)
        plan = build_plan(PlannedFrom("demo", ()), GymVersion(None), [task])
        (tmp_path / f"part-{index}_plan.json").write_text(plan.to_json(), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"another plan .*: 1 task gets another input \('t0'\)"):
        aggregate_runs(shards, ResultPaths(tmp_path / "out.jsonl"), allow_differing=True)
