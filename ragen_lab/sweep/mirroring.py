"""The mirrors of a sweep while it runs, each from a thread of its own, and their rebuilding (``ragen-lab sync``).

The folders are the truth: while a server is away nothing is lost, and the next flush catches up.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from ragen_lab.config import RunConfig
from ragen_lab.errors import HomeError, TrackingError
from ragen_lab.locks import locked
from ragen_lab.mirror import MLflowMirror, default_uri, quieten
from ragen_lab.mirror_folders import Mirror, TensorBoardMirror, WandbMirror
from ragen_lab.runs import Run, from_home, reading_ledger, sweep_record
from ragen_lab.sweep.board import Board
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.spec import Sweep

FLUSH_SECONDS = 5.0
Tell = Callable[..., None]  # the event stream: tell("mirror", **fields)


def mlflow_uri(cfg: RunConfig, home: Path) -> str:
    """Where the runs of a config are mirrored: its own URI, else the database of the home. It may hold a password."""
    return cfg.track.mlflow_uri or default_uri(home)


def _mirrors(cfg: RunConfig, sweep: str, home: Path, home_id: str, findings: Sequence[int]) -> list[Mirror]:
    """Those that the ``track`` section asks for."""
    track = cfg.track
    found: list[Mirror] = []
    if track.mlflow:
        found.append(MLflowMirror(mlflow_uri(cfg, home), sweep, home, home_id, tuple(findings)))
    if track.tensorboard:
        found.append(TensorBoardMirror(home, sweep))
    if track.wandb:
        found.append(WandbMirror(home, sweep))
    return found


class Mirroring:
    """Keeps every mirror up to date with the board until the end of the ``with`` block."""

    def __init__(
        self,
        board: Board,
        sweep: Sweep,
        home: Path,
        ledger: Ledger,
        console: Console,
        program: str = "ragen-lab",
        tell: Tell = lambda event, **fields: None,
    ) -> None:
        self.board, self.sweep, self.home, self.ledger = board, sweep.name, home, ledger
        self.console, self.program, self.tell = console, program, tell
        self.findings = sweep.findings
        self.run_ids: dict[str, str] = {}  # trial id -> MLflow run id
        self._end = threading.Event()
        self._known: _Places = _Places()
        mirrors = _mirrors(sweep.trials[0].cfg, sweep.name, home, ledger.home_id, sweep.findings)
        self._hands = [_Hand(mirror, self) for mirror in mirrors]
        self._idle = False

    def __enter__(self) -> Mirroring:
        self._idle = not self._hands or self._up_to_date()
        if not self._idle:
            self.ledger.record_mirror(self.sweep, {}, "")  # from here on they may hold half of a change
            quieten()  # now: a trial of this process puts the environment back as it found it
            try:
                for hand in self._hands:
                    hand.thread.start()
            except BaseException:  # an interrupt: nobody will tell those that have begun to end
                self._end.set()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._idle:
            self.run_ids = self.ledger.run_ids(self.sweep) if self._hands else {}
            return
        self._end.set()
        try:
            for hand in self._hands:
                hand.thread.join()  # with a last flush, which sees the final state
        finally:  # who cannot wait for a mirror need not: what it had not done is told
            self._close()

    def _close(self) -> None:
        for hand in self._hands:
            self.run_ids |= hand.run_ids
        behind = [hand for hand in self._hands if not hand.complete]
        for hand in behind:
            text = (
                f"{hand.mirror.name} at {hand.mirror.place} lacks the newest results. They are safe in {self.home}; "
                f"the next run of this sweep, or `{self.program} sync {self.sweep}`, writes them there."
            )
            self.say(text)
            hand.leave(text)
        self.ledger.record_mirror(self.sweep, self.run_ids, "" if behind else self._state(self.board.runs()))

    def folders(self) -> list[tuple[str, str]]:
        """Name and place of each mirror but MLflow, which has pages of its own."""
        return [(hand.mirror.name, hand.mirror.place) for hand in self._hands if hand.mirror.name != MLflowMirror.name]

    def say(self, text: str) -> None:
        self.console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def places(self) -> _Places:
        """What the ledger says now: trials may join and leave while the sweep runs. Not from the driver's connection,
        which is another thread's; what was known before, where the ledger cannot be read at the moment."""
        try:
            with reading_ledger(self.home) as ledger:
                asked = ledger.execute("SELECT trial_id, position FROM runs WHERE sweep = ?", (self.sweep,)).fetchall()
                left = ledger.execute(
                    "SELECT trial_id FROM sweep_trials WHERE sweep = ? AND left_at IS NOT NULL", (self.sweep,)
                ).fetchall()
        except HomeError:
            return self._known
        positions = {row["trial_id"]: row["position"] for row in asked}
        self._known = _Places(frozenset(row["trial_id"] for row in left), positions)
        return self._known

    def _state(self, runs: list[Run]) -> str:
        """Changes whenever a mirror would have to hold something else."""
        held = [
            (run.trial_id, run.arm, run.status, *_extent(run), run.stop_iteration, run.stop_reason, run.params)
            for run in runs
        ]
        where = [(hand.mirror.name, hand.mirror.place) for hand in self._hands]
        text = json.dumps([where, self.findings, sorted(self.ledger.left(self.sweep)), held], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _up_to_date(self) -> bool:
        """Whether all is there already, so that a repeated sweep need not even load MLflow."""
        for hand in self._hands:
            place = hand.mirror.place.removeprefix("sqlite:///")
            if "://" not in place and not Path(place).exists():
                return False
        runs = self.board.runs()
        done = all(entry.view.done for entry in self.board.entries.values())
        return done and self.ledger.mirror_state(self.sweep) == self._state(runs)

    def ended(self) -> bool:
        return self._end.is_set()

    def wait(self, seconds: float) -> None:
        self._end.wait(seconds)


@dataclass(frozen=True)
class _Places:
    left: frozenset[str] = frozenset()
    positions: dict[str, int] = field(default_factory=dict)


class _Hand:
    """One mirror and the thread that writes it, so that a slow server delays neither training nor another mirror."""

    def __init__(self, mirror: Mirror, of: Mirroring) -> None:
        self.mirror, self.of = mirror, of
        self.behind = True
        self.complete = False  # whether it holds the final state; not for the thread to tell by being alive or dead
        self.run_ids: dict[str, str] = {}
        self._told: bool | None = None  # whether the stream was last told that it is up to date
        self._warned = False
        self._left = False
        self._telling = threading.Lock()  # the last word waits for the one before
        self.thread = threading.Thread(target=self._work, daemon=True, name=f"mirror-{mirror.name}")

    def _work(self) -> None:
        while True:
            last = self.of.ended()  # asked before the flush: the last one sees the final state
            self._flush(last)
            if last:
                return
            self.of.wait(FLUSH_SECONDS)

    def _flush(self, last: bool) -> None:
        places, runs = self.of.places(), self.of.board.runs()
        try:
            self.run_ids = self.mirror.flush(runs, places.left, places.positions)
            if last:
                self.run_ids = self.mirror.end(_parent_status(runs))
        except TrackingError as error:
            self.behind = True
            self._stream(False, error=str(error))
            if not self._warned:
                command = f"{self.of.program} sync {self.of.sweep}"
                self.of.say(
                    f"{error}\nTraining goes on: everything is kept in {self.of.home}, and {self.mirror.name} is "
                    f"brought up to date as soon as it can be reached (or later with `{command}`)."
                )
            self._warned = True
            return
        if self._warned and self.behind:
            self.of.say(f"{self.mirror.name} can be reached again and has caught up.")
        self.behind, self.complete = False, last
        self._stream(True)

    def leave(self, why: str) -> None:
        """The last word on a mirror that lacks something; what its thread may still do is told to nobody."""
        self._stream(False, last=True, error=why)

    def _stream(self, current: bool, last: bool = False, **more: Any) -> None:
        with self._telling:
            if current != self._told and not self._left:
                self._told = current
                self.of.tell(
                    "mirror",
                    mirror=self.mirror.name,
                    place=self.mirror.place,
                    state="current" if current else "behind",
                    **more,
                )
            self._left = self._left or last


def _extent(run: Run) -> tuple[int, float | None]:
    """How many rows, and the time of the newest: rows are computed again to their end, so that one changes."""
    return len(run.rows), run.rows[-1]["timestamp"] if run.rows else None


def _parent_status(runs: Sequence[Run]) -> str:
    states = {run.status for run in runs}
    if "failed" in states:
        return "FAILED"
    return "FINISHED" if states <= {"finished", "collapsed", "pruned"} else "KILLED"


def sync(home: Path, sweep: str) -> tuple[int, tuple[str, ...]]:
    """Rebuild what the mirrors hold of a sweep from the ledger and the trial folders; (runs, places).

    MLflow's, which is the first place, is rebuilt even where the sweep did not ask for it. Raises ConfigError for an
    unknown sweep or an address that can never be one of MLflow, TrackingError where a mirror cannot be written.
    """
    home = home.absolute()
    record = sweep_record(home, sweep)
    ledger = Ledger(home)
    try:
        with locked(home / "locks" / f"{sweep}.lock", what="sweep"):
            runs = from_home(home, sweep).runs
            cfg = _config(home, sweep)
            run_ids: dict[str, str] = {}
            mirrors = _mirrors(cfg, sweep, home, ledger.home_id, record["findings"])
            ledger.record_mirror(sweep, {}, "")  # the next sweep looks for itself, even if this ends half-way
            for mirror in mirrors:
                try:
                    mirror.forget()
                    mirror.flush(runs)
                    run_ids |= mirror.end(_parent_status(runs))
                except TrackingError as error:
                    raise TrackingError(
                        f"{error}\nThe results are safe in {home}. Start the server or mend the database, then repeat "
                        f"this command; for another address run the sweep again with --set track.mlflow_uri=URI."
                    ) from error
            ledger.record_mirror(sweep, run_ids, "")
            return len(runs), tuple(mirror.place for mirror in mirrors)
    finally:
        ledger.close()


def _config(home: Path, sweep: str) -> RunConfig:
    """A config of the sweep, with MLflow on and the address as the user gave it (runs are shown without passwords)."""
    with reading_ledger(home) as ledger:
        row = ledger.execute("SELECT config FROM runs WHERE sweep = ? ORDER BY position", (sweep,)).fetchone()
    cfg = RunConfig() if row is None else RunConfig.model_validate(json.loads(row["config"]))
    return cfg.model_copy(update={"track": cfg.track.model_copy(update={"mlflow": True})})
