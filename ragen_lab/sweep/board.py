"""What the driver knows of its trials while they run: rows as they arrive, status, time left.

Workers write only into their folders; the driver follows those files. That works alike for a process
beside it and for a machine of a cluster that shares the home.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ragen_lab.config import RunConfig
from ragen_lab.detect import Panel
from ragen_lab.runs import Run, View, durable, ended_at, look, run_of
from ragen_lab.sweep.estimate import recent_pace
from ragen_lab.sweep.guard import STAGE_FILE
from ragen_lab.sweep.plan import Plan
from ragen_lab.sweep.spec import Trial
from ragen_lab.sweep.worker import TrialResult
from ragen_lab.track import METRICS_FILE, Row, decode_row, read_json, read_provenance, trial_folder

SUCCESS = "eval/success"


class Tail:
    """Follows one metrics.jsonl; each row gets the ``detect/`` flags of this sweep's config."""

    def __init__(self, file: Path, cfg: RunConfig) -> None:
        self.file, self.cfg = file, cfg
        self._begin()

    def _begin(self) -> None:
        self.rows: list[Row] = []
        self._offset, self._inode = 0, -1
        self._panel = Panel(self.cfg.detect, self.cfg.train.iterations)

    def poll(self) -> None:
        """Take what has been added. A file that was cut back and rewritten is read anew."""
        try:
            with self.file.open("rb") as handle:
                inode = os.fstat(handle.fileno()).st_ino  # of what is open: at the path there may be another by now
                if inode != self._inode:
                    self._begin()
                    self._inode = inode
                handle.seek(self._offset)
                fresh = handle.read()
        except FileNotFoundError:
            return
        whole = fresh[: fresh.rfind(b"\n") + 1]
        for line in whole.decode("utf-8", errors="replace").splitlines():
            try:
                row = decode_row(line)
            except ValueError:
                return
            if row.get("iteration") != len(self.rows) or len(self.rows) > self.cfg.train.iterations:
                return
            plain = {key: value for key, value in row.items() if not key.startswith("detect/")}
            self.rows.append({**plain, **self._panel.update(plain)})
        self._offset += len(whole)


@dataclass
class Entry:
    """One trial on the board."""

    trial: Trial
    folder: Path
    view: View
    reused: bool
    tail: Tail
    running: bool = False
    stage: str = ""
    tries: int = 0
    result: TrialResult | None = None
    began: int = 0  # rows there when this session started on it
    clock: float = 0.0  # when the present attempt began, by the monotonic clock
    spent: float = 0.0  # seconds of this session's earlier attempts
    provenance: dict[str, Any] = field(default_factory=dict)
    pruned: tuple[int, str] | None = None  # the scheduler ended it here, and why

    @property
    def rows(self) -> list[Row] | tuple[Row, ...]:
        return self.tail.rows if self.running else self.view.rows

    @property
    def status(self) -> str:
        return "running" if self.running else self.view.status

    def seconds(self) -> float | None:
        """Spent on it in this session, earlier attempts included; None where it was not worked on."""
        if not self.tries:
            return None
        return self.spent + (time.monotonic() - self.clock if self.running else 0.0)

    def pace(self) -> float | None:
        """Seconds per iteration in this session, evaluations included."""
        found = recent_pace(self.tail.rows[self.began :], self.trial.cfg)
        return None if found is None else found.mean(self.trial.cfg)


class Board:
    """All trials of a sweep. The engine's events, the follower and the mirror meet here, under one lock."""

    def __init__(self, plan: Plan, home: Path) -> None:
        self.sweep = plan.sweep.name
        self.lock = threading.Lock()
        self.home = home
        self.entries: dict[str, Entry] = {}
        for planned in plan.trials:
            self.add(planned.trial, planned.view)

    def add(self, trial: Trial, view: View) -> None:
        """One trial more, at any time; what is known of one that is there already stays."""
        folder = trial_folder(self.home, trial.trial_id)
        tail = Tail(folder / METRICS_FILE, trial.cfg)
        pruned = (view.iteration, view.stop_reason or "") if view.status == "pruned" else None
        entry = Entry(trial, folder, view, view.done, tail, provenance=read_provenance(folder), pruned=pruned)
        with self.lock:
            self.entries.setdefault(trial.trial_id, entry)

    def running(self) -> int:
        """Trials that are being worked on now."""
        with self.lock:
            return sum(entry.running for entry in self.entries.values())

    def prune(self, ended: Mapping[str, tuple[int, str]]) -> None:
        """Say which trials the scheduler has ended; all others it has not."""
        with self.lock:
            for trial_id, entry in self.entries.items():
                if entry.pruned != ended.get(trial_id):
                    entry.pruned = ended.get(trial_id)
                    if not entry.running:
                        self._settle(entry, entry.result)

    def started(self, trial_id: str) -> None:
        with self.lock:
            entry = self.entries[trial_id]
            entry.running, entry.tries, entry.clock = True, entry.tries + 1, time.monotonic()
            entry.result = None  # of an earlier attempt, which this one replaces
            entry.tail.poll()
            entry.began = len(entry.tail.rows)

    def ended(self, trial_id: str, result: TrialResult | None) -> None:
        with self.lock:
            self._settle(self.entries[trial_id], result)

    def settle(self) -> None:
        """After the engine has gone: what the folders say of every trial that is not done."""
        with self.lock:
            for entry in self.entries.values():
                if not entry.view.done:
                    self._settle(entry, entry.result)

    @staticmethod
    def _settle(entry: Entry, result: TrialResult | None) -> None:
        if entry.running:
            entry.spent += time.monotonic() - entry.clock
        entry.running, entry.result, entry.stage = False, result, ""
        view = ended_at(look(entry.folder, entry.trial.cfg), *(entry.pruned or (None, None)))
        if result is not None and result.status == "failed" and not view.done:  # its folder may not say so: a full disk
            view = replace(
                view, status="failed", stop_iteration=view.iteration if view.rows else None, stop_reason=result.error
            )
        entry.view = view
        entry.provenance = read_provenance(entry.folder)

    def poll(self) -> None:
        """Read what the running trials have written since."""
        with self.lock:
            for entry in self.entries.values():
                if entry.running:
                    entry.tail.poll()
                    entry.began = min(entry.began, len(entry.tail.rows))
                    stage = None if entry.tail.rows else read_json(entry.folder / STAGE_FILE)
                    entry.stage = f"{stage['stage']} {stage['step'] / stage['steps']:.0%}" if stage else ""

    def runs(self) -> list[Run]:
        """The runs as the mirror may write them: of a trial that is not done, only rows that a resume keeps."""
        with self.lock:
            found = []
            for entry in self.entries.values():
                view = entry.view
                if not view.done:
                    view = durable(replace(view, rows=tuple(entry.rows), status=entry.status), entry.folder)
                    if entry.running and not entry.provenance:
                        entry.provenance = read_provenance(entry.folder)
                found.append(run_of(view, entry.trial.cfg, self.sweep, entry.trial.arm, entry.provenance))
            return found

    # --- for people ---

    def counts(self) -> str:
        """'5 of 9 done, 2 running, 1 failed'."""
        with self.lock:
            states = [entry.status for entry in self.entries.values()]
            done = sum(entry.view.done for entry in self.entries.values())
        collapsed = states.count("collapsed")
        stopped = f" ({collapsed} stopped as collapsed)" if collapsed else ""
        words = [f"{done} of {plural(len(states), 'trial')} done{stopped}"]
        words += [f"{states.count(state)} {state}" for state in ("running", "failed") if state in states]
        return ", ".join(words)

    def seconds_left(self) -> float | None:
        """Until the whole sweep is done, at the present pace and number of running trials."""
        with self.lock:
            entries = list(self.entries.values())
            running = [entry for entry in entries if entry.running]
            paces = [pace for entry in entries if (pace := entry.pace()) is not None]
            if not running or not paces:
                return None
            typical = sum(paces) / len(paces)
            left = 0.0
            for entry in entries:
                failed = entry.result is not None and entry.result.status == "failed" and not entry.running
                if not entry.view.done and not failed:
                    left += remaining(entry) * (entry.pace() or typical)
            longest = max(remaining(entry) * (entry.pace() or typical) for entry in running)
            return max(longest, left / len(running))

    def line(self) -> str:
        """The same as one plain line."""
        with self.lock:
            running = [_phrase(entry) for entry in self.entries.values() if entry.running]
        left = self.seconds_left()
        words = [self.counts(), *running] + ([f"about {duration(left)} left"] if left is not None else [])
        return " · ".join(words)


def remaining(entry: Entry) -> int:
    """Iterations still to do."""
    return entry.trial.cfg.train.iterations - max(0, len(entry.rows) - 1)


def last_value(rows: list[Row] | tuple[Row, ...], metric: str) -> float | None:
    """The newest value of a metric."""
    return next((row[metric] for row in reversed(rows) if metric in row), None)


def _phrase(entry: Entry) -> str:
    success = last_value(entry.rows, SUCCESS)
    where = entry.stage or f"{max(0, len(entry.rows) - 1)}/{entry.trial.cfg.train.iterations}"
    reached = "" if success is None else f" success {success:.3f}"
    return f"{entry.trial.arm} seed {entry.trial.seed}: {where}{reached}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """'45 s', '12 min', '3.5 h'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
