"""One trial, from request to result: the same function under every engine.

lock -> does the folder already hold what is asked for? -> train from the newest whole checkpoint ->
DONE.json. A worker process is kept for many trials, so everything global that a trial may have
touched is put back afterwards.
"""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import random
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ragen_lab.config import RunConfig
from ragen_lab.errors import ConfigError, RagenLabError, TrialLocked
from ragen_lab.locks import locked
from ragen_lab.redaction import redact
from ragen_lab.runs import View, look
from ragen_lab.sweep import bounded_log
from ragen_lab.sweep.bounded_log import BoundedLog
from ragen_lab.sweep.guard import GB, KILLED_FILE, STAGE_FILE, Guard, Limits, last_words, write_last_words
from ragen_lab.track import (
    DONE_FILE,
    LOCK_FILE,
    LOG_FILE,
    METRICS_FILE,
    FolderTracker,
    Outcome,
    Paused,
    read_done,
    read_rows,
    trial_folder,
    write_done,
    write_json,
    write_provenance,
)

RETRIES = 2  # in a row without a new iteration; see retry.py
Trainer = Callable[[RunConfig, FolderTracker, Path, Callable[[int, int], None], int | None], Outcome]


@dataclass(frozen=True)
class TrialRequest:
    """What a sweep wants of one trial. Plain and picklable: it crosses to worker processes."""

    trial_id: str
    arm: str
    seed: int
    cfg: RunConfig
    home: str
    trainer: str = "ragen_lab.train:train"  # "module:function"
    capture: bool = True  # what the trial prints goes to its log.txt
    until: int | None = None  # stop here for now: the scheduler decides whether it goes on; None = to its end
    command: str = ""  # what the user typed, for the trial's provenance
    patience: float = 300.0  # seconds without a sign of life of another process at work on it, before giving up
    pause: str | None = None  # while this file exists, the trial rests: at its next checkpoint, or before it begins
    limits: Limits = field(default_factory=Limits)  # in worker processes only: they are kept by ending the process


@dataclass(frozen=True)
class TrialResult:
    """How a request ended. ``error``: one sentence; the traceback is in the trial's log.txt."""

    trial_id: str
    status: str  # finished | collapsed | failed | paused (reached ``until``) | pending (another process holds it)
    iteration: int
    stop_iteration: int | None = None
    reason: str | None = None
    error: str | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    pid: int = 0
    host: str = ""
    permanent: bool = False  # the same input fails the same way: not to be tried again
    cause: str = ""  # of a failure, where it is known: hung | memory | disk | killed


def run_trial(request: TrialRequest, check: Callable[[], None] = lambda: None) -> TrialResult:
    """Bring one trial to where its config wants it. Never raises for what goes wrong inside the trial.

    ``check`` raises KeyboardInterrupt where the user's came to nothing in this process.
    """
    started = time.monotonic()
    folder = trial_folder(Path(request.home), request.trial_id)
    while request.pause is not None and Path(request.pause).exists():
        time.sleep(0.2)  # the driver ends this process once the trials under way have come to rest
    try:
        with _held(folder, request.patience):
            result = _run_locked(request, folder, check)
    except TrialLocked as error:
        result = TrialResult(request.trial_id, "pending", look(folder, request.cfg).iteration, error=str(error))
    except OSError as error:  # outside the trial: its folder itself cannot be used
        result = TrialResult(request.trial_id, "failed", -1, error=_sentence(error, folder), cause=_cause(error))
    return replace(result, seconds=time.monotonic() - started, pid=os.getpid(), host=socket.gethostname())


def _run_locked(request: TrialRequest, folder: Path, check: Callable[[], None]) -> TrialResult:
    view = look(folder, request.cfg)
    if _reached(view, request):
        _write_missing_end(folder, view)
        return _result(request, view)
    (folder / DONE_FILE).unlink(missing_ok=True)
    notes: list[str] = []
    error: str | None = None
    cause, permanent, paused = "", False, False
    outcome: Any = None
    with ExitStack() as stack:
        stack.enter_context(_as_it_was())
        if request.capture:
            stack.enter_context(_output_to(folder / LOG_FILE))
        guard = stack.enter_context(Guard(folder, request.limits))
        try:
            trainer: Trainer = _find(request.trainer)
            pause = Path(request.pause) if request.pause else None
            tracker = _GuardedTracker(folder, request.cfg, guard, pause, check)
            notes = tracker.notes
            write_provenance(folder, len(tracker.rows), request.command, request.seed)
            stage = _Stage(folder / STAGE_FILE, guard)
            outcome = trainer(request.cfg, tracker, Path(request.home), stage, request.until)
        except Paused:
            paused = True
        except KeyboardInterrupt:  # the user's, not the trial's
            raise
        except BaseException as problem:  # the border of the trial: exits and panics of libraries are reported too
            error, cause = redact(_sentence(problem, folder)), _cause(problem)
            permanent = isinstance(problem, ConfigError)
            _write_traceback(folder / LOG_FILE, request.capture)
        (folder / STAGE_FILE).unlink(missing_ok=True)
    view = look(folder, request.cfg)
    if paused and not _reached(view, request):
        write_done(folder, "paused", view.iteration)
        return TrialResult(request.trial_id, "paused", view.iteration, notes=tuple(notes))
    if error is None and not _reached(view, request):
        asked = request.cfg.train.iterations if request.until is None else request.until
        error = (
            f"training said {getattr(outcome, 'status', None)!r} at iteration {getattr(outcome, 'iteration', None)}, "
            f"but the folder holds {len(view.rows)} rows of {asked + 1} and no collapse; see "
            f"{folder / LOG_FILE}"
        )
    if error is not None:
        check()  # what a library has made of an interrupt is no failure
        _write_failure(folder, view.iteration, error, cause)
        return TrialResult(
            request.trial_id,
            "failed",
            view.iteration,
            error=error,
            notes=tuple(notes),
            permanent=permanent,
            cause=cause,
        )
    status = view.status if view.done else "paused"
    write_done(folder, status, view.iteration, view.stop_reason)
    return _result(request, view, notes)


def write_missing_ends(home: Path, ended: Iterable[tuple[str, View]]) -> None:
    """DONE.json for trials of which nothing is left to compute, so that no worker will see them again."""
    for trial_id, view in ended:
        folder = trial_folder(home, trial_id)
        if view.rows and read_done(folder) is None:
            # Another works on it, or it may only be read: its results are there all the same.
            with suppress(OSError), locked(folder / LOCK_FILE):
                _write_missing_end(folder, view)


def _write_missing_end(folder: Path, view: View) -> None:
    """DONE.json for a trial that was killed between its last row and that file, by the time of that row.

    Not where there are more rows: then a longer session was killed, and nobody saw the end of that.
    """
    if read_done(folder) is None and len(read_rows(folder / METRICS_FILE)) == len(view.rows):
        ended = view.status in ("finished", "collapsed")
        reason = view.stop_reason if ended else None
        write_done(folder, view.status if ended else "paused", view.iteration, reason, at=view.rows[-1]["timestamp"])


def _reached(view: View, request: TrialRequest) -> bool:
    """Whether nothing is left to compute of the request."""
    return view.done or (request.until is not None and view.iteration >= request.until)


def _result(request: TrialRequest, view: View, notes: list[str] | None = None) -> TrialResult:
    return TrialResult(
        request.trial_id,
        view.status if view.done else "paused",
        view.iteration,
        view.stop_iteration,
        view.stop_reason,
        notes=tuple(notes or ()),
    )


def record_failure(request: TrialRequest, error: str, overdue: bool = False) -> TrialResult:
    """Say in the folder that the trial failed, when its own process could not: it was killed, maybe by its guard.

    ``error``: what is known from outside, for a process that has left no last words; ``overdue``: it was killed because
    it did not answer. Nothing is read or written of a folder that another process has taken up meanwhile.
    """
    folder = trial_folder(Path(request.home), request.trial_id)
    cause, used = "hung" if overdue else "killed", 0
    with ExitStack() as stack:
        ours = True
        try:
            stack.enter_context(locked(folder / LOCK_FILE))
            if overdue:
                write_last_words(folder)
            cause, used = last_words(folder) or (cause, used)
        except OSError:  # another's by now, or not to be used at all: the result says what is known
            ours = False
        view = look(folder, request.cfg)
        if cause in ("hung", "memory"):
            error = _ended_by_guard(request, view, cause, used)
            error += f" Where it stood is in {folder / KILLED_FILE}." if ours else ""
        if ours and not view.done:
            _write_failure(folder, view.iteration, error, cause)
    return TrialResult(request.trial_id, "failed", view.iteration, error=error, cause=cause)


def _ended_by_guard(request: TrialRequest, view: View, cause: str, used: int) -> str:
    limits = request.limits
    if cause == "memory":
        return (
            f"the trial's process took {used / GB:.2g} GB, more than its {limits.memory_gb or 0:g} GB "
            f"(resources.memory_gb), and was ended. Raise the limit, or {_LESS_MEMORY}."
        )
    where = f"after iteration {view.iteration}" if view.rows else "before its first iteration"
    return (
        f"the trial hung {where}: nothing new for {limits.hang_minutes or 0:g} minutes, so its process was ended. If "
        f"an iteration may take that long, raise resources.hang_minutes."
    )


def _write_failure(folder: Path, iteration: int, error: str, cause: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_done(folder, "failed", iteration, error=error, cause=cause)
    except OSError as problem:  # a full disk must not hide the first error, which the result carries
        print(f"could not write {folder / DONE_FILE}: {problem}", file=sys.stderr)


@contextmanager
def _held(folder: Path, patience: float) -> Iterator[None]:
    """The folder's lock; another process may hold it for as long as its metrics keep growing."""
    while True:
        before = _mtime(folder / METRICS_FILE)
        try:
            with locked(folder / LOCK_FILE, wait=patience):
                yield
                return
        except TrialLocked:
            if _mtime(folder / METRICS_FILE) == before:
                raise


def _mtime(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


class _GuardedTracker(FolderTracker):
    """A folder tracker that tells the guard of every new row, and asks whether to go on."""

    def __init__(
        self, folder: Path, cfg: RunConfig, guard: Guard, pause: Path | None, check: Callable[[], None]
    ) -> None:
        super().__init__(folder, cfg, pause)
        self._guard, self._check = guard, check

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        super().log(iteration, metrics)
        self._guard.alive()
        self._check()


class _Stage:
    """Progress of what comes before the first iteration, at most twice a second."""

    def __init__(self, file: Path, guard: Guard) -> None:
        self.file, self.guard, self._last = file, guard, 0.0

    def __call__(self, step: int, steps: int) -> None:
        self.guard.alive()
        if step < steps and time.monotonic() - self._last < 0.5:
            return
        self._last = time.monotonic()
        write_json(self.file, {"stage": "warm start", "step": step, "steps": steps})


def _find(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


_LESS_MEMORY = (
    "lower what takes memory: optim.micro_batch (the gradient stays the same up to rounding), rollout.max_context, "
    "rollout.prompts or rollout.responses; with another setting it is another trial, which starts anew"
)


def _sentence(error: BaseException, folder: Path) -> str:
    """What went wrong and what to do, in one or two sentences."""
    cause = _cause(error)
    if cause == "disk":
        return f"the disk is full ({folder}). Free some space and repeat the command; it resumes from its checkpoint."
    if isinstance(error, RagenLabError):
        return str(error)
    first = (_words(error).strip() or "no message").splitlines()[0][:300]
    told = f"{type(error).__name__}: {first} (the traceback is in {folder / LOG_FILE})"
    if cause == "memory":
        where = " of the GPU" if "cuda" in _words(error).lower() else ""
        return f"out of memory{where}; {_LESS_MEMORY}. {told}"
    return told


def _cause(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "disk"
    # torch's classes are told by name and words: this room never imports it.
    text = _words(error).lower()
    full = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if full or (isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)):
        return "memory"
    return ""


def _words(error: BaseException) -> str:
    """An exception's own words; even those of one that cannot say what it is."""
    try:
        return str(error)
    except Exception as worse:  # its __str__ is the trial's code
        return f"an exception that cannot be shown ({type(worse).__name__} in its __str__)"


def _write_traceback(file: Path, captured: bool) -> None:
    """The traceback of the exception at hand into log.txt, to which standard error already goes if ``captured``."""
    if captured:
        traceback.print_exc()
        return
    text = traceback.format_exc()
    log = BoundedLog(file)
    try:
        log.write(text.encode(errors="backslashreplace"))
        log.flush()
    except OSError as problem:
        print(f"could not write {file}: {problem}\n{text}", file=sys.stderr)


@contextmanager
def descriptors_to(target: TextIO) -> Iterator[None]:
    """Everything that this process prints, C libraries included, goes to ``target``."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        # In a notebook or a test, Python's own streams are not the descriptors.
        with redirect_stdout(target), redirect_stderr(target):
            os.dup2(target.fileno(), 1)
            os.dup2(target.fileno(), 2)
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


@contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Everything that this process prints goes to ``file``, of which only beginning and end are kept."""
    # Isolated and without site packages: 20 ms instead of 200.
    command = [sys.executable, "-I", "-S", bounded_log.__file__, str(file)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert writer.stdin is not None
    try:
        words = io.TextIOWrapper(writer.stdin, "utf-8", "backslashreplace", line_buffering=True)
        with words, descriptors_to(words):
            yield
    finally:
        try:
            writer.wait(timeout=10)
        except subprocess.TimeoutExpired:  # a process that the trial has left behind still holds the log
            print(f"{file} is still written by a process that the trial has started.", file=sys.stderr)


def _loaded_torch() -> Any:
    """torch, if it is loaded whole: another thread of this process may be in the middle of importing it."""
    torch = sys.modules.get("torch")
    return None if torch is None or getattr(torch.__spec__, "_initializing", False) else torch


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Put back what a trial may leave behind in a kept process: environment, folder, seeds, logging, memory.

    torch is only touched where the trial has loaded it; this room never imports it.
    """
    environment, folder = dict(os.environ), Path.cwd()
    level, handlers = logging.root.level, list(logging.root.handlers)
    gc.freeze()  # what is there already need not be searched for garbage after every trial: libraries are large
    random.seed(0)
    np.random.seed(0)
    torch = _loaded_torch()
    if torch is not None:
        torch.manual_seed(0)
    try:
        yield
    finally:
        for name in os.environ.keys() - environment.keys():
            os.environ.pop(name, None)
        os.environ.update(environment)  # at no moment is it empty: other threads of this process read it
        os.chdir(folder)
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers
        gc.collect()
        gc.unfreeze()
        torch = _loaded_torch()
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
