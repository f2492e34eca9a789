"""Shared by all tests: one torch thread, no telemetry, and small models made on the spot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("busy machine", deadline=None)  # a slow example is no fault
settings.load_profile("busy machine")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

SMALL = {
    "policy.model": "tiny",
    "env.name": "frozen_lake",
    "env.slip": 0.0,
    "prompt.style": "compact",
    "rollout.prompts": 4,
    "rollout.responses": 4,
    "rollout.max_new_tokens": 24,
    "rollout.max_context": 512,
    "filter.keep_ratio": 1.0,
    "optim.lr": 1e-3,
    "optim.critic_lr": 1e-3,
    "optim.minibatch": 8,
    "train.iterations": 4,
    "train.checkpoint_every": 1,
    "eval.every": 2,
    "eval.prompts": 16,
}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a power cut asks for fsync, and no test cuts the power; fake sweeps waited for it half of their time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose caches (warm starts, reference lines) are built once per test session."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def small_policy(shared_home: Path):
    """The warm-started model that the package ships: it writes well-formed replies and solves a third."""
    import torch

    from ragen_lab import warm_start
    from ragen_lab.config import RunConfig
    from ragen_lab.policy.model import load_policy

    torch.set_num_threads(1)
    cfg = RunConfig().with_overrides(SMALL)
    return load_policy(warm_start.prepare(cfg, shared_home), cfg.policy)
