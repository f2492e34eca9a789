"""What is written down: worked numbers of the rollout's, the update's and the evaluation's measures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ragen_lab import evaluate as evaluation
from ragen_lab.algo.totals import Totals
from ragen_lab.env.base import eval_seeds
from ragen_lab.env.reference import ReferenceLines
from ragen_lab.evaluate import action_budget, as_text, success_metrics, text_metrics
from ragen_lab.rollout.collect import Rollout
from ragen_lab.sections import AlgoSection
from ragen_lab.seeds import derive
from ragen_lab.track import MemoryTracker
from ragen_lab.train import rollout_metrics
from ragen_lab.trajectory import StopReason, Trajectory, TrajectoryGroup, Turn
from tests.test_train import config, fresh_learner

LINES = ReferenceLines(0.1, 0.2, 0.9, {}, ())


def turn(reward=0.0, ok=True, think="", actions=("Up",), truncated=False, tokens=4, think_tokens=1):
    return Turn("o", "r", think, actions, ok, truncated, reward, 0.0 if ok else -0.5, tokens, think_tokens)


def episode(*turns, stop=StopReason.TURNS, error=None):
    none = np.zeros(0)
    return Trajectory(
        none.astype(np.int64),
        none.astype(np.int8),
        none.astype(np.int16),
        none.astype(np.float32),
        turns,
        stop,
        0,
        0,
        error,
    )


A = episode(turn(1.0, think="go up now"), stop=StopReason.SUCCESS)
B = episode(turn(0.0, ok=False, actions=(), tokens=8, think_tokens=3, truncated=True, think="go left now"))
C = episode(turn(2.0, think="wait"), turn(0.0, actions=("Up", "Down"), think="go right now", think_tokens=5))
D = episode(turn(2.0, think="so what"), stop=StopReason.ERROR, error="ValueError: x")
GROUPS = [TrajectoryGroup(0, (A, B)), TrajectoryGroup(1, (C, D))]


def test_pitfall_13_rollout_measures_worked_by_hand():
    """Pitfall 13: rewards 1, -0.5 and 2, 2; five turns with tokens 4, 8, 4, 4, 4."""
    found = rollout_metrics(Rollout(GROUPS, entropy=0.7, tokens=24))
    expected = {
        "rollout/reward_mean": 4.5 / 4,  # 1 - 0.5 + 2 + 2
        "rollout/env_return": 5 / 4,  # without the penalty
        "rollout/reward_std_in_group": 0.375,  # std of (1, -0.5) = 0.75, of (2, 2) = 0
        "rollout/zero_std_share": 0.5,
        "rollout/success": 0.25,
        "rollout/entropy": 0.7,
        "rollout/turns": 5 / 4,
        "rollout/actions": 5 / 4,  # 1 + 0 + 3 + 1
        "rollout/truncated_share": 1 / 5,
        "rollout/error_share": 1 / 4,
        "rollout/response_tokens": 24 / 5,
        "rollout/think_tokens": 11 / 5,  # 1 + 3 + 1 + 5 + 1
        "rollout/format_error_rate": 1 / 5,
        "rollout/template_share": 3 / 5,  # 'go * now' of up, left and right
        "rollout/template_share_success": 1.0,  # one turn of the one that succeeded
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    lost = rollout_metrics(Rollout([TrajectoryGroup(1, (C, D))], 0.7, 12))
    assert "rollout/template_share_success" not in lost
    assert lost["rollout/zero_std_share"] == 1.0


def test_pitfall_11_an_error_with_success_elsewhere_and_float_noise_in_a_spread():
    """Pitfall 11: rewards that differ by float noise are equal here as in the filter."""
    noise = episode(turn(2.0 + 1e-9))
    found = rollout_metrics(Rollout([TrajectoryGroup(1, (C, noise))], 0.0, 1))
    assert found["rollout/zero_std_share"] == 1.0
    assert found["rollout/reward_std_in_group"] == 0.0


def test_text_measures_are_means_over_turns():
    said = replace(C.turns[0], true_statements=3, false_statements=1, reasoning=0.5, length_cost=-0.25)
    found = text_metrics("eval", [replace(C, turns=(said, C.turns[1])), B])
    assert found["eval/grounded_share"] == 3 / 4
    assert found["eval/statements"] == pytest.approx(4 / 3)  # three turns
    assert found["eval/shaping"] == 0.25 / 2  # two trajectories
    assert found["eval/format_error_rate"] == pytest.approx(1 / 3)
    silent = text_metrics("eval", [A])
    assert not {"eval/grounded_share", "eval/statements", "eval/shaping"} & set(silent)


def test_success_stands_between_its_interval_beside_its_lines():
    """1 of 4 solved; Wilson's 95 % interval; rewards 1, -0.5, 2, 2; unknown lines are left out."""
    found = success_metrics([A, B, C, D], LINES)
    # centre (p + z^2/2n) / (1 + z^2/n), half width z sqrt(p(1-p)/n + z^2/4n^2) / (1 + z^2/n), z = 1.959964
    z, n, p = 1.959964, 4, 0.25
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    expected = {
        "eval/success": 0.25,
        "eval/success_low": (centre - half) / (1 + z * z / n),
        "eval/success_high": (centre + half) / (1 + z * z / n),
        "eval/reward": 4.5 / 4,
        "eval/random": 0.1,
        "eval/fixed_string": 0.2,
        "eval/optimal": 0.9,
    }
    assert found == pytest.approx(expected, abs=1e-6)
    bare = success_metrics([A], ReferenceLines(0.1, None, None, {}, None))
    assert {name for name in bare if name.split("/")[1] in ("random", "fixed_string", "optimal")} == {"eval/random"}


@pytest.mark.parametrize(
    ("actions", "turns", "per_turn", "budget"),
    [(10, 5, 5, 10), (10, 1, 3, 3), (10, 2, 3, 6), (4, 2, 2, 4), (1, 9, 9, 1)],
)
def test_the_action_budget(actions, turns, per_turn, budget):
    """The smaller of ``max_actions`` and ``max_turns x actions_per_turn``: what the reference lines may use."""
    knobs = {
        "rollout__max_actions": actions,
        "rollout__max_turns": turns,
        "rollout__actions_per_turn": per_turn,
    }
    assert action_budget(config(**knobs)) == budget


def test_the_reference_lines_have_the_budget_and_the_levels_of_the_evaluation(shared_home, monkeypatch):
    asked = []
    monkeypatch.setattr(evaluation, "cached_reference_lines", lambda *a: asked.append(a) or LINES)
    cfg = config(rollout__max_turns=1, rollout__actions_per_turn=3, eval__prompts=12, eval__sets=["slippery"])
    lines = evaluation.reference_of(cfg, shared_home)
    assert set(lines) == {"", "slippery"}
    assert [a[1:3] for a in asked] == [(3, 12), (3, 12)]
    assert (asked[0][0], asked[1][0].slip) == (cfg.env, 1 / 3)
    assert len(asked[0]) == 4, "the evaluation's own levels are the default"
    assert asked[1][4] == 2**41


def test_pitfall_06_19_the_evaluation_samples_at_its_own_temperature_and_seeds(shared_home, monkeypatch):
    """Pitfalls 6, 19: ``eval.temperature``, the fixed levels, chance events that stay, token draws that change."""
    learner = fresh_learner(shared_home, algo__name="grpo", eval__temperature=0.3, seed=2)
    seen = []
    collect = evaluation.collect
    monkeypatch.setattr(evaluation, "collect", lambda *a: seen.append(a[3:]) or collect(*a))
    tracker = MemoryTracker()
    found = [
        evaluation.evaluate(learner.policy, learner.writer, learner.cfg, iteration, {"": LINES}, tracker)
        for iteration in (0, 2)
    ]
    for (levels, dynamics, temperature, seed), iteration in zip(seen, (0, 2), strict=True):
        assert levels == list(eval_seeds(16))
        assert dynamics == [[derive(2, "eval-dynamics", i)] for i in range(16)]
        assert len({row[0] for row in dynamics}) == 16
        assert temperature == 0.3
        assert seed == derive(2, "eval-sample", iteration)
    assert (found[0]["eval/random"], found[0]["eval/fixed_string"], found[0]["eval/optimal"]) == (0.1, 0.2, 0.9)
    assert 0 < found[0]["eval/success_low"] < found[0]["eval/success"] < found[0]["eval/success_high"] < 1


def test_a_stored_trajectory_says_what_was_earned_and_why_it_ended():
    told = as_text(B)
    assert (told["reward"], told["stop"], told["error"]) == (-0.5, "turns", None)
    assert (
        told["turns"][0] | {"observation": "o", "actions": [], "penalty": -0.5, "format_ok": False} == told["turns"][0]
    )
    assert as_text(D)["error"] == "ValueError: x"


# -- the totals of an update ------------------------------------------------------------------------

ALGO = AlgoSection(clip_low=0.2, clip_high=0.28)


def added(totals, ratios, algo=ALGO):
    """Tokens whose probability changed by these ratios since the rollout; losses 1, 2, ...; entropies 0.5, 1.0, ..."""
    ratio = torch.tensor(ratios)
    old = torch.full_like(ratio, -2.0)
    number = torch.arange(1, len(ratios) + 1, dtype=torch.float32)
    totals.add_policy(number, ratio, number / 2, old + ratio.log(), old, algo)


def test_totals_of_one_step_worked_by_hand():
    """Ratios 1/2, 1 and 2: both outside [0.8, 1.28] count as clipped; KL(old || new) by k3 of d = old - new."""
    totals = Totals()
    added(totals, [0.5, 1.0, 2.0])
    totals.norms.append(3.0)
    found = totals.metrics()
    # d = ln 2, 0, -ln 2:  exp(-d) - 1 + d = 1/2 - 1 + ln 2, 0, 2 - 1 - ln 2;  sum 1/2
    expected = {
        "train/updates": 1.0,
        "train/policy_loss": 2.0,  # (1 + 2 + 3) / 3
        "train/entropy": 1.0,
        "train/clip_fraction": 2 / 3,
        "train/kl_old": 0.5 / 3,
        "train/log_ratio_abs": 2 * math.log(2) / 3,
        "train/max_ratio": 2.0,
        "train/grad_norm": 3.0,
        "train/grad_norm_max": 3.0,
        "train/steps_old": 0.0,
    }
    assert found == pytest.approx(expected, abs=1e-6)
    assert totals.entropy_range == (0.5, 1.5)
    assert totals.drift_max == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("ratios", "share"), [([0.79], 1.0), ([0.81], 0.0), ([1.27], 0.0), ([1.29], 1.0), ([1, 0.5], 0.5)]
)
def test_each_side_of_the_clip_range_counts(ratios, share):
    totals = Totals()
    added(totals, ratios)
    totals.norms.append(1.0)
    assert totals.metrics()["train/clip_fraction"] == share


def test_pitfall_16_the_direction_of_the_kl_to_the_old_policy():
    """Pitfall 16: one token whose ratio is 3: d = -ln 3: 3 - 1 - ln 3 = 0.901; the other way round 0.432."""
    totals = Totals()
    added(totals, [3.0])
    totals.norms.append(1.0)
    assert totals.metrics()["train/kl_old"] == pytest.approx(2 - math.log(3))


def test_totals_are_weighted_by_tokens_and_norms_by_steps():
    """Two steps of 1 and 3 tokens: means are over the 4 tokens, gradient norms over the 2 steps."""
    totals = Totals()
    added(totals, [4.0])  # loss 1
    totals.add_value(torch.tensor([0.5]))
    totals.add_weights(torch.tensor([2.0]), 2.0)
    totals.norms.append(1.0)
    totals.critic_norms.append(6.0)
    added(totals, [1.0, 1.0, 1.0])  # losses 1, 2, 3
    totals.add_value(torch.tensor([1.0, 1.5, 2.0]))
    totals.add_weights(torch.tensor([1.0, 0.5, 1.5]), 2.0)
    totals.norms.append(5.0)
    totals.critic_norms.append(2.0)
    found = totals.metrics()
    expected = {
        "train/updates": 2.0,
        "train/policy_loss": 7 / 4,
        "train/entropy": 3.5 / 4,  # 0.5 + (0.5 + 1.0 + 1.5)
        "train/clip_fraction": 1 / 4,
        "train/steps_old": 3 / 4,  # three tokens, one step old
        "train/max_ratio": 4.0,  # of the first step, not the last
        "train/grad_norm": 3.0,
        "train/grad_norm_max": 5.0,
        "train/value_loss": 5 / 4,
        "train/critic_grad_norm": 4.0,
        "train/importance_mean": 5 / 4,
        "train/importance_capped": 1 / 4,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_pitfall_22_a_nan_stays_in_the_totals():
    """Pitfall 22: recorded, never dropped, whichever step it came in."""
    for ratios in ([[math.nan], [1.0]], [[1.0], [math.nan]], [[1.0, math.nan, 2.0]]):
        totals = Totals()
        for step in ratios:
            added(totals, step)
            totals.norms.append(float(np.nan if any(map(math.isnan, step)) else 1.0))
        found = totals.metrics()
        for name in ("train/max_ratio", "train/kl_old", "train/grad_norm", "train/grad_norm_max"):
            assert math.isnan(found[name]), (ratios, name)
        assert math.isnan(totals.drift_max)


def played(*won):
    """A rollout of one response per level, solved or not."""
    return Rollout([TrajectoryGroup(i, (A if solved else B,)) for i, solved in enumerate(won)], 0.0, 1)


def test_probes_and_sets_report_their_own_plays(monkeypatch):
    """Each probe's success is of its own trajectories and each set's of its own environment; thoughts are weighed at
    the temperature they were sampled with."""
    cfg = config(
        eval__prompts=4,
        eval__probes=["no_think", "empty_think"],
        eval__sets=["slippery"],
        eval__temperature=0.25,
        eval__mutual_information_every=2,
    )
    asked = []

    def collect(policy, writer, cfg, levels, *rest):
        asked.append((cfg.env.slip, levels[0]))
        return played(1, 0, 0, 0) if cfg.env.slip else played(1, 1, 1, 0)

    probes = {"no_think": played(0, 0, 0, 0), "empty_think": played(1, 1, 0, 0)}
    weighed = []
    monkeypatch.setattr(evaluation, "collect", collect)
    monkeypatch.setattr(evaluation, "play_probe", lambda kind, *rest: probes[kind])
    monkeypatch.setattr(evaluation, "first_thoughts", lambda *rest: ([[1], [2]], [[3], [4]]))
    monkeypatch.setattr(evaluation, "thought_logprobs", lambda *a: weighed.append(a[3]) or np.log(np.eye(2) + 0.1))
    found = evaluation.evaluate(None, None, cfg, 2, {"": LINES, "slippery": LINES}, MemoryTracker())
    shares = {
        "eval/success": 0.75,
        "eval/success/slippery": 0.25,
        "eval/success_no_think": 0.0,
        "eval/success_empty_think": 0.5,
    }
    assert {name: found[name] for name in shares} == shares
    assert asked == [(0.0, eval_seeds(4)[0]), (1 / 3, 2**41)]
    assert weighed == [0.25]
