"""Environments of 'another package', for the tests of outside environments."""

from __future__ import annotations

from random import Random
from typing import Any

from ragen_lab.env.base import Demonstration, StepResult
from ragen_lab.errors import EnvError


class Corridor:
    """Find the door: walk ``length`` steps to the side that the page names. Keeps the whole contract."""

    def __init__(self, length: int = 2):
        self.length = length
        self.side, self.at, self.label = "", 0, 0

    def reset(self, seed: int, dynamics: int = 0) -> str:
        self.side = Random(f"corridor {seed}").choice(("east", "west"))
        self.at, self.label = 0, seed
        return f"Corridor {seed} . The door is {self.side}"

    def step(self, action: str) -> StepResult:
        if abs(self.at) >= self.length or action not in self.actions():
            raise EnvError("corridor: no")
        self.at += 1 if action == "east" else -1
        done = abs(self.at) >= self.length
        won = done and (self.at > 0) == (self.side == "east")
        return StepResult(f"You are {self.at} steps east", float(won), done, won)

    def actions(self) -> tuple[str, ...]:
        return ("east", "west")

    def rules(self) -> str:
        return "Walk to the door. Your actions are east and west. Reaching the door pays 1, the other end pays 0."

    def demonstrate(self) -> Demonstration:
        left = self.length - abs(self.at)
        return Demonstration((self.side,) * left if left > 0 else ())


class Discrete:
    """Stands in for gymnasium.spaces.Discrete."""

    def __init__(self, n: int, start: int = 0):
        self.n, self.start = n, start


class Vault:
    """A text environment with Gymnasium's face: say the digit on the page twice. ``space`` as the test wants it."""

    def __init__(self, digits: int = 3, space: Any = None, tells: bool = False):
        self.action_space = space or Discrete(digits)
        self.digits, self.tells = digits, tells
        self.secret, self.tries = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.secret = Random(seed).randrange(self.digits)
        self.tries, self.good = 0, 0
        return f"Vault number {seed} . The code is {self.secret}", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.tries += 1
        self.good += action - self.action_space.start == self.secret
        won = self.good == 2
        info = {"success": won} if self.tells else {}
        return f"{self.good} of 2", float(won), won, self.tries == 4 and not won, info


class NotAnEnv:
    def reset(self, seed: int, dynamics: int = 0) -> str:
        return ""


class Numbers(Vault):
    """Observations that are no text."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return [seed], {}
