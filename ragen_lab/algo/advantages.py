"""The registry of advantage estimators, and how trajectories become what they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragen_lab.algo.base import Episodes, Estimator, Floats, Ints
from ragen_lab.algo.gae import bi_level, ppo, reinforce_pp
from ragen_lab.algo.grpo import dr_grpo, grpo, reinforce_pp_baseline, rloo
from ragen_lab.reward import reward_matrix, turn_reward
from ragen_lab.trajectory import MODEL, Trajectory, TrajectoryGroup


@dataclass(frozen=True)
class Algorithm:
    """An estimator and what it leans on: a critic's values, or the other members of the group, or neither."""

    sentence: str
    estimate: Estimator
    critic: bool = False
    group: bool = False


ALGORITHMS: dict[str, Algorithm] = {
    "ppo": Algorithm("Critic baseline: generalised advantage estimation over model tokens.", ppo, critic=True),
    "bi_level_gae": Algorithm("Critic baseline: GAE over turns, then over the tokens of each.", bi_level, critic=True),
    "grpo": Algorithm("Group baseline: reward minus the group's mean, over its spread.", grpo, group=True),
    "dr_grpo": Algorithm("Group baseline without division; loss over a fixed length.", dr_grpo, group=True),
    "rloo": Algorithm("Group baseline: the mean of the other members (unbiased).", rloo, group=True),
    "reinforce_pp": Algorithm("No baseline: returns normalised over the batch.", reinforce_pp),
    "reinforce_pp_baseline": Algorithm(
        "Group baseline, then normalised over the batch.", reinforce_pp_baseline, group=True
    ),
}


def as_episodes(
    groups: list[TrajectoryGroup], penalties: list[Floats], values: Sequence[Floats] | None = None
) -> Episodes:
    """What the estimators see of ``groups``. ``penalties`` and ``values``: per model token, group-major."""
    trajectories = [t for group in groups for t in group.trajectories]
    return Episodes(
        rewards_GR=reward_matrix(groups),
        turn_rewards=[np.array([turn_reward(turn) for turn in t.turns]) for t in trajectories],
        turn_ends=[turn_ends(t) for t in trajectories],
        penalties=penalties,
        values=None if values is None else [v.astype(np.float64) for v in values],
    )


def turn_ends(trajectory: Trajectory) -> Ints:
    """One past the last model token of each turn, counted over model tokens, [turns].

    Explicit, from our own bookkeeping of turns: never inferred from rewards or from special tokens.
    """
    turn_of_N = trajectory.turns_T[trajectory.roles_T == MODEL]
    return np.searchsorted(turn_of_N, np.arange(len(trajectory.turns)), side="right").astype(np.int64)
