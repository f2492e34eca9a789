"""The desk between the driver and the engines: which request is next while failed trials wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ragen_lab.sweep import desk as room
from ragen_lab.sweep.desk import Desk, Event, Job
from ragen_lab.sweep.worker import TrialResult


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: self.now))


class Line:
    """Trials a, b, c, ... in their order; what it was told of their ends."""

    def __init__(self, adaptive: bool) -> None:
        self.adaptive, self.left, self.told = adaptive, list("abcdef"), []  # type: ignore[var-annotated]

    def take(self) -> Job | None:
        return Job(SimpleNamespace(trial_id=self.left.pop(0))) if self.left else None  # type: ignore[arg-type]

    def ended(self, trial_id: str, failed: bool) -> None:
        self.told.append((trial_id, failed))


def desk_over(line: Line, **more: Any) -> tuple[Desk, list[Event]]:
    events: list[Event] = []
    return Desk(line, lambda job: job.trial, events.append, **more), events  # type: ignore[arg-type, return-value]


def name(request: Any) -> str | None:
    return request and request.trial_id


def failed(request: Any, iteration: int = 3, **more: Any) -> TrialResult:
    return TrialResult(request.trial_id, "failed", iteration, **more)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_one_worker_waits_with_its_failed_trial(clock: Clock) -> None:
    """Nothing else is begun before its result is in; the source hears of the end, not of the failure."""
    line = Line(adaptive=True)
    desk, events = desk_over(line)
    a = desk.take(free=1)
    assert a is not None
    desk.ended(a, failed(a))
    assert desk.take(free=1) is None
    assert desk.waits()
    clock.now += 0.49
    assert desk.take(free=1) is None
    clock.now += 0.01
    assert desk.take(free=1) is a
    assert not desk.waits()
    assert line.told == []
    desk.ended(a, TrialResult("a", "finished", 8))
    assert line.told == [("a", False)]
    assert name(desk.take(free=1)) == "b"
    assert [event.kind for event in events] == ["retried", "ended"]


def test_the_other_workers_go_on(clock: Clock) -> None:
    """Of three, two wait with failed trials; one goes on."""
    desk, _ = desk_over(Line(adaptive=True))
    a, b, c = desk.take(3), desk.take(2), desk.take(1)
    assert a is not None
    assert b is not None
    desk.ended(a, failed(a))
    assert desk.take(free=1) is None
    desk.ended(b, failed(b))
    assert desk.take(free=2) is None
    assert c is not None
    desk.ended(c, TrialResult("c", "finished", 8))
    assert name(desk.take(free=3)) == "d"
    assert desk.take(free=2) is None


def test_a_list_of_trials_waits_for_nothing(clock: Clock) -> None:
    desk, _ = desk_over(Line(adaptive=False))
    a = desk.take(free=1)
    assert a is not None
    desk.ended(a, failed(a))
    assert name(desk.take(free=1)) == "b"


@pytest.mark.parametrize(("result", "lost"), [({"permanent": True}, True), ({}, False)])
def test_what_the_source_is_told(result: dict[str, Any], lost: bool, clock: Clock) -> None:
    line = Line(adaptive=True)
    desk, events = desk_over(line)
    a = desk.take(free=1)
    assert a is not None
    desk.ended(a, failed(a, **result))
    assert line.told == ([("a", True)] if lost else [])
    assert [event.kind for event in events] == (["ended"] if lost else ["retried"])


def test_a_trial_that_another_driver_holds_is_left_to_it(clock: Clock) -> None:
    line = Line(adaptive=True)
    desk, _ = desk_over(line)
    a = desk.take(free=1)
    assert a is not None
    desk.ended(a, TrialResult("a", "pending", 3))
    assert line.told == [("a", True)]
    assert name(desk.take(free=1)) == "b"


def test_the_source_hears_after_the_board(clock: Clock) -> None:
    """What it decides next reads the views that the event has brought up to date."""
    line = Line(adaptive=True)
    seen: list[Any] = []
    desk = Desk(line, lambda job: job.trial, lambda event: seen.append(list(line.told)))  # type: ignore[arg-type, return-value]
    a = desk.take(free=1)
    assert a is not None
    desk.ended(a, TrialResult("a", "finished", 8))
    assert seen == [[]]


def test_a_budget_of_trials_counts_each_once(clock: Clock) -> None:
    """Two may be begun: a is tried again, and asked for more, without counting anew."""
    line = Line(adaptive=True)
    line.left = list("abac")
    desk, _ = desk_over(line, most=2)
    a = desk.take(free=1)
    assert a is not None
    desk.ended(a, failed(a))
    clock.now += 1
    assert desk.take(free=1) is a
    desk.ended(a, TrialResult("a", "paused", 4))
    assert [name(desk.take(free=1)) for _ in range(3)] == ["b", "a", None]
    assert desk.spent
    assert desk.take(free=1) is None
    assert line.left == []


def test_nothing_is_begun_while_the_sweep_is_paused(clock: Clock) -> None:
    resting = [False]
    desk, _ = desk_over(Line(adaptive=True), resting=lambda: resting[0])
    a = desk.take(free=1)
    assert a is not None
    desk.ended(a, failed(a))
    clock.now += 1
    resting[0] = True
    assert desk.take(free=1) is None
    assert not desk.waits()


def test_a_trial_that_was_mended_has_all_its_attempts_again(clock: Clock) -> None:
    """Asked for more after a pause, its earlier failures no longer count."""
    line = Line(adaptive=True)
    line.left = ["a", "a"]
    desk, events = desk_over(line)
    a = desk.take(free=1)
    for _ in range(2):
        assert a is not None
        desk.ended(a, failed(a))
        clock.now += 60
        a = desk.take(free=1)
    assert a is not None
    desk.ended(a, TrialResult("a", "paused", 4))
    a = desk.take(free=1)
    for _ in range(2):
        assert a is not None
        desk.ended(a, failed(a, 2))
        clock.now += 60
        a = desk.take(free=1)
    assert [event.kind for event in events] == ["retried"] * 2 + ["ended"] + ["retried"] * 2
