"""How often a statement is true on levels that the speaker has not seen: what the reasoning reward is measured against.

A place drawn evenly from the board is no such measure: boxes lie away from the edge, a room's edge is always wall, and
a player who plays stands near what matters. So the rate is counted, on states of training levels of the same
environment, three kinds of them: at the start, and after 1 to 9 actions at random or well played. The rate of a
statement is the highest of the three, so that it earns nothing to know what kind of state one is in, either.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from ragen_lab.env.base import has_expert, make_env
from ragen_lab.env.grounding import Grounded, Scene, Statement, truth
from ragen_lab.errors import ConfigError

KINDS = ("start", "random", "well")
SCENES = 256  # of each kind
FIRST_SEED = 2**34  # above the levels that training and warm starts draw
ACTIONS = 10  # an episode's first ones; fewer than this are played, at least one


class BaseRates:
    """Statement -> the share of scenes, among those that decide it, in which it is true: the highest of any kind."""

    def __init__(self, kinds: Sequence[Sequence[Scene]]):
        self.kinds = kinds
        self._known: dict[Statement, float] = {}

    def __call__(self, statement: Statement) -> float:
        statement = replace(statement, later=False)
        if statement not in self._known:
            self._known[statement] = max(_share(statement, scenes) for scenes in self.kinds)
        return self._known[statement]


def _share(statement: Statement, scenes: Sequence[Scene]) -> float:
    decided = [holds for scene in scenes if (holds := truth(statement, scene)) is not None]
    return sum(decided) / max(1, len(decided))


_CACHE: dict[str, BaseRates] = {}


def base_rates(section: Any) -> BaseRates:
    """The rates of an environment, counted once per process. They depend on ``section`` only."""
    key = json.dumps(section.model_dump(), sort_keys=True, default=str)
    if key not in _CACHE:
        _CACHE[key] = BaseRates([[scene(section, kind, number) for number in range(SCENES)] for kind in KINDS])
    return _CACHE[key]


def scene(section: Any, kind: str, number: int) -> Scene:
    """The board of reference state ``number`` of a kind; where nobody can play well, 'well' is at random too."""
    env = make_env(section)
    if not isinstance(env, Grounded):
        raise ConfigError("env", [f"env.name: {section.name} cannot say where things are, so nothing has a base rate."])
    seed = FIRST_SEED + number
    rng = Random(f"base rate {number}")
    expert = kind == "well" and has_expert(env)
    env.reset(seed, number)
    seen = env.scene()
    for _ in range(0 if kind == "start" else rng.randrange(1, ACTIONS)):
        plan = env.demonstrate().actions if expert else ()
        if env.step(plan[0] if plan else rng.choice(env.actions())).done:
            break
        seen = env.scene()
    return seen
