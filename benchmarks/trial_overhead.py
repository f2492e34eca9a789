"""What a trial costs beside its training, under Ray and under the local pool: `python benchmarks/trial_overhead.py`.

Eight trials of two iterations each. Overhead per trial after a worker's first one: the time between two ends on one
worker, less the seconds that the trial itself logged for rollout, update and evaluation.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = """
name: overhead
base: {base}
axes:
  optim.lr: [1e-3, 1.1e-3, 1.2e-3, 1.3e-3, 1.4e-3, 1.5e-3, 1.6e-3, 1.7e-3]
seeds: 1
on_collapse: continue
"""
SETS = ["--set", "train.iterations=2", "--set", "eval.every=2"]


def logged(home: Path, trial: str) -> float:
    """Seconds of the phases that the trial measured itself."""
    rows = [json.loads(line) for line in (home / "trials" / trial / "metrics.jsonl").read_text().splitlines()]
    names = ("time/rollout_seconds", "time/update_seconds", "time/eval_seconds")
    return sum(row.get(name, 0.0) for row in rows for name in names)


def overheads(local: bool) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        page, home = Path(folder) / "overhead.yaml", Path(folder) / "home"
        page.write_text(PAGE.format(base=ROOT / "experiments" / "frozen_lake_grpo.yaml"))
        words = ["sweep", str(page), *SETS, "--home", str(home), "--json", *(["--local"] if local else [])]
        subprocess.run([sys.executable, "-m", "ragen_lab", *words], cwd=folder, check=True, capture_output=True)
        with sqlite3.connect(home / "ledger.sqlite") as ledger:
            attempts = ledger.execute("SELECT trial_id, pid, started, ended FROM attempts ORDER BY started").fetchall()
        return _gaps(home, attempts)


def _gaps(home: Path, attempts: list[tuple[str, int, float, float]]) -> list[float]:
    found: list[float] = []
    free: list[float] = []  # when each worker became free
    for trial, _, started, ended in attempts:
        before = [moment for moment in free if moment <= started + 1e-6]
        if before:
            taken = max(before)
            free.remove(taken)
            found.append((ended - taken) - logged(home, trial))
        free.append(ended)
    return found


if __name__ == "__main__":
    for name, local in (("ray", False), ("local pool", True)):
        found = overheads(local)
        print(f"{name:10} median {statistics.median(found):.2f} s, max {max(found):.2f} s over {len(found)} trials")
    print(f"load {os.getloadavg()[0]:.1f}")
