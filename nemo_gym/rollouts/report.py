"""The summary of a run, kept up to date as rollouts end, in memory that grows by a few numbers for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.metrics import MeanReward, mean_reward, pass_rates, percentile
from nemo_gym.rollouts.replies import find_reward
from nemo_gym.rollouts.rows import ELAPSED_S, TASK_INDEX, row_key
from nemo_gym.rollouts.run import Attempt
from nemo_gym.rollouts.running_mean import RunningMean

_FEW_DISTINCT_REWARDS: Final = 12
_BINS: Final = 10


@dataclass
class RunTally:
    """Counts and rewards of a run so far. ``name_task`` gives the task id of a row or result."""

    total: int
    name_task: Callable[[Mapping[str, Any]], str]
    rewards: dict[str, dict[int, float]] = field(default_factory=dict)
    task_index: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    failures: int = 0
    retries: int = 0
    failure_classes: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    done: int = 0
    running: RunningMean = field(default_factory=RunningMean)

    def add(self, attempt: Attempt) -> None:
        """Take one attempt in."""
        failure = attempt.outcome.failure
        if failure is not None and not attempt.final:
            self.retries += 1
            return
        if failure is not None or attempt.outcome.reward is None:
            task = self._ended(attempt.row)
            self.failures += 1
            self.failed[task] = self.failed.get(task, 0) + 1
            self.failure_classes[failure.failure_class if failure else "no_reward"] += 1
            return
        self._scored(attempt.row, attempt.outcome.reward, attempt.elapsed_s, attempt.outcome.reply or {})

    def add_result(self, result: Mapping[str, Any]) -> None:
        """Take in a result as its file has it."""
        reward = find_reward(result)
        if reward is None:
            raise ConfigError(f"A result of task index {result.get(TASK_INDEX)} has no reward: it is not of this run.")
        elapsed_s = result.get(ELAPSED_S)
        self._scored(result, reward, elapsed_s if isinstance(elapsed_s, int | float) else 0.0, result)

    def _ended(self, row: Mapping[str, Any]) -> str:
        task = self.name_task(row)
        self.task_index.setdefault(task, row_key(row)[0])
        self.done += 1
        return task

    def _scored(self, row: Mapping[str, Any], reward: float, elapsed_s: float, reply: Mapping[str, Any]) -> None:
        task = self._ended(row)
        self.rewards.setdefault(task, {})[row_key(row)[1]] = reward
        self.running.add(task, reward)
        self.latencies_s.append(elapsed_s)
        self._count_tokens(reply)

    @property
    def scored(self) -> int:
        """How many rollouts have a reward."""
        return self.done - self.failures

    @property
    def mean(self) -> float | None:
        """The mean reward so far."""
        return self.running.mean

    def rewards_of_task(self) -> dict[str, list[float]]:
        """Each task's rewards in the order of its repeats; tasks in the order of the rows."""
        return {
            task: [reward for _, reward in sorted(self.rewards[task].items())]
            for task in self.tasks()
            if task in self.rewards
        }

    def tasks(self) -> list[str]:
        """The tasks that have ended rollouts, in the order of the rows."""
        return sorted(self.task_index, key=self.task_index.__getitem__)

    def mean_reward(self) -> MeanReward | None:
        """The mean reward with its interval."""
        return mean_reward(self.rewards_of_task())

    def _count_tokens(self, reply: Mapping[str, Any]) -> None:
        response = reply.get("response")
        usage = response.get("usage") if isinstance(response, Mapping) else None
        if not isinstance(usage, Mapping):
            return
        for key in ("input_tokens", "output_tokens"):
            count = usage.get(key)
            if isinstance(count, int) and not isinstance(count, bool):
                self.tokens[key] += count


def distribution(rewards: list[float]) -> list[tuple[str, int]]:
    """How often each reward occurs; in ten equal ranges where there are many different ones."""
    counts = Counter(rewards)
    if len(counts) <= _FEW_DISTINCT_REWARDS:
        return [(f"{reward:g}", counts[reward]) for reward in sorted(counts)]
    low, high = min(rewards), max(rewards)
    width = (high - low) / _BINS
    binned = Counter(min(int((reward - low) / width), _BINS - 1) for reward in rewards)
    return [(f"{low + n * width:.3g} to {low + (n + 1) * width:.3g}", binned[n]) for n in range(_BINS)]


def report(tally: RunTally, key_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The run in figures, as JSON carries them."""
    mean = tally.mean_reward()
    interval = mean.interval if mean is not None else None
    return {
        "rollouts": {
            "total": tally.total,
            "scored": tally.scored,
            "failed": tally.failures,
            "retries": tally.retries,
        },
        "tasks": len(tally.task_index),
        "mean_reward": mean.mean if mean is not None else None,
        "mean_reward_interval_95": list(interval) if interval is not None else None,
        "pass_rates": pass_rates(tally.rewards_of_task()),
        "key_metrics": dict(key_metrics),
        "failure_classes": dict(tally.failure_classes),
        "tokens": dict(tally.tokens),
        "latency_s": {f"p{p}": round(percentile(tally.latencies_s, p), 3) for p in (50, 95)}
        if tally.latencies_s
        else {},
        "rewards": tally.rewards_of_task(),
    }
