"""The event stream of --json, and the last line of a log."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.runs import from_home
from ragen_lab.sweep import local
from ragen_lab.sweep.board import Board
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.plan import make_plan
from ragen_lab.sweep.spec import Sweep
from ragen_lab.sweep.stream import Stream
from ragen_lab.track import trial_folder
from tests.sweep.test_board import write_rows

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]


def test_the_events_tell_the_whole_sweep(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Planned first; of each trial its start, every row once and in order, its end; the summary last."""
    lines: list[str] = []
    sweep = sweep_of()
    drive(sweep, workers=2, events=lines.append)
    events = [json.loads(line) for line in lines]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "planned"
    assert (events[0]["sweep"], events[0]["trials"], events[0]["done"], events[0]["iterations"]) == ("tested", 4, 0, 32)
    assert kinds[-2:] == ["report", "summary"]
    for run in from_home(tmp_path / "home", "tested"):
        mine = [event for event in events if event.get("trial_id") == run.trial_id]
        assert [event["event"] for event in mine] == ["started", *["row"] * len(run.rows), "ended"]
        rows, ended = mine[1:-1], mine[-1]
        assert [row["iteration"] for row in rows] == list(range(len(run.rows)))
        assert [row["success"] for row in rows] == [row["eval/success"] for row in run.rows]
        assert (rows[0]["arm"], rows[0]["seed"], rows[0]["iterations"]) == (run.arm, run.seed, 8)
        assert (ended["status"], ended["stop_iteration"]) == (run.status, run.stop_iteration)
        assert ("level" in rows[-1]["alarms"]) == (run.status == "collapsed")
    summary = events[-1]
    assert (summary["status"], summary["done"], summary["collapsed"], summary["exit_code"]) == ("done", 4, 2, 0)


def test_rows_of_a_worker_that_is_faster_than_the_driver_are_told(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are news, although they are there by the time that the driver looks."""
    give = local._Pool._give

    def slow(worker: Any, request: Any) -> None:
        give(worker, request)
        rows = trial_folder(tmp_path / "home", request.trial_id) / "metrics.jsonl"
        while not rows.exists() or not rows.read_text():
            time.sleep(0.01)

    monkeypatch.setattr(local._Pool, "_give", staticmethod(slow))
    lines: list[str] = []
    drive(sweep_of(seeds=1), workers=1, events=lines.append)
    events = [json.loads(line) for line in lines]
    for run in from_home(tmp_path / "home", "tested"):
        told = [
            event["iteration"] for event in events if (event["event"], event.get("trial_id")) == ("row", run.trial_id)
        ]
        assert told == list(range(len(run.rows)))


def test_a_failure_is_retried_and_told(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(seeds=1)
    (home / f"fail-{sweep.trials[0].trial_id}").write_text("9")
    lines: list[str] = []
    _, text = drive(sweep, workers=1, events=lines.append)
    mine = [json.loads(line) for line in lines if sweep.trials[0].trial_id in line]
    kinds = [event["event"] for event in mine if event["event"] != "row"]
    assert kinds == ["started", "retried", "started", "retried", "started", "ended"]
    assert [event["attempt"] for event in mine if event["event"] == "started"] == [1, 2, 3]
    assert (mine[-1]["status"], "made to fail" in mine[-1]["error"]) == ("failed", True)
    last = text.splitlines()[-1]
    assert last.startswith("ragen-lab: sweep=tested status=failed exit_code=1 trials=2 done=1 collapsed=")
    assert " failed=1 seconds=" in last


def test_the_last_line_of_a_log(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    _, text = drive(sweep_of())
    expected = "ragen-lab: sweep=tested status=done exit_code=0 trials=4 done=4 collapsed=2 failed=0 seconds="
    assert text.splitlines()[-1].startswith(expected)


def test_what_a_trial_prints_stays_out_of_the_stream(sweep_of: Make, drive: Drive, tmp_path: Path, capfd: Any) -> None:
    """Also where the trial runs in the driver's own process: the fake trainer prints a word."""
    drive(sweep_of(seeds=1), workers=0, events=lambda line: None)
    assert "a word of the trainer" not in capfd.readouterr().out
    logs = [file.read_text() for file in (tmp_path / "home").glob("trials/*/log.txt")]
    assert len(logs) == 2
    assert all("a word of the trainer" in log for log in logs)


def test_rows_that_were_there_are_no_news(sweep_of: Make, tmp_path: Path) -> None:
    sweep = sweep_of()
    write_rows(tmp_path, sweep, 0, 3)
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    lines: list[str] = []
    stream = Stream(lines.append)
    board.started(sweep.trials[0].trial_id)
    stream.rows(board)
    assert lines == []
    write_rows(tmp_path, sweep, 0, 5)  # the same file grows
    board.poll()
    stream.rows(board)
    stream.rows(board)
    assert [json.loads(line)["iteration"] for line in lines] == [3, 4]


def test_rows_that_a_resume_has_taken_back_are_told_again(sweep_of: Make, tmp_path: Path) -> None:
    sweep = sweep_of()
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    lines: list[str] = []
    stream = Stream(lines.append)
    board.started(sweep.trials[0].trial_id)
    for count in (5, 2, 4):
        write_rows(tmp_path / "next", sweep, 0, count)
        there, folder = (trial_folder(place, sweep.trials[0].trial_id) for place in (tmp_path, tmp_path / "next"))
        there.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").replace(there / "metrics.jsonl")  # a new file, as a resume writes it
        board.poll()
        stream.rows(board)
    assert [json.loads(line)["iteration"] for line in lines] == [0, 1, 2, 3, 4, 2, 3]


def test_rows_are_told_before_the_end_although_another_thread_is_about_to_tell_them(
    sweep_of: Make, tmp_path: Path
) -> None:
    sweep = sweep_of(seeds=1)
    board = Board(make_plan(sweep, tmp_path), tmp_path)
    told, first, go = [], threading.Event(), threading.Event()

    def slow(line: str) -> None:
        told.append(json.loads(line)["event"])
        first.set()
        assert go.wait(60)

    stream, trial = Stream(slow), sweep.trials[0]
    board.started(trial.trial_id)
    write_rows(tmp_path, sweep, 0, 3)
    board.poll()
    follower = threading.Thread(target=stream.rows, args=(board,))
    follower.start()
    assert first.wait(60)

    def end() -> None:
        stream.rows(board)
        stream("ended")

    driver = threading.Thread(target=end)
    driver.start()
    time.sleep(0.2)
    go.set()
    driver.join(timeout=60)
    follower.join(timeout=60)
    assert told == ["row", "row", "row", "ended"]


def test_a_reader_that_went_away_ends_nothing() -> None:
    calls = []

    def closed(line: str) -> None:
        calls.append(line)
        raise BrokenPipeError

    stream = Stream(closed)
    stream("planned")
    stream("summary")
    assert len(calls) == 1
