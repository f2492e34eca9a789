"""Synthetic runs with planted truths: the config is real, the rows are drawn from a stated curve."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from ragen_lab.config import RunConfig
from ragen_lab.runs import Run, RunTable

HORIZON, EVERY = 60, 5
BASE: dict[str, Any] = {
    "train.iterations": HORIZON,
    "eval.every": EVERY,
    "filter.keep_ratio": 1.0,
    "detect.on_collapse": "continue",
}


def make_run(
    seed: int,
    overrides: dict[str, Any] | None = None,
    collapse_at: int | None = None,
    final: float = 0.6,
    start: float = 0.4,
    seconds: float = 2.0,
    noise: float = 0.01,
    random_line: float | None = 0.2,
    status: str = "finished",
    stop_at: int | None = None,
    iterations: int = HORIZON,
    arm: str = "",
) -> Run:
    """Success climbs from ``start`` to ``final`` in a straight line; from ``collapse_at`` on it is the random line.

    ``stop_at``: the rows end there.
    """
    cfg = RunConfig().with_overrides({**BASE, "train.iterations": iterations, **(overrides or {}), "seed": seed})
    label = arm or ", ".join(f"{path}={value}" for path, value in (overrides or {}).items()) or "base"
    rng = np.random.default_rng([seed, int(cfg.trial_id(), 16)])
    rows = []
    for i in range(iterations + 1):
        if stop_at is not None and i > stop_at:
            break
        level = start + (final - start) * i / iterations
        if collapse_at is not None and i >= collapse_at:
            level = 0.0 if random_line is None else random_line
        row = {"iteration": float(i), "timestamp": float(i)}
        if i % EVERY == 0:
            success = start if i == 0 else float(np.clip(level + noise * rng.normal(), 0, 1))
            row |= {"eval/success": success}
            if random_line is not None:
                row |= {"eval/random": random_line}
        if i:
            row |= {
                "time/rollout_seconds": seconds / 2,
                "time/update_seconds": seconds / 2 * (1 + 0.05 * float(rng.normal())),
            }
        rows.append(row)
    return Run(cfg.trial_id(), cfg.config_id(), "synthetic", label, seed, cfg.flat(), tuple(rows), status, stop_at)


@pytest.fixture
def make() -> Callable[..., Run]:
    return make_run


@pytest.fixture
def table() -> Callable[[Iterable[Run]], RunTable]:
    return lambda runs: RunTable(tuple(runs))
