"""The mirrors of a sweep while it runs, from a thread of their own, and their rebuilding (``ragen-lab sync``)."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ragen_lab.config import RunConfig
from ragen_lab.errors import TrackingError
from ragen_lab.mirror import MLflowMirror, default_uri
from ragen_lab.runs import Run, from_home, sweep_record
from ragen_lab.sweep.board import Board
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.spec import Sweep
from ragen_lab.track import locked

FLUSH_SECONDS = 5.0


@dataclass
class Mirroring:
    """Writes the board into MLflow from a thread of its own, so that a slow server delays nothing.

    The folders are the truth: while the server is away nothing is lost, and the next flush catches up.
    """

    board: Board
    sweep: Sweep
    home: Path
    ledger: Ledger
    console: Console
    program: str = "ragen-lab"
    run_ids: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        track = self.sweep.trials[0].cfg.track
        self.uri = mlflow_uri(self.sweep.trials[0].cfg, self.home)
        self.on = track.mlflow
        self.mirror = MLflowMirror(self.uri, self.sweep.name, self.home, self.ledger.home_id, self.sweep.findings)
        self.left, self.positions = self.ledger.left(self.sweep.name), self.ledger.positions(self.sweep.name)
        self._warned = self._behind = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")

    def __enter__(self) -> Mirroring:
        if self.on and not self._up_to_date():
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread.ident is None:
            self.run_ids = self.ledger.run_ids(self.sweep.name) if self.on else {}
            return
        self._end.set()
        try:
            self._thread.join()  # with a last flush, which sees the final state
        except KeyboardInterrupt:  # who cannot wait for MLflow need not
            self._behind = True
            raise
        finally:
            self._close()

    def _close(self) -> None:
        if self._behind:
            self._say(
                f"MLflow at {self.uri} lacks the newest results. They are safe in {self.home}; the next run of this "
                f"sweep, or `{self.program} sync {self.sweep.name}`, writes them there."
            )
        else:
            self.ledger.record_mirror(self.sweep.name, self.run_ids, self._state(self.board.runs()))

    def _say(self, text: str) -> None:
        self.console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def _state(self, runs: list[Run]) -> str:
        """Changes whenever MLflow would have to hold something else."""
        held = [
            (run.trial_id, run.arm, run.status, len(run.rows), run.stop_iteration, run.stop_reason, run.params)
            for run in runs
        ]
        text = json.dumps([self.uri, self.sweep.findings, sorted(self.left), held], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _up_to_date(self) -> bool:
        """Whether all is there already, so that a repeated sweep need not even load MLflow."""
        if self.uri.startswith("sqlite:///") and not Path(self.uri.removeprefix("sqlite:///")).is_file():
            return False
        runs = self.board.runs()
        done = all(entry.view.done for entry in self.board.entries.values())
        return done and self.ledger.mirror_state(self.sweep.name) == self._state(runs)

    def _work(self) -> None:
        self._behind = True
        last = False
        while not last:
            last = self._end.wait(FLUSH_SECONDS if self.run_ids or self._warned else 0)
            runs = self.board.runs()
            try:
                self.run_ids = self.mirror.flush(runs, self.left, self.positions)
                if last:
                    self.mirror.end(_parent_status(runs))
                if self._warned and self._behind:
                    self._say("MLflow can be reached again and has caught up.")
                self._behind = False
            except TrackingError as error:
                self._behind = True
                if not self._warned:
                    self._say(
                        f"{error}\nTraining goes on: everything is kept in {self.home}, and MLflow is brought up to "
                        f"date as soon as it can be reached (or later with `{self.program} sync {self.sweep.name}`)."
                    )
                self._warned = True


def _parent_status(runs: Sequence[Run]) -> str:
    return "FINISHED" if all(run.status in ("finished", "collapsed") for run in runs) else "KILLED"


def mlflow_uri(cfg: RunConfig, home: Path) -> str:
    """Where the runs of a config are mirrored: its own URI, else the database of the home."""
    return cfg.track.mlflow_uri or default_uri(home)


def sync(home: Path, sweep: str) -> tuple[int, str]:
    """Rebuild what MLflow holds of a sweep from the ledger and the trial folders; (runs, URI).

    Raises ConfigError for an unknown sweep or an address that can never be one of MLflow, TrackingError where MLflow
    cannot be reached.
    """
    home = home.absolute()
    record = sweep_record(home, sweep)
    ledger = Ledger(home)
    try:
        with locked(home / "locks" / f"{sweep}.lock", what="sweep"):
            runs = from_home(home, sweep).runs
            uri = next((run.params["track.mlflow_uri"] for run in runs), None) or default_uri(home)
            mirror = MLflowMirror(uri, sweep, home, ledger.home_id, tuple(record["findings"]))
            try:
                mirror.forget()
                run_ids = mirror.flush(runs)
                mirror.end(_parent_status(runs))
            except TrackingError as error:
                raise TrackingError(
                    f"{error}\nThe results are safe in {home}. Start the server or mend the database, then repeat this "
                    f"command; for another address run the sweep again with --set track.mlflow_uri=URI."
                ) from error
            ledger.record_mirror(sweep, run_ids, "")  # the next sweep looks for itself
            return len(run_ids), uri
    finally:
        ledger.close()
