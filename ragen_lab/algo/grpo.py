"""Group-relative advantages: the other responses to the same prompt are the baseline.

With R the rewards of one group of n responses and m their mean:

    grpo                   A_i = (R_i - m) / std(R)                 Shao et al., arXiv 2402.03300, section 4.1
    dr_grpo                A_i = R_i - m                            Liu et al., arXiv 2503.20783
    rloo                   A_i = R_i - mean_{j != i} R_j            Ahmadian et al., arXiv 2402.14740
    reinforce_pp_baseline  A_i = R_i - m, normalised over the batch Hu, arXiv 2501.03262

``algo.credit`` says what R is, and which tokens A_i goes to:

- 'trajectory': the trajectory's reward; A_i goes to all model tokens of i.
- 'turn': for each turn index k, what a member earned in turn k and after; A_ik goes to the model tokens of
  turn k of i, so that no token answers for what was earned before it. The group of turn k is the members
  that reached it; where that is only one, there is no baseline and its advantage is 0: that turn teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ragen_lab.algo.base import Episodes, Floats, TokenSignals
from ragen_lab.algo.gae import whiten
from ragen_lab.reward import spread
from ragen_lab.sections import AlgoSection

# rewards [groups, responses] -> advantages of the same shape
Baseline = Callable[[Floats], Floats]


def group_advantages(rewards_GR: Floats, std_normalize: bool) -> Floats:
    """Advantages [groups, responses]; ``std`` is the population standard deviation.

    A group whose spread is float noise (``reward.spread``) gets exactly 0. Raises ValueError for groups
    of one, which have no baseline.
    """
    if rewards_GR.shape[1] < 2:
        raise ValueError("a group of one response has no group baseline; use rollout.responses >= 2")
    std_G1 = spread(rewards_GR)[:, None]
    centred_GR = np.where(std_G1 == 0.0, 0.0, rewards_GR - rewards_GR.mean(axis=1, keepdims=True))
    if not std_normalize:
        return centred_GR
    return centred_GR / np.where(std_G1 == 0.0, 1.0, std_G1)


def leave_one_out(rewards_GR: Floats) -> Floats:
    """R_i - mean_{j != i} R_j = n / (n - 1) (R_i - m), [groups, responses]."""
    n = rewards_GR.shape[1]
    centred_GR = group_advantages(rewards_GR, std_normalize=False)  # refuses n = 1
    return centred_GR * np.float64(n / max(1, n - 1))


def broadcast(advantages_GR: Floats, tokens: list[int]) -> list[Floats]:
    """One advantage per trajectory -> one per model token; ``tokens`` in group-major order."""
    return [np.full(count, a) for count, a in zip(tokens, advantages_GR.reshape(-1), strict=True)]


def by_trajectory(episodes: Episodes, baseline: Baseline) -> list[Floats]:
    """Credit 'trajectory': one advantage for all model tokens, KL penalties summed into the reward."""
    penalties_GR = np.array([penalty_N.sum() for penalty_N in episodes.penalties]).reshape(episodes.rewards_GR.shape)
    return broadcast(baseline(episodes.rewards_GR + penalties_GR), episodes.tokens)


def by_turn(episodes: Episodes, baseline: Baseline) -> list[Floats]:
    """Credit 'turn': what was earned from turn k on, against the members that reached turn k."""
    groups, responses = episodes.rewards_GR.shape
    to_go = [_to_go(episodes, i) for i in range(groups * responses)]
    advantages = [np.zeros(tokens) for tokens in episodes.tokens]
    for first in range(0, groups * responses, responses):
        members = range(first, first + responses)
        for k in range(max(len(to_go[i]) for i in members)):
            reached = [i for i in members if len(to_go[i]) > k]
            if len(reached) < 2:
                continue
            found_M = baseline(np.array([[to_go[i][k] for i in reached]]))[0]
            for i, advantage in zip(reached, found_M, strict=True):
                ends_K = episodes.turn_ends[i]
                advantages[i][ends_K[k - 1] if k else 0 : ends_K[k]] = advantage
    return advantages


def _to_go(episodes: Episodes, i: int) -> Floats:
    """Reward of trajectory i from each turn on, KL penalties included, [turns]."""
    starts_K = np.concatenate([[0], episodes.turn_ends[i][:-1]])
    earned_K = episodes.turn_rewards[i] + np.add.reduceat(episodes.penalties[i], starts_K)
    return np.asarray(earned_K[::-1].cumsum()[::-1], dtype=np.float64)


def _relative(episodes: Episodes, algo: AlgoSection, baseline: Baseline) -> TokenSignals:
    assign = by_turn if algo.credit == "turn" else by_trajectory
    return TokenSignals(assign(episodes, baseline), None)


def grpo(episodes: Episodes, algo: AlgoSection) -> TokenSignals:
    """Reward minus the group's mean, over its spread (``algo.std_normalize``)."""
    return _relative(episodes, algo, lambda rewards_GR: group_advantages(rewards_GR, algo.std_normalize))


def dr_grpo(episodes: Episodes, algo: AlgoSection) -> TokenSignals:
    """Reward minus the group's mean. Its companion is ``algo.aggregation`` fixed_length, its default."""
    return _relative(episodes, algo, lambda rewards_GR: group_advantages(rewards_GR, False))


def rloo(episodes: Episodes, algo: AlgoSection) -> TokenSignals:
    """Reward minus the mean of the other members: the unbiased group baseline."""
    return _relative(episodes, algo, leave_one_out)


def reinforce_pp_baseline(episodes: Episodes, algo: AlgoSection) -> TokenSignals:
    """Reward minus the group's mean, then zero mean and unit variance over all model tokens of the batch."""
    signals = _relative(episodes, algo, lambda rewards_GR: group_advantages(rewards_GR, False))
    return TokenSignals(whiten(signals.advantages), None) if algo.whiten else signals
