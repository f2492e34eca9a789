"""The optimizer step on the tabular problem: what is weighted, what is not, and what any split of a step sums to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ragen_lab import train as trainer
from ragen_lab.algo.loss import kl_estimate
from ragen_lab.policy.model import make_batch
from ragen_lab.trajectory import TrajectoryGroup
from tests.algo.tabular import OBSERVATIONS, TabularCritic, TabularLM, config, group, learner, sample

OBSERVE = OBSERVATIONS["talking"]


def prepared(count=16, talk=("talking",), groups=2, **knobs):
    """(learner, groups): episodes drawn from its policy, of one or both lengths."""
    agent = learner(config(rollout__responses=count // groups, **knobs), OBSERVE)
    rng, model, found = np.random.default_rng(4), agent.policy.model, []
    for number in range(groups):
        observe = OBSERVATIONS[talk[number % len(talk)]]
        found.append(group(model, sample(model, count // groups, observe, rng), observe))
    return agent, found


def all_of(groups):
    return [t for g in groups for t in g.trajectories]


def test_the_critic_s_step_is_on_the_token_mean_of_its_loss():
    """0.5 (V - R)^2 at the first step, where V = V_old and no clip reaches; R = the reward (gamma = lambda = 1)."""
    agent, groups = prepared(algo__name="ppo")
    twin = TabularCritic(5, 1)
    twin.load_state_dict(agent.critic.state_dict())
    trajectories = all_of(groups)
    returns_N = torch.tensor([t.env_return for t in trajectories for _ in range(2)], dtype=torch.float32)
    (0.5 * (twin(make_batch(trajectories, torch.device("cpu"))) - returns_N) ** 2).mean().backward()
    agent.update(groups, 1)
    assert float(twin.table.grad.abs().max()) > 0.01
    torch.testing.assert_close(agent.critic.table.grad, twin.table.grad)


def test_pitfall_18_the_value_clip_has_no_effect_on_one_update_and_one_on_two():
    """Pitfall 18: what ``check`` says of it, bit by bit."""

    def critics(updates):
        found = []
        for clip in (0.5, 1e-4):
            knobs = {"optim__critic_lr": 1.0, "optim__updates_per_rollout": updates}
            agent, groups = prepared(algo__name="ppo", algo__value_clip=clip, **knobs)
            agent.update(groups, 1)
            found.append(agent.critic.table.detach())
        return torch.equal(*found)

    assert critics(1)
    assert not critics(4)


def test_the_importance_weight_is_of_the_policy_before_the_first_step(monkeypatch):
    """Two passes over the same tokens: the second weighs by the same log-probs, although the policy has moved."""
    agent, groups = prepared(
        algo__name="grpo", algo__importance_cap=2.0, optim__epochs=2, optim__updates_per_rollout=2, optim__lr=1.0
    )
    seen = []
    weight = trainer.importance_weight
    monkeypatch.setattr(trainer, "importance_weight", lambda *a: seen.append(a[0].detach()) or weight(*a))
    agent.update(groups, 1)
    first, second = seen
    torch.testing.assert_close(first, second, atol=0, rtol=0)


def test_the_importance_weight_is_on_the_policy_loss_alone():
    """With equal rewards the entropy bonus is all there is, and a sampler that differs does not scale it."""
    found = []
    for cap in (None, 4.0):
        agent, _ = prepared(algo__name="grpo", algo__importance_cap=cap, algo__entropy_coef=1.0)
        members = sample(agent.policy.model, 8, OBSERVE, np.random.default_rng(4))
        flat = group(agent.policy.model, members, OBSERVE, rewards=(lambda a: 0.0, lambda a, b: 0.0))
        halved = tuple(replace(t, logprobs_T=t.logprobs_T - math.log(2)) for t in flat.trajectories)
        agent.update([TrajectoryGroup(0, halved)], 1)
        found.append(agent.policy.model.table.grad)
    assert float(found[0].abs().max()) > 0.01
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize(("kind", "value"), [("k1", 1.0), ("k2", 0.5), ("k3", math.exp(-1))])
def test_pitfall_16_the_estimator_of_the_kl_in_the_reward_is_the_knob_s(kind, value):
    """Pitfall 16: log pi - log ref = 1 at both tokens: k1 1, k2 1/2, k3 e^-1 - 1 + 1; times coef 1/2 it comes off."""
    agent, groups = prepared(
        algo__name="reinforce_pp",
        algo__whiten=False,
        algo__kl__place="reward",
        algo__kl__coef=0.5,
        algo__kl__estimator=kind,
    )
    trajectories = all_of(groups)
    old = [np.full(2, -1.0, dtype=np.float32) for _ in trajectories]
    reference = [np.full(2, -2.0, dtype=np.float32) for _ in trajectories]
    assert float(kl_estimate(torch.tensor(-1.0), torch.tensor(-2.0), kind)) == pytest.approx(value)
    for t, advantage in zip(trajectories, agent.signals(groups, old, reference, None).advantages, strict=True):
        np.testing.assert_allclose(advantage, [t.env_return - value, t.env_return - value / 2], atol=1e-6)


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("name", ["ppo", "rloo"])
def test_pitfall_14_the_gradients_of_data_parallel_workers_sum_to_the_step_s(name, how, monkeypatch):
    """Pitfall 14: three workers take a third of the rows each and know the totals of the step: their gradients sum to
    that of one that takes all, for policy and critic."""
    whole, groups = prepared(18, ("talking", "silent"), algo__name=name, algo__aggregation=how, algo__entropy_coef=0.1)
    whole.update(groups, 1)
    parts = trainer.micro_batches
    grads, critic_grads = [], []
    for worker in range(3):
        agent, _ = prepared(18, ("talking", "silent"), algo__name=name, algo__aggregation=how, algo__entropy_coef=0.1)

        def share(trajectories, rows, size, worker=worker):
            return parts(trajectories, rows[worker::3] if torch.is_grad_enabled() else rows, size)

        monkeypatch.setattr(trainer, "micro_batches", share)
        agent.update(groups, 1)
        grads.append(agent.policy.model.table.grad)
        critic_grads.append(agent.critic.table.grad if agent.critic is not None else None)
    assert float(whole.policy.model.table.grad.abs().max()) > 1e-3
    torch.testing.assert_close(sum(grads), whole.policy.model.table.grad, atol=1e-6, rtol=1e-4)
    if whole.critic is not None:
        torch.testing.assert_close(sum(critic_grads), whole.critic.table.grad, atol=1e-6, rtol=1e-4)


class PoisonedLM(TabularLM):
    """What it says behind the end of a row is not a number."""

    ends: list[int]
    poison: float

    def forward(self, input_ids, position_ids=None, use_cache=False):
        found = super().forward(input_ids)
        behind_BT = torch.arange(input_ids.shape[1])[None] >= torch.tensor(self.ends)[:, None]
        found.logits = found.logits.masked_fill(behind_BT[..., None], self.poison)
        return found


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("name", ["ppo", "dr_grpo"])
def test_pitfall_05_what_a_model_says_in_the_padding_reaches_no_weight(name, poison, monkeypatch):
    """Pitfall 5: NaN, inf and a huge number at every padded position leave metrics and weights bit-equal."""
    clean, groups = prepared(16, ("talking", "silent"), algo__name=name, optim__updates_per_rollout=2)
    dirty, _ = prepared(16, ("talking", "silent"), algo__name=name, optim__updates_per_rollout=2)
    dirty.policy.model.__class__ = PoisonedLM
    dirty.policy.model.poison = poison
    padded = []

    def poisoned(rows, device):
        dirty.policy.model.ends = [len(t.ids_T) for t in rows]
        padded.append(len(set(dirty.policy.model.ends)) > 1)
        return make_batch(rows, device)

    expected = clean.update(groups, 1)
    monkeypatch.setattr(trainer, "make_batch", poisoned)
    assert dirty.update(groups, 1) == expected
    assert any(padded), "there should be padding"
    assert torch.equal(dirty.policy.model.table, clean.policy.model.table)
