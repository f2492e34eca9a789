"""The reward of a trajectory: what the environment paid, what format and length cost, what the reasoning earned."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

import numpy as np
import numpy.typing as npt

from ragen_lab.env.base import Env
from ragen_lab.env.grounding import Grounded, Statement, Verdict, score
from ragen_lab.errors import ConfigError
from ragen_lab.sections import RewardSection
from ragen_lab.trajectory import Trajectory, TrajectoryGroup, Turn


def turn_penalty(format_ok: bool, section: RewardSection) -> float:
    """Minus ``format_penalty`` for a turn with no valid action or any invalid one, else 0."""
    return 0.0 if format_ok else -section.format_penalty


# What a think text's statements earn, given the base rate of each, in units of ``reward.reasoning_weight``.
Reasoning = Callable[[Verdict, Callable[[Statement], float]], float]
REASONING: dict[str, Reasoning | None] = {"none": None, "grounded": score}


@cache
def reasoning_of(name: str) -> Reasoning | None:
    """The reward of the think text that ``reward.reasoning`` names; None pays nothing.

    Raises ConfigError for a 'module:function' that cannot be had.
    """
    if name in REASONING:
        return REASONING[name]
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        fault = f"cannot import {name!r}: {error}. Is the package installed, or its folder on PYTHONPATH?"
        raise ConfigError("reward.reasoning", [f"reward.reasoning: {fault}"]) from None
    if not callable(found):
        raise ConfigError("reward.reasoning", [f"reward.reasoning: {name!r} is no function of (verdict, rate)."])
    return found  # type: ignore[no-any-return]


def refuse_silent(env: Env, section: RewardSection) -> None:
    """Raise ConfigError where the think text is to be paid for what an environment cannot judge."""
    if section.reasoning != "none" and not isinstance(env, Grounded):
        fault = "needs an environment that can say where things are; this one has no scene() (docs/environments.md)."
        raise ConfigError("reward.reasoning", [f"reward.reasoning: {section.reasoning} {fault} Use none."])


def length_cost(tokens: int, section: RewardSection) -> float:
    """Minus ``length_penalty`` for every token of a reply beyond ``length_free``."""
    return -section.length_penalty * max(0, tokens - section.length_free)


def trajectory_reward(trajectory: Trajectory) -> float:
    """Sum of turn rewards and penalties (RAGEN, arXiv 2504.20073, section 2), and of what the section adds to them."""
    return trajectory.env_return + trajectory.penalty + trajectory.shaping


def turn_reward(turn: Turn) -> float:
    """What one turn adds to the trajectory's reward; the turns of a trajectory sum to ``trajectory_reward``."""
    return turn.reward + turn.penalty + turn.reasoning + turn.length_cost


def reward_matrix(groups: list[TrajectoryGroup], score: str = "reward") -> npt.NDArray[np.float64]:
    """Raw rewards, shape [groups, responses]. ``score``: 'reward' or 'env_return' (without penalties)."""
    pick = trajectory_reward if score == "reward" else (lambda trajectory: trajectory.env_return)
    return np.array([[pick(t) for t in group.trajectories] for group in groups], dtype=np.float64)


def spread(rewards_GR: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Population standard deviation of each group, shape [groups]; float noise counts as exactly 0.

    A spread below ``1e-6 * max(1, |r|)`` is noise of equal rewards, not a signal.
    """
    std_G = rewards_GR.std(axis=1)
    floor_G = 1e-6 * np.maximum(1.0, np.abs(rewards_GR).max(axis=1, initial=0.0))
    return np.where(std_G < floor_G, 0.0, std_G)
