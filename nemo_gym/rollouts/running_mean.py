"""The mean reward of a run under way, and its interval, at the cost of a few additions for each rollout. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nemo_gym.rollouts.metrics import MeanReward


@dataclass
class RunningMean:
    """What ``metrics.mean_reward`` gives for all rewards so far, without going through them again.

    With S the sum of a task's n_t rewards and m the mean of all n, the sum over tasks of (sum over repeats of
    (reward - m))^2 is the sum of (S - n_t m)^2 = sum S^2 - 2 m sum (S n_t) + m^2 sum n_t^2, and these three sums are
    kept up to date. What cancels between them costs digits: enough are left for a display, and the figures at the end
    are computed anew.
    """

    rollouts: int = 0
    total: float = 0.0
    _tasks: dict[str, tuple[int, float]] = field(default_factory=dict)
    _squares: float = 0.0
    _products: float = 0.0
    _counts: float = 0.0
    _is_binary: bool = True

    def add(self, task: str, reward: float) -> None:
        """Take in the reward of one rollout of a task."""
        count, total = self._tasks.get(task, (0, 0.0))
        self._tasks[task] = (count + 1, total + reward)
        self._squares += reward * (2 * total + reward)
        self._products += (count + 1) * (total + reward) - count * total
        self._counts += 2 * count + 1
        self._is_binary = self._is_binary and reward in (0.0, 1.0)
        self.rollouts += 1
        self.total += reward

    @property
    def mean(self) -> float | None:
        """The mean so far."""
        return self.total / self.rollouts if self.rollouts else None

    def mean_reward(self) -> MeanReward | None:
        """As ``metrics.mean_reward`` has it, with its interval; None without a rollout."""
        tasks, mean = len(self._tasks), self.mean
        if mean is None:
            return None
        standard_error = None
        if tasks > 1:
            spread = self._squares - 2 * mean * self._products + mean * mean * self._counts
            # what is left of the cancelling where all tasks agree
            spread = spread if spread > 1e-12 * self._squares else 0.0
            standard_error = math.sqrt(tasks / (tasks - 1) * spread) / self.rollouts
        return MeanReward(mean, standard_error, tasks=tasks, rollouts=self.rollouts, is_binary=self._is_binary)
