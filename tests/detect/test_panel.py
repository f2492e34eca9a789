"""The vote: what stops a run, what is only a warning, and that replaying equals being there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ragen_lab.detect import DETECTORS, Panel, replay
from ragen_lab.metrics import METRICS
from ragen_lab.sections import DetectSection

HORIZON = 80


def run_rows(n: int = HORIZON, seed: int = 0) -> list[dict[str, float]]:
    """A healthy run: success climbs to 0.7, the spread drifts, entropy declines by 60 %."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        share = i / n
        row = {
            "iteration": float(i),
            "rollout/success": 0.3 + 0.4 * share + 0.02 * rng.normal(),
            "rollout/reward_mean": 0.3 + 0.4 * share + 0.02 * rng.normal(),
            "rollout/reward_std_in_group": 0.4 * (1 - 0.2 * share) + 0.02 * rng.normal(),
            "rollout/zero_std_share": 0.25,
            "rollout/entropy": 1.0 - 0.6 * share + 0.02 * rng.normal(),
            "train/grad_norm": float(np.exp(0.2 * rng.normal())),
        }
        if i % 5 == 0:
            row |= {"eval/success": 0.3 + 0.4 * share, "eval/random": 0.2}
        rows.append({name: float(value) for name, value in row.items()})
    return rows


def change(rows: list[dict[str, float]], start: int, stop: int | None = None, **values: float) -> None:
    for row in rows[start:stop]:
        row.update({name.replace("__", "/"): value for name, value in values.items()})


def stop_of(rows: list[dict[str, float]], **detect: object):
    return replay(rows, DetectSection.model_validate(detect), HORIZON).stop


def test_a_healthy_run_raises_nothing() -> None:
    for seed in range(10):
        verdicts = replay(run_rows(seed=seed), DetectSection(), HORIZON)
        assert verdicts.stop is None
        assert all(v.first_alarm is None and v.evaluable for v in verdicts.detectors.values())
        assert verdicts.level.status == "held"
        assert verdicts.flags[-1] == {
            "detect/level": 0.0, "detect/reward_std": 0.0, "detect/grad_norm": 0.0,
            "detect/entropy": 0.0, "detect/non_finite": 0.0, "detect/stop": 0.0,
        }  # fmt: skip


def test_every_flag_is_in_the_catalogue() -> None:
    assert {f"detect/{name}" for name in DETECTORS} | {"detect/stop"} == {m for m in METRICS if m.startswith("detect/")}
    assert all(cls.doc.endswith(".") for cls in DETECTORS.values())


def test_a_number_that_is_none_stops_at_once() -> None:
    rows = run_rows()
    change(rows, 33, 34, train__policy_loss=math.nan)
    stop = stop_of(rows)
    assert stop is not None
    assert stop.iteration == 33
    assert "train/policy_loss" in stop.reason


def test_all_groups_empty_five_times_stops() -> None:
    rows = run_rows()
    change(rows, 40, rollout__zero_std_share=1.0)
    stop = stop_of(rows)
    assert stop is not None
    assert stop.iteration == 44
    change(rows, 43, 44, rollout__zero_std_share=0.9)
    stop = stop_of(rows)
    assert stop is not None
    assert stop.iteration == 48  # the count begins again


def test_pitfall_23_all_groups_empty_because_all_succeed_does_not_stop() -> None:
    """Pitfall 23."""
    rows = run_rows()
    change(rows, 20, rollout__success=1.0, rollout__reward_mean=1.0)
    change(rows, 40, rollout__zero_std_share=1.0)
    assert stop_of(rows) is None


def test_success_below_one_percent_five_evaluations_after_having_been_above() -> None:
    rows = run_rows()
    for row in rows:
        if "eval/success" in row:  # the level rule would speak first: nothing to lose in this setting
            row["eval/success"] = 0.03 if row["iteration"] < 30 else 0.005
            del row["eval/random"]
    stop = stop_of(rows)
    assert stop is not None
    assert stop.iteration == 50  # evaluations at 30, 35, 40, 45, 50
    for row in rows:
        if "eval/success" in row:
            row["eval/success"] = 0.005
    assert stop_of(rows) is None  # never above


def test_collapse_of_the_level_stops_with_the_third_evaluation() -> None:
    rows = run_rows()
    for row in rows[40:]:
        if "eval/success" in row:
            row["eval/success"] = 0.0
    # y is 0.3 above random at 35 (smoothed less); EMA: below half at 40, so 40, 45, 50
    stop = stop_of(rows)
    assert stop is not None
    assert stop.iteration == 50
    assert "peak" in stop.reason


def test_pitfall_23_a_lone_gradient_spike_is_a_warning() -> None:
    """Pitfall 23."""
    rows = run_rows()
    change(rows, 50, 53, train__grad_norm=20.0)
    verdicts = replay(rows, DetectSection(), HORIZON)
    assert verdicts.detectors["grad_norm"].first_alarm == 51
    assert verdicts.stop is None


def test_pitfall_23_a_spike_and_a_falling_reward_is_a_collapse() -> None:
    """Pitfall 23. The reward is down by half in the rollouts; evaluations have not seen it yet."""
    rows = run_rows()
    change(rows, 50, 53, train__grad_norm=20.0)
    change(rows, 52, rollout__reward_mean=0.2)
    stop = stop_of(rows)
    assert stop is not None
    assert 52 < stop.iteration <= 56
    assert "20 is" in stop.reason
    assert "rollout/reward_mean" in stop.reason


@pytest.mark.parametrize(("gap", "stops"), [(5, True), (30, False)])
def test_two_families_within_the_window_stop(gap: int, stops: bool) -> None:
    rows = run_rows()
    change(rows, 35, 38, train__grad_norm=20.0)  # on at 36, 37
    change(rows, 30 + gap, rollout__entropy=0.0)  # on about 10 later
    assert (stop_of(rows) is not None) == stops
    assert stop_of(rows, vote_window=60) is not None


def test_pitfall_23_spread_and_entropy_of_a_solved_run_do_not_stop_it() -> None:
    """Pitfall 23: everything succeeds, so the spread is 0 and the policy is sure of itself."""
    rows = run_rows()
    change(rows, 30, rollout__success=0.99, rollout__reward_mean=0.99)
    change(rows, 40, rollout__reward_std_in_group=0.0, rollout__entropy=0.02, rollout__zero_std_share=1.0)
    verdicts = replay(rows, DetectSection(), HORIZON)
    assert verdicts.detectors["entropy"].first_alarm is not None  # told, but no vote
    assert verdicts.detectors["reward_std"].first_alarm is None
    assert verdicts.stop is None
    change(rows, 40, rollout__success=0.3)  # the same with success lost is a collapse
    assert stop_of(rows) is not None


def test_pitfall_23_two_families_do_not_stop_a_solved_run() -> None:
    """Pitfall 23: low entropy and a gradient spike, at full success."""
    rows = run_rows()
    change(rows, 20, rollout__success=0.99, rollout__reward_mean=0.99)
    change(rows, 40, rollout__entropy=0.02)
    change(rows, 55, 58, train__grad_norm=20.0)
    assert stop_of(rows) is None
    change(rows, 20, rollout__success=0.5)
    assert stop_of(rows) is not None


def test_pitfall_24_what_is_not_logged_yields_no_flag() -> None:
    """Pitfall 24."""
    rows = [{k: v for k, v in row.items() if k in ("iteration", "rollout/reward_mean")} for row in run_rows()]
    verdicts = replay(rows, DetectSection(), HORIZON)
    assert set(verdicts.flags[-1]) == {"detect/level", "detect/non_finite", "detect/stop"}
    assert not verdicts.detectors["entropy"].evaluable
    assert "rollout/entropy is not logged" in verdicts.detectors["entropy"].reason
    nothing = replay([{"iteration": 0.0, "loss": 1.0}], DetectSection(), HORIZON)
    assert nothing.flags == ({},)
    assert nothing.level.status == "not_evaluable"
    assert replay([], DetectSection(), HORIZON).stop is None


def test_stored_rows_give_what_the_live_panel_gave() -> None:
    rows = run_rows()
    change(rows, 50, 53, train__grad_norm=20.0)
    change(rows, 52, rollout__reward_mean=0.2, rollout__reward_std_in_group=0.01, rollout__entropy=3.0)
    live = Panel(DetectSection(), HORIZON)
    flags = tuple(live.update(row) for row in rows)
    stored = [{**row, **flag} for row, flag in zip(rows, flags, strict=True)]  # as metrics.jsonl holds them
    verdicts = replay(stored, DetectSection(), HORIZON)
    assert verdicts.flags == flags
    assert verdicts.stop == live.stop


@pytest.mark.parametrize("cut", [1, 37, 51, 54, 79])
def test_a_run_resumed_from_its_rows_goes_on_as_if_never_cut(cut: int) -> None:
    rows = run_rows()
    change(rows, 50, 53, train__grad_norm=20.0)
    change(rows, 52, rollout__reward_mean=0.2)
    whole = Panel(DetectSection(), HORIZON)
    flags = [whole.update(row) for row in rows]
    resumed = Panel(DetectSection(), HORIZON, history=rows[:cut])
    assert [resumed.update(row) for row in rows[cut:]] == flags[cut:]
    assert resumed.stop == whole.stop


def test_the_first_stop_stays_and_a_shadow_run_goes_on() -> None:
    rows = run_rows()
    change(rows, 30, 31, train__policy_loss=math.inf)
    verdicts = replay(rows, DetectSection(on_collapse="continue"), HORIZON)
    assert [flag.get("detect/stop") for flag in verdicts.flags] == [0.0] * 30 + [1.0] * 50
    assert [flag["detect/non_finite"] for flag in verdicts.flags].count(1.0) == 1
