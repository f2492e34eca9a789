"""Advantage estimators: one protocol, one registry.

An estimator sees raw rewards and, where it needs them, values; it returns one advantage per model token.
Shapes: ``rewards_GR`` [groups, responses]; per-trajectory lists are in group-major order (g * R + r).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TokenSignals:
    """What the loss needs of a batch, per trajectory: float64 arrays over that trajectory's model tokens.

    ``returns`` is None for estimators without a critic.
    """

    advantages: list[Floats]
    returns: list[Floats] | None


# name -> one sentence; `train.py` maps the names to the functions of gae.py and grpo.py.
ALGORITHMS: dict[str, str] = {
    "ppo": "Critic baseline: generalised advantage estimation over model tokens, clipped policy loss.",
    "grpo": "Group baseline: reward minus the group's mean, over its spread, the same for every model token.",
}
