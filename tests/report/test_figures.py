"""Data of the figures, not their pixels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from scipy import stats

from ragen_lab.detect import DETECTORS
from ragen_lab.findings.base import FindingResult
from ragen_lab.report import data, figure_style, figures, figures_survival, words
from ragen_lab.report.data import Curve, Reference
from ragen_lab.runs import RunTable

Judge = Callable[[RunTable], list[FindingResult]]


def traces(figure: object, meta: str) -> list[object]:
    return [trace for trace in figure.data if trace.meta == meta]  # type: ignore[attr-defined]


def curves_of(runs: RunTable, arm: str) -> list[Curve]:
    return [curve for curve in data.curves(runs, "eval/success") if curve.arm == arm]


def draw(runs: RunTable, arm: str) -> object:
    lines = data.references([run for run in runs.runs if run.arm == arm])
    return figures.learning_curves(curves_of(runs, arm), lines, figure_style.PALETTE[0], (0, 60), (0, 1))


def test_a_trace_per_seed_and_a_mean(runs: RunTable) -> None:
    figure = draw(runs, "keep_ratio=0.5")
    seeds = traces(figure, "run")
    assert [trace.name for trace in seeds] == ["seed 0", "seed 1", "seed 2"]  # type: ignore[attr-defined]
    for trace, run in zip(seeds, [r for r in runs.runs if r.arm == "keep_ratio=0.5"], strict=True):
        iterations, values = run.series("eval/success")
        assert list(trace.x) == list(iterations)  # type: ignore[attr-defined]
        assert list(trace.y) == list(values)  # type: ignore[attr-defined]
    assert len(traces(figure, "mean")) == 1
    assert len(traces(figure, "interval")) == 3


def test_reference_lines_lie_at_their_values(runs: RunTable) -> None:
    lines = {trace.name: list(trace.y) for trace in traces(draw(runs, "keep_ratio=1.0"), "reference")}  # type: ignore[attr-defined]
    assert lines == {"random": [0.212100] * 2, "fixed string": [0.3281] * 2, "optimal": [1.0] * 2}


def test_a_line_that_a_run_lacks_is_not_drawn(runs: RunTable) -> None:
    bare = RunTable(tuple(run for run in runs.runs))
    assert data.references([]) == []
    assert [line.name for line in data.references(bare.runs)] == ["random", "fixed string", "optimal"]


def test_stops_and_alarms_are_marked_where_they_fired(runs: RunTable, shadow_runs: RunTable) -> None:
    for table in (runs, shadow_runs):
        figure = draw(table, "keep_ratio=0.25")
        stops = [list(trace.x) for trace in traces(figure, "stop")]  # type: ignore[attr-defined]
        called = [data.vote_of(run) for run in table.runs if run.arm == "keep_ratio=0.25"]
        assert stops == [[at] for at in called]
        alarms = sum(len(curve.alarms) for curve in curves_of(table, "keep_ratio=0.25"))
        assert len(traces(figure, "alarm")) == alarms > 0
    assert [run.stop_iteration for run in runs.runs if run.arm == "keep_ratio=0.25"] == [
        data.vote_of(run) for run in shadow_runs.runs if run.arm == "keep_ratio=0.25"
    ]


def test_every_detector_has_a_sign() -> None:
    assert set(figure_style.ALARM_SYMBOLS) == set(DETECTORS) == set(data.DETECTORS)


def test_the_mean_ends_with_its_first_run_and_leaves_out_unended_ones() -> None:
    """Means of (0.4, 0.6) and (0.5, 0.7); the third point is a survivor's, the failed run does not count."""
    a = Curve("a", 0, "t0", "finished", (0, 5, 10), (0.4, 0.5, 0.9))
    b = Curve("a", 1, "t1", "collapsed", (0, 5), (0.6, 0.7))
    failed = Curve("a", 2, "t2", "failed", (0,), (0.0,))
    iterations, values = data.mean_curve([a, b, failed])
    assert iterations == [0, 5]
    assert values == pytest.approx([0.5, 0.6])
    assert data.mean_curve([failed]) == ([], [])


def test_non_finite_points_are_marked_not_dropped(hostile: RunTable) -> None:
    mine = [curve for curve in data.curves(hostile, "rollout/entropy") if curve.non_finite]
    assert [curve.non_finite for curve in mine] == [(21,)]
    arms = data.arms_of(hostile)
    figure = figures.signal(data.curves(hostile, "rollout/entropy"), arms, figure_style.PALETTE[:3], log=False)
    assert [list(trace.x) for trace in traces(figure, "non_finite")] == [[21]]  # type: ignore[attr-defined]


def test_dots_joined_by_seed(runs: RunTable) -> None:
    arms = data.arms_of(runs)
    means = dict.fromkeys(arms, (0.5, 0.4, math.nan))
    figure = figures.final_success(data.dots(runs), arms, figure_style.PALETTE[:3], [Reference("random", 0.25)], means)
    assert [len(trace.x) for trace in traces(figure, "pair")] == [3, 3, 3]  # type: ignore[attr-defined]
    drawn = [value for trace in traces(figure, "dots") for value in trace.x]  # type: ignore[attr-defined]
    assert drawn == [outcome.final for outcome in data.outcomes(runs)]
    assert figure.layout.shapes[0].x0 == 0.25
    assert not traces(figure, "mean_interval")  # an interval with an undefined end is not drawn


def test_final_success_is_the_mean_of_the_last_three_evaluations(runs: RunTable) -> None:
    _, values = runs.runs[0].series("eval/success")
    assert data.dots(runs)[0].value == pytest.approx((values[-1] + values[-2] + values[-3]) / 3)


def test_wilson_interval_of_a_worked_example() -> None:
    """51 of 256 against scipy: an evaluation of 20 % is good to about five points either way."""
    expected = stats.binomtest(51, 256).proportion_ci(method="wilson")
    assert data.wilson(51 / 256, 256) == pytest.approx((expected.low, expected.high))
    assert data.wilson(0.0, 10)[0] == 0
    assert all(math.isnan(end) for end in data.wilson(math.nan, 256))


def test_survival_steps_and_numbers_at_risk() -> None:
    """Four runs: one collapses at 20, one leaves at 30, one collapses at 40, one reaches 60. 3/4, then 3/4 * 1/2."""
    rows = [
        {"time": 0, "at_risk": 4, "events": 0, "survival": 1.0},
        {"time": 20, "at_risk": 4, "events": 1, "survival": 0.75},
        {"time": 30, "at_risk": 3, "events": 0, "survival": 0.75},
        {"time": 40, "at_risk": 2, "events": 1, "survival": 0.375},
        {"time": 60, "at_risk": 1, "events": 0, "survival": 0.375},
    ]
    assert data.survival_of("a", rows[1:]) == data.survival_of("a", rows)  # the start may be left out
    curve = data.survival_of("a", rows)
    assert [curve.at_risk(time) for time in (0, 20, 21, 40, 41, 60)] == [4, 4, 3, 2, 1, 1]
    figure = figures_survival.survival([curve], [curve], figure_style.PALETTE[:1], 60)
    step = traces(figure, "survival")[0]
    assert step.line.shape == "hv"  # type: ignore[attr-defined]
    assert list(step.y)[:4] == [1.0, 0.75, 0.75, 0.375]  # type: ignore[attr-defined]
    assert [list(t.x) for t in traces(figure, "censored")] == [[30, 60]]  # type: ignore[attr-defined]
    assert not traces(figure, "other")
    worse = data.survival_of("a", [{**rows[1], "events": 1}, {"time": 30, "at_risk": 3, "events": 1, "survival": 0.5}])
    both = figures_survival.survival([curve], [replace(worse, events=3)], figure_style.PALETTE[:1], 60)
    assert [trace.line.dash for trace in traces(both, "other")] == ["dot"]  # type: ignore[attr-defined]
    assert [list(t.text) for t in traces(figure, "at_risk")] == [["4", "4", "2", "1"]]  # type: ignore[attr-defined]


def test_costs_are_seconds_per_training_iteration(runs: RunTable) -> None:
    cost = data.costs(runs)[0]
    for phase in ("rollout", "update"):
        _, seconds = runs.runs[0].series(f"time/{phase}_seconds")
        assert cost.phases[phase] == pytest.approx(seconds.mean())
    assert cost.total == pytest.approx(data.outcomes(runs)[0].seconds)  # the figure tells what the findings test


def test_labels_keep_apart() -> None:
    assert figure_style.set_apart([0.20, 0.22, 1.0], 0.07, 0, 1) == pytest.approx([0.20, 0.27, 1.0])
    assert figure_style.set_apart([0.97, 0.99], 0.1, 0, 1) == pytest.approx([0.9, 1.0])


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("color", [*figure_style.PALETTE, figure_style.NEUTRAL])
def test_colours_are_legible_on_light_and_dark(color: str) -> None:
    """Contrast of at least 3 (WCAG for graphics) on the page's two backgrounds."""
    for background in ("#ffffff", "#12151a"):
        bright, dim = sorted((_luminance(color), _luminance(background)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 3, background


def test_one_colour_per_arm_then_another_dash() -> None:
    styles = [(figure_style.arm_color(i), figure_style.arm_dash(i)) for i in range(24)]
    assert len(set(styles)) == 24


# --- what a mutation of data.py or words.py would change ---


def test_a_stop_without_flags_is_still_a_call(runs: RunTable) -> None:
    """A run of an older version, or of another program, has no detect/stop; its status and stop say it."""
    stopped = next(run for run in runs.runs if run.status == "collapsed")
    bare = replace(
        stopped, rows=tuple({k: v for k, v in row.items() if not k.startswith("detect/")} for row in stopped.rows)
    )
    assert data.vote_of(bare) == stopped.stop_iteration is not None
    assert data.vote_of(replace(bare, status="finished")) is None
    assert data.curves(RunTable((bare,)), "eval/success")[0].called_at == stopped.stop_iteration


def test_the_horizon_is_that_of_the_arm(shadow_runs: RunTable) -> None:
    """Arms of 60 and of 30 iterations: each is judged over its own time."""
    short = [
        replace(run, params={**run.params, "train.iterations": 30}, rows=run.rows[:31]) if run.arm == arm else run
        for run in shadow_runs.runs
        for arm in ["keep_ratio=0.5"]
    ]
    horizons = {judged.run.arm: judged.horizon for judged in data.outcomes(RunTable(tuple(short)))}
    assert horizons == {"keep_ratio=1.0": 60, "keep_ratio=0.5": 30, "keep_ratio=0.25": 60}


def test_costs_of_one_phase_only_are_no_costs(runs: RunTable) -> None:
    """Half of an iteration's seconds would make a run look cheap."""
    half = replace(
        runs.runs[0], rows=tuple({k: v for k, v in r.items() if k != "time/update_seconds"} for r in runs.runs[0].rows)
    )
    assert data.costs(RunTable((half,))) == []
    mixed = replace(runs.runs[0], rows=(*half.rows[:30], *runs.runs[0].rows[30:]))
    (cost,) = data.costs(RunTable((mixed,)))
    assert cost.phases["rollout"] == pytest.approx(
        sum(row["time/rollout_seconds"] for row in mixed.rows[30:]) / len(mixed.rows[30:])
    )


def test_nan_is_not_interpolated() -> None:
    """Between 0 and 4 there is nothing at 2: the line goes through the finite points; no NaN becomes a number."""
    curve = Curve("a", 0, "t", "finished", (0, 2, 4), (0.0, math.nan, 1.0))
    assert curve.at(2) == 0.5
    assert curve.non_finite == (2,)
    assert math.isnan(Curve("a", 0, "t", "finished", (0, 2), (math.nan, math.inf)).at(1))
    whole = Curve("a", 1, "u", "finished", (0, 2, 4), (0.2, 0.4, 0.6))
    iterations, values = data.mean_curve([curve, whole])
    assert iterations == [0, 4]
    assert values == pytest.approx([0.1, 0.8])


@pytest.mark.parametrize(
    ("alarm", "lead", "before"), [(10, 15.0, "1 of 1"), (25, 0.0, "0 of 1"), (40, -15.0, "0 of 1")]
)
def test_a_lead_is_the_time_from_alarm_to_collapse(
    shadow_runs: RunTable, monkeypatch: pytest.MonkeyPatch, alarm: int, lead: float, before: str
) -> None:
    """Collapse at 25: an alarm at 10 came 15 iterations before it, one at 40 came 15 after."""
    run = next(run for run in shadow_runs.runs if run.arm == "keep_ratio=0.25")
    name = next(iter(DETECTORS))
    rows = tuple({**row, f"detect/{name}": float(row["iteration"] == alarm)} for row in run.rows)
    judged = data.outcomes(RunTable((replace(run, rows=rows),)))
    assert judged[0].level.collapsed
    fixed = [replace(judged[0], level=replace(judged[0].level, time=25))]
    monkeypatch.setattr(words.data, "outcomes", lambda runs: fixed)
    found, _ = words.alarm_rows(shadow_runs)
    row = next(row for row in found if row["detector"] == name)
    assert row["median lead (iterations)"] == lead
    assert row["before the collapse began"] == before
    assert row["fired in collapsed runs"] == "1 of 1"
