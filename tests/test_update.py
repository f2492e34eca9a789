"""The update: every knob of the loss and of the optimizers reaches the weights, in the right direction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ragen_lab import train as trainer
from ragen_lab.algo import grpo
from ragen_lab.policy.model import make_batch, token_logprobs
from ragen_lab.reward import reward_matrix
from ragen_lab.trajectory import CONTEXT, MODEL
from tests.test_train import fresh_learner


def sampled(learner):
    groups = learner.roll_out(1).groups
    return groups, [t for g in groups for t in g.trajectories]


def without_advantages(monkeypatch):
    """Only what the loss adds to the advantages is left."""
    monkeypatch.setattr(grpo, "group_advantages", lambda rewards_GR, std: np.zeros_like(rewards_GR))


def shaken(learner, size=0.02):
    """The policy moved away from its start, so that it differs from the reference."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in learner.policy.model.parameters():
            p += size * torch.randn(p.shape, generator=generator)


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def mean_entropy(learner, trajectories):
    with torch.no_grad():
        batch = make_batch(trajectories, learner.policy.device)
        return float(token_logprobs(learner.policy.model, batch, learner.cfg.rollout.temperature)[1].mean())


def test_pitfall_06_15_training_uses_the_sampling_temperature(shared_home):
    """Pitfalls 6, 15 away from T = 1: the trainer's log-probs, old, new and of the reference, are the sampler's."""
    learner = fresh_learner(
        shared_home,
        algo__name="grpo",
        algo__kl__place="loss",
        rollout__temperature=0.6,
        optim__updates_per_rollout=1,
    )
    groups, _ = sampled(learner)
    metrics = learner.update(groups, 1)
    assert metrics["train/sampler_gap"] < 1e-5
    assert metrics["train/max_ratio"] == pytest.approx(1.0, abs=1e-5)
    assert abs(metrics["train/kl_ref"]) < 1e-6


def test_pitfall_15_the_self_check_is_of_the_first_iteration_only(shared_home):
    """Pitfall 15: what holds before the first step of a run, and nothing that is told again later."""
    learner = fresh_learner(shared_home, algo__name="grpo")
    groups, _ = sampled(learner)
    assert learner.update(groups, 1)["check/faults"] == 0.0
    assert "check/faults" not in learner.update(groups, 2)
    off = fresh_learner(shared_home, algo__name="grpo", train__check="off")
    assert "check/faults" not in off.update(groups, 1)


def test_pitfall_17_the_entropy_bonus_raises_the_entropy(shared_home, monkeypatch):
    """Pitfall 17: the bonus is taken off the loss: with nothing else in it the entropy grows."""
    learner = fresh_learner(shared_home, algo__name="grpo", algo__entropy_coef=0.5, optim__updates_per_rollout=1)
    without_advantages(monkeypatch)
    groups, trajectories = sampled(learner)
    before = mean_entropy(learner, trajectories)
    metrics = [learner.update(groups, i) for i in (1, 2, 3)]
    assert metrics[0]["train/entropy"] == pytest.approx(before, abs=1e-5)
    assert metrics[0]["train/policy_loss"] == 0.0, "the logged policy loss is without the bonus"
    assert mean_entropy(learner, trajectories) > before + 0.01


def test_pitfall_16_the_kl_loss_pulls_back_to_the_start(shared_home, monkeypatch):
    """Pitfall 16: with the KL alone in the loss a policy that has moved away comes back."""
    learner = fresh_learner(
        shared_home,
        algo__name="grpo",
        algo__entropy_coef=0.0,
        algo__kl__place="loss",
        algo__kl__estimator="k2",
        algo__kl__coef=1.0,
        optim__updates_per_rollout=1,
    )
    without_advantages(monkeypatch)
    shaken(learner)
    groups, _ = sampled(learner)
    found = [learner.update(groups, i)["train/kl_ref"] for i in range(1, 6)]
    assert found[0] > 1e-3
    assert found[-1] < 0.8 * found[0]


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_pitfall_16_the_kl_term_of_the_loss_is_of_the_policy_to_the_reference(shared_home, monkeypatch, estimator):
    """Pitfall 16: its gradient is that of coef x mean kl(new, reference), its log the k3 of the policy before."""
    learner = fresh_learner(
        shared_home,
        algo__name="grpo",
        algo__entropy_coef=0.0,
        algo__kl__place="loss",
        algo__kl__estimator=estimator,
        algo__kl__coef=0.5,
        optim__updates_per_rollout=1,
        optim__grad_clip=1e9,
    )
    without_advantages(monkeypatch)
    shaken(learner)
    groups, trajectories = sampled(learner)
    batch = make_batch(trajectories, learner.policy.device)
    new_N, _ = token_logprobs(learner.policy.model, batch, 1.0)
    with torch.no_grad():
        reference_N, _ = token_logprobs(learner.reference.model, batch, 1.0)
    d_N = new_N - reference_N
    assert float(d_N.abs().mean().detach()) > 0.01
    term_N = d_N if estimator == "k1" else torch.exp(-d_N) - 1 + d_N
    expected = torch.autograd.grad(0.5 * term_N.mean(), list(learner.policy.model.parameters()))
    kl_ref = float((torch.exp(-d_N) - 1 + d_N).mean().detach())
    metrics = learner.update(groups, 1)
    found = [p.grad for p in learner.policy.model.parameters()]
    torch.testing.assert_close(torch.cat([g.flatten() for g in found]), torch.cat([g.flatten() for g in expected]))
    assert metrics["train/kl_ref"] == pytest.approx(kl_ref, rel=1e-4)


def test_the_reference_policy_does_not_move(shared_home):
    """The KL is to the start policy, for ever: its weights have no gradient and are not the trained ones."""
    learner = fresh_learner(shared_home, algo__name="grpo", algo__kl__place="loss", optim__lr=1e-2)
    start = weights(learner.reference.model)
    assert torch.equal(start, weights(learner.policy.model))
    assert not any(p.requires_grad for p in learner.reference.model.parameters())
    groups, _ = sampled(learner)
    assert learner.update(groups, 1)["train/kl_ref"] < 1e-8
    assert learner.update(groups, 2)["train/kl_ref"] > 1e-4
    assert torch.equal(weights(learner.reference.model), start)


def test_pitfall_07_09_ppo_signals_use_gamma_lambda_and_the_kl(shared_home):
    """Pitfalls 7, 9: the reward sits on the last model token; gamma and lambda keep their places; k1 costs coef."""
    learner = fresh_learner(
        shared_home,
        algo__name="ppo",
        algo__gamma=0.9,
        algo__lam=0.5,
        algo__kl__place="reward",
        algo__kl__coef=0.5,
        algo__whiten=False,
    )
    groups, trajectories = sampled(learner)
    counts = [t.model_tokens for t in trajectories]
    old = [np.full(n, -1.0, dtype=np.float32) for n in counts]
    ref = [np.full(n, -2.0, dtype=np.float32) for n in counts]  # k1 = 1 per token: -0.5 at each
    values = [np.full(n, 1.0, dtype=np.float32) for n in counts]
    signals = learner.signals(groups, old, ref, values)
    for i, reward in enumerate(reward_matrix(groups).reshape(-1)):
        found = signals.advantages[i]
        # last: (reward - 0.5) - 1;  before it: -0.5 + 0.9 x 1 - 1 = -0.6, plus 0.9 x 0.5 = 0.45 of what follows
        assert found[-1] == pytest.approx(reward - 1.5)
        assert found[-2] == pytest.approx(-0.6 + 0.45 * found[-1])
        assert found[-3] == pytest.approx(-0.6 + 0.45 * found[-2])
        np.testing.assert_allclose(signals.returns[i], found + 1.0)


def test_ppo_advantages_are_whitened_and_returns_are_not(shared_home):
    learner = fresh_learner(shared_home, algo__name="ppo")
    plain = fresh_learner(shared_home, algo__name="ppo", algo__whiten=False)
    groups, trajectories = sampled(learner)
    values = [np.linspace(0, 1, t.model_tokens, dtype=np.float32) for t in trajectories]
    white, raw = (agent.signals(groups, values, None, values) for agent in (learner, plain))
    flat, bare = np.concatenate(white.advantages), np.concatenate(raw.advantages)
    assert abs(flat.mean()) < 1e-9
    assert flat.std() == pytest.approx(1)
    np.testing.assert_allclose(flat, (bare - bare.mean()) / bare.std())
    np.testing.assert_array_equal(np.concatenate(white.returns), np.concatenate(raw.returns))


def with_observations(trajectory, rng):
    """The same model tokens with spans of context put in before, between and behind them."""
    ids, roles, turns, logprobs = [], [], [], []
    for i in range(len(trajectory.ids_T) + 1):
        turn = trajectory.turns_T[min(i, len(trajectory.ids_T) - 1)]
        for _ in range(rng.integers(4)):
            ids.append(int(rng.integers(20)))
            roles.append(CONTEXT)
            turns.append(turn)
            logprobs.append(np.nan)
        if i < len(trajectory.ids_T):
            ids.append(trajectory.ids_T[i])
            roles.append(trajectory.roles_T[i])
            turns.append(turn)
            logprobs.append(trajectory.logprobs_T[i])
    return replace(
        trajectory,
        ids_T=np.array(ids, dtype=np.int64),
        roles_T=np.array(roles, dtype=np.int8),
        turns_T=np.array(turns, dtype=np.int16),
        logprobs_T=np.array(logprobs, dtype=np.float32),
    )


@pytest.mark.parametrize(
    ("name", "credit"),
    [
        ("ppo", "trajectory"),
        ("ppo", "turn"),
        ("bi_level_gae", "trajectory"),
        ("reinforce_pp", "turn"),
        ("grpo", "turn"),
    ],
)
def test_pitfall_09_observations_change_no_advantage(shared_home, name, credit):
    """Pitfall 9: spans of context of any length anywhere, a trailing one too, leave advantages and returns alone."""
    learner = fresh_learner(
        shared_home, algo__name=name, algo__credit=credit, algo__gamma=0.9, algo__lam=0.7, algo__kl__place="reward"
    )
    groups, trajectories = sampled(learner)
    rng = np.random.default_rng(0)
    old, ref, values = (
        [rng.normal(size=t.model_tokens).astype(np.float32) for t in trajectories] for _ in ("old", "ref", "values")
    )
    expected = learner.signals(groups, old, ref, values)
    wider = [replace(g, trajectories=tuple(with_observations(t, rng) for t in g.trajectories)) for g in groups]
    assert any(g.trajectories[0].roles_T[-1] == CONTEXT for g in wider), "a trailing observation"
    found = learner.signals(wider, old, ref, values)
    np.testing.assert_array_equal(np.concatenate(found.advantages), np.concatenate(expected.advantages))
    if expected.returns is not None:
        np.testing.assert_array_equal(np.concatenate(found.returns), np.concatenate(expected.returns))


def test_the_critic_trains_on_its_own_weights(shared_home):
    """Policy and critic share no memory, and the critic learns the returns."""
    learner = fresh_learner(shared_home, algo__name="ppo", optim__critic_lr=1e-2)
    policy, critic = ({p.data_ptr() for p in module.parameters()} for module in (learner.policy.model, learner.critic))
    assert not policy & critic
    groups, _ = sampled(learner)
    before = weights(learner.critic)
    losses = [learner.update(groups, i)["train/value_loss"] for i in range(1, 8)]
    assert losses[-1] < 0.8 * losses[0]
    assert not torch.equal(weights(learner.critic), before)


def test_the_value_loss_is_given_the_old_values_the_returns_and_its_clip(shared_home, monkeypatch):
    """PPO's clipped value loss: values before the update, returns, ``algo.value_clip``; each token once per epoch."""
    learner = fresh_learner(
        shared_home, algo__name="ppo", algo__value_clip=0.125, optim__critic_lr=1e-2, optim__updates_per_rollout=2
    )
    groups, trajectories = sampled(learner)
    for i in (1, 2):
        learner.update(groups, i)  # so that values are not 0
    batch = make_batch(trajectories, learner.policy.device)
    with torch.no_grad():
        values = learner.critic(batch).numpy()
    seen, explained = [], []
    value_loss, variance = trainer.value_loss, trainer.explained_variance
    monkeypatch.setattr(trainer, "value_loss", lambda *a: seen.append(a) or value_loss(*a))
    monkeypatch.setattr(trainer, "explained_variance", lambda *a: explained.append(a) or variance(*a))
    metrics = learner.update(groups, 3)
    assert {a[3] for a in seen} == {0.125}
    old = np.concatenate([a[1].numpy() for a in seen])
    np.testing.assert_allclose(np.sort(old), np.sort(values), atol=1e-5)
    assert old.std() > 1e-3
    (returns, old_values), *_ = explained
    np.testing.assert_allclose(np.sort(np.concatenate([a[2].numpy() for a in seen])), np.sort(returns), atol=1e-5)
    rewards = np.repeat(reward_matrix(groups).reshape(-1), [t.model_tokens for t in trajectories])
    np.testing.assert_allclose(returns, rewards, atol=1e-5)  # gamma = lambda = 1
    np.testing.assert_allclose(old_values, values, atol=1e-5)
    # 1 - Var(return - value) / Var(return)
    expected = 1 - np.var(rewards - values) / np.var(rewards)
    assert metrics["train/explained_variance"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_gradients_are_clipped_at_the_knob(shared_home, algo, monkeypatch):
    """What reaches each optimizer has at most ``optim.grad_clip``; what is logged is the norm before."""
    learner = fresh_learner(shared_home, algo__name=algo, optim__grad_clip=1e-3)
    norms = {}
    for name, optimizer in (("policy", learner.optimizer), ("critic", learner.critic_optimizer)):
        if optimizer is None:
            continue

        def spy(step=optimizer.step, name=name, params=optimizer.param_groups[0]["params"]):
            grads = [p.grad.flatten() for p in params if p.grad is not None]
            norms.setdefault(name, []).append(float(torch.cat(grads).norm()))
            return step()

        monkeypatch.setattr(optimizer, "step", spy)
    groups, _ = sampled(learner)
    metrics = learner.update(groups, 1)
    assert set(norms) == ({"policy", "critic"} if algo == "ppo" else {"policy"})
    for name, key in (("policy", "train/grad_norm"), ("critic", "train/critic_grad_norm")):
        if name in norms:
            assert metrics[key] > 2e-3, name
            assert len(norms[name]) == metrics["train/updates"] == 2
            assert norms[name] == pytest.approx([1e-3] * 2, rel=1e-2), name


def test_the_optimizers_have_their_knobs(shared_home):
    """Weight decay and betas of both, each with its own rate."""
    learner = fresh_learner(
        shared_home,
        algo__name="ppo",
        optim__lr=4e-3,
        optim__critic_lr=8e-3,
        optim__weight_decay=0.25,
        optim__beta1=0.8,
        optim__beta2=0.95,
    )
    for optimizer, rate in ((learner.optimizer, 4e-3), (learner.critic_optimizer, 8e-3)):
        (group,) = optimizer.param_groups
        assert (group["lr"], group["weight_decay"], group["betas"]) == (rate, 0.25, (0.8, 0.95))
    for module, optimizer in ((learner.policy.model, learner.optimizer), (learner.critic, learner.critic_optimizer)):
        assert {id(p) for p in module.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}


def test_the_learning_rate_follows_its_schedule(shared_home):
    """linear: all of it at the first update, 1/4 of it at the last of four; the critic's alike; logged as used."""
    knobs = {"algo__name": "ppo", "optim__lr": 4e-3, "optim__critic_lr": 8e-3}
    learner = fresh_learner(shared_home, **knobs, optim__schedule="linear")
    for iteration, factor in ((1, 1.0), (2, 0.75), (3, 0.5), (4, 0.25)):
        assert learner._set_rate(iteration) == pytest.approx(4e-3 * factor)
        assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(4e-3 * factor)
        assert learner.critic_optimizer.param_groups[0]["lr"] == pytest.approx(8e-3 * factor)
    groups, _ = sampled(learner)
    assert learner.update(groups, 3)["train/lr"] == pytest.approx(2e-3)
    assert learner.critic_optimizer.param_groups[0]["lr"] == pytest.approx(4e-3)
    constant = fresh_learner(shared_home, **knobs)
    assert [constant._set_rate(i) for i in (1, 4)] == [4e-3, 4e-3]
    assert constant.critic_optimizer.param_groups[0]["lr"] == 8e-3


def test_pitfall_05_padding_of_the_update_cannot_leak(shared_home, monkeypatch):
    """Pitfall 5: any id behind a row's end leaves log-probs, loss and gradient norm of an update as they are."""
    found = []
    for pad in (0, 9):
        learner = fresh_learner(shared_home, algo__name="ppo", optim__micro_batch=16)
        groups, trajectories = sampled(learner)
        assert len({len(t.ids_T) for t in trajectories}) > 1

        def padded(rows, device, pad=pad):
            batch = make_batch(rows, device)
            ids_BT = batch.ids_BT.clone()
            for row, t in enumerate(rows):
                ids_BT[row, len(t.ids_T) :] = pad
            return replace(batch, ids_BT=ids_BT)

        monkeypatch.setattr(trainer, "make_batch", padded)
        found.append(learner.update(groups, 1))
    for key in ("train/policy_loss", "train/value_loss", "train/grad_norm", "train/critic_grad_norm", "train/entropy"):
        assert found[0][key] == pytest.approx(found[1][key], rel=1e-4, abs=1e-7), key


def test_pitfall_01_the_model_tokens_of_an_update_are_the_sampled_ones(shared_home, monkeypatch):
    """Pitfall 1: the targets of all forwards of one epoch are exactly the ids that the sampler wrote."""
    learner = fresh_learner(shared_home, algo__name="grpo")
    groups, trajectories = sampled(learner)
    targets = []
    logprobs = trainer.token_logprobs

    def spy(model, batch, temperature):
        if torch.is_grad_enabled():
            targets.extend(batch.targets_N.tolist())
        return logprobs(model, batch, temperature)

    monkeypatch.setattr(trainer, "token_logprobs", spy)
    learner.update(groups, 1)
    assert sorted(targets) == sorted(int(i) for t in trajectories for i in t.ids_T[t.roles_T == MODEL])
