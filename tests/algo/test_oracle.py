"""The tabular oracle: the trainer's gradient against the true one, summed over every possible episode.

With aggregation fixed_length the gradient of a step on G trajectories, times the budget, is
(1/G) sum_i sum_t A_it grad log pi(a_it): the estimator of grad J with nothing but its own baseline.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from ragen_lab import train as trainer
from ragen_lab.policy.model import make_batch
from tests.algo.tabular import OBSERVATIONS, TURNS, config, every_episode, expected_reward, group, learner, sample
from tests.algo.tabular import log_probability as logp

PLAIN = {"algo__whiten": False, "algo__aggregation": "fixed_length", "algo__gamma_turn": 1.0}


def true_gradient(agent, observe):
    table = agent.policy.model.table.detach().clone().requires_grad_()
    expected_reward(table, observe).backward()
    return table.grad


def step_gradient(agent, groups):
    """The ascent direction of one update, times the budget of tokens; the policy is left as it was."""
    kept = {name: value.clone() for name, value in agent.policy.model.state_dict().items()}
    values = None if agent.critic is None else {k: v.clone() for k, v in agent.critic.state_dict().items()}
    agent.update(groups, 1)
    agent.policy.model.load_state_dict(kept)
    if values is not None:
        agent.critic.load_state_dict(values)
    return -agent.policy.model.table.grad * TURNS  # budget: max_turns x 1 token


def estimator(name, responses, observe, **knobs):
    cfg = config(algo__name=name, rollout__responses=responses, **{**PLAIN, **knobs})
    return learner(cfg, observe)


def exact_expectation(agent, responses, observe):
    """Sum over all tuples of episodes of their probability times the gradient of a step on them."""
    total = torch.zeros_like(agent.policy.model.table)
    table = agent.policy.model.table.detach().clone()
    weight = {e: float(logp(table, e, observe).exp()) for e in every_episode()}
    for members in itertools.product(every_episode(), repeat=responses):
        chance = np.prod([weight[e] for e in members])
        total += float(chance) * step_gradient(agent, [group(agent.policy.model, members, observe)])
    return total


CASES = {
    "ppo": ("ppo", 1, {}, 1.0),
    "ppo, turn credit": ("ppo", 1, {"algo__credit": "turn"}, 1.0),
    "ppo, CISPO": ("ppo", 1, {"algo__loss": "cispo"}, 1.0),
    "bi_level_gae": ("bi_level_gae", 1, {}, 1.0),
    "reinforce_pp": ("reinforce_pp", 1, {}, 1.0),
    "rloo": ("rloo", 2, {}, 1.0),
    "rloo, turn credit": ("rloo", 2, {"algo__credit": "turn"}, 1.0),
    "rloo, sequence ratio": ("rloo", 2, {"algo__ratio": "sequence"}, 1.0),
    "grpo without std": ("grpo", 2, {"algo__std_normalize": False}, 0.5),
    "dr_grpo": ("dr_grpo", 2, {}, 0.5),
    "dr_grpo, turn credit": ("dr_grpo", 2, {"algo__credit": "turn"}, 0.5),
    "reinforce_pp_baseline": ("reinforce_pp_baseline", 2, {}, 0.5),
}


@pytest.mark.parametrize("talk", sorted(OBSERVATIONS))
@pytest.mark.parametrize("case", sorted(CASES))
def test_pitfall_07_09_15_the_expected_step_is_the_true_gradient(case, talk):
    """Exactly: PPO at ratio 1 with any critic (gamma = lambda = 1), and RLOO; the group mean, up to (G - 1) / G.

    By enumeration of all 9 episodes, or of all 81 groups of two. Pitfalls 7, 9, 15.
    """
    name, responses, knobs, factor = CASES[case]
    observe = OBSERVATIONS[talk]
    agent = estimator(name, responses, observe, **knobs)
    truth = true_gradient(agent, observe)
    assert float(truth.abs().max()) > 0.05
    torch.testing.assert_close(exact_expectation(agent, responses, observe), factor * truth, atol=1e-5, rtol=1e-4)


KL_CASES = ["ppo", "ppo, turn credit", "bi_level_gae", "reinforce_pp", "rloo", "rloo, turn credit", "dr_grpo"]


@pytest.mark.parametrize("case", KL_CASES)
def test_pitfall_16_kl_in_the_reward_adds_its_own_gradient(case):
    """k1 in the reward: the expected step is the gradient of E[R] - coef KL(pi || ref), both by enumeration."""
    name, responses, knobs, factor = CASES[case]
    observe, coef = OBSERVATIONS["talking"], 0.7
    agent = estimator(name, responses, observe, algo__kl__place="reward", algo__kl__coef=coef, **knobs)
    reference = learner(config(), observe, seed=11).policy
    agent.reference = reference
    table = agent.policy.model.table.detach().clone().requires_grad_()
    divergence = sum(
        logp(table, e, observe).exp() * (logp(table, e, observe) - logp(reference.model.table.detach(), e, observe))
        for e in every_episode()
    )
    (kl_gradient,) = torch.autograd.grad(divergence, table)
    assert float(kl_gradient.abs().max()) > 0.05
    truth = true_gradient(agent, observe) - coef * kl_gradient
    torch.testing.assert_close(exact_expectation(agent, responses, observe), factor * truth, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("talk", sorted(OBSERVATIONS))
@pytest.mark.parametrize(
    ("name", "knobs", "factor"),
    [("ppo", {}, 1.0), ("rloo", {}, 1.0), ("grpo", {"algo__std_normalize": False}, 3 / 4)],
)
def test_the_sampled_step_is_the_true_gradient_within_its_standard_error(name, knobs, factor, talk):
    """200 updates on four groups of four drawn from the policy: the mean within 4.5 standard errors everywhere."""
    observe, rng = OBSERVATIONS[talk], np.random.default_rng(7)
    agent = estimator(name, 4, observe, **knobs)
    truth = factor * true_gradient(agent, observe)
    model, found = agent.policy.model, []
    for _ in range(200):
        drawn = sample(model, 16, observe, rng)
        found.append(step_gradient(agent, [group(model, drawn[i : i + 4], observe) for i in range(0, 16, 4)]))
    draws = torch.stack(found)
    error = draws.std(0) / len(found) ** 0.5
    reached = error > 0
    assert int(reached.sum()) >= 9
    assert float((truth[~reached]).abs().max()) < 1e-6
    z = (draws.mean(0) - truth)[reached] / error[reached]
    assert float(z.abs().max()) < 4.5
    assert float(truth.norm() / error.norm()) > 8, "the test must be able to see a wrong gradient"


def shifted(trajectories, device):
    """make_batch with every distribution read one position too early."""
    batch = make_batch(trajectories, device)
    rows, positions = batch.before
    return replace(batch, before=(rows, (positions - 1).clamp(min=0)))


@pytest.mark.parametrize("broken", ["sign", "shift", "observation"])
def test_the_oracle_sees_a_broken_trainer(broken, monkeypatch):
    """A flipped sign, a mask shifted by one, and a reward that is lost on a trailing token fail the same comparison."""
    observe = OBSERVATIONS["talking"]
    agent = estimator("rloo", 2, observe)
    truth = true_gradient(agent, observe)
    if broken == "sign":
        loss = trainer.policy_loss
        monkeypatch.setattr(trainer, "policy_loss", lambda new, old, adv, *rest: loss(new, old, -adv, *rest))
    elif broken == "shift":
        monkeypatch.setattr(trainer, "make_batch", shifted)
    else:
        from ragen_lab.algo import advantages as room

        monkeypatch.setattr(room, "reward_matrix", lambda groups: np.zeros((1, 2)))
    found = exact_expectation(agent, 2, observe)
    assert float((found - truth).abs().max()) > 0.05
