from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.environment.run_comparison import RunComparison, compare_runs
from nemo_gym.environment.stored_runs import input_of, read_run
from nemo_gym.rollouts.metrics import mean_difference
from tests.support.stored_results import failure, result, row, write_results

Rows = Sequence[dict[str, Any]]


def compared(tmp_path: Path, first: Rows, second: Rows, **more: dict[str, Any]) -> RunComparison:
    write_results(tmp_path / "a.jsonl", first, **more.get("a", {}))
    write_results(tmp_path / "b.jsonl", second, **more.get("b", {}))
    return compare_runs(read_run(tmp_path / "a.jsonl"), read_run(tmp_path / "b.jsonl"))


def test_single_verdicts_by_hand(tmp_path: Path) -> None:
    before, after = [1, 0, 0, 0, 1, 0], [1, 1, 1, 1, 0, 0]
    found = compared(
        tmp_path,
        [result(task, 0, reward) for task, reward in enumerate(before)],
        [result(task, 0, reward) for task, reward in enumerate(after)],
    ).comparison
    assert [pair.task for pair in found.won] == ["t1", "t2", "t3"]
    assert [pair.task for pair in found.lost] == ["t4"]
    assert found.p_value == 2 * (1 + 4) / 16  # McNemar's exact test of 3 to 1
    assert found.difference == mean_difference([0, 1, 1, 1, -1, 0], of_single_verdicts=True)
    assert found.difference is not None
    assert found.difference.mean == pytest.approx(1 / 3)
    assert found.first.mean is not None
    assert found.first.mean.mean == pytest.approx(1 / 3)


def test_repeats_count_by_their_tasks_mean(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        [result(0, 0, 1), result(0, 1, 0), result(1, 0, 1)],
        [result(0, 0, 1), result(0, 1, 1), result(0, 2, 1), result(1, 0, 0.5)],
    ).comparison
    assert [(pair.first, pair.second, pair.verdict) for pair in found.pairs] == [(0.5, 1.0, "won"), (1.0, 0.5, "lost")]
    assert found.difference == mean_difference([0.5, -0.5])


def test_rewards_of_scores_have_students_interval(tmp_path: Path) -> None:
    first = [result(task, 0, task / 10) for task in range(4)]
    found = compared(tmp_path, first, [{**r, "reward": r["reward"] + 0.1 * n} for n, r in enumerate(first)]).comparison
    assert found.difference is not None
    assert found.difference.interval_method == "student-t"
    assert len(found.won) == 3


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        [result(0, 0, 1), result(1, 0, 1), result(2, 0, 1), result(3, 0, 1)],
        [result(0, 0, 1), result(2, 0, 1), result(4, 0, 1)],
        a={"inputs": [row(task) for task in range(4)]},
        b={
            "inputs": [row(0), {**row(2), "responses_create_params": {"input": "Another?"}}, row(3), row(4)],
            "failures": [failure(3)],
        },
    ).comparison
    assert [pair.task for pair in found.pairs] == ["t0"]
    assert found.only_in_first == ("t1",)
    assert found.only_in_second == ("t4",)
    assert found.asked_otherwise == ("t2",)
    assert found.without_reward == ("t3",)
    assert (found.second.failed, found.second.missing) == (1, 0)
    as_json = found.to_dict()
    assert (as_json["paired_tasks"], as_json["second"]["failed"], as_json["without_reward"]) == (1, 1, ["t3"])


def test_another_temperature_asks_the_same_and_is_told(tmp_path: Path) -> None:
    def at(temperature: float) -> dict[str, Any]:
        params = {"input": "Question 0?", "temperature": temperature, "max_output_tokens": 16}
        return {"inputs": [{**row(0), "responses_create_params": params}]}

    found = compared(tmp_path, [result(0, 0, 1)], [result(0, 0, 0)], a=at(0.0), b=at(0.7))
    assert len(found.comparison.pairs) == 1
    assert [(d.key, d.first, d.second) for d in found.settings] == [("request: temperature", "0.0", "0.7")]


def test_settings_that_differ_are_told_and_addresses_are_none(tmp_path: Path) -> None:
    for name, model, port in (("a", "small", 1), ("b", "large", 2)):
        config = {"policy_model_name": model, "policy_base_url": f"http://h:{port}/v1"}
        (tmp_path / f"{name}_config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    found = compared(tmp_path, [result(0, 0, 1)], [result(0, 0, 0)])
    assert [(d.key, d.first, d.second) for d in found.settings] == [("policy_model_name", '"small"', '"large"')]
    assert found.unknown == ("Whether tasks of one id ask the same is not known: a run kept neither inputs nor plan.",)


def test_runs_without_a_config_say_so(tmp_path: Path) -> None:
    found = compared(tmp_path, [result(0, 0, 1)], [result(0, 0, 0)])
    assert found.unknown[-1] == "Whether the runs' configurations differ is not known: a run has kept none."


def test_a_setting_that_is_no_number_is_told_apart_and_stops_nothing() -> None:
    inputs = [
        input_of({"responses_create_params": {"input": "x", "temperature": value}}) for value in (float("nan"), None)
    ]
    assert [asked.settings for asked in inputs] == ['{"temperature": NaN}', "{}"]
    assert inputs[0].question == inputs[1].question
