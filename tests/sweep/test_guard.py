"""Trials that hang, leak, or fail in odd ways: ended, told apart, and gone on with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_lab.locks import locked
from ragen_lab.sweep import guard
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.guard import KILLED_FILE, STAGE_FILE, Guard, Limits, Overdue, last_words, resident
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.spec import Sweep
from ragen_lab.sweep.worker import record_failure, run_trial
from ragen_lab.track import DONE_FILE, LOCK_FILE, LOG_FILE, METRICS_FILE, PROVENANCE_FILE, read_done, trial_folder
from tests.sweep.conftest import calls
from tests.sweep.test_worker import request_of

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]
ONE = {"axes.filter.keep_ratio": [1.0], "seeds": 1}


def attempts(home: Path, trial_id: str) -> list[str]:
    ledger = Ledger(home)
    found = [attempt["status"] for attempt in ledger.attempts(trial_id)]
    ledger.close()
    return found


@pytest.mark.parametrize("times", [1, 2])
def test_a_trial_that_hangs(sweep_of: Make, drive: Drive, tmp_path: Path, times: int) -> None:
    """Ended after the stated time and tried again once: nothing is repeated beyond its checkpoint. One that hangs at
    the same iteration again has failed, in plain words; where it stood is kept."""
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(**ONE, resources__hang_minutes=0.03)
    trial = sweep.trials[0].trial_id
    (home / f"hang-{trial}").write_text("once\n" * times)
    finished, text = drive(sweep, home, workers=1)
    assert "the trial hung after iteration 2: nothing new for 0.03 minutes" in text
    assert set(calls(home).values()) == {1}  # checkpoint at 2, hung before 3
    killed = trial_folder(home, trial) / KILLED_FILE
    if times == 1:
        assert finished.exit_code == 0
        assert attempts(home, trial) == ["hung", "finished"]
        assert not killed.exists()
    else:
        assert finished.exit_code == 1
        assert attempts(home, trial) == ["hung", "hung"]
        assert "_hang" in killed.read_text()  # the traceback
        assert "raise resources.hang_minutes" in finished.result["trials"][0]["stop_reason"]


def test_a_trial_that_leaks(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Ended by us and told apart from a bug and from a kill from outside; a fresh process goes on."""
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(**ONE, resources__memory_gb=0.5)
    trial = sweep.trials[0].trial_id
    (home / f"leak-{trial}").write_text("600\n")
    finished, text = drive(sweep, home, workers=1)
    assert finished.exit_code == 0
    assert "more than its 0.5 GB (resources.memory_gb)" in text
    assert "optim.micro_batch" in text
    assert attempts(home, trial) == ["memory", "finished"]
    assert set(calls(home).values()) == {1}


def test_a_worker_killed_from_outside(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(**ONE, resources__memory_gb=8.0, resources__hang_minutes=5.0)
    trial = sweep.trials[0].trial_id
    (home / f"die-{trial}").write_text("")
    _, text = drive(sweep, home, workers=1)
    assert attempts(home, trial) == ["killed", "finished"]
    assert "resources." not in text


def test_limits_are_not_kept_in_this_process(sweep_of: Make, drive: Drive) -> None:
    finished, text = drive(sweep_of(**ONE, resources__memory_gb=0.001), workers=0)
    assert finished.exit_code == 0
    assert "not kept with --workers 0" in text
    assert "not kept" not in drive(sweep_of(**ONE, optim__lr=0.5), workers=0)[1]


@pytest.mark.parametrize(
    ("kind", "words", "cause"),
    [
        ("unshowable", "Unshowable: an exception that cannot be shown (ValueError in its __str__)", ""),
        ("exit", "SystemExit: 3", ""),
        ("memory", "out of memory; lower what takes memory: optim.micro_batch", "memory"),
        ("gpu", "out of memory of the GPU; lower what takes memory: optim.micro_batch", "memory"),
    ],
)
@pytest.mark.parametrize("capture", [True, False])
def test_odd_exceptions(sweep_of: Make, tmp_path: Path, kind: str, words: str, cause: str, capture: bool) -> None:
    """What cannot be pickled or shown, and what is no Exception: a sentence arrives, the traceback is in the log."""
    request = request_of(sweep_of(**ONE), tmp_path)
    request = type(request)(**{**vars(request), "capture": capture})
    (tmp_path / f"odd-{request.trial_id}").write_text(kind)
    result = run_trial(request)
    assert (result.status, result.iteration, result.cause) == ("failed", 2, cause)
    assert words in (result.error or "")
    folder = trial_folder(tmp_path, request.trial_id)
    assert (read_done(folder) or {})["error"] == result.error
    assert "in _odd" in (folder / LOG_FILE).read_text()
    assert run_trial(request).status == "finished"
    assert set(calls(tmp_path).values()) == {1}


def test_a_stopped_process_is_ended_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard in a stopped process cannot act: the driver does, later, by changes of files and the monotonic clock."""
    now = [1000.0]
    monkeypatch.setattr("ragen_lab.sweep.guard.time.monotonic", lambda: now[0])
    overdue = Overdue(tmp_path, Limits(hang_minutes=1.0))
    assert not overdue()
    now[0] += 119
    (tmp_path / METRICS_FILE).write_text("a row")
    assert not overdue()
    now[0] += 119
    assert not overdue()
    now[0] += 2  # 1.5 minutes and what a fresh process needs to start
    assert overdue()
    assert overdue.late
    assert [file.name for file in tmp_path.iterdir()] == [METRICS_FILE]  # the folder may be another worker's by now
    assert not Overdue(tmp_path, Limits())()


def test_a_long_warm_start_is_not_overdue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes no row for hours, but says where it is."""
    now = [1000.0]
    monkeypatch.setattr("ragen_lab.sweep.guard.time.monotonic", lambda: now[0])
    overdue = Overdue(tmp_path, Limits(hang_minutes=1.0))
    for step in range(4):
        now[0] += 119  # of the 120 seconds: 1.5 minutes and what a fresh process needs to start
        (tmp_path / STAGE_FILE).write_text("{}")
        os.utime(tmp_path / STAGE_FILE, (step, step))
        assert not overdue()
    now[0] += 121
    assert overdue()


def test_a_stopped_worker_is_told_as_hung(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed by the driver, since its own guard is stopped too; another process goes on."""
    monkeypatch.setattr("ragen_lab.sweep.guard._START_SECONDS", 8.0)  # until it has loaded its libraries
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(**ONE, resources__hang_minutes=0.03)
    trial = sweep.trials[0].trial_id
    (home / f"odd-{trial}").write_text("stopped\n")
    finished, text = drive(sweep, home, workers=1)
    assert finished.exit_code == 0
    assert "the trial hung after iteration 2" in text
    assert attempts(home, trial) == ["hung", "finished"]
    assert set(calls(home).values()) == {1}


@pytest.mark.parametrize("overdue", [False, True])
def test_a_failure_is_not_written_into_a_folder_that_another_holds(
    sweep_of: Make, tmp_path: Path, overdue: bool
) -> None:
    """The worker of another sweep has taken the trial up meanwhile: what it writes there is its own."""
    request = request_of(sweep_of(**ONE, resources__hang_minutes=1.0), tmp_path)
    (tmp_path / f"fail-{request.trial_id}").write_text("1")
    run_trial(request)
    folder = trial_folder(tmp_path, request.trial_id)
    sessions = json.loads((folder / PROVENANCE_FILE).read_text())
    sessions[-1]["ended"] = None
    (folder / PROVENANCE_FILE).write_text(json.dumps(sessions))
    (folder / DONE_FILE).unlink()
    (folder / KILLED_FILE).write_text("memory 7\n")
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and file.name != LOCK_FILE}
    with locked(folder / LOCK_FILE):
        result = record_failure(request, "the worker process was killed.", overdue=overdue)
    assert (result.status, result.iteration) == ("failed", 2)
    assert result.cause == ("hung" if overdue else "killed")  # those last words may be of the other one
    assert before == {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file() and f.name != LOCK_FILE}
    free = record_failure(request, "the worker process was killed.", overdue=overdue)
    assert free.cause == ("hung" if overdue else "memory")
    assert (read_done(folder) or {})["error"] == free.error
    assert (last_words(folder) or ("", 0))[0] == free.cause
    assert json.loads((folder / PROVENANCE_FILE).read_text())[-1]["ended"] is not None


def test_last_words(tmp_path: Path) -> None:
    assert last_words(tmp_path) is None
    for text, meaning in (("", None), ("memory 7\nThread", ("memory", 7)), ("Timeout (0:01:00)!\n", ("hung", 0))):
        (tmp_path / KILLED_FILE).write_text(text)
        assert last_words(tmp_path) == meaning


def test_resident_memory_is_that_of_now() -> None:
    before = resident()
    block = b"x" * 10**8
    assert 0.9e8 < resident() - before < 2e8
    del block
    assert resident() - before < 0.5e8


def test_every_sign_of_life_winds_the_watchdog_up_again(
    sweep_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial may take longer than the limit, as long as each step of its warm start and each iteration does not; and
    the process that is kept for the next trial is not ended after it."""
    wound: list[tuple[float, bool]] = []

    def wind(seconds: float, exit: bool, file: Any) -> None:
        wound.append((seconds, exit))

    clock = SimpleNamespace(dump_traceback_later=wind, cancel_dump_traceback_later=lambda: wound.append((0.0, False)))
    monkeypatch.setattr(guard, "faulthandler", clock)
    request = replace(request_of(sweep_of(**ONE), tmp_path), limits=Limits(hang_minutes=2.0))
    assert run_trial(request).status == "finished"
    assert wound == [(120.0, True)] * (1 + 1 + 9) + [(0.0, False)]  # its begin, the trainer's one step, nine rows


def test_last_words_of_an_earlier_attempt_are_not_those_of_the_next(tmp_path: Path) -> None:
    """Limits may have been lifted since: then nothing else would be written there."""
    (tmp_path / KILLED_FILE).write_text("memory 7\n")
    with Guard(tmp_path, Limits()):
        assert last_words(tmp_path) is None


def test_resident_memory_where_there_is_no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Mac, ``ps`` says it in kB."""
    monkeypatch.setattr(guard, "Path", lambda file: tmp_path / "no such file")
    monkeypatch.setattr(guard, "subprocess", SimpleNamespace(run=lambda *_, **__: SimpleNamespace(stdout="  2048\n")))
    assert resident() == 2048 * 1024
