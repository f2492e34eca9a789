"""The nouns of StarPO: Turn, Trajectory, TrajectoryGroup, StopReason. Frozen and torch-free.

Shape suffixes: ``_T`` tokens of one trajectory. A trajectory is the list of token ids as they were
fed to or sampled from the model; nothing here is ever decoded and re-encoded on the way to the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

CONTEXT, MODEL = 0, 1  # values of roles_T: who wrote the token


class StopReason(StrEnum):
    """Why a trajectory ended."""

    SUCCESS = "success"  # the environment reported success
    FAILURE = "failure"  # the environment ended the episode without success
    TURNS = "turns"  # the turn limit was reached
    ACTIONS = "actions"  # the action budget was used up
    CONTEXT = "context"  # the next turn would not fit into the context
    ERROR = "error"  # the environment raised; the message is in Trajectory.error


@dataclass(frozen=True)
class Turn:
    """One exchange: an observation, the model's reply, and what the environment made of it."""

    observation: str
    reply: str  # decoded for people and for text statistics; the loss uses the ids
    think: str
    actions: tuple[str, ...]  # executed, in order
    format_ok: bool
    truncated: bool  # the reply hit the token limit before its end-of-turn token
    reward: float  # sum of the environment's rewards of this turn's actions
    penalty: float  # format penalty of this turn, <= 0
    reply_tokens: int
    think_tokens: int
    reasoning: float = 0.0  # reward of the think text
    length_cost: float = 0.0  # penalty of a long reply, <= 0
    true_statements: int = 0  # about the board, in the think text
    false_statements: int = 0


@dataclass(frozen=True)
class Trajectory:
    """One episode as tokens and as turns.

    ``ids_T`` int64, ``roles_T`` int8 (CONTEXT or MODEL), ``turns_T`` int16 (turn index of each
    token), ``logprobs_T`` float32: log-prob under the sampling policy at the sampling temperature
    (natural log; NaN where the model did not write the token).
    """

    ids_T: npt.NDArray[np.int64]
    roles_T: npt.NDArray[np.int8]
    turns_T: npt.NDArray[np.int16]
    logprobs_T: npt.NDArray[np.float32]
    turns: tuple[Turn, ...]
    stop: StopReason
    level_seed: int
    dynamics_seed: int
    error: str | None = None

    @property
    def env_return(self) -> float:
        """Sum of the environment's rewards (no penalties)."""
        return sum(turn.reward for turn in self.turns)

    @property
    def penalty(self) -> float:
        """Sum of the format penalties, <= 0."""
        return sum(turn.penalty for turn in self.turns)

    @property
    def shaping(self) -> float:
        """Sum of the rewards of the think texts and of the penalties for length."""
        return sum(turn.reasoning + turn.length_cost for turn in self.turns)

    @property
    def success(self) -> bool:
        return self.stop is StopReason.SUCCESS

    @property
    def model_tokens(self) -> int:
        return int((self.roles_T == MODEL).sum())


@dataclass(frozen=True)
class TrajectoryGroup:
    """All responses to one prompt: the same level, sampled independently."""

    level_seed: int
    trajectories: tuple[Trajectory, ...]
