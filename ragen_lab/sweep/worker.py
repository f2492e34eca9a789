"""One trial, from request to result: the same function under every engine.

lock -> does the folder already hold what is asked for? -> train from the newest whole checkpoint ->
DONE.json. A worker process is kept for many trials, so everything global that a trial may have
touched is put back afterwards.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ragen_lab.config import RunConfig
from ragen_lab.errors import ConfigError, RagenLabError, TrialLocked
from ragen_lab.runs import View, look
from ragen_lab.track import (
    DONE_FILE,
    LOCK_FILE,
    LOG_FILE,
    METRICS_FILE,
    FolderTracker,
    Outcome,
    Paused,
    locked,
    trial_folder,
    write_done,
    write_json,
    write_provenance,
)

STAGE_FILE = "stage.json"  # what a trial is doing before its first row, for the driver's table
RETRIES = 2
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


def run_trial(request: TrialRequest) -> TrialResult:
    """Bring one trial to where its config wants it. Never raises for what goes wrong inside the trial."""
    started = time.monotonic()
    folder = trial_folder(Path(request.home), request.trial_id)
    while request.pause is not None and Path(request.pause).exists():
        time.sleep(0.2)  # the driver ends this process once the trials under way have come to rest
    try:
        with _held(folder, request.patience):
            result = _run_locked(request, folder)
    except TrialLocked as error:
        result = TrialResult(request.trial_id, "pending", look(folder, request.cfg).iteration, error=str(error))
    except OSError as error:  # outside the trial: its folder itself cannot be used
        result = TrialResult(request.trial_id, "failed", -1, error=_sentence(error, folder))
    return replace(result, seconds=time.monotonic() - started, pid=os.getpid(), host=socket.gethostname())


def _run_locked(request: TrialRequest, folder: Path) -> TrialResult:
    view = look(folder, request.cfg)
    if _reached(view, request):
        return _result(request, view)
    (folder / DONE_FILE).unlink(missing_ok=True)
    notes: list[str] = []
    error: str | None = None
    permanent = paused = False
    with ExitStack() as stack:
        stack.enter_context(_as_it_was())
        if request.capture:
            stack.enter_context(_output_to(folder / LOG_FILE))
        try:
            trainer: Trainer = _find(request.trainer)
            tracker = FolderTracker(folder, request.cfg, Path(request.pause) if request.pause else None)
            notes = tracker.notes
            write_provenance(folder, len(tracker.rows), request.command, request.seed)
            outcome = trainer(request.cfg, tracker, Path(request.home), _Stage(folder / STAGE_FILE), request.until)
        except Paused:
            paused = True
        except Exception as problem:  # the border of the trial: whatever it was is reported, none is lost
            error, permanent = _sentence(problem, folder), isinstance(problem, ConfigError)
            _write_traceback(folder / LOG_FILE)
        (folder / STAGE_FILE).unlink(missing_ok=True)
    view = look(folder, request.cfg)
    if paused and not _reached(view, request):
        write_done(folder, "paused", view.iteration)
        return TrialResult(request.trial_id, "paused", view.iteration, notes=tuple(notes))
    if error is None and not _reached(view, request):
        asked = request.cfg.train.iterations if request.until is None else request.until
        error = (
            f"training said {outcome.status!r} at iteration {outcome.iteration}, but the folder holds "
            f"{len(view.rows)} rows of {asked + 1} and no collapse; see {folder / LOG_FILE}"
        )
    if error is not None:
        _write_failure(folder, view.iteration, error)
        return TrialResult(
            request.trial_id, "failed", view.iteration, error=error, notes=tuple(notes), permanent=permanent
        )
    status = view.status if view.done else "paused"
    write_done(folder, status, view.iteration, view.stop_reason)
    return _result(request, view, notes)


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


def record_failure(request: TrialRequest, error: str) -> TrialResult:
    """Say in the folder that the trial failed, when its own process could not (it was killed)."""
    folder = trial_folder(Path(request.home), request.trial_id)
    view = look(folder, request.cfg)
    if not view.done:
        _write_failure(folder, view.iteration, error)
    return TrialResult(request.trial_id, "failed", view.iteration, error=error)


def _write_failure(folder: Path, iteration: int, error: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_done(folder, "failed", iteration, error=error)
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


class _Stage:
    """Progress of what comes before the first iteration, at most twice a second."""

    def __init__(self, file: Path) -> None:
        self.file, self._last = file, 0.0

    def __call__(self, step: int, steps: int) -> None:
        if step < steps and time.monotonic() - self._last < 0.5:
            return
        self._last = time.monotonic()
        write_json(self.file, {"stage": "warm start", "step": step, "steps": steps})


def _find(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def _sentence(error: BaseException, folder: Path) -> str:
    """What went wrong and what to do, in one or two sentences."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({folder}). Free some space and repeat the command; it resumes from its checkpoint."
    if isinstance(error, (ConfigError, RagenLabError)):
        return str(error)
    first = (str(error).strip() or "no message").splitlines()[0][:300]
    return f"{type(error).__name__}: {first} (the traceback is in {folder / LOG_FILE})"


def _write_traceback(file: Path) -> None:
    text = traceback.format_exc()
    try:
        with file.open("a", encoding="utf-8") as handle:
            handle.write(text)
    except OSError as problem:
        print(f"could not write {file}: {problem}\n{text}", file=sys.stderr)


@contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Everything that this process prints, C libraries included, goes to ``file``."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        with file.open("a", encoding="utf-8", buffering=1) as target, ExitStack() as stack:
            os.dup2(target.fileno(), 1)
            os.dup2(target.fileno(), 2)
            # In a notebook or a test, Python's own streams are not the descriptors.
            stack.enter_context(redirect_stdout(target))
            stack.enter_context(redirect_stderr(target))
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Put back what a trial may leave behind in a kept process: environment, folder, seeds, logging, memory.

    torch is only touched where the trial has loaded it; this room never imports it.
    """
    environment, folder = dict(os.environ), Path.cwd()
    level, handlers = logging.root.level, list(logging.root.handlers)
    random.seed(0)
    np.random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
