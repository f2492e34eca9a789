"""Trials and sweeps of another home brought into this one.

Every trial is verified before anything is copied: its folder must hold the config whose id it bears, its checkpoints
must be as they were written, and where both homes hold it their rows must be equal up to the end of the shorter. Then
the longer one is here afterwards; a trial that differs is refused and nothing of it is touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ragen_lab.config import RunConfig, suggest
from ragen_lab.errors import ConfigError, HomeError, TrialLocked
from ragen_lab.locks import is_locked, locked
from ragen_lab.runs import all_proposals, reading_ledger
from ragen_lab.sections import SCHEMA_VERSION
from ragen_lab.sweep.board import plural
from ragen_lab.sweep.control import home_option, lock_of
from ragen_lab.sweep.guard import STAGE_FILE
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.prune import bytes_of, size
from ragen_lab.sweep.rerun import first_difference
from ragen_lab.track import (
    DONE_FILE,
    LOCK_FILE,
    METRICS_FILE,
    TRIALS_FOLDER,
    damage,
    list_checkpoints,
    read_json,
    read_rows,
    trial_folder,
)

_ARRIVING = "arriving"  # the folder of a home in which copies become whole
_LEFT_OUT = (LOCK_FILE, STAGE_FILE)


@dataclass(frozen=True)
class Arrival:
    """What becomes of one trial. ``action``: copy | replace (ours is the shorter one) | keep (ours is as long or
    longer) | skip (theirs is empty) | refuse; ``about`` says why."""

    trial_id: str
    action: str
    about: str
    iterations: int  # of theirs
    bytes: int = 0
    damaged: tuple[int, ...] = ()  # checkpoints that are left out


@dataclass(frozen=True)
class Transfer:
    """An import, planned or done. ``sweeps``: name -> trials of it that are recorded here."""

    source: Path
    sweeps: dict[str, int]
    arrivals: tuple[Arrival, ...]
    done: bool

    @property
    def refused(self) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.action == "refuse"]

    @property
    def bytes(self) -> int:
        return sum(arrival.bytes for arrival in self.arrivals)


@dataclass(frozen=True)
class _Asked:
    """A sweep of the other home: its record, its trials and the proposals of its searches."""

    record: dict[str, Any]
    rows: list[dict[str, Any]]
    proposals: list[dict[str, Any]]


# --- planning -------------------------------------------------------------------------------------


def plan_import(home: Path, source: Path, sweep: str | None = None) -> Transfer:
    """What an import would do; nothing is written. Raises ConfigError for a wrong home or name, HomeError for one that
    cannot be read."""
    home, source = home.absolute(), source.absolute()
    if source.resolve() == home.resolve():
        raise ConfigError("import", [f"{source} is this home itself; name the folder of the other one."])
    sweeps = _sweeps_of(source, sweep)
    ids = list(dict.fromkeys(row["trial_id"] for theirs in sweeps.values() for row in theirs.rows))
    if sweep is None:  # what no sweep of theirs asks for any more comes along too
        ids += [name for name in _folders(source) if name not in ids]
    _check_names(home, sweeps)
    there = set(_folders(source))
    arrivals = tuple(_arrival(home, source, trial_id) for trial_id in ids if trial_id in there)
    return Transfer(source, {name: len(theirs.rows) for name, theirs in sweeps.items()}, arrivals, done=False)


def _folders(home: Path) -> list[str]:
    return sorted(path.name for path in home.glob(f"{TRIALS_FOLDER}/*") if path.is_dir() and path.name[0] != ".")


def _sweeps_of(source: Path, sweep: str | None) -> dict[str, _Asked]:
    with reading_ledger(source) as ledger:
        records = {row["name"]: dict(row) for row in ledger.execute("SELECT * FROM sweeps ORDER BY name")}
        if sweep is not None and sweep not in records:
            known = list(records)
            raise ConfigError(
                str(source),
                [f"no sweep named {sweep!r} here.{suggest(sweep, known)} There are: {', '.join(known) or 'none'}."],
            )
        return {
            name: _Asked(
                records[name],
                [dict(r) for r in ledger.execute("SELECT * FROM runs WHERE sweep = ? ORDER BY position", (name,))],
                all_proposals(ledger, name),
            )
            for name in (records if sweep is None else [sweep])
        }


def _check_names(home: Path, sweeps: dict[str, _Asked]) -> None:
    """Refuse to mix two sweeps that share a name but not the meaning of an arm, or not the course of a search."""
    with suppress(HomeError), reading_ledger(home) as ledger:  # a home without a ledger holds no sweeps
        faults = []
        for name, theirs in sweeps.items():
            ours = {
                row["arm"]: row["config_id"]
                for row in ledger.execute("SELECT arm, config_id FROM runs WHERE sweep = ?", (name,))
            }
            clash = sorted({r["arm"] for r in theirs.rows if ours.get(r["arm"], r["config_id"]) != r["config_id"]})
            made = {(row["search"], row["number"]): row["params"] for row in all_proposals(ledger, name)}
            parted = [
                row["number"]
                for row in theirs.proposals
                if made.get((row["search"], row["number"]), row["params"]) != row["params"]
            ]
            if parted:  # told alone: its arms bear the numbers of their proposals
                why = f"its search has proposed other settings from #{min(parted)} on"
            elif clash:
                why = f"its arm {clash[0]!r} has other settings than theirs"
            else:
                continue
            faults.append(
                f"the sweep {name!r} is here too, and {why}. Import into a new home (--home), or import other sweeps "
                f"one at a time with --sweep."
            )
        if faults:
            raise ConfigError("import", faults)


def _arrival(home: Path, source: Path, trial_id: str, known: Arrival | None = None) -> Arrival:
    """``known``: what was found before the locks were taken; its checkpoints are not read once more."""
    theirs, ours = trial_folder(source, trial_id), trial_folder(home, trial_id)
    rows = read_rows(theirs / METRICS_FILE)

    def refuse(why: str) -> Arrival:
        return Arrival(trial_id, "refuse", why, len(rows) - 1)

    if fault := _config_fault(theirs, trial_id):
        return refuse(fault)
    if is_locked(theirs / LOCK_FILE):
        return refuse("another process works on it there; wait for it and repeat the import")
    if not rows:
        return Arrival(trial_id, "skip", "it holds no results yet", -1)
    points = list_checkpoints(theirs)
    damaged = known.damaged if known else tuple(i for i, path in points if damage(path) is not None)
    broken = f"; damaged checkpoints left out: {', '.join(map(str, damaged))}" if damaged else ""
    mass = bytes_of(theirs) - sum(bytes_of(path) for i, path in points if i in damaged)
    length = f"{len(rows) - 1} iterations"
    if not ours.is_dir():
        return Arrival(trial_id, "copy", f"new here, {length}{broken}", len(rows) - 1, mass, damaged)
    if fault := _config_fault(ours, trial_id):
        return refuse(f"the folder of this name here is at fault: {fault}")
    if known is None and is_locked(ours / LOCK_FILE):
        return refuse("another process works on it here; wait for it and repeat the import")
    mine = read_rows(ours / METRICS_FILE)
    if where := first_difference(mine, rows):
        return refuse(f"the trial here and the one there differ {where}; neither was touched")
    if len(rows) > len(mine):
        about = f"theirs goes on to {len(rows) - 1}, ours to {len(mine) - 1}{broken}"
        return Arrival(trial_id, "replace", about, len(rows) - 1, mass, damaged)
    return Arrival(trial_id, "keep", f"there already, with {len(mine) - 1} iterations", len(rows) - 1)


def _config_fault(folder: Path, trial_id: str) -> str | None:
    """Why a folder does not hold the trial that its name says, or None."""
    stored = read_json(folder / "config.json")
    if not isinstance(stored, dict) or not isinstance(stored.get("config"), dict):
        return "its config.json is missing or cut short"
    if stored.get("schema") != SCHEMA_VERSION:
        return f"it has schema version {stored.get('schema')}, this ragen-lab has {SCHEMA_VERSION}: ids do not compare"
    try:
        found = RunConfig.model_validate(stored["config"]).trial_id()
    except ValidationError as error:
        return f"its config.json is none that this ragen-lab knows ({error.error_count()} faults)"
    if found != trial_id or stored.get("trial_id") != trial_id:
        return f"its config.json is that of trial {found}"
    return None


# --- doing ----------------------------------------------------------------------------------------


def bring(home: Path, planned: Transfer, sweep: str | None = None) -> Transfer:
    """Do what ``plan_import`` planned; each trial is looked at again under its locks.

    Each trial arrives whole or not at all, and a repeated import goes on from there. Raises TrialLocked where a sweep
    of the same name runs here, or another import.
    """
    home, source = home.absolute(), planned.source
    sweeps = _sweeps_of(source, sweep)
    _check_space(home, planned)
    ledger = Ledger(home)
    try:
        with ExitStack() as stack:
            stack.enter_context(locked(home / "import.lock", what="import"))
            if (home / _ARRIVING).is_dir():  # of an import that was killed
                _own(home / _ARRIVING)
                shutil.rmtree(home / _ARRIVING)
            for name in sorted(sweeps):
                stack.enter_context(locked(lock_of(home, name), what="sweep"))
            arrivals = tuple(_bring_one(home, source, arrival) for arrival in planned.arrivals)
            refused = {arrival.trial_id for arrival in arrivals if arrival.action == "refuse"}
            recorded = {
                name: ledger.adopt(
                    theirs.record, [row for row in theirs.rows if row["trial_id"] not in refused], theirs.proposals
                )
                for name, theirs in sweeps.items()
            }
    finally:
        ledger.close()
    return Transfer(source, recorded, arrivals, done=True)


def _check_space(home: Path, planned: Transfer) -> None:
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if planned.bytes > free:
        raise HomeError(
            f"{size(planned.bytes)} are to be copied, but only {size(free)} are free at {place}. Free some space, or "
            f"name one sweep with --sweep; or prune the other home first (ragen-lab prune)."
        )


def _bring_one(home: Path, source: Path, planned: Arrival) -> Arrival:
    if planned.action not in ("copy", "replace"):
        return planned
    trial_id = planned.trial_id
    theirs, ours = trial_folder(source, trial_id), trial_folder(home, trial_id)
    arriving = home / _ARRIVING / trial_id
    try:
        with _shared(theirs / LOCK_FILE), ExitStack() as stack:
            if ours.is_dir():
                stack.enter_context(locked(ours / LOCK_FILE))
            fresh = _arrival(home, source, trial_id, planned)
            if fresh.action not in ("copy", "replace"):
                return fresh
            _copy(theirs, arriving, fresh.damaged)
            _put(arriving, ours)
            return fresh
    except TrialLocked as error:
        shutil.rmtree(arriving, ignore_errors=True)
        return Arrival(trial_id, "refuse", str(error), planned.iterations)
    except HomeError:
        raise
    except OSError as error:
        shutil.rmtree(arriving, ignore_errors=True)
        raise HomeError(
            f"trial {trial_id} could not be copied into {home}: {error}. What was here is as it was. Mend that and "
            f"repeat the import: what has arrived is not copied again."
        ) from error


@contextmanager
def _shared(lock: Path) -> Iterator[None]:
    """Keep workers out of a folder that may be read only; without a lock file none has ever been there."""
    try:
        handle = lock.open("r", encoding="utf-8")
    except FileNotFoundError:
        yield
        return
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrialLocked("another process works on it there; wait for it and repeat the import") from None
        yield


def _copy(theirs: Path, arriving: Path, damaged: Sequence[int]) -> None:
    left_out = {*_LEFT_OUT, *(f"{iteration:08d}" for iteration in damaged)}
    shutil.copytree(
        theirs, arriving, ignore=lambda folder, names: [n for n in names if n in left_out or n.startswith(".")]
    )
    _own(arriving)
    for _, path in list_checkpoints(arriving):  # what was read is not yet what was written
        if (fault := damage(path)) is not None:
            raise OSError(f"the copy of a checkpoint is not what it was ({fault})")
    for file in [path for path in arriving.rglob("*") if path.is_file()]:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


def _own(folder: Path) -> None:
    """Make a copy writable: one of a read-only home is as that was, and could be neither moved nor gone on with."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)


def _put(arriving: Path, ours: Path) -> None:
    """A new trial into its place, whole. Raises TrialLocked where a worker has made its folder meanwhile."""
    if ours.is_dir():
        _lengthen(ours, arriving)
        return
    try:
        os.rename(arriving, ours)
    except OSError:
        if not ours.is_dir():
            raise
        raise TrialLocked("another process has begun on it here; wait for it and repeat the import") from None


def _lengthen(ours: Path, arriving: Path) -> None:
    """The rest of a trial into the folder that holds its first rows, whose lock is ours.

    The folder stays in its place, so that its lock keeps others out all the time, and so do its checkpoints: their rows
    are those of the longer one. The rows come last but for DONE.json, which speaks of them: a kill before that leaves a
    trial of the old length, beside which samples and checkpoints of later iterations count for nothing, and the next
    import brings the rest.
    """
    (ours / DONE_FILE).unlink(missing_ok=True)
    points = ours / "checkpoints"
    points.mkdir(exist_ok=True)
    for _, path in list_checkpoints(arriving):
        target = points / path.name
        if target.exists():
            if damage(target) is None:
                continue
            shutil.rmtree(target)
        os.rename(path, target)
    last = [METRICS_FILE, DONE_FILE]
    files = [path for path in arriving.iterdir() if path.is_file() and path.name not in last]
    for file in [*sorted(files), *(arriving / name for name in last if (arriving / name).exists())]:
        os.replace(file, ours / file.name)
    shutil.rmtree(arriving)


# --- words ----------------------------------------------------------------------------------------


def as_json(transfer: Transfer) -> dict[str, Any]:
    """The result for a script."""
    return {
        "source": str(transfer.source),
        "done": transfer.done,
        "bytes": transfer.bytes,
        "sweeps": transfer.sweeps,
        "trials": [json.loads(json.dumps(asdict(arrival))) for arrival in transfer.arrivals],
    }


def describe(transfer: Transfer, home: Path) -> str:
    """What comes, what stays and what is refused."""
    lines = [
        f"  {each.trial_id}  {each.action}: {each.about}"
        for each in transfer.arrivals
        if each.action not in ("keep", "skip")
    ]
    coming = [each for each in transfer.arrivals if each.action in ("copy", "replace")]
    kept = sum(each.action == "keep" for each in transfer.arrivals)
    lines.append(
        f"{'Imported' if transfer.done else 'To import'}: {plural(len(coming), 'trial')}, {size(transfer.bytes)}, from "
        f"{transfer.source}; {kept} there already, {len(transfer.refused)} refused."
    )
    names = ", ".join(f"{name} ({plural(count, 'trial')})" for name, count in transfer.sweeps.items())
    lines.append(f"Sweeps: {names or 'none'}.")
    if transfer.done and transfer.sweeps:
        first, at = next(iter(transfer.sweeps)), home_option(home)
        lines.append(
            f"For their report and MLflow pages: `ragen-lab report {first}{at}` and `ragen-lab sync {first}{at}`. "
            f"To go on with one, run its page against this home."
        )
    return "\n".join(lines)
