"""The write side: a folder per trial is the truth, MLflow is a mirror of it.

A trial folder holds ``config.json``, ``metrics.jsonl`` (one line per iteration), ``checkpoints/``,
``trajectories.jsonl``, ``groups.jsonl`` (what the filter chose among and kept), ``provenance.json``,
``log.txt``, ``lock`` and, once it has ended, ``DONE.json``. Non-finite numbers are written as the strings
"nan", "inf" and "-inf".
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from ragen_lab import provenance
from ragen_lab.config import RunConfig
from ragen_lab.errors import CheckpointError, HomeError
from ragen_lab.keep import worth_keeping
from ragen_lab.redaction import redact, without_secrets
from ragen_lab.sections import SCHEMA_VERSION

T = TypeVar("T")
Row = dict[str, float]
log = logging.getLogger(__name__)

TRIALS_FOLDER = "trials"
METRICS_FILE = "metrics.jsonl"
TRAJECTORIES_FILE = "trajectories.jsonl"
SYSTEM_FILE = "system.jsonl"
GROUPS_FILE = "groups.jsonl"
DONE_FILE = "DONE.json"
LOCK_FILE = "lock"
LOG_FILE = "log.txt"
PROVENANCE_FILE = "provenance.json"


@dataclass(frozen=True)
class Outcome:
    """How training ended by itself: ``iteration`` is the last one done, ``reason`` the detector's words."""

    status: Literal["finished", "collapsed", "paused"]
    iteration: int
    reason: str | None = None


class Paused(Exception):
    """Ends a trial at a checkpoint because it was asked to rest; the same request goes on from there."""


class Tracker(Protocol):
    """What ``train`` writes to. ``rows`` is the history so far: row i is iteration i."""

    rows: list[Row]

    def resume(self, load: Callable[[Path], T]) -> T | None:
        """Load the newest whole checkpoint and cut the history back to it; None when there is none.

        ``load`` raises CheckpointError for a checkpoint that it cannot use: an older one is tried then.
        """

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Append the one row of ``iteration``; "iteration" and "timestamp" are added."""

    def checkpoint(self, iteration: int, save: Callable[[Path], None]) -> None:
        """Keep the state after ``iteration``: ``save`` writes a file or a folder at the path it is given."""

    def trajectories(self, iteration: int, texts: list[dict[str, Any]]) -> None:
        """Store a sample of trajectories as text."""

    def groups(self, iteration: int, record: dict[str, Any]) -> None:
        """Store which prompt groups the filter of an iteration kept."""


# --- numbers and files ---------------------------------------------------------------------------

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def number_to_json(value: float) -> float | str:
    """The number, or the word for a non-finite one (JSON has none)."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def number_from_json(value: float | str) -> float:
    """The inverse of ``number_to_json``."""
    return _WORDS[value] if isinstance(value, str) else value


def encode_row(row: Mapping[str, float]) -> str:
    """One line of metrics.jsonl, without the line end."""
    return json.dumps({key: number_to_json(value) for key, value in row.items()}, separators=(", ", ": "))


def decode_row(line: str) -> Row:
    """One line of metrics.jsonl. Raises ValueError for a line that is cut short or not of ours."""
    try:
        return {key: number_from_json(value) for key, value in json.loads(line).items()}
    except (AttributeError, KeyError) as error:
        raise ValueError(f"not a metrics line: {error}") from None


def read_rows(file: Path) -> list[Row]:
    """The rows of iterations 0, 1, 2, ... up to the first line that is missing, torn or out of turn."""
    return _rows_of(_whole_lines(file))


def damaged_line(file: Path) -> tuple[int, int] | None:
    """(the first line that cannot be used, number of lines), where others follow it: counted from 1.

    None for a file that is whole, or whose last line alone is torn, as a kill leaves it.
    """
    lines = _whole_lines(file)
    usable = len(_rows_of(lines))
    return (usable + 1, len(lines)) if usable + 1 < len(lines) else None


def _whole_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split("\n")[:-1]  # what follows the last line end is being written
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, error) from error


def _rows_of(lines: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    for line in lines:
        try:
            row = decode_row(line)
        except ValueError:
            break
        if row.get("iteration") != len(rows):
            break
        rows.append(row)
    return rows


def read_trajectories(home: Path, trial_id: str) -> list[dict[str, Any]]:
    """The stored sample of a trial's trajectories, oldest first; each names its "iteration"."""
    file = trial_folder(home, trial_id) / TRAJECTORIES_FILE
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


def read_system(home: Path, trial_id: str) -> list[Row]:
    """What was recorded of the trial's process (track.system_metrics), oldest first; empty where nothing was."""
    file = trial_folder(home, trial_id) / SYSTEM_FILE
    if not file.is_file():
        return []
    return [decode_row(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


def write_text(file: Path, text: str) -> None:
    """Replace a file whole or not at all, even when the power fails."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(file)
    _fsync_folder(file.parent)


def write_json(file: Path, value: Any) -> None:
    write_text(file, json.dumps(value, indent=2, sort_keys=False) + "\n")


def read_json(file: Path) -> Any | None:
    """The value in a JSON file, or None where there is no such file or only part of one. Raises HomeError."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> HomeError:
    return HomeError(
        f"{file} cannot be read: {error}. Set its permissions right, or move away what stands in its place, and "
        f"repeat the command; or name another folder with --home."
    )


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def trial_folder(home: Path, trial_id: str) -> Path:
    return home / TRIALS_FOLDER / trial_id


# --- what a trial folder says about itself --------------------------------------------------------


def write_done(
    folder: Path,
    status: str,
    iteration: int,
    reason: str | None = None,
    error: str | None = None,
    cause: str | None = None,
    at: float | None = None,
) -> None:
    """Say how the last session in this folder ended. ``cause``: of a failure, in one word, where it is known; ``at``:
    when that was, where it is not now."""
    ended = _now() if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    _end_session(folder, ended)  # before DONE.json, which says that all is there
    done = {"status": status, "iteration": iteration, "reason": reason, "error": error, "ended": ended}
    if cause:
        done["cause"] = cause
    write_json(folder / DONE_FILE, done)


def read_done(folder: Path) -> dict[str, Any] | None:
    done = read_json(folder / DONE_FILE)
    return done if isinstance(done, dict) else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_provenance(folder: Path, from_iteration: int, command: str = "", seed: int | None = None) -> None:
    """Add this session to provenance.json: every stretch of iterations names the code that computed it.

    Beside it lie what the session refers to by name: the lock of installed packages and, where the checkout had
    uncommitted changes, their patch. ``command``: what the user typed.
    """
    packages, patch = provenance.lock(), provenance.source().patch
    session = {
        "from_iteration": from_iteration,
        "started": _now(),
        "ended": None,
        **provenance.code_version(),
        "command": redact(command),
        "seed": seed,
        "packages": _beside(folder, "packages", packages, ".txt"),
        "patch": None if patch is None else _beside(folder, "uncommitted", patch, ".patch"),
    }
    write_json(folder / PROVENANCE_FILE, [*_sessions(folder), session])


def _beside(folder: Path, stem: str, text: str, ending: str) -> str:
    name = provenance.named_by_content(stem, text, ending)
    if not (folder / name).exists():
        write_text(folder / name, text)
    return name


def _sessions(folder: Path) -> list[dict[str, Any]]:
    found = read_json(folder / PROVENANCE_FILE)
    return found if isinstance(found, list) else []


def _end_session(folder: Path, ended: str) -> None:
    """A session that was killed, machine and all, keeps an end of null: nobody was there to see it."""
    sessions = _sessions(folder)
    if sessions and sessions[-1].get("ended") is None:
        sessions[-1]["ended"] = ended
        write_json(folder / PROVENANCE_FILE, sessions)


def read_provenance(folder: Path) -> dict[str, Any]:
    """The newest session, with the number of sessions and of code versions that made this trial.

    ``code_versions`` counts uncommitted changes too: the same commit with another patch is other code.
    """
    sessions = _sessions(folder)
    if not sessions:
        return {}
    versions = {tuple(session.get(key) for key in ("ragen_lab", "commit", "patch")) for session in sessions}
    return {**sessions[-1], "sessions": len(sessions), "code_versions": len(versions)}


# --- trackers -------------------------------------------------------------------------------------


class FolderTracker:
    """A trial folder. ``notes`` collects what a user should hear about (a damaged checkpoint).

    ``pause``: while this file exists, the trial ends at its next checkpoint (``Paused``).
    """

    def __init__(self, folder: Path, cfg: RunConfig, pause: Path | None = None) -> None:
        self.folder, self.cfg, self.pause = folder, cfg, pause
        self.notes: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._claim()
        self.rows = read_rows(folder / METRICS_FILE)
        self._tidy = False
        self._clocks = time.monotonic(), time.process_time()

    def _claim(self) -> None:
        """Refuse a folder that holds another config's run, whatever its name says."""
        mine = {"trial_id": self.cfg.trial_id(), "config_id": self.cfg.config_id(), "schema": SCHEMA_VERSION}
        file = self.folder / "config.json"
        stored = read_json(file)
        if stored is None and not file.exists():
            write_json(file, {**mine, "config": without_secrets(self.cfg.model_dump())})
        elif not isinstance(stored, dict):  # torn is not absent: whose rows are these?
            raise CheckpointError(
                f"{file} cannot be read, so nobody knows whose run this folder holds. Move the folder away (the "
                f"trial is then computed again), or put the file back from a copy."
            )
        elif stored.get("trial_id") != mine["trial_id"]:
            raise CheckpointError(
                f"{self.folder} holds trial {stored.get('trial_id')}, not {mine['trial_id']}: a run is never "
                f"continued under another config. Move the folder away, or use another --home."
            )

    def resume(self, load: Callable[[Path], T]) -> T | None:
        if (damaged := damaged_line(self.folder / METRICS_FILE)) is not None:
            line, lines = damaged
            self._note(f"{METRICS_FILE} is damaged at line {line} of {lines}: what follows it is computed again.")
        found = list_checkpoints(self.folder)
        for older, (iteration, folder) in reversed(list(enumerate(found))):
            problem = None
            if iteration >= len(self.rows):
                problem = f"its metrics are missing (there are {len(self.rows)} rows)"
            else:
                problem = damage(folder)
            if problem is None:
                try:
                    state = load(folder / "state")
                except CheckpointError as error:
                    problem = str(error)
                else:
                    self._cut(iteration + 1)
                    return state
            where = "from an older one" if older else "from the start"
            self._note(f"checkpoint of iteration {iteration} cannot be used: {problem}. Going on {where}.")
            shutil.rmtree(folder)
        self._cut(0)
        return None

    def _note(self, text: str) -> None:
        self.notes.append(text)
        log.warning("%s: %s", self.folder.name, text)

    def _cut(self, count: int) -> None:
        """Keep the first ``count`` rows, and of the trajectories and groups what belongs to them."""
        del self.rows[count:]
        write_text(self.folder / METRICS_FILE, "".join(encode_row(row) + "\n" for row in self.rows))
        for samples in (self.folder / TRAJECTORIES_FILE, self.folder / GROUPS_FILE, self.folder / SYSTEM_FILE):
            if samples.exists():
                lines = samples.read_text(encoding="utf-8").split("\n")[:-1]
                write_text(samples, "".join(line + "\n" for line in lines if _sampled_at(line) < count))
        self._tidy = True

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if not self._tidy:
            self._cut(len(self.rows))  # a line torn by a kill must not run into the next one
        row = _row(self.rows, iteration, metrics)
        if self.cfg.track.system_metrics:  # before the row, which says that all of its iteration is there
            sampled = {"iteration": iteration, "timestamp": row["timestamp"], **self._system()}
            with (self.folder / SYSTEM_FILE).open("a", encoding="utf-8") as handle:
                handle.write(encode_row(sampled) + "\n")
        with (self.folder / METRICS_FILE).open("a", encoding="utf-8") as handle:
            handle.write(encode_row(row) + "\n")
        self.rows.append(row)

    def _system(self) -> Row:
        """CPU use since the last row, and memory. Of the process: a kept worker may hold more than this trial."""
        before, self._clocks = self._clocks, (time.monotonic(), time.process_time())
        wall, cpu = (now - then for now, then in zip(self._clocks, before, strict=True))
        unit = 1 if sys.platform == "darwin" else 1024  # the system's own unit of ru_maxrss
        found = {
            "system/cpu_percent": 100 * cpu / wall if wall > 0 else 0.0,  # of one core: 200 = two cores busy
            "system/peak_rss_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6,
        }
        pages = Path("/proc/self/statm")
        if pages.exists():
            held = int(pages.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
            found["system/rss_megabytes"] = held / 1e6
        return found

    def checkpoint(self, iteration: int, save: Callable[[Path], None]) -> None:
        parent = self.folder / "checkpoints"
        final, temporary = parent / f"{iteration:08d}", parent / f".{iteration:08d}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            save(temporary / "state")
            write_json(temporary / "MANIFEST.json", _digests(temporary, sync=True))
            with (self.folder / METRICS_FILE).open("rb") as handle:  # a checkpoint never outlives its rows
                os.fsync(handle.fileno())
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _fsync_folder(parent)
        self._drop_old()
        if self.pause is not None and self.pause.exists():
            raise Paused

    def _drop_old(self) -> None:
        train, found = self.cfg.train, dict(list_checkpoints(self.folder))
        wanted = worth_keeping(self.rows, sorted(found), train.keep_also, self.cfg.detect.vote_window)
        for iteration in sorted(found)[: -train.keep_checkpoints]:
            if iteration not in wanted:
                shutil.rmtree(found[iteration])

    def trajectories(self, iteration: int, texts: list[dict[str, Any]]) -> None:
        self._append(TRAJECTORIES_FILE, iteration, texts)

    def groups(self, iteration: int, record: dict[str, Any]) -> None:
        self._append(GROUPS_FILE, iteration, [record])

    def _append(self, file: str, iteration: int, records: list[dict[str, Any]]) -> None:
        with (self.folder / file).open("a", encoding="utf-8") as handle:
            for record in records:
                handle.write(json.dumps({"iteration": iteration, **record}, ensure_ascii=False) + "\n")


class MemoryTracker:
    """A tracker that keeps everything in memory, for tests and notebooks; it never resumes."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.texts: list[dict[str, Any]] = []
        self.kept: list[dict[str, Any]] = []

    def resume(self, load: Callable[[Path], T]) -> T | None:
        return None

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.rows.append(_row(self.rows, iteration, metrics))

    def checkpoint(self, iteration: int, save: Callable[[Path], None]) -> None:
        return None

    def trajectories(self, iteration: int, texts: list[dict[str, Any]]) -> None:
        self.texts += [{"iteration": iteration, **text} for text in texts]

    def groups(self, iteration: int, record: dict[str, Any]) -> None:
        self.kept.append({"iteration": iteration, **record})


def _row(rows: list[Row], iteration: int, metrics: Mapping[str, float]) -> Row:
    if iteration != len(rows):
        raise ValueError(f"iteration {iteration} logged after {len(rows)} rows: one row per iteration, in order from 0")
    # Milliseconds, because MLflow keeps no finer time and both must read back equal.
    return {"iteration": iteration, "timestamp": round(time.time(), 3), **{k: float(v) for k, v in metrics.items()}}


def _sampled_at(line: str) -> float:
    try:
        return float(json.loads(line)["iteration"])
    except (ValueError, KeyError, TypeError):
        return math.inf  # a torn line belongs to nothing


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(iteration, folder) of the complete checkpoints of a trial, oldest first."""
    parent = folder / "checkpoints"
    if not parent.is_dir():
        return []
    return sorted((int(path.name), path) for path in parent.iterdir() if path.name.isdigit())


def _digests(folder: Path, sync: bool = False) -> dict[str, str]:
    found = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "MANIFEST.json"):
        with file.open("rb") as handle:
            found[file.relative_to(folder).as_posix()] = hashlib.file_digest(handle, "sha256").hexdigest()
            if sync:
                os.fsync(handle.fileno())
    return found


def damage(checkpoint: Path) -> str | None:
    """What is wrong with the bytes of a checkpoint, or None when they are as they were written."""
    manifest = read_json(checkpoint / "MANIFEST.json")
    if not manifest:
        return "it was not written to its end"
    found = _digests(checkpoint)
    wrong = sorted(name for name in manifest if found.get(name) != manifest[name])
    return f"damaged or missing: {', '.join(wrong)}" if wrong else None
