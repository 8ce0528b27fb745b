"""The project's own formulas against a statistics library, and against regression with clustered errors by matrices."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from nemo_gym.rollouts.metrics import (
    mean_difference,
    mean_reward,
    pass_at_k,
    pass_hat_k,
    percentile,
    sign_test,
    t_95,
    wilson_interval,
)


def samples(seed: int, *, clustered: bool) -> dict[str, list[float]]:
    """Rewards of 3 to 60 tasks, of one repeat each or of 1 to 6."""
    chance = random.Random(seed)
    return {
        str(task): [chance.random() for _ in range(chance.randint(1, 6) if clustered else 1)]
        for task in range(chance.randint(3, 60))
    }


def clustered_error(rewards_of_task: Mapping[str, Sequence[float]]) -> float:
    """The standard error of a regression on a constant, robust to clusters: the sandwich of Liang and Zeger.

    (X'X)^-1 (sum over clusters of X_g' u_g u_g' X_g) (X'X)^-1, times G / (G - 1), as statistics packages have it.
    """
    values = np.array([reward for rewards in rewards_of_task.values() for reward in rewards])
    groups = np.repeat(np.arange(len(rewards_of_task)), [len(rewards) for rewards in rewards_of_task.values()])
    design = np.ones((len(values), 1))
    bread = np.linalg.inv(design.T @ design)
    residuals = values - design @ (bread @ design.T @ values)
    scores = [design[groups == g].T @ residuals[groups == g] for g in range(len(rewards_of_task))]
    meat = sum((np.outer(score, score) for score in scores), np.zeros((1, 1)))
    count = len(rewards_of_task)
    return float(np.sqrt(count / (count - 1) * (bread @ meat @ bread)[0, 0]))


@pytest.mark.parametrize("seed", range(20))
def test_the_standard_error_of_a_mean(seed: int) -> None:
    plain = samples(seed, clustered=False)
    found = mean_reward(plain)
    assert found is not None
    values = [reward for (reward,) in plain.values()]
    assert found.standard_error == pytest.approx(float(stats.sem(values)), rel=1e-12)
    interval = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert found.interval == pytest.approx(tuple(map(float, interval)), rel=1e-10)
    clusters = samples(seed, clustered=True)
    of_clusters = mean_reward(clusters)
    assert of_clusters is not None
    assert of_clusters.standard_error == pytest.approx(clustered_error(clusters), rel=1e-12)


def test_students_t() -> None:
    for degrees in [*range(1, 400), 1000, 10_000, 1_000_000]:
        assert t_95(degrees) == pytest.approx(float(stats.t.ppf(0.975, degrees)), abs=1e-9)


def test_wilsons_interval() -> None:
    for n in (1, 2, 7, 30, 1000):
        for hits in range(0, n + 1, max(1, n // 7)):
            expected = stats.binomtest(hits, n).proportion_ci(0.95, method="wilson")
            assert wilson_interval(hits / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_sign_test() -> None:
    for won in range(0, 60, 3):
        for lost in range(0, 60, 7):
            expected = stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
            assert sign_test(won, lost) == pytest.approx(float(expected), rel=1e-9)
    assert sign_test(1200, 1000) == pytest.approx(float(stats.binomtest(1200, 2200).pvalue), rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_a_paired_difference(seed: int) -> None:
    chance = random.Random(seed)
    before = [chance.random() for _ in range(chance.randint(2, 50))]
    after = [value + chance.gauss(0.05, 0.2) for value in before]
    found = mean_difference([b - a for a, b in zip(before, after, strict=True)])
    assert found is not None
    test = stats.ttest_rel(after, before)
    interval = test.confidence_interval(0.95)
    assert found.interval == pytest.approx((float(interval.low), float(interval.high)), rel=1e-9)
    assert found.standard_error is not None
    assert found.mean / found.standard_error == pytest.approx(float(test.statistic), rel=1e-9)


def test_pass_rates_are_hypergeometric() -> None:
    for n in range(1, 12):
        for c in range(n + 1):
            for k in range(1, n + 1):
                drawn = stats.hypergeom(n, c, k)
                assert pass_at_k(n, c, k) == pytest.approx(1 - float(drawn.pmf(0)), abs=1e-12)
                assert pass_hat_k(n, c, k) == pytest.approx(float(drawn.pmf(k)), abs=1e-12)


def test_percentiles() -> None:
    chance = random.Random(1)
    for size in (1, 2, 3, 10, 101):
        values = [chance.gauss(0, 1) for _ in range(size)]
        for percent in (0, 5, 50, 95, 99, 100):
            assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-12)
    assert math.isclose(percentile([1.0, 2.0], 50), 1.5)
