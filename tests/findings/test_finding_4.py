"""Planted truths: the verdict must be the one that was planted, whatever the arms are called."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from ragen_lab.findings import base
from ragen_lab.findings import finding_4_filtering as f4
from ragen_lab.findings.base import FindingResult, Verdict

EARLY = {1.0: 10, 0.5: 30, 0.25: None}  # collapse starts here; fewer groups hold longer
SECONDS = {1.0: 2.0, 0.5: 1.5, 0.25: 1.1}


def jitter(at: int | None, seed: int) -> int | None:
    return None if at is None else at + 5 * (seed % 2)


@pytest.fixture
def ladder(make):
    """Runs of keep ratios x seeds; ``collapse``: ratio -> iteration or None."""

    def build(
        collapse: dict[float, int | None],
        seeds: int,
        extra: dict[str, Any] | None = None,
        only=(1.0, 0.5, 0.25),
        **run: Any,
    ):
        seconds = run.pop("seconds", SECONDS)
        return [
            make(
                seed, {"filter.keep_ratio": ratio, **(extra or {})}, collapse_at=jitter(collapse[ratio], seed),
                seconds=seconds[ratio], **run,
            )
            for ratio in only
            for seed in range(seeds)
        ]  # fmt: skip

    return build


@pytest.fixture
def controls(ladder):
    """Random drop that helps nothing, and equal updates at which filtering helps all the same."""

    def build(seeds: int, extra: dict[str, Any] | None = None):
        extra = extra or {}
        return [
            *ladder({0.5: 10, 0.25: 10}, seeds, {**extra, "filter.kind": "random"}, only=(0.5, 0.25)),
            *ladder({0.5: 30, 0.25: None}, seeds, {**extra, "optim.updates_per_rollout": 4}, only=(0.5, 0.25)),
        ]

    return build


def line(result: FindingResult, name: str, environment: str | None = None) -> base.Test:
    found = [t for t in result.tests if t.name == name and environment in (None, t.environment)]
    assert found, f"no test {name!r} among {[t.name for t in result.tests]}"
    return found[0]


def test_supported_when_every_part_holds(ladder, controls, table) -> None:
    result = f4.evaluate(table(ladder(EARLY, 5) + controls(5)))
    assert result.verdict is Verdict.SUPPORTED, result.headline
    assert result.needs == ()
    stability = line(result, f4.STABILITY)
    assert stability.effect >= stability.sesoi == pytest.approx(6)  # 10 % of 60 iterations
    assert stability.p == stability.smallest_p == pytest.approx(6**-5)
    # 1.1 instead of 2 seconds; along the least-squares line of three points the ends decide: 1 - 1.1 / 2
    assert line(result, f4.EFFICIENCY).effect == pytest.approx(0.45, abs=0.02)
    assert "25 %" in result.headline


def test_three_seeds_carry_a_trend_but_not_a_control(ladder, controls, table) -> None:
    result = f4.evaluate(table(ladder(EARLY, 3) + controls(3)))
    assert line(result, f4.STABILITY).verdict is Verdict.SUPPORTED  # 6^-3 = 0.005
    only_quarter = [r for r in controls(3) if r.params["filter.keep_ratio"] == 0.25 or r.params["filter.kind"] == "std"]
    result = f4.evaluate(table(ladder(EARLY, 3) + only_quarter))
    control = line(result, f4.LOW_VARIANCE)
    assert (control.smallest_p, control.verdict) == (0.125, Verdict.NOT_TESTABLE)
    assert result.verdict is Verdict.NOT_TESTABLE
    assert any("5 seeds per arm (now 3)" in need for need in result.needs)


def test_arms_are_found_from_params_not_from_labels(ladder, controls, table) -> None:
    runs = ladder(EARLY, 5) + controls(5)
    nameless = [replace(run, arm="same name") for run in runs]
    assert f4.evaluate(table(nameless)).verdict is Verdict.SUPPORTED


def test_without_controls_it_is_not_testable_yet_and_says_what_is_missing(ladder, table) -> None:
    result = f4.evaluate(table(ladder(EARLY, 5)))
    assert result.verdict is Verdict.NOT_TESTABLE
    assert line(result, f4.STABILITY).verdict is Verdict.SUPPORTED  # what the runs do show is shown
    assert any("filter.kind: random" in need and "0.25, 0.5" in need for need in result.needs)
    assert any("optim.updates_per_rollout: 4" in need for need in result.needs)
    assert "no control arm" in result.headline


def test_at_fixed_updates_the_ladder_is_its_own_control(ladder, table) -> None:
    fixed = {"optim.updates_per_rollout": 4}
    runs = ladder(EARLY, 5, fixed)
    runs += ladder({0.5: 10, 0.25: 10}, 5, {**fixed, "filter.kind": "random"}, only=(0.5, 0.25))
    result = f4.evaluate(table(runs))
    assert result.verdict is Verdict.SUPPORTED, result.headline
    assert not any("optimizer steps" in warning for warning in result.warnings)


def test_contradicted_when_filtering_makes_no_difference(ladder, controls, make, table) -> None:
    """Collapse comes at a random time in every arm alike: the upper bound falls below 10 % of the horizon."""
    runs = [
        make(seed, {"filter.keep_ratio": ratio}, collapse_at=20 + 5 * ((seed + i) % 2), seconds=SECONDS[ratio])
        for i, ratio in enumerate((1.0, 0.5, 0.25))
        for seed in range(10)
    ]
    result = f4.evaluate(table(runs + controls(10)))
    stability = line(result, f4.STABILITY)
    assert stability.high < stability.sesoi
    assert result.verdict is stability.verdict is Verdict.CONTRADICTED


def test_contradicted_in_the_opposite_direction(ladder, table) -> None:
    result = f4.evaluate(table(ladder({1.0: None, 0.5: 30, 0.25: 10}, 5)))
    stability = line(result, f4.STABILITY)
    assert stability.high < 0
    assert result.verdict is stability.verdict is Verdict.CONTRADICTED


def test_not_the_low_variance_when_random_drop_does_as_well(ladder, controls, table) -> None:
    good_random = ladder({0.5: 30, 0.25: None}, 5, {"filter.kind": "random"}, only=(0.5, 0.25))
    same = [run for run in controls(5) if run.params["filter.kind"] == "std"]
    result = f4.evaluate(table(ladder(EARLY, 5) + good_random + same))
    assert line(result, f4.STABILITY).verdict is Verdict.SUPPORTED
    assert line(result, f4.LOW_VARIANCE).verdict is not Verdict.SUPPORTED
    assert result.verdict is not Verdict.SUPPORTED


def test_not_the_filter_when_the_updates_explain_it(ladder, controls, table) -> None:
    random = [run for run in controls(5) if run.params["filter.kind"] == "random"]
    same = ladder({0.5: 10, 0.25: 10}, 5, {"optim.updates_per_rollout": 4}, only=(0.5, 0.25))
    result = f4.evaluate(table(ladder(EARLY, 5) + random + same))
    assert line(result, f4.SAME_UPDATES).verdict is Verdict.CONTRADICTED
    assert result.verdict is Verdict.CONTRADICTED


def test_inconclusive_when_the_seeds_disagree(make, controls, table) -> None:
    at = {1.0: [10, None, 15, 40, None], 0.5: [30, 20, None, 15, 10], 0.25: [None, 15, 45, None, 15]}
    runs = [
        make(seed, {"filter.keep_ratio": ratio}, collapse_at=at[ratio][seed], seconds=SECONDS[ratio])
        for ratio in at
        for seed in range(5)
    ]
    result = f4.evaluate(table(runs + controls(5)))
    stability = line(result, f4.STABILITY)
    assert stability.low < 0 < stability.sesoi < stability.high
    assert result.verdict is stability.verdict is Verdict.INCONCLUSIVE


def test_stable_settings_cannot_show_what_stabilises(ladder, controls, table) -> None:
    result = f4.evaluate(table(ladder({1.0: None, 0.5: None, 0.25: None}, 5) + controls(5)))
    assert line(result, f4.STABILITY).verdict is Verdict.NOT_TESTABLE
    assert any("No run collapsed" in need for need in result.needs)
    assert result.verdict is not Verdict.SUPPORTED


def test_umbrella_is_neither_supported_nor_contradicted(ladder, controls, table) -> None:
    """The trial runs: half the groups is best, a quarter worst."""
    result = f4.evaluate(table(ladder({1.0: 25, 0.5: None, 0.25: 10}, 5) + controls(5)))
    turn = line(result, f4.TURN_TIME)
    assert turn.verdict is Verdict.SUPPORTED
    assert "50 %" in turn.note
    assert "not monotone: 50 % is best" in result.headline
    assert "stability inconclusive" in result.headline


def test_a_trend_is_no_departure(ladder, table) -> None:
    result = f4.evaluate(table(ladder(EARLY, 5)))
    assert line(result, f4.TURN_TIME).verdict is not Verdict.SUPPORTED


def test_mixed_environments(ladder, table) -> None:
    helps = ladder(EARLY, 5, {"env.name": "frozen_lake"})
    hurts = ladder({1.0: None, 0.5: 30, 0.25: 10}, 5, {"env.name": "sokoban"})
    result = f4.evaluate(table(helps + hurts))
    assert line(result, f4.STABILITY, "frozen_lake").verdict is Verdict.SUPPORTED
    assert line(result, f4.STABILITY, "sokoban").verdict is Verdict.CONTRADICTED
    pooled = line(result, f4.STABILITY, "pooled")
    assert pooled.verdict is Verdict.MIXED
    assert "frozen_lake" in pooled.note
    assert "sokoban" in pooled.note
    assert result.verdict is Verdict.MIXED


def test_two_environments_are_pooled_over_their_blocks(ladder, controls, table) -> None:
    runs = [
        run
        for env in ("frozen_lake", "sokoban")
        for run in ladder(EARLY, 3, {"env.name": env}) + controls(3, {"env.name": env})
    ]
    result = f4.evaluate(table(runs))
    assert result.verdict is Verdict.SUPPORTED
    assert line(result, f4.LOW_VARIANCE, "pooled").n.startswith("4 strata")
    assert {t.environment for t in result.tests} == {"pooled", "frozen_lake", "sokoban"}


def test_runs_that_differ_in_anything_else_are_not_compared(ladder, table) -> None:
    """The ratio 1 arm was run at another learning rate: no ladder, so no trend can be claimed."""
    runs = ladder(EARLY, 5, only=(1.0,)) + ladder(EARLY, 5, {"optim.lr": 1e-4}, only=(0.25,))
    result = f4.evaluate(table(runs))
    assert result.verdict is Verdict.NOT_TESTABLE
    assert "filter.keep_ratio" in result.needs[0]
    both = ladder(EARLY, 5) + ladder(EARLY, 5, {"optim.lr": 1e-4})
    labels = {t.environment for t in f4.evaluate(table(both)).tests}
    assert labels == {"pooled", "frozen_lake (optim.lr=1e-06)", "frozen_lake (optim.lr=0.0001)"}


def test_what_cannot_change_a_run_does_not_split_the_arms(ladder, controls, table) -> None:
    runs = ladder(EARLY, 5) + controls(5)
    mixed = [
        replace(run, params={**run.params, "detect.vote_window": 3 + run.seed, "track.mlflow": bool(run.seed % 2)})
        for run in runs
    ]
    assert f4.evaluate(table(mixed)).verdict is Verdict.SUPPORTED


def stop(run, at: int):
    """The same run, ended at ``at`` by our detector."""
    rows = tuple(row for row in run.rows if row["iteration"] <= at)
    return replace(run, rows=rows, status="collapsed", stop_iteration=at, stop_reason="vote")


def test_a_stop_where_the_rule_already_holds_is_an_event_both_ways(ladder, controls, table) -> None:
    runs = ladder(EARLY, 5) + controls(5)
    full = line(f4.evaluate(table(runs)), f4.STABILITY)
    # collapse of the ratio 1 arm starts at 10 or 15; three evaluations below are complete well before 45
    stopped = [stop(run, 45) if run.params["filter.keep_ratio"] == 1.0 else run for run in runs]
    result = f4.evaluate(table(stopped))
    again = line(result, f4.STABILITY)
    assert (again.verdict, again.p, again.effect) == (Verdict.SUPPORTED, full.p, pytest.approx(full.effect))
    assert any("informative" in warning for warning in result.warnings)


def test_stops_that_decide_the_verdict_make_it_inconclusive(ladder, controls, table) -> None:
    """Every ratio 1 run was stopped at 15 while its success still held: events or not, that is the question."""
    runs = ladder({1.0: None, 0.5: None, 0.25: None}, 5) + controls(5)
    stopped = [stop(run, 15) if run.params["filter.keep_ratio"] == 1.0 else run for run in runs]
    result = f4.evaluate(table(stopped))
    stability = line(result, f4.STABILITY)
    assert stability.verdict is Verdict.INCONCLUSIVE
    assert "both ways" in stability.note
    assert result.verdict is not Verdict.SUPPORTED


def test_stopped_runs_are_not_dropped_from_the_final_success(ladder, table) -> None:
    """Dropping them would flatter the unstable arm: they count, with what was measured before the stop."""
    runs = ladder({1.0: 10, 0.5: 30, 0.25: None}, 5)
    stopped = [stop(run, 40) if run.params["filter.keep_ratio"] == 1.0 else run for run in runs]
    result = f4.evaluate(table(stopped))
    rows = [row for row in result.tables["Runs"] if row["status"] == "collapsed"]
    assert len(rows) == 5
    assert all(row["final_success"] == pytest.approx(0.2, abs=0.03) for row in rows)
    final = line(result, f4.FINAL)
    assert "100 % 0.197," in final.note  # collapsed by the performance rule: the measured value stands
    assert "5 seeds" in final.n


def test_failed_pending_and_pruned_runs_are_named(ladder, controls, table) -> None:
    runs = ladder(EARLY, 5) + controls(5)
    odd = [
        replace(runs[0], trial_id="a", status="failed"),
        replace(runs[1], trial_id="b", status="pending"),
        replace(runs[2], trial_id="c", seed=77, status="pruned", rows=runs[2].rows[:9]),
    ]
    result = f4.evaluate(table(runs + odd))
    assert any("1 failed" in w for w in result.warnings)
    assert any("1 pending" in w for w in result.warnings)
    assert any("without a final success" in w for w in result.warnings)
    assert result.verdict is Verdict.SUPPORTED


def test_confounds_are_computed_from_the_params(ladder, controls, table) -> None:
    result = f4.evaluate(table(ladder(EARLY, 3)))
    assert any("100 %: 4, 50 %: 2, 25 %: 1" in w and "no arm here separates" in w for w in result.warnings)
    assert any("at 25 % there is one on-policy update" in w for w in result.warnings)
    result = f4.evaluate(table(ladder(EARLY, 3) + controls(3)))
    assert any("the arms at equal updates speak to it" in w for w in result.warnings)


def test_a_verdict_that_hangs_on_the_threshold_is_told(make, controls, table) -> None:
    """The unfiltered runs fall to 0.45 of their peak above random: collapsed at 0.5, held at 0.33."""
    runs = []
    for ratio in (1.0, 0.5, 0.25):
        for seed in range(5):
            run = make(seed, {"filter.keep_ratio": ratio}, final=0.4, noise=0.001, seconds=SECONDS[ratio])
            if ratio == 1.0:
                low = {"eval/success": 0.2 + 0.2 * 0.42}
                rows = [row | low if "eval/success" in row and row["iteration"] >= 15 else row for row in run.rows]
                run = replace(run, rows=tuple(rows))
            runs.append(run)
    result = f4.evaluate(table(runs))
    assert any("detect.level.fall = 0.33" in w for w in result.warnings)
    assert [row["fall"] for row in result.tables["Thresholds"]] == [0.5, 0.33, 0.67]


def test_runs_without_times_lack_the_efficiency_part(ladder, controls, table) -> None:
    def timeless(run):
        rows = tuple({k: v for k, v in row.items() if not k.startswith("time/")} for row in run.rows)
        return replace(run, rows=rows)

    result = f4.evaluate(table([timeless(run) for run in ladder(EARLY, 5) + controls(5)]))
    assert result.verdict is Verdict.NOT_TESTABLE
    assert any("time/rollout_seconds" in need for need in result.needs)


def test_time_to_threshold_in_numbers(ladder, table) -> None:
    """Both arms climb from 0.4 to 0.6 alike; the goal is (0.4 + 0.583) / 2, passed by the smoothed line at 40.

    At 1 second per iteration that is 40 of the 60 seconds that both had; at 2 seconds it takes all of them.
    """
    stable = {1.0: None, 0.25: None}
    runs = ladder(stable, 5, only=(1.0, 0.25), seconds={1.0: 2.0, 0.25: 1.0}, noise=0.0)
    found = line(f4.evaluate(table(runs)), f4.THRESHOLD)
    assert found.effect == pytest.approx(1 - 40 / 60, abs=0.02)
    assert found.verdict is Verdict.SUPPORTED


def test_efficiency_is_contradicted_when_filtering_costs_as_much(ladder, controls, table) -> None:
    flat = {1.0: 2.0, 0.5: 2.0, 0.25: 2.0}
    result = f4.evaluate(table(ladder(EARLY, 5, seconds=flat) + controls(5)))
    assert line(result, f4.EFFICIENCY).verdict is Verdict.CONTRADICTED
    assert "efficiency contradicted" in result.headline


@pytest.mark.parametrize("seeds", [0, 1, 2])
def test_too_few_runs_never_raise(ladder, table, seeds: int) -> None:
    result = f4.evaluate(table(ladder(EARLY, seeds)))
    assert result.verdict is Verdict.NOT_TESTABLE
    assert result.needs


def test_tables_are_plain(ladder, controls, table) -> None:
    result = f4.evaluate(table(ladder(EARLY, 3) + controls(3)))
    assert set(result.tables) == {"Arms", "Runs", "Survival", "Thresholds"}
    for rows in result.tables.values():
        for row in rows:
            for value in row.values():
                assert value is None or isinstance(value, str | float | int)
                assert not (isinstance(value, float) and math.isnan(value))
    arm = next(row for row in result.tables["Arms"] if row["arm"] == "filter.keep_ratio=1.0")
    assert (arm["collapsed"], arm["runs"], arm["seeds"]) == (3, 3, 3)
    assert (arm["collapsed_low"], arm["collapsed_high"]) == (pytest.approx(0.2924, abs=1e-3), 1.0)
    assert arm["gain"] == pytest.approx(-0.2, abs=0.03)


def test_a_null_is_seldom_supported(make, table) -> None:
    """Collapse times drawn alike for all arms, 40 designs of 3 x 3: stability is supported in at most 5."""
    import numpy as np

    supported = 0
    for design in range(40):
        rng = np.random.default_rng(design)
        runs = [
            make(seed, {"filter.keep_ratio": ratio}, collapse_at=int(rng.integers(5, 100)), noise=0.005)
            for ratio in (1.0, 0.5, 0.25)
            for seed in range(3)
        ]
        result = f4.evaluate(table(runs))
        supported += line(result, f4.STABILITY).verdict is Verdict.SUPPORTED
    assert supported <= 5


@pytest.mark.parametrize("kind", ["top_p", "top_k", "min_p", "zero_only"])
def test_a_filter_without_a_keep_ratio_is_no_rung(ladder, controls, table, kind: str) -> None:
    """These filter whatever filter.keep_ratio says: at 1 they are not the arm that keeps all."""
    runs = ladder(EARLY, 5) + controls(5)
    others = ladder({1.0: None}, 5, {"filter.kind": kind}, only=(1.0,), final=0.9)
    with_them, without = f4.evaluate(table(runs + others)), f4.evaluate(table(runs))
    assert with_them.verdict is without.verdict is Verdict.SUPPORTED
    assert with_them.tests == without.tests
    instead = f4.evaluate(table(others + ladder(EARLY, 5, only=(0.5,))))
    assert instead.verdict is Verdict.NOT_TESTABLE
    assert "found 50 %" in instead.headline or "found 0.5" in instead.headline


@pytest.mark.parametrize("kind", ["random", "smallest"])
def test_the_controls_at_ratio_one_keep_all(ladder, controls, table, kind: str) -> None:
    runs = ladder(EARLY, 5, only=(0.5, 0.25)) + controls(5)
    ends = ladder(EARLY, 5, {"filter.kind": kind}, only=(1.0,))
    plain = ladder(EARLY, 5, only=(1.0,))
    assert f4.evaluate(table(ends + runs)).verdict is f4.evaluate(table(plain + runs)).verdict is Verdict.SUPPORTED


def test_a_control_alone_makes_no_ladder(ladder, table) -> None:
    runs = ladder(EARLY, 3, only=(1.0,)) + ladder({0.5: 10}, 3, {"filter.kind": "random"}, only=(0.5,))
    result = f4.evaluate(table(runs))
    assert result.verdict is Verdict.NOT_TESTABLE
    assert not result.tests
