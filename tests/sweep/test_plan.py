"""The plan is a pure function, and its linter knows what spoils a conclusion."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.errors import ConfigError
from ragen_lab.runs import View
from ragen_lab.sweep.estimate import Estimate, Pace, known_in, pace_of
from ragen_lab.sweep.lint import lint, seeds_needed, smallest_p
from ragen_lab.sweep.plan import make_plan, plan_of
from ragen_lab.sweep.plan_text import describe, plan_as_json, plan_here
from ragen_lab.sweep.probe import probed
from ragen_lab.sweep.spec import Sweep, load_sweep
from ragen_lab.track import DONE_FILE, trial_folder

Make = Callable[..., Sweep]
Write = Callable[..., Path]
Drive = Callable[..., Any]


def test_plan_counts_what_is_left(sweep_of: Make) -> None:
    sweep = sweep_of()
    rows = tuple({"iteration": float(i), "timestamp": 10.0 * i} for i in range(9))
    seen = {
        0: View(True, "finished", rows),
        1: View(True, "collapsed", rows[:6], 5, "why"),
        2: View(False, "stopped", rows[:4]),
        3: View(False, "pending"),
    }
    views = {trial.trial_id: seen[i] for i, trial in enumerate(sweep.trials)}
    plan = plan_of(sweep, lambda trial: views[trial.trial_id])
    assert [trial.trial_id for trial in plan.pending] == [trial.trial_id for trial in sweep.trials[2:]]
    assert plan.cost.trials == 2
    assert plan.cost.iterations == 5 + 8  # 8 asked for, 3 done; 8 asked for, none done
    assert plan.cost.trajectories == 13 * 8 * 16
    assert plan.cost.seconds == pytest.approx(130)


def test_a_home_that_is_not_there(sweep_of: Make, tmp_path: Path) -> None:
    plan = make_plan(sweep_of(), tmp_path / "nowhere")
    assert len(plan.pending) == 4
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(("levels", "seeds", "p"), [(2, 3, 1 / 8), (2, 5, 1 / 32), (3, 3, 1 / 216), (4, 3, 1 / 13824)])
def test_smallest_p(levels: int, seeds: int, p: float) -> None:
    assert smallest_p(levels, seeds) == pytest.approx(p)


def test_seeds_needed() -> None:
    assert seeds_needed(2, 0.05) == 5  # 1/16 > 0.05 >= 1/32
    assert seeds_needed(3, 0.05) == 2  # 1/6 > 0.05 >= 1/36


def notes(sweep: Sweep, word: str) -> list[str]:
    return [note.text for note in lint(sweep) if word in note.text]


def test_too_few_seeds(sweep_of: Make) -> None:
    assert "At least 5 are needed" in notes(sweep_of(), "no verdict is possible")[0]
    assert not notes(sweep_of(seeds=5), "no verdict is possible")
    three = {"axes.filter.keep_ratio": [1.0, 0.5, 0.25]}
    assert "can carry a trend over 3 levels" in notes(sweep_of(seeds=3, **three), "seeds:")[0]


def test_keep_ratio_also_changes_the_updates(sweep_of: Make) -> None:
    (note,) = notes(sweep_of(), "optimizer steps per iteration")
    assert "1.0: 4, 0.25: 1" in note  # 8 x 16 and 2 x 16 trajectories by minibatches of 32
    assert not notes(sweep_of(optim__updates_per_rollout=4), "optimizer steps per iteration")
    control = {"arms": {"same_updates": {"filter.keep_ratio": 0.25, "optim.updates_per_rollout": 4}}}
    assert "Its control: arm 'same_updates'" in notes(sweep_of(**control), "optimizer steps per iteration")[0]


def test_finding_4_controls(sweep_of: Make) -> None:
    assert notes(sweep_of(), "no random-drop control")
    assert "optim.updates_per_rollout: 4" in notes(sweep_of(), "no control with as many updates")[0]
    arms = {
        "random_drop": {"filter.kind": "random", "filter.keep_ratio": 0.25},
        "same_updates": {"filter.keep_ratio": 0.25, "optim.updates_per_rollout": 4},
        "zero_only": {"filter.kind": "zero_only", "filter.keep_ratio": 0.25},
        "smallest": {"filter.kind": "smallest", "filter.keep_ratio": 0.25},
    }
    complete = sweep_of(arms=arms, on_collapse="continue", seeds=5)
    assert not notes(complete, "finding 4")
    assert not notes(complete, "differs from its nearest arm")
    assert not notes(sweep_of(findings=[1]), "finding 4")


def test_an_arm_that_differs_in_more_than_one_knob(sweep_of: Make) -> None:
    arms = {"odd": {"filter.keep_ratio": 0.25, "optim.lr": 0.5, "eval.prompts": 8}}
    (note,) = notes(sweep_of(arms=arms), "differs from its nearest arm")
    assert "'keep_ratio=0.25' in 2 knobs (eval.prompts, optim.lr)" in note


def test_inert_knobs_and_ties(sweep_of: Make) -> None:
    (note,) = notes(sweep_of(algo__kl__coef=0.5), "algo.kl.coef")
    assert "has no effect" in note
    assert "arms:" not in note
    sweep = sweep_of(axes={"rollout.responses": [8, 16]}, ties={"rollout.prompts": "128 // rollout.responses"})
    assert notes(sweep, "ties.rollout.prompts moves together with axes.rollout.responses")
    assert not notes(sweep, "trajectories sampled per iteration")
    assert notes(sweep_of(axes={"rollout.responses": [8, 16]}), "trajectories sampled per iteration")


def test_alpha_is_shared_by_the_findings(sweep_of: Make) -> None:
    """1/32 is below 0.05 but above the 0.025 that each of two findings may use."""
    assert not notes(sweep_of(findings=[4], seeds=5), "no verdict is possible")
    (note,) = notes(sweep_of(findings=[1, 4], seeds=5), "no verdict is possible")
    assert "0.031, above 0.025 (0.05 shared by 2 findings)" in note
    assert "At least 6 are needed" in note
    assert not notes(sweep_of(findings=[1, 4], seeds=6), "no verdict is possible")


def test_the_pace_is_the_median() -> None:
    """Gaps 1, 10, 10: one quick row does not make a quick run."""
    rows = tuple({"iteration": float(i), "timestamp": stamp} for i, stamp in enumerate((0.0, 1.0, 11.0, 21.0)))
    pace = pace_of(rows)
    assert pace is not None
    assert (pace.plain, pace.evaluated) == (10, 10)
    assert pace_of(rows[:1]) is None


def test_a_night_between_two_sessions_is_no_iteration() -> None:
    """The phases of an iteration say what it took; without them, of two gaps the shorter one."""
    phases = {"time/rollout_seconds": 1.5, "time/update_seconds": 0.5, "time/cpu_seconds": 9.0}
    rows = tuple({"iteration": float(i), "timestamp": 3600.0 * i, **phases} for i in range(4))
    pace = pace_of(rows)
    assert pace is not None
    assert pace.plain == 2.0
    looked = {**rows[3], "eval/success": 0.5, "time/eval_seconds": 3.0, "time/probe_seconds": 1.0}
    pace = pace_of((*rows[:3], looked))
    assert pace is not None
    assert (pace.plain, pace.evaluated) == (2.0, 6.0)
    bare = tuple({"iteration": float(i), "timestamp": stamp} for i, stamp in enumerate((0.0, 2.0, 3602.0)))
    pace = pace_of(bare)
    assert pace is not None
    assert pace.plain == 2.0


def test_a_budget_that_is_over_at_once(sweep_of: Make) -> None:
    assert notes(sweep_of(budget__minutes=0.5), "budget: 0.5 minutes")
    assert not notes(sweep_of(budget__minutes=1), "budget:")


def test_finding_4_needs_two_keep_ratios(sweep_of: Make) -> None:
    (note,) = notes(sweep_of(on_collapse="continue", **{"axes.filter.keep_ratio": [0.5]}), "finding 4")
    assert "at least two keep ratios" in note
    assert not notes(sweep_of(), "at least two keep ratios")


def test_an_axis_that_is_about_the_updates_is_no_confound(sweep_of: Make) -> None:
    assert not notes(sweep_of(axes={"optim.epochs": [1, 2]}), "optimizer steps per iteration")


def test_other_axes_are_held(sweep_of: Make) -> None:
    """Along keep_ratio only the arms with the first number of epochs are compared (with 2 it would be 8 and 2)."""
    sweep = sweep_of(axes={"filter.keep_ratio": [1.0, 0.25], "optim.epochs": [1, 2]})
    (note,) = notes(sweep, "optimizer steps per iteration")
    assert note.startswith("axes.filter.keep_ratio also changes the optimizer steps per iteration (1.0: 4, 0.25: 1)")


def test_a_knob_without_effect_in_some_arms_names_them(sweep_of: Make) -> None:
    (note,) = notes(sweep_of(arms={"kl": {"algo.kl.coef": 0.5}}), "algo.kl.coef")
    assert note.endswith("(arms: kl)")


def test_truth_values_are_no_levels(sweep_of: Make) -> None:
    """Three levels of a switch do not exist, and two are no trend; a bool counts as no number."""
    from ragen_lab.sweep.lint import _is_number

    assert [_is_number(value) for value in (True, False, 1, 0.5, "1")] == [False, False, True, True, False]


def test_what_this_machine_lacks_is_a_warning_of_the_plan(sweep_of: Make, tmp_path: Path) -> None:
    sweep = sweep_of(resources={"cpus": 4096, "gpus": 0})
    assert any("resources.cpus: 4096" in warning for warning in plan_here(sweep, tmp_path).warnings)
    assert not any("resources.cpus" in warning for warning in plan_here(sweep, tmp_path, "cluster:1").warnings)
    assert not any("resources.cpus" in warning for warning in make_plan(sweep, tmp_path).warnings)  # goes into reports


def test_one_of_a_thing_is_not_several(sweep_of: Make, tmp_path: Path) -> None:
    page = {"axes.filter.keep_ratio": [1.0], "seeds": 1, "train.iterations": 1}
    text = describe(make_plan(sweep_of(**page), tmp_path))
    assert "1 arm x 1 seed = 1 trial, 0 there already." in text
    assert "To do: 1 trial, 1 iteration, " in text


# --- where trials are, and who else asks for them ---


def test_the_table_says_where_each_trial_is(sweep_of: Make, drive: Callable[..., Any], tmp_path: Path) -> None:
    """Done here, done by another sweep of the home, done by one that has left it, begun, and not there."""
    home = tmp_path / "home"
    drive(sweep_of(name="first", seeds=[0]), home)
    drive(sweep_of(name="second", seeds=[1]), home)
    drive(sweep_of(name="second", seeds=[2]), home)  # seed 1 leaves it
    begun = sweep_of(name="third", seeds=[3])
    (home / f"fail-{begun.trials[0].trial_id}").write_text("99")
    drive(begun, home)
    sweep = sweep_of(name="first", seeds=5)
    plan = plan_here(sweep, home)
    places = {(t["arm"], t["seed"]): (t["where"], t["sweeps"]) for t in plan_as_json(plan)["trials"]}
    assert places["keep_ratio=0.25", 0] == ("this sweep", ["first"])
    assert places["keep_ratio=0.25", 1] == ("in the home", [])
    assert places["keep_ratio=0.25", 2] == ("sweep second", ["second"])
    assert places["keep_ratio=1.0", 3] == ("goes on", ["third"])
    assert places["keep_ratio=1.0", 4] == ("to run", [])
    lines = describe(plan).splitlines()
    assert re.fullmatch(r"trial +arm +seed +status +iterations +where +to do", lines[3])
    assert any(re.fullmatch(r"[0-9a-f]{12}  keep_ratio=1.0 +2 +finished +8/8 +sweep second +-", line) for line in lines)
    assert any(re.fullmatch(r"[0-9a-f]{12}  keep_ratio=1.0 +3 +failed +2/8 +goes on +about .*", line) for line in lines)


def test_trials_that_would_leave_are_told_beforehand(sweep_of: Make, drive: Callable[..., Any], tmp_path: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of(), home)
    fewer = sweep_of(**{"axes.filter.keep_ratio": [1.0]})
    plan = make_plan(fewer, home)
    assert [(left.arm, left.seed) for left in plan.leaving] == [("keep_ratio=0.25", 0), ("keep_ratio=0.25", 1)]
    assert "Leaving: 2 trials of this sweep that the page no longer asks for: keep_ratio=0.25 seed 0 (" in describe(
        plan
    )
    assert [entry["seed"] for entry in plan_as_json(plan)["leaving"]] == [0, 1]
    assert make_plan(sweep_of(), home).leaving == ()
    assert make_plan(sweep_of(name="other"), home).leaving == ()


def test_looking_writes_nothing(sweep_of: Make, drive: Callable[..., Any], tmp_path: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of(seeds=1), home)
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()}
    describe(plan_here(sweep_of(), home))
    after = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()}
    assert {path.name for path in after.keys() - before.keys()} <= {"ledger.sqlite-shm", "ledger.sqlite-wal"}
    assert all(after[path] == stamp for path, stamp in before.items() if "-shm" not in path.name)


# --- how long it takes ---


def rows_of(*gaps: tuple[float, bool]) -> tuple[dict[str, float], ...]:
    """Rows that are ``gaps`` seconds apart, the flagged ones with an evaluation; row 0 has one."""
    stamp, rows = 100.0, [{"iteration": 0.0, "timestamp": 100.0, "eval/success": 0.5}]
    for number, (gap, evaluated) in enumerate(gaps, start=1):
        stamp += gap
        rows.append({"iteration": float(number), "timestamp": stamp, **({"eval/success": 0.5} if evaluated else {})})
    return tuple(rows)


def test_evaluations_have_a_pace_of_their_own(sweep_of: Make) -> None:
    """2 s an iteration, 5 s with an evaluation; 8 asked for, 3 done, an evaluation at 4 and 8: 3 x 2 + 2 x 5 = 16."""
    sweep = sweep_of(eval__every=4, seeds=1)
    rows = rows_of((2, False), (2, False), (2, False), (5, True), (2, False), (2, False), (2, False), (5, True))
    first = sweep.trials[0].trial_id
    plan = plan_of(sweep, lambda trial: View(False, "stopped", rows[:5] if trial.trial_id == first else ()))
    assert plan.trials[0].estimate == Estimate(3 * 2 + 5, "its own rows")
    plan = plan_of(sweep, lambda trial: View(False, "stopped", rows[:4] if trial.trial_id == first else ()))
    assert plan.trials[0].estimate == Estimate(5 * 2, "its own rows")  # no evaluation has been timed yet
    plan = plan_of(sweep, lambda t: View(True, "finished", rows) if t.trial_id == first else View(False, "pending"))
    near = plan.trials[1].estimate
    assert near is not None
    assert near.seconds == 3 + 6 * 2 + 2 * 5  # the evaluation of the start as well: 5 - 2
    assert near.basis == "keep_ratio=1.0 seed 0 of this sweep, which differs in filter.keep_ratio"
    assert plan.cost.seconds == near.seconds


@pytest.mark.parametrize(
    ("last", "seconds"),
    [(-1, 3 + 6 * 2 + 2 * 5), (0, 6 * 2 + 2 * 5), (3, 3 * 2 + 2 * 5), (4, 3 * 2 + 5), (5, 2 * 2 + 5), (8, 0)],
)
def test_the_evaluations_that_are_left_are_those_after_the_last_row(sweep_of: Make, last: int, seconds: int) -> None:
    """2 s an iteration, 5 s with an evaluation: at 4 and 8, and of the start before the first row (3 s more)."""
    assert Pace(2, 5).of(sweep_of(eval__every=4).trials[0].cfg, last) == seconds


def test_seconds_that_leave_a_trial_out_are_not_the_time_of_all(sweep_of: Make) -> None:
    """One of two trials has been measured: the time of both is not known, and no part of it is shown as such."""
    arms = {"tiny": {}, "large": {"policy.model": "some/model", "prompt.style": "full"}}
    sweep = sweep_of(eval__every=4, seeds=1, axes={}, arms=arms)
    rows = rows_of((2, False), (2, False))
    first = sweep.trials[0].trial_id
    plan = plan_of(sweep, lambda trial: View(False, "stopped", rows if trial.trial_id == first else ()))
    assert [planned.estimate and planned.estimate.seconds for planned in plan.trials] == [6 * 2, None]
    assert plan.cost.seconds is None
    assert plan.cost.iterations == 6 + 8
    other_done = plan_of(
        sweep, lambda trial: View(False, "stopped", rows) if trial.trial_id == first else View(True, "finished")
    )
    assert other_done.cost.seconds == 6 * 2


def test_of_equally_near_trials_the_newest_lends_its_pace(
    sweep_of: Make, drive: Callable[..., Any], tmp_path: Path
) -> None:
    """The machine may have become another one since. The older one comes first by name and by folder."""
    home = tmp_path / "home"
    drive(sweep_of(**{"axes.filter.keep_ratio": [1.0]}, seeds=2), home)
    ids = sorted(folder.name for folder in (home / "trials").iterdir())
    for age, trial in zip((200, 100), ids, strict=True):
        os.utime(trial_folder(home, trial) / DONE_FILE, (2e9 - age, 2e9 - age))
    assert [known.trial_id for known in known_in(home)] == ids[::-1]
    (planned,) = plan_here(sweep_of(name="new", **{"axes.filter.keep_ratio": [1.0]}, seeds=[7]), home).trials
    assert planned.estimate is not None
    assert planned.estimate.basis == f"trial {ids[1]} of this home, whose cost knobs are the same"


def test_the_nearest_finished_trial_of_the_home(sweep_of: Make, drive: Callable[..., Any], tmp_path: Path) -> None:
    """Fewest differing knobs among those that cost; of the same model; never one that has failed."""
    home = tmp_path / "home"
    drive(sweep_of(name="far", seeds=1, rollout__prompts=4, rollout__responses=4), home)
    drive(sweep_of(name="near", seeds=1, optim__lr=0.5), home)
    sweep = sweep_of(name="new", seeds=[7], optim__lr=0.25, filter__kind="random")
    plan = plan_here(sweep, home)
    near = {trial.arm: trial.trial_id for trial in sweep_of(name="near", seeds=1, optim__lr=0.5).trials}
    bases = {planned.trial.arm: planned.estimate.basis for planned in plan.trials if planned.estimate}
    for arm in ("keep_ratio=1.0", "keep_ratio=0.25"):
        assert bases[arm] == f"trial {near[arm]} of this home, which differs in filter.kind"
    assert f"Time of 1 trial by trial {near['keep_ratio=1.0']} of this home, which differs in filter.kind." in describe(
        plan
    )
    same = plan_here(sweep_of(name="new", seeds=[7], optim__lr=0.25), home)
    assert same.trials[0].estimate is not None
    assert same.trials[0].estimate.basis.endswith(", whose cost knobs are the same")
    other = {"policy.model": "some/model", "prompt.style": "full"}
    unknown = plan_here(sweep_of(name="new", **other), home)
    assert [planned.estimate for planned in unknown.trials] == [None] * 4
    assert unknown.cost.seconds is None
    assert "Time of 4 trials unknown: nothing like it is in this home. --plan --probe runs" in describe(unknown)


def test_a_probe_measures_each_cost_setting_once(
    sweep_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two iterations of two arms, in a home that is gone afterwards; the seeds share them."""
    monkeypatch.setenv("FAKE_SLEEP", "0.05")
    home, told = tmp_path / "home", []
    sweep = sweep_of(seeds=3, train__iterations=40, eval__every=4)
    plan = probed(plan_here(sweep, home), home, told.append, "tests.sweep.fake:train")
    assert told == [
        "Probe 1 of 2: 2 iterations of keep_ratio=1.0.", "Probe 2 of 2: 2 iterations of keep_ratio=0.25.",
    ]  # fmt: skip
    estimates = [planned.estimate for planned in plan.trials]
    assert all(each is not None and 40 * 0.05 <= each.seconds < 40 * 0.5 for each in estimates)
    assert {each.basis for each in estimates if each} == {
        "a probe of 2 iterations of keep_ratio=1.0", "a probe of 2 iterations of keep_ratio=0.25",
    }  # fmt: skip
    assert sorted(path.name for path in home.rglob("*")) == ["cache"]  # no trial, no ledger
    assert plan.cost.seconds is not None


def test_a_probe_that_fails_says_so(sweep_of: Make, tmp_path: Path) -> None:
    told: list[str] = []
    plan = probed(plan_here(sweep_of(), tmp_path), tmp_path, told.append, "tests.sweep.fake:nowhere")
    assert "The probe of keep_ratio=1.0 ended as failed: AttributeError" in told[1]
    assert plan.cost.seconds is None


def test_pitfall_18_a_reasoning_reward_that_nobody_can_judge_is_told(sweep_of: Make) -> None:
    """Pitfall 18: an environment from outside without ``scene()``; the trial itself would refuse to start."""
    corridor = {"env.name": "tests.env.outside:Corridor"}
    assert notes(sweep_of(**corridor, **{"reward.reasoning": "grounded"}), "no scene()")
    assert not notes(sweep_of(**corridor), "no scene()")


def test_what_the_sweep_would_refuse_its_plan_refuses(write: Write, drive: Drive, tmp_path: Path) -> None:
    """The name of another page's sweep, whose trials would leave it."""
    home = tmp_path / "home"
    drive(load_sweep(write(), {"track.mlflow": False}), home)
    other = load_sweep(write("name: tested\nbase: base.yaml\naxes: {filter.keep_ratio: [0.5]}\n", name="other"))
    with pytest.raises(ConfigError, match="is the sweep of another page in this home"):
        plan_here(other, home)
    assert plan_here(other, tmp_path / "new").leaving == ()


def test_an_accepted_warning_is_shown_whole_where_the_page_was_overridden(write: Write) -> None:
    """What was accepted may be another thing now: two seeds, and not one."""
    file = write("base: base.yaml\naxes: {filter.keep_ratio: [1.0, 0.25]}\nseeds: 2\naccept: {seeds: a trial}\n")
    for overrides, shown in (({}, False), ({"seeds": 1}, True)):
        text = describe(plan_of(load_sweep(file, overrides), lambda trial: View(False, "pending")), brief=True)
        assert "a trial" in text
        assert ("no verdict is possible" in text) is shown
