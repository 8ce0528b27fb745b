from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_gym.environment.stored_runs import find_one_result, find_results, load_run, name_task, read_run
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.results import ResultPaths
from nemo_gym.rollouts.stored import StoredResults, StoredRollout, read_stored
from tests.support.stored_results import failure, result, row, write_lines, write_results


def read(path: Path) -> StoredResults:
    return read_stored(ResultPaths(path), name_task)


def test_results_failures_and_what_is_missing(tmp_path: Path) -> None:
    path = write_results(
        tmp_path / "x.jsonl",
        [result(1, 0, 0.5), result(0, 1, 1), result(0, 0, 0.0)],
        [failure(1, 1, final=False), failure(1, 1, _ng_attempt_index=1), failure(0, 1, final=False)],
        [row(task, repeat) for task in range(3) for repeat in range(2)],
    )
    stored = read(path)
    assert stored.rollouts == [
        StoredRollout(0, 0, "t0", 0.0, 1.0, 10, 5),
        StoredRollout(0, 1, "t0", 1.0, 1.0, 10, 6),
        StoredRollout(1, 0, "t1", 0.5, 2.0, 11, 5),
    ]
    assert [(f.key, f.task, f.failure_class) for f in stored.failures] == [((1, 1), "t1", "http_error")]
    assert (stored.retries, stored.expected, stored.missing, stored.notices) == (2, 6, 2, [])


def test_a_rollout_that_failed_at_first_and_has_a_result_now_has_not_failed(tmp_path: Path) -> None:
    stored = read(write_results(tmp_path / "x.jsonl", [result(0, 0, 1.0)], [failure(0)]))
    assert (len(stored.rollouts), stored.failures, stored.retries) == (1, [], 1)


def test_a_task_without_any_result_is_named_by_its_input(tmp_path: Path) -> None:
    inputs = [row(0), row(1)]
    stored = read(write_results(tmp_path / "x.jsonl", [result(0, 0, 1.0)], [failure(1)], inputs))
    assert [f.task for f in stored.failures] == ["t1"]


def test_replies_that_hold_no_row_are_named_by_their_inputs(tmp_path: Path) -> None:
    reply = {"reward": 1.0, "_ng_task_index": 1, "_ng_rollout_index": 0}
    stored = read(write_results(tmp_path / "x.jsonl", [reply], inputs=[row(0), row(1)]))
    assert [(r.task, r.elapsed_s, r.input_tokens) for r in stored.rollouts] == [("t1", None, None)]
    without = read(write_results(tmp_path / "y.jsonl", [reply]))
    assert [r.task for r in without.rollouts] == ["1"]


def test_chat_completions_usage_counts_too(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    stored = read(write_results(tmp_path / "x.jsonl", [result(0, 0, 1.0, response={"usage": usage})]))
    assert (stored.rollouts[0].input_tokens, stored.rollouts[0].output_tokens) == (7, 3)


@pytest.mark.parametrize(
    "more", [{"reward": None}, {"reward": True}, {"reward": "1"}, {"_ng_failure_class": "judge"}, {"reward": 1e400}]
)
def test_what_carries_no_reward_is_a_failure_and_never_a_zero(tmp_path: Path, more: dict[str, object]) -> None:
    stored = read(write_results(tmp_path / "x.jsonl", [{**result(0, 0, 1.0), **more}, result(1, 0, 1.0)]))
    assert [r.key for r in stored.rollouts] == [(1, 0)]
    assert [f.key for f in stored.failures] == [(0, 0)]


def test_the_first_of_two_results_counts_and_is_told(tmp_path: Path) -> None:
    stored = read(write_results(tmp_path / "x.jsonl", [result(0, 0, 1.0), result(0, 0, 0.0)]))
    assert [r.reward for r in stored.rollouts] == [1.0]
    assert stored.notices == [f"{tmp_path / 'x.jsonl'}: 1 rollouts stand there twice; the first of each counts."]


def test_a_result_after_one_without_a_reward_is_the_rollouts_own(tmp_path: Path) -> None:
    lines = [result(0, 0, 0.0, _ng_failure_class="judge"), result(0, 0, 1.0), result(1, 0, 0.0)]
    stored = read(write_results(tmp_path / "x.jsonl", lines))
    assert [r.reward for r in stored.rollouts] == [1.0, 0.0]
    assert stored.failures == []


def test_a_last_line_that_was_cut_off_is_left_out_and_told(tmp_path: Path) -> None:
    path = write_results(tmp_path / "x.jsonl", [result(0, 0, 1.0)])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    stored = read(path)
    assert len(stored.rollouts) == 1
    assert stored.notices[0].startswith(f"{path}, line 2: cut off after 40 bytes")
    path.write_bytes(whole + whole[:-1].replace(b'"_ng_rollout_index": 0', b'"_ng_rollout_index": 1'))
    assert (len(read(path).rollouts), read(path).notices) == (2, [])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{torn\n", "line 2: needed a JSON object; found '{torn'"),
        ("[1]\n", "line 2: needed a JSON object; found '[1]'"),
        ('{"reward": 1}\n', "line 2: needs _ng_task_index, a whole number"),
        ('{"_ng_task_index": "1"}\n', "found '1'"),
        ('{"_ng_task_index": 1, "_ng_rollout_index": 0, "task_id": []}\n', "line 2: task_id must be a text"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: str, said: str) -> None:
    path = write_results(tmp_path / "x.jsonl", [result(0, 0, 1.0)])
    path.write_text(path.read_text(encoding="utf-8") + line + json.dumps(result(1, 0, 1.0)) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        read(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_half_a_character_and_blank_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n" + json.dumps(result(0, 0, 1.0, answer="\ud800")) + "\n\n", encoding="utf-8")
    assert len(read(path).rollouts) == 1


class TestWhichRunIsMeant:
    def test_a_file_a_folder_and_a_record(self, tmp_path: Path) -> None:
        path = write_results(tmp_path / "x.jsonl", [result(0, 0, 1.0)], inputs=[row(0)])
        write_lines(tmp_path / "x_records.jsonl", [])
        for given in (path, tmp_path, tmp_path / "x_run.json"):
            assert find_one_result(given).rollouts == path

    def test_a_folder_of_several(self, tmp_path: Path) -> None:
        for name in ("b", "a"):
            write_results(tmp_path / f"{name}.jsonl", [])
        (tmp_path / "killed_run.json").write_text("{}", encoding="utf-8")
        assert [paths.rollouts.name for paths in find_results(tmp_path)] == ["a.jsonl", "b.jsonl", "killed.jsonl"]
        with pytest.raises(ConfigError, match="holds the results of 3 runs; give one of them"):
            find_one_result(tmp_path)

    def test_what_holds_none(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="There are no results in"):
            find_results(tmp_path)
        with pytest.raises(ConfigError, match=r"There are no results at .*no\.jsonl"):
            read_run(tmp_path / "no.jsonl")
        path = write_results(tmp_path / "x.jsonl", [])
        with pytest.raises(ConfigError, match=rf"holds none. Give {path}"):
            find_results(tmp_path / "x_failures.jsonl")

    def test_parts_that_are_missing_or_unreadable_are_told(self, tmp_path: Path) -> None:
        path = write_results(tmp_path / "x.jsonl", [result(0, 0, 1.0)])
        (tmp_path / "x_plan.json").write_text("{}", encoding="utf-8")
        run = read_run(path)
        assert run.unrecorded["x_run.json"] == "not there"
        assert run.unrecorded["x_plan.json"].startswith("cannot be read: Eval plan: the plan lacks schema")
        assert (run.record, run.plan, run.config, run.benchmark) == (None, None, None, None)
        assert run.figures()["mean_reward"] == 1.0

    def test_a_run_without_results_yet(self, tmp_path: Path) -> None:
        run = load_run(ResultPaths(tmp_path / "x.jsonl"), results_needed=False)
        assert run.results.notices == [f"{tmp_path / 'x.jsonl'} is not there: the run has written no result."]
        assert run.figures()["mean_reward"] is None
