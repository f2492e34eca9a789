"""The distributed engine: Ray Tune as the scheduler of worker processes, and of nothing else.

A fresh Tuner is made for what is pending at each start; nothing of Ray's own state is ever restored,
because the trial folders and the ledger know more (a restored Tuner repeats work and cannot grow).
One Tune step is one whole trial, run by the same function as everywhere; worker processes are kept.
"""

from __future__ import annotations

import _thread
import logging
import os
import pickle
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
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
from ray._private import utils as ray_utils  # noqa: E402
from ray._private.node import Node  # noqa: E402
from ray.tune.search import Searcher  # noqa: E402

from ragen_lab.errors import ConfigError, HomeError  # noqa: E402
from ragen_lab.sweep.desk import Desk  # noqa: E402
from ragen_lab.sweep.guard import GB  # noqa: E402
from ragen_lab.sweep.interrupts import held  # noqa: E402
from ragen_lab.sweep.local import cores, visible_gpus  # noqa: E402
from ragen_lab.sweep.worker import TrialRequest, TrialResult, descriptors_to, record_failure, run_trial  # noqa: E402
from ragen_lab.track import read_done, trial_folder  # noqa: E402

_TEMPORARY = "ragen-ray-"
_WAKE = signal.SIGUSR1


class TrialFailed(RuntimeError):
    """Tells Ray to try the trial again in a new process. Its one argument is the result as a dict."""


class OneTrial(tune.Trainable):  # type: ignore[misc]
    """One step = one request. The actor is reused for the next one."""

    def setup(self, config: dict[str, Any]) -> None:
        self.request: TrialRequest = config["request"]

    def step(self) -> dict[str, Any]:
        result = run_trial(self.request)
        if result.status == "failed" and not result.permanent:
            raise TrialFailed(asdict(result))  # a new process for the next attempt: this one may be spoilt
        return {"done": True, "result": asdict(result)}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.request = new_config["request"]
        return True


class _Feed(Searcher):  # type: ignore[misc]
    """Hands the desk's requests to Tune. Tune's saving and restoring of searchers is never used."""

    def __init__(self, desk: Desk, places: Callable[[], int], stop: threading.Event) -> None:
        super().__init__()
        self.desk, self.places, self.stop = desk, places, stop
        self.out: set[str] = set()  # Tune's ids of requests that have no result yet

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self.stop.is_set():
            return None
        free = self.places() - len(self.out)
        if self.desk.adaptive and free <= 0:
            return None  # Tune asks one trial ahead; a choice made before the results are in would be another one
        request = self.desk.take(free)
        if request is None:
            return None if self.out or self.desk.waits() else Searcher.FINISHED
        self.out.add(trial_id)
        return {"request": request}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.out.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        return None

    def restore(self, checkpoint_path: str) -> None:
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its searcher for a restore; the desk holds a database


class _Listener(tune.Callback):  # type: ignore[misc]
    """Tune's callbacks, told to the desk. Where the interrupt that ends a sweep came to nothing, the next step raises
    it again."""

    def __init__(self, desk: Desk, stop: threading.Event) -> None:
        self.desk, self.stop = desk, stop
        self.before: dict[str, Any] = {}  # trial id -> its DONE.json as its attempt began

    def __getstate__(self) -> dict[str, Any]:
        return {}  # as above

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self.desk.check()
        if self.stop.is_set():
            raise KeyboardInterrupt

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        request = trial.config["request"]
        self.before[request.trial_id] = _done(request)
        self.desk.started(request)

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        if "result" in result:
            self.desk.ended(trial.config["request"], _result(result["result"]))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        request = trial.config["request"]
        before = self.before.pop(request.trial_id, _done(request))  # one that has not begun has written nothing
        self.desk.ended(request, _failure(request, trial, before))


def _done(request: TrialRequest) -> dict[str, Any]:
    return read_done(trial_folder(Path(request.home), request.trial_id)) or {}


def _failure(request: TrialRequest, trial: Any, before: dict[str, Any]) -> TrialResult:
    """What a failed attempt told; a worker that was killed told nothing, and may have left a note in the folder.

    ``before``: the note of an earlier attempt.
    """
    raised = _raised(trial)
    if isinstance(raised, TrialFailed):
        return _result(raised.args[0])
    done = _done(request)
    error = done.get("error") if done.get("status") == "failed" and done != before else None
    if error:
        return TrialResult(request.trial_id, "failed", int(done["iteration"]), error=error, cause=done.get("cause", ""))
    words = str(raised).strip().splitlines()
    why = f": {words[0][:200]}" if words else " (killed, or out of memory?)"
    return record_failure(request, f"the Ray worker process failed{why}; the trial's log.txt may say more.")


def _raised(trial: Any) -> Any:
    """What the step of a trial raised, in its worker. Not ``trial.get_error()``, which reads a copy made later."""
    try:
        raised = pickle.loads(Path(trial.pickled_error_file).read_bytes())
    except (OSError, TypeError):  # Tune could not write it, or did not
        return ""
    return getattr(raised, "cause", raised)


def _result(plain: dict[str, Any]) -> TrialResult:
    return TrialResult(**{**plain, "notes": tuple(plain["notes"])})


def run(
    desk: Desk,
    stop: threading.Event,
    *,
    cpus: float = 1,
    gpus: float = 0,
    memory_gb: float | None = None,
    address: str | None = None,
) -> None:
    """Run what the desk hands out under Ray until it has no more, or until ``stop``.

    ``address``: a running cluster whose machines all see the home folder; None = this machine.
    Raises ConfigError where no machine has what a trial asks for, which Ray would wait for without a word, and
    KeyboardInterrupt where the user does; the workers are gone then.
    """
    finished = threading.Event()
    with _scratch() as scratch, _quiet(), _wakeable():
        try:
            with _cluster(address, scratch):
                if faults := lacking(ray.nodes(), cpus, gpus, memory_gb):
                    raise ConfigError(f"Ray at {address}" if address else "this machine", faults)
                threading.Thread(target=_interrupt_on, args=(stop, finished), daemon=True).start()
                tuner = tune.Tuner(
                    tune.with_resources(OneTrial, {"cpu": cpus, "gpu": gpus, "memory": (memory_gb or 0) * GB}),
                    tune_config=tune.TuneConfig(
                        search_alg=_Feed(desk, lambda: places(ray.nodes(), cpus, gpus, memory_gb), stop),
                        num_samples=-1,  # until the feed says that it is over
                        reuse_actors=True,
                        trial_name_creator=_name,
                        trial_dirname_creator=_name,
                    ),
                    run_config=tune.RunConfig(
                        name="sweep",
                        storage_path=str(scratch / "tune"),
                        failure_config=tune.FailureConfig(max_failures=0),  # the desk tries again
                        # The trial folders hold the checkpoints; Tune would ask for one more at the end.
                        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                        callbacks=[_Listener(desk, stop)],
                        verbose=0,
                    ),
                )
                tuner.fit()
                finished.set()
        except (KeyboardInterrupt, Exception) as error:
            if not stop.is_set() or not _of_an_interrupt(error):
                raise
        finally:
            finished.set()


def _of_an_interrupt(error: BaseException | None) -> bool:
    """Whether it is one, or what a library has made of one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def places(nodes: Sequence[dict[str, Any]], cpus: float, gpus: float, memory_gb: float | None = None) -> int:
    """Trials that the machines of a cluster can run at a time."""
    found = 0
    for resources in [node["Resources"] for node in nodes if node["Alive"]]:
        each = int(resources.get("CPU", 0) / cpus)
        each = min(each, int(resources.get("GPU", 0) / gpus)) if gpus else each
        found += min(each, int(resources.get("memory", 0) / (memory_gb * GB))) if memory_gb else each
    return found


def lacking(nodes: Sequence[dict[str, Any]], cpus: float, gpus: float, memory_gb: float | None = None) -> list[str]:
    """What no single machine of a cluster has of the resources that one trial asks for: a fault each."""
    if places(nodes, cpus, gpus, memory_gb):
        return []
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    memory = memory_gb is not None
    words = [
        f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs"
        + (f" and {node.get('memory', 0) / GB:.3g} GB" if memory else "")
        for node in alive
    ]
    asked = f"{cpus:g} CPUs and {gpus:g} GPUs" + (f" and {memory_gb:g} GB" if memory else "")
    return [
        f"resources: {asked} per trial, but a trial runs on one machine and none has as much "
        f"(machines: {'; '.join(words) or 'none'}). Ask for less with resources.cpus, resources.gpus and "
        f"resources.memory_gb, or add a machine."
    ]


def _name(trial: Any) -> str:
    return f"trial_{trial.trial_id}"


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
    try:
        with held(_WAKE), _our_handlers():
            _start(address, scratch)
        yield
    finally:
        with held(_WAKE), _our_handlers():
            ray.shutdown()


def _start(address: str | None, scratch: Path) -> None:
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
    except Exception as error:  # of a machine too busy to start its daemons within 30 s, Ray raises just that
        where = "on this machine" if address is None else f"at {address}"
        raise HomeError(
            f"Ray could not be started {where}: {str(error).splitlines()[0].rstrip('.')}. On a busy machine, try again "
            f"later. Sweeps run without Ray too: add --local."
        ) from error


@contextmanager
def _our_handlers() -> Iterator[None]:
    """Ray's handler of SIGTERM, which exits, never comes in place of ours. As its core ends it puts back the system's
    own, which ends the process: ours come again before the seconds in which its daemons are ended."""
    rays, end = ray_utils.set_sigterm_handler, Node.kill_all_processes

    def end_with_ours(node: Node, *args: Any, **named: Any) -> None:
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        end(node, *args, **named)

    ray_utils.set_sigterm_handler = lambda handler: None
    Node.kill_all_processes = end_with_ours
    try:
        yield
    finally:
        ray_utils.set_sigterm_handler = rays
        Node.kill_all_processes = end


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for Ray's sessions, removed afterwards; those of killed drivers go at the next start, and what
    still runs there.

    Not in the home: the names of its sockets may not be longer than 107 characters.
    """
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{_TEMPORARY}*"):
        pid = old.name.removeprefix(_TEMPORARY).split("-")[0]
        if pid.isdigit() and not _alive(int(pid)) and old.stat().st_uid == os.getuid():
            _end_daemons(old)
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_daemons(scratch: Path) -> None:
    """End what is left of the Ray of a driver that was killed as it started: programs of Ray's own whose command line
    names that driver's folder. A Ray that was up ends with its driver."""
    marks = (os.fsencode(scratch) + b"/", os.fsencode(Path(ray.__file__).parent) + b"/")
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            if entry.stat().st_uid == os.getuid() and all(mark in command for mark in marks):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:  # it has gone meanwhile
            continue


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
