"""CPU seconds per iteration of every algorithm, and of PPO and GRPO on every page: `python benchmarks/algorithms.py`.

Rollout and update only, mean of five iterations after one that warms up; evaluation is left out. CPU time of one
thread, so that a busy machine does not count against an algorithm.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import tempfile
import time
from pathlib import Path

import torch

from ragen_lab import warm_start
from ragen_lab.algo.advantages import ALGORITHMS
from ragen_lab.config import load
from ragen_lab.policy.model import load_policy
from ragen_lab.train import Learner

PAGES = Path(__file__).parent.parent / "experiments"
ITERATIONS = 5


def cpu_seconds(page: str, algorithm: str, home: Path) -> float:
    """CPU seconds of one iteration."""
    cfg = load(PAGES / f"{page}.yaml", {"algo.name": algorithm})
    learner = Learner(load_policy(warm_start.prepare(cfg, home), cfg.policy), cfg)
    learner.iterate(1)
    began = time.process_time()
    for iteration in range(2, 2 + ITERATIONS):
        learner.iterate(iteration)
    return (time.process_time() - began) / ITERATIONS


def main() -> None:
    torch.set_num_threads(1)
    home = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())  # where warm starts are cached
    for page in ("frozen_lake_ppo", "bandit_ppo"):
        for name in ALGORITHMS:
            print(f"{page:18} {name:22} {cpu_seconds(page, name, home):.2f} CPU s per iteration", flush=True)
    for page in ("bandit_rev_ppo", "slippery_lake_ppo", "sokoban_ppo", "countdown_ppo"):
        for name in ("ppo", "grpo"):
            print(f"{page:18} {name:22} {cpu_seconds(page, name, home):.2f} CPU s per iteration", flush=True)


if __name__ == "__main__":
    main()
