"""What people see while a sweep runs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ragen_lab.sweep.board import Board, Follower, duration, plural
from ragen_lab.sweep.plan import make_plan
from ragen_lab.sweep.spec import Sweep
from ragen_lab.track import trial_folder

Make = Callable[..., Sweep]


def lines_of(board: Board, height: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=160, record=True)
    console.print(board.table(height))
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def write_rows(home: Path, sweep: Sweep, index: int, count: int, seconds: float = 2.0) -> None:
    folder = trial_folder(home, sweep.trials[index].trial_id)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"iteration": i, "timestamp": i * seconds, "eval/success": 0.25 + i / 100} for i in range(count)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_live_table(sweep_of: Make, tmp_path: Path) -> None:
    """Arm, seed, iteration of how many, newest success, status, time left; running trials first."""
    sweep = sweep_of()
    write_rows(tmp_path, sweep, 0, 9)
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    board.started(sweep.trials[1].trial_id)
    write_rows(tmp_path, sweep, 1, 4)
    board.poll()
    head, *rows, foot = lines_of(board)
    assert head == "arm seed iteration success status time left"
    assert rows[0] == "keep_ratio=0.25 0 3/8 0.280 running 10 s"
    assert "keep_ratio=1.0 0 8/8 0.330 finished (there already)" in rows
    assert "keep_ratio=1.0 1 -/8 pending" in rows
    assert len(rows) == 4
    assert foot.startswith("1 of 4 trials done, 1 running · about ")
    assert "keep_ratio=0.25 seed 0: 3/8 success 0.280" in board.line()


def test_a_table_longer_than_the_screen_says_so(sweep_of: Make, tmp_path: Path) -> None:
    board = Board(make_plan(sweep_of(seeds=20), tmp_path), tmp_path)
    lines = lines_of(board, height=12)
    assert "... and 35 more" in lines
    assert len(lines) <= 12


def test_the_stage_before_the_first_row(sweep_of: Make, tmp_path: Path) -> None:
    sweep = sweep_of()
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    folder = trial_folder(tmp_path, sweep.trials[0].trial_id)
    folder.mkdir(parents=True)
    (folder / "stage.json").write_text('{"stage": "warm start", "step": 1, "steps": 4}')
    board.started(sweep.trials[0].trial_id)
    board.poll()
    assert lines_of(board)[1] == "keep_ratio=1.0 0 -/8 warm start 25%"


def test_a_terminal_gets_the_table_and_a_log_gets_lines(sweep_of: Make, tmp_path: Path) -> None:
    sweep = sweep_of()
    write_rows(tmp_path, sweep, 0, 9)
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    screen = io.StringIO()
    with Follower(board, Console(file=screen, force_terminal=True, width=120, height=30), live=True):
        pass
    assert "keep_ratio=1.0" in screen.getvalue()
    assert "8/8" in screen.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(45, "45 s"), (720, "12 min"), (12600, "3.5 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plural() -> None:
    assert [plural(count, "trial") for count in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
