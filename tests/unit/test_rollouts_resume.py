from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.report import RunTally
from nemo_gym.rollouts.results import ResultPaths
from nemo_gym.rollouts.resume import Earlier, load_earlier
from nemo_gym.rollouts.run import Tried

WANTED = {(task, repeat) for task in range(3) for repeat in range(2)}


def result(task: int, repeat: int = 0, reward: float = 1.0) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": reward, "_ng_elapsed_s": 0.5}


def failure(task: int, attempt: int, *, final: bool) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": 0, "_ng_attempt_index": attempt, "final": final}


def load(tmp_path: Path, results: list[Any], failures: list[Any]) -> tuple[Earlier, RunTally]:
    paths = ResultPaths(tmp_path / "x.jsonl")
    for path, records in ((paths.rollouts, results), (paths.failures, failures)):
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    tally = RunTally(total=6, name_task=lambda row: f"t{row['_ng_task_index']}")
    return load_earlier(paths, WANTED, tally), tally


def test_results_count_and_are_not_run_again(tmp_path: Path) -> None:
    earlier, tally = load(tmp_path, [result(2, 1, 0.0), result(0)], [])
    assert earlier.scored == {(2, 1), (0, 0)}
    assert (tally.done, tally.scored, tally.mean, tally.latencies_s) == (2, 2, 0.5, [0.5, 0.5])
    assert tally.rewards_of_task() == {"t0": [1.0], "t2": [0.0]}
    assert not earlier.notices


def test_of_two_results_the_first_counts_and_that_is_said(tmp_path: Path) -> None:
    earlier, tally = load(tmp_path, [result(1, reward=1.0), result(1, reward=0.0)], [])
    assert (tally.done, tally.mean, len(earlier.rollouts)) == (1, 1.0, 1)
    assert "1 rollouts stood there twice" in earlier.notices[0]


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([(0, False)], Tried(1, 1)),
        ([(0, False), (1, False)], Tried(2, 2)),
        ([(0, False), (1, False), (2, True)], Tried(3, 0)),
        ([(0, True), (1, False)], Tried(2, 1)),
    ],
)
def test_attempts_go_on_where_they_were(tmp_path: Path, attempts: list[tuple[int, bool]], expected: Tried) -> None:
    earlier, tally = load(tmp_path, [], [failure(0, number, final=final) for number, final in attempts])
    assert earlier.tried == {(0, 0): expected}
    assert (tally.retries, tally.done) == (len(attempts), 0)


def test_a_line_cut_off_is_told(tmp_path: Path) -> None:
    paths = ResultPaths(tmp_path / "x.jsonl")
    whole = json.dumps(result(0)) + "\n" + json.dumps(result(1)) + "\n"
    paths.rollouts.write_text(whole[:-10], encoding="utf-8")
    left = [tmp_path / name for name in (".x.jsonl.sorting", ".x_run.json.4711", ".x_failures.jsonl.partial")]
    others = [tmp_path / name for name in (".x.lock", ".y.jsonl.sorting", ".x.jsonl.old")]
    for path in (*left, *others):
        path.write_text("half", encoding="utf-8")
    earlier = load_earlier(paths, WANTED, RunTally(total=6, name_task=str))
    assert earlier.scored == {(0, 0)}
    assert earlier.notices[0].startswith(f"{paths.rollouts}: the last line was cut off mid-write; its ")
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)


@pytest.mark.parametrize(
    ("results", "failures", "message"),
    [
        ([result(7)], [], "task index 7, repeat 0, which this run does not have"),
        ([{"reward": 1.0}], [], "says of no task and repeat"),
        ([{**result(0), "reward": None}], [], "has no reward"),
        ([], [{"_ng_task_index": 0, "_ng_rollout_index": 0}], "has no _ng_attempt_index"),
    ],
)
def test_what_the_run_cannot_have_written(
    tmp_path: Path, results: list[Any], failures: list[Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, results, failures)
