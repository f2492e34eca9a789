"""What must hold at the first update of a run, whatever the algorithm: promises, each with its name.

A trainer that breaks one of these still trains, and its curves look like curves; so the first update is
checked and what is broken is named. The checks read what the update computed anyway and change no number.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ragen_lab.algo.totals import Totals
from ragen_lab.trajectory import MODEL, TrajectoryGroup

# dtype -> (|ratio - 1| of any token, KL to the old policy): two forwards of the same weights differ by this
# much where their batches are padded differently. bfloat16 has 8 bits of mantissa.
_TOO_RARE = 1e-6  # a probability below which equal responses are no chance
_TOLERANCE = {"float32": (1e-3, 1e-6), "bfloat16": (0.5, 1e-2)}


def self_check(
    groups: list[TrajectoryGroup],
    first: Totals,
    sampler_gap: tuple[float, float],
    gap_tolerance: float,
    vocabulary: int,
    dtype: str,
) -> list[str]:
    """One sentence per broken promise, each beginning with its name; empty when all hold.

    ``first``: totals of the first optimizer step alone; ``sampler_gap``: mean and largest |log-prob of the sampler - of
    the trainer|; ``gap_tolerance``: what the engine states for the mean; the largest is held to what two forwards of
    the trainer may differ by. A number that is NaN breaks its promise.
    """
    ratio_bound, kl_bound = _TOLERANCE[dtype]
    low, high = first.entropy_range
    top = math.log(vocabulary)
    kl = first.sums["kl"] / first.tokens
    drift = first.drift_max
    faults = []
    if not drift <= ratio_bound:
        faults.append(f"ratio: |log ratio| is up to {drift:.3g} before the first step, not 0 (+- {ratio_bound:g}).")
    if not abs(kl) <= kl_bound:
        faults.append(f"kl: KL to the policy of the rollout is {kl:.3g} before the first step, not below {kl_bound:g}.")
    if not (low >= -1e-4 and high <= top + 1e-4 and math.isfinite(first.sums["entropy"])):
        faults.append(f"entropy: token entropies span [{low:.3g}, {high:.3g}], not within [0, ln V = {top:.3g}].")
    mean_gap, largest_gap = sampler_gap
    if not (mean_gap <= gap_tolerance and largest_gap <= ratio_bound):
        faults.append(
            f"sampler: its log-probs differ from the trainer's by {mean_gap:.3g} on average and by {largest_gap:.3g} "
            f"at most; allowed are {gap_tolerance:g} and {ratio_bound:g}. algo.importance_cap corrects an engine that "
            "cannot do better."
        )
    return faults + _group_faults(groups)


def _group_faults(groups: list[TrajectoryGroup]) -> list[str]:
    faults = []
    for group in groups:
        prompts = {_prompt(t.ids_T, t.roles_T) for t in group.trajectories}
        if len(prompts) > 1 or {t.level_seed for t in group.trajectories} != {group.level_seed}:
            faults.append(f"prompts: the members of the group of level {group.level_seed} do not share their prompt.")
            break
    same, chance = _copies(groups)
    if chance < _TOO_RARE:
        faults.append(
            f"members: in {same} of {len(groups)} groups all responses are the same, which independent sampling does "
            f"with probability {chance:.1g} at most; they must be sampled independently."
        )
    return faults


def _copies(groups: list[TrajectoryGroup]) -> tuple[int, float]:
    """How many groups have equal members only, and a bound on the probability of that under independent sampling.

    A response of probability p is repeated by n - 1 others with p^(n - 1): a sure policy may well say the same n times.
    Any k of the groups could have been the equal ones, hence the binomial factor (a union bound).
    """
    equal = [g for g in groups if len(g.trajectories) > 1 and len({t.ids_T.tobytes() for t in g.trajectories}) == 1]
    log_chance = math.log(math.comb(len(groups), len(equal)))
    for group in equal:
        first = group.trajectories[0]
        log_chance += (len(group.trajectories) - 1) * float(first.logprobs_T[first.roles_T == MODEL].sum())
    return len(equal), math.exp(min(0.0, log_chance))


def _prompt(ids_T: npt.NDArray[np.int64], roles_T: npt.NDArray[np.int8]) -> bytes:
    """The ids before the first model token."""
    return ids_T[: int(np.argmax(roles_T == MODEL))].tobytes()
