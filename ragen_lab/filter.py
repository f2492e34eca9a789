"""The trajectory filter: which prompt groups an update learns from.

StarPO-S keeps the groups with the highest in-group reward spread (arXiv 2504.20073, section 3.2);
``random`` keeps as many at random and is the control that tells selection from fewer data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragen_lab.config import FilterSection, kept_count
from ragen_lab.reward import reward_matrix, spread
from ragen_lab.trajectory import TrajectoryGroup

# kind -> (one sentence, order of preference from spreads and a random generator)
FILTERS: dict[str, tuple[str, Callable[[npt.NDArray[np.float64], np.random.Generator], npt.NDArray[np.int64]]]] = {
    "std": (
        "Keep the groups with the highest in-group reward spread; ties go to the lower index.",
        lambda std_G, rng: np.argsort(-std_G, kind="stable"),
    ),
    "random": (
        "Keep as many groups, drawn at random: a control.",
        lambda std_G, rng: rng.permutation(len(std_G)),
    ),
}


@dataclass(frozen=True)
class Kept:
    """What the filter did: indices of kept groups in ascending order, and what it saw."""

    indices: tuple[int, ...]
    std_G: npt.NDArray[np.float64]

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "filter/kept_groups": float(len(self.indices)),
            "filter/kept_share": len(self.indices) / len(self.std_G),
            "filter/kept_std": float(self.std_G[list(self.indices)].mean()),
            "filter/all_equal": float(np.ptp(self.std_G) == 0.0),
        }


def keep_groups(groups: list[TrajectoryGroup], section: FilterSection, rng: np.random.Generator) -> Kept:
    """Choose groups by the spread of their raw rewards, never of normalised ones.

    Where every group has the same spread the choice falls to the lowest indices (kind std), which is
    counted in ``filter/all_equal``. The batch is never padded with duplicates.
    """
    std_G = spread(reward_matrix(groups, section.score))
    order = FILTERS[section.kind][1](std_G, rng)
    count = kept_count(len(groups), section.keep_ratio)
    return Kept(tuple(sorted(int(i) for i in order[:count])), std_G)
