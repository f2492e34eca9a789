"""The driver of a sweep: plan -> ledger -> engine -> mirror -> result.

It may be killed at any moment: what it knows is in the ledger and the trial folders, and the same
command goes on from there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ragen_lab.errors import ConfigError, HomeError, RagenLabError, TrackingError
from ragen_lab.locks import locked
from ragen_lab.mirror import default_uri, uri_fault
from ragen_lab.mirror_folders import lacking_libraries
from ragen_lab.redaction import redact
from ragen_lab.report.inputs import fingerprint, stands
from ragen_lab.runs import View, from_home, from_mlflow, look, sweep_record
from ragen_lab.sweep import control, local, rerun
from ragen_lab.sweep.board import SUCCESS, Board, last_value, plural
from ragen_lab.sweep.budget import Budget
from ragen_lab.sweep.compete import Competition, search_record, with_proposals
from ragen_lab.sweep.desk import Desk, Event, InOrder, Job, Source
from ragen_lab.sweep.guard import Limits
from ragen_lab.sweep.interrupts import Interrupts, held, terminable
from ragen_lab.sweep.last_words import last_words
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.mirroring import Mirroring, mlflow_uri
from ragen_lab.sweep.plan import make_plan
from ragen_lab.sweep.plan_text import describe
from ragen_lab.sweep.spec import Arm, Sweep, Trial
from ragen_lab.sweep.stream import Stream
from ragen_lab.sweep.watch import Follower
from ragen_lab.sweep.worker import TrialRequest, TrialResult, write_missing_ends
from ragen_lab.track import LOG_FILE, number_to_json, trial_folder

EXIT_FAILED = 1
EXIT_INPUT = 2
MOST_AT_ONCE = 10_000  # trials that a search may have under way
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
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
    events: Callable[[str], None] | None = None  # takes the lines of the event stream (sweep/stream.py)
    rerun: str | None = None  # failed, collapsed or an arm: compute these trials anew


@dataclass(frozen=True)
class Finished:
    """``result`` is the JSON contract of ``ragen-lab sweep --json``."""

    result: dict[str, Any]
    exit_code: int


def run_sweep(sweep: Sweep, options: Options, console: Console) -> Finished:
    """Bring a sweep to its end, or as far as it gets. Everything for people goes to ``console``.

    Raises ConfigError where it cannot be run as asked, HomeError where the home cannot be used, and TrialLocked where
    another driver works on this sweep, and KeyboardInterrupt where the user does before anything has begun.
    """
    home = options.home.absolute()
    track = sweep.trials[0].cfg.track
    faults = lacking_libraries(track.model_dump())
    if track.mlflow and (fault := uri_fault(mlflow_uri(sweep.trials[0].cfg, home))):
        faults.append(f"track.mlflow_uri: {fault}")
    if faults:
        raise ConfigError(sweep.file, faults)
    again = f": {options.command}" if options.command else "."
    farewell = (
        f"ragen-lab: the driver of {sweep.name} was killed, or a library ended it (Ray does when its own processes are "
        f"killed). What was logged is on disk. To go on, repeat the same command{again}"
    )
    ledger = Ledger(home)
    try:
        lock = locked(control.lock_of(home, sweep.name), what="sweep")
        with terminable() as interrupts, lock, last_words(farewell):
            whole = with_proposals(sweep, home)
            if options.rerun is None:
                return _Driver(whole, options, home, ledger, console, interrupts).run()
            with held():  # whatever comes, what was moved is told
                aside = rerun.set_aside(whole, home, options.rerun, here=options.address is None)
                driver = _Driver(whole, options, home, ledger, console, interrupts)
                driver.say(rerun.told(aside, whole, home))
            return driver.run(aside)
    finally:
        ledger.close()


class _Driver:
    def __init__(
        self, sweep: Sweep, options: Options, home: Path, ledger: Ledger, console: Console, interrupts: Interrupts
    ) -> None:
        self.sweep, self.options, self.home = sweep, options, home
        self.ledger, self.console, self.interrupts = ledger, console, interrupts
        self.plan = make_plan(sweep, home)
        self.board = Board(self.plan, home)
        self.stream = Stream(options.events)
        self.began = time.monotonic()
        self.stop = threading.Event()
        self.interrupted = False
        self.attempts: dict[str, int] = {}
        self._ledger_ails = False
        self._report_stands = False
        self._competition: Competition | None = None
        in_process = options.engine == "local" and options.workers == 0
        self.listener = control.Listener(home, sweep.name, self.stop, self._at_work, in_process)

    def _at_work(self) -> list[Path]:
        return [entry.folder for entry in list(self.board.entries.values()) if entry.running]

    def run(self, aside: Sequence[rerun.SetAside] = ()) -> Finished:
        here = bool(self.plan.pending) and self.options.address is None
        if here and (faults := local.lacking(self.sweep.cpus, self.sweep.gpus, self.sweep.memory_gb)):
            raise ConfigError(self.sweep.file, faults)  # Ray would wait for ever, without a word
        gone = self.ledger.record_sweep(self.sweep, self.plan.warnings, self.options.command, search_record(self.sweep))
        done = ((planned.trial.trial_id, planned.view) for planned in self.plan.trials if planned.view.done)
        write_missing_ends(self.home, done)
        source = self._source()
        self.say(describe(self.plan, brief=True))
        planned, cost = len(self.plan.trials), self.plan.cost
        self.stream(
            "planned",
            sweep=self.sweep.name,
            trials=planned,
            done=planned - cost.trials,
            iterations=cost.iterations,
            warnings=list(self.plan.warnings),
        )
        if gone:
            self.say(
                f"Note: {plural(len(gone), 'trial')} left this sweep, because the page no longer asks for "
                f"{'it' if len(gone) == 1 else 'them'}; the results stay in the home, and in MLflow under the tag "
                f"left_sweep."
            )
        program = self.options.program
        mirror = Mirroring(self.board, self.sweep, self.home, self.ledger, self.console, program, self.stream)
        report = None
        try:
            with mirror:
                try:
                    if source is not None:
                        self._train(source)
                finally:
                    with held():  # what is told and mirrored of trials under way hangs on it
                        self.board.settle()
            for entry in aside:
                self.say(rerun.compared(entry, self.home))
            if self.options.report and not self.interrupted:
                report = self._report()
            self.interrupts.check()
        except KeyboardInterrupt:  # a second one, or one after the training: the rest is left to the next call
            self.interrupts.heard()
            self.interrupted = True
        return self._finish(mirror, report)

    def say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    # --- training ---

    def _source(self) -> Source | None:
        """What there is to do; None where all is there already."""
        sweep = self.sweep
        if sweep.search.kind == "grid" and sweep.scheduler.kind == "fifo":
            return InOrder(self.plan.pending) if self.plan.pending else None
        competition = Competition(sweep, self.ledger, self._view, self._joined, lambda text: self.say(text, "yellow"))
        self._competition = competition
        if not competition.prime():
            self._prune(final=True)
            return None
        self._prune(final=False)  # who ended for want of rank may rise when there is more to compare with
        return competition

    def _view(self, trial_id: str) -> View:
        return self.board.entries[trial_id].view

    def _joined(self, arm: Arm | None, trials: list[Trial]) -> None:
        """Trials have come into the sweep while it runs."""
        arms = self.sweep.arms if arm is None else (*self.sweep.arms, arm)
        self.sweep = replace(self.sweep, arms=arms, trials=(*self.sweep.trials, *trials))
        for trial in trials:
            self.board.add(trial, look(trial_folder(self.home, trial.trial_id), trial.cfg))

    def _prune(self, final: bool) -> None:
        """Write down which trials the scheduler has ended."""
        if self._competition is not None:
            ended = self._competition.pruned(final)
            self.ledger.prune(self.sweep.name, ended)
            self.board.prune(ended)

    def _train(self, source: Source) -> None:
        in_process = self.options.engine == "local" and self.options.workers == 0
        limits = Limits() if in_process else Limits(self.sweep.hang_minutes, self.sweep.memory_gb)
        if limits != Limits(self.sweep.hang_minutes, self.sweep.memory_gb):
            self.say(_NO_LIMITS, "yellow")

        def request(job: Job) -> TrialRequest:
            trial = job.trial
            return TrialRequest(
                trial.trial_id,
                trial.arm,
                trial.seed,
                trial.cfg,
                str(self.home),
                trainer=self.options.trainer,
                capture=not in_process or self.options.events is not None,  # a stream of JSON has no room for prints
                limits=limits,
                until=job.until,
                command=self.options.command,
                pause=str(self.listener.pause),
            )

        desk = Desk(
            source,
            request,
            self._event,
            most=self.sweep.budget.trials,
            resting=self._resting,
            check=self.interrupts.check,
        )
        live = self.console.is_terminal and not in_process
        budget = Budget(self.sweep.budget, self.sweep.gpus, self.board.running, self.listener.end_now)
        try:
            told = lambda: self.stream.rows(self.board)  # noqa: E731
            with ExitStack() as stack:
                with held():  # the thread of one that has not come to its block would never be ended
                    stack.enter_context(Follower(self.board, self.console, live, on_poll=told))
                    stack.enter_context(budget)
                    stack.enter_context(self.listener)
                self._engine(desk)
        except KeyboardInterrupt:
            self.interrupts.heard()
            self.interrupted = budget.spent is None  # which ends a trial of this process in the same way
        if self.listener.action is not None:
            self.board.settle()  # a trial may have ended whose worker could not say so any more
            self.interrupted = not all(entry.view.done for entry in self.board.entries.values())
        if not self.interrupted:
            spent = budget.spent
            if spent is None and desk.spent:
                spent = f"The budget of {plural(self.sweep.budget.trials or 0, 'trial')} is over."
            if spent is not None:
                self.say(f"{spent} The same command goes on from here.")
            self._prune(final=spent is None and not self.stop.is_set())
        else:
            self._prune(final=False)

    def _resting(self) -> bool:
        return self.listener.action == "pause"

    def _engine(self, desk: Desk) -> None:
        try:
            self._run_engine(desk)
        except Exception:
            self.interrupts.check()  # what a library has made of an interrupt is one
            raise

    def _run_engine(self, desk: Desk) -> None:
        sweep, options = self.sweep, self.options
        resources: Any = {"cpus": sweep.cpus, "gpus": sweep.gpus, "memory_gb": sweep.memory_gb}
        if options.engine == "ray":
            with held():
                from ragen_lab.sweep import tune

            tune.run(desk, self.stop, **resources, address=options.address)
            return
        most = sweep.budget.trials or MOST_AT_ONCE if self._competition else len(self.plan.pending)
        local.run(desk, self.stop, **resources, workers=options.workers, most=most)

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
                how = result.cause or result.status
                self.ledger.attempt_ended(attempt, how, result.iteration, result.error, result.pid, result.host)
        except HomeError as error:
            if not self._ledger_ails:  # the folders hold the results: training goes on without this entry
                self.say(f"Warning: {error}", "yellow")
            self._ledger_ails = True
        who = {"trial_id": trial_id, "arm": event.request.arm, "seed": event.request.seed}
        if event.kind == "started":
            self.board.started(trial_id)
            self.stream("started", **who, attempt=self.board.entries[trial_id].tries)
            return
        self.board.poll()
        self.stream.rows(self.board)  # the last ones come before the end
        self.board.ended(trial_id, event.result)
        self._stream_end(event, who)
        if event.result is not None:
            self._tell(event.request, event.result, again=event.kind == "retried")

    def _stream_end(self, event: Event, who: dict[str, Any]) -> None:
        entry, result = self.board.entries[event.request.trial_id], event.result
        error = None if result is None else result.error
        if event.kind == "retried":
            self.stream("retried", **who, attempt=entry.tries, iteration=entry.view.iteration, error=error)
            return
        seconds = entry.seconds()
        self.stream(
            "ended",
            **who,
            status=entry.view.status,
            iteration=entry.view.iteration,
            stop_iteration=entry.view.stop_iteration,
            stop_reason=entry.view.stop_reason,
            seconds=None if seconds is None else round(seconds, 1),
            error=error,
        )

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
            name, out, command = self.sweep.name, report_file(self.sweep.name, self.options.out), self.options.command
            self._report_stands = stands(out, fingerprint(self.home, name, command))
            return str(out if self._report_stands else report_of(self.home, name, out, command))
        except RagenLabError as error:
            self.say(f"The report could not be written: {error}", "red")
            return None

    def _finish(self, mirror: Mirroring, report: str | None) -> Finished:
        run_ids = mirror.run_ids
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
            self.say(f"Report: {report}" + (" (up to date, left as it was)" if self._report_stands else ""))
        if run_ids:
            own = mlflow_uri(entries[0].trial.cfg, self.home) == default_uri(self.home)
            command = f"{self.options.program} ui{control.home_option(self.home)}"
            self.say(f"MLflow: {command if own else redact(mlflow_uri(entries[0].trial.cfg, self.home))}")
        for name, place in mirror.folders():
            self.say(f"{name}: {place}")
        unrun = [entry for entry in entries if entry.result is not None and entry.result.status == "pending"]
        if self.interrupted:
            how = "Interrupted. What was logged is on disk; running trials go on from their last checkpoints."
            again = f": {self.options.command}" if self.options.command else "."
            self.say(
                f"{self.listener.words() if self.listener.action else how} To go on, repeat the same command{again}",
                "yellow",
            )
        elif failed and all(entry.result and entry.result.permanent for entry in failed):
            self.say("Trying again would change nothing: mend the page as the messages say, and repeat the command.")
        elif failed:
            self.say("The same command tries the failed trials again; finished ones are not repeated.")
        code = EXIT_INTERRUPTED if self.interrupted else EXIT_FAILED if failed or unrun else 0
        if code == EXIT_FAILED and not unrun and all(entry.result and entry.result.permanent for entry in failed):
            code = EXIT_INPUT
        self._sum_up(code, report)
        return Finished({"sweep": self.sweep.name, "trials": trials, "report": report}, code)

    def _sum_up(self, code: int, report: str | None) -> None:
        """The last words: for a stream its last event, for a log one line that scripts may look for."""
        statuses = [entry.view.status for entry in self.board.entries.values()]
        done = sum(entry.view.done for entry in self.board.entries.values())
        failed = statuses.count("failed")
        ended = "failed" if failed else "done" if done == len(statuses) else "open"
        summary = {
            "status": "interrupted" if self.interrupted else ended,
            "exit_code": code,
            "trials": len(statuses),
            "done": done,
            "collapsed": statuses.count("collapsed"),
            "failed": failed,
            "seconds": round(time.monotonic() - self.began),
        }
        self.stream("report", path=report)
        self.stream("summary", **summary)
        if not self.console.is_terminal:
            self.say(" ".join([f"ragen-lab: sweep={self.sweep.name}", *(f"{k}={v}" for k, v in summary.items())]))


# --- what the other commands need -----------------------------------------------------------------


def report_of(home: Path, sweep: str, out: Path | None = None, command: str = "", uri: str | None = None) -> Path:
    """Judge the runs of a sweep and write its report; the file. ``uri``: read MLflow instead of the home."""
    from ragen_lab.findings.registry import evaluate_all
    from ragen_lab.report.render import write_report

    search, inputs = None, ""
    if uri is None:
        record = sweep_record(home, sweep)
        command = command or record["command"]
        inputs = fingerprint(home, sweep, command)  # first: what changes while we read makes the report an old one
        runs, warnings, numbers = from_home(home, sweep), record["warnings"], record["findings"]
        if any(run.status not in ("finished", "collapsed", "pruned") for run in runs):
            inputs = ""  # what is shown of an unfinished trial hangs on more than its files
        if record.get("search"):  # a sweep without one need not load Optuna
            from ragen_lab.sweep.searched import summary

            search = summary(home, sweep, runs)
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
    results = evaluate_all(runs)
    return write_report(
        runs,
        results,
        report_file(sweep, out),
        sweep=sweep,
        warnings=warnings,
        command=command,
        findings=numbers,
        search=search,
        inputs=inputs,
    )


def report_file(sweep: str, out: Path | None = None) -> Path:
    """Where the report of a sweep is written: ``out``, else below the working directory."""
    return (out or Path("reports") / "out" / f"{sweep}.html").absolute()


def own_terminal() -> Console:
    """A console on a copy of stderr's descriptor: what Ray prints is sent elsewhere, what we say is not."""
    return Console(file=os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1))
