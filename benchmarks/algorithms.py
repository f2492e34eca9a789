"""The table of algorithms in LOG.md, from the runs of the sweeps that hold it: `python -m benchmarks.algorithms HOME`.

Fill the home first, one trial at a time, so that CPU seconds are comparable:
`ragen-lab sweep sweeps/algorithms_frozen_lake.yaml --local --workers 1 --home HOME`, and so for every page in SWEEPS.
CPU seconds are those of a trial's process (rollouts, updates, evaluations; no warm start), so a busy machine costs less
than it would on the clock, but not nothing: caches are shared.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from ragen_lab.errors import RagenLabError
from ragen_lab.runs import Run, from_home

SWEEPS = (
    "algorithms_frozen_lake",
    "algorithms_bandit",
    "baselines_bandit_rev",
    "baselines_slippery",
    "baselines_sokoban",
    "baselines_countdown",
    "algorithms_variants",
)
HEAD = "| arm | iterations | start | end | training | CPU s |"


def values(runs: list[Run], metric: str, row: int, digits: int = 2) -> str:
    """The metric's first (0) or newest (-1) value of each run."""
    shown = []
    for run in runs:
        _, found = run.series(metric)
        shown.append(f"{found[row]:.{digits}f}" if len(found) else "-")
    return " ".join(shown)


def training(run: Run) -> str:
    """Success of the sampled trajectories, mean of the first two and of the last three iterations."""
    _, found = run.series("rollout/success")
    return f"{found[:2].mean():.2f} > {found[-3:].mean():.2f}" if len(found) >= 5 else "-"


def line(metric: str, run: Run) -> str:
    value = run.last(metric)
    return "none" if value is None else f"{value:.2f}"


def print_sweep(name: str, runs: list[Run]) -> None:
    """A table per environment, one line per arm, its seeds side by side; arms in the order of the page."""
    by_place: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        lines = ", ".join(
            f"{word} {line(f'eval/{metric}', run)}"
            for word, metric in (("random", "random"), ("best fixed string", "fixed_string"), ("optimal", "optimal"))
        )
        if run.rows:
            by_place.setdefault(lines, {}).setdefault(run.arm, []).append(run)
    missing = [f"{run.arm} seed {run.seed}" for run in runs if not run.rows]
    for lines, arms in by_place.items():
        print(f"\n`sweeps/{name}.yaml`: {lines}.\n\n{HEAD}\n| --- | --- | --- | --- | --- | --- |")
        for arm, each in arms.items():
            each.sort(key=lambda run: run.seed)
            iterations = " ".join(str(int(run.rows[-1]["iteration"])) for run in each)
            seconds = [float(np.sum(run.series("time/cpu_seconds")[1])) for run in each]
            print(
                f"| {arm.removeprefix('name=')} | {iterations} | {values(each, 'eval/success', 0)} "
                f"| {values(each, 'eval/success', -1)} | {', '.join(map(training, each))} "
                f"| {' '.join(f'{s:.0f}' for s in seconds)} |"
            )
    if missing:
        print(f"\nNot run: {', '.join(missing)}.")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.algorithms HOME")
    for name in SWEEPS:
        try:
            print_sweep(name, list(from_home(Path(sys.argv[1]), name)))
        except RagenLabError as error:
            print(f"\n`sweeps/{name}.yaml`: {error}")


if __name__ == "__main__":
    main()
