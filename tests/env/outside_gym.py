"""An environment that registers itself with Gymnasium when its module is imported, as ``module:Name-v0`` asks for."""

from __future__ import annotations

from typing import Any

import gymnasium


class Dungeon(gymnasium.Env[str, int]):
    """A corridor of ``rooms`` rooms; the seed says where it begins. Its last room is the way out."""

    observation_space = gymnasium.spaces.Text(60, charset="Dungeon: rmf0123456789")
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, rooms: int = 5):
        self.rooms = rooms
        self.room = 0
        self.name = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.name = int(self.np_random.integers(2**31))  # so that no level serves two seeds
        self.room = int(self.np_random.integers(self.rooms - 1))
        return self._page(), {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.room = max(0, self.room + (1 if action else -1))
        out = self.room == self.rooms - 1
        return self._page(), float(out), out, False, {}

    def _page(self) -> str:
        return f"Dungeon {self.name}: room {self.room} of {self.rooms}"


gymnasium.register(id="Dungeon-v0", entry_point="tests.env.outside_gym:Dungeon", max_episode_steps=50)
