"""What a fault has done, by fact: the witness, the home and MLflow, beside a sweep that nobody disturbed."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragen_lab.mirror import current, metric_from_mlflow, metric_name, open_mlflow
from ragen_lab.runs import from_home

Rows = tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True)
class Reference:
    """An undisturbed sweep: trial -> its rows without their times, and its status."""

    rows: dict[str, Rows]
    status: dict[str, str]


@dataclass
class Damage:
    """What one injected fault cost. All counts, so those of repeats add up."""

    lost: int = 0  # rows of the undisturbed sweep that are missing at the end
    differing: int = 0  # rows that are not bit-equal to it, and points of MLflow that are not those of the home
    repeated: int = 0  # iterations computed more than once
    beyond: int = 0  # of these, such that a whole checkpoint made needless
    duplicates: int = 0  # points, runs or sweeps that MLflow holds twice
    missing: int = 0  # points that MLflow lacks
    wrong: int = 0  # trials with another final status, in the home or in MLflow, and attempts left open
    faults: list[str] = field(default_factory=list)  # what else was not as it should be


def plain(rows: Iterable[Mapping[str, float]]) -> Rows:
    """Rows without their times, comparable bit for bit although NaN differs from itself."""
    return tuple(
        tuple(sorted((k, float(v).hex()) for k, v in row.items() if k != "timestamp" and not k.startswith("time/")))
        for row in rows
    )


def read_home(home: Path, sweep: str) -> tuple[dict[str, Rows], dict[str, str]]:
    runs = from_home(home, sweep).runs
    return {run.trial_id: plain(run.rows) for run in runs}, {run.trial_id: run.status for run in runs}


def compare_home(home: Path, sweep: str, reference: Reference, damage: Damage) -> None:
    rows, status = read_home(home, sweep)
    for trial, expected in reference.rows.items():
        found = rows.get(trial, ())
        damage.lost += max(0, len(expected) - len(found))
        damage.differing += sum(a != b for a, b in zip(expected, found, strict=False))
        damage.differing += max(0, len(found) - len(expected))
        damage.wrong += status.get(trial) != reference.status[trial]
    damage.wrong += len(set(rows) - set(reference.rows))
    with sqlite3.connect(home / "ledger.sqlite") as ledger:
        damage.wrong += ledger.execute("SELECT count(*) FROM attempts WHERE ended IS NULL").fetchone()[0]
    ledger.close()


def compare_witness(lines: Sequence[str], damage: Damage, spoilt: Iterable[tuple[str, int]] = ()) -> None:
    """Count repeated work. ``spoilt``: checkpoints that were damaged on purpose, which nobody can go on from."""
    counts: Counter[tuple[str, int]] = Counter()
    kept: dict[str, set[int]] = defaultdict(set)
    started: set[str] = set()
    for line in lines:
        what, trial, number, _ = line.split()
        iteration = int(number)
        if what == "begin":
            whole = {i for i in kept[trial] if (trial, i) not in set(spoilt)}
            if trial in started:
                damage.beyond += max(0, max(whole, default=-1) + 1 - iteration)
            started.add(trial)
        elif what == "kept":
            kept[trial].add(iteration)
        else:
            counts[trial, iteration] += 1
    damage.repeated += sum(count - 1 for count in counts.values())


def compare_mlflow(uri: str, home: Path, sweep: str, reference: Reference, damage: Damage) -> None:
    """Read MLflow back through its API: every point once, nothing twice."""
    client = open_mlflow(uri)
    experiments = [each for each in client.search_experiments() if each.name == sweep]
    damage.duplicates += max(0, len(experiments) - 1)
    runs = [run for each in experiments for run in client.search_runs([each.experiment_id], max_results=1000)]
    parents = [run for run in runs if run.data.tags.get("ragen_lab.role") == "sweep"]
    damage.duplicates += max(0, len(parents) - 1)
    children = [run for run in runs if "trial_id" in run.data.tags and current(run.data.tags)]
    of_trial = Counter(run.data.tags["trial_id"] for run in children)
    damage.duplicates += sum(count - 1 for count in of_trial.values())
    truth = {run.trial_id: run for run in from_home(home, sweep)}
    for run in children:
        trial = run.data.tags["trial_id"]
        damage.wrong += run.data.tags.get("status") != reference.status.get(trial)
        history = [
            (name, point) for name in run.data.metrics for point in client.get_metric_history(run.info.run_id, name)
        ]
        points = Counter((name, point.step) for name, point in history)
        damage.duplicates += sum(count - 1 for count in points.values())
        expected = {
            (metric_name(name), int(row["iteration"])): (value, round(row["timestamp"] * 1000))
            for row in (truth[trial].rows if trial in truth else ())
            for name, value in row.items()
            if name not in ("iteration", "timestamp")
        }
        damage.missing += len(set(expected) - set(points))
        damage.differing += sum(
            (name, point.step) in expected and not _same(point, *expected[name, point.step]) for name, point in history
        )
        too_many = set(points) - set(expected)
        damage.faults += [f"MLflow has {len(too_many)} points too many"] * bool(too_many)
    for parent in parents[:1]:
        damage.faults += [f"MLflow calls the sweep {parent.info.status}"] * (parent.info.status != "FINISHED")
    absent = set(reference.rows) - set(of_trial)
    damage.missing += sum(len(row) for trial in absent for row in reference.rows[trial])


def _same(point: Any, value: float, milliseconds: int) -> bool:
    """Whether a point of MLflow's is the one that the home holds, bit for bit, and of the same moment."""
    return metric_from_mlflow(point.value).hex() == float(value).hex() and point.timestamp == milliseconds
