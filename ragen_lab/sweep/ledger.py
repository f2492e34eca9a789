"""The ledger of a home: which sweeps there are, which trials they ask for, and what was attempted.

One SQLite file, written by drivers only. The trial folders hold the results; the ledger holds who
asked for what. Its view ``runs`` is what ``ragen_lab.runs`` reads: the trials that a sweep asks for now.
Trials that its page no longer names have left it; nothing of them is deleted.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ragen_lab.errors import HomeError, RagenLabError
from ragen_lab.locks import locked
from ragen_lab.runs import LEDGER_FILE, ledger_error, pruned_of
from ragen_lab.sweep.neighbours import leaving
from ragen_lab.sweep.spec import Sweep, Trial
from ragen_lab.track import TRIALS_FOLDER

LEDGER_VERSION = 3

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE sweeps (
    name TEXT PRIMARY KEY, file TEXT NOT NULL, findings TEXT NOT NULL, warnings TEXT NOT NULL,
    command TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL, mirrored TEXT, search TEXT);
CREATE TABLE trials (trial_id TEXT PRIMARY KEY, config_id TEXT NOT NULL, created REAL NOT NULL);
CREATE TABLE sweep_trials (
    sweep TEXT NOT NULL REFERENCES sweeps(name), trial_id TEXT NOT NULL REFERENCES trials(trial_id),
    position INTEGER NOT NULL, arm TEXT NOT NULL, seed INTEGER NOT NULL, iterations INTEGER NOT NULL,
    on_collapse TEXT NOT NULL, config TEXT NOT NULL, mlflow_run_id TEXT, left_at REAL, until INTEGER,
    pruned_at INTEGER, pruned_why TEXT, PRIMARY KEY (sweep, trial_id));
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY, sweep TEXT NOT NULL, trial_id TEXT NOT NULL, started REAL NOT NULL, ended REAL,
    status TEXT NOT NULL, pid INTEGER, host TEXT NOT NULL, iteration INTEGER, error TEXT);
CREATE INDEX attempts_of_trial ON attempts (trial_id);
"""
_VIEW = """
CREATE VIEW runs AS
    SELECT t.sweep, t.position, t.trial_id, trials.config_id, t.arm, t.seed, t.iterations, t.on_collapse,
           t.config, t.mlflow_run_id, t.until, t.pruned_at, t.pruned_why
    FROM sweep_trials AS t JOIN trials ON trials.trial_id = t.trial_id WHERE t.left_at IS NULL;
"""
_PROPOSALS = """
CREATE TABLE proposals (
    sweep TEXT NOT NULL, number INTEGER NOT NULL, search TEXT NOT NULL, arm TEXT, params TEXT NOT NULL,
    attrs TEXT NOT NULL, fault TEXT, made REAL NOT NULL, PRIMARY KEY (sweep, search, number));
"""
# Version of a ledger -> what brings it to the next one.
_STEPS = {
    1: "ALTER TABLE sweep_trials ADD COLUMN left_at REAL; DROP VIEW runs;",
    2: "ALTER TABLE sweep_trials ADD COLUMN until INTEGER; ALTER TABLE sweep_trials ADD COLUMN pruned_at INTEGER;"
    "ALTER TABLE sweeps ADD COLUMN search TEXT;"
    f"ALTER TABLE sweep_trials ADD COLUMN pruned_why TEXT; DROP VIEW IF EXISTS runs; {_VIEW}{_PROPOSALS}",
}


@contextmanager
def _home_errors(home: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if isinstance(error, RagenLabError):
            raise
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            raise ledger_error(home / LEDGER_FILE, error) from error
        raise HomeError(
            f"the home folder {home} cannot be written: {error}. Free some space or permissions there, or name "
            f"another folder with --home; then run the same command again. What was logged before is safe."
        ) from error


def proposals_of(ledger: sqlite3.Connection, sweep: str, search: str) -> list[dict[str, Any]]:
    """The proposals of one search, in order."""
    query = "SELECT * FROM proposals WHERE sweep = ? AND search = ? ORDER BY number"
    return [dict(row) for row in ledger.execute(query, (sweep, search))]


class Ledger:
    """A connection of one thread. Every change is one transaction. Raises HomeError."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with _home_errors(home):
            (home / TRIALS_FOLDER).mkdir(parents=True, exist_ok=True)
            with locked(home / "ledger.lock", wait=60, what="ledger"):  # two first starts at once
                self._database = self._open(home / LEDGER_FILE)
            self.home_id = str(self._value("home_id"))

    def _open(self, file: Path) -> sqlite3.Connection:
        database = sqlite3.connect(file, timeout=60, isolation_level=None)
        database.row_factory = sqlite3.Row
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")  # a few writes per trial: durable costs nothing here
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version > LEDGER_VERSION:
            raise HomeError(
                f"{file} was written by a newer ragen-lab (ledger version {version}, this one knows "
                f"{LEDGER_VERSION}). Upgrade ragen-lab, or name another folder with --home."
            )
        if version == 0:
            made = f"INSERT INTO meta VALUES ('home_id', '{uuid.uuid4().hex}');"
            database.executescript(
                f"BEGIN;{_SCHEMA}{_VIEW}{_PROPOSALS}{made}PRAGMA user_version = {LEDGER_VERSION};COMMIT;"
            )
            return database
        for old in range(version, LEDGER_VERSION):
            database.executescript(f"BEGIN;{_STEPS[old]}PRAGMA user_version = {old + 1};COMMIT;")
        return database

    def close(self) -> None:
        self._database.close()

    def _read(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        with _home_errors(self.home):
            return self._database.execute(query, values)

    def _value(self, key: str) -> str:
        row = self._read("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row["value"])

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with _home_errors(self.home):
            if self._database.in_transaction:  # an interrupt came before the block of that change was entered
                self._database.execute("ROLLBACK")
            try:
                self._database.execute("BEGIN IMMEDIATE")  # may wait long, and an interrupt is raised after it
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # on a full disk SQLite has rolled back by itself
                    self._database.execute("ROLLBACK")
                raise

    def leaving(self, sweep: Sweep) -> list[str]:
        """Trials of this name's sweep that it would lose to this page, in its order.

        A page without arms of its own (``grows``) loses only those of an arm whose settings have changed.
        """
        rows = self._read("SELECT * FROM runs WHERE sweep = ? ORDER BY position", (sweep.name,))
        return [row["trial_id"] for row in leaving(sweep, rows)]

    def record_sweep(
        self, sweep: Sweep, warnings: Sequence[str], command: str, search: Mapping[str, Any] | None = None
    ) -> list[str]:
        """What the sweep asks for now; the trials that its page no longer names, which leave it, not the home."""
        now, file = time.time(), str(Path(sweep.file).absolute())
        with self._change() as database:
            database.execute(
                "INSERT INTO sweeps (name, file, findings, warnings, command, created, updated, search) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET file = excluded.file, "
                "findings = excluded.findings, warnings = excluded.warnings, command = excluded.command, "
                "updated = excluded.updated, search = excluded.search",
                (
                    sweep.name,
                    file,
                    json.dumps(sweep.findings),
                    json.dumps(list(warnings)),
                    command,
                    now,
                    now,
                    None if search is None else json.dumps(search),
                ),
            )
            gone = self.leaving(sweep)
            for trial_id in gone:
                database.execute(
                    "UPDATE sweep_trials SET left_at = ? WHERE sweep = ? AND trial_id = ?", (now, sweep.name, trial_id)
                )
            known = self.positions(sweep.name) if sweep.grows else {}
            for place, trial in enumerate(sweep.trials, start=1 + max(known.values(), default=-1)):
                self._record_trial(database, sweep, known.get(trial.trial_id, place), trial, now)
            # A driver that was killed left its attempts open; we hold the sweep's lock, so they are over.
            database.execute(
                "UPDATE attempts SET status = 'lost', ended = ? WHERE sweep = ? AND ended IS NULL", (now, sweep.name)
            )
        return gone

    @staticmethod
    def _record_trial(database: sqlite3.Connection, sweep: Sweep, position: int, trial: Trial, now: float) -> None:
        cfg = trial.cfg
        database.execute(
            "INSERT INTO trials VALUES (?, ?, ?) ON CONFLICT (trial_id) DO NOTHING",
            (trial.trial_id, cfg.config_id(), now),
        )
        database.execute(
            "INSERT INTO sweep_trials (sweep, trial_id, position, arm, seed, iterations, on_collapse, config) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sweep, trial_id) DO UPDATE SET "
            "position = excluded.position, arm = excluded.arm, iterations = excluded.iterations, "
            "on_collapse = excluded.on_collapse, config = excluded.config, left_at = NULL",
            (
                sweep.name,
                trial.trial_id,
                position,
                trial.arm,
                trial.seed,
                cfg.train.iterations,
                cfg.detect.on_collapse,
                cfg.model_dump_json(),
            ),
        )

    # --- settings that compete ---

    def join(self, sweep: Sweep, trials: Sequence[Trial], proposal: Mapping[str, Any] | None = None) -> None:
        """Trials that come into a running sweep, with the proposal that they were made for."""
        now = time.time()
        with self._change() as database:
            place = 1 + max(self.positions(sweep.name).values(), default=-1)
            for position, trial in enumerate(trials, start=place):
                self._record_trial(database, sweep, position, trial, now)
            if proposal is not None:
                row = {**proposal, "sweep": sweep.name, "made": now}
                database.execute(
                    "INSERT INTO proposals (sweep, number, search, arm, params, attrs, fault, made) "
                    "VALUES (:sweep, :number, :search, :arm, :params, :attrs, :fault, :made)",
                    row,
                )

    def proposals(self, sweep: str, search: str) -> list[dict[str, Any]]:
        """The proposals of one search, in order."""
        with _home_errors(self.home):
            return proposals_of(self._database, sweep, search)

    def ask(self, sweep: str, trial_ids: Sequence[str], until: int) -> None:
        """Remember how far trials are asked to come, before they are."""
        with self._change() as database:
            for trial_id in trial_ids:
                database.execute(
                    "UPDATE sweep_trials SET until = ? WHERE sweep = ? AND trial_id = ?", (until, sweep, trial_id)
                )

    def asked(self, sweep: str) -> dict[str, int]:
        """Trial id -> how far it was asked to come."""
        rows = self._read("SELECT trial_id, until FROM runs WHERE sweep = ? AND until IS NOT NULL", (sweep,))
        return {row["trial_id"]: row["until"] for row in rows}

    def end(self, sweep: str, trial_ids: Sequence[str], at: int, why: str) -> None:
        """Remember that the scheduler has ended a setting for good, as it decides so."""
        with self._change() as database:
            for trial_id in trial_ids:
                database.execute(
                    "UPDATE sweep_trials SET pruned_at = ?, pruned_why = ? WHERE sweep = ? AND trial_id = ?",
                    (at, why, sweep, trial_id),
                )

    def pruned(self, sweep: str) -> dict[str, tuple[int, str]]:
        """Trial id -> (iteration, why) of the trials that the scheduler has ended."""
        return pruned_of(self._database, sweep)

    def prune(self, sweep: str, ended: Mapping[str, tuple[int, str]]) -> None:
        """Say which trials the scheduler has ended: trial id -> (iteration, why). All others of the sweep are not."""
        with self._change() as database:
            database.execute("UPDATE sweep_trials SET pruned_at = NULL, pruned_why = NULL WHERE sweep = ?", (sweep,))
            for trial_id, (at, why) in ended.items():
                database.execute(
                    "UPDATE sweep_trials SET pruned_at = ?, pruned_why = ? WHERE sweep = ? AND trial_id = ?",
                    (at, why, sweep, trial_id),
                )

    def adopt(
        self, record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], proposals: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """Take a sweep of another home's ledger over: its record where the name is new here, and those of its trials
        and proposals that are not here. How many of its trials are recorded here then.

        How far a trial was asked to come, and whether its scheduler has ended it there, is as in the home that had
        brought it further. The other ledger may be of an older version, which knows nothing of that.
        """
        now, name = time.time(), record["name"]
        columns = ("name", "file", "findings", "warnings", "command", "created", "updated", "search")
        with self._change() as database:
            database.execute(
                f"INSERT INTO sweeps ({', '.join(columns)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                tuple(record.get(column) for column in columns),
            )
            database.executemany(
                "INSERT INTO proposals (sweep, number, search, arm, params, attrs, fault, made) "
                "VALUES (:sweep, :number, :search, :arm, :params, :attrs, :fault, :made) ON CONFLICT DO NOTHING",
                proposals,
            )
            place = 1 + max(self.positions(name).values(), default=-1)
            for position, row in enumerate(rows, start=place):
                database.execute(
                    "INSERT INTO trials VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    (row["trial_id"], row["config_id"], now),
                )
                database.execute(
                    "INSERT INTO sweep_trials (sweep, trial_id, position, arm, seed, iterations, on_collapse, config, "
                    "until, pruned_at, pruned_why) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                    "ON CONFLICT (sweep, trial_id) DO UPDATE SET until = excluded.until, "
                    "pruned_at = excluded.pruned_at, pruned_why = excluded.pruned_why "
                    "WHERE excluded.until > coalesce(sweep_trials.until, -1) "
                    "OR (excluded.until = sweep_trials.until AND sweep_trials.pruned_at IS NULL)",
                    (
                        name,
                        row["trial_id"],
                        position,
                        *(row[key] for key in ("arm", "seed", "iterations", "on_collapse", "config")),
                        *(row.get(key) for key in ("until", "pruned_at", "pruned_why")),
                    ),
                )
        return len(self.positions(name))

    def attempt_started(self, sweep: str, trial_id: str, pid: int | None) -> int:
        """Open an attempt; its number. ``pid``: of a process of this machine; None = not known yet, nor its machine."""
        with self._change() as database:
            cursor = database.execute(
                "INSERT INTO attempts (sweep, trial_id, started, status, pid, host) VALUES (?, ?, ?, 'running', ?, ?)",
                (sweep, trial_id, time.time(), pid, "" if pid is None else socket.gethostname()),
            )
            return int(cursor.lastrowid or 0)

    def attempt_ended(
        self, attempt: int, status: str, iteration: int | None, error: str | None, pid: int = 0, host: str = ""
    ) -> None:
        """``pid`` and ``host``: the worker's, where it could still say who it was."""
        with self._change() as database:
            database.execute(
                "UPDATE attempts SET ended = ?, status = ?, iteration = ?, error = ?, "
                "pid = coalesce(nullif(?, 0), pid), host = coalesce(nullif(?, ''), host) WHERE id = ?",
                (time.time(), status, iteration, error, pid, host, attempt),
            )

    def attempts(self, trial_id: str) -> list[dict[str, Any]]:
        """Every attempt at a trial, oldest first."""
        rows = self._read("SELECT * FROM attempts WHERE trial_id = ? ORDER BY id", (trial_id,))
        return [dict(row) for row in rows]

    def record_mirror(self, sweep: str, run_ids: Mapping[str, str], state: str) -> None:
        """Remember the MLflow runs of a sweep's trials and, as ``state``, what was written to them."""
        with self._change() as database:
            for trial_id, run_id in run_ids.items():
                database.execute(
                    "UPDATE sweep_trials SET mlflow_run_id = ? WHERE sweep = ? AND trial_id = ?",
                    (run_id, sweep, trial_id),
                )
            database.execute("UPDATE sweeps SET mirrored = ? WHERE name = ?", (state, sweep))

    def mirror_state(self, sweep: str) -> str | None:
        row = self._read("SELECT mirrored FROM sweeps WHERE name = ?", (sweep,)).fetchone()
        return None if row is None else row["mirrored"]

    def run_ids(self, sweep: str) -> dict[str, str]:
        """Trial id -> MLflow run id, where one is known."""
        rows = self._read(
            "SELECT trial_id, mlflow_run_id FROM sweep_trials WHERE sweep = ? AND mlflow_run_id IS NOT NULL", (sweep,)
        )
        return {row["trial_id"]: row["mlflow_run_id"] for row in rows}

    def positions(self, sweep: str) -> dict[str, int]:
        """Trial id -> place in the sweep, of the trials that it asks for now."""
        rows = self._read("SELECT trial_id, position FROM runs WHERE sweep = ?", (sweep,))
        return {row["trial_id"]: row["position"] for row in rows}

    def left(self, sweep: str) -> frozenset[str]:
        """Trials that the sweep once asked for."""
        rows = self._read("SELECT trial_id FROM sweep_trials WHERE sweep = ? AND left_at IS NOT NULL", (sweep,))
        return frozenset(row["trial_id"] for row in rows)

    def sweep_names(self) -> list[str]:
        return [row["name"] for row in self._read("SELECT name FROM sweeps ORDER BY name")]
