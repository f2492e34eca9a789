"""Advantages: worked numbers and the properties that other trainers lack."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_lab.algo.gae import gae, terminal_reward, whiten
from ragen_lab.algo.grpo import broadcast, group_advantages

floats = st.floats(-5, 5, allow_nan=False)


def test_gae_worked_by_hand():
    # gamma 0.9, lambda 0.8, rewards 0 0 1, values 0.5 0.4 0.3
    # delta3 = 1 - 0.3 = 0.7;  delta2 = 0.9*0.3 - 0.4 = -0.13;  delta1 = 0.9*0.4 - 0.5 = -0.14
    # A3 = 0.7;  A2 = -0.13 + 0.72*0.7 = 0.374;  A1 = -0.14 + 0.72*0.374 = 0.12928
    advantages, returns = gae(np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.4, 0.3]), 0.9, 0.8)
    np.testing.assert_allclose(advantages, [0.12928, 0.374, 0.7])
    np.testing.assert_allclose(returns, [0.62928, 0.774, 1.0])


@given(st.lists(floats, min_size=1, max_size=12), floats)
def test_a_perfect_critic_leaves_no_advantage(values, reward):
    """Pitfall 7: with a deterministic outcome and V = the outcome in every state, A = 0 everywhere."""
    advantages, _ = gae(terminal_reward(reward, len(values)), np.full(len(values), reward), 1.0, 0.95)
    np.testing.assert_allclose(advantages, 0, atol=1e-12)


@given(st.lists(floats, min_size=1, max_size=12), floats, st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_the_sum_of_discounted_deltas(values, reward, gamma, lam):
    """Schulman et al. eq. 16, written out as a double sum."""
    n = len(values)
    rewards = terminal_reward(reward, n)
    after = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * after[t] - values[t] for t in range(n)]
    expected = [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]
    np.testing.assert_allclose(gae(rewards, np.array(values), gamma, lam)[0], expected, atol=1e-9)


def test_the_reward_sits_on_the_last_model_token():
    """Pitfall 9: all the estimators see are model tokens, so a trailing observation cannot swallow it."""
    assert terminal_reward(2.5, 3).tolist() == [0.0, 0.0, 2.5]


def test_group_advantages_worked_by_hand():
    # group 1: rewards 1 0 0 1: mean 0.5, population std 0.5 -> +1 -1 -1 +1
    # group 2: rewards 3 0 0 0: mean 0.75, std sqrt((2.25^2 + 3*0.75^2)/4) = 1.29904 -> 1.73205, -0.57735
    found = group_advantages(np.array([[1.0, 0, 0, 1], [3.0, 0, 0, 0]]), std_normalize=True)
    np.testing.assert_allclose(found, [[1, -1, -1, 1], [1.7320508, -0.5773503, -0.5773503, -0.5773503]], atol=1e-6)
    plain = group_advantages(np.array([[3.0, 0, 0, 0]]), std_normalize=False)
    np.testing.assert_allclose(plain, [[2.25, -0.75, -0.75, -0.75]])


def test_float_noise_is_not_blown_up():
    """Pitfall 11: rewards that differ by rounding give exactly 0, whatever their size."""
    noisy = np.array([[0.1 + 0.2, 0.3, 0.3, 0.3], [1e8, 1e8 + 1e-7, 1e8, 1e8]])
    assert (group_advantages(noisy, True) == 0).all()
    assert (group_advantages(noisy, False) == 0).all()


def test_a_group_of_one_has_no_baseline():
    """Pitfall 11: an error, never the raw score."""
    with pytest.raises(ValueError, match="responses >= 2"):
        group_advantages(np.array([[1.0]]), True)


@given(st.lists(floats, min_size=2, max_size=6), st.floats(0.5, 10), floats)
def test_normalised_group_advantages_ignore_scale_and_shift(rewards, scale, shift):
    rewards_GR = np.array([rewards])
    if rewards_GR.std() < 1e-3:
        return
    moved = group_advantages(rewards_GR * scale + shift, True)
    np.testing.assert_allclose(moved, group_advantages(rewards_GR, True), atol=1e-6)


def test_broadcast_gives_every_model_token_its_trajectory_advantage():
    found = broadcast(np.array([[1.0, -1.0]]), [2, 3])
    assert [a.tolist() for a in found] == [[1.0, 1.0], [-1.0, -1.0, -1.0]]


def test_whitening_is_over_all_tokens_of_the_batch():
    # values 1, 2, 3, 6: mean 3, population std sqrt((4+1+0+9)/4) = 1.8708287
    found = np.concatenate(whiten([np.array([1.0, 2.0]), np.array([3.0, 6.0])]))
    np.testing.assert_allclose(found, np.array([-2, -1, 0, 3]) / 1.8708287, atol=1e-6)
    assert [a.tolist() for a in whiten([np.array([0.7, 0.7]), np.array([0.7])])] == [[0.0, 0.0], [0.0]]
