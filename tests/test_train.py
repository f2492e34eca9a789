"""The training loop: determinism, resume, invariances, and that it learns."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from ragen_lab import evaluate as evaluation
from ragen_lab import train as trainer
from ragen_lab.algo import loss as losses
from ragen_lab.algo.advantages import ALGORITHMS
from ragen_lab.config import RunConfig
from ragen_lab.detect.panel import Panel
from ragen_lab.policy.model import load_policy
from ragen_lab.reward import trajectory_reward
from ragen_lab.track import FolderTracker, MemoryTracker
from ragen_lab.train import Learner, derive, explained_variance, micro_batches, split_rows, train
from ragen_lab.trajectory import MODEL
from ragen_lab.warm_start import prepare
from tests.conftest import SMALL


def config(**changes):
    return RunConfig().with_overrides({**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}})


def numbers(rows):
    """Rows without what a clock decides."""
    return [{k: v for k, v in row.items() if k != "timestamp" and not k.startswith("time/")} for row in rows]


def same(a, b, tolerance=0.0):
    assert [sorted(row) for row in a] == [sorted(row) for row in b]
    for left, right in zip(a, b, strict=True):
        for key in left:
            if math.isnan(left[key]):
                assert math.isnan(right[key]), key
            else:
                assert left[key] == pytest.approx(right[key], abs=tolerance, rel=0), (left["iteration"], key)


def run(cfg, home):
    tracker = MemoryTracker()
    outcome = train(cfg, tracker, home)
    return outcome, numbers(tracker.rows)


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_pitfall_19_equal_configs_give_bit_equal_metrics(algo, shared_home):
    """Pitfall 19: in one process, one after the other, with another run in between."""
    cfg = config(algo__name=algo, train__iterations=2)
    first = run(cfg, shared_home)
    other = run(config(algo__name=algo, train__iterations=1, eval__every=1, seed=9), shared_home)
    torch.manual_seed(5)
    np.random.seed(5)
    torch.rand(3)
    assert run(cfg, shared_home) == first
    assert other[1][1]["train/grad_norm"] != first[1][1]["train/grad_norm"]


@pytest.mark.parametrize(
    "changes",
    [
        {"algo__name": "grpo"},
        {"algo__name": "ppo", "filter__keep_ratio": 0.5, "optim__schedule": "linear"},
        {"algo__name": "grpo", "filter__kind": "random", "filter__keep_ratio": 0.5, "algo__kl__place": "loss"},
        {"algo__name": "bi_level_gae", "filter__kind": "top_p", "algo__entropy_schedule": "linear"},
        {
            "algo__name": "rloo",
            "algo__credit": "turn",
            "algo__importance_cap": 2.0,
            "filter__kind": "zero_only",
            "filter__resample": 2,
        },
        {"algo__name": "dr_grpo", "algo__ratio": "sequence", "optim__epochs": 2, "filter__kind": "min_p"},
        {"algo__name": "reinforce_pp", "algo__loss": "cispo", "filter__kind": "smallest", "filter__keep_ratio": 0.5},
        {"algo__name": "reinforce_pp_baseline", "algo__aggregation": "sequence_mean", "filter__kind": "top_k"},
        # each algorithm and filter a second time, with another companion
        {"algo__name": "ppo", "algo__credit": "turn", "filter__kind": "top_k", "filter__resample": 1},
        {"algo__name": "bi_level_gae", "algo__kl__place": "reward", "filter__kind": "std", "filter__keep_ratio": 0.5},
        {"algo__name": "rloo", "filter__kind": "min_p", "optim__updates_per_rollout": 2},
        {"algo__name": "dr_grpo", "filter__kind": "top_p", "optim__epochs": 2},
        {
            "algo__name": "reinforce_pp",
            "algo__kl__place": "loss",
            "algo__kl__estimator": "k2",
            "filter__kind": "random",
        },
        {"algo__name": "reinforce_pp_baseline", "filter__kind": "zero_only", "reward__reasoning": "grounded"},
        {"algo__name": "grpo", "filter__kind": "smallest", "filter__keep_ratio": 0.5, "filter__score": "env_return"},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
def test_pitfall_20_15_a_resumed_run_equals_the_uninterrupted_one(changes, shared_home, tmp_path, monkeypatch):
    """Pitfall 20: model, optimizers, random draws, level seeds and detectors go on as if nothing had happened.

    Every algorithm and filter is here twice, and each first update passes the strict self-check (pitfall 15).
    """
    cfg = config(**changes, train__check="strict", train__iterations=3, eval__every=3)

    class Copying(FolderTracker):
        def log(self, iteration, metrics):
            super().log(iteration, metrics)
            if iteration == 2:  # as a kill would leave it after the row, before its checkpoint: it is computed again
                shutil.copytree(tmp_path / "whole", tmp_path / "parts")

    train(cfg, Copying(tmp_path / "whole", cfg), shared_home)
    killed = FolderTracker(tmp_path / "parts", cfg)
    assert [row["iteration"] for row in killed.rows] == [0, 1, 2]
    judged = []
    monkeypatch.setattr(trainer, "Panel", lambda *args: judged.append(len(args[2])) or Panel(*args))
    assert train(cfg, killed, shared_home).status == "finished"
    whole, parts = FolderTracker(tmp_path / "whole", cfg), FolderTracker(tmp_path / "parts", cfg)
    assert judged == [2], "the detectors know the rows before"
    assert [row["iteration"] for row in parts.rows] == [0, 1, 2, 3]
    same(numbers(whole.rows), numbers(parts.rows), tolerance=1e-6)


@pytest.mark.parametrize("where", ["after the evaluation's play", "in a probe", "in a generalisation set"])
def test_pitfall_20_a_stop_in_the_middle_of_an_evaluation(where, shared_home, tmp_path, monkeypatch):
    """Pitfall 20: killed at iteration 2 before its evaluation is complete, resumed: every row as if uninterrupted."""
    cfg = config(algo__name="grpo", eval__probes=["empty_think"], eval__sets=["slippery"], eval__prompts=8)
    train(cfg, FolderTracker(tmp_path / "whole", cfg), shared_home)

    class Killed(BaseException):
        pass

    class Dying(FolderTracker):
        def trajectories(self, iteration, texts):
            super().trajectories(iteration, texts)
            if iteration == 2 and where == "after the evaluation's play":
                raise Killed

    calls = []

    def dies_at_the_second(compute):
        def wrapped(*args):
            calls.append(args)
            if len(calls) == 2:  # the first is of iteration 0
                raise Killed
            return compute(*args)

        return wrapped

    with monkeypatch.context() as patch:
        for place, name in (("in a probe", "play_probe"), ("in a generalisation set", "evaluate_sets")):
            if where == place:
                patch.setattr(evaluation, name, dies_at_the_second(getattr(evaluation, name)))
        with pytest.raises(Killed):
            train(cfg, Dying(tmp_path / "parts", cfg), shared_home)
    killed = FolderTracker(tmp_path / "parts", cfg)
    assert [row["iteration"] for row in killed.rows] == [0, 1], "no row of an evaluation that was not finished"
    assert train(cfg, killed, shared_home).status == "finished"
    whole, parts = FolderTracker(tmp_path / "whole", cfg), FolderTracker(tmp_path / "parts", cfg)
    same(numbers(whole.rows), numbers(parts.rows), tolerance=1e-6)
    for file in ("trajectories.jsonl", "groups.jsonl"):
        assert (tmp_path / "parts" / file).read_text() == (tmp_path / "whole" / file).read_text()


def test_a_longer_run_begins_like_the_shorter_one(shared_home):
    """Growth: with a constant rate the number of iterations changes no number before."""
    _, short = run(config(train__iterations=2), shared_home)
    _, long = run(config(train__iterations=4), shared_home)
    assert long[:3] == short


def test_replicate_k_sees_the_same_levels_in_every_arm(shared_home, small_policy):
    """Seeds are paired: the levels do not depend on the arm, and more prompts only add levels."""

    def levels(**changes):
        cfg = config(**changes)
        return [g.level_seed for g in Learner(small_policy, cfg).roll_out(3).groups]

    base = levels()
    assert levels(algo__name="grpo", filter__keep_ratio=0.5, optim__lr=0.1) == base
    assert levels(rollout__prompts=6)[:4] == base
    assert levels(seed=1) != base
    assert len(set(base)) == 4
    assert max(base) < 2**32, "training levels lie below the evaluation seeds"


def fresh_learner(shared_home, **changes):
    cfg = config(**changes)
    return Learner(load_policy(prepare(cfg, shared_home), cfg.policy), cfg)


def parameters(learner):
    parts = [learner.policy.model, *([learner.critic] if learner.critic else [])]
    return torch.cat([p.detach().flatten() for part in parts for p in part.parameters()])


@pytest.mark.parametrize(
    "changes",
    [
        {"algo__name": "grpo"},
        {"algo__name": "ppo"},
        {"algo__name": "dr_grpo", "algo__ratio": "sequence"},
        {"algo__name": "grpo", "algo__aggregation": "sequence_mean", "algo__importance_cap": 1.0},
        {"algo__name": "grpo", "algo__loss": "cispo"},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
def test_pitfall_14_micro_batches_do_not_change_the_update(changes, shared_home):
    """Pitfall 14: aggregated over the whole optimizer step, for any split into forward passes."""
    results = []
    for micro in (1, 3, 16):
        learner = fresh_learner(
            shared_home,
            **changes,
            optim__micro_batch=micro,
            optim__updates_per_rollout=2,
            algo__kl__place="loss",
            algo__kl__estimator="k3",
        )
        groups = learner.roll_out(1).groups
        metrics = learner.update(groups, 1)
        results.append((parameters(learner), metrics))
    for moved, metrics in results[1:]:
        # Adam divides by the gradient's size, so tiny float differences are amplified: compare loosely there
        torch.testing.assert_close(moved, results[0][0], atol=2e-4, rtol=0)
        for key in ("train/policy_loss", "train/grad_norm", "train/entropy", "train/kl_old"):
            assert metrics[key] == pytest.approx(results[0][1][key], rel=1e-3, abs=1e-6), key


def test_pitfall_15_18_an_on_policy_step_has_ratio_one(shared_home):
    """Pitfalls 15, 18: one update per rollout: ratio 1, nothing clipped, no KL; the sampler agrees to 1e-5."""
    learner = fresh_learner(shared_home, algo__name="grpo", optim__updates_per_rollout=1)
    metrics = learner.update(learner.roll_out(1).groups, 1)
    assert metrics["train/updates"] == 1
    assert metrics["train/max_ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["train/clip_fraction"] == 0.0
    assert abs(metrics["train/kl_old"]) < 1e-6
    assert 0 < metrics["train/sampler_gap"] < 1e-5
    assert metrics["train/log_ratio_abs"] < 1e-6
    assert metrics["train/steps_old"] == 0.0
    assert metrics["check/faults"] == 0.0
    several = fresh_learner(shared_home, algo__name="grpo", optim__updates_per_rollout=4)
    stale = several.update(several.roll_out(1).groups, 1)
    assert stale["train/max_ratio"] > 1.001
    assert stale["train/log_ratio_abs"] > 1e-3


def test_both_readings_of_rollout_frequency_are_staler_than_one_update(shared_home):
    """paper.md finding 5c: (i) a k-times batch in k updates, (ii) k passes over one batch; measured staleness."""

    def measured(**changes):
        learner = fresh_learner(shared_home, algo__name="grpo", **changes)
        metrics = learner.update(learner.roll_out(1).groups, 1)
        return metrics["train/updates"], metrics["train/steps_old"], metrics["train/log_ratio_abs"]

    fresh = measured(rollout__prompts=2, optim__updates_per_rollout=1)
    split = measured(rollout__prompts=8, optim__updates_per_rollout=4)
    passes = measured(rollout__prompts=2, optim__updates_per_rollout=4, optim__epochs=4)
    assert fresh[:2] == (1, 0)
    assert split[0] == passes[0] == 4
    assert passes[1] == 1.5  # 0, 1, 2, 3 steps old, the same tokens each time
    assert split[1] == pytest.approx(1.5, abs=0.5)  # the four parts differ in their tokens
    assert fresh[2] < 1e-6 < 1e-3 < min(split[2], passes[2])


def test_the_entropy_bonus_follows_its_schedule(shared_home):
    # iterations 4, coefficient 0.01: 1, 3/4, 2/4, 1/4 of it
    learner = fresh_learner(shared_home, algo__entropy_schedule="linear", algo__entropy_coef=0.01, algo__name="grpo")
    assert [learner.entropy_coef(i) for i in (1, 2, 3, 4)] == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    constant = fresh_learner(shared_home, algo__entropy_coef=0.01, algo__name="grpo")
    assert [constant.entropy_coef(i) for i in (1, 4)] == [0.01, 0.01]
    assert learner.cfg.with_overrides({"train.iterations": 8}).trial_id() != learner.cfg.trial_id()


def test_a_sampler_that_differs_is_corrected(shared_home):
    """Truncated importance sampling: halved sampler probabilities double the loss, up to the cap."""
    found = {}
    for cap in (None, 4.0, 1.5):
        learner = fresh_learner(
            shared_home, algo__name="grpo", algo__importance_cap=cap, optim__updates_per_rollout=1, train__check="off"
        )
        groups = [
            replace(g, trajectories=tuple(replace(t, logprobs_T=t.logprobs_T - math.log(2)) for t in g.trajectories))
            for g in learner.roll_out(1).groups
        ]
        found[cap] = learner.update(groups, 1)
    assert found[4.0]["train/policy_loss"] == pytest.approx(2 * found[None]["train/policy_loss"], rel=1e-4)
    assert found[1.5]["train/policy_loss"] == pytest.approx(1.5 * found[None]["train/policy_loss"], rel=1e-4)
    assert found[4.0]["train/importance_mean"] == pytest.approx(2, rel=1e-4)
    assert (found[4.0]["train/importance_capped"], found[1.5]["train/importance_capped"]) == (0.0, 1.0)
    assert "train/importance_mean" not in found[None]


def test_dynamic_sampling_goes_on_until_enough_groups_have_spread(shared_home):
    """DAPO: further rounds on levels of their own, the same in every run; the update never grows."""
    off = fresh_learner(shared_home, algo__name="grpo", filter__kind="zero_only", train__check="off")
    cfg = {"algo__name": "grpo", "filter__kind": "zero_only", "filter__resample": 3}
    once, again = (fresh_learner(shared_home, **cfg).iterate(1) for _ in range(2))
    plain = off.iterate(1)
    assert {k: v for k, v in once.items() if not k.startswith("time/")} == {
        k: v for k, v in again.items() if not k.startswith("time/")
    }
    assert plain["filter/kept_groups"] < 4, "the seed should leave groups without spread"
    assert once["filter/kept_groups"] > plain["filter/kept_groups"]
    assert once["filter/kept_groups"] <= 4
    assert once["filter/sampled_groups"] == 4 * (1 + once["filter/extra_rollouts"])
    for name in ("rollout/reward_mean", "rollout/reward_std_in_group", "rollout/success"):
        assert once[name] == plain[name], "measured on the first rollout, so that arms can be compared"
    learner = fresh_learner(shared_home, **cfg)
    levels = [[g.level_seed for g in learner.roll_out(1, extra).groups] for extra in range(3)]
    assert len(set(levels[0] + levels[1] + levels[2])) == 12
    assert levels[0] == [g.level_seed for g in off.roll_out(1).groups]


def test_pitfall_01_09_training_covers_exactly_the_sampled_tokens(shared_home, small_policy):
    """Pitfalls 1, 9: signals have one entry per model token, and observation tokens none."""
    learner = fresh_learner(shared_home, algo__name="ppo", algo__whiten=False)
    groups = learner.roll_out(1).groups
    trajectories = [t for g in groups for t in g.trajectories]
    counts = [int((t.roles_T == MODEL).sum()) for t in trajectories]
    old = [np.zeros(n, dtype=np.float32) for n in counts]
    values = [np.full(n, 0.25, dtype=np.float32) for n in counts]
    signals = learner.signals(groups, old, None, values)
    assert [len(a) for a in signals.advantages] == counts
    for trajectory, advantages, returns in zip(trajectories, signals.advantages, signals.returns, strict=True):
        reward = trajectory.env_return + trajectory.penalty
        # gamma = lambda = 1: every return is the trajectory's reward, every advantage reward - value
        np.testing.assert_allclose(returns, reward, atol=1e-6)
        np.testing.assert_allclose(advantages, reward - 0.25, atol=1e-6)


def test_kl_in_the_reward_lowers_it_by_the_estimate(shared_home):
    """k1 in the reward: coefficient x (log pi - log ref) comes off, at its own token."""
    learner = fresh_learner(
        shared_home, algo__name="grpo", algo__kl__place="reward", algo__kl__coef=0.5, algo__std_normalize=False
    )
    groups = learner.roll_out(1).groups
    counts = [t.model_tokens for g in groups for t in g.trajectories]
    old = [np.full(n, -1.0, dtype=np.float32) for n in counts]
    reference = [np.full(n, -1.0 - (i == 0), dtype=np.float32) for i, n in enumerate(counts)]  # only row 0 moved
    with_kl = learner.signals(groups, old, reference, None).advantages
    without = learner.signals(groups, old, old, None).advantages
    # Row 0's reward falls by 0.5 x count_0; its group of four has mean lower by a quarter of that
    drop = 0.5 * counts[0]
    assert with_kl[0][0] - without[0][0] == pytest.approx(-drop * 3 / 4)
    assert with_kl[1][0] - without[1][0] == pytest.approx(drop / 4)
    assert with_kl[4][0] == pytest.approx(without[4][0])


def test_pitfall_22_a_step_with_a_non_finite_gradient_is_recorded_and_not_taken(shared_home, monkeypatch):
    """Pitfall 22: the NaN reaches the metrics; the weights stay usable."""
    learner = fresh_learner(shared_home, algo__name="grpo")
    groups = learner.roll_out(1).groups
    before = parameters(learner).clone()
    monkeypatch.setattr(trainer, "policy_loss", lambda new, *rest: (new * float("nan"), new.exp() * float("nan")))
    metrics = learner.update(groups, 1)
    for key in ("train/policy_loss", "train/grad_norm", "train/max_ratio"):
        assert math.isnan(metrics[key]), key
    assert torch.equal(parameters(learner), before)


def test_rows_are_split_as_asked():
    rng = np.random.default_rng(0)
    by_minibatch = split_rows(20, config(optim__minibatch=8, optim__epochs=2), rng)
    assert len(by_minibatch) == 6
    assert max(map(len, by_minibatch)) <= 8
    assert sorted(np.concatenate(by_minibatch[:3]).tolist()) == list(range(20))
    fixed = split_rows(16, config(optim__updates_per_rollout=4), rng)
    assert [len(part) for part in fixed] == [4, 4, 4, 4]
    assert sorted(np.concatenate(fixed).tolist()) == list(range(16))


def test_micro_batches_hold_every_row_once_and_sort_by_length(shared_home):
    learner = fresh_learner(shared_home)
    trajectories = [t for g in learner.roll_out(1).groups for t in g.trajectories]
    parts = micro_batches(trajectories, np.arange(16), 5)
    assert sorted(i for part in parts for i in part) == list(range(16))
    lengths = [len(trajectories[i].ids_T) for part in parts for i in part]
    assert lengths == sorted(lengths)


def test_explained_variance():
    returns = np.array([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(returns, np.zeros(4)) == 0.0
    assert explained_variance(np.ones(4), np.zeros(4)) == 0.0
    assert explained_variance(returns, -returns) == pytest.approx(-3.0)


def test_cpu_seconds_are_those_of_the_process(shared_home):
    """Each row holds its own iteration's share: the sum lies just below what the process spent on all of it."""
    tracker, before = MemoryTracker(), time.process_time()
    train(config(algo__name="grpo", train__iterations=2), tracker, shared_home)
    spent = time.process_time() - before
    rows = [row["time/cpu_seconds"] for row in tracker.rows]
    assert min(rows) > 0
    assert 0.5 * spent < sum(rows) <= spent


def test_derived_seeds_differ_by_purpose_and_index():
    seeds = {derive(s, p, i) for s in range(5) for p in ("level", "sample") for i in range(100)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_every_logged_metric_is_in_the_catalogue_and_the_other_way_round(shared_home):
    """A metric without its sentence, or a sentence without its metric, is a fault."""
    from ragen_lab.metrics import METRICS, ON_SETS, describe

    cfg = config(
        algo__name="ppo",
        algo__kl__place="loss",
        algo__importance_cap=2.0,
        filter__keep_ratio=0.5,
        train__iterations=4,
        reward__reasoning="grounded",
        reward__length_penalty=0.001,
        eval__probes=["no_think", "empty_think", "shuffled_think"],
        eval__mutual_information_every=2,
        eval__mutual_information_prompts=4,
        eval__sets=["slippery", {"big": {"env.size": 5}}],
    )
    tracker = MemoryTracker()
    train(cfg, tracker, shared_home)
    logged = {key for row in tracker.rows for key in row} - {"iteration", "timestamp"}
    on_sets = {f"{name}/{which}" for name in ON_SETS for which in ("slippery", "big")}
    assert logged - set(METRICS) == on_sets
    assert all(describe(name).sentence.endswith("'.") for name in on_sets)
    missing = set(METRICS) - logged
    assert missing <= {"detect/reward_std", "detect/grad_norm", "detect/entropy", "rollout/template_share_success"}, (
        missing
    )


def test_learning_and_that_a_broken_loss_does_not_learn(shared_home, monkeypatch):
    """GRPO raises the success of the shipped model within six iterations; with the sign flipped it falls in three."""
    cfg = config(
        algo__name="grpo",
        rollout__prompts=8,
        rollout__responses=16,
        optim__lr=1e-3,
        optim__minibatch=32,
        train__iterations=6,
        eval__every=6,
        eval__prompts=256,
        detect__on_collapse="continue",
    )
    start, *_, end = [row for row in run(cfg, shared_home)[1] if "eval/success" in row]
    assert end["eval/success_low"] > start["eval/success_high"]

    monkeypatch.setattr(trainer, "policy_loss", lambda new, old, adv, *rest: losses.policy_loss(new, old, -adv, *rest))
    half = cfg.with_overrides({"train.iterations": 3, "eval.every": 3})
    flipped = [row for row in run(half, shared_home)[1] if "eval/success" in row][-1]
    assert flipped["eval/success_high"] < end["eval/success_low"]
    assert flipped["eval/success"] < start["eval/success"]


def test_extras_of_the_evaluation_change_no_other_number(shared_home):
    """Probes, sets and the estimate draw from seeds of their own; the evaluation keeps its lines beside it."""
    plain = config(algo__name="grpo", train__iterations=2)
    _, bare = run(plain, shared_home)
    extras = {
        "eval.probes": ["empty_think", "shuffled_think"],
        "eval.sets": ["slippery"],
        "eval.mutual_information_every": 2,
        "eval.mutual_information_prompts": 8,
    }
    _, rows = run(plain.with_overrides(extras), shared_home)
    for row, alone in zip(rows, bare, strict=True):
        assert {name: row[name] for name in alone} == alone
    last = rows[-1]
    for name in ("eval/success_empty_think", "eval/success/slippery"):
        low, high = (
            name.replace("success", f"success{end}") if "/slip" in name else f"{name}{end}" for end in ("_low", "_high")
        )
        assert 0 <= last[low] <= last[name] <= last[high] <= 1
    assert last["eval/optimal/slippery"] < last["eval/optimal"]
    assert 0 <= last["eval/retrieval_accuracy"] <= 1
    assert last["eval/mutual_information"] <= math.log(8) + 1e-9


def test_the_reasoning_reward_and_the_length_reach_the_reward(shared_home):
    """Per trajectory: environment + format penalty + reasoning + length, each a sum over turns; nothing else moves."""
    many = {"rollout__prompts": 16, "rollout__responses": 8}  # some think text among them is wrong
    plain = fresh_learner(shared_home, **many).roll_out(1)
    paid = fresh_learner(
        shared_home,
        **many,
        reward__reasoning="grounded",
        reward__reasoning_weight=0.5,
        reward__length_penalty=0.01,
        reward__length_free=10,
    ).roll_out(1)
    pairs = [
        (a, b)
        for g, h in zip(plain.groups, paid.groups, strict=True)
        for a, b in zip(g.trajectories, h.trajectories, strict=True)
    ]
    assert all(a.ids_T.tolist() == b.ids_T.tolist() for a, b in pairs)
    assert all(a.shaping == 0 for a, _ in pairs)
    for a, b in pairs:
        turns = b.turns
        assert [t.true_statements for t in a.turns] == [t.true_statements for t in turns], "measured either way"
        assert all(-0.5 <= t.reasoning <= 0.5 for t in turns)
        assert all(t.length_cost == pytest.approx(-0.01 * max(0, t.reply_tokens - 10)) for t in turns)
        expected = a.env_return + a.penalty + sum(t.reasoning + t.length_cost for t in turns)
        assert trajectory_reward(b) == pytest.approx(expected)
    assert any(t.reasoning > 0.1 for _, b in pairs for t in b.turns)
    assert any(t.reasoning < 0 for _, b in pairs for t in b.turns)
    assert all(t.reasoning == 0 for _, b in pairs for t in b.turns if not t.format_ok), "no format, no credit"
