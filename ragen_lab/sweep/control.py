"""A sweep seen and steered from another terminal.

A request is a file beside the sweep's lock, which the driver looks for every second; it names the lock as it was
taken, so that a request to one driver never reaches the next. What a sweep is doing is read from the ledger, the trial
folders and the locks alone, so it can be asked of a sweep that does not run, and in a home that may not be written.
"""

from __future__ import annotations

import _thread
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ragen_lab.config import RunConfig
from ragen_lab.errors import ConfigError, HomeError, TrialLocked
from ragen_lab.locks import is_locked
from ragen_lab.runs import pruned_trials, reading_ledger, seen, sweep_record
from ragen_lab.sweep.board import SUCCESS, duration, last_value, plural
from ragen_lab.sweep.estimate import recent_pace
from ragen_lab.track import LOCK_FILE, number_to_json, read_json, trial_folder, write_json

DEFAULT_HOME = ".ragen-lab"
POLL_SECONDS = 1.0
STOP_PATIENCE = 60.0  # seconds that a driver may take to end; the last write to MLflow is part of it
PAST = {"stop": "stopped", "pause": "paused"}


def lock_of(home: Path, sweep: str) -> Path:
    """The lock that the driver of a sweep holds."""
    return home / "locks" / f"{sweep}.lock"


def request_file(home: Path, sweep: str) -> Path:
    return home / "locks" / f"{sweep}.request.json"


def pause_file(home: Path, sweep: str) -> Path:
    """While this file exists, trials of the sweep rest at their next checkpoint."""
    return home / "locks" / f"{sweep}.pause"


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def holder_of(lock: Path) -> Holder | None:
    """Who holds a lock now; None where nobody does."""
    if not is_locked(lock):
        return None
    words = lock.read_text(encoding="utf-8").split()  # "process 123 on host"
    return Holder(int(words[1]), words[3]) if len(words) == 4 else Holder(0, "unknown")


# --- the driver's side ----------------------------------------------------------------------------


class Listener:
    """Hears requests while the driver trains; ``action`` is the one that was heard.

    ``stop`` ends the engine. A pause first lets every trial under way come to a checkpoint: ``at_work`` gives their
    folders. ``in_process``: trials run in this process, one at a time.
    """

    def __init__(
        self,
        home: Path,
        sweep: str,
        stop: threading.Event,
        at_work: Callable[[], Iterable[Path]],
        in_process: bool = False,
    ) -> None:
        self.lock, self.request, self.pause = lock_of(home, sweep), request_file(home, sweep), pause_file(home, sweep)
        self.stop, self.at_work, self.in_process = stop, at_work, in_process
        self.action: str | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True, name="listener")

    def __enter__(self) -> Listener:
        self.pause.unlink(missing_ok=True)  # of a driver that was killed while it paused
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        try:
            self._thread.join()
        finally:
            self.pause.unlink(missing_ok=True)

    def words(self) -> str:
        """How the sweep was ended, for people."""
        if self.action == "pause":
            return "Paused from another terminal: every trial under way has come to a checkpoint, so nothing is lost."
        return (
            "Stopped from another terminal. What was logged is on disk; running trials go on from their last "
            "checkpoints."
        )

    def _listen(self) -> None:
        while not self._end.wait(POLL_SECONDS):
            action = self._take()
            if action == "pause" and self.action is None and self.in_process:
                self.stop.set()  # nothing new is begun; the trial under way ends itself
            if action == "stop":
                self.end_now()
            self.action = action or self.action
            if self.action == "pause":
                waiting = list(self.at_work())
                if not any(is_locked(folder / LOCK_FILE) for folder in waiting):
                    self.end_now(wake=bool(waiting))

    def end_now(self, wake: bool = True) -> None:
        """End the engine, and the trial under way where that is in this process; from any thread."""
        self.stop.set()
        if self.in_process and wake:  # the main thread is inside a trial
            _thread.interrupt_main(signal.SIGTERM)

    def _take(self) -> str | None:
        try:
            asked = read_json(self.request)
            if not isinstance(asked, dict) or asked.get("to") != self.lock.stat().st_mtime_ns:
                return None
            self.request.unlink(missing_ok=True)
            if asked["action"] == "pause":
                self.pause.touch()
        except OSError:  # the disk is full, or the home is gone: those who write results to it say so
            return None
        return str(asked["action"])


# --- the other terminal's side --------------------------------------------------------------------


def ask(
    home: Path, sweep: str, action: str, say: Callable[[str], None], patience: float = STOP_PATIENCE
) -> dict[str, Any]:
    """Ask the driver of a sweep to ``stop`` or to ``pause``, and wait until it has ended.

    Raises ConfigError for an unknown sweep, HomeError where the request cannot be written, and TrialLocked where the
    driver has not stopped within ``patience`` seconds (a pause takes as long as its trials need to their checkpoints).
    """
    home = home.absolute()
    record = sweep_record(home, sweep)
    lock, request = lock_of(home, sweep), request_file(home, sweep)
    holder = holder_of(lock)
    told: dict[str, Any] = {"sweep": sweep, "asked": action, "was_running": holder is not None, "ended": True}
    if holder is None:
        say(f"{sweep} does not run, so there is nothing to {action}. To run it: {again(record, home)}")
        return told
    token = lock.stat().st_mtime_ns  # when this driver took the lock
    try:
        write_json(request, {"action": action, "to": token})
    except OSError as error:
        raise HomeError(
            f"the request cannot be written to {request}: {error}. Make {home} writable, or end {holder} with Ctrl-C "
            f"in its own terminal: what is logged stays."
        ) from error
    wait = "its trials come to their next checkpoints" if action == "pause" else "it ends"
    say(f"Asked {holder} to {action} {sweep}; waiting until {wait}.")
    deadline = time.monotonic() + patience
    try:
        while is_locked(lock) and lock.stat().st_mtime_ns == token:
            if action == "stop" and time.monotonic() > deadline:
                raise TrialLocked(
                    f"{holder} has not stopped {sweep} within {duration(patience)}. End it there with Ctrl-C or `kill "
                    f"{holder.pid}`: nothing that is logged is lost, and the same sweep command goes on."
                )
            time.sleep(0.2)
    except KeyboardInterrupt:
        say("No longer waiting. The request stands.")
        return {**told, "ended": False}
    request.unlink(missing_ok=True)  # a driver that was about to end by itself has not looked
    say(f"{sweep} has {PAST[action]}. To go on: {again(record, home)}")
    return told


def home_option(home: Path) -> str:
    """What a command needs to find a home from this folder: "" for the default one."""
    return "" if home.resolve() == Path(DEFAULT_HOME).resolve() else f" --home {shlex.quote(str(home.absolute()))}"


def again(record: Mapping[str, Any], home: Path) -> str:
    """The command that goes on with a sweep from this folder: as it was typed, where that leads there; else with page
    and home in full, and the rest to be added as it was typed."""
    command, file = str(record["command"]), str(record["file"])
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    named = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--home"]
    named += [word.removeprefix("--home=") for word in words if word.startswith("--home=")]
    leads_there = Path(named[-1] if named else DEFAULT_HOME).resolve() == home.resolve()
    if leads_there and any(Path(word).resolve() == Path(file).resolve() for word in words):
        return command
    plain = f"ragen-lab sweep {shlex.quote(file)}{home_option(home)}"
    return plain + (f" (first run elsewhere, as: {command})" if command else "")


def choice(file: Path | None, asked: dict[str, str | None], others: dict[str, Any]) -> tuple[str, str] | None:
    """Which of ``--status``, ``--stop`` and ``--pause`` is meant, and the sweep's name; None = run the page.

    ``others``: options that only a run has. Raises ConfigError where the words do not go together.
    """
    given = {name: sweep for name, sweep in asked.items() if sweep is not None}
    if not given:
        if file is None:
            raise ConfigError(
                "sweep",
                ["name a sweep page, for example sweeps/quickstart.yaml; or --status, --stop or --pause with a name."],
            )
        if others.get("plan") and others.get("rerun"):
            raise ConfigError("sweep", ["--rerun sets results aside, and --plan changes nothing: give one of them."])
        return None
    faults = []
    if len(given) > 1:
        faults.append(f"{' and '.join(f'--{name}' for name in given)} cannot go together; give one of them.")
    if file is not None:
        faults.append(
            f"--{next(iter(given))} takes the name of a sweep and no page: leave out {file} (names: `ragen-lab list "
            f"sweeps`)."
        )
    used = [f"--{name}" for name, value in others.items() if value]
    if used:
        faults.append(f"{', '.join(used)} {'is' if len(used) == 1 else 'are'} for running a page; leave it out here.")
    if faults:
        raise ConfigError("sweep", faults)
    return next((name, sweep) for name, sweep in given.items())


# --- what it is doing -----------------------------------------------------------------------------


def status_of(home: Path, sweep: str) -> dict[str, Any]:
    """What a sweep is doing, as plain data. Raises ConfigError for an unknown one, HomeError for a home that ails."""
    home = home.absolute()
    record = sweep_record(home, sweep)
    with reading_ledger(home) as ledger:
        entries = ledger.execute("SELECT * FROM runs WHERE sweep = ? ORDER BY position", (sweep,)).fetchall()
    holder = holder_of(lock_of(home, sweep))
    pruned = pruned_trials(home, sweep)
    trials = [_trial(home, entry, pruned) for entry in entries]
    done = sum(trial["done"] for trial in trials)
    return {
        "sweep": sweep,
        "state": _state(home, sweep, holder, done == len(trials)),
        "process": str(holder) if holder else None,
        "done": done,
        "seconds_left": _seconds_left(trials),
        "file": record["file"],
        "command": record["command"],
        "again": again(record, home),
        "trials": trials,
    }


def _state(home: Path, sweep: str, holder: Holder | None, done: bool) -> str:
    """running | pausing | stopping | done | not running."""
    if holder is None:
        return "done" if done else "not running"
    asked, taken = read_json(request_file(home, sweep)), lock_of(home, sweep).stat().st_mtime_ns
    with suppress(FileNotFoundError):
        if pause_file(home, sweep).stat().st_mtime_ns > taken:  # an older one is of a driver that was killed
            return "pausing"
    if isinstance(asked, dict) and asked.get("to") == taken:
        return {"stop": "stopping", "pause": "pausing"}[asked["action"]]
    return "running"


def _trial(home: Path, entry: Any, pruned: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    cfg = RunConfig.model_validate_json(entry["config"])
    folder = trial_folder(home, entry["trial_id"])
    view = seen(home, entry["trial_id"], cfg, pruned)
    holder = None if view.done else holder_of(folder / LOCK_FILE)
    success = last_value(view.rows, SUCCESS)
    pace = recent_pace(view.rows, cfg)
    # A row from before this process took the trial says nothing of how it gets on.
    here = holder and view.rows and view.rows[-1]["timestamp"] >= (folder / LOCK_FILE).stat().st_mtime
    age = time.time() - view.rows[-1]["timestamp"] if here else None
    ahead = 0.0 if view.done else None if pace is None else pace.of(cfg, view.iteration)
    return {
        "trial_id": entry["trial_id"],
        "arm": entry["arm"],
        "seed": entry["seed"],
        "status": "running" if holder else view.status,
        "done": view.done,
        "iteration": view.iteration,
        "iterations": cfg.train.iterations,
        "success": None if success is None else number_to_json(success),
        "reason": view.stop_reason,
        "process": str(holder) if holder else None,
        "seconds_per_iteration": None if pace is None else pace.mean(cfg),
        "seconds_since_last_row": None if age is None else round(age, 1),
        "seconds_left": ahead,
    }


def _seconds_left(trials: list[dict[str, Any]]) -> float | None:
    """Until all is done with as many trials at a time as run now (one, where none runs); None before any pace."""
    paces = [trial["seconds_per_iteration"] for trial in trials if trial["seconds_per_iteration"] is not None]
    if not paces:
        return None
    typical = sorted(paces)[len(paces) // 2]
    left = [
        (trial["iterations"] - max(0, trial["iteration"])) * typical
        if trial["seconds_left"] is None
        else trial["seconds_left"]
        for trial in trials
        if not trial["done"]
    ]
    at_once = max(1, sum(trial["process"] is not None for trial in trials))
    return float(max(max(left, default=0.0), sum(left) / at_once))


def describe_status(status: dict[str, Any]) -> str:
    """``status_of`` in words."""
    trials = status["trials"]
    who = f" by {status['process']}" if status["process"] else ""
    head = f"{status['sweep']}: {status['state']}{who}, {status['done']} of {plural(len(trials), 'trial')} done"
    left = status["seconds_left"]
    if left and status["process"]:
        head += f", about {duration(left)} left"
    elif left:
        head += f", about {duration(left)} of work left, one trial at a time"
    lines = [f"{head}."]
    width = max((len(trial["arm"]) for trial in trials), default=0)
    for trial in trials:
        words = [f"  {trial['arm']:<{width}}  seed {trial['seed']}", trial["status"]]
        words.append(f"{trial['iteration'] if trial['iteration'] >= 0 else '-'}/{trial['iterations']}")
        if trial["success"] is not None:
            words.append(f"success {float(trial['success']):.3f}")
        if trial["process"]:
            words.append(trial["process"])
            if trial["seconds_since_last_row"] is not None:
                words.append(f"last row {duration(max(0.0, trial['seconds_since_last_row']))} ago")
            if trial["seconds_left"] is not None:
                words.append(f"about {duration(trial['seconds_left'])} left")
        elif trial["reason"] and trial["status"] in ("failed", "collapsed", "pruned"):
            words.append(trial["reason"])
        lines.append("  ".join(words))
    if not status["process"] and status["state"] != "done":
        lines.append(f"To go on: {status['again']}")
    return "\n".join(lines)
