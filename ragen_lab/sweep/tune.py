"""The distributed engine: Ray Tune as the scheduler of worker processes, and of nothing else.

A fresh Tuner is made for what is pending at each start; nothing of Ray's own state is ever restored,
because the trial folders and the ledger know more (a restored Tuner repeats work and cannot grow).
One Tune step is one whole trial, run by the same function as everywhere; worker processes are kept.
"""

from __future__ import annotations

import _thread
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Read when ray is imported, so they come first. Nothing leaves the machine, nothing litters the folders.
for _key, _value in {
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours ends the workers at once; Ray's waits for whole trials
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}.items():
    os.environ.setdefault(_key, _value)

import ray  # noqa: E402
from ray import tune  # noqa: E402

from ragen_lab.errors import ConfigError, HomeError  # noqa: E402
from ragen_lab.sweep.local import Event, OnEvent, cores, visible_gpus  # noqa: E402
from ragen_lab.sweep.worker import (  # noqa: E402
    RETRIES,
    TrialRequest,
    TrialResult,
    descriptors_to,
    record_failure,
    run_trial,
)
from ragen_lab.track import read_done, trial_folder  # noqa: E402

_TEMPORARY = "ragen-ray-"
_WAKE = signal.SIGUSR1


class TrialFailed(RuntimeError):
    """Tells Ray to try the trial again in a new process."""


class OneTrial(tune.Trainable):  # type: ignore[misc]
    """One step = one trial. The actor is reused for the next one."""

    def setup(self, config: dict[str, Any], requests: Sequence[TrialRequest] = ()) -> None:
        self.requests = requests
        self.request = requests[config["index"]]

    def step(self) -> dict[str, Any]:
        result = run_trial(self.request)
        if result.status == "failed" and not result.permanent:
            raise TrialFailed(result.error)
        return {"done": True, "result": asdict(result)}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.request = self.requests[new_config["index"]]
        return True


class _Listener(tune.Callback):  # type: ignore[misc]
    """Tune's callbacks as our events."""

    def __init__(self, requests: Sequence[TrialRequest], on_event: OnEvent) -> None:
        self.requests, self.on_event = requests, on_event
        self.results: dict[str, TrialResult] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks for a restore; ours hold a database, and are never restored

    def _request(self, trial: Any) -> TrialRequest:
        index: int = trial.config["index"]
        return self.requests[index]

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.on_event(Event("started", self._request(trial)))

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        if "result" in result:
            plain = dict(result["result"])
            answer = TrialResult(**{**plain, "notes": tuple(plain["notes"])})
            self.results[answer.trial_id] = answer
            self.on_event(Event("ended", self._request(trial), answer.pid, answer))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        request = self._request(trial)
        self.on_event(Event("retried", request, None, _failure(request, trial)))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        request = self._request(trial)
        answer = _failure(request, trial)
        self.results[request.trial_id] = answer
        self.on_event(Event("ended", request, None, answer))


def _failure(request: TrialRequest, trial: Any) -> TrialResult:
    """What a failed attempt left in the trial's folder; a worker that was killed left nothing."""
    done = read_done(trial_folder(Path(request.home), request.trial_id)) or {}
    error = done.get("error") if done.get("status") == "failed" else None
    if error:
        return TrialResult(request.trial_id, "failed", int(done["iteration"]), error=error)
    told = trial.get_error()
    why = f": {str(told).splitlines()[0][:200]}" if told is not None and str(told) else " (killed, or out of memory?)"
    return record_failure(request, f"the Ray worker process failed{why}; the trial's log.txt may say more.")


def run(
    requests: Sequence[TrialRequest],
    on_event: OnEvent,
    stop: threading.Event,
    *,
    cpus: float = 1,
    gpus: float = 0,
    address: str | None = None,
) -> dict[str, TrialResult]:
    """Run every request under Ray; trial id -> result. Trials cut off by ``stop`` have none.

    ``address``: a running cluster whose machines all see the home folder; None = this machine.
    Raises ConfigError where no machine has what a trial asks for, which Ray would wait for without a word, and
    KeyboardInterrupt where the user does; the workers are gone then.
    """
    listener = _Listener(requests, on_event)
    finished = threading.Event()
    with _scratch() as scratch, _quiet(), _wakeable():
        try:
            with _cluster(address, scratch):
                if faults := lacking(ray.nodes(), cpus, gpus):
                    raise ConfigError(f"Ray at {address}" if address else "this machine", faults)
                threading.Thread(target=_interrupt_on, args=(stop, finished), daemon=True).start()
                tuner = tune.Tuner(
                    tune.with_resources(
                        tune.with_parameters(OneTrial, requests=list(requests)), {"cpu": cpus, "gpu": gpus}
                    ),
                    param_space={"index": tune.grid_search(list(range(len(requests))))},
                    tune_config=tune.TuneConfig(
                        reuse_actors=True, trial_name_creator=_name, trial_dirname_creator=_name
                    ),
                    run_config=tune.RunConfig(
                        name="sweep",
                        storage_path=str(scratch / "tune"),
                        failure_config=tune.FailureConfig(max_failures=RETRIES),
                        # The trial folders hold the checkpoints; Tune would ask for one more at the end.
                        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                        callbacks=[listener],
                        verbose=0,
                    ),
                )
                tuner.fit()
                finished.set()
        except KeyboardInterrupt:
            if not stop.is_set():
                raise
        finally:
            finished.set()
    return listener.results


def lacking(nodes: Sequence[dict[str, Any]], cpus: float, gpus: float) -> list[str]:
    """What no single machine of a cluster has of the resources that one trial asks for: a fault each."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in alive):
        return []
    told = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in alive) or "none"
    return [
        f"resources: {cpus:g} CPUs and {gpus:g} GPUs per trial, but a trial runs on one machine and none has as much "
        f"(machines: {told}). Ask for less with resources.cpus and resources.gpus, or add a machine."
    ]


def _name(trial: Any) -> str:
    return f"trial_{trial.config['index']:05d}"


def _interrupt_on(stop: threading.Event, finished: threading.Event) -> None:
    """Tune cannot be told to end from another thread; an interrupt in the main thread can."""
    while not finished.is_set():
        if stop.wait(0.2) and not finished.is_set():
            _thread.interrupt_main(_WAKE)
            return


@contextmanager
def _wakeable() -> Iterator[None]:
    """Make ``_WAKE`` raise KeyboardInterrupt in the main thread.

    Not SIGINT: a sweep that was started in the background of a shell ignores it, and its budget must end it all the
    same.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(_WAKE, interrupt)
    try:
        yield
    finally:
        signal.signal(_WAKE, before)


@contextmanager
def _cluster(address: str | None, scratch: Path) -> Iterator[None]:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL, "configure_logging": True}
    try:
        if address is None:
            # Results travel as small dicts, so the smallest object store will do.
            ray.init(
                num_cpus=cores(),
                num_gpus=len(visible_gpus()),
                include_dashboard=False,
                object_store_memory=80 * 2**20,
                _temp_dir=str(scratch / "ray"),
                **quiet,
            )
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        where = "on this machine" if address is None else f"at {address}"
        raise HomeError(
            f"Ray could not be started {where}: {str(error).splitlines()[0]}. Sweeps run without it too: add --local."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for Ray's sessions, removed afterwards; those of killed drivers go at the next start.

    Not in the home: the names of its sockets may not be longer than 107 characters.
    """
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{_TEMPORARY}*"):
        pid = old.name.removeprefix(_TEMPORARY).split("-")[0]
        if pid.isdigit() and not _alive(int(pid)) and old.stat().st_uid == os.getuid():
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray prints boxes and tracebacks whatever it is told: its words go to a file that is thrown away.

    The driver's own terminal is a copy of the descriptor, made before (``drive.Terminal``).
    """
    with tempfile.TemporaryFile("w") as sink, descriptors_to(sink):
        yield
