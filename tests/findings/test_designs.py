"""The verdict rules, the pairing by seed, and the reading of runs into outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from ragen_lab.config import RunConfig
from ragen_lab.findings import designs, outcomes
from ragen_lab.findings.base import Verdict
from ragen_lab.findings.outcomes import rebuilt, strata
from ragen_lab.findings.statistics import Interval, Permuted, seeds_needed
from ragen_lab.runs import Run


def permuted(p: float, smallest: float = 0.001) -> Permuted:
    return Permuted(0.0, p, smallest, True)


@pytest.mark.parametrize(
    ("interval", "p", "smallest", "verdict"),
    [
        ((8, 2, 14), 0.01, 0.001, Verdict.SUPPORTED),
        ((5, 3, 8), 0.01, 0.001, Verdict.INCONCLUSIVE),  # significant, but smaller than the effect of interest
        ((3, 1, 5), 0.01, 0.001, Verdict.CONTRADICTED),  # significant, and surely smaller
        ((8, -2, 18), 0.10, 0.001, Verdict.INCONCLUSIVE),
        ((-9, -14, -4), 0.99, 0.001, Verdict.CONTRADICTED),  # the opposite
        ((8, 2, 14), 0.125, 0.125, Verdict.NOT_TESTABLE),
        ((-9, -14, -4), 1.0, 0.125, Verdict.NOT_TESTABLE),  # the design decides first
        ((8, math.nan, math.nan), 0.01, 0.001, Verdict.SUPPORTED),
        ((math.nan, math.nan, math.nan), 0.01, 0.001, Verdict.NOT_TESTABLE),
        ((8, 2, 14), math.nan, 0.001, Verdict.NOT_TESTABLE),
    ],
)
def test_the_four_verdicts(interval, p, smallest, verdict) -> None:
    assert designs.judge(Interval(*interval), permuted(p, smallest), sesoi=6) is verdict


def test_compound_claims_need_every_part() -> None:
    s, c, n, i = Verdict.SUPPORTED, Verdict.CONTRADICTED, Verdict.NOT_TESTABLE, Verdict.INCONCLUSIVE
    assert designs.compound([s, s]) is s
    assert designs.compound([s, n]) is n
    assert designs.compound([i, n]) is n
    assert designs.compound([s, i]) is i
    assert designs.compound([n, c]) is c  # one false part makes the claim false, whatever else is missing
    assert designs.compound([c, Verdict.MIXED]) is Verdict.MIXED
    assert designs.compound([]) is n


def test_trend_weights_give_the_change_from_first_to_last() -> None:
    assert designs.trend_weights(2) == pytest.approx([-1, 1])
    assert designs.trend_weights(3) == pytest.approx([-1, 0, 1])
    # centred -1.5 -.5 .5 1.5, sum of squares 5: slope * 3
    assert designs.trend_weights(4) == pytest.approx([-0.9, -0.3, 0.3, 0.9])


def ladder_of(make, times: list[list[int | None]], label: str = "x") -> designs.Ladder:
    """Arms of runs with the given starts of collapse; seed = place in the list."""
    ratios = (1.0, 0.5, 0.25)

    def judged(seed: int, ratio: float, at: int | None) -> outcomes.Outcome:
        return outcomes.outcome(make(seed, {"filter.keep_ratio": ratio}, collapse_at=at), 60)

    arms = [
        tuple(judged(seed, ratio, at) for seed, at in enumerate(arm)) for ratio, arm in zip(ratios, times, strict=False)
    ]
    return designs.Ladder(label, tuple(str(r) for r in ratios[: len(times)]), tuple(arms))


def test_a_first_arm_that_hardly_collapses_leaves_nothing_to_improve(make) -> None:
    """One late collapse in five runs: 2 of 60 iterations lost on average, below the 6 of interest."""
    ladder = ladder_of(make, [[45, None, None, None, None], [None] * 5])
    found = designs.survival_test("n", "q", [ladder], 60, 6)
    assert found.verdict is Verdict.NOT_TESTABLE
    assert "nothing to improve" in found.note
    harmed = ladder_of(make, [[None] * 5, [10, 15, 10, 20, 15]])
    assert designs.survival_test("n", "q", [harmed], 60, 6).verdict is Verdict.CONTRADICTED


def test_a_seed_with_one_run_says_nothing_about_the_arms(make) -> None:
    ladder = ladder_of(make, [[10, 15, 20, 10, 15], [None] * 5])
    lonely = replace(ladder, arms=(ladder.arms[0], ladder.arms[1][:4]))
    flat = designs.cells([lonely], lambda o: o.time)
    assert len(flat.values) == 8
    assert {o.run.seed for o in flat.outcomes} == {0, 1, 2, 3}
    assert len(designs.block_effects([lonely], lambda o: o.time)) == 4
    assert lonely.seeds == 4


def test_two_arms_are_compared_by_the_sign_flip(make) -> None:
    ladder = ladder_of(make, [[10, 10, 10, 10, 10], [None] * 5])
    found = designs.value_test("n", "q", [ladder], lambda o: o.final, "success", 0.05)
    assert found.p == found.smallest_p == pytest.approx(1 / 32)
    assert found.effect == pytest.approx(0.37, abs=0.05)
    assert "Probability of improvement, last arm over first: 1.00" in found.note


def test_an_outcome_in_numbers(make) -> None:
    run = make(3, final=0.6, noise=0.0)
    found = outcomes.outcome(run, 60)
    # evaluations at 50, 55, 60 of the line 0.4 -> 0.6: 0.4 + 0.2 * 55 / 60
    assert found.final == pytest.approx(0.4 + 0.2 * 55 / 60)
    assert found.start == pytest.approx(0.4)
    assert found.area == pytest.approx(0.5)
    assert (found.event, found.time, found.stopped) == (False, 60, False)


def test_an_unfinished_run_has_no_final_success_and_is_censored_where_it_ends(make) -> None:
    found = outcomes.outcome(make(0, status="stopped", stop_at=30), 60)
    assert (found.final, found.area, found.event, found.time) == (None, None, False, 30)


def test_a_stop_is_read_both_ways(make) -> None:
    run = make(0, noise=0.0, status="collapsed", stop_at=30)
    held = outcomes.outcome(run, 60).read("held")
    assert (held.ambiguous, held.event, held.time) == (True, False, 30)
    assert held.final == pytest.approx(0.4 + 0.2 * 25 / 60)
    assert held.area == pytest.approx((30 * 0.45 + 30 * 0.5) / 60)  # the last evaluation, 0.5, carried on
    random_line = run.last("eval/random")
    fell = held.read("collapsed")
    assert random_line is not None
    assert (fell.event, fell.time, fell.final) == (True, 30, random_line)  # a collapsed policy is no better
    assert fell.area == pytest.approx((30 * 0.45 + 30 * random_line) / 60)
    blind = replace(run, rows=tuple({k: v for k, v in row.items() if k != "eval/random"} for row in run.rows))
    assert outcomes.outcome(blind, 60).read("collapsed").final == 0.0  # no line is known


def test_what_is_free_is_what_the_page_of_knobs_says() -> None:
    assert "detect.level.fall" in outcomes.FREE
    assert "train.iterations" in outcomes.FREE
    assert "track.mlflow" in outcomes.FREE
    assert "seed" in outcomes.FREE
    assert not outcomes.FREE & {"optim.lr", "eval.every", "filter.keep_ratio"}
    assert set(RunConfig().flat()) >= outcomes.FREE


def test_a_schedule_makes_the_horizon_count(make) -> None:
    short, long = ({"optim.schedule": "linear"}, 60), ({"optim.schedule": "linear"}, 120)
    runs = [make(0, o, iterations=n) for o, n in (short, long)]
    assert len(outcomes.strata(runs, ())) == 2
    assert len(outcomes.strata([make(0, {}, iterations=n) for n in (60, 120)], ())) == 1


def test_each_trial_counts_once_by_its_longest_record(make, table) -> None:
    run = make(0)
    short = replace(run, sweep="other", rows=run.rows[:20])
    usable, _ = outcomes.usable_runs(table([short, run]))
    assert usable == [run]


def test_params_of_another_program_are_no_config() -> None:
    assert outcomes.rebuilt(RunConfig().flat()) == RunConfig()
    assert outcomes.rebuilt({"lr": 1e-3}) is None


def test_a_config_is_rebuilt_whatever_its_address_looks_like_when_shown(make: Callable[..., Run]) -> None:
    """The password of track.mlflow_uri is not shown, and what is left is no address any more."""
    run = make(0)
    params = {**run.params, "track.mlflow_uri": "http://bob:[redacted]@127.0.0.1:9/"}
    cfg = rebuilt(params)
    assert cfg is not None
    assert cfg.trial_id() == run.trial_id
    assert rebuilt({"lr": 0.1}) is None


def test_runs_of_another_horizon_stand_apart_where_a_schedule_depends_on_it(make: Callable[..., Run]) -> None:
    for knob in ("optim.schedule", "algo.entropy_schedule"):
        runs = [make(0, {knob: "linear", "algo.entropy_coef": 0.01}, iterations=count) for count in (60, 200)]
        assert len(strata(runs, ())) == 2
    plain = [make(0, iterations=count) for count in (60, 200)]
    assert len(strata(plain, ())) == 1


def test_one_arm_needs_no_number_of_seeds() -> None:
    """No number of seeds tells one arm from itself: once this ran for ever."""
    with pytest.raises(ValueError, match="1 arm"):
        seeds_needed(1)
    assert seeds_needed(2) == 5
