"""The read side: runs of a sweep as plain data, whatever they were read from.

``Run`` is one trial as one sweep sees it: its rows are cut at that sweep's iterations and stopping policy.
A trial folder may hold more than that (another sweep asked for more) or less; ``view_of`` is the one
place that decides what a sweep sees of it, and whether anything is still to be computed.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen_lab.config import RunConfig, flatten
from ragen_lab.detect import replay
from ragen_lab.errors import ConfigError, HomeError, RagenLabError, TrackingError
from ragen_lab.locks import is_locked
from ragen_lab.mirror import current, metric_from_mlflow, mlflow_errors, open_mlflow, param_from_text
from ragen_lab.redaction import redact, without_secrets
from ragen_lab.track import (
    LOCK_FILE,
    METRICS_FILE,
    Row,
    list_checkpoints,
    read_done,
    read_provenance,
    read_rows,
    trial_folder,
)

LEDGER_FILE = "ledger.sqlite"


@dataclass(frozen=True)
class Run:
    """One trial of a sweep."""

    trial_id: str
    config_id: str
    sweep: str
    arm: str  # human label, for example "keep_ratio=0.5" or "random_drop"
    seed: int
    params: dict[str, Any]  # RunConfig.flat()
    rows: tuple[Row, ...]
    status: str  # finished | collapsed | pruned | stopped | failed | pending
    stop_iteration: int | None = None
    stop_reason: str | None = None
    mlflow_run_id: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def series(self, metric: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """(iterations, values) of the rows that hold ``metric``; NaN and inf are kept."""
        points = [(row["iteration"], row[metric]) for row in self.rows if metric in row]
        iterations = np.array([int(i) for i, _ in points], dtype=np.int64)
        return iterations, np.array([v for _, v in points], dtype=np.float64)

    def last(self, metric: str) -> float | None:
        """The newest value of ``metric``, or None."""
        _, values = self.series(metric)
        return float(values[-1]) if len(values) else None


@dataclass(frozen=True)
class RunTable:
    """The runs of one or more sweeps."""

    runs: tuple[Run, ...]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)


# --- what one sweep sees of a trial ---------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """A trial folder as one config sees it. ``done``: nothing is left to compute for that config."""

    done: bool
    status: str  # as in Run
    rows: tuple[Row, ...] = ()
    stop_iteration: int | None = None
    stop_reason: str | None = None

    @property
    def iteration(self) -> int:
        """The last iteration there is; -1 before the first."""
        return len(self.rows) - 1


def view_of(rows: Sequence[Row], cfg: RunConfig, ended: Mapping[str, Any] | None = None, busy: bool = False) -> View:
    """Cut ``rows`` at the config's iterations and stopping policy, and judge them by its detectors.

    ``ended``: the content of DONE.json; ``busy``: another process is computing. The ``detect/`` flags are
    those of this config: the stored ones may come from a sweep with other thresholds or another horizon.
    """
    asked = list(rows[: cfg.train.iterations + 1])
    verdicts = replay(asked, cfg.detect, cfg.train.iterations)
    judged = [_with_flags(row, flags) for row, flags in zip(asked, verdicts.flags, strict=True)]
    stop = verdicts.stop if cfg.detect.on_collapse == "stop" else None
    if stop is not None:
        return View(True, "collapsed", tuple(judged[: stop.iteration + 1]), stop.iteration, stop.reason)
    if len(judged) > cfg.train.iterations:
        return View(True, "finished", tuple(judged))
    if busy:
        return View(False, "pending", tuple(judged))
    if ended is not None and ended.get("status") == "failed":
        return View(False, "failed", tuple(judged), len(judged) - 1 if judged else None, ended.get("error"))
    return View(False, "stopped" if judged else "pending", tuple(judged))


def ended_at(view: View, iteration: int | None, why: str | None) -> View:
    """The view of a trial that a sweep's scheduler ended at ``iteration``; None = it did not."""
    collapsed = view.status == "collapsed" and view.iteration == iteration
    if iteration is None or view.iteration < iteration or collapsed:
        return view
    return View(True, "pruned", view.rows[: iteration + 1], iteration, why)


def pruned_trials(home: Path, sweep: str) -> dict[str, tuple[int, str]]:
    """Trial id -> (iteration, why) of the trials that the scheduler of a sweep has ended; {} before its first run."""
    if not (home / LEDGER_FILE).is_file():
        return {}
    with reading_ledger(home) as ledger:
        if "pruned_at" not in {column["name"] for column in ledger.execute("PRAGMA table_info(runs)")}:
            return {}  # a ledger of an older version, which only the next sweep brings up to date
        return pruned_of(ledger, sweep)


def pruned_of(ledger: sqlite3.Connection, sweep: str) -> dict[str, tuple[int, str]]:
    """``pruned_trials`` of an open ledger of the present version."""
    query = "SELECT trial_id, pruned_at, pruned_why FROM runs WHERE sweep = ? AND pruned_at IS NOT NULL"
    return {row["trial_id"]: (row["pruned_at"], row["pruned_why"]) for row in ledger.execute(query, (sweep,))}


def all_proposals(ledger: sqlite3.Connection, sweep: str) -> list[dict[str, Any]]:
    """Those of every search that a sweep has had; none in a ledger of an older version."""
    if ledger.execute("SELECT 1 FROM sqlite_master WHERE name = 'proposals'").fetchone() is None:
        return []
    query = "SELECT * FROM proposals WHERE sweep = ? ORDER BY search, number"
    return [dict(row) for row in ledger.execute(query, (sweep,))]


def _with_flags(row: Row, flags: Mapping[str, float]) -> Row:
    return {**{key: value for key, value in row.items() if not key.startswith("detect/")}, **flags}


def look(folder: Path, cfg: RunConfig) -> View:
    """The view that ``cfg`` has of a trial folder, which need not exist."""
    if not folder.is_dir():
        return View(False, "pending")
    return view_of(read_rows(folder / METRICS_FILE), cfg, read_done(folder), is_locked(folder / LOCK_FILE))


def seen(home: Path, trial_id: str, cfg: RunConfig, pruned: Mapping[str, tuple[int, str]]) -> View:
    """The view that a sweep has of a trial: ``look``, ended where its scheduler ended it (``pruned_trials``)."""
    return ended_at(look(trial_folder(home, trial_id), cfg), *pruned.get(trial_id, (None, None)))


def durable(view: View, folder: Path) -> View:
    """Of a trial that is not done, only the rows that a resume keeps: those up to its newest checkpoint.

    Later rows will be computed again. Their numbers come out the same, but not their times.
    """
    if view.done:
        return view
    checkpoints = list_checkpoints(folder)
    kept = checkpoints[-1][0] + 1 if checkpoints else 0
    return replace(view, rows=view.rows[:kept])


# --- readers --------------------------------------------------------------------------------------


@contextmanager
def reading_ledger(home: Path) -> Iterator[sqlite3.Connection]:
    """The home's ledger, read only; also from a home that may not be written. Raises HomeError."""
    file = home / LEDGER_FILE
    if not file.is_file():
        raise HomeError(f"{home} holds no sweeps yet (no {LEDGER_FILE}). Run a sweep first, or name another --home.")
    try:
        ledger = _connect(file)
        try:
            yield ledger
        finally:
            ledger.close()
    except (sqlite3.Error, OSError) as error:
        if isinstance(error, RagenLabError):
            raise
        raise ledger_error(file, error) from error


def _connect(file: Path) -> sqlite3.Connection:
    with suppress(sqlite3.OperationalError):  # no index of the write-ahead log can be made in a read-only folder
        ledger = _connected(f"{file.absolute().as_uri()}?mode=ro")
        ledger.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return ledger
    log = file.with_name(file.name + "-wal")
    if not log.is_file() or not log.stat().st_size:
        return _connected(f"{file.absolute().as_uri()}?immutable=1")
    with tempfile.TemporaryDirectory(prefix="ragen-ledger-") as folder:  # the newest entries are in the log
        for each in (file, log):
            shutil.copyfile(each, Path(folder) / each.name)
        copy, memory = sqlite3.connect(Path(folder) / file.name), _connected(":memory:")
        copy.backup(memory)
        copy.close()
    return memory


def _connected(uri: str) -> sqlite3.Connection:
    ledger = sqlite3.connect(uri, uri=True, timeout=30)
    ledger.row_factory = sqlite3.Row
    return ledger


def ledger_error(file: Path, error: Exception) -> HomeError:
    """What a ledger that fails means, and the next step."""
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return HomeError(
            f"the ledger {file} is damaged: {error}. The trial folders beside it hold the results: move this file and "
            f"its -wal and -shm files away and repeat your sweep commands, which write a new ledger and use what is "
            f"there; no finished trial is computed again."
        )
    return HomeError(
        f"the ledger {file} cannot be read: {error}. Set the permissions of {file.parent} right, or name another "
        f"folder with --home."
    )


def sweep_record(home: Path, sweep: str) -> dict[str, Any]:
    """What the ledger says of a sweep: findings, plan warnings, command. Raises ConfigError for an unknown one."""
    with reading_ledger(home) as ledger:
        known = [row["name"] for row in ledger.execute("SELECT name FROM sweeps ORDER BY name")]
        if sweep not in known:
            raise ConfigError(str(home), [f"no sweep named {sweep!r} here. There are: {', '.join(known) or 'none'}."])
        row = ledger.execute("SELECT * FROM sweeps WHERE name = ?", (sweep,)).fetchone()
    return {**dict(row), **{key: json.loads(row[key]) for key in ("findings", "warnings")}}


def from_home(home: Path, sweep: str) -> RunTable:
    """The runs of a sweep, read from the ledger and the trial folders, in the order of its page."""
    sweep_record(home, sweep)
    with reading_ledger(home) as ledger:
        entries = ledger.execute("SELECT * FROM runs WHERE sweep = ? ORDER BY position", (sweep,)).fetchall()
    pruned = pruned_trials(home, sweep)
    runs = []
    for entry in entries:
        cfg = RunConfig.model_validate(json.loads(entry["config"]))
        folder = trial_folder(home, entry["trial_id"])
        view = durable(seen(home, entry["trial_id"], cfg, pruned), folder)
        runs.append(run_of(view, cfg, sweep, entry["arm"], read_provenance(folder), entry["mlflow_run_id"]))
    return RunTable(tuple(runs))


def run_of(
    view: View, cfg: RunConfig, sweep: str, arm: str, provenance: dict[str, Any], mlflow_run_id: str | None = None
) -> Run:
    """A view of a trial with the names that a sweep gives it, fit to be shown: without secrets."""
    return Run(
        trial_id=cfg.trial_id(),
        config_id=cfg.config_id(),
        sweep=sweep,
        arm=arm,
        seed=cfg.seed,
        params=flatten(without_secrets(cfg.model_dump())),
        rows=view.rows,
        status=view.status,
        stop_iteration=view.stop_iteration,
        stop_reason=redact(view.stop_reason) if view.stop_reason else None,
        mlflow_run_id=mlflow_run_id,
        provenance=provenance,
    )


def from_mlflow(uri: str, sweep: str) -> RunTable:
    """The runs of a sweep, read from an MLflow server or database; equal to what ``from_home`` reads.

    Where several homes mirrored the same trial, the copy with the most iterations is taken.
    """
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise TrackingError(
            f"there is no MLflow database at {uri}. An address looks like sqlite:////folder/mlflow.db (absolute, four "
            f"slashes)."
        )
    client = open_mlflow(uri)
    with mlflow_errors(uri):
        experiment = client.get_experiment_by_name(sweep)
        if experiment is None:
            known = sorted(each.name for each in client.search_experiments())
            raise ConfigError(uri, [f"no sweep (experiment) named {sweep!r}. There are: {', '.join(known) or 'none'}."])
        found: list[Any] = []
        token = None
        while True:
            page = client.search_runs([experiment.experiment_id], max_results=1000, page_token=token)
            found += page
            token = page.token
            if not token:
                break
        newest: dict[str, Any] = {}
        for entry in sorted(found, key=lambda entry: int(entry.data.tags.get("mirrored_iteration", -1))):
            if "trial_id" in entry.data.tags and current(entry.data.tags):
                newest[entry.data.tags["trial_id"]] = entry
        ordered = sorted(newest.values(), key=lambda entry: int(entry.data.tags.get("position", 0)))
        return RunTable(tuple(_run_from_mlflow(client, entry, sweep) for entry in ordered))


def _run_from_mlflow(client: Any, entry: Any, sweep: str) -> Run:
    tags = entry.data.tags
    rows: dict[int, Row] = {}
    for name in entry.data.metrics:
        if name.startswith("system/"):  # of the process, not of the run: no row holds them
            continue
        for point in client.get_metric_history(entry.info.run_id, name):
            row = rows.setdefault(point.step, {"iteration": point.step, "timestamp": point.timestamp / 1000})
            row[name] = metric_from_mlflow(point.value)
    stop = tags.get("stop_iteration", "")
    return Run(
        trial_id=tags["trial_id"],
        config_id=tags["config_id"],
        sweep=sweep,
        arm=tags["arm"],
        seed=int(tags["seed"]),
        params={path: param_from_text(text) for path, text in entry.data.params.items()},
        rows=tuple(rows[step] for step in sorted(rows)),
        status=tags["status"],
        stop_iteration=int(stop) if stop else None,
        stop_reason=tags.get("stop_reason") or None,
        mlflow_run_id=entry.info.run_id,
        provenance=json.loads(tags.get("provenance", "{}")),
    )
