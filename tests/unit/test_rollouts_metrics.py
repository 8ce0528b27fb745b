from __future__ import annotations

import math
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.rollouts.metrics import Z_95, mean_reward, pass_at_k, pass_hat_k, pass_rates, percentile


class TestMeanReward:
    def test_one_rollout_a_task_is_the_ordinary_standard_error(self) -> None:
        rewards = [1.0, 0.0, 0.0, 1.0, 0.5, 1.0, 0.25]
        result = mean_reward({str(n): [reward] for n, reward in enumerate(rewards)})
        assert result is not None
        assert result.mean == pytest.approx(statistics.fmean(rewards))
        assert result.standard_error == pytest.approx(statistics.stdev(rewards) / math.sqrt(len(rewards)))
        assert (result.tasks, result.rollouts) == (7, 7)

    def test_clusters_of_one_size_are_the_standard_error_of_the_task_means(self) -> None:
        rewards = {"a": [1.0, 1.0, 0.0], "b": [0.0, 0.0, 0.0], "c": [1.0, 0.0, 0.5], "d": [1.0, 1.0, 1.0]}
        means = [statistics.fmean(group) for group in rewards.values()]
        result = mean_reward(rewards)
        assert result is not None
        assert result.standard_error == pytest.approx(statistics.stdev(means) / math.sqrt(4))

    def test_clusters_of_different_sizes_by_hand(self) -> None:
        # n = 3, mean 2/3; deviations by task: 2 * 1/3 and -2/3; G/(G-1) = 2; SE^2 = 2 * (4/9 + 4/9) / 9
        result = mean_reward({"a": [1.0, 1.0], "b": [0.0]})
        assert result is not None
        assert result.mean == pytest.approx(2 / 3)
        assert result.standard_error == pytest.approx(math.sqrt(2 * (8 / 9) / 9))

    def test_repeats_that_always_agree_tell_no_more_than_one(self) -> None:
        once = mean_reward({"a": [1.0], "b": [0.0], "c": [1.0]})
        often = mean_reward({"a": [1.0] * 50, "b": [0.0] * 50, "c": [1.0] * 50})
        assert once is not None
        assert often is not None
        assert often.standard_error == pytest.approx(once.standard_error)

    def test_the_interval_is_95_percent_of_the_normal_distribution(self) -> None:
        assert pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-12) == Z_95
        result = mean_reward({"a": [0.0], "b": [1.0]})
        assert result is not None
        # mean 1/2, s^2 = 1/2, SE = 1/2
        assert result.interval == pytest.approx((0.5 - Z_95 / 2, 0.5 + Z_95 / 2))

    def test_rewards_that_are_all_alike_have_no_interval(self) -> None:
        result = mean_reward({"a": [1.0], "b": [1.0], "c": [1.0]})
        assert result is not None
        assert (result.mean, result.standard_error, result.interval) == (1.0, 0.0, None)

    def test_where_there_is_none(self) -> None:
        assert mean_reward({}) is None
        assert mean_reward({"a": []}) is None
        single = mean_reward({"a": [1.0, 0.0], "b": []})
        assert single is not None
        assert (single.mean, single.standard_error, single.interval) == (0.5, None, None)


class TestPassRates:
    def test_by_hand(self) -> None:
        assert pass_at_k(4, 1, 1) == 0.25
        assert pass_at_k(4, 1, 2) == 0.5
        assert pass_at_k(5, 2, 3) == pytest.approx(1 - 1 / 10)
        assert pass_at_k(5, 0, 5) == 0.0
        assert pass_at_k(5, 1, 5) == 1.0
        assert pass_hat_k(5, 3, 2) == pytest.approx(3 / 10)
        assert pass_hat_k(5, 1, 2) == 0.0
        assert pass_hat_k(5, 5, 5) == 1.0

    @given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
    def test_they_are_the_share_of_all_draws(self, counts: tuple[int, int, int]) -> None:
        n, c, k = counts
        draws = list(combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))
        assert pass_hat_k(n, c, k) == pytest.approx(sum(all(draw) for draw in draws) / len(draws))

    @pytest.mark.parametrize("counts", [(2, 3, 1), (2, -1, 1), (2, 1, 3), (2, 1, 0)])
    def test_impossible_counts(self, counts: tuple[int, int, int]) -> None:
        with pytest.raises(ValueError, match="needed"):
            pass_at_k(*counts)

    def test_sizes_are_powers_of_two_and_the_fewest_repeats(self) -> None:
        rates = pass_rates({"a": [1.0, 0.0, 0.0], "b": [1.0, 1.0, 1.0, 0.99]})
        assert list(rates) == ["pass@1", "pass@2", "pass@3", "pass^2", "pass^3"]
        # a: 1 of 3. b: 3 of 4.
        assert rates["pass@1"] == pytest.approx((1 / 3 + 3 / 4) / 2)
        assert rates["pass@2"] == pytest.approx((2 / 3 + 1) / 2)
        assert rates["pass^2"] == pytest.approx((0 + 3 / 6) / 2)

    def test_one_repeat_has_none(self) -> None:
        assert pass_rates({"a": [1.0, 1.0], "b": [1.0]}) == {}
        assert pass_rates({}) == {}


class TestPercentile:
    def test_by_hand(self) -> None:
        assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
        assert percentile([4.0, 1.0, 3.0, 2.0], 0) == 1.0
        assert percentile([4.0, 1.0, 3.0, 2.0], 100) == 4.0
        assert percentile([7.0], 95) == 7.0

    @given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
    def test_quartiles_are_those_of_the_standard_library(self, values: list[float]) -> None:
        expected = statistics.quantiles(values, n=4, method="inclusive")
        assert [percentile(values, p) for p in (25, 50, 75)] == pytest.approx(expected, abs=1e-6)

    def test_what_has_none(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            percentile([], 50)
        with pytest.raises(ValueError, match="0 to 100"):
            percentile([1.0], 101)
