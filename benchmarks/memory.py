"""Peak memory of one trial of the tiny model in a process of its own: `python benchmarks/memory.py`."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent.parent / "experiments" / "frozen_lake_grpo.yaml"
TRIAL = """
import resource, sys
from pathlib import Path
from ragen_lab.config import load
from ragen_lab.track import MemoryTracker
from ragen_lab.train import train
home = Path(sys.argv[2])
train(load(sys.argv[1], {"train.iterations": 5, "detect.on_collapse": "continue", "algo.name": sys.argv[3]}),
      MemoryTracker(), home)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""

if __name__ == "__main__":
    for algo in ("grpo", "ppo"):
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run(
                [sys.executable, "-c", TRIAL, str(PAGE), home, algo], capture_output=True, text=True, check=True
            )
        print(f"{algo}: peak {float(done.stdout.split()[-1]):.0f} MiB (imports included)")
    print(f"page size {resource.getpagesize()} B, load {os.getloadavg()[0]:.1f}")
