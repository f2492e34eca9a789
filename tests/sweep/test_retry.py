"""Failures in a row without a new iteration are what counts; there is a short wait before each attempt."""

from __future__ import annotations

import itertools

from ragen_lab.sweep.retry import MOST, Retries
from ragen_lab.sweep.worker import TrialResult


def failed(iteration: int, **more: object) -> TrialResult:
    return TrialResult("a", "failed", iteration, **more)  # type: ignore[arg-type]


def test_no_progress_ends_it() -> None:
    retries = Retries()
    assert [retries.wait_after(failed(-1)) for _ in range(3)] == [0.5, 1.0, None]


def test_progress_begins_anew_but_not_for_ever() -> None:
    retries = Retries()
    waits = [retries.wait_after(failed(i)) for i in (3, 3, 5, 4, 5)]
    assert waits == [0.5, 1.0, 0.5, 1.0, None]  # 4 after 5 is no progress
    retries = Retries()
    waits = [retries.wait_after(failed(i)) for i in range(MOST)]
    assert waits == [0.5] * (MOST - 1) + [None]


def test_a_hang_is_tried_again_once() -> None:
    retries = Retries()
    assert [retries.wait_after(failed(2, cause="hung")) for _ in range(2)] == [0.5, None]


def test_what_cannot_mend_itself_is_not_tried() -> None:
    assert Retries().wait_after(failed(9, permanent=True)) is None


def test_no_wait_is_longer_than_a_second() -> None:
    """Wherever five attempts in a row end: a third failure at the same place is the last one."""
    waits = set()
    for places in itertools.product(range(-1, 3), repeat=5):
        retries = Retries()
        waits |= {retries.wait_after(failed(place)) for place in places}
    assert waits == {0.5, 1.0, None}
