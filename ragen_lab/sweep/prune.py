"""Checkpoints deleted by a policy: what would go is told first, with its bytes and what it costs later.

Rows, trajectories and logs are never touched. A trial that some sweep still has to finish keeps the checkpoint from
which it goes on; a trial under way is left alone.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ragen_lab.config import RunConfig, suggest
from ragen_lab.errors import ConfigError, HomeError, TrialLocked
from ragen_lab.keep import POLICIES, worth_keeping
from ragen_lab.locks import is_locked, locked
from ragen_lab.runs import ended_at, look, reading_ledger, sweep_record
from ragen_lab.sweep.board import plural
from ragen_lab.sweep.rerun import ASIDE_FOLDER
from ragen_lab.track import (
    LOCK_FILE,
    METRICS_FILE,
    TRIALS_FOLDER,
    damage,
    list_checkpoints,
    read_json,
    read_rows,
    trial_folder,
)


@dataclass(frozen=True)
class Pruned:
    """What pruning means for one trial. ``skipped``: why it is left alone."""

    trial_id: str
    name: str  # arm and seed, where a sweep names them
    iteration: int  # the last row there is
    keep: tuple[int, ...] = ()
    delete: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()  # of those to delete: can not be used for anything
    bytes: int = 0
    skipped: str | None = None

    @property
    def repeats(self) -> int:
        """Iterations that growing the trial repeats because of what is deleted."""
        there = {*self.keep, *self.delete} - set(self.damaged)
        usable = {iteration for iteration in there if iteration <= self.iteration}  # without its row it is of no use
        return max(usable, default=0) - max(self.keep, default=0)


@dataclass(frozen=True)
class _Subject:
    """A trial with the configs under which sweeps ask for it; ``asked`` is false where none does any more.

    ``ended``: for each config, at which iteration and why the scheduler of that sweep has ended it.
    """

    trial_id: str
    name: str
    configs: tuple[RunConfig, ...]
    asked: bool
    ended: tuple[tuple[int | None, str | None], ...] = ((None, None),)


def check_policies(keep: Sequence[str]) -> None:
    """Raises ConfigError for a policy that there is not."""
    known = list(POLICIES)
    faults = [
        f"{word!r} is no policy.{suggest(word, known)} Allowed: {', '.join(known)}; may be repeated."
        for word in keep
        if word not in POLICIES
    ]
    if not keep:
        faults = [f"say what to keep: {', '.join(known)}, for example --keep last."]
    if faults:
        raise ConfigError("--keep", faults)


def prune(home: Path, sweep: str | None, keep: Sequence[str], delete: bool = False) -> list[Pruned]:
    """What pruning does to every trial of a sweep (of the home, without one); done only where ``delete``.

    Raises ConfigError for an unknown sweep or policy, HomeError where the home cannot be used.
    """
    check_policies(keep)
    home = home.absolute()
    subjects = _of_sweep(home, sweep) if sweep is not None else _of_home(home)
    return [_prune_one(home, subject, keep, delete) for subject in subjects]


def _of_sweep(home: Path, sweep: str) -> list[_Subject]:
    sweep_record(home, sweep)
    with reading_ledger(home) as ledger:
        ids = [
            row["trial_id"]
            for row in ledger.execute("SELECT trial_id FROM runs WHERE sweep = ? ORDER BY position", (sweep,))
        ]
    known = _asked(home)
    return [known[trial_id] for trial_id in ids]


def _asked(home: Path) -> dict[str, _Subject]:
    """Every trial that some sweep asks for now."""
    found: dict[str, _Subject] = {}
    with reading_ledger(home) as ledger:
        for row in ledger.execute("SELECT * FROM runs ORDER BY sweep, position"):
            cfg = RunConfig.model_validate_json(row["config"])
            before = found.get(row["trial_id"])
            name = f"{row['arm']} seed {row['seed']}"
            known = dict(row)  # a ledger of an older version knows nothing of schedulers
            ended = (known.get("pruned_at"), known.get("pruned_why"))
            found[row["trial_id"]] = _Subject(
                row["trial_id"],
                before.name if before else name,
                (*(before.configs if before else ()), cfg),
                True,
                (*(before.ended if before else ()), ended),
            )
    return found


def _of_home(home: Path) -> list[_Subject]:
    """Every trial folder, those that no sweep asks for any more too."""
    known = _asked(home)
    folders = sorted(path.parent.name for path in home.glob(f"{TRIALS_FOLDER}/*/config.json"))
    found = []
    for name in folders:
        if name in known:
            found.append(known[name])
            continue
        stored = read_json(home / TRIALS_FOLDER / name / "config.json")
        try:
            cfg = RunConfig.model_validate(stored["config"])  # type: ignore[index]
        except (ValidationError, TypeError, KeyError):
            continue  # not a trial of this version: nothing is known of what it needs
        found.append(_Subject(name, "in no sweep now", (cfg,), False))
    return found


def _prune_one(home: Path, subject: _Subject, keep: Sequence[str], delete: bool) -> Pruned:
    folder = trial_folder(home, subject.trial_id)
    if not list_checkpoints(folder):
        return Pruned(subject.trial_id, subject.name, len(read_rows(folder / METRICS_FILE)) - 1)
    if not delete:
        if is_locked(folder / LOCK_FILE):
            return Pruned(subject.trial_id, subject.name, -1, skipped="another process works on it")
        return _decide(folder, subject, keep)
    try:
        with locked(folder / LOCK_FILE):
            decided = _decide(folder, subject, keep)
            _delete(folder, decided.delete)
            return decided
    except TrialLocked as error:
        return Pruned(subject.trial_id, subject.name, -1, skipped=str(error))


def _decide(folder: Path, subject: _Subject, keep: Sequence[str]) -> Pruned:
    """Which checkpoints stay. Only undamaged ones count as kept, so that a policy never rests on a damaged one."""
    rows = read_rows(folder / METRICS_FILE)
    there = dict(list_checkpoints(folder))
    views = [ended_at(look(folder, cfg), *ended) for cfg, ended in zip(subject.configs, subject.ended, strict=True)]
    longest = max(range(len(views)), key=lambda i: len(views[i].rows))
    cfg, judged = subject.configs[longest], views[longest].rows
    unfinished = subject.asked and not all(view.done for view in views)
    others = [policy for policy in keep if policy != "last"]
    damaged: set[int] = set()
    while True:
        usable = [iteration for iteration in sorted(there) if iteration < len(rows) and iteration not in damaged]
        stay = worth_keeping(judged, usable, others, cfg.detect.vote_window)
        if unfinished or "last" in keep:  # of all rows there are, not only of those that a sweep sees
            stay |= set(usable[-1:])
        found = {iteration for iteration in stay if damage(there[iteration]) is not None}
        if not found:
            break
        damaged |= found
    stay = stay or set(usable)  # a policy that finds nothing here is no reason to delete everything
    gone = [iteration for iteration in sorted(there) if iteration not in stay]
    return Pruned(
        subject.trial_id,
        subject.name,
        len(rows) - 1,
        keep=tuple(sorted(stay)),
        delete=tuple(gone),
        damaged=tuple(sorted(damaged)),
        bytes=sum(bytes_of(there[iteration]) for iteration in gone),
    )


def bytes_of(folder: Path) -> int:
    """Size of everything in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _delete(folder: Path, iterations: Iterable[int]) -> None:
    for half in folder.glob("checkpoints/.*.gone"):  # of a prune that was killed
        shutil.rmtree(half)
    for iteration in iterations:
        checkpoint = folder / "checkpoints" / f"{iteration:08d}"
        doomed = checkpoint.with_name(f".{checkpoint.name}.gone")  # half of a checkpoint must not look like one
        try:
            os.rename(checkpoint, doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            raise HomeError(
                f"{checkpoint} cannot be deleted: {error}. Make the folder writable and repeat the command; what was "
                f"deleted before stays deleted, and nothing else was touched."
            ) from error


# --- words ----------------------------------------------------------------------------------------


def size(count: int) -> str:
    """'512 B', '3.1 MiB'."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def as_json(sweep: str | None, keep: Sequence[str], pruned: Sequence[Pruned], deleted: bool) -> dict[str, Any]:
    """The result for a script."""
    return {
        "sweep": sweep,
        "keep": list(keep),
        "deleted": deleted,
        "bytes": sum(entry.bytes for entry in pruned),
        "trials": [{**json.loads(json.dumps(asdict(entry))), "repeats": entry.repeats} for entry in pruned],
    }


def describe(keep: Sequence[str], pruned: Sequence[Pruned], deleted: bool, home: Path | None = None) -> str:
    """What goes (or went), what stays, and what is dearer afterwards.

    ``home``: what lies there beside the trials is told too.
    """
    told = _told(keep, pruned, deleted)
    aside = None if home is None else home.absolute() / ASIDE_FOLDER
    if aside is not None and (held := bytes_of(aside)):
        told += (
            "\nWhat --rerun has put aside "
            f"takes {size(held)} more, which prune leaves alone. When you have compared it, "
            f"delete it: rm -r {shlex.quote(str(aside))}"
        )
    return told


def _told(keep: Sequence[str], pruned: Sequence[Pruned], deleted: bool) -> str:
    touched = [entry for entry in pruned if entry.delete]
    lines = []
    width = max((len(entry.name) for entry in pruned), default=0)
    for entry in pruned:
        head = f"  {entry.trial_id}  {entry.name:<{width}}  "
        if entry.skipped:
            lines.append(f"{head}left alone: {entry.skipped}")
        elif entry.delete:
            broken = f" (damaged: {_numbers(entry.damaged)})" if entry.damaged else ""
            lines.append(
                f"{head}keep {_numbers(entry.keep) or 'none'}, delete {_numbers(entry.delete)}{broken}: "
                f"{size(entry.bytes)}"
            )
    total, count = sum(entry.bytes for entry in touched), sum(len(entry.delete) for entry in touched)
    if not touched:
        lines.append(f"Nothing to delete: every checkpoint there is is kept by {', '.join(keep)} or still needed.")
        return "\n".join(lines)
    done = "Deleted" if deleted else "Would delete"
    lines.append(f"{done} {plural(count, 'checkpoint')} of {plural(len(touched), 'trial')}, {size(total)}.")
    dearer = [entry for entry in touched if entry.repeats]
    if dearer:
        start = "an earlier checkpoint" + ("" if all(entry.keep for entry in dearer) else " or the start")
        lines.append(
            f"Afterwards growing costs more: {plural(len(dearer), 'trial')} would go on from {start} and repeat "
            f"{plural(sum(entry.repeats for entry in dearer), 'iteration')} in all (more of train.iterations, or "
            f"shadow after a stop). The results that are there stay."
        )
    if not deleted:
        lines.append("Nothing was deleted. Repeat the command with --yes to delete.")
    return "\n".join(lines)


def _numbers(iterations: Iterable[int]) -> str:
    return ", ".join(map(str, iterations))
