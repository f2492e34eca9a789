"""Mirrors in folders of the home: TensorBoard event files and offline runs of Weights & Biases.

What every mirror of a sweep can do is ``Mirror`` (MLflow's is in mirror.py). These two keep one folder per trial. A
stamp in it, written last, says what it holds; a folder without the right stamp is thrown away and written anew from
the rows. So a killed driver, a resumed trial or a grown sweep leaves no point twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ragen_lab.errors import TrackingError
from ragen_lab.track import read_json, write_json

if TYPE_CHECKING:  # runs.py reads what the mirrors write
    from ragen_lab.runs import Run

STAMP = "ragen-lab.json"
_LIBRARIES = {"tensorboard": "tensorboardX", "wandb": "wandb"}  # knob of track = extra of the package -> library
_ENDED = ("finished", "collapsed", "pruned", "stopped", "failed")  # nobody is computing it now


class Mirror(Protocol):
    """Shows the runs of one sweep elsewhere. Raises TrackingError; the next flush then brings all up to date."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def place(self) -> str:
        """Where it writes, without secrets."""

    def flush(
        self, runs: Sequence[Run], left: Iterable[str] = (), positions: Mapping[str, int] | None = None
    ) -> dict[str, str]:
        """Bring it up to date with ``runs``, any number of times; trial id -> the mirror's own id, where it has one.

        ``left``: trials that the sweep no longer asks for. ``positions``: places in the sweep.
        """

    def end(self, status: str) -> dict[str, str]:
        """The sweep is over (FINISHED, FAILED or KILLED); returns what ``flush`` does."""

    def forget(self) -> None:
        """Delete what it holds of this sweep, before it is rebuilt."""


def lacking_libraries(track: Mapping[str, Any]) -> list[str]:
    """What must be installed for the mirrors that the ``track`` section asks for, one sentence each."""
    return [
        f"track.{knob}: needs {library}, which is not installed. Install ragen-lab[{knob}], or leave the knob at false."
        for knob, library in _LIBRARIES.items()
        if track[knob] and find_spec(library) is None
    ]


# --- one folder per trial ---


def _folder_name(run: Run) -> str:
    """Readable and unique: arm and seed for people, the trial id because labels may agree once they are file names."""
    return f"{re.sub(r'[^A-Za-z0-9_.=+-]+', '_', run.arm)[:80]}.seed{run.seed}.{run.trial_id}"


def _stamp(run: Run) -> dict[str, Any]:
    """What decides the content of a trial's folder."""
    text = json.dumps([run.params, run.rows[-1]["timestamp"], run.stop_reason], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {"trial_id": run.trial_id, "arm": run.arm, "rows": len(run.rows), "status": run.status, "digest": digest}


def _fresh(root: Path, run: Run) -> Path:
    """An empty folder for the run; what was there of the trial, under whatever label, is gone."""
    _drop(root, run.trial_id)
    folder = root / _folder_name(run)
    folder.mkdir(parents=True)
    return folder


def _drop(root: Path, trial_id: str) -> None:
    for old in root.glob(f"*.{trial_id}"):
        shutil.rmtree(old)


@contextmanager
def _writing(name: str, root: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ImportError) as error:
        raise TrackingError(f"{name} files in {root} cannot be written: {error}") from error


def _about(run: Run) -> dict[str, Any]:
    """The words that belong to a run, beside its numbers."""
    return {
        "arm": run.arm,
        "seed": run.seed,
        "trial_id": run.trial_id,
        "config_id": run.config_id,
        "status": run.status,
        "stop_iteration": run.stop_iteration,
        "stop_reason": run.stop_reason,
        "commit": run.provenance.get("commit"),
    }


def _numbers(row: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in row.items() if name not in ("iteration", "timestamp"))


# --- TensorBoard ---


@dataclass
class _EventFile:
    writer: Any
    params: dict[str, Any]
    written: int = 0  # rows
    last: float = 0.0  # the time of the newest of them: one that is computed again has another

    def grows_into(self, run: Run) -> bool:
        """Whether the run only adds to what was written."""
        if len(run.rows) < self.written or run.params != self.params:
            return False
        return not self.written or run.rows[self.written - 1]["timestamp"] == self.last


@dataclass
class TensorBoardMirror:
    """An event file per trial, which grows while the trial runs. Values are 32-bit there, as the format has it."""

    home: Path
    sweep: str
    _open: dict[str, _EventFile] = field(default_factory=dict)
    name = "TensorBoard"

    @property
    def root(self) -> Path:
        return self.home / "tensorboard" / self.sweep

    @property
    def place(self) -> str:
        return str(self.root)

    def flush(
        self, runs: Sequence[Run], left: Iterable[str] = (), positions: Mapping[str, int] | None = None
    ) -> dict[str, str]:
        try:
            with _writing(self.name, self.root):
                for run in runs:
                    self._write(run)
                for trial_id in left:
                    self._close(trial_id)
                    _drop(self.root, trial_id)
        except TrackingError:
            self._open.clear()  # whatever is in those files, they have no stamp: they are written anew
            raise
        return {}

    def _write(self, run: Run) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import text

        if not run.rows:
            return
        file = self._open.get(run.trial_id)
        if file is not None and not file.grows_into(run):
            self._close(run.trial_id)  # a damaged checkpoint took rows back, or the sweep asks for another view
            file = None
        if file is None:
            if read_json(self.root / _folder_name(run) / STAMP) == _stamp(run):
                return
            # The plain writer: the library's usual one hands over to a thread, in which a full disk goes unheard.
            file = _EventFile(EventsWriter(str(_fresh(self.root, run) / "events")), run.params)
            self._open[run.trial_id] = file
        for row in run.rows[file.written :]:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in _numbers(row)]
            event = Event(wall_time=row["timestamp"], step=int(row["iteration"]), summary=Summary(value=values))
            file.writer.write_event(event)
        file.written, file.last = len(run.rows), run.rows[-1]["timestamp"]
        if run.status not in _ENDED:
            file.writer.flush()
            return
        last = run.rows[-1]
        words = {"trial": _about(run), "config": run.params}
        for tag, content in words.items():
            lines = "\n".join(f"    {key}: {json.dumps(value)}" for key, value in content.items())  # as code
            file.writer.write_event(
                Event(wall_time=last["timestamp"], step=int(last["iteration"]), summary=text(tag, lines))
            )
        self._close(run.trial_id)
        write_json(self.root / _folder_name(run) / STAMP, _stamp(run))

    def _close(self, trial_id: str) -> None:
        if file := self._open.pop(trial_id, None):
            file.writer.close()

    def end(self, status: str) -> dict[str, str]:
        with _writing(self.name, self.root):
            for trial_id in list(self._open):
                self._close(trial_id)
        return {}

    def forget(self) -> None:
        with _writing(self.name, self.root):
            if self.root.exists():
                shutil.rmtree(self.root)


# --- Weights & Biases ---


@dataclass
class WandbMirror:
    """An offline run per trial, written when the trial has ended: nobody can watch an offline run before that.

    Nothing is sent anywhere; ``wandb sync`` of these folders is the user's own decision.
    """

    home: Path
    sweep: str
    name = "W&B"

    @property
    def root(self) -> Path:
        return self.home / "wandb" / self.sweep

    @property
    def place(self) -> str:
        return str(self.root)

    def flush(
        self, runs: Sequence[Run], left: Iterable[str] = (), positions: Mapping[str, int] | None = None
    ) -> dict[str, str]:
        with _writing(self.name, self.root):
            for run in runs:
                ended = run.rows and run.status in _ENDED
                if ended and read_json(self.root / _folder_name(run) / STAMP) != _stamp(run):
                    self._write(run)
            for trial_id in left:
                _drop(self.root, trial_id)
        return {}

    def _write(self, run: Run) -> None:
        wandb = _quiet_wandb()
        folder = _fresh(self.root, run)
        settings = wandb.Settings(
            mode="offline",
            console="off",
            silent=True,
            disable_git=True,  # the provenance of a trial is its worker's, not this process's
            disable_code=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        try:
            made = wandb.init(
                project=self.sweep,
                group=run.arm[:120],
                name=f"{run.arm} seed {run.seed}"[:120],
                id=run.trial_id,
                dir=str(folder),
                config={**run.params, "arm": run.arm, "provenance": run.provenance},
                settings=settings,
                reinit="create_new",
            )
            for row in run.rows:
                made.log({**dict(_numbers(row)), "_timestamp": row["timestamp"]}, step=int(row["iteration"]))
            made.summary.update({f"trial/{key}": value for key, value in _about(run).items()})
            made.finish(exit_code=1 if run.status == "failed" else 0)
        except wandb.Error as error:
            raise TrackingError(f"W&B files in {self.root} cannot be written: {error}") from error
        write_json(folder / STAMP, _stamp(run))

    def end(self, status: str) -> dict[str, str]:
        return {}  # nothing is open between flushes

    def forget(self) -> None:
        with _writing(self.name, self.root):
            if self.root.exists():
                shutil.rmtree(self.root)


def _quiet_wandb() -> Any:
    """The library, with its reports of errors to its makers off; a user's own setting wins."""
    for key, value in {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "WANDB_MODE": "offline"}.items():
        os.environ.setdefault(key, value)
    import wandb

    logging.getLogger("wandb").setLevel(logging.ERROR)
    return wandb
