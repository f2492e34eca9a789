"""The local engine: a pool of kept worker processes, or no process at all.

Each worker has a pipe of its own, so that one killed in the middle of a message harms no other. A worker
that dies is replaced and its trial goes on from its checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_lab.errors import ConfigError
from ragen_lab.sweep.desk import Desk
from ragen_lab.sweep.guard import GB, Overdue
from ragen_lab.sweep.interrupts import held
from ragen_lab.sweep.worker import TrialRequest, TrialResult, record_failure, run_trial
from ragen_lab.track import trial_folder

if TYPE_CHECKING:  # generic for the type checker only
    Channel = Connection[Any, Any]

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, without loading a GPU library."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is not None:
        return [name for name in asked.split(",") if name.strip() and name.strip() != "-1"]
    return [path.name.removeprefix("nvidia") for path in sorted(Path("/dev").glob("nvidia[0-9]*"))]


def memory() -> float:
    """Memory of this machine in 10^9 bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB


def lacking(cpus: float, gpus: float, memory_gb: float | None = None) -> list[str]:
    """What this machine has not of the resources that one trial asks for: a fault each."""
    faults = []
    if cpus > cores():
        faults.append(
            f"resources.cpus: {cpus:g} per trial, but this machine has {cores()} to give. Ask for at most {cores()}."
        )
    devices = len(visible_gpus())
    if gpus > devices:
        faults.append(
            f"resources.gpus: {gpus:g} per trial, but {devices} {'is' if devices == 1 else 'are'} visible here. Use "
            f"resources.gpus=0, or run where there are GPUs."
        )
    if memory_gb is not None and memory_gb > memory():
        faults.append(
            f"resources.memory_gb: {memory_gb:g} per trial, but this machine has {memory():.3g}. Ask for less, or "
            f"leave the limit out."
        )
    return faults


def slots(cpus: float, gpus: float, workers: int | None = None, memory_gb: float | None = None) -> list[str]:
    """One entry per trial that may run at a time: its CUDA_VISIBLE_DEVICES ("" = no GPU).

    Raises ConfigError where the machine has not what one trial asks for.
    """
    if faults := lacking(cpus, gpus, memory_gb):
        raise ConfigError("this machine", faults)
    count = int(cores() / cpus) if workers is None else workers
    if memory_gb is not None:
        count = min(count, int(memory() / memory_gb))
    if gpus == 0:
        return [""] * count
    devices = visible_gpus()
    if gpus >= 1:
        each = int(gpus)
        found = [",".join(devices[i : i + each]) for i in range(0, len(devices) - each + 1, each)]
    else:
        found = [device for device in devices for _ in range(int(1 / gpus))]
    return found[:count]


def run(
    desk: Desk,
    stop: threading.Event,
    *,
    cpus: float = 1,
    gpus: float = 0,
    memory_gb: float | None = None,
    workers: int | None = None,
    most: int = 1,
) -> None:
    """Run what the desk hands out until it has no more, or until ``stop``.

    ``workers``: processes; None = one per ``cpus`` cores, 0 = in this process, one after the other. ``most``: trials
    that there can ever be, so that no more processes are started than that.
    Raises KeyboardInterrupt where the user does; the workers are gone then.
    """
    if workers == 0:
        _in_process(desk, stop)
        return
    pool = _Pool()
    try:
        pool.begin(slots(cpus, gpus, workers, memory_gb)[:most])
        pool.run(desk, stop)
    finally:
        pool.kill()


def _in_process(desk: Desk, stop: threading.Event) -> None:
    while not stop.is_set():
        request = desk.take(free=1)
        if request is None:
            if not desk.waits():
                return
            stop.wait(0.1)
            continue
        desk.started(request, os.getpid())
        desk.ended(request, run_trial(request, desk.check))


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Channel
    life: int
    place: str
    request: TrialRequest | None = None
    overdue: Overdue | None = None

    def close(self) -> None:
        self.pipe.close()
        os.close(self.life)


class _Pool:
    """Interrupts wait while a worker is started or ended: of one that is not written down nobody knows."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []

    def begin(self, places: Sequence[str]) -> None:
        for place in places:
            with held():
                self.workers.append(_start(place))

    def run(self, desk: Desk, stop: threading.Event) -> None:
        while not stop.is_set():
            desk.check()  # where all are busy, nothing is taken for hours
            for worker in self.workers:
                free = sum(each.request is None for each in self.workers)
                if worker.request is None and (request := desk.take(free)) is not None:
                    desk.started(request, worker.process.pid)  # first: what the worker then writes is news
                    self._give(worker, request)
            busy = [worker for worker in self.workers if worker.request is not None]
            if not busy and not desk.waits():
                return
            if not busy:
                stop.wait(0.1)  # until the next attempt is due
            ready = wait([worker.pipe for worker in busy], timeout=0.2)
            for worker in [worker for worker in busy if worker.pipe in ready]:
                request = worker.request
                assert request is not None
                desk.ended(request, self._take(worker, request))
            for worker in busy:
                if worker.overdue is not None and worker.request is not None and worker.overdue():
                    worker.process.kill()  # a stopped process, or one that waits for a disk, cannot end itself

    @staticmethod
    def _give(worker: _Worker, request: TrialRequest) -> None:
        worker.request = request
        worker.overdue = Overdue(trial_folder(Path(request.home), request.trial_id), request.limits)
        with suppress(OSError):  # it died while idle: reading its pipe will say so, and a new one gets the trial
            worker.pipe.send(request)

    def _take(self, worker: _Worker, request: TrialRequest) -> TrialResult:
        """The worker's answer; a dead worker is replaced and its death is the answer."""
        try:
            result: TrialResult = worker.pipe.recv()
        except (EOFError, OSError):
            code = worker.process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            hint = ", by hand or by the system for want of memory" if code == -signal.SIGKILL else ""
            overdue = worker.overdue is not None and worker.overdue.late
            words = f"the worker process {how}{hint}; the trial's log.txt may say more."
            result = record_failure(request, words, overdue)
            with held():
                fresh = _start(worker.place)
                worker.close()
                worker.process, worker.pipe, worker.life = fresh.process, fresh.pipe, fresh.life
        worker.request = None
        return result

    def kill(self) -> None:
        """End the workers at once: what matters is on disk, and half-written files are never read."""
        with held():
            for worker in self.workers:
                worker.process.kill()
            for worker in self.workers:
                worker.process.wait()
                worker.close()


def _start(place: str) -> _Worker:
    """A fresh interpreter at the other end of a pipe.

    Not a ``multiprocessing.Process``: that would run the user's main script once more in every worker.
    """
    ours, theirs = Pipe()
    life, held = os.pipe()  # the driver holds one end open; the worker ends when it closes, however that comes
    environment = {
        **os.environ,
        **dict.fromkeys(THREADS, "1"),
        "CUDA_VISIBLE_DEVICES": place,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    numbers = (theirs.fileno(), life)
    code = f"from ragen_lab.sweep.local import serve; serve{numbers}"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        pass_fds=numbers,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()
    os.close(life)
    return _Worker(process, ours, held, place)


def serve(pipe_number: int, life: int) -> None:
    """A worker's life: take a request, run it, answer, until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides
    threading.Thread(target=_end_with_driver, args=(life,), daemon=True).start()
    pipe: Channel = Connection(pipe_number)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        pipe.send(run_trial(request))


def _end_with_driver(life: int) -> None:
    """A killed driver takes its workers along: they would go on holding locks and cores."""
    os.read(life, 1)  # returns when the other end is closed
    os._exit(1)
