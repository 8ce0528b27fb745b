"""What rewards say about a model, and how sure one can be of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Z_95: Final = 1.959963984540054
"""The 97.5 % point of the standard normal distribution: 95 % lie within this many standard errors."""

SUCCESS_REWARD: Final = 1.0


@dataclass(frozen=True, slots=True)
class MeanReward:
    """A mean over rollouts, with its standard error where at least two tasks allow one."""

    mean: float
    standard_error: float | None
    tasks: int
    rollouts: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval by the normal approximation; None where all tasks agree, and nothing can be told."""
        if not self.standard_error:
            return None
        half = Z_95 * self.standard_error
        return self.mean - half, self.mean + half


def mean_reward(rewards_of_task: Mapping[str, Sequence[float]]) -> MeanReward | None:
    """The mean reward over all rollouts, its standard error clustered by task. None without a rollout.

    Repeats of one task are not independent, so the rollouts' deviations d from the mean are summed by task before
    they are squared: with G tasks and n rollouts,

        SE^2 = G / (G - 1) * sum over tasks of (sum over repeats of d)^2 / n^2

    This is the cluster-robust variance of a mean with the usual small-sample factor (Liang and Zeger, "Longitudinal
    data analysis using generalized linear models", Biometrika 73, 1986; for evaluations: Miller, "Adding Error Bars
    to Evals", arXiv:2411.00640, 2024). With one repeat per task it is the ordinary s^2 / n.
    """
    groups = [rewards for rewards in rewards_of_task.values() if rewards]
    n = sum(map(len, groups))
    if n == 0:
        return None
    mean = math.fsum(reward for rewards in groups for reward in rewards) / n
    standard_error = None
    if len(groups) > 1:
        squares = math.fsum(math.fsum(reward - mean for reward in rewards) ** 2 for rewards in groups)
        standard_error = math.sqrt(len(groups) / (len(groups) - 1) * squares) / n
    return MeanReward(mean, standard_error, tasks=len(groups), rollouts=n)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k rollouts succeeds, from c successes in n; unbiased.

    1 - C(n - c, k) / C(n, k): Chen et al., "Evaluating Large Language Models Trained on Code", arXiv:2107.03374,
    2021, section 2.1.
    """
    _check_counts(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that all of k rollouts succeed ("pass^k"), from c successes in n; unbiased.

    C(c, k) / C(n, k): Yao et al., "tau-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains",
    arXiv:2406.12045, 2024, section 3.
    """
    _check_counts(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def pass_rates(rewards_of_task: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """``pass@k`` and ``pass^k`` averaged over tasks, for k = 1, 2, 4, ... and the fewest repeats any task has.

    A rollout succeeds with a reward of at least 1. Empty unless every task has at least two repeats.
    """
    counts = [
        (len(rewards), sum(reward >= SUCCESS_REWARD for reward in rewards))
        for rewards in rewards_of_task.values()
        if rewards
    ]
    fewest = min((n for n, _ in counts), default=0)
    if fewest < 2:
        return {}
    sizes = sorted({fewest, *(2**power for power in range(fewest.bit_length()) if 2**power <= fewest)})
    rates = {f"pass@{k}": _mean(pass_at_k(n, c, k) for n, c in counts) for k in sizes}
    return rates | {f"pass^{k}": _mean(pass_hat_k(n, c, k) for n, c in counts) for k in sizes if k > 1}


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which ``percent`` of the sorted ``values`` lie, interpolated linearly between neighbours.

    The definition that R calls type 7 and NumPy uses by default (Hyndman and Fan, "Sample Quantiles in Statistical
    Packages", The American Statistician 50, 1996).
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError("needed: at least one value, and a percentage from 0 to 100")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _check_counts(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"needed: 0 <= c <= n and 1 <= k <= n; found n={n}, c={c}, k={k}")


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
