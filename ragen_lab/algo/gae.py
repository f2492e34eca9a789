"""Generalised advantage estimation over model tokens (Schulman et al., arXiv 1506.02438, eq. 16).

    delta_t = r_t + gamma V_{t+1} - V_t,    A_t = sum_k (gamma lambda)^k delta_{t+k}

where t counts the *model* tokens of a trajectory only: observation tokens between turns are skipped, so
no observation of any length or content can change an advantage. V_t is the value of the state before
token t; the value after the last token is 0 (the episode is over).
"""

from __future__ import annotations

import numpy as np

from ragen_lab.algo.base import Floats


def gae(rewards_N: Floats, values_N: Floats, gamma: float, lam: float) -> tuple[Floats, Floats]:
    """(advantages, returns), each [N], of one trajectory with N model tokens.

    ``rewards_N`` sits on model tokens (the trajectory's reward on the last one); returns = advantages + values.
    """
    advantages_N = np.zeros(len(rewards_N))
    running, next_value = 0.0, 0.0
    for t in range(len(rewards_N) - 1, -1, -1):
        delta = rewards_N[t] + gamma * next_value - values_N[t]
        running = delta + gamma * lam * running
        advantages_N[t] = running
        next_value = values_N[t]
    return advantages_N, advantages_N + values_N


def terminal_reward(reward: float, tokens: int) -> Floats:
    """The trajectory's reward on its last model token, zero elsewhere, [tokens]."""
    rewards_N = np.zeros(tokens)
    rewards_N[-1] = reward
    return rewards_N


def whiten(advantages: list[Floats]) -> list[Floats]:
    """Zero mean and unit variance over all model tokens of the batch; equal advantages become exactly 0."""
    flat = np.concatenate(advantages)
    mean, std = flat.mean(), flat.std()
    if std < 1e-6 * max(1.0, float(np.abs(flat).max())):
        return [np.zeros_like(a) for a in advantages]
    return [(a - mean) / std for a in advantages]
