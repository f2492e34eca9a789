"""The faults. Each function hurts a session for real and brings the sweep to its end by the same command."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.session import ROOT, SWEEP, Session, moment
from benchmarks.faults.trainer import CLAIMED, ORDER, fill
from ragen_lab.runs import from_home
from ragen_lab.track import LOG_FILE, list_checkpoints, trial_folder

LOCKED_SECONDS = 30.0
DISK_MB = 24
_LOG_LIMIT = 2**20 + 200  # bytes of log.txt that are kept at most


@dataclass
class Injected:
    """``words``: what the message to the user must hold. ``spoilt``: checkpoints damaged on purpose."""

    words: str
    spoilt: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    last: bool = False  # whether it is the last driver that must have said so


@dataclass(frozen=True)
class Length:
    """Of the undisturbed sweep: random moments lie within it."""

    seconds: float
    rows: int


Fault = Callable[[Session, random.Random, Length], Injected]


class CannotInject(Exception):
    """This machine or this engine does not have what the fault needs; the words say what."""


# --- processes that die ---------------------------------------------------------------------------


def nothing(session: Session, chance: random.Random, length: Length) -> Injected:
    session.resume()
    return Injected("Everything is in")


def driver_kill(session: Session, chance: random.Random, length: Length) -> Injected:
    driver = session.start()
    _let_run(driver, moment(chance, length.seconds))
    driver.kill()
    driver.wait()
    left = session.quiet()
    session.kill(left)
    session.resume()
    notes = (f"{len(left)} processes outlived it by a minute",) if left else ()
    return Injected("there already", notes=notes, last=True)


def worker_kill(session: Session, chance: random.Random, length: Length) -> Injected:
    driver = session.start()
    _at_work(session, chance, length)
    workers = session.processes("ragen_lab.sweep.local" if session.engine == "local" else "ray::")
    newest = [int(line.split()[3]) for line in session.witness() if line.startswith("row")][-1]
    if newest not in workers:
        raise RuntimeError(f"process {newest}, which computed the newest row, has gone")
    session.kill([newest])
    _end(session, driver)
    return Injected("killed" if session.engine == "local" else "Ray worker process")


def _waits_for_last_words(pid: int) -> bool:
    """Whether it is the driver's own shell of ``sweep/last_words.py``, which is none of Ray's."""
    try:
        return b"farewell" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def ray_kill(session: Session, chance: random.Random, length: Length) -> Injected:
    """Everything of Ray's at once: its daemons and all workers."""
    if session.engine != "ray":
        raise CannotInject("no Ray here")
    driver = session.start()
    _at_work(session, chance, length)
    session.kill([pid for pid in session.processes() if pid != driver.pid and not _waits_for_last_words(pid)])
    notes = ()
    try:
        driver.wait(120)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()
        notes = ("the driver hung for 120 s and had to be killed",)
    session.kill(session.quiet(20))
    session.resume(2)
    return Injected("Ray", notes=notes)


def sigterm(session: Session, chance: random.Random, length: Length) -> Injected:
    return _signalled(session, chance, length, [signal.SIGTERM])


def sigint(session: Session, chance: random.Random, length: Length) -> Injected:
    return _signalled(session, chance, length, [signal.SIGINT])


def sigint_twice(session: Session, chance: random.Random, length: Length) -> Injected:
    return _signalled(session, chance, length, [signal.SIGINT, signal.SIGINT])


def _signalled(session: Session, chance: random.Random, length: Length, numbers: list[signal.Signals]) -> Injected:
    driver = session.start()
    session.wait_words()  # before, it is the interpreter that starts, and answers in its own way
    _let_run(driver, chance.uniform(0, length.seconds))
    for number in numbers:
        driver.send_signal(number)
        time.sleep(chance.uniform(0.05, 0.6))
    began = time.monotonic()
    code = driver.wait(90)
    notes = [] if time.monotonic() - began < 20 else [f"it took {time.monotonic() - began:.0f} s to end"]
    over = -code in numbers and "exit_code=" in session.said()  # it had said its last word, and was leaving
    notes += [] if code in (130, 0) or over else [f"exit code {code}"]
    notes += ["a traceback was shown"] if "Traceback" in session.said() else []
    left = session.quiet(30)
    notes += [f"{len(left)} processes were left"] if left else []
    session.kill(left)
    session.resume()
    return Injected("Interrupted|Everything is in", notes=tuple(notes))


def two_drivers(session: Session, chance: random.Random, length: Length) -> Injected:
    first = session.start()
    _let_run(first, chance.uniform(0, length.seconds / 2))
    second = session.start()
    codes = sorted([first.wait(300), second.wait(300)])
    session.resume()
    return Injected("being worked on by", notes=() if codes == [0, 1] else (f"exit codes {codes}",))


# --- MLflow and SQLite ----------------------------------------------------------------------------


def mlflow_restart(session: Session, chance: random.Random, length: Length) -> Injected:
    """The server is killed under way, and is back some seconds later."""
    port = _free_port()
    session.tracking = f"http://127.0.0.1:{port}"
    with _server(session.folder / "server.db", port) as first:
        driver = session.start()
        _at_work(session, chance, length)
        _end_group(first)
        time.sleep(chance.uniform(1, 8))
    with _server(session.folder / "server.db", port):
        _end(session, driver)
        session.resume()
    session.tracking = f"sqlite:///{session.folder / 'server.db'}"  # read back without the server
    return Injected("MLflow at|Everything is in")


def ledger_locked(session: Session, chance: random.Random, length: Length) -> Injected:
    return _locked(session, chance, length, "ledger.sqlite")


def mlflow_locked(session: Session, chance: random.Random, length: Length) -> Injected:
    return _locked(session, chance, length, "mlflow.db")


def _locked(session: Session, chance: random.Random, length: Length, name: str) -> Injected:
    driver = session.start()
    _at_work(session, chance, length)
    holder = sqlite3.connect(session.home / name, timeout=20, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    time.sleep(LOCKED_SECONDS)
    holder.execute("ROLLBACK")
    holder.close()
    _end(session, driver)
    session.resume()
    return Injected("Everything is in")


# --- the disk -------------------------------------------------------------------------------------


def disk_full_checkpoint(session: Session, chance: random.Random, length: Length) -> Injected:
    return _full(session, {"kind": "fill", "iteration": 6, "where": "checkpoint"})


def disk_full_metric(session: Session, chance: random.Random, length: Length) -> Injected:
    return _full(session, {"kind": "fill", "iteration": 5, "where": "row"})


def disk_full_ledger(session: Session, chance: random.Random, length: Length) -> Injected:
    """Full from a random moment on, when the driver has only the ledger left to write in or is just starting."""
    return _full(session, None, chance.uniform(0, length.seconds))


def _full(session: Session, order: dict[str, object] | None, after: float = 0.0) -> Injected:
    with _small_disk(session.home):
        session.furnish()
        if order is not None:
            (session.folder / ORDER).write_text(json.dumps(order))
        driver = session.start()
        if order is None:
            _let_run(driver, after)
            fill(session.home)
        code = driver.wait(300)
        said = session.said()
        silent = code == 0 and not _all_done(session)
        (session.home / "filler").unlink(missing_ok=True)
        session.resume(2)
        # The measurement must not need the small disk.
        kept = session.folder / "kept"
        shutil.copytree(session.home, kept)
    kept.rename(session.home)
    notes = ["a traceback was shown"] if "Traceback" in said else []
    notes += ["exit code 0, though not all was done"] if silent else []
    notes += [] if order is None or (session.folder / CLAIMED).exists() else ["the disk was never filled"]
    # The trial whose disk was filled must say so itself; at a random moment it may be anyone, or all may be over.
    words = "the disk is full" if order is not None else "disk is full|cannot be written|No space|Everything is in"
    return Injected(words, notes=tuple(notes))


def _all_done(session: Session) -> bool:
    return all(run.status in ("finished", "collapsed", "pruned") for run in from_home(session.home, SWEEP))


@contextmanager
def _small_disk(place: Path) -> Iterator[None]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotInject(f"a small tmpfs cannot be mounted: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        shutil.rmtree(place)  # what it hid


def checkpoint_truncated(session: Session, chance: random.Random, length: Length) -> Injected:
    """The newest checkpoint of every unfinished trial loses its second half while no driver runs."""
    driver = session.start()
    session.wait_until(lambda kept: any(count > 1 for count in kept.values()))
    driver.send_signal(signal.SIGTERM)
    driver.wait(90)
    session.kill(session.quiet(30))
    spoilt = []
    for run in from_home(session.home, SWEEP):
        found = list_checkpoints(trial_folder(session.home, run.trial_id))
        if run.status not in ("finished", "collapsed") and len(found) > 1:
            iteration, folder = found[-1]
            text = (folder / "state").read_bytes()
            (folder / "state").write_bytes(text[: len(text) // 2])
            spoilt.append((run.trial_id, iteration))
    if not spoilt:
        raise RuntimeError("no trial had two checkpoints at that moment; try another seed")
    session.resume()
    return Injected("cannot be used: damaged or missing", tuple(spoilt))


# --- the clock ------------------------------------------------------------------------------------


def clock_forward(session: Session, chance: random.Random, length: Length) -> Injected:
    return _clock(session, chance, length, "+3d")


def clock_backward(session: Session, chance: random.Random, length: Length) -> Injected:
    return _clock(session, chance, length, "-3d")


# Where libfaketime leaves the monotonic clock alone, its clock_nanosleep refuses it (0.9.10: invalid argument).
_SLEEP = """import select, time
time.sleep = lambda seconds: select.select([], [], [], max(0, seconds)) and None
"""


def _clock(session: Session, chance: random.Random, length: Length, jump: str) -> Injected:
    """The clock of every process of the sweep jumps by three days under way (libfaketime); the monotonic one does
    not, as on a real machine."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise CannotInject("libfaketime is not installed")
    file = session.folder / "clock"
    file.write_text("+0d\n")
    (session.folder / "sitecustomize.py").write_text(_SLEEP)
    session.environment.update(
        PYTHONPATH=f"{session.folder}:{ROOT}",
        LD_PRELOAD=str(found[0]),
        FAKETIME_TIMESTAMP_FILE=str(file),
        FAKETIME_CACHE_DURATION="1",  # seconds; to read the file at every call keeps Ray's daemons from starting
        DONT_FAKE_MONOTONIC="1",
    )
    row = chance.randint(1, 2 * length.rows // 3)
    for last in (False, False, True):
        driver = session.start()
        try:
            session.wait_rows(row, 300)
            break
        except (
            RuntimeError
        ):  # under libfaketime Ray may end its driver before anything has begun; that is not the fault
            if last or driver.poll() is None or any(line.startswith("row") for line in session.witness()):
                raise
            session.kill(session.quiet(20))
    temporary = file.with_name("clock.new")
    temporary.write_text(f"{jump}\n")
    temporary.replace(file)
    driver.wait(300)
    session.resume()
    text = "".join(each.read_text() for each in session.home.glob("trials/*/metrics.jsonl"))
    stamps = [float(line.split('"timestamp": ')[1].split(",")[0]) for line in text.splitlines()]
    jumped = max(stamps) - min(stamps) > 86400
    return Injected("Everything is in", notes=() if jumped else ("the clock of the trials never jumped",))


# --- trials that misbehave ------------------------------------------------------------------------


def hang(session: Session, chance: random.Random, length: Length) -> Injected:
    return _ordered(session, "hang", "the trial hung")


def leak(session: Session, chance: random.Random, length: Length) -> Injected:
    return _ordered(session, "leak", "resources.memory_gb")


def loud(session: Session, chance: random.Random, length: Length) -> Injected:
    found = _ordered(session, "loud", "Everything is in")
    sizes = [file.stat().st_size for file in session.home.glob(f"trials/*/{LOG_FILE}")]
    note = () if max(sizes) < _LOG_LIMIT else (f"a log of {max(sizes)} bytes",)
    return Injected(found.words, notes=(*found.notes, *note))


def odd_exception(session: Session, chance: random.Random, length: Length) -> Injected:
    return _ordered(session, "odd", "Odd: an exception that cannot be shown")


def _ordered(session: Session, kind: str, words: str) -> Injected:
    (session.folder / ORDER).write_text(json.dumps({"kind": kind, "iteration": 5}))
    driver = session.start()
    _end(session, driver)
    session.resume()
    done = (session.folder / CLAIMED).exists()
    return Injected(words, notes=() if done else ("it never came to that",))


# --- tools ----------------------------------------------------------------------------------------


def _at_work(session: Session, chance: random.Random, length: Length) -> None:
    """Until a random one of the first two thirds of the sweep's iterations has been computed."""
    patience = 300 if session.engine == "ray" else 120  # its start takes its time on a busy machine
    session.wait_rows(chance.randint(1, 2 * length.rows // 3), patience)


def _let_run(driver: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        driver.wait(seconds)  # a sweep may end before the moment drawn
    except subprocess.TimeoutExpired:
        return


def _end(session: Session, driver: subprocess.Popen[bytes], patience: float = 300) -> None:
    """The driver must end well by itself."""
    code = driver.wait(patience)
    if code != 0:
        raise RuntimeError(f"exit code {code}: {session.said()[-1500:]}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def _server(database: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{database}", "--host",
               "127.0.0.1", "--port", str(port), "--workers", "1"]  # fmt: skip
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (database.parent / "server.txt").open("ab") as said:
        server = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=said, stderr=said, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise CannotInject("the MLflow server did not start") from None
                time.sleep(0.2)
        yield server
    finally:
        _end_group(server)


def _end_group(server: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(server.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    server.wait()


FAULTS: dict[str, tuple[str, Fault]] = {
    "none": ("no fault", nothing),
    "driver_kill": ("kill -9 of the driver", driver_kill),
    "worker_kill": ("kill -9 of a worker", worker_kill),
    "ray_kill": ("kill -9 of all of Ray", ray_kill),
    "sigterm": ("SIGTERM", sigterm),
    "sigint": ("SIGINT", sigint),
    "sigint_twice": ("SIGINT twice", sigint_twice),
    "two_drivers": ("two drivers at once", two_drivers),
    "mlflow_restart": ("MLflow server killed and restarted", mlflow_restart),
    "ledger_locked": ("ledger locked for 30 s", ledger_locked),
    "mlflow_locked": ("MLflow's SQLite locked for 30 s", mlflow_locked),
    "disk_full_checkpoint": ("disk full at a checkpoint", disk_full_checkpoint),
    "disk_full_metric": ("disk full at a metric", disk_full_metric),
    "disk_full_ledger": ("disk full at a random moment (ledger)", disk_full_ledger),
    "checkpoint_truncated": ("truncated checkpoints", checkpoint_truncated),
    "clock_forward": ("clock jumps 3 days ahead", clock_forward),
    "clock_backward": ("clock jumps 3 days back", clock_backward),
    "hang": ("a trial hangs", hang),
    "leak": ("a trial leaks memory", leak),
    "loud": ("a trial prints 100 MB", loud),
    "odd_exception": ("an unpicklable exception", odd_exception),
}
# Limits on the page of these: resources of the sweep.
LIMITS = {"hang": "hang_minutes: 0.05", "leak": "memory_gb: 0.7"}
