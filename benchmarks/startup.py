"""How long the light commands take, as whole processes: `python benchmarks/startup.py`.

On a busy machine the clock says more than an idle one would; the CPU seconds beside it hardly do.
"""

from __future__ import annotations

import os
import resource
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


def seconds(words: list[str]) -> tuple[float, float]:
    """(by the clock, of CPU) of one call."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "ragen_lab", *words], cwd=ROOT, capture_output=True, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    for name, words in COMMANDS.items():
        seconds(words)  # warm the file cache
        walls, cpus = zip(*(seconds(words) for _ in range(7)), strict=True)
        print(
            f"{name:20} median {statistics.median(walls):.2f} s, min {min(walls):.2f}, max {max(walls):.2f}; "
            f"CPU {statistics.median(cpus):.2f} s"
        )
    print(f"load {os.getloadavg()[0]:.1f}")
