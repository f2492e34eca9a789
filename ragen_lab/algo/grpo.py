"""Group-relative advantages (GRPO, Shao et al., arXiv 2402.03300, section 4.1).

A_i = (R_i - mean(R)) / std(R)      within the group of one prompt, the same for all model tokens of i
"""

from __future__ import annotations

import numpy as np

from ragen_lab.algo.base import Floats
from ragen_lab.reward import spread


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


def broadcast(advantages_GR: Floats, tokens: list[int]) -> list[Floats]:
    """One advantage per trajectory -> one per model token; ``tokens`` in group-major order."""
    return [np.full(count, a) for count, a in zip(tokens, advantages_GR.reshape(-1), strict=True)]
