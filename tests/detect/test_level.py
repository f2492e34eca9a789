"""The definition of collapse, in worked numbers."""

from __future__ import annotations

import math

import pytest

from ragen_lab.detect.level import LevelDetector, collapse, collapse_of_rows
from ragen_lab.sections import DetectSection, LevelSection

RAW = LevelSection(ema=1.0)  # no smoothing: the sums can be done in the head
EVERY_10 = [0, 10, 20, 30, 40, 50, 60, 70]


def judge(values: list[float], line: float | None = None, section: LevelSection = RAW):
    return collapse((EVERY_10[: len(values)], values), line, section)


def test_time_is_the_first_of_three_evaluations_below_half_of_the_peak() -> None:
    # peak 0.6, bound 0.3: below at 30, 40, 50; the third is what a live detector must wait for
    found = judge([0.4, 0.6, 0.5, 0.29, 0.2, 0.1])
    assert (found.status, found.time, found.alarm_time) == ("collapsed", 30, 50)
    assert found.peak == pytest.approx(0.6)
    assert found.improved


def test_two_evaluations_below_are_no_collapse_but_censored() -> None:
    assert judge([0.4, 0.6, 0.5, 0.29, 0.2]).status == "held"


def test_exactly_half_is_not_below() -> None:
    assert judge([0.5, 0.5, 0.25, 0.25, 0.25]).status == "never_improved"


def test_heights_are_taken_above_the_random_line() -> None:
    # line 0.2: peak 0.4 above it, bound 0.2 above it = 0.4 success
    assert judge([0.4, 0.6, 0.39, 0.39, 0.39], line=0.2).time == 20
    assert judge([0.4, 0.6, 0.39, 0.39, 0.39], line=None).status == "held"  # half of 0.6 is 0.3


def test_a_recovery_to_eight_tenths_of_the_peak_takes_the_collapse_back() -> None:
    fell = [0.6, 0.2, 0.2, 0.2]
    assert judge([*fell, 0.47]).time == 10  # 0.47 < 0.48 = 0.8 x 0.6
    back = judge([*fell, 0.48])
    assert (back.collapsed, back.time, back.recoveries) == (False, None, 1)
    assert judge([*fell, 0.48, 0.1, 0.1, 0.1]).time == 50  # the second fall is the collapse


def test_the_first_fall_counts_when_a_half_recovery_lies_between() -> None:
    assert judge([0.6, 0.2, 0.2, 0.2, 0.4, 0.2, 0.2]).time == 10


def test_smoothing_is_an_ema_started_at_the_first_value() -> None:
    # 0.6; 0.6 + 0.3 (0 - 0.6) = 0.42; 0.294; 0.2058: first below 0.3 at 20
    found = judge([0.6, 0.0, 0.0, 0.0, 0.0, 0.0], section=LevelSection())
    assert (found.time, found.alarm_time) == (20, 40)
    assert judge([0.6, 0.0], section=LevelSection()).last == pytest.approx(0.42)


def test_statuses_of_runs_that_never_had_anything_to_lose() -> None:
    assert judge([0.2, 0.19, 0.21, 0.2], line=0.21).status == "never_above_random"
    assert judge([0.24, 0.2, 0.2, 0.2, 0.2], line=0.2).status == "never_improved"  # peak 0.04 < 0.05
    assert judge([0.4, 0.41, 0.42], line=0.2).status == "never_improved"
    assert judge([]).status == "not_evaluable"


def test_a_run_can_collapse_without_having_improved() -> None:
    found = judge([0.5, 0.1, 0.1, 0.1])
    assert found.collapsed
    assert not found.improved


@pytest.mark.parametrize(("fall", "time"), [(0.33, 40), (0.5, 30), (0.67, 20)])
def test_thresholds_are_the_config(fall: float, time: int) -> None:
    # shares of the peak 1.0: 0.6 at 20, 0.4 at 30, 0.2 from 40
    section = RAW.model_copy(update={"fall": fall})
    assert judge([0.5, 1.0, 0.6, 0.4, 0.2, 0.2, 0.2], section=section).time == time


def test_pitfall_22_nan_is_a_fall_and_not_dropped() -> None:
    """Pitfall 22: NaN is the finding. It must not vanish from the series, nor poison the average."""
    found = judge([0.5, 0.6, math.nan, math.nan, math.nan])
    assert (found.collapsed, found.time) == (True, 20)
    assert found.last == pytest.approx(0.6)


def rewards(values: list[float], section: LevelSection = RAW):
    return collapse((list(range(len(values))), values), None, section, "rollout")


def test_a_rollout_metric_needs_five_iterations() -> None:
    assert not rewards([1.0] + [0.4] * 4).collapsed
    assert rewards([1.0] + [0.4] * 5).time == 1


def test_negative_rewards_fall_relative_to_their_rise() -> None:
    # from -1 to 5: floor -1, the rise is 6, half of it is lost below 2
    assert not rewards([-1.0, 5.0] + [2.1] * 5).collapsed
    assert rewards([-1.0, 5.0] + [1.9] * 5).time == 2
    # never left -1: floor 2 x -1, lost below -1.5; "half of the peak" (-0.5) would call it collapsed at once
    assert not rewards([-1.0] * 10).collapsed
    assert not rewards([-1.0] + [-1.4] * 9).collapsed
    assert rewards([-1.0] + [-1.6] * 5).time == 1


def test_the_stand_in_is_used_only_where_there_is_no_evaluation() -> None:
    reward = [{"iteration": float(i), "rollout/reward_mean": 1.0 if i < 5 else 0.1} for i in range(20)]
    evaluated = [{**row, "eval/success": 0.5} for row in reward]
    assert collapse_of_rows(reward, RAW).collapsed
    assert not collapse_of_rows(evaluated, RAW).collapsed


def test_live_alarm_comes_with_the_third_evaluation_and_ends_with_recovery() -> None:
    detector = LevelDetector.build(DetectSection(level=RAW), horizon=80)
    alarms = []
    for iteration, value in zip(EVERY_10, [0.4, 0.6, 0.2, 0.2, 0.2, 0.3, 0.5], strict=False):
        signal = detector.update({"iteration": iteration, "eval/success": value})
        between = detector.update({"iteration": iteration + 1, "rollout/entropy": 1.0})
        assert between.alarm == signal.alarm  # iterations without an evaluation keep the state
        alarms.append(signal.alarm)
        if signal.alarm and iteration == 40:
            assert "0.2" in signal.reason
            assert "33% of its peak 0.6" in signal.reason
    assert alarms == [False, False, False, False, True, True, False]


def test_a_random_line_that_comes_late_is_applied_to_what_was_seen() -> None:
    early = [{"iteration": 0.0, "eval/success": 0.4, "eval/random": 0.2}, {"iteration": 10.0, "eval/success": 0.6}]
    late = [{"iteration": 0.0, "eval/success": 0.4}, {"iteration": 10.0, "eval/success": 0.6, "eval/random": 0.2}]
    tail = [{"iteration": 20.0 + 10 * i, "eval/success": 0.39} for i in range(3)]
    for rows in (early + tail, late + tail):
        detector = LevelDetector.build(DetectSection(level=RAW), horizon=80)
        assert [detector.update(row).alarm for row in rows][-1]
        assert collapse_of_rows(rows, RAW).time == 20
