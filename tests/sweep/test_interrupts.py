"""Ctrl-C and SIGTERM: never lost, never where they do harm."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private import utils as ray_utils

from ragen_lab.config import RunConfig
from ragen_lab.sweep import tune
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.interrupts import held, terminable
from ragen_lab.sweep.spec import Sweep
from ragen_lab.track import Outcome, Tracker
from tests.sweep import fake
from tests.sweep.conftest import calls

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
        time.sleep(0.5)
        reached.append("the end")


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


def test_a_sweep_ends_although_a_library_took_the_interrupt(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """In its trial, in a sweep's own process: that one runs to its end, and no other begins."""
    finished, text = drive(sweep_of(), trainer="tests.sweep.test_interrupts:swallowing")
    assert finished.exit_code == 130
    assert "Interrupted" in text
    assert len({trial for trial, _ in calls(tmp_path / "home")}) == 1


def test_no_report_is_made_where_the_last_trial_took_the_interrupt(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr("ragen_lab.sweep.drive.report_of", lambda *given: made.append("a report"))
    page = "base: base.yaml\nseeds: 1\naxes: {filter.keep_ratio: [1.0]}\n"
    trainer = "tests.sweep.test_interrupts:swallowing"
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


def test_an_interrupt_that_the_report_took_is_not_lost(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ragen_lab.sweep.drive.report_of", lambda *given: swallow(signal.SIGTERM))
    finished, text = drive(sweep_of(seeds=1), report=True, out=tmp_path / "report.html")
    assert finished.exit_code == 130
    assert "Interrupted" in text


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
    with tune._without_handler():
        ray_utils.set_sigterm_handler(signal.SIG_DFL)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert ray_utils.set_sigterm_handler.__module__ == ray_utils.__name__


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
