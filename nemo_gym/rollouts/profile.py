"""What a run's rollouts say about each of its tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from nemo_gym.rollouts.metrics import SUCCESS_REWARD, pass_rates, percentile
from nemo_gym.rollouts.stored import StoredResults, StoredRollout


@dataclass(frozen=True, slots=True)
class TaskProfile:
    """One task. ``repeats`` counts its rollouts with a reward, ``passed`` those of them with a reward of at least 1.

    ``spread`` is the sample standard deviation of the rewards; tokens are means, latencies the median and the largest.
    What cannot be told is None.
    """

    task: str
    task_index: int
    repeats: int
    failed: int
    passed: int
    mean: float | None
    lowest: float | None
    highest: float | None
    spread: float | None
    pass_rates: dict[str, float]
    input_tokens: float | None
    output_tokens: float | None
    latency_s: float | None
    slowest_s: float | None
    failure_classes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON carries it."""
        return {**asdict(self), "failure_classes": list(self.failure_classes)}


def profile_tasks(results: StoredResults) -> list[TaskProfile]:
    """A profile of every task that has results or failures, in the order of the rows."""
    rollouts: dict[int, list[StoredRollout]] = {}
    for rollout in results.rollouts:
        rollouts.setdefault(rollout.task_index, []).append(rollout)
    failures: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    for failure in results.failures:
        failures.setdefault(failure.task_index, []).append(failure.failure_class)
        names[failure.task_index] = failure.task
    names |= {index: members[0].task for index, members in rollouts.items()}
    return [_profile(names[i], i, rollouts.get(i, []), failures.get(i, [])) for i in sorted(names)]


def _profile(task: str, index: int, rollouts: Sequence[StoredRollout], failures: Sequence[str]) -> TaskProfile:
    rewards = [rollout.reward for rollout in rollouts]
    mean = _mean(rewards)
    spread = None
    if mean is not None and len(rewards) > 1:
        spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    latencies = [rollout.elapsed_s for rollout in rollouts if rollout.elapsed_s is not None]
    return TaskProfile(
        task=task,
        task_index=index,
        repeats=len(rewards),
        failed=len(failures),
        passed=sum(reward >= SUCCESS_REWARD for reward in rewards),
        mean=mean,
        lowest=min(rewards, default=None),
        highest=max(rewards, default=None),
        spread=spread,
        pass_rates=pass_rates({task: rewards}),
        input_tokens=_mean([r.input_tokens for r in rollouts if r.input_tokens is not None]),
        output_tokens=_mean([r.output_tokens for r in rollouts if r.output_tokens is not None]),
        latency_s=percentile(latencies, 50) if latencies else None,
        slowest_s=max(latencies, default=None),
        failure_classes=tuple(sorted(set(failures))),
    )


def _least(value: Callable[[TaskProfile], float | None]) -> Callable[[TaskProfile], tuple[bool, float]]:
    """Sorts by a value from small to large, and what has none to the end."""

    def key(profile: TaskProfile) -> tuple[bool, float]:
        found = value(profile)
        return found is None, found or 0.0

    return key


def _most(value: Callable[[TaskProfile], float | None]) -> Callable[[TaskProfile], tuple[bool, float]]:
    def negative(profile: TaskProfile) -> float | None:
        found = value(profile)
        return None if found is None else -found

    return _least(negative)


ORDERS: Final[dict[str, Callable[[TaskProfile], tuple[bool, float]]]] = {
    "task": _least(lambda profile: profile.task_index),
    "hardest": _least(lambda profile: profile.mean),
    "easiest": _most(lambda profile: profile.mean),
    "unstable": _most(lambda profile: profile.spread),
    "slowest": _most(lambda profile: profile.latency_s),
    "longest": _most(lambda profile: profile.output_tokens),
    "failed": _most(lambda profile: profile.failed),
}
"""The orders that profiles can be put in, by name; equals stay in the order of the rows."""


def in_order(profiles: Iterable[TaskProfile], order: str) -> list[TaskProfile]:
    """The profiles in one of ``ORDERS``."""
    return sorted(profiles, key=ORDERS[order])


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
