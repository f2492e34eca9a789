"""Whatever is shipped is run: every experiment and sweep loads, plans, and (where it fits) trains."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ragen_lab import warm_start
from ragen_lab.config import load
from ragen_lab.inert import inert_knobs
from ragen_lab.sweep.spec import load_sweep
from ragen_lab.track import MemoryTracker
from ragen_lab.train import train

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))


def test_there_are_pages():
    assert {"quickstart", "filter_ratio"} <= {page.stem for page in SWEEPS}
    assert len(EXPERIMENTS) >= 5


@pytest.mark.parametrize("page", EXPERIMENTS, ids=lambda p: p.stem)
def test_every_experiment_loads_and_has_no_inert_knob(page):
    assert inert_knobs(load(page)) == []


@pytest.mark.parametrize("page", SWEEPS, ids=lambda p: p.stem)
def test_every_sweep_loads_and_its_trials_differ(page):
    sweep = load_sweep(page)
    ids = [trial.trial_id for trial in sweep.trials]
    assert len(ids) == len(set(ids))
    assert len(ids) == len({t.arm for t in sweep.trials}) * len({t.seed for t in sweep.trials})


@pytest.mark.parametrize("page", [p for p in EXPERIMENTS if load(p).policy.model == "tiny"], ids=lambda p: p.stem)
def test_every_experiment_that_fits_runs_two_iterations(page, shared_home):
    small = {
        "train.iterations": 2,
        "eval.every": 2,
        "eval.prompts": 8,
        "rollout.prompts": 2,
        "rollout.responses": 2,
        "detect.on_collapse": "continue",
    }
    cfg = load(page)
    if not warm_start.is_ready(cfg, Path("/nonexistent")):  # not shipped, and a full one takes minutes
        small |= {"policy.warm_start.episodes": 100, "policy.warm_start.epochs": 1}
    tracker = MemoryTracker()
    outcome = train(load(page, small), tracker, shared_home)
    assert outcome.status == "finished"
    assert [row["iteration"] for row in tracker.rows] == [0, 1, 2]
    assert all(math.isfinite(tracker.rows[i]["eval/success"]) for i in (0, 2))
    assert all(math.isfinite(tracker.rows[i]["train/grad_norm"]) for i in (1, 2))
