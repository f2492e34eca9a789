"""Ctrl-C and SIGTERM: never lost, never where they do harm."""

from __future__ import annotations

import _thread
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private import utils as ray_utils
from rich.console import Console

from ragen_lab.config import RunConfig
from ragen_lab.sweep import control, local, tune
from ragen_lab.sweep.board import Board
from ragen_lab.sweep.desk import Desk, InOrder, Job
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.guard import Limits
from ragen_lab.sweep.interrupts import held, terminable
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.plan import make_plan
from ragen_lab.sweep.spec import Sweep
from ragen_lab.sweep.watch import Follower
from ragen_lab.track import Outcome, Tracker
from tests.sweep import fake
from tests.sweep.conftest import calls
from tests.sweep.test_search import HALVING

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]


class Interrupted:
    """An object in whose destructor a signal arrives: Python drops what is raised there."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0.01)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_python_drops_is_not_lost(number: signal.Signals) -> None:
    hook, handlers = sys.unraisablehook, [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        drop(number, reached)
    assert reached == []
    assert sys.unraisablehook is hook
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


def drop(number: signal.Signals, reached: list[str]) -> None:
    with terminable():
        Interrupted(number)
        for _ in range(6000):  # what comes a second time wakes nobody up
            time.sleep(0.01)
        reached.append("the end")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_python_drops_is_no_second_one(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has asked for it in the meantime has ended the training with it; one more would end the mirrors."""
    later: list[Callable[[], None]] = []

    def timer(seconds: float, call: Callable[..., None], given: Any = ()) -> Any:
        return SimpleNamespace(start=lambda: later.append(lambda: call(*given)))

    monkeypatch.setattr(threading, "Timer", timer)
    with terminable() as interrupts:
        Interrupted(number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.heard()
        came = 0
        try:
            for again in later:
                again()
            interrupts.check()
        except KeyboardInterrupt:
            came += 1
    assert (len(later), came) == (1, 0)


def swallow(number: signal.Signals) -> None:
    """A library with a bare ``except``."""
    reached: list[str] = []
    try:
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        reached.append("the end")
    except BaseException:
        return
    finally:
        assert reached == []


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_library_takes_is_not_lost(number: signal.Signals) -> None:
    with terminable() as interrupts:
        interrupts.check()
        swallow(number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.heard()
        interrupts.check()


def swallowing(cfg: RunConfig, tracker: Tracker, home: Path, progress: Any = None, until: Any = None) -> Outcome:
    swallow(signal.SIGTERM)
    return fake.train(cfg, tracker, home, progress, until)


def swallowing_at_its_end(
    cfg: RunConfig, tracker: Tracker, home: Path, progress: Any = None, until: Any = None
) -> Outcome:
    outcome = fake.train(cfg, tracker, home, progress, until)
    swallow(signal.SIGTERM)
    return outcome


def test_a_sweep_ends_although_a_library_took_the_interrupt(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """In its trial, in a sweep's own process: that one ends with its next row, and no other begins."""
    finished, text = drive(sweep_of(), trainer="tests.sweep.test_interrupts:swallowing")
    assert finished.exit_code == 130
    assert "Interrupted" in text
    assert sum(calls(tmp_path / "home").values()) == 1


def test_no_report_is_made_where_the_last_trial_took_the_interrupt(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr("ragen_lab.sweep.drive.report_of", lambda *given: made.append("a report"))
    page = "base: base.yaml\nseeds: 1\naxes: {filter.keep_ratio: [1.0]}\n"
    trainer = "tests.sweep.test_interrupts:swallowing_at_its_end"
    finished, _ = drive(sweep_of(page), trainer=trainer, report=True, out=tmp_path / "report.html")
    assert finished.exit_code == 130
    assert [trial["status"] for trial in finished.result["trials"]] == ["finished"]
    assert made == []


def test_each_step_of_tune_asks_for_what_came_to_nothing() -> None:
    """It asks the searcher for trials only where it has room for one."""
    stop = threading.Event()
    with terminable() as interrupts:
        listener = tune._Listener(SimpleNamespace(check=interrupts.check), stop)  # type: ignore[arg-type]
        listener.on_step_begin(1, [])
        swallow(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            listener.on_step_begin(2, [])
        interrupts.heard()
        listener.on_step_begin(3, [])
        stop.set()
        with pytest.raises(KeyboardInterrupt):
            listener.on_step_begin(4, [])


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_an_engine_ends_although_a_library_took_the_interrupt(
    sweep_of: Make, drive: Drive, tmp_path: Path, engine: str
) -> None:
    taken: list[str] = []

    def hear(line: str) -> None:
        if '"started"' in line and not taken:
            swallow(signal.SIGTERM)
            taken.append(line)

    finished, text = drive(sweep_of(), engine=engine, workers=1, events=hear)
    assert taken
    assert finished.exit_code == 130
    assert "Interrupted" in text
    assert len({trial for trial, _ in calls(tmp_path / "home")}) < 4


@pytest.mark.parametrize("asked", [True, False])
def test_what_a_library_makes_of_an_interrupt_is_one(sweep_of: Make, drive: Drive, asked: bool) -> None:
    """Ray turns it into an exception of its own, at some moments; one of which nobody has asked is a fault."""

    def hear(line: str) -> None:
        if '"started"' in line:
            if asked:
                swallow(signal.SIGTERM)
            raise RuntimeError("made by a library")

    if asked:
        finished, text = drive(sweep_of(), workers=1, events=hear)
        assert finished.exit_code == 130
        assert "Interrupted" in text
    else:
        with pytest.raises(RuntimeError, match="made by a library"):
            drive(sweep_of(), workers=1, events=hear)


@pytest.mark.parametrize(("asked", "interrupted"), [(True, True), (True, False), (False, True), (False, False)])
def test_what_ray_makes_of_a_stop_is_one(monkeypatch: pytest.MonkeyPatch, asked: bool, interrupted: bool) -> None:
    """Any other exception is a fault, also after a stop."""
    stop = threading.Event()

    class Tuner:
        def __init__(self, *given: Any, **named: Any) -> None: ...

        def fit(self) -> None:
            if asked:
                stop.set()
            try:
                raise KeyboardInterrupt if interrupted else ValueError
            except BaseException as error:
                raise RuntimeError("made by Ray") from error

    monkeypatch.setattr(tune, "_cluster", lambda *given: nullcontext())
    monkeypatch.setattr(tune.ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 1.0}}])
    monkeypatch.setattr(tune.tune, "Tuner", Tuner)
    fault = pytest.raises(RuntimeError, match="made by Ray")
    with nullcontext() if asked and interrupted else fault:
        tune.run(Desk(InOrder([]), lambda job: None, lambda event: None), stop)  # type: ignore[arg-type, return-value]


def test_an_interrupt_that_the_report_took_is_not_lost(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ragen_lab.sweep.drive.report_of", lambda *given: swallow(signal.SIGTERM))
    finished, text = drive(sweep_of(seeds=1), report=True, out=tmp_path / "report.html")
    assert finished.exit_code == 130
    assert "Interrupted" in text


def test_an_interrupt_after_the_engine_leaves_nothing_running(
    sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one, while the driver writes down which trials were ended."""

    def take_two(line: str) -> None:
        if '"row"' in line and not again:
            again.append(line)
            _thread.interrupt_main(signal.SIGTERM)

    def interrupted(ledger: Ledger, sweep: str, ended: Any) -> None:
        if again:
            raise KeyboardInterrupt
        prune(ledger, sweep, ended)

    again: list[str] = []
    prune = Ledger.prune
    monkeypatch.setattr(Ledger, "prune", interrupted)
    monkeypatch.setenv("FAKE_SLEEP", "0.3")
    finished, text = drive(sweep_of(HALVING), workers=1, events=take_two)
    assert finished.exit_code == 130
    assert "running," not in text
    assert " running." not in text
    assert finished.result["trials"][0]["status"] == "stopped"


@pytest.mark.parametrize("name", ["follower", "budget", "listener"])
def test_an_interrupt_as_a_thread_begins_leaves_none_behind(
    sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It would draw its table, end the budget or answer requests for ever."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == name:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    finished, _ = drive(sweep_of(budget__minutes=30), workers=1)
    assert finished.exit_code == 130
    left = [thread for thread in threading.enumerate() if thread.name == name]
    for thread in left:
        thread.join(timeout=60)
    assert [thread for thread in left if thread.is_alive()] == []


def unjoined(self: threading.Thread, timeout: float | None = None) -> None:
    raise KeyboardInterrupt


def test_a_terminal_is_given_back_although_its_thread_cannot_be_waited_for(
    sweep_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table hides the cursor while it is there."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    follower = Follower(Board(make_plan(sweep_of(), tmp_path), tmp_path), console, live=True)
    join = threading.Thread.join

    def unjoined(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "follower":
            raise KeyboardInterrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", unjoined)
    with pytest.raises(KeyboardInterrupt), follower:
        pass
    assert text.getvalue().rfind("\x1b[?25h") > text.getvalue().rfind("\x1b[?25l") > -1


def test_no_trial_goes_on_resting_although_the_listener_cannot_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locks").mkdir()
    listener = control.Listener(tmp_path, "tested", threading.Event(), list, False)
    monkeypatch.setattr(threading.Thread, "join", unjoined)
    with pytest.raises(KeyboardInterrupt), listener:
        listener.pause.touch()
    assert not listener.pause.exists()


def signalled(times: int, reached: list[int]) -> None:
    with held():
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGTERM)
        reached.append(times)


def test_an_interrupt_waits_for_the_end_of_a_held_block() -> None:
    """A first one; a second one need not, and the handlers are what they were."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for times, reaches_its_end in ((1, True), (2, False)):
            reached: list[int] = []
            with pytest.raises(KeyboardInterrupt):
                signalled(times, reached)
            assert bool(reached) is reaches_its_end
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_as_a_held_block_begins_leaves_the_handlers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next one would wait for the end of a block that has ended."""
    install = signal.signal

    def interrupted(number: signal.Signals, handler: Any) -> Any:
        before = install(number, handler)
        if number == signal.SIGINT:
            monkeypatch.undo()
            os.kill(os.getpid(), signal.SIGTERM)
        return before

    with terminable() as interrupts:
        monkeypatch.setattr(signal, "signal", interrupted)
        with pytest.raises(KeyboardInterrupt), held():
            pytest.fail("the block was entered")
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == [interrupts.ask] * 2


def test_a_held_interrupt_is_asked_for_when_the_block_is_over() -> None:
    with terminable() as interrupts:
        swallow_held()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def swallow_held() -> None:
    try:
        signalled(1, [])
    except KeyboardInterrupt:
        return
    raise AssertionError("the signal was lost")


def test_ray_does_not_install_its_handler_of_sigterm() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with tune._our_handlers():
        ray_utils.set_sigterm_handler(signal.SIG_DFL)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert ray_utils.set_sigterm_handler.__module__ == ray_utils.__name__


class Line:
    """A desk with one request for a worker that is killed as it gets it."""

    adaptive = False

    def __init__(self, home: Path) -> None:
        self.left = [SimpleNamespace(trial_id="t", home=str(home), limits=Limits())]

    def take(self, free: int) -> Any:
        return self.left.pop() if self.left else None

    def waits(self) -> bool:
        return False

    def check(self) -> None:
        return None

    def started(self, request: Any, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def ended(self, request: Any, result: Any) -> None:
        return None


@pytest.mark.parametrize("moment", [1, 2, 3, "end"])
def test_an_interrupt_as_workers_are_started_or_ended_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int | str
) -> None:
    """The third is there to replace one that was killed."""
    start, kill = local._start, subprocess.Popen.kill
    processes: list[subprocess.Popen[bytes]] = []
    signals = [signal.SIGTERM]

    def interrupt() -> None:
        if signals:
            os.kill(os.getpid(), signals.pop())
            time.sleep(0.01)

    def starting(place: str) -> Any:
        worker = start(place)
        processes.append(worker.process)
        if len(processes) == moment:
            interrupt()
        return worker

    def ending(process: subprocess.Popen[bytes]) -> None:
        kill(process)
        if moment == "end":
            interrupt()

    monkeypatch.setattr(local, "_start", starting)
    monkeypatch.setattr(local, "record_failure", lambda *given: None)
    monkeypatch.setattr(subprocess.Popen, "kill", ending)
    line: Any = Line(tmp_path)
    try:
        with terminable(), pytest.raises(KeyboardInterrupt):
            local.run(line, threading.Event(), workers=2, most=2)
        assert processes
        assert [process for process in processes if process.poll() is None] == []
    finally:
        for process in processes:
            kill(process)


def test_a_pool_whose_workers_are_all_busy_ends_too(
    sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hands out nothing before a trial has ended, which may take hours."""
    monkeypatch.setenv("FAKE_SLEEP", "20")

    def hear(line: str) -> None:
        if '"started"' in line:
            swallow(signal.SIGTERM)

    finished, _ = drive(sweep_of(seeds=1), workers=1, events=hear)
    assert finished.exit_code == 130
    assert [trial["status"] for trial in finished.result["trials"]] == ["pending"] * 2


def test_nothing_is_begun_where_the_choice_of_it_took_the_interrupt() -> None:
    """A sampler's library, say."""
    with terminable() as interrupts:

        def take() -> Job:
            swallow(signal.SIGTERM)
            return Job(SimpleNamespace(trial_id="t"))  # type: ignore[arg-type]

        source: Any = SimpleNamespace(adaptive=False, take=take)
        desk = Desk(source, lambda job: pytest.fail("begun"), lambda event: None, check=interrupts.check)
        with pytest.raises(KeyboardInterrupt):
            desk.take(1)


def turning(cfg: RunConfig, tracker: Tracker, home: Path, progress: Any = None, until: Any = None) -> Outcome:
    """A library that makes an error of its own of whatever comes."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
    except BaseException as error:
        raise RuntimeError("an exception was set") from error
    raise AssertionError("the signal was lost")


def test_an_interrupt_that_a_library_turned_into_an_error_is_no_failure(
    sweep_of: Make, drive: Drive, tmp_path: Path
) -> None:
    finished, text = drive(sweep_of(), trainer="tests.sweep.test_interrupts:turning")
    assert finished.exit_code == 130
    assert "Failed" not in text
    assert {trial["status"] for trial in finished.result["trials"]} == {"pending"}
    assert not list((tmp_path / "home").glob("trials/*/DONE.json"))


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    """In the background of a shell; SIGTERM ends the sweep there all the same."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminable() as interrupts:
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == interrupts.ask
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_faults_of_destructors_are_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Faulty:
        def __del__(self) -> None:
            raise ValueError

    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(what.exc_type))
    with terminable():
        Faulty()
    assert told == [ValueError]


def test_other_signals_can_be_held_too() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append("the signal"))
    try:
        with held(signal.SIGUSR1):
            os.kill(os.getpid(), signal.SIGUSR1)
            came.append("the end of the block")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == ["the end of the block", "the signal"]


def test_a_sweep_in_a_thread_leaves_signals_alone() -> None:
    """Python lets only the main thread set handlers: in a server's thread a sweep runs without."""
    handlers, found = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], []

    def sweep() -> None:
        with terminable() as interrupts, held():
            interrupts.check()
            found.append([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])

    thread = threading.Thread(target=sweep)
    thread.start()
    thread.join()
    assert found == [handlers]
