"""The event stream of ``--json``: one JSON object per line while a sweep runs, each with the key "event".

planned    sweep, trials, done, iterations (to do), warnings
started    trial_id, arm, seed, attempt (of this session)
row        trial_id, arm, seed, iteration, iterations (asked for), success (null where not evaluated), alarms
           (detectors in alarm; null where none could judge)
retried    trial_id, arm, seed, attempt, iteration, error
ended      trial_id, arm, seed, status, iteration, stop_iteration, stop_reason, seconds, error
mirror     mirror, place, state ("current" or "behind"), error
report     path (null where none was written)
summary    status, exit_code, trials, done, collapsed, failed, seconds

Every event has "time", in seconds since 1970. A row may come again after "retried": a trial goes on from its
checkpoint. The line that follows the last event is the command's result, which has no key "event".
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ragen_lab.sweep.board import SUCCESS, Board
from ragen_lab.sweep.watch import alarms
from ragen_lab.track import number_to_json

Write = Callable[[str], None]


def to_stdout() -> Write:
    """Writes lines to what is standard output now, wherever an engine points the descriptor later."""
    sys.stdout.flush()
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)

    def write(line: str) -> None:
        print(line, file=out, flush=True)

    return write


class Stream:
    """Events from every thread of the driver, one line each. ``write`` None: nobody listens."""

    def __init__(self, write: Write | None) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._rows = threading.Lock()  # who asks for the last rows waits until those before are told
        self._told: dict[str, int] = {}  # rows of a trial that are known to the reader

    def __call__(self, event: str, **fields: Any) -> None:
        if self._write is None:
            return
        with self._lock:
            try:
                self._write(json.dumps({"event": event, "time": round(time.time(), 3), **fields}))
            except OSError:  # the reader is gone (a closed pipe), which is no reason to end a sweep
                self._write = None

    def rows(self, board: Board) -> None:
        """Tell the rows that running trials have written since."""
        if self._write is None:
            return
        with self._rows:
            news = []
            with board.lock:
                for trial_id, entry in board.entries.items():
                    if not entry.running:
                        continue
                    rows = entry.tail.rows
                    first = self._told.get(trial_id, entry.began)  # what was there before is no news
                    self._told[trial_id] = len(rows)
                    for row in rows[first:]:
                        success = row.get(SUCCESS)
                        news.append(
                            {
                                "trial_id": trial_id,
                                "arm": entry.trial.arm,
                                "seed": entry.trial.seed,
                                "iteration": int(row["iteration"]),
                                "iterations": entry.trial.cfg.train.iterations,
                                "success": None if success is None else number_to_json(success),
                                "alarms": alarms([row]),
                            }
                        )
            for fields in news:
                self("row", **fields)
