"""Every algorithm solves a trivial two-turn problem within seconds; a broken one does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ragen_lab import train as trainer
from ragen_lab.algo.advantages import ALGORITHMS
from tests.algo.tabular import OBSERVATIONS, config, expected_reward, group, learner, sample
from tests.algo.test_oracle import shifted

# 0.2 for the first action 2, and 1 more for answering it with 1: 1.2 at best, 0.18 at random
REWARDS = (lambda a: 0.2 * (a == 2), lambda a, b: float(a == 2 and b == 1))
OBSERVE = OBSERVATIONS["talking"]


def solved(name, **knobs):
    """Expected reward after 40 updates on eight groups of eight, from a uniform policy."""
    cfg = config(
        algo__name=name,
        rollout__responses=8,
        optim__lr=0.2,
        optim__critic_lr=0.2,
        optim__grad_clip=1.0,
        **{"optim__updates_per_rollout": 2, **knobs},
    )
    agent = learner(cfg, OBSERVE, seed=None, optimizer=torch.optim.Adam)
    rng, model = np.random.default_rng(0), agent.policy.model
    for iteration in range(1, 41):
        drawn = sample(model, 64, OBSERVE, rng)
        groups = [group(model, drawn[i : i + 8], OBSERVE, rewards=REWARDS) for i in range(0, 64, 8)]
        agent.update(groups, iteration)
    with torch.no_grad():
        return float(expected_reward(model.table, OBSERVE, REWARDS))


VARIANTS = {
    "sequence ratio": {"algo__ratio": "sequence"},
    "cispo": {"algo__loss": "cispo"},
    "sequence mean": {"algo__aggregation": "sequence_mean"},
    "importance cap": {"algo__importance_cap": 2.0},
    "four passes": {"optim__epochs": 4, "optim__updates_per_rollout": 8},
}


@pytest.mark.parametrize("credit", ["trajectory", "turn"])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_learns(name, credit):
    assert solved(name, algo__credit=credit) > 1.0


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_every_loss_learns(variant):
    assert solved("grpo", **VARIANTS[variant]) > 1.0


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_flipped_sign_does_not_learn(name, monkeypatch):
    loss = trainer.policy_loss
    monkeypatch.setattr(trainer, "policy_loss", lambda new, old, adv, *rest: loss(new, old, -adv, *rest))
    assert solved(name) < 0.15


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_pitfall_07_a_mask_shifted_by_one_does_not_learn(name, monkeypatch):
    """Pitfall 7."""
    monkeypatch.setattr(trainer, "make_batch", shifted)
    assert solved(name) < 0.7
