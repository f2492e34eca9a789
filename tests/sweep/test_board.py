"""What people see while a sweep runs."""

from __future__ import annotations

import io
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ragen_lab.runs import View
from ragen_lab.sweep.board import Board, Tail, duration, plural
from ragen_lab.sweep.plan import make_plan
from ragen_lab.sweep.spec import Sweep
from ragen_lab.sweep.watch import Follower, alarms, cut_in_the_middle, sparkline, table
from ragen_lab.sweep.worker import TrialResult
from ragen_lab.track import METRICS_FILE, FolderTracker, trial_folder

Make = Callable[..., Sweep]


def lines_of(board: Board, width: int = 160, height: int = 40, unicode: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    console.print(table(board, width, height, unicode))
    return console.export_text().splitlines()


def words_of(board: Board, **size: int) -> list[str]:
    return [" ".join(line.split()) for line in lines_of(board, **size)]


def write_rows(home: Path, sweep: Sweep, index: int, count: int, seconds: float = 2.0) -> None:
    folder = trial_folder(home, sweep.trials[index].trial_id)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"iteration": i, "timestamp": i * seconds, "eval/success": 0.25 + i / 100} for i in range(count)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_live_table(sweep_of: Make, tmp_path: Path) -> None:
    """Running trials first. Success over evaluations is drawn, and each detector that is in alarm is named."""
    sweep = sweep_of()
    write_rows(tmp_path, sweep, 0, 9)
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    board.started(sweep.trials[1].trial_id)
    write_rows(tmp_path, sweep, 1, 4)
    board.poll()
    head, *rows, foot = words_of(board)
    assert head == "arm seed iter success trend alarms status time left try"
    assert rows[0] == "keep_ratio=0.25 0 3/8 0.280 ▃▃▃▃ none running 0 s 10 s 1"
    assert "keep_ratio=1.0 0 8/8 0.330 ▃▃▃▃▃▃▃▃▃ none finished (old)" in rows
    assert "keep_ratio=1.0 1 -/8 - pending" in rows
    assert len(rows) == 4
    assert foot.startswith("1 of 4 trials done, 1 running · about ")
    assert "keep_ratio=0.25 seed 0: 3/8 success 0.280" in board.line()


def test_detectors_in_alarm_are_named(sweep_of: Make, tmp_path: Path) -> None:
    """From the rows as this sweep's config judges them; a metric that is not logged is judged by nobody."""
    sweep = sweep_of()
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    folder = trial_folder(tmp_path, sweep.trials[0].trial_id)
    folder.mkdir(parents=True)
    row = {"iteration": 0, "timestamp": 0.0, "eval/success": 0.3, "rollout/reward_mean": "nan"}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    board.started(sweep.trials[0].trial_id)
    board.poll()
    assert " nan running " in words_of(board)[1]
    assert alarms([]) is None
    assert alarms([{"iteration": 0.0, "detect/stop": 0.0}]) is None
    assert alarms([{"detect/level": 0.0, "detect/grad_norm": 1.0, "detect/entropy": 1.0}]) == ["grad_norm", "entropy"]


def test_long_arms_stay_apart() -> None:
    assert cut_in_the_middle("keep_ratio=0.25", 12) == "keep_…o=0.25"
    assert cut_in_the_middle("short", 5) == "short"
    assert [len(cut_in_the_middle("x" * 50, width)) for width in (3, 16, 49)] == [3, 16, 49]


def test_sparklines() -> None:
    assert sparkline([0.0, 0.5, 0.99, 1.0]) == "▁▅██"
    assert sparkline([0.0, math.nan, 1.0], unicode=False) == ".x#"
    assert sparkline([0.0] * 15 + [1.0] * 15) == "▁▁▁▁▁█████"  # means of three
    assert sparkline([-0.5, 1.5]) == "▁█"
    assert sparkline([]) == ""


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100])
def test_no_line_is_wider_than_the_terminal(sweep_of: Make, tmp_path: Path, width: int) -> None:
    """Columns give way one after the other; arm, seed and iteration stay."""
    sweep = sweep_of(axes={"filter.keep_ratio": [1.0, 0.25], "optim.lr": [0.00001, 0.5], "algo.gamma": [1.0]})
    write_rows(tmp_path, sweep, 0, 9)
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    board.started(sweep.trials[1].trial_id)
    write_rows(tmp_path, sweep, 1, 4)
    board.poll()
    lines = lines_of(board, width)
    assert max(len(line) for line in lines) <= width
    assert len(lines) == 2 + len(sweep.trials)  # none is wrapped
    assert lines[0].split()[:3] == ["arm", "seed", "iter"]
    assert any(" 3/8" in line for line in lines)
    wanted = {30: "iter", 40: "success", 60: "alarms", 80: "time", 100: "try"}[width]
    assert wanted in lines[0].split()


def test_a_table_longer_than_the_screen_says_so(sweep_of: Make, tmp_path: Path) -> None:
    board = Board(make_plan(sweep_of(seeds=20), tmp_path), tmp_path)
    lines = lines_of(board, height=12)
    assert len(lines) <= 11
    assert "... and 32 more" in lines


def test_trials_join_a_board(sweep_of: Make, tmp_path: Path) -> None:
    small, large = sweep_of(seeds=1), sweep_of(seeds=2)
    board = Board(make_plan(small, tmp_path), tmp_path)
    board.started(small.trials[0].trial_id)
    for trial in large.trials:
        board.add(trial, View(False, "pending"))
    assert board.counts() == "0 of 4 trials done, 1 running"  # what was known stays
    assert [run.trial_id for run in board.runs()][:2] == [trial.trial_id for trial in small.trials]


def test_seconds_add_up_over_attempts(sweep_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of()
    now = [100.0]
    monkeypatch.setattr("ragen_lab.sweep.board.time.monotonic", lambda: now[0])
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    first = sweep.trials[0].trial_id
    assert board.entries[first].seconds() is None
    for wait in (5, 7):
        board.started(first)
        now[0] += wait
        board.ended(first, None)
        now[0] += 50  # between attempts nothing is spent
    assert (board.entries[first].seconds(), board.entries[first].tries) == (12, 2)


def test_the_time_left_is_that_of_all_trials_shared_by_those_that_run(sweep_of: Make, tmp_path: Path) -> None:
    """2 s and 4 s an iteration, 3 s for who has none yet: 5 x 2 + 2 x 4 + 8 x 3 + 8 x 3 = 66 s, two at a time."""
    sweep = sweep_of()
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    assert board.seconds_left() is None
    for index, count, seconds in ((0, 4, 2.0), (1, 7, 4.0)):
        board.started(sweep.trials[index].trial_id)
        write_rows(tmp_path, sweep, index, count, seconds)
    board.poll()
    assert board.seconds_left() == 33
    board.ended(sweep.trials[2].trial_id, TrialResult(sweep.trials[2].trial_id, "failed", -1))
    assert board.seconds_left() == (66 - 24) / 2  # given up


def test_no_sweep_is_done_before_its_slowest_trial(sweep_of: Make, tmp_path: Path) -> None:
    """Two trials, 5 and 2 iterations of 2 s left: 10 s, although 14 s on two workers would be 7."""
    sweep = sweep_of(seeds=1)
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    for index, count in ((0, 4), (1, 7)):
        board.started(sweep.trials[index].trial_id)
        write_rows(tmp_path, sweep, index, count)
    board.poll()
    assert board.seconds_left() == 10


def test_the_stage_before_the_first_row(sweep_of: Make, tmp_path: Path) -> None:
    sweep = sweep_of()
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    folder = trial_folder(tmp_path, sweep.trials[0].trial_id)
    folder.mkdir(parents=True)
    (folder / "stage.json").write_text('{"stage": "warm start", "step": 1, "steps": 4}')
    board.started(sweep.trials[0].trial_id)
    board.poll()
    assert words_of(board)[1] == "keep_ratio=1.0 0 -/8 - warm start 25% 0 s 1"


def test_a_terminal_gets_the_table_and_a_log_gets_lines(sweep_of: Make, tmp_path: Path) -> None:
    sweep = sweep_of()
    write_rows(tmp_path, sweep, 0, 9)
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    screen = io.StringIO()
    with Follower(board, Console(file=screen, force_terminal=True, width=120, height=30), live=True):
        pass
    assert "keep_ratio=1.0" in screen.getvalue()
    assert "8/8" in screen.getvalue()
    board.started(sweep.trials[1].trial_id)
    log, polls = io.StringIO(), threading.Semaphore(0)
    with Follower(board, Console(file=log, width=40), live=False, every=0.0, on_poll=polls.release):
        for _ in range(2):  # the second poll comes after the first line
            assert polls.acquire(timeout=30)
    first, *_ = log.getvalue().splitlines()
    assert first == "1 of 4 trials done, 1 running · keep_ratio=0.25 seed 0: 0/8"  # in one piece, and no drawing
    silent = io.StringIO()
    with Follower(board, Console(file=silent), live=False, every=600.0, on_poll=polls.release):
        assert polls.acquire(timeout=30)
        assert polls.acquire(timeout=30)
    assert silent.getvalue() == ""


@pytest.mark.parametrize(("seconds", "text"), [(45, "45 s"), (720, "12 min"), (12600, "3.5 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_file_that_is_replaced_as_it_is_opened_is_read_anew(
    sweep_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a worker that resumes: the rows of before are not taken for those of the new file."""
    cfg = sweep_of().trials[0].cfg
    folder = trial_folder(tmp_path, cfg.trial_id())
    old = FolderTracker(folder, cfg)
    for iteration in range(4):
        old.log(iteration, {"eval/success": 0.25})
    tail, resumed, real = Tail(folder / METRICS_FILE, cfg), FolderTracker(folder, cfg), Path.open

    def replaced(file: Path, *given: Any, **more: Any) -> Any:
        handle = real(file, *given, **more)
        monkeypatch.undo()
        resumed._cut(0)
        resumed.log(0, {"eval/success": 0.75})
        return handle

    monkeypatch.setattr(Path, "open", replaced)
    tail.poll()
    tail.poll()
    assert [row["eval/success"] for row in tail.rows] == [0.75]


def test_plural() -> None:
    assert [plural(count, "trial") for count in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
