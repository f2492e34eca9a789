"""A budget ends whatever computes, and is no failure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ragen_lab.sweep.budget import Budget
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.search_page import BudgetSection
from ragen_lab.sweep.spec import Sweep
from tests.sweep.conftest import calls

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]


@pytest.mark.parametrize("budget", [{"budget__minutes": 0.03}, {"budget__gpu_hours": 0.0005}])
def test_a_budget_ends_a_trial_of_this_process(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, float]
) -> None:
    """Without workers there is no process to end: the trial under way is interrupted, and the sweep is no failure."""
    monkeypatch.setenv("FAKE_SLEEP", "1.2")
    monkeypatch.setattr("ragen_lab.sweep.local.visible_gpus", lambda: ["0"])
    finished, text = drive(sweep_of(resources__gpus=1, **budget), workers=0)
    assert 0 < len(calls(tmp_path / "home")) < 9  # of a trial that has 9 iterations
    assert "is over. The same command goes on from here." in text
    assert "Interrupted" not in text
    assert finished.exit_code == 0
    assert {trial["status"] for trial in finished.result["trials"]} <= {"stopped", "pending"}
    monkeypatch.setenv("FAKE_SLEEP", "0")
    finished, _ = drive(sweep_of(), workers=0)
    assert {trial["status"] for trial in finished.result["trials"]} == {"finished", "collapsed"}


def test_gpu_hours_are_those_of_running_trials() -> None:
    ended = threading.Event()
    with Budget(BudgetSection(gpu_hours=0.0002), 2, lambda: 0, ended.set) as idle:
        assert not ended.wait(0.7)
    assert (idle.spent, idle.gpu_seconds) == (None, 0.0)
    with Budget(BudgetSection(gpu_hours=0.0002), 2, lambda: 1, ended.set) as busy:  # 0.72 GPU seconds
        assert ended.wait(10)
    assert busy.spent == "The budget of 0.0002 GPU hours is over."
    assert busy.gpu_seconds >= 0.72


def test_without_a_budget_nothing_watches() -> None:
    with Budget(BudgetSection(), 1, lambda: 1, lambda: None) as budget:
        assert not any(thread.name == "budget" for thread in threading.enumerate())
    assert budget.spent is None
