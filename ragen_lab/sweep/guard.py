"""What ends a worker from inside: a trial that makes no more progress, or takes more memory than it may.

The worker leaves its last words in ``killed.txt`` and ends at once; the trial goes on from its checkpoint in
another process. Inside the worker, so that it holds alike for a local pool and on the machines of a Ray cluster.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ragen_lab.track import METRICS_FILE

KILLED_FILE = "killed.txt"
GB = 10**9
STAGE_FILE = "stage.json"  # what a trial is doing before its first row, for the driver's table
_POLL = 0.25  # seconds between two looks at the memory
_START_SECONDS = 30.0  # before its guard is there, a fresh worker loads its libraries


@dataclass(frozen=True)
class Limits:
    """What a trial's process may take; None = no limit."""

    hang_minutes: float | None = None  # without a new iteration
    memory_gb: float | None = None  # resident, of the worker process


class Guard:
    """Watches this process while it is entered. ``alive`` is called at every sign of progress."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.file, self.limits = folder / KILLED_FILE, limits
        self._words: TextIO | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Guard:
        self.file.unlink(missing_ok=True)
        if self.limits != Limits():
            self._words = self.file.open("w", encoding="utf-8")
        if self.limits.memory_gb is not None:
            self._thread = threading.Thread(target=self._watch_memory, daemon=True, name="memory")
            self._thread.start()
        self.alive()
        return self

    def alive(self) -> None:
        """Begin to wait for the next iteration.

        The interpreter's own watchdog is a thread in C: it needs no lock of Python's, which a hanging library may
        hold, and it writes down where every thread stands before it ends the process.
        """
        if self.limits.hang_minutes is not None and self._words is not None:
            faulthandler.dump_traceback_later(self.limits.hang_minutes * 60, exit=True, file=self._words)

    def _watch_memory(self) -> None:
        limit = (self.limits.memory_gb or 0) * GB
        while not self._over.wait(_POLL):
            used = resident()
            if used > limit and self._words is not None:
                self._words.write(f"memory {used}\n")
                self._words.flush()
                faulthandler.dump_traceback(self._words)
                os._exit(1)

    def __exit__(self, *_: object) -> None:
        if self.limits.hang_minutes is not None:
            faulthandler.cancel_dump_traceback_later()
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._words is not None:
            self._words.close()
            self.file.unlink(missing_ok=True)


class Overdue:
    """The driver's own look at a trial: whether a guard that must have ended it has not, for a stopped process, say.

    Goes by changes of the trial's files and the monotonic clock, so that a clock that jumps ends nobody. ``late``: it
    has been found so; nothing is written, for the folder is the worker's as long as that lives.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self._seen: tuple[float, ...] = ()
        self._since = time.monotonic()
        self.late = False

    def __call__(self) -> bool:
        if self.limits.hang_minutes is None:
            return False
        seen = tuple(_changed(self.folder / name) for name in (METRICS_FILE, STAGE_FILE))
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        self.late = time.monotonic() - self._since > self.limits.hang_minutes * 60 * 1.5 + _START_SECONDS
        return self.late


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def resident() -> int:
    """Bytes of memory that this process holds now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True, check=True)
    return int(told.stdout) * 1024


def write_last_words(folder: Path) -> None:
    """Say in the place of a guard that could not, because its process was stopped, that the trial hung."""
    (folder / KILLED_FILE).write_text("Timeout, and its process did not answer\n", encoding="utf-8")


def last_words(folder: Path) -> tuple[str, int] | None:
    """Why a guard ended the last attempt at a trial: ("hung", 0) or ("memory", bytes); None where none did."""
    try:
        first = (folder / KILLED_FILE).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except (FileNotFoundError, NotADirectoryError):
        return None
    if first.startswith("memory "):
        return "memory", int(first.split()[1])
    return ("hung", 0) if first.startswith("Timeout") else None
