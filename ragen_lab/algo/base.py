"""What an advantage estimator is given and what it returns; the estimators are listed in advantages.py.

An estimator is a function ``(Episodes, AlgoSection) -> TokenSignals``: it sees raw rewards and, where it
needs them, values, and returns one advantage per model token. It never sees an observation token, so
none can change what it returns. Lists hold one entry per trajectory, group-major (g * responses + r).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragen_lab.sections import AlgoSection

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Episodes:
    """A batch of trajectories, reduced to their model tokens.

    ``rewards_GR``: raw trajectory rewards [groups, responses]; ``turn_rewards``: the same by turn, [turns]
    each; ``turn_ends``: one past the last model token of each turn, ascending, the last entry being the
    number of model tokens N; ``penalties``: what each token pays for its KL when that is in the reward, [N];
    ``values``: value of the state before each model token, [N], or None without a critic.
    """

    rewards_GR: Floats
    turn_rewards: list[Floats]
    turn_ends: list[Ints]
    penalties: list[Floats]
    values: list[Floats] | None

    @property
    def tokens(self) -> list[int]:
        """Model tokens of each trajectory."""
        return [len(penalty_N) for penalty_N in self.penalties]


@dataclass(frozen=True)
class TokenSignals:
    """What the loss needs of a batch, per trajectory: float64 arrays over that trajectory's model tokens.

    ``returns`` is None for estimators without a critic.
    """

    advantages: list[Floats]
    returns: list[Floats] | None


Estimator = Callable[[Episodes, AlgoSection], TokenSignals]
