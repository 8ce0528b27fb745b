from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.rollouts.metrics import mean_reward
from nemo_gym.rollouts.running_mean import RunningMean

REWARDS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-10, 10, allow_nan=False))


@given(st.lists(st.tuples(st.integers(0, 5), REWARDS), max_size=40))
def test_it_is_what_all_rewards_together_give(rollouts: list[tuple[int, float]]) -> None:
    running = RunningMean()
    by_task: dict[str, list[float]] = {}
    for task, reward in rollouts:
        running.add(str(task), reward)
        by_task.setdefault(str(task), []).append(reward)
    expected, found = mean_reward(by_task), running.mean_reward()
    if expected is None or found is None:
        assert expected is found is None
        return
    assert found.mean == pytest.approx(expected.mean, abs=1e-9)
    assert (found.tasks, found.rollouts, found.is_binary) == (expected.tasks, expected.rollouts, expected.is_binary)
    if expected.standard_error is None or found.standard_error is None:
        assert expected.standard_error is found.standard_error is None
    else:
        assert found.standard_error == pytest.approx(expected.standard_error, abs=2e-5)


def test_tasks_that_agree_have_no_error() -> None:
    running = RunningMean()
    for task in "abc":
        running.add(task, 0.1)
    found = running.mean_reward()
    assert found is not None
    assert (found.standard_error, found.interval) == (0.0, None)
