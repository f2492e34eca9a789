"""Trials computed anew: the old folder is set aside under a name that says when, and compared afterwards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ragen_lab.config import suggest
from ragen_lab.errors import ConfigError, HomeError, TrialLocked
from ragen_lab.locks import locked
from ragen_lab.runs import pruned_trials, reading_ledger, seen
from ragen_lab.sweep import local
from ragen_lab.sweep.board import plural
from ragen_lab.sweep.plan import make_plan
from ragen_lab.sweep.spec import Sweep, Trial
from ragen_lab.track import LOCK_FILE, METRICS_FILE, Row, number_to_json, read_provenance, read_rows, trial_folder

ASIDE_FOLDER = "set-aside"
STATES = ("failed", "collapsed")


@dataclass(frozen=True)
class SetAside:
    """One trial whose folder has been moved; ``folder`` is where it is now."""

    trial: Trial
    folder: Path


def aside_name(home: Path, trial_id: str) -> Path:
    """A free place for the old folder of a trial, named by the present time (UTC)."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    names = [f"{trial_id}.{stamp}", *(f"{trial_id}.{stamp}.{number}" for number in range(2, 1000))]
    return next(place for name in names if not (place := home / ASIDE_FOLDER / name).exists())


def move_aside(home: Path, trial_id: str, target: Path) -> None:
    """Move the folder of a trial away. The caller holds its lock. Raises HomeError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(trial_folder(home, trial_id), target)
    except OSError as error:
        raise HomeError(
            f"{trial_folder(home, trial_id)} cannot be moved to {target}: {error}. Make {home} writable and repeat the "
            f"command; nothing was changed."
        ) from error


def chosen(sweep: Sweep, home: Path, what: str) -> list[Trial]:
    """The trials that ``--rerun what`` names. Raises ConfigError where it names nothing."""
    if what in STATES:
        pruned = pruned_trials(home, sweep.name)
        found = [trial for trial in sweep.trials if seen(home, trial.trial_id, trial.cfg, pruned).status == what]
        if not found:
            raise ConfigError("--rerun", [f"no trial of {sweep.name} has {what}. Leave out --rerun to go on with it."])
        return found
    arms = [arm.name for arm in sweep.arms]
    what = next((arm for arm in arms if what.startswith("#") and arm.split(" ")[0] == what), what)  # by its number
    if what not in arms:
        allowed = ", ".join([*STATES, *arms])
        raise ConfigError("--rerun", [f"no arm {what!r}.{suggest(what, [*STATES, *arms])} Allowed: {allowed}."])
    return [trial for trial in sweep.trials if trial.arm == what]


def set_aside(sweep: Sweep, home: Path, what: str, here: bool = True) -> list[SetAside]:
    """Move away the folders of the trials that ``what`` names (failed, collapsed, or an arm).

    ``here``: they will run on this machine. All are moved, or none. Raises ConfigError for a page that cannot be run,
    and TrialLocked where another process works on one of the trials.
    """
    if here and (faults := local.lacking(sweep.cpus, sweep.gpus, sweep.memory_gb)):
        raise ConfigError(sweep.file, faults)
    make_plan(sweep, home)  # what the driver would refuse after the move is refused before it
    trials = [trial for trial in chosen(sweep, home, what) if trial_folder(home, trial.trial_id).is_dir()]
    for trial in trials:
        with locked(trial_folder(home, trial.trial_id) / LOCK_FILE):
            pass
    moved: list[SetAside] = []
    try:
        for trial in trials:
            with locked(trial_folder(home, trial.trial_id) / LOCK_FILE):
                moved.append(SetAside(trial, aside_name(home, trial.trial_id)))  # known before an interrupt can come
                move_aside(home, trial.trial_id, moved[-1].folder)
    except (HomeError, TrialLocked, KeyboardInterrupt):
        for entry in moved:
            if entry.folder.exists():
                os.rename(entry.folder, trial_folder(home, entry.trial.trial_id))
        raise
    return moved


def told(moved: Sequence[SetAside], sweep: Sweep, home: Path) -> str:
    """What was moved where, and which other sweeps use these trials."""
    if not moved:
        return "Nothing of these trials is there yet: they are computed for the first time."
    ids = [entry.trial.trial_id for entry in moved]
    marks = ", ".join("?" * len(ids))
    with reading_ledger(home) as ledger:
        rows = ledger.execute(
            f"SELECT DISTINCT sweep FROM runs WHERE trial_id IN ({marks}) AND sweep != ? ORDER BY sweep",
            (*ids, sweep.name),
        )
        others = [row["sweep"] for row in rows]
    text = (
        f"{plural(len(moved), 'trial')} will be computed anew, from the start. The old results are kept in "
        f"{home / ASIDE_FOLDER} ({moved[0].folder.name}{', ...' if len(moved) > 1 else ''})."
    )
    if others:
        text += f" They also belong to {', '.join(others)}: repeat its command if it asks for more iterations."
    return text


def compared(entry: SetAside, home: Path) -> str:
    """Whether the new numbers are those of the folder that was set aside, in one sentence."""
    name = f"{entry.trial.arm} seed {entry.trial.seed}"
    folder = trial_folder(home, entry.trial.trial_id)
    old, new = read_rows(entry.folder / METRICS_FILE), read_rows(folder / METRICS_FILE)
    count = min(len(old), len(new))
    if count == 0:
        return f"{name}: nothing to compare with the earlier attempt."
    where = first_difference(old, new)
    if where is None:
        return f"{name}: the same numbers as the earlier attempt, over {plural(count, 'row')}."
    versions = [read_provenance(each).get("commit") or read_provenance(each).get("ragen_lab") for each in
                (entry.folder, folder)]  # fmt: skip
    code = f" The code has changed: {versions[0]} then, {versions[1]} now." if versions[0] != versions[1] else ""
    return f"{name}: differs from the earlier attempt, {where}.{code}"


def comparable(row: Row) -> dict[str, float | str]:
    """A row without what a clock or a detector's setting decides; NaN equals itself."""
    return {
        key: number_to_json(value)
        for key, value in row.items()
        if key != "timestamp" and not key.startswith(("time/", "detect/"))
    }


def first_difference(one: Sequence[Row], other: Sequence[Row]) -> str | None:
    """Where two histories part, up to the end of the shorter; None where they are equal bit for bit."""
    for iteration, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        left, right = comparable(mine), comparable(theirs)
        for key in sorted({*left, *right}):
            if left.get(key) != right.get(key):
                values = f"{left.get(key, 'missing')} and {right.get(key, 'missing')}"
                return f"at iteration {iteration} in {key} ({values})"
    return None
