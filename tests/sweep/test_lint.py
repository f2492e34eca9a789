"""The linter of designs: each rule finds what it is named for, is silent where it should be, and can be accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.errors import ConfigError
from ragen_lab.runs import View
from ragen_lab.sweep import controls, lint
from ragen_lab.sweep.plan import Plan, plan_of
from ragen_lab.sweep.plan_text import describe
from ragen_lab.sweep.rules import RULES
from ragen_lab.sweep.spec import Sweep, load_sweep

Make = Callable[..., Sweep]
Write = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[2]


def texts(sweep: Sweep, rule: str) -> list[str]:
    return [note.text for note in lint.lint(sweep) if note.rule == rule]


def plan(sweep: Sweep) -> Plan:
    return plan_of(sweep, lambda trial: View(False, "pending"))


# --- the paper's own filter sweep ---

PAPER = """
base: base.yaml
findings: [4]
arms:
  keep_100: {filter.keep_ratio: 1.0, algo: {clip_high: 0.2, kl: {place: reward}}}
  keep_75: {filter.keep_ratio: 0.75}
  keep_50: {filter.keep_ratio: 0.5}
  keep_25: {filter.keep_ratio: 0.25}
seeds: 5
on_collapse: continue
"""


def test_the_papers_filter_sweep_has_three_confounds_and_all_are_named(write: Write) -> None:
    """The ratio sets the updates (100 % = 4, 25 % = 1); at 25 % the clip is inert; 100 % also has KL and clip 0.2."""
    sweep = load_sweep(write(PAPER))
    (steps,) = texts(sweep, "optimizer_steps")
    assert "the optimizer steps per iteration (1.0: 4, 0.75: 3, 0.5: 2, 0.25: 1)" in steps
    (clip,) = texts(sweep, "clip_inert")
    assert "as at 0.25, the ratio is 1 and the clip does nothing" in clip
    (base,) = texts(sweep, "differs_in_more")
    assert base.startswith("arm 'keep_100' differs from its nearest arm 'keep_75' in 3 knobs")
    assert "algo.clip_high, algo.kl.place: KL, clip range and critic each move the peak" in base
    shown = "\n".join(plan(sweep).warnings)
    assert all(text in shown for text in (steps, clip, base))


AS_A_LIST = """
base: base.yaml
findings: [4]
design: list
settings:
  - {filter.keep_ratio: 1.0, algo.kl.place: reward, algo.clip_high: 0.2}
  - {filter.keep_ratio: 0.75}
  - {filter.keep_ratio: 0.5}
  - {filter.keep_ratio: 0.25}
seeds: 5
on_collapse: continue
"""


def test_the_papers_filter_sweep_as_a_list_of_settings(write: Write) -> None:
    """The page may be written otherwise: the confounds are the same."""
    sweep = load_sweep(write(AS_A_LIST))
    (steps,) = texts(sweep, "optimizer_steps")
    assert "0.75: 3, 0.5: 2, 0.25: 1" in steps
    assert texts(sweep, "clip_inert")
    (base,) = texts(sweep, "differs_in_more")
    assert "in 3 knobs" in base
    assert "algo.clip_high, algo.kl.place: KL, clip range and critic each move the peak" in base
    plain = AS_A_LIST.replace(", algo.kl.place: reward, algo.clip_high: 0.2", "")
    assert texts(load_sweep(write(plain)), "differs_in_more") == []


@pytest.mark.parametrize("kind", ["zero_only", "random", "smallest"])
def test_only_a_rung_of_the_ladder_can_control_its_updates(sweep_of: Make, kind: str) -> None:
    """zero_only takes up to as many steps as the unfiltered arm, at any keep ratio; it is no control of them."""
    other = {"filter.kind": kind, "filter.keep_ratio": 0.25, "optim.updates_per_rollout": 4}
    page = {"findings": [4], "axes": {"filter.keep_ratio": [1.0, 0.25]}}
    assert texts(sweep_of(**page, arms={"other": other}), "finding_4_updates")
    same = {"filter.keep_ratio": 0.25, "optim.updates_per_rollout": 4}
    assert texts(sweep_of(**page, arms={"other": other, "same": same}), "finding_4_updates") == []
    unlike = {"filter.kind": kind, "filter.keep_ratio": 1.0, "optim.updates_per_rollout": 2}
    half = {"filter.keep_ratio": 0.25, "optim.updates_per_rollout": 2}  # as many as unlike, not as the unfiltered
    assert texts(sweep_of(**page, arms={"unlike": unlike, "half": half}), "finding_4_updates")


def test_the_same_sweep_with_its_confounds_taken_out(write: Write) -> None:
    mended = PAPER.replace(", algo: {clip_high: 0.2, kl: {place: reward}}", "")
    sweep = load_sweep(write(mended), {"optim.updates_per_rollout": 4})
    for rule in ("optimizer_steps", "clip_inert", "differs_in_more"):
        assert texts(sweep, rule) == []
    (noise,) = texts(sweep, "samples_per_update")  # what equal updates cost instead
    assert "(1.0: 32, 0.75: 24, 0.5: 16, 0.25: 8)" in noise


# --- what moves along a line ---


def test_action_and_token_budgets(sweep_of: Make) -> None:
    axes = {"rollout.actions_per_turn": [1, 2, 5]}
    (note,) = texts(sweep_of(axes=axes), "action_budget")
    assert "(1: 5, 2: 10, 5: 10)" in note  # 5 turns, at most 10 actions
    tied = {"rollout.max_turns": "10 // rollout.actions_per_turn"}
    sweep = sweep_of(axes=axes, ties=tied)
    assert texts(sweep, "action_budget") == []
    assert "(1: 240, 2: 120, 5: 48)" in texts(sweep, "token_budget")[0]  # 24 tokens a turn
    tokens = {**tied, "rollout.max_new_tokens": "240 // rollout.max_turns"}
    assert texts(sweep_of(axes=axes, ties=tokens), "token_budget") == []
    assert texts(sweep_of(axes={"rollout.max_actions": [5, 10]}), "action_budget") == []  # the question itself


def test_the_trajectories_of_a_step_count_every_pass_over_them(sweep_of: Make) -> None:
    """8 x 16 and 2 x 16 trajectories twice, in 4 steps; one and two passes over 2 x 16; a kind that may keep all 8."""
    equal = {"optim.updates_per_rollout": 4}
    (note,) = texts(sweep_of(**equal, optim__epochs=2), "samples_per_update")
    assert "(1.0: 64, 0.25: 16)" in note
    (note,) = texts(sweep_of(**equal, axes={"optim.epochs": [1, 2]}), "samples_per_update")
    assert "(1: 8, 2: 16)" in note
    (note,) = texts(sweep_of(**equal, axes={"filter.kind": ["std", "zero_only"]}), "samples_per_update")
    assert "(std: 8, zero_only: 32)" in note


def test_what_a_tie_moves_is_no_difference_of_a_named_arm(sweep_of: Make) -> None:
    """Prompts move with responses by the tie: of two knobs that differ one is left, and of three two."""
    page = {"axes": {}, "ties": {"rollout.prompts": "128 // rollout.responses"}}
    odd = {"rollout.responses": 8}
    assert texts(sweep_of(**page, arms={"plain": {}, "odd": odd}), "differs_in_more") == []
    arms = {"plain": {}, "odd": {**odd, "optim.lr": 0.5}}
    note, _ = texts(sweep_of(**page, arms=arms), "differs_in_more")
    assert note.startswith("arm 'plain' differs from its nearest arm 'odd' in 2 knobs (optim.lr, rollout.responses)")


def test_the_nearest_arm_is_the_one_that_differs_least(sweep_of: Make) -> None:
    arms = {"far": {"optim.lr": 0.5, "eval.prompts": 8, "algo.gamma": 0.5}, "near": {"optim.lr": 0.5}}
    assert texts(sweep_of(axes={}, arms={"plain": {}, **arms}), "differs_in_more") == [
        "arm 'far' differs from its nearest arm 'near' in 2 knobs (algo.gamma, eval.prompts): a difference cannot be "
        "put down to one of them."
    ]


def test_zipped_axes_and_ties_move_together(sweep_of: Make) -> None:
    axes = {"rollout.prompts": [8, 16], "rollout.responses": [16, 8]}
    sweep = sweep_of(axes=axes, zip=[["rollout.prompts", "rollout.responses"]])
    (note,) = texts(sweep, "moves_together")
    assert note.startswith("axes.rollout.prompts and axes.rollout.responses move together (zip)")
    assert texts(sweep, "samples") == []
    assert texts(sweep_of(axes={"optim.lr": [0.1, 0.2]}, ties={"rollout.prompts": "8"}), "moves_together") == []


def test_different_starts(sweep_of: Make) -> None:
    (note,) = texts(sweep_of(axes={"env.slip": [0.0, 0.1]}), "warm_start")
    assert "2 different warm starts" in note
    both = {"env.name": ["frozen_lake", "bandit"]}
    assert texts(sweep_of(axes=both), "warm_start")
    assert texts(sweep_of(axes=both), "differs_in_more") == []  # an environment brings its own knobs along
    assert texts(sweep_of(axes={"env.eval_levels": ["auto", "generated"]}), "warm_start") == []
    assert texts(sweep_of(axes={"policy.warm_start.seed": [0, 1]}), "warm_start") == []  # the question itself
    large = {"policy.model": "some/model", "prompt.style": "full", "axes": {"env.slip": [0.0, 0.1]}}
    assert texts(sweep_of(**large), "warm_start") == []
    named = sweep_of(axes={}, arms={"firm": {}, "slippery": {"env.slip": 0.1}})
    assert texts(named, "warm_start")[0].startswith("env.slip (arms slippery, firm)")


def test_settings_of_a_list_are_compared_where_they_differ_in_one_knob(sweep_of: Make) -> None:
    settings: list[dict[str, Any]] = [{}, {"filter.keep_ratio": 1.0}, {"filter.keep_ratio": 0.5, "optim.lr": 0.5}]
    sweep = sweep_of(axes={}, design="list", settings=settings)
    (note,) = texts(sweep, "optimizer_steps")
    assert note.startswith("axes.filter.keep_ratio also changes the optimizer steps per iteration (0.25: 1, 1.0: 4)")


def test_one_at_a_time_is_compared_with_its_base(sweep_of: Make) -> None:
    axes = {"filter.keep_ratio": [1.0, 0.5], "rollout.responses": [16, 8]}
    sweep = sweep_of(axes=axes, design="one_at_a_time")
    assert "(1.0: 4, 0.5: 2)" in texts(sweep, "optimizer_steps")[0]
    assert "(16: 128, 8: 64)" in texts(sweep, "samples")[0]


def test_a_conditional_axis_has_its_own_line(sweep_of: Make) -> None:
    axes = {"filter.kind": ["std", "top_k"], "filter.keep_ratio": [1.0, 0.5]}
    sweep = sweep_of(axes=axes, when={"filter.keep_ratio": {"filter.kind": "std"}})
    assert any("axes.filter.keep_ratio also changes" in note for note in texts(sweep, "optimizer_steps"))


def test_knobs_of_the_base_that_act_in_some_arms_are_no_mistake(sweep_of: Make) -> None:
    """The critic's learning rate along algo.name; but not one that does nothing anywhere, or that an arm sets."""
    algorithms = {"algo.name": ["ppo", "grpo"]}
    assert texts(sweep_of(axes=algorithms, optim__critic_lr=0.5), "inert") == []
    (everywhere,) = texts(sweep_of(axes={"algo.name": ["dr_grpo", "dr_grpo"][:1]}, optim__critic_lr=0.5), "inert")
    assert everywhere.startswith("optim.critic_lr = 0.5 has no effect")
    arms = {"vain": {"algo.name": "grpo", "optim.critic_lr": 0.5}}
    assert texts(sweep_of(axes=algorithms, arms=arms), "inert") == [
        "optim.critic_lr = 0.5 has no effect: grpo has no critic. (arms: vain)"
    ]
    without = texts(sweep_of(axes={"algo.name": ["grpo", "rloo"]}, optim__critic_lr=0.5), "inert")
    assert [note.split(" (arms")[0] for note in without] == [
        "optim.critic_lr = 0.5 has no effect: grpo has no critic.",
        "optim.critic_lr = 0.5 has no effect: rloo has no critic.",
    ]


def test_evaluations_that_cannot_show_a_collapse(sweep_of: Make) -> None:
    (note,) = texts(sweep_of(train__iterations=8, eval__every=4), "few_evaluations")
    assert "2 evaluations after the start" in note
    assert texts(sweep_of(train__iterations=8, eval__every=2), "few_evaluations") == []
    assert texts(sweep_of(train__iterations=6, eval__every=2), "few_evaluations") == []  # three, and it takes three
    assert texts(sweep_of(findings=[6], train__iterations=8, eval__every=4), "few_evaluations") == []


# --- the controls of each finding ---

VANILLA = {"filter.keep_ratio": 1.0}
FINDINGS: list[tuple[int, dict[str, Any], list[str]]] = [
    # finding, page, rules that must fire and no others of the finding
    (1, {"axes": {"optim.lr": [0.1, 0.2]}}, ["finding_1_unfiltered"]),
    (1, {"axes": {"algo.name": ["ppo", "rloo"]}, **VANILLA}, ["finding_1_algorithms", "finding_1_single_turn"]),
    (1, {"axes": {"algo.name": ["ppo", "grpo"]}, **VANILLA}, ["finding_1_single_turn"]),
    (1, {"axes": {"algo.name": ["ppo", "grpo"], "rollout.max_turns": [5, 1]}, **VANILLA}, []),
    (1, {"axes": {"algo.name": ["ppo", "grpo"]}, "env.name": "bandit", **VANILLA}, ["finding_1_unfiltered"]),
    (2, {"axes": {"prompt.think": [False]}, "policy.warm_start.think_share": 0.5}, ["finding_2_think"]),
    (2, {"track.trajectories": 0}, ["finding_2_think"]),
    (2, {}, []),
    (3, {"axes": {"optim.lr": [0.1]}}, ["finding_3_healthy"]),
    (3, {"axes": {"optim.lr": [0.1, 0.01]}}, []),
    (4, {"axes": {"filter.keep_ratio": [0.5]}}, ["finding_4_levels"]),
    (4, {}, ["finding_4_random", "finding_4_updates", "finding_4_zero_only", "finding_4_smallest"]),
    (4, {"arms": {"other": {"filter.kind": "random", "filter.keep_ratio": 0.5}}},  # at a ratio of no rung
     ["finding_4_random", "finding_4_updates", "finding_4_zero_only", "finding_4_smallest"]),
    (4, {"arms": {"drop": {"filter.kind": "random", "filter.keep_ratio": 0.25}}},
     ["finding_4_updates", "finding_4_zero_only", "finding_4_smallest"]),
    (5, {}, ["finding_5_part"]),
    (5, {"axes": {"rollout.responses": [8, 16, 32]}, "ties": {"rollout.prompts": "128 // rollout.responses"},
         "eval.sets": ["slippery", "large"], "arms": {"unseen": {"eval.sets": ["large"]}}}, ["finding_5a_sets"]),
    (5, {"axes": {"optim.epochs": [1, 2, 4], "optim.updates_per_rollout": [4]}}, ["finding_5c_readings"]),
    (5, {"axes": {"optim.epochs": [1, 2, 4]},  # passes over one rollout are no larger rollout
         "ties": {"optim.updates_per_rollout": "4 * optim.epochs"}}, ["finding_5c_readings"]),
    (5, {"axes": {"rollout.responses": [8, 16]}, "ties": {"rollout.prompts": "128 // rollout.responses"}},
     ["finding_5a_levels", "finding_5a_sets"]),
    (5, {"axes": {"rollout.responses": [8, 16, 32]}, "ties": {"rollout.prompts": "128 // rollout.responses"},
         "eval.sets": ["slippery", "large"]}, []),
    (5, {"axes": {"rollout.actions_per_turn": [1, 2, 5]}}, ["finding_5b_levels"]),
    (5, {"axes": {"rollout.actions_per_turn": [1, 2, 5]}, "rollout.max_actions": 5}, []),
    (5, {"axes": {"optim.epochs": [1, 2, 4]}}, ["finding_5c_readings"]),
    (5, {"axes": {"rollout.prompts": [8, 16, 32]}, "ties": {"optim.updates_per_rollout": "rollout.prompts // 4"}},
     ["finding_5c_readings"]),
    (6, {}, ["finding_6_think", "finding_6_reward", "finding_6_format", "finding_6_probes"]),
    (6, {"axes": {}, "policy.warm_start.think_share": 0.5, "arms": {  # one probe of two
        "think": {"eval.probes": ["empty_think"]}, "no": {"prompt.think": False},
        "grounded": {"reward.reasoning": "grounded"}, "free": {"reward.format_penalty": 0.0}}}, ["finding_6_probes"]),
    (6, {"axes": {}, "policy.warm_start.think_share": 0.5, "arms": {
        "think": {"eval.probes": ["shuffled_think"]}, "no": {"prompt.think": False},
        "grounded": {"reward.reasoning": "grounded"}, "free": {"reward.format_penalty": 0.0}}}, ["finding_6_probes"]),
    (6, {"axes": {}, "policy.warm_start.think_share": 0.5, "arms": {
        "think": {"eval.probes": ["empty_think", "shuffled_think"]}, "no": {"prompt.think": False},
        "grounded": {"reward.reasoning": "grounded"}, "free": {"reward.format_penalty": 0.0}}}, []),
]  # fmt: skip


@pytest.mark.parametrize(("number", "page", "rules"), FINDINGS)
def test_what_a_finding_lacks(sweep_of: Make, number: int, page: dict[str, Any], rules: list[str]) -> None:
    sweep = sweep_of(findings=[number], on_collapse="continue", **page)
    found = [note.rule for note in lint.lint(sweep) if note.rule.startswith("finding_")]
    assert sorted(found) == sorted(rules)
    silent = sweep_of(on_collapse="continue", **{**page, "findings": []})
    assert not [note for note in lint.lint(silent) if note.rule.startswith("finding_")]


def test_stopped_runs_are_told_for_findings_about_collapse(sweep_of: Make) -> None:
    assert texts(sweep_of(findings=[1, 3]), "stopped_runs")[0].startswith("findings 1, 3: on_collapse: stop")
    assert texts(sweep_of(findings=[1], on_collapse="continue"), "stopped_runs") == []
    assert texts(sweep_of(findings=[6]), "stopped_runs") == []


# --- accepting ---


def test_an_accepted_warning_keeps_its_text_and_its_reason(sweep_of: Make, write: Write) -> None:
    page = "base: base.yaml\naxes: {filter.keep_ratio: [1.0, 0.25]}\nseeds: 2\naccept: {seeds: a trial}\n"
    sweep = load_sweep(write(page))
    notes = {note.rule: note for note in plan(sweep).notes}
    assert notes["seeds"].accepted == "a trial"
    assert str(notes["seeds"]).startswith("Accepted (seeds): seeds: with 2 ")
    assert str(notes["seeds"]).endswith(" Why: a trial")
    assert notes["optimizer_steps"].accepted is None
    assert str(notes["seeds"]) in plan(sweep).warnings  # and so in the report
    assert str(notes["seeds"]) in describe(plan(sweep))
    assert "Accepted (seeds): a trial" in describe(plan(sweep), brief=True).splitlines()
    assert "Note (optimizer_steps): axes.filter.keep_ratio also" in describe(plan(sweep), brief=True)


def test_an_accept_that_matches_nothing_is_a_fault(write: Write) -> None:
    page = "base: base.yaml\naxes: {filter.keep_ratio: [1.0, 0.25]}\nseeds: 5\naccept: {seeds: a trial}\n"
    with pytest.raises(ConfigError, match=r"accept\.seeds: this sweep has no warning of that rule; remove the line"):
        plan(load_sweep(write(page)))
    assert plan(load_sweep(write(page), {"seeds": 6})).notes  # --set may have mended it
    assert plan(load_sweep(write(page.replace("seeds: 5", "seeds: 2")))).notes


def test_what_the_page_left_out_is_recorded(write: Write) -> None:
    page = "base: base.yaml\naxes: {optim.lr: [0.1, 0.2]}\nconstraints: [optim.lr < 0.2]\n"
    assert plan(load_sweep(write(page))).warnings[0].startswith("constraints: optim.lr < 0.2 leaves out 1 of 2 arms")


def test_every_rule_is_used_and_documented() -> None:
    source = Path(lint.__file__).read_text() + Path(controls.__file__).read_text()
    used = {name for name in re.findall(r'"([a-z0-9_]+)"', source) if name in RULES}
    assert used == set(RULES)
    handbook = (ROOT / "docs" / "handbook.md").read_text()
    for rule in RULES:
        assert f"`{rule}`" in handbook, rule
