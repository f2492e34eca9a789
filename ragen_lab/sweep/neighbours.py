"""What the ledger of a home says around a sweep: who else asks for its trials, and which of them would leave it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragen_lab.errors import ConfigError
from ragen_lab.runs import LEDGER_FILE, reading_ledger
from ragen_lab.sweep.spec import Sweep


@dataclass(frozen=True)
class Left:
    """A trial that the sweep asked for before and that its page does not name now."""

    trial_id: str
    arm: str
    seed: int


@dataclass(frozen=True)
class Neighbours:
    """``sweeps``: trial id -> the sweeps of this home that ask for it, this one first."""

    sweeps: dict[str, tuple[str, ...]] = field(default_factory=dict)
    leaving: tuple[Left, ...] = ()
    page: str = ""  # the file that the sweep of this name was last run from


def leaving(sweep: Sweep, rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of the ledger's rows of this sweep, those of trials that it would lose to this page, in their order.

    A page without arms of its own (``grows``) loses only those of an arm whose settings have changed.
    """
    asked = {trial.trial_id for trial in sweep.trials}
    arms = {trial.arm: trial.cfg.config_id() for trial in sweep.trials} if sweep.grows else {}
    return [
        row
        for row in rows
        if row["trial_id"] not in asked
        and not (sweep.grows and arms.get(row["arm"], row["config_id"]) == row["config_id"])
    ]


def neighbours_of(sweep: Sweep, home: Path) -> Neighbours:
    """Read only; a home without a ledger has none. Raises HomeError for one that cannot be read."""
    if not (home / LEDGER_FILE).is_file():
        return Neighbours()
    with reading_ledger(home) as ledger:
        rows = ledger.execute(
            "SELECT trial_id, config_id, sweep, arm, seed FROM runs ORDER BY sweep, position"
        ).fetchall()
        page = ledger.execute("SELECT file FROM sweeps WHERE name = ?", (sweep.name,)).fetchone()
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["trial_id"], []).append(row["sweep"])
    mine = [row for row in rows if row["sweep"] == sweep.name]
    gone = tuple(Left(row["trial_id"], row["arm"], row["seed"]) for row in leaving(sweep, mine))
    for names in found.values():
        names.sort(key=lambda name: (name != sweep.name, name))
    return Neighbours({trial_id: tuple(names) for trial_id, names in found.items()}, gone, page["file"] if page else "")


def check_name(sweep: Sweep, near: Neighbours) -> None:
    """Raises ConfigError where the name is that of another page's sweep, which would lose trials to this one.

    A page that has been moved, so that its old file is gone, is the same page.
    """
    gone, before, now = len(near.leaving), Path(near.page).absolute(), Path(sweep.file).absolute()
    if not gone or before.resolve() == now.resolve() or not before.exists():
        return
    raise ConfigError(
        sweep.file,
        [
            f"name: {sweep.name!r} is the sweep of another page in this home, {before}, and {gone} of its trials "
            f"{'is' if gone == 1 else 'are'} not on this one. Give this one a name of its own (--set name=...), or "
            f"another --home."
        ],
    )
