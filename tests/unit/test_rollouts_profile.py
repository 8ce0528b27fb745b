from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from nemo_gym.environment.stored_runs import read_run
from nemo_gym.rollouts.profile import ORDERS, TaskProfile, in_order, profile_tasks
from tests.support.stored_results import failure, result, write_results


@pytest.fixture
def profiles(tmp_path: Path) -> list[TaskProfile]:
    results = [
        *(
            result(0, repeat, reward, _ng_elapsed_s=seconds)
            for repeat, (reward, seconds) in enumerate([(1, 2), (1, 4)])
        ),
        *(result(1, repeat, reward) for repeat, reward in enumerate([0, 1, 1])),
        result(2, 0, 0.25),
    ]
    path = write_results(tmp_path / "x.jsonl", results, [failure(2, 1), failure(3, 0, failure_class="judge")])
    return profile_tasks(read_run(path).results)


def test_a_task_by_hand(profiles: list[TaskProfile]) -> None:
    first, second, third, fourth = profiles
    assert (first.task, first.repeats, first.passed, first.mean, first.spread) == ("t0", 2, 2, 1.0, 0.0)
    assert (first.latency_s, first.slowest_s, first.input_tokens, first.output_tokens) == (3.0, 4.0, 10.0, 5.5)
    assert second.mean == pytest.approx(2 / 3)
    assert second.spread == pytest.approx(statistics.stdev([0, 1, 1]))
    assert (second.lowest, second.highest, second.passed) == (0.0, 1.0, 2)
    assert second.pass_rates["pass@2"] == 1.0
    assert second.pass_rates["pass^2"] == pytest.approx(1 / 3)
    assert (third.repeats, third.failed, third.passed, third.spread, third.pass_rates) == (1, 1, 0, None, {})
    assert (fourth.task, fourth.repeats, fourth.failed, fourth.mean) == ("3", 0, 1, None)
    assert fourth.failure_classes == ("judge",)


@pytest.mark.parametrize(
    ("order", "tasks"),
    [
        ("task", "0123"),
        ("hardest", "2103"),
        ("easiest", "0123"),
        ("unstable", "1023"),
        ("slowest", "0213"),
        ("longest", "1023"),
        ("failed", "2301"),
    ],
)
def test_orders(profiles: list[TaskProfile], order: str, tasks: str) -> None:
    """What has no value comes last; equals stay in the order of the rows."""
    assert "".join(str(profile.task_index) for profile in in_order(profiles, order)) == tasks


def test_every_order_is_tested() -> None:
    marks = test_orders.pytestmark  # type: ignore[attr-defined]
    assert {order for order, _ in marks[0].args[1]} == set(ORDERS)
