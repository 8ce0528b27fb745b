"""The summary of a run, kept up to date as rollouts end, in memory that grows by a few numbers for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.metrics import MeanReward, mean_reward, pass_rates, percentile
from nemo_gym.rollouts.replies import find_reward
from nemo_gym.rollouts.rows import ELAPSED_S, TASK_INDEX, row_key
from nemo_gym.rollouts.run import Attempt
from nemo_gym.rollouts.running_mean import RunningMean
from nemo_gym.rollouts.stored import StoredResults, tokens_of

TOKEN_COUNTS: Final = ("input_tokens", "output_tokens")

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
    tokens: dict[str, list[int]] = field(default_factory=dict)
    token_totals: Counter[str] = field(default_factory=Counter)
    done: int = 0
    running: RunningMean = field(default_factory=RunningMean)

    def add(self, attempt: Attempt) -> None:
        """Take one attempt in."""
        failure = attempt.outcome.failure
        if failure is not None and not attempt.final:
            self.retries += 1
            return
        if failure is not None or attempt.outcome.reward is None:
            failure_class = failure.failure_class if failure else "no_reward"
            self._fail(self.name_task(attempt.row), row_key(attempt.row)[0], failure_class)
            return
        self._scored(attempt.row, attempt.outcome.reward, attempt.elapsed_s, attempt.outcome.reply or {})

    def add_result(self, result: Mapping[str, Any]) -> None:
        """Take in a result as its file has it."""
        reward = find_reward(result)
        if reward is None:
            raise ConfigError(f"A result of task index {result.get(TASK_INDEX)} has no reward: it is not of this run.")
        elapsed_s = result.get(ELAPSED_S)
        self._scored(result, reward, elapsed_s if isinstance(elapsed_s, int | float) else None, result)

    def add_stored(self, stored: StoredResults) -> None:
        """Take in what the files of a run hold."""
        for rollout in stored.rollouts:
            tokens = rollout.input_tokens, rollout.output_tokens
            self._take(rollout.task, rollout.key, rollout.reward, rollout.elapsed_s, tokens)
        for failure in stored.failures:
            self._fail(failure.task, failure.task_index, failure.failure_class)
        self.retries += stored.retries

    def _scored(self, row: Mapping[str, Any], reward: float, elapsed_s: float | None, reply: Mapping[str, Any]) -> None:
        self._take(self.name_task(row), row_key(row), reward, elapsed_s, tokens_of(reply))

    def _take(
        self,
        task: str,
        key: tuple[int, int],
        reward: float,
        elapsed_s: float | None,
        tokens: tuple[int | None, int | None],
    ) -> None:
        task_index, repeat = key
        self.task_index.setdefault(task, task_index)
        self.done += 1
        self.rewards.setdefault(task, {})[repeat] = reward
        self.running.add(task, reward)
        if elapsed_s is not None:
            self.latencies_s.append(elapsed_s)
        for name, count in zip(TOKEN_COUNTS, tokens, strict=True):
            if count is not None:
                self.tokens.setdefault(name, []).append(count)
                self.token_totals[name] += count

    def _fail(self, task: str, task_index: int, failure_class: str) -> None:
        self.task_index.setdefault(task, task_index)
        self.done += 1
        self.failures += 1
        self.failed[task] = self.failed.get(task, 0) + 1
        self.failure_classes[failure_class] += 1

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


def distribution(rewards: list[float]) -> list[tuple[str, int]]:
    """How often each reward occurs; in ten equal ranges where there are many different ones."""
    counts = Counter(rewards)
    if len(counts) <= _FEW_DISTINCT_REWARDS:
        return [(f"{reward:g}", counts[reward]) for reward in sorted(counts)]
    low, high = min(rewards), max(rewards)
    width = (high - low) / _BINS
    binned = Counter(min(int((reward - low) / width), _BINS - 1) for reward in rewards)
    return [(f"{low + n * width:.3g} to {low + (n + 1) * width:.3g}", binned[n]) for n in range(_BINS)]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th and 99th percentile and the largest of some values, by name; empty where there are none."""
    if not values:
        return {}
    ordered = sorted(values)
    found = {f"p{percent}": percentile(ordered, percent) for percent in (50, 95, 99)}
    return {name: round(value, 3) for name, value in {**found, "max": ordered[-1]}.items()}


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
        "mean_reward_interval_method": mean.interval_method if mean is not None else None,
        "pass_rates": pass_rates(tally.rewards_of_task()),
        "key_metrics": dict(key_metrics),
        "failure_classes": dict(tally.failure_classes),
        "tokens": {name: sum(counts) for name, counts in tally.tokens.items()},
        "tokens_per_rollout": {name: percentiles(counts) for name, counts in tally.tokens.items()},
        "latency_s": percentiles(tally.latencies_s),
        "rewards": tally.rewards_of_task(),
    }
