"""When the budget of a call is spent, to the minute: wall clock, and GPU hours of the trials that run."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_lab.sweep import budget as room
from ragen_lab.sweep.budget import Budget
from ragen_lab.sweep.search_page import BudgetSection


def minutes_until(
    section: BudgetSection, monkeypatch: pytest.MonkeyPatch, gpus: float = 0, running: tuple[int, ...] = (1,)
) -> tuple[int, Budget]:
    """Minutes until the sweep is told to stop, 999 for never, and the budget. ``running``: trials in each minute, the
    last of them for ever."""
    now = [0]

    def wait(_: float) -> bool:
        now[0] += 1
        return now[0] >= 999

    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: 60.0 * now[0]))
    stop = threading.Event()
    budget = Budget(section, gpus, lambda: running[min(now[0] - 1, len(running) - 1)], stop.set)
    budget._end = SimpleNamespace(wait=wait, set=lambda: None)  # type: ignore[assignment]
    with budget:
        if budget._thread.ident is not None:
            budget._thread.join(60)
    assert stop.is_set() == (budget.spent is not None)
    return now[0] if now[0] else 999, budget


@pytest.mark.parametrize(
    ("hours", "gpus", "running", "minutes"),
    [
        (1, 2, (3,), 10),  # 6 GPUs
        (0.1, 1, (1,), 6),
        (1, 0.5, (4,), 30),
        (1, 1, (0, 0, 0, 60), 4),  # nobody runs for three minutes, then 60 at a time
        (1, 1, (60, 0), 1),
        (1, 0, (3,), 999),
        (1, 1, (0,), 999),
    ],
)
def test_gpu_hours_are_those_of_the_trials_that_run(
    hours: float, gpus: float, running: tuple[int, ...], minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    took, budget = minutes_until(BudgetSection(gpu_hours=hours), monkeypatch, gpus, running)
    assert took == minutes
    assert budget.spent == (None if minutes == 999 else f"The budget of {hours:g} GPU hours is over.")


@pytest.mark.parametrize(
    ("section", "minutes", "spent"),
    [
        ({"minutes": 7}, 7, "The budget of 7 minutes is over."),
        ({"minutes": 7, "gpu_hours": 9}, 7, "The budget of 7 minutes is over."),
        ({"minutes": 7, "gpu_hours": 0.1}, 3, "The budget of 0.1 GPU hours is over."),
        ({"trials": 2}, 999, None),  # not watched here
    ],
)
def test_the_budget_that_is_spent_first_ends_the_call(
    section: dict[str, Any], minutes: int, spent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    took, budget = minutes_until(BudgetSection(**section), monkeypatch, gpus=2)
    assert (took, budget.spent) == (minutes, spent)
