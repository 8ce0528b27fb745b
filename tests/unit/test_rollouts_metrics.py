from __future__ import annotations

import math
import random
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.rollouts.metrics import (
    Z_95,
    mean_difference,
    mean_reward,
    pass_at_k,
    pass_hat_k,
    pass_rates,
    percentile,
    sign_test,
    t_95,
)


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

    def test_rewards_that_are_no_verdicts_have_students_interval(self) -> None:
        assert pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-12) == Z_95
        result = mean_reward({"a": [0.0], "b": [1.0], "c": [0.5]})
        assert result is not None
        # mean 1/2, s = 1/2, SE = 1/2 / sqrt 3; the tables have 4.3027 for two degrees of freedom
        half = 4.30265272991 / 2 / math.sqrt(3)
        assert result.interval == pytest.approx((0.5 - half, 0.5 + half))
        assert result.interval_method == "student-t"

    def test_verdicts_have_wilsons_interval(self) -> None:
        result = mean_reward({str(n): [float(n < 7)] for n in range(30)})
        assert result is not None
        assert (result.is_binary, result.interval_method) == (True, "wilson")
        # 7 of 30, worked out from the formula with z = 1.96: (0.2333 + 0.0640 -+ 0.1638) / 1.1280
        assert result.interval == pytest.approx((0.1179, 0.4093), abs=5e-5)

    def test_verdicts_that_all_agree_have_an_interval_too(self) -> None:
        result = mean_reward({str(n): [1.0, 1.0] for n in range(10)})
        assert result is not None
        assert (result.mean, result.standard_error, result.effective_rollouts) == (1.0, 0.0, 10.0)
        # n / (n + z^2), by the number of tasks: repeats that agree tell nothing more
        assert result.interval == pytest.approx((10 / (10 + Z_95**2), 1.0))

    def test_repeats_that_resemble_each_other_count_as_fewer(self) -> None:
        alike = mean_reward({str(n): [float(n % 2)] * 4 for n in range(40)})
        independent = mean_reward({str(n): [float((n >> bit) & 1) for bit in range(4)] for n in range(16)})
        assert alike is not None
        assert independent is not None
        scale = (Z_95 / t_95(39)) ** 2
        assert alike.effective_rollouts == pytest.approx(40 * scale * 39 / 40 * 160 / 159)
        assert independent.effective_rollouts == pytest.approx(64 / 1.05 * (Z_95 / t_95(15)) ** 2)

    @pytest.mark.parametrize("group", [[0.1], [0.7], [0.1, 0.7]])
    def test_what_rounding_leaves_of_a_difference_is_none(self, group: list[float]) -> None:
        for tasks in range(2, 40):
            result = mean_reward({str(task): group for task in range(tasks)})
            assert result is not None
            assert (result.standard_error, result.interval) == (0.0, None)

    def test_other_rewards_that_are_all_alike_have_no_interval(self) -> None:
        result = mean_reward({"a": [0.5], "b": [0.5], "c": [0.5]})
        assert result is not None
        assert (result.mean, result.standard_error, result.interval) == (0.5, 0.0, None)
        assert result.interval_method is None

    @pytest.mark.parametrize(("tasks", "repeats"), [(5, 1), (5, 8), (10, 4), (30, 1), (30, 4), (100, 1)])
    @pytest.mark.parametrize("shape", [(1.0, 1.0), (0.3, 0.3), (9.0, 1.0), (0.5, 9.5)])
    def test_an_interval_of_verdicts_holds_the_truth_95_times_in_100(
        self, tasks: int, repeats: int, shape: tuple[float, float]
    ) -> None:
        """Tasks of Beta-distributed hardness, from all alike to all or nothing; 500 runs of each."""
        chance = random.Random(f"{tasks} {repeats} {shape}")

        def verdicts() -> list[float]:
            hardness = chance.betavariate(*shape)
            return [float(chance.random() < hardness) for _ in range(repeats)]

        truth = shape[0] / sum(shape)
        held = 0
        for _ in range(500):
            result = mean_reward({str(task): verdicts() for task in range(tasks)})
            assert result is not None
            assert result.interval is not None
            held += result.interval[0] <= truth <= result.interval[1]
        assert 0.88 <= held / 500 <= 1.0  # of five tasks there are few different intervals

    @pytest.mark.parametrize(("tasks", "repeats"), [(3, 1), (5, 4), (20, 2)])
    def test_an_interval_of_scores_holds_the_truth_95_times_in_100(self, tasks: int, repeats: int) -> None:
        chance = random.Random(f"{tasks} {repeats}")

        def scores() -> list[float]:
            hardness = chance.uniform(0.3, 0.7)
            return [hardness + chance.gauss(0, 0.1) for _ in range(repeats)]

        held = 0
        for _ in range(1000):
            result = mean_reward({str(task): scores() for task in range(tasks)})
            assert result is not None
            assert result.interval is not None
            held += result.interval[0] <= 0.5 <= result.interval[1]
        assert 0.92 <= held / 1000 <= 0.98

    def test_where_there_is_none(self) -> None:
        assert mean_reward({}) is None
        assert mean_reward({"a": []}) is None
        single = mean_reward({"a": [1.0, 0.0], "b": []})
        assert single is not None
        assert (single.mean, single.standard_error, single.interval) == (0.5, None, None)


class TestStudentsT:
    @pytest.mark.parametrize(
        ("degrees", "point"),
        [(1, 12.7062), (2, 4.3027), (5, 2.5706), (10, 2.2281), (29, 2.0452), (100, 1.9840), (1000, 1.9623)],
    )
    def test_points_as_tables_have_them(self, degrees: int, point: float) -> None:
        assert t_95(degrees) == pytest.approx(point, abs=5e-5)

    def test_the_two_ways_to_it_meet(self) -> None:
        assert 0 < t_95(200) - t_95(201) < 1e-4
        assert t_95(199) - t_95(200) == pytest.approx(t_95(200) - t_95(201), rel=0.02)

    def test_no_degree_of_freedom(self) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            t_95(0)


class TestDifferences:
    def test_the_sign_test_by_hand(self) -> None:
        assert sign_test(0, 0) == 1.0
        assert sign_test(0, 5) == 2 / 32
        assert sign_test(5, 0) == 2 / 32
        assert sign_test(1, 5) == 2 * (1 + 6) / 64
        assert sign_test(3, 3) == 1.0
        assert sign_test(1000, 1200) == pytest.approx(2.2e-5, rel=0.05)
        with pytest.raises(ValueError, match="from 0 on"):
            sign_test(-1, 2)

    def test_a_mean_difference_by_hand(self) -> None:
        found = mean_difference([0.5, 0.0, 0.25, 0.25])
        assert found is not None
        error = statistics.stdev([0.5, 0.0, 0.25, 0.25]) / 2
        assert (found.mean, found.standard_error) == (0.25, pytest.approx(error))
        assert found.interval == pytest.approx((0.25 - t_95(3) * error, 0.25 + t_95(3) * error))
        assert found.interval_method == "student-t"

    def test_single_verdicts_by_hand(self) -> None:
        # 10 pairs, 3 won and 1 lost: (3 - 1) / 12, and 1/12 sqrt(5 - 4/12)
        found = mean_difference([1.0] * 3 + [-1.0] + [0.0] * 6, of_single_verdicts=True)
        assert found is not None
        half = Z_95 * math.sqrt(5 - 4 / 12) / 12
        assert found.mean == pytest.approx(0.2)
        assert found.interval == pytest.approx((2 / 12 - half, 2 / 12 + half))
        assert found.interval_method == "agresti-min"

    @pytest.mark.parametrize("differences", [[0.1] * 7, [0.8 - 0.7, 0.4 - 0.3, 0.9 - 0.8], [0.1 + 0.2 - 0.3, 0.0]])
    def test_what_rounding_leaves_is_no_verdict(self, differences: list[float]) -> None:
        result = mean_difference(differences)
        assert result is not None
        assert (result.standard_error, result.interval) == (0.0, None)

    def test_runs_that_agree_everywhere(self) -> None:
        verdicts = mean_difference([0.0] * 20, of_single_verdicts=True)
        assert verdicts is not None
        assert verdicts.interval == pytest.approx((-Z_95 / 22, Z_95 / 22))
        scores = mean_difference([0.0] * 20)
        assert scores is not None
        assert (scores.mean, scores.interval) == (0.0, None)
        assert mean_difference([]) is None
        single = mean_difference([0.5])
        assert single is not None
        assert (single.mean, single.standard_error, single.interval) == (0.5, None, None)

    @pytest.mark.parametrize(("tasks", "repeats"), [(10, 1), (30, 1), (10, 4), (30, 4)])
    def test_an_interval_holds_the_truth_95_times_in_100(self, tasks: int, repeats: int) -> None:
        """Tasks between hopeless and sure, of which the second run solves each a tenth more often."""
        chance = random.Random(f"{tasks} {repeats}")

        def difference() -> float:
            hardness = chance.uniform(0, 0.9)
            before = sum(chance.random() < hardness for _ in range(repeats))
            after = sum(chance.random() < hardness + 0.1 for _ in range(repeats))
            return (after - before) / repeats

        held = 0
        for _ in range(1000):
            found = mean_difference([difference() for _ in range(tasks)], of_single_verdicts=repeats == 1)
            assert found is not None
            assert found.interval is not None
            held += found.interval[0] <= 0.1 <= found.interval[1]
        assert 0.92 <= held / 1000 <= 0.98


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
