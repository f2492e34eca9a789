"""What a sweep that grows can use of its earlier trials, and what a schedule forbids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ragen_lab.config import RunConfig, horizon_knobs
from ragen_lab.runs import LEDGER_FILE, reading_ledger
from ragen_lab.sweep.spec import Trial

SHOWN = 3


def horizon_notes(trials: Sequence[Trial], home: Path) -> list[str]:
    """Why trials that have no results yet cannot go on from those of a shorter or longer run of the same arm.

    A schedule over train.iterations makes the horizon part of a run's identity: every iteration of the longer run has
    other numbers. ``trials``: those without results.
    """
    bound = [trial for trial in trials if horizon_knobs(trial.cfg)]
    if not bound or not (home / LEDGER_FILE).is_file():
        return []
    known: dict[str, tuple[str, int]] = {}
    with reading_ledger(home) as ledger:
        for row in ledger.execute("SELECT trial_id, config FROM sweep_trials ORDER BY rowid"):
            cfg = _config(row["config"])
            if cfg is not None and horizon_knobs(cfg):
                known[_but_horizon(cfg)] = (row["trial_id"], cfg.train.iterations)
    found = [(trial, *known[key]) for trial in bound if (key := _but_horizon(trial.cfg)) in known]
    found = [(trial, old, length) for trial, old, length in found if old != trial.trial_id]
    if not found:
        return []
    knobs = sorted({knob for trial, _, _ in found for knob in horizon_knobs(trial.cfg)})
    told = "; ".join(
        f"{trial.arm} seed {trial.seed} to {trial.cfg.train.iterations}: not from {old}, which went to {length}"
        for trial, old, length in found[:SHOWN]
    )
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    schedules = " and ".join(f"{knob}=linear" for knob in knobs)
    return [
        f"train.iterations: {schedules} depend{'s' if len(knobs) == 1 else ''} on it, so these are new trials, "
        f"computed from their start ({told}{more}). Only runs with constant schedules go on from their checkpoints."
    ]


def _config(text: str) -> RunConfig | None:
    try:
        return RunConfig.model_validate_json(text)
    except ValidationError:  # of another version, whose trials are not these
        return None


def _but_horizon(cfg: RunConfig) -> str:
    leaves: dict[str, Any] = {path: value for path, value in cfg.identity().items() if path != "train.iterations"}
    return json.dumps({**leaves, "seed": cfg.seed}, sort_keys=True)
