"""The mirror in MLflow: written in batches by the driver, and rebuilt from the trial folders at any time."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ragen_lab.errors import ConfigError, TrackingError
from ragen_lab.locks import locked
from ragen_lab.mirror_traces import delete_traces, write_traces
from ragen_lab.redaction import redact
from ragen_lab.sections import URI_SCHEMES
from ragen_lab.track import Row, read_system, read_trajectories

if TYPE_CHECKING:  # runs.py reads what this file writes, so the import may not be mutual at run time
    from mlflow.tracking import MlflowClient

    from ragen_lab.runs import Run

log = logging.getLogger(__name__)

MLFLOW_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # its errors are raised too, and told by us without their tracebacks
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # The default is seven retries with doubling waits: minutes of silence for a server that is gone.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
_BIGGEST = 1.7976931348623157e308  # how MLflow stores infinity
LEFT, REPLACED = "left_sweep", "replaced"  # tags of runs that a sweep no longer shows, with the value "true"
_BATCH = 900  # MLflow takes 1000 metrics per call
_LONGEST = 6000  # characters of a parameter in MLflow, which silently drops the rest; a tag may have 8000
STATUS_IN_MLFLOW = {"finished": "FINISHED", "collapsed": "FINISHED", "pruned": "KILLED", "stopped": "KILLED",
                    "failed": "FAILED", "pending": "SCHEDULED", "running": "RUNNING"}  # fmt: skip


_NOTE = (  # the description of the experiment, for whoever meets it without us
    "A sweep of ragen-lab. The run of the sweep's name holds its trials: open it with its plus sign, or filter by "
    "`tags.arm != ''` to list them. Tags: `arm` and `seed`; `status` (finished, collapsed, failed, stopped, pending) "
    "with `stop_reason`. Parameters are the knobs of the trial. `eval/success` is the share of levels solved; "
    "`eval/random`, `eval/fixed_string` and `eval/optimal` are its reference lines; `detect/` metrics are 1 while a "
    "collapse detector is in alarm. Traces are a sample of evaluation trajectories."
)


def default_uri(home: Path) -> str:
    """The MLflow database of a home, as an absolute URI (a relative one would follow the working directory)."""
    return f"sqlite:///{(home / 'mlflow.db').absolute()}"


def metric_name(name: str) -> str:
    """``name`` with every character that MLflow refuses replaced."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", "_", name)


def param_to_text(value: Any) -> str:
    """A knob's value as an MLflow parameter: words bare, all else as JSON, so that it reads back exactly.

    A text longer than MLflow keeps is ``shortened``: what it holds must equal what we would write again.
    """
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return shortened(value)
    return shortened(json.dumps(value))


def shortened(text: str, longest: int = _LONGEST) -> str:
    """``text``, cut where it is too long, with a digest of the whole: different long texts stay different."""
    if len(text) <= longest:
        return text
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
    said = f" ... [cut; the whole has {len(text)} characters, SHA-256 {digest}]"
    return text[: longest - len(said)] + said


def param_from_text(text: str) -> Any:
    """The inverse of ``param_to_text``."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def metric_from_mlflow(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) == _BIGGEST else value


def uri_fault(uri: str) -> str | None:
    """Why ``uri`` can never be an MLflow server or database, whatever is running there; None where it can."""
    scheme = uri.partition(":")[0].partition("+")[0].lower() if ":" in uri else "databricks" * (uri == "databricks")
    plugins = [point.name for point in entry_points(group="mlflow.tracking_store")]
    if scheme in ("http", "https") and not urlsplit(uri).netloc:
        why = "has no host name"
    elif scheme in URI_SCHEMES or scheme in plugins:
        return None
    elif scheme in ("", "file"):
        why = "is a folder, in which MLflow no longer keeps runs"
    else:
        why = f"begins with {scheme!r}, which MLflow does not know"
    return (
        f"{redact(uri)!r} {why}. Allowed: http://HOST:PORT, https://HOST, sqlite:////folder/mlflow.db or another "
        f"database ({', '.join(URI_SCHEMES[3:6])})."
    )


def _stamp(rows: Sequence[Row]) -> str:
    """How many rows, and a digest of their times: a row that is computed again has another time."""
    times = ",".join(repr(row["timestamp"]) for row in rows)
    return f"{len(rows)} {hashlib.sha256(times.encode()).hexdigest()[:16]}"


def current(tags: Mapping[str, str]) -> bool:
    """Whether the run with these tags is what its sweep asks for now: neither gone from it nor replaced."""
    return tags.get(LEFT) != "true" and tags.get(REPLACED) != "true"


def quieten() -> None:
    """Give MLflow our settings, where the user has given none; it reads some of them at every request."""
    for key, value in MLFLOW_QUIET.items():
        os.environ.setdefault(key, value)


def open_mlflow(uri: str) -> MlflowClient:
    """A client for ``uri``, with telemetry off, logging quiet and a SQLite database created and migrated.

    Raises ConfigError for an address that can never be one, TrackingError when the server or database cannot be
    reached.
    """
    if fault := uri_fault(uri):
        raise ConfigError("track.mlflow_uri", [fault])
    quieten()
    from mlflow.tracking import MlflowClient

    for name in ("alembic", "urllib3"):  # after the import, which sets levels of its own
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("mlflow").setLevel(MLFLOW_QUIET["MLFLOW_LOGGING_LEVEL"])

    with mlflow_errors(uri):
        if not uri.startswith("sqlite:///"):
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
            return client
        file = Path(uri.removeprefix("sqlite:///"))
        file.parent.mkdir(parents=True, exist_ok=True)
        # Two first initialisations at once fail with a duplicate column: one at a time.
        with locked(file.with_name(file.name + ".lock"), wait=120, what="MLflow database"):
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
            _write_ahead(file)
        return client


def _inode(uri: str) -> int | None:
    file = Path(uri.removeprefix("sqlite:///"))
    return file.stat().st_ino if uri.startswith("sqlite:///") and file.exists() else None


def _write_ahead(file: Path) -> None:
    import sqlite3

    with sqlite3.connect(file, timeout=30) as database:
        database.execute("PRAGMA journal_mode=WAL")
    database.close()


@contextmanager
def mlflow_errors(uri: str) -> Iterator[None]:
    """Every way in which MLflow says that it cannot be reached or written, as a TrackingError."""
    import sqlite3

    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError) as error:  # a database's driver
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = reason.partition(" with exception ")[0]  # what follows is the inside of a library
        reason = textwrap.shorten(reason, 300, placeholder=" ...")
        raise TrackingError(redact(f"MLflow at {uri} cannot be used: {reason}")) from error


@dataclass
class _Child:
    """What MLflow holds of one trial."""

    run_id: str
    params: dict[str, str]
    tags: dict[str, str]
    mirrored: int  # last iteration written

    def agrees(self, params: Mapping[str, str], rows: Sequence[Row]) -> bool:
        """Whether it can grow into a run of these: nothing that was or may have been written would have to go."""
        noted = self.tags.get("mirrored_rows", "")
        count = int(noted.partition(" ")[0] or 0)
        started = count > 0 or not rows  # one made without rows, at the end of a session, has no true start
        return self.params == params and started and noted == _stamp(rows[:count])


@dataclass
class MLflowMirror:
    """Writes the runs of one sweep into MLflow; only the driver does, in batches.

    ``flush`` may be called with the same runs any number of times: points that are there are not
    written again. What is there is asked of MLflow itself, so a killed driver, an emptied database or
    another server need no bookkeeping of ours: the tag ``mirrored_rows`` says, before they are written,
    which rows a run may hold, and ``mirrored_iteration`` afterwards how far it surely goes.
    """

    uri: str
    sweep: str
    home: Path
    home_id: str
    findings: tuple[int, ...] = ()
    _client: Any = None
    _inode: int | None = None
    _experiment: str = ""
    _parent: str = ""
    _children: dict[str, _Child] = field(default_factory=dict)
    _replaced: list[str] = field(default_factory=list)
    _waiting: dict[str, tuple[Run, int]] = field(default_factory=dict)  # without a row yet
    name = "MLflow"

    @property
    def place(self) -> str:
        return redact(self.uri)

    def flush(
        self, runs: Sequence[Run], left: Iterable[str] = (), positions: Mapping[str, int] | None = None
    ) -> dict[str, str]:
        """Bring MLflow up to date with ``runs`` of the sweep, in its order; trial id -> MLflow run id.

        ``left``: trials that the sweep no longer asks for; their runs stay and are tagged ``left_sweep``.
        ``positions``: places in the sweep, where ``runs`` are not all of it.
        Raises TrackingError; the next flush then starts afresh. Where a SQLite file was removed under it, every further
        flush of this process raises: MLflow keeps its connection to the file that is gone.
        """
        self._open()
        try:
            with mlflow_errors(self.uri):
                if not self._parent:
                    self._find()
                self._waiting = {}
                for position, run in enumerate(runs):
                    place = (positions or {}).get(run.trial_id, position)
                    # MLflow fixes the start of a run when it is made: made before its first row, a trial would seem
                    # to take as long as the sweep.
                    if run.rows or run.trial_id in self._children or run.status not in ("pending", "running"):
                        self._write(run, place)
                    else:
                        self._waiting[run.trial_id] = run, place
                for trial_id in set(left) & set(self._children):
                    child = self._children[trial_id]
                    if child.tags.get(LEFT) != "true":
                        self._client.set_tag(child.run_id, LEFT, "true")
                        child.tags[LEFT] = "true"
        except TrackingError:
            self._client, self._parent, self._children, self._replaced = None, "", {}, []
            raise
        return self._run_ids()

    def _run_ids(self) -> dict[str, str]:
        return {trial_id: child.run_id for trial_id, child in self._children.items()}

    def end(self, status: str) -> dict[str, str]:
        """Mark the sweep's own run as FINISHED, FAILED or KILLED, and drop what has been replaced since.

        Trials that never had a row get their runs now. Returns what ``flush`` does.
        """
        if self._client is not None and self._parent:
            with mlflow_errors(self.uri):
                for run, place in self._waiting.values():
                    self._write(run, place)
                self._waiting = {}
                self._find()  # again: a request that the library has repeated may have left a run twice
                while self._replaced:
                    self._delete(self._replaced.pop())
                self._client.set_terminated(self._parent, status)
        return self._run_ids()

    def forget(self) -> None:
        """Delete what MLflow holds of this sweep of this home, before it is rebuilt."""
        self._open()
        with mlflow_errors(self.uri):
            self._find()
            for run_id in [self._parent, *(child.run_id for child in self._children.values()), *self._replaced]:
                self._delete(run_id)
        self._parent, self._children, self._replaced = "", {}, []

    def _delete(self, run_id: str) -> None:
        delete_traces(self.uri, self._experiment, run_id)
        self._client.delete_run(run_id)

    def _open(self) -> None:
        if self._client is None:
            self._client = open_mlflow(self.uri)
            self._inode = _inode(self.uri)
        elif _inode(self.uri) != self._inode:  # SQLite would go on writing into the file that is gone
            raise TrackingError(f"the MLflow database {self.uri} was removed or replaced while it was in use.")

    def _find(self) -> None:
        """The experiment, the sweep's own run and its children: found, or made."""
        client = self._client
        experiment = client.get_experiment_by_name(self.sweep)
        if experiment is None:
            local = self.uri.startswith("sqlite:///")
            # Else MLflow would put an ./mlruns folder into whatever the working directory is.
            place = (self.home / "mlflow-artifacts" / self.sweep).absolute().as_uri() if local else None
            self._experiment = client.create_experiment(self.sweep, artifact_location=place)
        else:
            self._experiment = experiment.experiment_id
            if experiment.lifecycle_stage == "deleted":
                client.restore_experiment(self._experiment)
        client.set_experiment_tag(self._experiment, "mlflow.note.content", _NOTE)
        self._sort_out(self._search(f"tags.`ragen_lab.home` = '{self.home_id}'"))
        if self._parent:
            client.update_run(self._parent, status="RUNNING")
        else:
            tags = {"ragen_lab.home": self.home_id, "ragen_lab.role": "sweep", "findings": _words(self.findings)}
            self._parent = client.create_run(self._experiment, run_name=self.sweep, tags=tags).info.run_id
        for child in self._children.values():
            if child.tags.get("mlflow.parentRunId") != self._parent:
                client.set_tag(child.run_id, "mlflow.parentRunId", self._parent)

    def _sort_out(self, found: Sequence[Any]) -> None:
        """Which of the runs is the sweep's own and which is each trial's; whatever else there is goes at the end.

        A server that dies after it has made a run and before it says so is asked again, and makes another one.
        """
        replaced = {run.info.run_id for run in found if run.data.tags.get(REPLACED) == "true"}
        self._replaced = sorted(replaced)
        trials = [run for run in found if "trial_id" in run.data.tags and run.info.run_id not in replaced]
        under = Counter(run.data.tags.get("mlflow.parentRunId") for run in trials)
        sweeps = [run for run in found if "trial_id" not in run.data.tags and run.info.run_id not in replaced]
        self._parent, self._children = "", {}
        for run in sorted(sweeps, key=lambda run: (-under[run.info.run_id], run.info.start_time)):
            if self._parent:
                self._replace(run.info.run_id)
            self._parent = self._parent or run.info.run_id
        for run in sorted(trials, key=_furthest):
            trial_id = run.data.tags["trial_id"]
            if trial_id in self._children:
                self._replace(run.info.run_id)
                continue
            child = _Child(run.info.run_id, dict(run.data.params), dict(run.data.tags), _mirrored(run))
            self._children[trial_id] = child

    def _replace(self, run_id: str) -> None:
        """No longer shown from now on, and deleted at the end, when all else is written."""
        self._client.set_tag(run_id, REPLACED, "true")
        self._replaced.append(run_id)

    def _search(self, query: str) -> list[Any]:
        found: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs([self._experiment], query, max_results=1000, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def _write(self, run: Run, position: int) -> None:
        from mlflow.entities import Metric, Param, RunTag

        client = self._client
        params = {path: param_to_text(value) for path, value in run.params.items()}
        child = self._children.get(run.trial_id)
        if child is not None and not child.agrees(params, run.rows):
            # Parameters, the start and points are immutable in MLflow. A sweep may ask for more iterations or another
            # stopping policy later, or end a trial earlier than another sweep did; rows may be computed again. Its
            # view of the trial is then a new run. The old one goes when that is written.
            self._replace(child.run_id)
            child = None
        stamp = _stamp(run.rows)
        if child is None:
            start = int(run.rows[0]["timestamp"] * 1000) if run.rows else int(time.time() * 1000)
            fixed = {
                "mlflow.parentRunId": self._parent,
                "ragen_lab.home": self.home_id,
                "trial_id": run.trial_id,
                "config_id": run.config_id,
                "arm": run.arm,
                "seed": str(run.seed),
                "findings": _words(self.findings),
                "mirrored_rows": stamp,
            }
            made = client.create_run(
                self._experiment, start_time=start, run_name=f"{run.arm} · seed {run.seed}", tags=fixed
            )
            child = _Child(made.info.run_id, params, dict(fixed), -1)
            entries = [Param(path, text) for path, text in params.items()]
            for begin in range(0, len(entries), 100):
                client.log_batch(child.run_id, params=entries[begin : begin + 100])
            self._children[run.trial_id] = child
        if child.tags["mirrored_rows"] != stamp:
            client.set_tag(child.run_id, "mirrored_rows", stamp)  # before the points: we may be killed among them
            child.tags["mirrored_rows"] = stamp
        system = read_system(self.home, run.trial_id) if run.params.get("track.system_metrics") else []
        points = [
            Metric(metric_name(name), value, round(row["timestamp"] * 1000), int(row["iteration"]))
            for row in (*run.rows, *system)
            if child.mirrored < row["iteration"] < len(run.rows)
            for name, value in row.items()
            if name not in ("iteration", "timestamp")
        ]
        for begin in range(0, len(points), _BATCH):
            client.log_batch(child.run_id, metrics=points[begin : begin + _BATCH])
        child.mirrored = max(child.mirrored, len(run.rows) - 1)
        traced = self._trace(child, run)
        tags = {
            "position": f"{position:05d}",  # MLflow sorts tags as text
            "status": run.status,
            "stop_reason": shortened(run.stop_reason or ""),
            "stop_iteration": "" if run.stop_iteration is None else str(run.stop_iteration),
            "provenance": _provenance(run.provenance),
            "mirrored_iteration": str(child.mirrored),
            "mirrored_traces": traced,
            LEFT: "",
        }
        changed = {key: value for key, value in tags.items() if child.tags.get(key, "") != value}
        if changed:
            client.log_batch(child.run_id, tags=[RunTag(key, value) for key, value in changed.items()])
            if "status" in changed:
                self._set_status(child.run_id, run)
            child.tags.update(changed)

    def _trace(self, child: _Child, run: Run) -> str:
        """Show a sample of what the ended trial stored; what to note, so that it is done once."""
        before, count = child.tags.get("mirrored_traces", ""), int(run.params.get("track.traces", 0))
        if run.status in ("running", "pending") or not run.rows or not (count or before):
            return before
        now = f"{count} up to iteration {len(run.rows) - 1}"
        if now != before:
            stored = [each for each in read_trajectories(self.home, run.trial_id) if each["iteration"] < len(run.rows)]
            times = [row["timestamp"] for row in run.rows]
            write_traces(self.uri, self._experiment, child.run_id, stored, times, count)
        return now

    def _set_status(self, run_id: str, run: Run) -> None:
        status = STATUS_IN_MLFLOW[run.status]
        if status in ("FINISHED", "FAILED", "KILLED"):
            end = int(run.rows[-1]["timestamp"] * 1000) if run.rows else None
            self._client.set_terminated(run_id, status, end)
        else:
            self._client.update_run(run_id, status=status)


def _furthest(run: Any) -> tuple[int, int, int]:
    """The order of a trial's runs, the best one first."""
    return (-_mirrored(run), -len(run.data.params), run.info.start_time)


def _mirrored(run: Any) -> int:
    return int(run.data.tags.get("mirrored_iteration", "-1"))


def _provenance(said: Mapping[str, Any]) -> str:
    """As JSON that fits into a tag: cut in the middle it could not be read."""
    short = {key: shortened(value, _LONGEST // 2) if isinstance(value, str) else value for key, value in said.items()}
    return json.dumps(short, ensure_ascii=False)


def _words(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)
