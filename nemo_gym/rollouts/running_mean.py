"""The mean reward of a run under way, and its interval, at the cost of a few additions for each rollout. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nemo_gym.rollouts.metrics import Z_95


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

    def add(self, task: str, reward: float) -> None:
        """Take in the reward of one rollout of a task."""
        count, total = self._tasks.get(task, (0, 0.0))
        self._tasks[task] = (count + 1, total + reward)
        self._squares += reward * (2 * total + reward)
        self._products += (count + 1) * (total + reward) - count * total
        self._counts += 2 * count + 1
        self.rollouts += 1
        self.total += reward

    @property
    def mean(self) -> float | None:
        """The mean so far."""
        return self.total / self.rollouts if self.rollouts else None

    @property
    def half_interval(self) -> float | None:
        """Half the width of the 95 % interval, clustered by task; None as long as there is none."""
        tasks, mean = len(self._tasks), self.mean
        if tasks < 2 or mean is None:
            return None
        spread = self._squares - 2 * mean * self._products + mean * mean * self._counts
        half = Z_95 * math.sqrt(max(0.0, tasks / (tasks - 1) * spread)) / self.rollouts
        return half if half > 1e-9 else None
