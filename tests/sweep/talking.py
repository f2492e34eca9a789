"""The fake trainer, with something to say: two trajectories per evaluation are stored, as the real one does.

A file ``gate-<iteration>`` in the home holds every trial before that iteration until the file is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ragen_lab.config import RunConfig
from ragen_lab.track import Outcome, Tracker
from tests.sweep import fake


def trajectory(iteration: int, number: int) -> dict[str, Any]:
    plain = {"penalty": 0.0, "reasoning": 0.0, "length_cost": 0.0, "format_ok": True, "actions": ["right"]}
    said = [(f"P . G, turn {k}", f"<answer>go {k}</answer>", 0.5 * k) for k in range(2)]
    turns = [{"observation": seen, "reply": reply, "reward": reward, **plain} for seen, reply, reward in said]
    return {"level_seed": number, "stop": "success", "reward": iteration / 10, "error": None, "turns": turns}


def train(
    cfg: RunConfig,
    tracker: Tracker,
    home: Path,
    progress: Callable[[int, int], None] | None = None,
    until: int | None = None,
) -> Outcome:
    class Talking:
        """The tracker of the trial, which hears of the trajectories before each row."""

        def __getattr__(self, name: str) -> Any:
            return getattr(tracker, name)

        def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
            while (home / f"gate-{iteration}").exists():
                time.sleep(0.05)
            tracker.trajectories(iteration, [trajectory(iteration, number) for number in range(2)])
            tracker.log(iteration, metrics)

    return fake.train(cfg, Talking(), home, progress, until)  # type: ignore[arg-type]
