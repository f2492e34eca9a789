"""The driver of a sweep: plan -> ledger -> engine -> mirror -> result.

It may be killed at any moment: what it knows is in the ledger and the trial folders, and the same
command goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ragen_lab.config import RunConfig
from ragen_lab.errors import ConfigError, HomeError, RagenLabError, TrackingError
from ragen_lab.mirror import MLflowMirror, default_uri, uri_fault
from ragen_lab.runs import Run, from_home, from_mlflow, sweep_record
from ragen_lab.sweep import local
from ragen_lab.sweep.board import SUCCESS, Board, Follower, duration, last_value, plural
from ragen_lab.sweep.guard import Limits
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.local import Event
from ragen_lab.sweep.plan import Plan, make_plan
from ragen_lab.sweep.spec import Sweep
from ragen_lab.sweep.worker import TrialRequest, TrialResult
from ragen_lab.track import LOG_FILE, locked, number_to_json, trial_folder

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
FLUSH_SECONDS = 5.0
_NO_LIMITS = (
    "Note: resources.hang_minutes and resources.memory_gb are not kept with --workers 0: to keep them is to end the "
    "process of a trial, which is this one here."
)


@dataclass(frozen=True)
class Options:
    """How to run, as opposed to what: nothing here changes a number."""

    home: Path
    engine: Literal["ray", "local"] = "ray"
    workers: int | None = None  # of the local engine: None = by cores, 0 = in this process
    address: str | None = None  # of a Ray cluster
    command: str = ""  # what the user typed, for messages and the report
    program: str = "ragen-lab"  # how the user can call this program
    report: bool = True
    out: Path | None = None  # where the report goes
    trainer: str = "ragen_lab.train:train"


@dataclass(frozen=True)
class Finished:
    """``result`` is the JSON contract of ``ragen-lab sweep --json``."""

    result: dict[str, Any]
    exit_code: int


def run_sweep(sweep: Sweep, options: Options, console: Console) -> Finished:
    """Bring a sweep to its end, or as far as it gets. Everything for people goes to ``console``.

    Raises ConfigError where it cannot be run as asked, HomeError where the home cannot be used, and TrialLocked where
    another driver works on this sweep.
    """
    home = options.home.absolute()
    track = sweep.trials[0].cfg.track
    if track.mlflow and (fault := uri_fault(mlflow_uri(sweep.trials[0].cfg, home))):
        raise ConfigError(sweep.file, [f"track.mlflow_uri: {fault}"])
    ledger = Ledger(home)
    try:
        with locked(home / "locks" / f"{sweep.name}.lock", what="sweep"):
            return _Driver(sweep, options, home, ledger, console).run()
    finally:
        ledger.close()


class _Driver:
    def __init__(self, sweep: Sweep, options: Options, home: Path, ledger: Ledger, console: Console) -> None:
        self.sweep, self.options, self.home = sweep, options, home
        self.ledger, self.console = ledger, console
        self.plan = make_plan(sweep, home)
        self.board = Board(self.plan, home)
        self.stop = threading.Event()
        self.interrupted = False
        self.attempts: dict[str, int] = {}
        self._ledger_ails = False

    def run(self) -> Finished:
        here = bool(self.plan.pending) and self.options.address is None
        if here and (faults := local.lacking(self.sweep.cpus, self.sweep.gpus)):
            raise ConfigError(self.sweep.file, faults)  # Ray would wait for ever, without a word
        self.ledger.check_name(self.sweep)
        gone = self.ledger.record_sweep(self.sweep, self.plan.warnings, self.options.command)
        self.say(describe(self.plan, brief=True))
        if gone:
            self.say(
                f"Note: {plural(len(gone), 'trial')} left this sweep, because the page no longer asks for "
                f"{'it' if len(gone) == 1 else 'them'}; the results stay in the home, and in MLflow under the tag "
                f"left_sweep."
            )
        mirror = _Mirror(self.board, self.sweep, self.home, self.ledger, self.console, self.options.program)
        with mirror:
            if self.plan.pending:
                self._train()
            self.board.settle()
        run_ids = mirror.run_ids
        report = None if self.interrupted or not self.options.report else self._report()
        return self._finish(run_ids, report)

    def say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    # --- training ---

    def _train(self) -> None:
        in_process = self.options.engine == "local" and self.options.workers == 0
        limits = Limits() if in_process else Limits(self.sweep.hang_minutes, self.sweep.memory_gb)
        if limits != Limits(self.sweep.hang_minutes, self.sweep.memory_gb):
            self.say(_NO_LIMITS, "yellow")
        requests = [
            TrialRequest(
                trial.trial_id,
                trial.arm,
                trial.seed,
                trial.cfg,
                str(self.home),
                trainer=self.options.trainer,
                capture=not in_process,
                limits=limits,
            )
            for trial in self.plan.pending
        ]
        budget = None
        if self.sweep.minutes is not None:
            budget = threading.Timer(self.sweep.minutes * 60, self.stop.set)
            budget.daemon = True
            budget.start()
        live = self.console.is_terminal and not in_process
        try:
            with Follower(self.board, self.console, live), _terminable():
                self._engine(requests)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            if budget is not None:
                budget.cancel()
        if self.stop.is_set() and not self.interrupted:
            self.say(f"The budget of {self.sweep.minutes:g} minutes is over. The same command goes on from here.")

    def _engine(self, requests: list[TrialRequest]) -> None:
        sweep, options = self.sweep, self.options
        if options.engine == "ray":
            from ragen_lab.sweep import tune

            tune.run(requests, self._event, self.stop, cpus=sweep.cpus, gpus=sweep.gpus, address=options.address)
        else:
            local.run(requests, self._event, self.stop, cpus=sweep.cpus, gpus=sweep.gpus, workers=options.workers)

    def _event(self, event: Event) -> None:
        """Called by the engine, in this thread."""
        trial_id = event.request.trial_id
        try:
            if event.kind == "started":
                attempt = self.ledger.attempt_started(self.sweep.name, trial_id, event.pid)
                self.attempts[trial_id] = attempt
            elif event.result is not None and trial_id in self.attempts:
                result = event.result
                attempt = self.attempts.pop(trial_id)
                # How it failed, where that is known: hung, memory, disk, killed.
                self.ledger.attempt_ended(attempt, result.cause or result.status, result.iteration, result.error)
        except HomeError as error:
            if not self._ledger_ails:  # the folders hold the results: training goes on without this entry
                self.say(f"Warning: {error}", "yellow")
            self._ledger_ails = True
        if event.kind == "started":
            self.board.started(trial_id)
            return
        self.board.ended(trial_id, event.result)
        if event.result is not None:
            self._tell(event.request, event.result, again=event.kind == "retried")

    def _tell(self, request: TrialRequest, result: TrialResult, again: bool) -> None:
        name = f"{request.arm} seed {request.seed}"
        for note in result.notes:
            self.say(f"{name}: {note}", "yellow")
        if again:
            self.say(f"{name}: {result.error} Trying again from its last checkpoint.", "yellow")
        elif result.status in ("failed", "pending"):
            self.say(f"{name}: {result.status}: {result.error}", "red")
        elif not self.console.is_terminal or result.status == "collapsed":
            ended = f"{name}: {result.status} at iteration {result.iteration}"
            self.say(f"{ended}: {result.reason}" if result.reason else ended)

    # --- the end ---

    def _report(self) -> str | None:
        try:
            return str(report_of(self.home, self.sweep.name, self.options.out, self.options.command))
        except RagenLabError as error:
            self.say(f"The report could not be written: {error}", "red")
            return None

    def _finish(self, run_ids: dict[str, str], report: str | None) -> Finished:
        entries = list(self.board.entries.values())
        trials = []
        for entry in entries:
            view, trial = entry.view, entry.trial
            success = last_value(view.rows, SUCCESS)
            trials.append(
                {
                    "trial_id": trial.trial_id,
                    "mlflow_run_id": run_ids.get(trial.trial_id),
                    "arm": trial.arm,
                    "seed": trial.seed,
                    "status": view.status,
                    "reused": entry.reused,
                    "stop_iteration": view.stop_iteration,
                    "stop_reason": view.stop_reason,
                    "final_success": None if success is None else number_to_json(success),
                }
            )
        failed = [entry for entry in entries if entry.view.status == "failed"]
        for entry in failed:
            log = trial_folder(self.home, entry.trial.trial_id) / LOG_FILE
            name = f"{entry.trial.arm} seed {entry.trial.seed}"
            self.say(f"Failed: {name}: {entry.view.stop_reason} Its log: {log}", "red")
        self.say(f"{self.board.counts()}. Everything is in {self.home}.")
        if report:
            self.say(f"Report: {report}")
        if run_ids:
            at_home = self.home == Path(".ragen-lab").absolute()
            own = mlflow_uri(entries[0].trial.cfg, self.home) == default_uri(self.home)
            command = f"{self.options.program} ui" + ("" if at_home else f" --home {shlex.quote(str(self.home))}")
            self.say(f"MLflow: {command}" if own else f"MLflow: {mlflow_uri(entries[0].trial.cfg, self.home)}")
        held = [entry for entry in entries if entry.result is not None and entry.result.status == "pending"]
        if self.interrupted:
            self.say(
                "Interrupted. What was logged is on disk; running trials go on from their last checkpoints. To go on, "
                f"repeat the same command{': ' + self.options.command if self.options.command else '.'}",
                "yellow",
            )
        elif failed and all(entry.result and entry.result.permanent for entry in failed):
            self.say("Trying again would change nothing: mend the page as the messages say, and repeat the command.")
        elif failed:
            self.say("The same command tries the failed trials again; finished ones are not repeated.")
        code = EXIT_INTERRUPTED if self.interrupted else EXIT_FAILED if failed or held else 0
        if code == EXIT_FAILED and not held and all(entry.result and entry.result.permanent for entry in failed):
            code = EXIT_INPUT
        return Finished({"sweep": self.sweep.name, "trials": trials, "report": report}, code)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does; only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class _Mirror:
    """Writes the board into MLflow from a thread of its own, so that a slow server delays nothing.

    The folders are the truth: while the server is away nothing is lost, and the next flush catches up.
    """

    board: Board
    sweep: Sweep
    home: Path
    ledger: Ledger
    console: Console
    program: str = "ragen-lab"
    run_ids: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        track = self.sweep.trials[0].cfg.track
        self.uri = mlflow_uri(self.sweep.trials[0].cfg, self.home)
        self.on = track.mlflow
        self.mirror = MLflowMirror(self.uri, self.sweep.name, self.home, self.ledger.home_id, self.sweep.findings)
        self.left, self.positions = self.ledger.left(self.sweep.name), self.ledger.positions(self.sweep.name)
        self._warned = self._behind = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")

    def __enter__(self) -> _Mirror:
        if self.on and not self._up_to_date():
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread.ident is None:
            self.run_ids = self.ledger.run_ids(self.sweep.name) if self.on else {}
            return
        self._end.set()
        self._thread.join()  # with a last flush, which sees the final state
        if self._behind:
            self._say(
                f"MLflow at {self.uri} lacks the newest results. They are safe in {self.home}; the next run of this "
                f"sweep, or `{self.program} sync {self.sweep.name}`, writes them there."
            )
        else:
            self.ledger.record_mirror(self.sweep.name, self.run_ids, self._state(self.board.runs()))

    def _say(self, text: str) -> None:
        self.console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def _state(self, runs: list[Run]) -> str:
        """Changes whenever MLflow would have to hold something else."""
        held = [
            (run.trial_id, run.arm, run.status, len(run.rows), run.stop_iteration, run.stop_reason, run.params)
            for run in runs
        ]
        text = json.dumps([self.uri, self.sweep.findings, sorted(self.left), held], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _up_to_date(self) -> bool:
        """Whether all is there already, so that a repeated sweep need not even load MLflow."""
        if self.uri.startswith("sqlite:///") and not Path(self.uri.removeprefix("sqlite:///")).is_file():
            return False
        runs = self.board.runs()
        done = all(entry.view.done for entry in self.board.entries.values())
        return done and self.ledger.mirror_state(self.sweep.name) == self._state(runs)

    def _work(self) -> None:
        self._behind = True
        last = False
        while not last:
            last = self._end.wait(FLUSH_SECONDS if self.run_ids or self._warned else 0)
            runs = self.board.runs()
            try:
                self.run_ids = self.mirror.flush(runs, self.left, self.positions)
                if last:
                    self.mirror.end(_parent_status(runs))
                if self._warned and self._behind:
                    self._say("MLflow can be reached again and has caught up.")
                self._behind = False
            except TrackingError as error:
                self._behind = True
                if not self._warned:
                    self._say(
                        f"{error}\nTraining goes on: everything is kept in {self.home}, and MLflow is brought up to "
                        f"date as soon as it can be reached (or later with `{self.program} sync {self.sweep.name}`)."
                    )
                self._warned = True


def _parent_status(runs: Sequence[Run]) -> str:
    return "FINISHED" if all(run.status in ("finished", "collapsed") for run in runs) else "KILLED"


def mlflow_uri(cfg: RunConfig, home: Path) -> str:
    """Where the runs of a config are mirrored: its own URI, else the database of the home."""
    return cfg.track.mlflow_uri or default_uri(home)


# --- what the other commands need -----------------------------------------------------------------


def sync(home: Path, sweep: str) -> tuple[int, str]:
    """Rebuild what MLflow holds of a sweep from the ledger and the trial folders; (runs, URI).

    Raises ConfigError for an unknown sweep or an address that can never be one of MLflow, TrackingError where MLflow
    cannot be reached.
    """
    home = home.absolute()
    record = sweep_record(home, sweep)
    ledger = Ledger(home)
    try:
        with locked(home / "locks" / f"{sweep}.lock", what="sweep"):
            runs = from_home(home, sweep).runs
            uri = next((run.params["track.mlflow_uri"] for run in runs), None) or default_uri(home)
            mirror = MLflowMirror(uri, sweep, home, ledger.home_id, tuple(record["findings"]))
            try:
                mirror.forget()
                run_ids = mirror.flush(runs)
                mirror.end(_parent_status(runs))
            except TrackingError as error:
                raise TrackingError(
                    f"{error}\nThe results are safe in {home}. Start the server or mend the database, then repeat this "
                    f"command; for another address run the sweep again with --set track.mlflow_uri=URI."
                ) from error
            ledger.record_mirror(sweep, run_ids, "")  # the next sweep looks for itself
            return len(run_ids), uri
    finally:
        ledger.close()


def report_of(home: Path, sweep: str, out: Path | None = None, command: str = "", uri: str | None = None) -> Path:
    """Judge the runs of a sweep and write its report; the file. ``uri``: read MLflow instead of the home."""
    from ragen_lab.findings.registry import evaluate_all
    from ragen_lab.report.render import write_report

    if uri is None:
        record = sweep_record(home, sweep)
        runs, warnings, numbers = from_home(home, sweep), record["warnings"], record["findings"]
        command = command or record["command"]
    else:
        if fault := uri_fault(uri):
            raise ConfigError("--mlflow", [fault])
        try:
            runs, warnings, numbers = from_mlflow(uri, sweep), [], None
        except TrackingError as error:
            raise TrackingError(
                f"{error}\nCheck the address and that the server runs, then repeat the command; or leave out --mlflow "
                f"to read the home."
            ) from error
    target = out or Path("reports") / "out" / f"{sweep}.html"
    results = evaluate_all(runs)
    return write_report(
        runs, results, target.absolute(), sweep=sweep, warnings=warnings, command=command, findings=numbers
    )


def describe(plan: Plan, brief: bool = False) -> str:
    """The plan in words. ``brief``: without the list of trials."""
    sweep, cost = plan.sweep, plan.cost
    done = len(plan.trials) - cost.trials
    size = f"{plural(len(sweep.arms), 'arm')} x {plural(len(sweep.seeds), 'seed')}"
    lines = [f"Sweep {sweep.name}: {size} = {plural(len(plan.trials), 'trial')}, {done} there already."]
    if cost.trials:
        took = f", about {duration(cost.seconds)} one at a time" if cost.seconds is not None else ""
        lines.append(
            f"To do: {plural(cost.trials, 'trial')}, {plural(cost.iterations, 'iteration')}, {cost.trajectories} "
            f"trajectories, {plural(cost.updates, 'optimizer step')}{took}."
        )
    if not brief:
        for planned in plan.trials:
            view, trial = planned.view, planned.trial
            what = f"{view.status} at {view.iteration}" if view.rows else view.status
            lines.append(f"  {trial.trial_id}  {trial.arm} · seed {trial.seed}: {what} of {trial.cfg.train.iterations}")
    lines += [f"Note: {warning}" for warning in plan.warnings]
    return "\n".join(lines)


def plan_here(sweep: Sweep, home: Path, address: str | None = None) -> Plan:
    """The plan, with a warning for what this machine has not of the resources that it asks for."""
    plan = make_plan(sweep, home)
    faults = [] if address else local.lacking(sweep.cpus, sweep.gpus)
    return replace(plan, warnings=(*plan.warnings, *faults))


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """The plan for a script."""
    cost = plan.cost
    return {
        "sweep": plan.sweep.name,
        "trials": [
            {
                "trial_id": planned.trial.trial_id,
                "arm": planned.trial.arm,
                "seed": planned.trial.seed,
                "status": planned.view.status,
                "done": planned.view.done,
                "iteration": planned.view.iteration,
                "iterations": planned.trial.cfg.train.iterations,
            }
            for planned in plan.trials
        ],
        "warnings": list(plan.warnings),
        "cost": {
            "trials": cost.trials,
            "iterations": cost.iterations,
            "trajectories": cost.trajectories,
            "updates": cost.updates,
            "seconds": cost.seconds,
        },
    }


def own_terminal() -> Console:
    """A console on a copy of stderr's descriptor: what Ray prints is sent elsewhere, what we say is not."""
    return Console(file=os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1))
