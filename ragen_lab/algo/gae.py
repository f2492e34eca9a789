"""Generalised advantage estimation over model tokens, plain and in two levels.

Plain (Schulman et al., arXiv 1506.02438, eq. 16):

    delta_t = r_t + gamma V_{t+1} - V_t,    A_t = sum_k (gamma lambda)^k delta_{t+k}

where t counts the *model* tokens of a trajectory only: observation tokens between turns are skipped, so
no observation of any length or content can change an advantage. V_t is the value of the state before
token t; the value after the last token is 0 (the episode is over).
"""

from __future__ import annotations

import numpy as np

from ragen_lab.algo.base import Episodes, Floats, Ints, TokenSignals
from ragen_lab.sections import AlgoSection


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


def bi_level_gae(
    turn_rewards_K: Floats,
    ends_K: Ints,
    penalties_N: Floats,
    values_N: Floats,
    gamma_turn: float,
    gamma: float,
    lam: float,
) -> tuple[Floats, Floats]:
    """(advantages, returns), each [N]: GAE over turns, then over the tokens inside each turn (VAGEN, 2510.16907).

    Level 1, over the K turn ends, with V_k the value before the last token of turn k and V_{K+1} = 0:

        A_k = (r_k + gamma_turn V_{k+1} - V_k) + gamma_turn lambda A_{k+1}

    Level 2: plain GAE inside turn k alone, whose last token earns A_k + V_k and whose episode ends there.
    The turns come from ``ends_K``, never from where a reward is not zero: a turn may earn nothing.
    A turn pays its whole KL on level 1, so that earlier turns answer for it too. On level 2 each token pays its own,
    and what the tokens before the last one pay is taken out of A_k again: paid once, by the tokens up to it. With one
    turn this is plain GAE.
    """
    last_K = ends_K - 1
    paid_K = np.add.reduceat(penalties_N, [0, *ends_K[:-1]])
    turn_advantages_K, _ = gae(turn_rewards_K + paid_K, values_N[last_K], gamma_turn, lam)
    earned_N = penalties_N.copy()
    earned_N[last_K] = turn_advantages_K + values_N[last_K] - (paid_K - penalties_N[last_K])
    parts = [
        gae(earned_N[begin:end], values_N[begin:end], gamma, lam)
        for begin, end in zip([0, *ends_K[:-1]], ends_K, strict=True)
    ]
    return np.concatenate([a for a, _ in parts]), np.concatenate([r for _, r in parts])


def terminal_reward(reward: float, tokens: int) -> Floats:
    """The trajectory's reward on its last model token, zero elsewhere, [tokens]."""
    rewards_N = np.zeros(tokens)
    rewards_N[-1] = reward
    return rewards_N


def token_rewards(episodes: Episodes, credit: str) -> list[Floats]:
    """Rewards on model tokens, KL penalties included, [N] each.

    ``credit`` 'trajectory': everything on the last model token; 'turn': each turn's reward on that turn's.
    """
    found = []
    for i, penalty_N in enumerate(episodes.penalties):
        if credit == "turn":
            rewards_N = np.zeros(len(penalty_N))
            rewards_N[episodes.turn_ends[i] - 1] = episodes.turn_rewards[i]
        else:
            rewards_N = terminal_reward(float(episodes.rewards_GR.reshape(-1)[i]), len(penalty_N))
        found.append(rewards_N + penalty_N)
    return found


def whiten(advantages: list[Floats]) -> list[Floats]:
    """Zero mean and unit variance over all model tokens of the batch; equal advantages become exactly 0."""
    flat = np.concatenate(advantages)
    mean, std = flat.mean(), flat.std()
    if std < 1e-6 * max(1.0, float(np.abs(flat).max())):
        return [np.zeros_like(a) for a in advantages]
    return [(a - mean) / std for a in advantages]


def ppo(episodes: Episodes, algo: AlgoSection) -> TokenSignals:
    """Token GAE with a critic, then whitening (PPO; RAGEN's StarPO with PPO)."""
    assert episodes.values is not None
    pairs = [
        gae(rewards_N, values_N, algo.gamma, algo.lam)
        for rewards_N, values_N in zip(token_rewards(episodes, algo.credit), episodes.values, strict=True)
    ]
    return _with_critic(pairs, algo)


def bi_level(episodes: Episodes, algo: AlgoSection) -> TokenSignals:
    """Bi-level GAE with a critic, then whitening (VAGEN). Turn rewards always count at their own turn."""
    assert episodes.values is not None
    pairs = [
        bi_level_gae(*arrays, algo.gamma_turn, algo.gamma, algo.lam)
        for arrays in zip(episodes.turn_rewards, episodes.turn_ends, episodes.penalties, episodes.values, strict=True)
    ]
    return _with_critic(pairs, algo)


def _with_critic(pairs: list[tuple[Floats, Floats]], algo: AlgoSection) -> TokenSignals:
    advantages, returns = [a for a, _ in pairs], [r for _, r in pairs]
    return TokenSignals(whiten(advantages) if algo.whiten else advantages, returns)


def reinforce_pp(episodes: Episodes, algo: AlgoSection) -> TokenSignals:
    """REINFORCE++ (Hu, arXiv 2501.03262): no critic and no group, normalised over the batch.

    A_t = sum_{k >= t} gamma^(k - t) r_k, KL penalties included in r; then zero mean and unit variance over
    all model tokens of the batch. That is GAE with V = 0 and lambda = 1.
    """
    advantages = [
        gae(rewards_N, np.zeros(len(rewards_N)), algo.gamma, 1.0)[0]
        for rewards_N in token_rewards(episodes, algo.credit)
    ]
    return TokenSignals(whiten(advantages) if algo.whiten else advantages, None)
