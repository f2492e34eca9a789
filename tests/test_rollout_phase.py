"""An iteration around its update: what the filter lets through, what is measured before it, what draws from what."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ragen_lab import train as trainer
from ragen_lab.filter import fill_up, keep_groups
from ragen_lab.policy.model import load_policy
from ragen_lab.reward import reward_matrix, spread
from ragen_lab.seeds import derive
from ragen_lab.track import MemoryTracker
from ragen_lab.train import Learner
from ragen_lab.warm_start import prepare
from tests.test_train import config, fresh_learner


@pytest.mark.parametrize("kind", ["std", "random", "smallest"])
def test_pitfall_12_13_an_update_learns_from_the_kept_groups_only(shared_home, monkeypatch, kind):
    """Pitfalls 12, 13: the filter decides what ``update`` sees, with this iteration's own draw; the log says which."""
    learner = fresh_learner(shared_home, algo__name="grpo", filter__kind=kind, filter__keep_ratio=0.5, seed=3)
    seen = []
    monkeypatch.setattr(learner, "update", lambda groups, i: seen.append((i, groups)) or {})
    chosen = []
    for iteration in (1, 2, 3):
        groups = learner.roll_out(iteration).groups
        rng = np.random.default_rng(derive(3, "filter", iteration))
        expected = keep_groups(groups, learner.cfg.filter, rng)
        assert len(expected.indices) == 2
        metrics = learner.iterate(iteration)
        number, kept = seen[-1]
        assert number == iteration
        assert [g.level_seed for g in kept] == [groups[i].level_seed for i in expected.indices]
        assert {name: metrics[name] for name in expected.metrics} == expected.metrics
        chosen.append(expected.indices)
    assert len(set(chosen)) > 1, "the choice should differ between iterations, or this test sees nothing"


def test_pitfall_13_rollout_metrics_are_of_all_groups(shared_home, monkeypatch):
    """Pitfall 13: measured before filtering, so that arms can be compared."""
    learner = fresh_learner(shared_home, algo__name="grpo", filter__keep_ratio=0.25)
    kept = []
    monkeypatch.setattr(learner, "update", lambda groups, i: kept.extend(groups) or {})
    rewards_GR = reward_matrix(learner.roll_out(1).groups)
    metrics = learner.iterate(1)
    assert metrics["rollout/reward_mean"] == pytest.approx(rewards_GR.mean())
    assert metrics["rollout/reward_std_in_group"] == pytest.approx(spread(rewards_GR).mean())
    assert metrics["rollout/zero_std_share"] == (spread(rewards_GR) == 0).mean()
    assert abs(reward_matrix(kept).mean() - rewards_GR.mean()) > 0.01, "the kept group should differ from the rest"


def calls_of_collect(learner, monkeypatch, *rounds):
    """(levels, dynamics, temperature, seed) of each call."""
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "collect", lambda *a: calls.append(a[3:]))
        for numbers in rounds:
            learner.roll_out(*numbers)
    return calls


def test_pitfall_19_every_iteration_and_round_draws_afresh(shared_home, monkeypatch):
    """Pitfall 19: levels, chance events and token draws are new in every iteration and extra round, chance events
    for every member; all at the temperature of the rollout."""
    learner = fresh_learner(shared_home, algo__name="grpo", rollout__temperature=0.75)
    calls = calls_of_collect(learner, monkeypatch, (1,), (2,), (1, 1), (1, 2), (2, 1))
    levels = [level for call in calls for level in call[0]]
    chance = [seed for call in calls for group in call[1] for seed in group]
    assert len(set(levels)) == len(levels) == 5 * 4
    assert len(set(chance)) == len(chance) == 5 * 4 * 4
    assert len({call[3] for call in calls}) == 5
    assert {call[2] for call in calls} == {0.75}
    other = fresh_learner(shared_home, algo__name="grpo", seed=1)
    ((levels_1, chance_1, _, seed_1),) = calls_of_collect(other, monkeypatch, (1,))
    assert not set(levels_1) & set(levels)
    assert not {seed for group in chance_1 for seed in group} & set(chance)
    assert seed_1 not in {call[3] for call in calls}


def test_shared_dynamics_gives_a_group_one_chance(shared_home, monkeypatch):
    """``rollout.shared_dynamics``: members share their chance events, groups and iterations do not."""
    learner = fresh_learner(shared_home, algo__name="grpo", rollout__shared_dynamics=True)
    one, two = (call[1] for call in calls_of_collect(learner, monkeypatch, (1,), (2,)))
    assert [len(set(group)) for group in (*one, *two)] == [1] * 8
    assert [len(group) for group in one] == [4] * 4
    assert len({group[0] for group in (*one, *two)}) == 8


def test_pitfall_19_20_every_draw_has_its_purpose_and_index(shared_home, monkeypatch):
    """Pitfalls 19, 20: all randomness of an iteration is a function of (seed, purpose, iteration, ...)."""
    learner = fresh_learner(shared_home, algo__name="grpo", seed=7, rollout__prompts=2, rollout__responses=2)
    asked = set()
    monkeypatch.setattr(trainer, "derive", lambda *a: asked.add(a) or derive(*a))
    learner.iterate(3)
    levels = {(7, "level", 3, g) for g in range(2)}
    chance = {(7, "dynamics", 3, g, m) for g in range(2) for m in range(2)}
    assert asked == levels | chance | {(7, purpose, 3) for purpose in ("sample", "filter", "split")}


def test_pitfall_19_the_split_into_steps_is_this_iteration_s_own(shared_home, monkeypatch):
    """Pitfall 19: rows are shuffled by (seed, 'split', iteration)."""
    learner = fresh_learner(shared_home, algo__name="grpo", seed=5)
    groups = learner.roll_out(1).groups
    states = []
    split_rows = trainer.split_rows
    monkeypatch.setattr(
        trainer, "split_rows", lambda n, cfg, rng: states.append(rng.bit_generator.state) or split_rows(n, cfg, rng)
    )
    for iteration in (1, 2):
        learner.update(groups, iteration)
        assert states[-1] == np.random.default_rng(derive(5, "split", iteration)).bit_generator.state


def test_pitfall_19_global_random_states_reach_no_number(shared_home):
    """Pitfall 19: ``random``, numpy's and torch's global generators may stand anywhere, and may be used in between."""
    found = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        cfg = config(algo__name="ppo", env__slip=0.3, filter__kind="random", filter__keep_ratio=0.5)
        learner = Learner(load_policy(prepare(config(), shared_home), cfg.policy), cfg)  # the shipped start on ice
        rows = []
        for iteration in (1, 2):
            rows.append({k: v for k, v in learner.iterate(iteration).items() if not k.startswith("time/")})
            random.random(), np.random.rand(seed), torch.rand(seed)
        found.append(rows)
    assert found[0] == found[1]


def test_filtered_groups_are_not_paid_for(shared_home):
    """The update's tokens per second count what it was given: with half of the groups, about half of the tokens."""
    learner = fresh_learner(shared_home, algo__name="grpo", filter__keep_ratio=0.5, optim__epochs=2)
    groups = learner.roll_out(1).groups
    rng = np.random.default_rng(derive(0, "filter", 1))
    kept = [groups[i] for i in keep_groups(groups, learner.cfg.filter, rng).indices]
    tokens = 2 * sum(len(t.ids_T) for g in kept for t in g.trajectories)
    metrics = learner.iterate(1)
    found = metrics["time/update_tokens_per_second"] * metrics["time/update_seconds"]
    assert found == pytest.approx(tokens)
    assert metrics["train/updates"] == 2  # 8 rows in minibatches of 8, twice


def test_an_update_learns_from_the_groups_that_dynamic_sampling_found(shared_home, monkeypatch):
    """DAPO: what further rounds brought reaches the update and the record of what was kept."""
    learner = fresh_learner(shared_home, algo__name="grpo", filter__kind="zero_only", filter__resample=3)
    first = learner.roll_out(1).groups
    candidates, _ = fill_up(first, learner.cfg.filter, lambda extra: learner.roll_out(1, extra).groups)
    expected = keep_groups(candidates, learner.cfg.filter, np.random.default_rng(0)).indices
    wanted = [candidates[i].level_seed for i in expected]
    assert set(wanted) - {g.level_seed for g in first}, "the seed should leave groups without spread in the first round"
    seen, tracker = [], MemoryTracker()
    monkeypatch.setattr(learner, "update", lambda groups, i: seen.extend(g.level_seed for g in groups) or {})
    learner.iterate(1, tracker)
    assert seen == wanted
    ((record),) = tracker.kept
    assert [record["levels"][i] for i in record["kept"]] == wanted
    assert record["iteration"] == 1
    assert record["spread"] == spread(reward_matrix(candidates)).tolist()
