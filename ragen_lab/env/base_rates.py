"""How often a statement is true on levels that the speaker has not seen: what the reasoning reward is measured against.

A place drawn evenly from the board is no such measure: boxes lie away from the edge, a room's edge is always wall, and
a player who plays stands near what matters. So the rate is counted, on states of training levels of the same
environment: on half of them the player has played at random, on the other half well, for 0 to 9 actions.
"""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

from ragen_lab.env.base import has_expert, make_env
from ragen_lab.env.grounding import Grounded, Scene, Statement, truth
from ragen_lab.errors import ConfigError

SCENES = 512
FIRST_SEED = 2**34  # above the levels that training and warm starts draw
ACTIONS = 10  # an episode's first ones; fewer than this are played


class BaseRates:
    """Statement -> the share of scenes, among those that decide it, in which it is true."""

    def __init__(self, scenes: tuple[Scene, ...]):
        self.scenes = scenes
        self._known: dict[Statement, float] = {}

    def __call__(self, statement: Statement) -> float:
        statement = replace(statement, later=False)
        if statement not in self._known:
            decided = [holds for scene in self.scenes if (holds := truth(statement, scene)) is not None]
            self._known[statement] = sum(decided) / max(1, len(decided))
        return self._known[statement]


_CACHE: dict[str, BaseRates] = {}


def base_rates(section: Any) -> BaseRates:
    """The rates of an environment, counted once per process. They depend on ``section`` only."""
    key = json.dumps(section.model_dump(), sort_keys=True, default=str)
    if key not in _CACHE:
        _CACHE[key] = BaseRates(tuple(scene(section, number) for number in range(SCENES)))
    return _CACHE[key]


def scene(section: Any, number: int) -> Scene:
    """The board of reference state ``number``; even numbers play well where somebody can, odd ones at random."""
    env = make_env(section)
    if not isinstance(env, Grounded):
        raise ConfigError("env", [f"env.name: {section.name} cannot say where things are, so nothing has a base rate."])
    seed = FIRST_SEED + number
    rng = Random(f"base rate {number}")
    expert = number % 2 == 0 and has_expert(env)
    env.reset(seed, number)
    seen = env.scene()
    for _ in range(rng.randrange(ACTIONS)):
        plan = env.demonstrate().actions if expert else ()
        if env.step(plan[0] if plan else rng.choice(env.actions())).done:
            break
        seen = env.scene()
    return seen
