"""The plan is a pure function, and its linter knows what spoils a conclusion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ragen_lab.runs import View
from ragen_lab.sweep.drive import describe, plan_here
from ragen_lab.sweep.plan import lint, make_plan, plan_of, seconds_per_iteration, seeds_needed, smallest_p
from ragen_lab.sweep.spec import Sweep

Make = Callable[..., Sweep]


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
    return [note for note in lint(sweep) if word in note]


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
    assert "optim.updates_per_rollout: 4" in notes(sweep_of(), "as many updates")[0]
    arms = {
        "random_drop": {"filter.kind": "random", "filter.keep_ratio": 0.25},
        "same_updates": {"filter.keep_ratio": 0.25, "optim.updates_per_rollout": 4},
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


def test_the_pace_is_the_median(sweep_of: Make) -> None:
    """Gaps 1, 10, 10: one quick row does not make a quick run."""
    rows = tuple({"iteration": float(i), "timestamp": stamp} for i, stamp in enumerate((0.0, 1.0, 11.0, 21.0)))
    assert seconds_per_iteration(View(False, "stopped", rows)) == 10
    assert seconds_per_iteration(View(False, "stopped", rows[:1])) is None


def test_a_budget_that_is_over_at_once(sweep_of: Make) -> None:
    assert notes(sweep_of(budget__minutes=0.5), "budget: 0.5 minutes")
    assert not notes(sweep_of(budget__minutes=1), "budget:")


def test_finding_4_needs_two_keep_ratios(sweep_of: Make) -> None:
    (note,) = notes(sweep_of(**{"axes.filter.keep_ratio": [0.5]}), "finding 4")
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
    from ragen_lab.sweep.plan import _is_number

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


def test_pitfall_18_a_reasoning_reward_that_nobody_can_judge_is_told(sweep_of: Make) -> None:
    """Pitfall 18: an environment from outside without ``scene()``; the trial itself would refuse to start."""
    corridor = {"env.name": "tests.env.outside:Corridor"}
    assert notes(sweep_of(**corridor, **{"reward.reasoning": "grounded"}), "no scene()")
    assert not notes(sweep_of(**corridor), "no scene()")
