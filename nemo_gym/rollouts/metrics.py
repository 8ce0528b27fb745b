"""What rewards say about a model, and how sure one can be of it. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Z_95: Final = 1.959963984540054
"""The 97.5 % point of the standard normal distribution: 95 % lie within this many standard errors."""

SUCCESS_REWARD: Final = 1.0

_MANY_DEGREES_OF_FREEDOM: Final = 200
_ROUNDING: Final = 1e-12


@dataclass(frozen=True, slots=True)
class MeanReward:
    """A mean over rollouts, with its standard error where at least two tasks allow one.

    ``is_binary``: every reward is 0 or 1, so that the mean is a share.
    """

    mean: float
    standard_error: float | None
    tasks: int
    rollouts: int
    is_binary: bool = False

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval. None where nothing can be told: of one task, or when rewards that are no shares agree.

        A share has a Wilson interval, which holds its 95 % near 0 and 1 and for few tasks, where mean and standard
        error do not (Brown, Cai and DasGupta, "Interval Estimation for a Binomial Proportion", Statistical Science
        16, 2001; for evaluations: Bowyer, Aitchison and Ivanova, "Position: Don't Use the CLT in LLM Evals With Fewer
        Than a Few Hundred Datapoints", arXiv:2503.01747, 2025). Repeats count as fewer rollouts, see
        ``effective_rollouts``. Any other mean has Student's interval with one degree of freedom less than there are
        tasks, as is usual with clusters (Cameron and Miller, "A Practitioner's Guide to Cluster-Robust Inference",
        Journal of Human Resources 50, 2015, section VI).
        """
        if self.standard_error is None:
            return None
        if self.is_binary:
            return wilson_interval(self.mean, self.effective_rollouts)
        if not self.standard_error:
            return None
        half = t_95(self.tasks - 1) * self.standard_error
        return self.mean - half, self.mean + half

    @property
    def interval_method(self) -> str | None:
        """``wilson`` or ``student-t``: how ``interval`` comes about; None where there is none."""
        if self.interval is None:
            return None
        return "wilson" if self.is_binary else "student-t"

    @property
    def effective_rollouts(self) -> float:
        """How many independent rollouts would tell as much about a share as these, whose repeats resemble each other.

        The number of rollouts divided by the design effect (the clustered variance over that of independent rollouts),
        and scaled down by (z / t)^2 because few tasks make a poor estimate of it: Korn and Graubard, "Confidence
        Intervals for Proportions With Small Expected Number of Positive Counts Estimated From Survey Data", Survey
        Methodology 24, 1998; in Wilson's interval: Dean and Pagano, "Evaluating Confidence Interval Methods for
        Binomial Proportions in Clustered Surveys", Journal of Survey Statistics and Methodology 3, 2015. With one
        repeat per task it is the number of rollouts. Where all rollouts agree the effect cannot be estimated, and
        repeats are taken to tell nothing: it is then the number of tasks.
        """
        if self.rollouts == self.tasks:
            return float(self.rollouts)
        spread = self.mean * (1 - self.mean)
        if not spread or not self.standard_error:
            return float(self.tasks)
        design_effect = self.standard_error**2 * (self.rollouts - 1) / spread
        scale = (Z_95 / t_95(self.tasks - 1)) ** 2
        return self.rollouts / max(design_effect, 1.0) * scale


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
        standard_error = _without_rounding(math.sqrt(len(groups) / (len(groups) - 1) * squares) / n, *groups)
    is_binary = all(reward in (0.0, 1.0) for rewards in groups for reward in rewards)
    return MeanReward(mean, standard_error, tasks=len(groups), rollouts=n, is_binary=is_binary)


def _without_rounding(error: float, *values: Sequence[float]) -> float:
    """A standard error of these values; 0 where no more than their last digits differ: they agree."""
    largest = max(max(map(abs, some)) for some in values)
    return error if error > _ROUNDING * max(1.0, largest) else 0.0


def wilson_interval(share: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of ``n`` independent trials; ``n`` need not be whole.

    (p + z^2/2n ± z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n): Wilson, "Probable Inference, the Law of Succession, and
    Statistical Inference", Journal of the American Statistical Association 22, 1927.
    """
    if not (0 <= share <= 1 and n > 0):
        raise ValueError(f"needed: a share from 0 to 1 of more than 0 trials; found {share} of {n}")
    scale = Z_95**2 / n
    centre = (share + scale / 2) / (1 + scale)
    half = Z_95 * math.sqrt(share * (1 - share) / n + scale / (4 * n)) / (1 + scale)
    return max(0.0, centre - half), min(1.0, centre + half)


@functools.cache
def t_95(degrees_of_freedom: int) -> float:
    """The 97.5 % point of Student's t distribution.

    Few degrees of freedom: solved for in the closed form of its distribution, 26.7.3 and 26.7.4 of Abramowitz and
    Stegun, "Handbook of Mathematical Functions", 1964. Many: their expansion 26.7.5, here within 1e-9.
    """
    v = degrees_of_freedom
    if v < 1:
        raise ValueError(f"needed: at least 1 degree of freedom; found {v}")
    if v > _MANY_DEGREES_OF_FREEDOM:
        z = Z_95
        return (
            z
            + (z**3 + z) / (4 * v)
            + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
            + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
        )
    low, high = Z_95, 13.0
    for _ in range(50):  # each halves the 11 between them: to the last digit
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, v) < 0.95 else (low, middle)
    return low


def _t_within(t: float, v: int) -> float:
    """The chance that a Student's t of ``v`` degrees of freedom lies between -t and t."""
    angle = math.atan(t / math.sqrt(v))
    cosine = math.cos(angle)
    odd = v % 2 == 1
    terms: list[float] = []
    term = cosine if odd else 1.0
    for power in range(1 if odd else 0, v - 1, 2):
        terms.append(term)
        term *= cosine**2 * (power + 1) / (power + 2)
    series = math.sin(angle) * math.fsum(terms)
    return 2 / math.pi * (angle + series) if odd else series


def sign_test(won: int, lost: int) -> float:
    """The chance of a split at least as uneven as ``won`` to ``lost`` if either were as likely; two-sided, exact.

    Ties are left out. Of tasks with one right-or-wrong rollout on each side it is McNemar's exact test (McNemar,
    "Note on the sampling error of the difference between correlated proportions or percentages", Psychometrika 12,
    1947; Dixon and Mood, "The Statistical Sign Test", Journal of the American Statistical Association 41, 1946).
    """
    n = won + lost
    if min(won, lost) < 0:
        raise ValueError(f"needed: counts from 0 on; found {won} and {lost}")
    ways, total = 1, 0  # whole numbers, of which the ratio alone is rounded
    for k in range(min(won, lost) + 1):
        total += ways
        ways = ways * (n - k) // (k + 1)
    return min(1.0, float(2 * total / 2**n))


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """The mean of paired differences, one for each task, with its 95 % interval and how that came about."""

    mean: float
    standard_error: float | None
    interval: tuple[float, float] | None
    interval_method: str | None


def mean_difference(differences: Sequence[float], *, of_single_verdicts: bool = False) -> MeanDifference | None:
    """The mean of each task's difference between two runs; None without a task.

    A task's difference is that of its mean rewards, so that repeats are clustered by task and what makes a task hard
    for both cancels: SE^2 = s^2 / G of the G differences (Miller, arXiv:2411.00640, section 4.2), with Student's
    interval. ``of_single_verdicts``, where every difference is -1, 0 or 1, one more of each kind is counted for
    half a task (two for the ties), which keeps the interval honest when hardly any task differs: Agresti and Min,
    "Simple improved confidence intervals for comparing matched proportions", Statistics in Medicine 24, 2005.
    """
    n = len(differences)
    if n == 0:
        return None
    mean = math.fsum(differences) / n
    error = None
    if n > 1:
        error = _without_rounding(math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (n - 1) / n), differences)
    if of_single_verdicts:
        total, squares, size = math.fsum(differences), math.fsum(d * d for d in differences) + 1.0, n + 2
        half = Z_95 * math.sqrt(squares - total**2 / size) / size
        bounds = max(-1.0, total / size - half), min(1.0, total / size + half)
        return MeanDifference(mean, error, bounds, "agresti-min")
    if not error:
        return MeanDifference(mean, error, None, None)
    half = t_95(n - 1) * error
    return MeanDifference(mean, error, (mean - half, mean + half), "student-t")


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
