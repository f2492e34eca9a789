"""Worked numbers for every test, and that a true null is rejected no more often than promised."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ragen_lab.findings import statistics as st


def test_smallest_p_of_the_designs_in_the_handbook() -> None:
    # unpaired: 1 / C(6, 3) = 1/20, 1 / C(10, 5) = 1/252, 1 / C(20, 10) = 1/184756
    assert [round(st.smallest_p_unpaired(n), 7) for n in (3, 5, 10)] == [0.05, 0.0039683, 5.4e-06]
    # sign flip: 2^-3, 2^-5, 2^-10
    assert [st.smallest_p_within_blocks(n) for n in (3, 5, 10)] == [0.125, 0.03125, 1 / 1024]
    # Jonckheere, 4 levels x 3 seeds over all runs: 12! / (3!)^4 = 369600 orders
    assert st.smallest_p_unpaired(3, arms=4) == pytest.approx(1 / 369600)
    # the same within blocks: (4!)^3 = 13824
    assert st.smallest_p_within_blocks(3, arms=4) == pytest.approx(1 / 13824)
    # two arms need 5 seeds in one environment, 3 in two (2^-6); three arms need 2 (6^-2 = 0.028)
    assert (st.seeds_needed(2), st.seeds_needed(2, environments=2), st.seeds_needed(3)) == (5, 3, 2)


def test_arrangements_count_distinct_deals() -> None:
    assert st.arrangements([0, 0, 1, 1], [0, 0, 0, 0]) == 6
    assert st.arrangements([0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1]) == 36
    assert len(list(st._distinct([0.0, 0.0, 1.0, 1.0]))) == 6


def test_sign_flip_by_hand() -> None:
    # differences 1, 2, 3: sum 6 is the largest of the 8 sums -> 1/8; with -1: 4 is reached by 6 and 4 -> 2/8
    assert st.sign_flip([1.0, 2.0, 3.0]).p == pytest.approx(1 / 8)
    assert st.sign_flip([-1.0, 2.0, 3.0]).p == pytest.approx(2 / 8)
    assert st.sign_flip([-1.0, -2.0, -3.0]).p == 1.0
    assert st.sign_flip([]).smallest_p == 1.0


def test_sign_flip_agrees_with_scipy() -> None:
    x = np.random.default_rng(1).normal(0.3, 1, size=9)
    theirs = stats.permutation_test((x,), np.mean, permutation_type="samples", alternative="greater", n_resamples=10**6)
    assert st.sign_flip(list(x)).p == pytest.approx(theirs.pvalue)


def test_unpaired_difference_by_hand_and_by_scipy() -> None:
    assert st.permuted_difference([4, 5, 6], [1, 2, 3]).p == pytest.approx(1 / 20)
    a, b = [0.61, 0.56, 0.58, 0.7], [0.56, 0.43, 0.59]
    theirs = stats.permutation_test((a, b), lambda x, y: np.mean(x) - np.mean(y), alternative="greater")
    assert st.permuted_difference(a, b).p == pytest.approx(theirs.pvalue)


def test_jonckheere_by_hand() -> None:
    # levels 0 0 1 1 2 2, values in perfect order: every one of the 12 pairs counts; 6!/(2!)^3 = 90 orders
    found = st.jonckheere([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 2, 2])
    assert found.statistic == 12
    assert found.p == pytest.approx(1 / 90)
    # one swap across neighbouring levels loses one pair; the orders with 12 or 11 pairs: 1 + 2
    swapped = st.jonckheere([1, 3, 2, 4, 5, 6], [0, 0, 1, 1, 2, 2])
    assert (swapped.statistic, swapped.p) == (11, pytest.approx(3 / 90))
    # within two blocks of three levels: 36 orders, one of them perfect
    assert st.jonckheere([1, 2, 3, 1.5, 2.5, 3.5], [0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1]).p == pytest.approx(1 / 36)
    # ties count half
    assert st.jonckheere([1, 1], [0, 1]).statistic == 0.5


def test_jonckheere_compares_within_strata_only() -> None:
    values, levels = [1, 2, 11, 12], [0, 1, 0, 1]
    # pairs (1,2) and (11,12) in order = 2; across strata 12 over 1 would be a third, 2 over 11 is against
    assert st.jonckheere(values, levels, [0, 0, 1, 1], [0, 0, 1, 1]).statistic == 2


def test_page_is_scipys() -> None:
    matrix = [[1, 2, 3, 4], [1, 3, 2, 4], [2, 1, 3, 4]]
    assert st.page(matrix) == pytest.approx(float(stats.page_trend_test(matrix).pvalue))
    assert math.isnan(st.page([[1, 2]]))


def test_mack_wolfe_by_hand() -> None:
    # 1 3 2 with peak at level 1: up 1<3 counts, down 3>2 counts: 2 of 2; 3! orders, two of them (1 3 2, 2 3 1) perfect
    found = st.mack_wolfe([1, 3, 2], [0, 1, 2], peak=1)
    assert (found.statistic, found.p) == (2, pytest.approx(2 / 6))


def test_umbrella_by_hand() -> None:
    # means 1, 5, 0: the middle is 4 above the better end
    found = st.umbrella([[1, 5, 0], [1, 5, 0], [1, 5, 0]])
    assert found.peak == 1
    assert found.test.statistic == 4
    # an order reaches 4 only with every 5 in the middle; then the ends' means must both be <= 1: ends hold 1 or 0
    assert found.test.p == pytest.approx(8 / 216)
    assert st.umbrella([[1, 2, 3]] * 3).test.p > 0.5  # a trend is no departure
    assert st.umbrella([[1, 2]] * 3).test.smallest_p == 1.0


def test_kaplan_meier_by_hand() -> None:
    # times 1, 2+, 3, 4+: S = 3/4 after 1, then 3/4 * 1/2 = 3/8 after 3
    found = st.kaplan_meier([1, 2, 3, 4], [True, False, True, False])
    assert found.times == (0, 1, 2, 3, 4)
    assert found.survival == pytest.approx((1, 0.75, 0.75, 0.375, 0.375))
    assert found.at_risk == (4, 4, 3, 2, 1)
    assert found.events == (0, 1, 0, 1, 0)
    # area up to 5: 1*1 + 0.75*2 + 0.375*2 = 3.25
    assert st.rmst([1, 2, 3, 4], [True, False, True, False], 5) == pytest.approx(3.25)


def test_rmst_without_censoring_is_the_mean_of_the_cut_times() -> None:
    times, events = [10.0, 60.0, 60.0], [True, False, False]
    assert st.rmst(times, events, 60) == pytest.approx(130 / 3)
    assert st.rmst_pseudo_values(times, events, 60) == pytest.approx(times)
    assert st.rmst_pseudo_values([30.0], [True], 60) == [30.0]
    # censored at 20 beside an event at 10 (S = 1/2 to 60): all 10 + 50/2 = 35; without it 10; without the other 60
    assert st.rmst_pseudo_values([10.0, 20.0], [True, False], 60) == pytest.approx([2 * 35 - 60, 2 * 35 - 10])


def test_logrank_scores_add_up_to_scipys_numerator() -> None:
    a = stats.CensoredData(uncensored=[3.0, 5.0], right=[8.0])
    b = stats.CensoredData(uncensored=[6.0], right=[8.0, 8.0])
    times, events = [3, 5, 8, 6, 8, 8], [True, True, False, True, False, False]
    scores = st.logrank_scores(times, events, [0] * 6)
    # at 3: 6 at risk, 3 of them A -> E 1/2; at 5: 2 of 5; at 6: 1 of 4. O - E = 2 - 1.15
    assert scores[:3].sum() == pytest.approx(2 - 0.5 - 0.4 - 0.25)
    assert scores.sum() == pytest.approx(0)
    # scipy's statistic is (O - E) / sqrt(V) with V = 1/4 + 6/25 + 3/16
    assert scores[:3].sum() / math.sqrt(0.25 + 0.24 + 0.1875) == pytest.approx(abs(stats.logrank(a, b).statistic))


def test_trend_logrank_direction_and_exactness() -> None:
    times = [10.0, 20.0, 60.0, 11.0, 21.0, 60.0]
    events = [True, True, False] * 2
    up = st.trend_logrank(times, events, [0, 1, 2] * 2, [0, 0, 0, 1, 1, 1])
    assert up.p == pytest.approx(1 / 36)
    assert st.trend_logrank(times, events, [2, 1, 0] * 2, [0, 0, 0, 1, 1, 1]).p == 1.0
    assert st.trend_logrank(times, [False] * 6, [0, 1, 2] * 2, [0, 0, 0, 1, 1, 1]).smallest_p == 1.0


def test_large_designs_are_drawn_and_reproducible() -> None:
    values = list(np.random.default_rng(0).normal(size=40))
    levels, blocks = [0.0, 1.0, 2.0, 3.0] * 10, [b for b in range(10) for _ in range(4)]
    first, second = st.jonckheere(values, levels, blocks), st.jonckheere(values, levels, blocks)
    assert not first.exact
    assert first == second
    assert first.smallest_p == 1 / st.LIMIT


def test_holm_by_hand() -> None:
    # sorted 0.01, 0.02, 0.04: 3 * 0.01, 2 * 0.02, 1 * 0.04
    assert st.holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert st.holm([0.9, 0.8]) == [1.0, 1.0]
    assert st.holm([]) == []


def test_intervals_by_hand() -> None:
    # 1, 2, 3: mean 2, sd 1, t(2) = 4.303: half width 4.303 / sqrt(3) = 2.484
    found = st.t_interval([1, 2, 3])
    assert (found.estimate, found.low, found.high) == pytest.approx((2, 2 - 2.484, 2 + 2.484), abs=1e-3)
    assert math.isnan(st.t_interval([1.0]).low)
    welch = st.welch_interval([3, 4, 5], [1, 2, 3])  # se sqrt(1/3 + 1/3) = 0.816, df 4, t 2.776
    assert (welch.estimate, welch.low, welch.high) == pytest.approx((2, 2 - 2.267, 2 + 2.267), abs=1e-3)
    assert st.clopper_pearson(0, 3) == pytest.approx((0, 0.7076), abs=1e-4)
    assert st.wilson(51, 256) == pytest.approx((0.155, 0.252), abs=1e-3)


def test_identical_values_are_no_proof() -> None:
    # three runs of each arm that never collapse: with +-60 imagined, sd of (0 0 0 60 -60) is 42.4
    found = st.t_interval([0, 0, 0], span=60)
    assert (found.estimate, found.high) == (0, pytest.approx(2.776 * 42.43 / math.sqrt(5), abs=0.1))
    assert st.t_interval([0, 0, 0.1], span=60).high < 1
    # 40 three times and one block without effect: sd 20, t(3) = 3.182, half width 31.8 around 40
    found = st.t_interval([40, 40, 40], span=60)
    assert (found.estimate, found.low, found.high) == pytest.approx((40, 40 - 31.82, 40 + 31.82), abs=0.01)


def test_descriptions_by_hand() -> None:
    assert st.iqm([0, 1, 2, 100]) == 1.5
    assert st.probability_of_improvement([2, 3], [1, 2]) == pytest.approx((1 + 0.5 + 1 + 1) / 4)


@pytest.mark.parametrize("kind", ["sign_flip", "jonckheere", "trend_logrank", "umbrella"])
def test_a_true_null_is_rejected_no_more_often_than_promised(kind: str) -> None:
    """400 null designs of 3 levels x 3 seeds: at most 5 % + 2.5 standard errors (0.077) below 0.05."""
    rejected = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        block_effect = np.repeat(rng.normal(size=3), 3)
        values = rng.normal(size=9) + block_effect
        levels, blocks = [0.0, 1.0, 2.0] * 3, [0, 0, 0, 1, 1, 1, 2, 2, 2]
        if kind == "sign_flip":
            p = st.sign_flip(list(rng.normal(size=6))).p
        elif kind == "jonckheere":
            p = st.jonckheere(list(values), levels, blocks).p
        elif kind == "trend_logrank":
            times = np.ceil(10 * rng.exponential(size=9))
            p = st.trend_logrank(list(np.minimum(times, 20)), list(times < 20), levels, blocks).p
            p = 1.0 if math.isnan(p) else p
        else:
            p = st.umbrella(values.reshape(3, 3).tolist()).test.p
        rejected += p <= 0.05
    assert rejected / 400 <= 0.077


def test_the_umbrella_does_not_mistake_a_plateau_for_a_peak() -> None:
    """The hardest null: the middle equals the better end. Even then at most 5 % + 2.5 standard errors."""
    rejected = 0
    for seed in range(300):
        noise = np.random.default_rng(seed).normal(size=(4, 3))
        rejected += st.umbrella((noise + np.array([0.0, 2.0, 2.0])).tolist()).test.p <= 0.05
    assert rejected / 300 <= 0.08
