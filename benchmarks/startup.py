"""How long the light commands take, as whole processes: `python benchmarks/startup.py`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMANDS = {
    "--help": ["--help"],
    "check (experiment)": ["check", "experiments/frozen_lake_grpo.yaml"],
    "check (sweep)": ["check", "sweeps/filter_ratio.yaml"],
    "list metrics": ["list", "metrics"],
}


def seconds(words: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ragen_lab", *words], cwd=ROOT, capture_output=True, check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    for name, words in COMMANDS.items():
        seconds(words)  # warm the file cache
        runs = sorted(seconds(words) for _ in range(7))
        print(f"{name:20} median {statistics.median(runs):.2f} s, min {runs[0]:.2f}, max {runs[-1]:.2f}")
