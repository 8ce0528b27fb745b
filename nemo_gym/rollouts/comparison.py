"""Two runs of the same tasks, compared task by task. Pure.

The tasks of a benchmark differ in hardness far more than two models do, so that means of two runs are compared by the
differences of their tasks: what makes a task hard is in both and cancels (Miller, "Adding Error Bars to Evals",
arXiv:2411.00640, 2024, section 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nemo_gym.rollouts.metrics import MeanDifference, MeanReward, mean_difference, mean_reward, pass_rates, sign_test
from nemo_gym.rollouts.stored import StoredResults

_SAME: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs as a whole. ``failed`` rollouts have no reward; ``missing`` ones were never ended."""

    tasks: int
    rollouts: int
    failed: int
    missing: int
    mean: MeanReward | None
    pass_rates: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON carries it."""
        interval = self.mean.interval if self.mean is not None else None
        return {
            "tasks": self.tasks,
            "rollouts": self.rollouts,
            "failed": self.failed,
            "missing": self.missing,
            "mean_reward": self.mean.mean if self.mean is not None else None,
            "mean_reward_interval_95": list(interval) if interval is not None else None,
            "pass_rates": dict(self.pass_rates),
        }


@dataclass(frozen=True, slots=True)
class PairedTask:
    """A task that both runs have a reward for: its mean reward in the first and in the second."""

    task: str
    first: float
    second: float

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def verdict(self) -> str:
        """``won``: better in the second run; ``lost``: worse; ``same``."""
        if abs(self.difference) <= _SAME:
            return "same"
        return "won" if self.difference > 0 else "lost"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the second run did better or worse than the first.

    ``pairs`` are the tasks that count; those left out, and why, stand in the four lists after them.
    """

    first: Side
    second: Side
    pairs: tuple[PairedTask, ...]
    only_in_first: tuple[str, ...]
    only_in_second: tuple[str, ...]
    asked_otherwise: tuple[str, ...]
    without_reward: tuple[str, ...]
    difference: MeanDifference | None
    p_value: float

    @property
    def won(self) -> list[PairedTask]:
        return [pair for pair in self.pairs if pair.verdict == "won"]

    @property
    def lost(self) -> list[PairedTask]:
        return [pair for pair in self.pairs if pair.verdict == "lost"]

    @property
    def fell_behind(self) -> bool:
        """Whether the second run lost a task, or has no reward that can be held against one of the first's."""
        return bool(self.lost or self.only_in_first or self.asked_otherwise or self.without_reward)

    def to_dict(self) -> dict[str, Any]:
        """As JSON carries it."""
        difference = self.difference
        interval = difference.interval if difference is not None else None
        return {
            "first": self.first.to_dict(),
            "second": self.second.to_dict(),
            "paired_tasks": len(self.pairs),
            "mean_difference": difference.mean if difference is not None else None,
            "mean_difference_interval_95": list(interval) if interval is not None else None,
            "mean_difference_interval_method": difference.interval_method if difference is not None else None,
            "sign_test_p_value": self.p_value,
            "won": [_pair_dict(pair) for pair in self.won],
            "lost": [_pair_dict(pair) for pair in self.lost],
            "only_in_first": list(self.only_in_first),
            "only_in_second": list(self.only_in_second),
            "asked_otherwise": list(self.asked_otherwise),
            "without_reward": list(self.without_reward),
        }


def compare(
    first: StoredResults,
    second: StoredResults,
    first_questions: Mapping[str, object],
    second_questions: Mapping[str, object],
) -> Comparison:
    """Compare two runs. ``*_questions`` tell what a task asks, by its id: tasks that ask something else are left out.

    A task without such a word on either side counts as the same.
    """
    a, b = _rewards_of_task(first), _rewards_of_task(second)
    tasks_a, tasks_b = _tasks(first, first_questions), _tasks(second, second_questions)
    shared = [task for task in tasks_a if task in tasks_b]
    otherwise = [task for task in shared if _differ(task, first_questions, second_questions)]
    left_out = set(otherwise)
    comparable = [task for task in shared if task not in left_out]
    scored = [task for task in comparable if task in a and task in b]
    pairs = tuple(PairedTask(task, _mean(a[task]), _mean(b[task])) for task in scored)
    single = all(len(side[task]) == 1 and side[task][0] in (0.0, 1.0) for task in scored for side in (a, b))
    won = sum(pair.verdict == "won" for pair in pairs)
    lost = sum(pair.verdict == "lost" for pair in pairs)
    return Comparison(
        first=_side(first, a, len(tasks_a)),
        second=_side(second, b, len(tasks_b)),
        pairs=pairs,
        only_in_first=tuple(task for task in tasks_a if task not in tasks_b),
        only_in_second=tuple(task for task in tasks_b if task not in tasks_a),
        asked_otherwise=tuple(otherwise),
        without_reward=tuple(task for task in comparable if task not in a or task not in b),
        difference=mean_difference([pair.difference for pair in pairs], of_single_verdicts=single),
        p_value=sign_test(won, lost),
    )


def _pair_dict(pair: PairedTask) -> dict[str, Any]:
    return {"task": pair.task, "first": pair.first, "second": pair.second}


def _side(results: StoredResults, rewards: Mapping[str, Sequence[float]], tasks: int) -> Side:
    return Side(
        tasks=tasks,
        rollouts=len(results.rollouts),
        failed=len(results.failures),
        missing=results.missing,
        mean=mean_reward(rewards),
        pass_rates=pass_rates(rewards),
    )


def _rewards_of_task(results: StoredResults) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = {}
    for rollout in results.rollouts:
        rewards.setdefault(rollout.task, []).append(rollout.reward)
    return rewards


def _tasks(results: StoredResults, questions: Mapping[str, object]) -> dict[str, None]:
    """Every task of a run once: those with results, those that failed, and those never ended."""
    ended = {rollout.key: rollout.task for rollout in results.rollouts}
    ended |= {failure.key: failure.task for failure in results.failures}
    return dict.fromkeys([*(ended[key] for key in sorted(ended)), *questions])


def _differ(task: str, first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    return task in first and task in second and first[task] != second[task]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
