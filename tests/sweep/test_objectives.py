"""What a setting is worth: levels, objectives and constraints, read from the rows of its trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_lab.runs import View
from ragen_lab.sweep.compete import FolderResults, Result, as_known, level_of, objective_values
from ragen_lab.sweep.search_page import SearchSection

SUCCESS, ERRORS = "eval/success", "eval/format_error_rate"
NAN = math.nan


def rows(values: Sequence[float | None], metric: str = SUCCESS, **more: float) -> tuple[dict[str, float], ...]:
    """One row per value; None: a row without the metric."""
    return tuple(
        {"iteration": float(at), **more, **({} if value is None else {metric: value})}
        for at, value in enumerate(values)
    )


def finished(values: Sequence[float | None], metric: str = SUCCESS, **more: float) -> View:
    return View(True, "finished", rows(values, metric, **more))


def collapsed(values: Sequence[float | None], **more: float) -> View:
    return View(True, "collapsed", rows(values, **more), len(values) - 1, "level")


RISE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


@pytest.mark.parametrize(
    ("values", "until", "level"),
    [
        (RISE, 5, 0.5),  # (0.4 + 0.5 + 0.6) / 3
        (RISE, 4, 0.4),  # what came later is another sweep's
        (RISE, 2, 0.25),  # the start does not count
        (RISE, 0, 0.1),  # unless nothing came after it
        ((0.1, None, 0.3, None, 0.5), 4, 0.4),
        ((0.1, 0.9, 0.3, NAN, 0.5), 4, 0.4),  # of the last three evaluations the finite ones
        ((0.1, NAN, math.inf, -math.inf), 3, None),
        ((NAN,), 0, None),
        ((None, None), 1, None),
        ((), 3, None),
    ],
)
def test_a_level_is_the_mean_of_the_last_three_evaluations(
    values: Sequence[float | None], until: int, level: float | None
) -> None:
    assert level_of(finished(values), SUCCESS, until) == (level if level is None else pytest.approx(level))


def test_a_collapsed_run_has_the_success_of_random_play_from_there_on() -> None:
    view = collapsed(RISE, **{"eval/random": 0.07})
    assert level_of(view, SUCCESS, 9) == level_of(view, SUCCESS, 5) == 0.07
    assert level_of(view, SUCCESS, 4) == pytest.approx(0.4)  # it had not collapsed by then
    assert level_of(collapsed(RISE), SUCCESS, 5) == 0.0
    assert level_of(collapsed(RISE, **{"eval/random": NAN}), SUCCESS, 5) == 0.0
    errors = View(True, "collapsed", rows(RISE, ERRORS), 5, "level")
    assert level_of(errors, ERRORS, 5) == pytest.approx(0.5)  # of another metric nothing is known from there on


def trial(iterations: int = 8, every: int = 2) -> Any:
    cfg = SimpleNamespace(train=SimpleNamespace(iterations=iterations), eval=SimpleNamespace(every=every))
    return SimpleNamespace(trial_id="a", cfg=cfg)


def test_what_is_compared_is_larger_where_it_is_better() -> None:
    up = FolderResults(lambda name: finished((0.1, 0.2)), SUCCESS)
    down = FolderResults(lambda name: finished((0.1, 0.2), ERRORS), ERRORS)
    assert (up.level(trial(), 1), down.level(trial(), 1)) == (0.2, -0.2)
    assert up.history(trial(), 1) == {0: 0.1, 1: 0.2}
    assert down.history(trial(), 1) == {0: -0.1, 1: -0.2}


def test_a_history_is_cut_and_holds_each_finite_value_at_its_iteration() -> None:
    results = FolderResults(lambda name: finished((0.1, None, NAN, None, 0.5, None, 0.7)), SUCCESS)
    assert results.history(trial(), 4) == {0: 0.1, 4: 0.5}
    assert results.history(trial(), 3) == {0: 0.1}


def test_a_collapsed_run_stays_where_it_fell_at_every_later_evaluation() -> None:
    view = collapsed((0.3, None, 0.4, None), **{"eval/random": 0.05})  # at iteration 3, evaluated every 2
    results = FolderResults(lambda name: view, SUCCESS)
    assert results.history(trial(), 8) == {0: 0.3, 2: 0.4, 4: 0.05, 6: 0.05, 8: 0.05}
    assert results.history(trial(), 2) == {0: 0.3, 2: 0.4}


def test_a_trial_has_come_as_far_as_its_rows_or_its_collapse_say() -> None:
    there, gone = (FolderResults(lambda name, view=view: view, SUCCESS) for view in (finished(RISE), collapsed(RISE)))
    assert [there.reached(trial(), until) for until in (4, 5, 6)] == [True, True, False]
    assert there.reached(trial(iterations=5), 6)  # a whole run is never asked for more
    assert [gone.reached(trial(), until) for until in (5, 6)] == [True, True]
    assert [gone.collapsed(trial(), until) for until in (4, 5, 6)] == [False, True, True]
    assert not there.collapsed(trial(), 6)


def result(view: View, batch: int = 32, iterations: int = 10) -> Result:
    return Result(view, batch, iterations)


def test_each_objective_is_a_mean_over_the_seeds() -> None:
    times = {"time/rollout_seconds": 2.0, "time/update_seconds": 1.0}
    two = [result(finished(RISE, **times)), result(collapsed(RISE, **{"eval/random": 0.1}))]
    # cost: 10 iterations of 32 trajectories, in thousands, however far it came. seconds: 6 rows of 3 s for 5
    # iterations, so 36 s for 10, and none of the other seed.
    assert objective_values(two, [SUCCESS, "collapses", "cost", "seconds"]) == pytest.approx((0.3, 0.5, 0.32, 18.0))
    assert objective_values(two, [SUCCESS, ERRORS]) is None
    assert objective_values([*two, result(finished((NAN,)))], [SUCCESS]) is None
    assert objective_values([], ["cost"]) is None


@pytest.mark.parametrize(
    ("view", "collapses"),
    [
        (finished(RISE, **{"detect/stop": 0.0}), 0.0),
        (finished((*RISE[:5], 0.6), **{"detect/stop": 1.0}), 1.0),  # the detectors only watched
        (collapsed(RISE), 1.0),
        (View(True, "pruned", rows(RISE), 5), 0.0),
    ],
)
def test_a_collapse_counts_whether_it_stopped_the_run_or_not(view: View, collapses: float) -> None:
    assert objective_values([result(view)], ["collapses"]) == (collapses,)


def known(view: View, state: Any = "complete", **search: Any) -> Any:
    row = {"number": 3, "params": '{"optim.lr": 0.1}', "attrs": '{"note": 1}', "arm": "#3 lr=0.1"}
    return as_known(row, SearchSection(kind="random", trials=9, **search), state, [result(view)])


@pytest.mark.parametrize(
    ("constraint", "excess"),
    [
        (f"{ERRORS} <= 0.25", 0.5),
        (f"{ERRORS} <= 0.75", 0.0),
        (f"{ERRORS} <= 1", -0.25),
        (f"{ERRORS} >= 1", 0.25),
        (f"{ERRORS} >= 0.25", -0.5),
        ("eval/optimal <= 0.5", 1.0),  # cannot be had, so it is not kept
        ("eval/optimal >= 0.5", 1.0),
    ],
)
def test_a_constraint_is_missed_by_what_is_too_much_or_too_little(constraint: str, excess: float) -> None:
    view = finished((0.5, 0.75, 0.75), ERRORS, **{SUCCESS: 0.5})
    assert known(view, constraints=[constraint]).excess == {constraint: excess}


def test_what_the_search_is_told_of_a_proposal() -> None:
    """Values and constraints only of what came to its end or was ended, of the latter the iteration too."""
    keeps = ["cost <= 0.12"]
    told = {state: known(finished(RISE), state, constraints=keeps) for state in ("complete", "pruned", "running")}
    assert told["complete"].values == told["pruned"].values == pytest.approx((0.5,))
    assert (told["complete"].step, told["pruned"].step) == (None, 5)
    assert told["complete"].excess == told["pruned"].excess == {"cost <= 0.12": pytest.approx(0.2)}
    assert (told["running"].state, told["running"].values, told["running"].excess) == ("running", None, {})
    assert (told["complete"].number, told["complete"].params, told["complete"].attrs, told["complete"].name) == (
        3, {"optim.lr": 0.1}, {"note": 1}, "#3 lr=0.1"
    )  # fmt: skip
    for state in ("complete", "pruned"):
        assert known(finished((NAN, NAN)), state).state == "failed"
