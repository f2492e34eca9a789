"""What an environment is: the protocol, its seeds, and the registry.

A new environment is a new file, a section in ``config.py`` and one line in ``ENVS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from ragen_lab.errors import ConfigError
from ragen_lab.sections import OUTSIDE_GROUP

# Level seeds are plain integers. The two ranges are disjoint, so that no level *seed* is ever shared by
# training and evaluation; level *contents* are kept apart by the environments themselves.
EVAL_SEED_BASE = 2**40


def eval_seeds(count: int) -> range:
    """The fixed evaluation seeds: the first ``count`` of the evaluation range."""
    return range(EVAL_SEED_BASE, EVAL_SEED_BASE + count)


# Generalisation sets have their own part of the evaluation range.
GENERAL_SEED_BASE = 2**41


def general_seeds(count: int) -> range:
    """The fixed seeds of a generalisation set: neither training nor evaluation ever uses them."""
    return range(GENERAL_SEED_BASE, GENERAL_SEED_BASE + count)


def is_eval_seed(seed: int) -> bool:
    return seed >= EVAL_SEED_BASE


@dataclass(frozen=True)
class StepResult:
    """What one action did. ``reward`` in the environment's own units; ``success`` implies ``done``."""

    observation: str
    reward: float
    done: bool
    success: bool


@dataclass(frozen=True)
class Demonstration:
    """What a good player would do now, for warm starts and optimal lines.

    ``actions``: a shortest (or best) continuation from the present state, as far as it can be planned.
    ``facts``: plain words about the state that a reasoning text may state, by slot name
    (for example ``{"goal": "down right", "move": "down"}``).
    """

    actions: tuple[str, ...]
    facts: dict[str, str] = field(default_factory=dict)


@runtime_checkable
class Env(Protocol):
    """One episode at a time; deterministic given (level seed, dynamics seed, actions)."""

    def reset(self, seed: int, dynamics: int = 0) -> str:
        """Start level ``seed``; ``dynamics`` seeds the chance events of this episode only."""

    def step(self, action: str) -> StepResult:
        """Execute one action word. Raises EnvError for a word not in ``actions()`` or after the end."""

    def actions(self) -> tuple[str, ...]:
        """The action words that are valid in the present state."""

    def rules(self) -> str:
        """The rules in plain English for the system message: symbols, actions, aim."""

    def demonstrate(self) -> Demonstration:
        """The best continuation from the present state."""


@runtime_checkable
class OpenActions(Protocol):
    """An environment whose actions are free text. ``actions()`` then gives valid examples, for random play."""

    def parse(self, text: str) -> str | None:
        """The action that a text means, in the present state, or None for no valid action."""


# name -> "module:Class"; imported on use, so that listing names costs nothing.
ENVS: dict[str, str] = {
    "bandit": "ragen_lab.env.bandit:Bandit",
    "bandit_rev": "ragen_lab.env.bandit:Bandit",
    "frozen_lake": "ragen_lab.env.frozen_lake:FrozenLake",
    "sokoban": "ragen_lab.env.sokoban:Sokoban",
    "countdown": "ragen_lab.env.countdown:Countdown",
}


def read_action(env: Env, text: str) -> str | None:
    """The action that a text means in the present state, compared without regard to case; None for none."""
    if isinstance(env, OpenActions):
        return env.parse(text)
    return next((action for action in env.actions() if action.lower() == text.strip().lower()), None)


def make_env(section: Any) -> Env:
    """Build the environment that the config section ``section`` (``cfg.env``) describes.

    Raises ConfigError where an outside environment cannot be had.
    """
    if section.name not in ENVS:
        return _outside(section)
    module, _, cls = ENVS[section.name].partition(":")
    env: Env = getattr(import_module(module), cls)(section)
    return env


def has_expert(env: Env) -> bool:
    """Whether ``demonstrate()`` shows good play; an outside environment may say no by ``has_expert = False``."""
    return bool(getattr(env, "has_expert", True))


def _outside(section: Any) -> Env:
    """An environment of another package: its class, called with ``env.options``."""
    path = section.name
    if ":" not in path:
        points = [point for point in entry_points(group=OUTSIDE_GROUP) if point.name == path]
        if not points:
            raise ConfigError("env.name", [f"env.name: no installed package brings an environment {path!r}."])
        path = points[0].value
    module, _, name = path.partition(":")
    try:
        cls = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        fault = f"env.name: cannot import {path!r}: {error}. Is the package installed, or its folder on PYTHONPATH?"
        raise ConfigError("env.name", [fault]) from None
    try:
        env = cls(**section.options)
    except TypeError as error:
        raise ConfigError("env.options", [f"env.options: {path} does not take them: {error}."]) from None
    if not isinstance(env, Env):
        lacks = ", ".join(n for n in ("reset", "step", "actions", "rules", "demonstrate") if not hasattr(env, n))
        raise ConfigError("env.name", [f"env.name: {path} is no environment: it lacks {lacks}."])
    return env
