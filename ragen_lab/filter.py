"""The trajectory filter: which prompt groups an update learns from.

StarPO-S keeps a share of the groups, those with the highest in-group reward spread (arXiv 2504.20073,
section 3.2); RAGEN-2 adds top-p, top-k and min-p; dropping only what has no spread, and sampling on until the
batch is full, is DAPO's dynamic sampling (arXiv 2503.14476, section 3.2). ``random`` and ``smallest`` are the
controls that tell selection from fewer data. What all kinds share:

- raw rewards are scored, never normalised ones; groups of equal score rank by index;
- at least one group is kept, even where none has any spread; the batch is never padded with duplicates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragen_lab.config import kept_bounds, kept_count
from ragen_lab.reward import reward_matrix, spread
from ragen_lab.sections import FilterSection
from ragen_lab.trajectory import TrajectoryGroup

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# spreads [G], section, random generator -> indices of the groups to keep, in any order; none = the first is kept
Choice = Callable[[Floats, FilterSection, np.random.Generator], Ints]


def _ranked(std_G: Floats) -> Ints:
    return np.argsort(-std_G, kind="stable")


def _share_of(order_G: Ints, section: FilterSection) -> Ints:
    return order_G[: kept_count(len(order_G), section.keep_ratio)]


def _top_p(std_G: Floats, section: FilterSection, rng: np.random.Generator) -> Ints:
    order_G = _ranked(std_G)
    held_G = std_G[order_G].cumsum()
    # The smallest count whose spreads sum to top_p of all; the margin keeps float noise from asking for one more.
    count = int(np.searchsorted(held_G, section.top_p * held_G[-1] * (1 - 1e-9))) + 1
    return order_G[:count] if held_G[-1] > 0 else order_G[:0]


def _min_p(std_G: Floats, section: FilterSection, rng: np.random.Generator) -> Ints:
    if section.min_p > 0 and std_G.max() == 0:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(std_G >= section.min_p * std_G.max() * (1 - 1e-9))


# kind -> (one sentence, the choice)
FILTERS: dict[str, tuple[str, Choice]] = {
    "std": (
        "Keep a share of the groups: those with the highest in-group reward spread; ties go to the lower index.",
        lambda std_G, section, rng: _share_of(_ranked(std_G), section),
    ),
    "top_p": ("Keep the fewest groups that hold a share of the summed spread; never one without spread.", _top_p),
    "top_k": (
        "Keep a fixed number of groups: those with the highest spread.",
        lambda std_G, section, rng: _ranked(std_G)[: section.top_k],
    ),
    "min_p": ("Keep the groups whose spread is at least a share of the highest.", _min_p),
    "zero_only": ("Drop only the groups without spread.", lambda std_G, section, rng: np.flatnonzero(std_G > 0)),
    "random": (
        "Keep as many groups as std, drawn at random: a control.",
        lambda std_G, section, rng: _share_of(rng.permutation(len(std_G)), section),
    ),
    "smallest": (
        "Keep as many groups as std, those with the lowest spread: a control.",
        lambda std_G, section, rng: _share_of(np.argsort(std_G, kind="stable"), section),
    ),
}


@dataclass(frozen=True)
class Kept:
    """What the filter did: indices of kept groups in ascending order, and what it saw."""

    indices: tuple[int, ...]
    std_G: Floats

    def record(self, level_seeds: list[int]) -> dict[str, list[float] | list[int]]:
        """What was chosen among, in order: level seeds and spreads of all groups, and the indices of the kept ones."""
        return {"levels": level_seeds, "spread": self.std_G.tolist(), "kept": list(self.indices)}

    @property
    def metrics(self) -> dict[str, float]:
        kept_K, total = self.std_G[list(self.indices)], float(self.std_G.sum())
        dropped = np.delete(self.std_G, list(self.indices))
        found = {
            "filter/kept_groups": float(len(kept_K)),
            "filter/kept_share": len(kept_K) / len(self.std_G),
            "filter/kept_std": float(kept_K.mean()),
            "filter/kept_std_min": float(kept_K.min()),
            "filter/kept_spread_share": float(kept_K.sum()) / total if total else 1.0,
            "filter/kept_zero": float((kept_K == 0).sum()),
            "filter/all_equal": float(np.ptp(self.std_G) == 0.0),
        }
        return found | ({"filter/dropped_std_max": float(dropped.max())} if len(dropped) else {})


def group_spread(groups: list[TrajectoryGroup], section: FilterSection) -> Floats:
    """The filter's score of each group: spread of its raw rewards, [groups]."""
    return spread(reward_matrix(groups, section.score))


def keep_groups(groups: list[TrajectoryGroup], section: FilterSection, rng: np.random.Generator) -> Kept:
    """Choose groups by the spread of their raw rewards.

    Where every group has the same spread the choice falls to the lowest indices (std, smallest, top_k), which
    is counted in ``filter/all_equal``. Where none has any, top_p, min_p and zero_only keep the first group:
    a step on it moves a group-based policy by its entropy and KL terms only.
    """
    std_G = group_spread(groups, section)
    chosen = FILTERS[section.kind][1](std_G, section, rng)
    return Kept(tuple(sorted(int(i) for i in chosen)) or (0,), std_G)


def fill_up(
    first: list[TrajectoryGroup], section: FilterSection, more: Callable[[int], list[TrajectoryGroup]]
) -> tuple[list[TrajectoryGroup], dict[str, float]]:
    """Dynamic sampling: as many groups as ``first`` has, with spread where that can be had, and what it took.

    While fewer groups have spread than the filter keeps at most, ``more(round)`` is asked for another rollout
    (round 1, 2, ... up to ``section.resample``). The groups with spread come first, then those without, each in
    the order in which they were sampled; the filter then chooses among them as among any rollout.
    """
    _, wanted = kept_bounds(section, len(first))
    groups, rounds = list(first), 0
    while rounds < section.resample and (group_spread(groups, section) > 0).sum() < wanted:
        rounds += 1
        groups += more(rounds)
    std_G = group_spread(groups, section)
    order_G = np.argsort(std_G == 0, kind="stable")[: len(first)] if rounds else np.arange(len(first))
    return [groups[i] for i in order_G], {
        "filter/extra_rollouts": float(rounds),
        "filter/sampled_groups": float(len(groups)),
        "filter/full": float((std_G > 0).sum() >= wanted),
    }
