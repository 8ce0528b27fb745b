from __future__ import annotations

import statistics

import pytest

from nemo_gym.servers.metrics import aggregate, statistics_of


def test_statistics_agree_with_the_standard_library() -> None:
    values = [3.0, 1.0, 2.5, 9.0]
    found = statistics_of([{"x": value} for value in values])
    assert found["mean/x"] == statistics.fmean(values)
    assert found["median/x"] == statistics.median(values)
    assert found["std/x"] == pytest.approx(statistics.stdev(values))
    assert (found["min/x"], found["max/x"]) == (1.0, 9.0)
    assert "std/x" not in statistics_of([{"x": 1.0}])


def test_numbers_come_from_replies_and_usage_and_groups_are_tasks() -> None:
    replies = [
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1, "ok": True, "response": {"usage": {"tokens": 4}}},
        {"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": 0.0, "ok": False, "text": "x", "response": None},
        {"_ng_task_index": 1, "reward": 1.0},
    ]
    metrics = aggregate(replies)
    assert metrics["key_metrics"] == {"mean/reward": pytest.approx(2 / 3), "mean/ok": 0.5, "mean/tokens": 4.0}
    assert metrics["agent_metrics"]["count"] == 3
    assert [(g["_ng_task_index"], g["mean/reward"]) for g in metrics["group_level_metrics"]] == [(0, 0.5), (1, 1.0)]
    assert not any("_ng_" in key for key in metrics["agent_metrics"])


def test_replies_of_odd_shapes_count_with_the_numbers_that_they_have() -> None:
    replies = [
        {"_ng_task_index": [1], "reward": 1.0, "response": "text", "wide": 10**400},
        {"_ng_task_index": {}, "reward": 0.0, "response": {"usage": [3]}},
    ]
    metrics = aggregate(replies)
    assert metrics["group_level_metrics"][0]["mean/reward"] == 0.5
    assert metrics["key_metrics"] == {"mean/reward": 0.5}
