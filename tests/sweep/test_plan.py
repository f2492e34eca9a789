"""The plan is a pure function, and its linter knows what spoils a conclusion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ragen_lab.runs import View
from ragen_lab.sweep.plan import lint, make_plan, plan_of, seeds_needed, smallest_p
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
