"""What 500 trials of one second cost beside their work: `python -m benchmarks.many_trials`.

The trainer of the fault harness sleeps for a second in eleven rows. Told: wall clock and CPU seconds, peak memory of
the driver and of the largest other process, files and bytes of the home, rows in MLflow, and what `ragen-lab sweep`
takes once all is done: first with the report still to be written, then five times with nothing left to do.
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults.session import ROOT
from benchmarks.faults.trainer import FOLDER, SECONDS

ROWS = 11
BASE = """
policy: {model: tiny}
prompt: {style: compact}
env: {name: frozen_lake, slip: 0.0}
rollout: {max_new_tokens: 24, max_context: 512}
train: {iterations: 10, checkpoint_every: 5}
eval: {every: 1}
"""


def page(trials: int, seeds: int = 10) -> str:
    """A sweep page of so many trials."""
    rates = ", ".join(f"{1e-4 * (1 + i):.6f}" for i in range(-(-trials // seeds)))
    return f"base: base.yaml\non_collapse: continue\nseeds: {seeds}\naxes: {{optim.lr: [{rates}]}}\n"


def peak(pid: int) -> int:
    """Peak resident memory of a process in bytes; 0 once it has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def run(folder: Path, engine: str, workers: int, seconds: float) -> tuple[float, float, dict[str, int]]:
    """(wall seconds, CPU seconds of all its processes, peak bytes of "driver" and of the "largest other" process)."""
    command = [sys.executable, "-m", "benchmarks.faults.driver", str(folder / "many.yaml"), str(folder / "home")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), FOLDER: str(folder), SECONDS: str(seconds / ROWS)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with (folder / "said.txt").open("ab") as said:
        driver = subprocess.Popen([*command, engine, str(workers)], env=environment, stderr=said, cwd=folder)
    peaks: dict[int, int] = {}
    while driver.poll() is None:
        for pid in (driver.pid, *_descendants(driver.pid)):
            peaks[pid] = max(peaks.get(pid, 0), peak(pid))
        time.sleep(0.25)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if driver.returncode:
        raise RuntimeError((folder / "said.txt").read_text()[-2000:])
    cpu = _cpu(before, after)
    of_driver = peaks.pop(driver.pid, 0)
    return wall, cpu, {"driver": of_driver, "largest other": max(peaks.values(), default=0)}


def _cpu(before: resource.struct_rusage, after: resource.struct_rusage) -> float:
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def command_again(folder: Path) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of the user's own command, report included, on the finished sweep."""
    command = [sys.executable, "-m", "ragen_lab", "sweep", "many.yaml", "--home", "home", "--local"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True)
    return time.monotonic() - began, _cpu(before, resource.getrusage(resource.RUSAGE_CHILDREN))


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(below for child in children for below in _descendants(child))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a trial; 0 leaves only what it costs beside")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-") as name:
        folder = Path(name)
        (folder / "base.yaml").write_text(BASE)
        (folder / "many.yaml").write_text(page(chosen.trials))
        wall, cpu, peaks = run(folder, chosen.engine, chosen.workers, chosen.seconds)
        home = folder / "home"
        files = [file for file in home.rglob("*") if file.is_file()]
        with sqlite3.connect(home / "mlflow.db") as database:
            counts = {
                table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("runs", "metrics", "params", "tags")
            }
        database.close()
        report, report_cpu = command_again(folder)
        again = [command_again(folder) for _ in range(5)]
        ideal = chosen.trials * chosen.seconds / chosen.workers
        who = f"{chosen.engine}, {chosen.workers} workers, load {os.getloadavg()[0]:.1f}"
        print(f"{chosen.trials} trials of {chosen.seconds:g} s, {who}")
        print(f"time: {wall:.0f} s (the trials' own seconds: {ideal:.0f}), CPU {cpu:.0f} s")
        print("memory: " + ", ".join(f"{who} {size / 1e6:.0f} MB" for who, size in peaks.items()))
        print(f"files: {len(files)}, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB")
        print("MLflow rows: " + ", ".join(f"{table} {count}" for table, count in counts.items()))
        print(f"the command once all is done, writing the report: {report:.2f} s (CPU {report_cpu:.2f} s)")
        told = ", ".join(f"{wall:.2f} (CPU {cpu:.2f})" for wall, cpu in again)
        print(f"the same command again, five times: {told} s; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
