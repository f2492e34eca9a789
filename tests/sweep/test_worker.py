"""One trial: what is there is used, what is missing is computed once, what goes wrong is told."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_lab.errors import ConfigError, TrialLocked
from ragen_lab.locks import locked
from ragen_lab.runs import look
from ragen_lab.sweep import worker
from ragen_lab.sweep.estimate import known_in
from ragen_lab.sweep.guard import STAGE_FILE, Guard, Limits
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.spec import Sweep
from ragen_lab.sweep.worker import TrialRequest, record_failure, run_trial
from ragen_lab.track import (
    DONE_FILE,
    LOCK_FILE,
    METRICS_FILE,
    PROVENANCE_FILE,
    list_checkpoints,
    read_done,
    read_provenance,
    read_rows,
    trial_folder,
)
from tests.sweep import fake
from tests.sweep.conftest import FAKE, calls, numbers

Make = Callable[..., Sweep]


def request_of(sweep: Sweep, home: Path, index: int = 0) -> TrialRequest:
    trial = sweep.trials[index]
    home.mkdir(exist_ok=True)
    return TrialRequest(trial.trial_id, trial.arm, trial.seed, trial.cfg, str(home), FAKE, patience=0.2)


def rows_of(request: TrialRequest) -> list[dict[str, str]]:
    return numbers(read_rows(trial_folder(Path(request.home), request.trial_id) / "metrics.jsonl"))


def test_a_trial_is_computed_once(sweep_of: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    request = request_of(sweep_of(), tmp_path)
    result = run_trial(request)
    assert (result.status, result.iteration, result.error) == ("finished", 8, None)
    again = run_trial(request)
    assert (again.status, again.iteration) == ("finished", 8)
    assert set(calls(tmp_path).values()) == {1}
    folder = trial_folder(tmp_path, request.trial_id)
    assert "a word of the trainer" in (folder / "log.txt").read_text()
    assert "a word of the trainer" not in capfd.readouterr().out
    assert (read_done(folder) or {})["status"] == "finished"
    assert not (folder / STAGE_FILE).exists()


def test_stop_then_shadow_then_growth_are_one_run(sweep_of: Make, tmp_path: Path) -> None:
    """A stopped trial is continued in shadow and then grown: every iteration computed once, as if in one go."""
    page = {"axes.filter.keep_ratio": [0.25], "seeds": 1}
    stopped = run_trial(request_of(sweep_of(**page, on_collapse="stop"), tmp_path))
    assert stopped.status == "collapsed"
    assert stopped.stop_iteration == stopped.iteration < 8
    shadow = run_trial(request_of(sweep_of(**page, on_collapse="continue"), tmp_path))
    assert (shadow.status, shadow.iteration) == ("finished", 8)
    grown = request_of(sweep_of(**page, on_collapse="continue", train__iterations=12), tmp_path)
    assert run_trial(grown).iteration == 12
    assert set(calls(tmp_path).values()) == {1}
    again = run_trial(request_of(sweep_of(**page, on_collapse="stop"), tmp_path))
    assert (again.status, again.iteration) == ("collapsed", stopped.iteration)
    other = request_of(sweep_of(**page, on_collapse="continue", train__iterations=12), tmp_path / "other")
    run_trial(other)
    flags = ("detect/",)  # the flags of rows 0..8 belong to the horizon they were logged under
    strip = [{k: v for k, v in row.items() if not k.startswith(flags)} for row in rows_of(other)]
    assert strip == [{k: v for k, v in row.items() if not k.startswith(flags)} for row in rows_of(grown)]
    views = [look(trial_folder(Path(r.home), r.trial_id), r.cfg) for r in (other, grown)]
    assert numbers(views[0].rows) == numbers(views[1].rows)


def test_pitfall_20_a_failure_is_told_and_resumes(sweep_of: Make, tmp_path: Path) -> None:
    """Pitfall 20 for the machinery: after a failure the trial equals an uninterrupted one."""
    request = request_of(sweep_of(), tmp_path)
    (tmp_path / f"fail-{request.trial_id}").write_text("1")
    failed = run_trial(request)
    folder = trial_folder(tmp_path, request.trial_id)
    assert (failed.status, failed.iteration) == ("failed", 2)
    assert failed.error == f"RuntimeError: made to fail (the traceback is in {folder / 'log.txt'})"
    assert "Traceback" in (folder / "log.txt").read_text()
    assert (read_done(folder) or {})["status"] == "failed"
    assert look(folder, request.cfg).status == "failed"
    assert run_trial(request).status == "finished"
    assert set(calls(tmp_path).values()) == {1}  # checkpoint at 2, failure at 3
    undisturbed = request_of(sweep_of(), tmp_path / "other")
    run_trial(undisturbed)
    assert rows_of(request) == rows_of(undisturbed)


def test_a_damaged_checkpoint_is_told(sweep_of: Make, tmp_path: Path) -> None:
    request = request_of(sweep_of(), tmp_path)
    (tmp_path / f"fail-{request.trial_id}").write_text("1")
    run_trial(request)
    folder = trial_folder(tmp_path, request.trial_id)
    (list_checkpoints(folder)[-1][1] / "state").write_text("{")
    result = run_trial(request)
    assert result.status == "finished"
    assert "checkpoint of iteration 2 cannot be used" in result.notes[0]
    assert calls(tmp_path)[(request.trial_id, 1)] == 2


def test_pitfall_19_a_kept_process_equals_a_fresh_one(sweep_of: Make, tmp_path: Path) -> None:
    """Pitfall 19: what an earlier trial leaves in the process changes nothing for the next."""
    sweep = sweep_of()
    alone = request_of(sweep, tmp_path / "alone", 2)
    run_trial(alone)
    os.environ.pop("LEFT_BEHIND", None)
    for index in (1, 0, 2):
        random.seed(index)
        np.random.seed(index)
        kept = request_of(sweep, tmp_path / "kept", index)
        run_trial(kept)
    assert rows_of(kept) == rows_of(alone)
    noisy = replace(kept, trainer="tests.sweep.test_worker:litter", home=str(tmp_path / "litter"))
    (tmp_path / "litter").mkdir()
    before, level, handlers = Path.cwd(), logging.root.level, list(logging.root.handlers)
    run_trial(noisy)
    assert "LEFT_BEHIND" not in os.environ
    assert Path.cwd() == before
    assert (logging.root.level, logging.root.handlers) == (level, handlers)


def litter(*args: object) -> None:
    os.environ["LEFT_BEHIND"] = "yes"
    os.chdir("/")
    logging.root.setLevel(logging.root.level + 7)
    logging.root.addHandler(logging.NullHandler())
    raise RuntimeError("that was all")


@pytest.mark.parametrize("trainer", ["telling", "refusing"])
def test_what_a_failure_says_is_told_without_its_password(sweep_of: Make, tmp_path: Path, trainer: str) -> None:
    """It goes into DONE.json, and from there to people, the report and every mirror."""
    request = replace(request_of(sweep_of(), tmp_path), trainer=f"tests.sweep.test_worker:{trainer}")
    told = run_trial(request).error or ""
    folder = trial_folder(tmp_path, request.trial_id)
    assert "no answer from http://me:[redacted]@h" in told
    assert (read_done(folder) or {})["error"] == told
    assert look(folder, request.cfg).stop_reason == told


def telling(*args: object) -> None:
    raise RuntimeError("no answer from http://me:hunter2@h")


def refusing(*args: object) -> None:
    raise ConfigError("page", ["env.options: no answer from http://me:hunter2@h"])


def test_a_trial_that_another_process_holds(sweep_of: Make, tmp_path: Path) -> None:
    request = request_of(sweep_of(), tmp_path)
    with locked(trial_folder(tmp_path, request.trial_id) / LOCK_FILE):
        result = run_trial(request)
    assert result.status == "pending"
    assert f"process {os.getpid()}" in (result.error or "")
    assert not calls(tmp_path)


@pytest.mark.parametrize("grows", [2, 0])
def test_another_process_is_waited_for_as_long_as_its_metrics_grow(
    sweep_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows: int
) -> None:
    """Two waits in which rows come, then the lock is free; or one wait without a row, and it is given up."""
    request, waits = request_of(sweep_of(), tmp_path), []
    folder = trial_folder(tmp_path, request.trial_id)
    folder.mkdir(parents=True)

    @contextmanager
    def held(file: Path, wait: float = 0.0) -> Iterator[None]:
        waits.append((file, wait))
        assert len(waits) < 5  # nobody waits for ever
        if len(waits) > grows > 0:
            yield
            return
        if grows:
            (folder / METRICS_FILE).touch()
            os.utime(folder / METRICS_FILE, (len(waits), len(waits)))
        raise TrialLocked("this trial is being worked on")

    monkeypatch.setattr(worker, "locked", held)
    assert run_trial(request).status == ("finished" if grows else "pending")
    assert waits == [(folder / LOCK_FILE, 0.2)] * (grows + 1)


def test_a_trainer_that_stops_short_is_no_success(sweep_of: Make, tmp_path: Path) -> None:
    request = replace(request_of(sweep_of(), tmp_path), trainer="tests.sweep.test_worker:short")
    result = run_trial(request)
    assert result.status == "failed"
    assert "0 rows of 9" in (result.error or "")


def short(*args: object) -> object:
    from ragen_lab.track import Outcome

    return Outcome("finished", 8)


def test_a_full_disk_is_told_plainly(sweep_of: Make, tmp_path: Path) -> None:
    request = replace(request_of(sweep_of(), tmp_path), trainer="tests.sweep.test_worker:full_disk")
    result = run_trial(request)
    assert result.status == "failed"
    assert (result.error or "").startswith("the disk is full")
    assert "resumes" in (result.error or "")


def full_disk(*args: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("kind", ["finished", "collapsed", "paused"])
def test_a_kill_between_the_last_row_and_done(sweep_of: Make, tmp_path: Path, kind: str) -> None:
    """All rows are there, so nothing is computed: but somebody has to say that the trial has ended, and when."""
    request = request_of(sweep_of(), tmp_path, 1 if kind == "collapsed" else 0)
    request = replace(request, until=4 if kind == "paused" else None)
    result = run_trial(request)
    assert result.status == kind
    folder = trial_folder(tmp_path, request.trial_id)
    before, last = _unseen(folder), rows_of(request)
    assert run_trial(request).status == kind
    done = read_done(folder) or {}
    assert {**done, "ended": None} == {**before, "ended": None}
    stamp = read_rows(folder / METRICS_FILE)[-1]["timestamp"]
    assert abs(datetime.fromisoformat(done["ended"]).timestamp() - stamp) <= 1  # not the time of this call
    assert read_provenance(folder)["ended"] == done["ended"]
    assert rows_of(request) == last
    assert set(calls(tmp_path).values()) == {1}


def _unseen(folder: Path) -> dict[str, Any]:
    """Make a folder that of a trial killed before it could say that it has ended; what it would have said."""
    done = read_done(folder) or {}
    (folder / DONE_FILE).unlink()
    sessions = json.loads((folder / PROVENANCE_FILE).read_text())
    sessions[-1]["ended"] = None
    (folder / PROVENANCE_FILE).write_text(json.dumps(sessions))
    return done


def test_a_repeated_sweep_writes_the_missing_end(sweep_of: Make, drive: Any, tmp_path: Path) -> None:
    """Also of a trial that the plan need not give to a worker; of one that goes on elsewhere it says nothing."""
    home, sweep = tmp_path / "home", sweep_of()
    drive(sweep, home)
    stopped, whole, held = (trial_folder(home, sweep.trials[i].trial_id) for i in (1, 0, 2))
    before = _unseen(whole)
    assert whole.name not in {known.trial_id for known in known_in(home)}
    _unseen(held)
    _unseen(stopped)
    with (stopped / METRICS_FILE).open("a") as rows:  # a longer sweep was killed in the middle of it
        rows.write(json.dumps({"iteration": len(read_rows(stopped / METRICS_FILE)), "timestamp": 1.0}) + "\n")
    with locked(held / LOCK_FILE):
        drive(sweep, home)
    assert (read_done(whole) or {})["status"] == before["status"]
    assert whole.name in {known.trial_id for known in known_in(home)}
    assert read_done(held) is None
    assert read_done(stopped) is None


def test_attempts_name_the_machine_of_the_worker(
    sweep_of: Make, drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster the driver is elsewhere; of an attempt under Ray it knows neither process nor machine before."""
    from ragen_lab.sweep import local

    def elsewhere(request: TrialRequest, *more: Any) -> Any:
        return replace(run_trial(request, *more), host="node7", pid=77)

    monkeypatch.setattr(local, "run_trial", elsewhere)
    sweep = sweep_of(seeds=1)
    drive(sweep, tmp_path)
    ledger = Ledger(tmp_path)
    found = [(a["host"], a["pid"]) for trial in sweep.trials for a in ledger.attempts(trial.trial_id)]
    number = ledger.attempt_started("tested", "unknown", None)
    assert ledger.attempts("unknown")[0]["host"] == ""
    ledger.attempt_ended(number, "killed", 3, "it was killed")  # by whom, and where, nobody has said
    ledger.attempt_ended(ledger.attempt_started("tested", "here", 5), "killed", 3, "it was killed")
    assert [(a["host"], a["pid"]) for a in ledger.attempts("here")] == [(socket.gethostname(), 5)]
    ledger.close()
    assert found == [("node7", 77)] * 2


def test_a_config_error_is_not_tried_again(sweep_of: Make, tmp_path: Path) -> None:
    request = request_of(sweep_of(), tmp_path)
    (tmp_path / f"wrong-{request.trial_id}").write_text("")
    result = run_trial(request)
    assert (result.status, result.permanent) == ("failed", True)
    assert "policy.model: no such model" in (result.error or "")
    (tmp_path / f"wrong-{request.trial_id}").unlink()
    assert run_trial(request).status == "finished"


def test_a_folder_that_cannot_be_made(sweep_of: Make, tmp_path: Path) -> None:
    request = request_of(sweep_of(), tmp_path)
    (tmp_path / "trials").write_text("in the way")
    result = run_trial(request)
    assert (result.status, result.permanent) == ("failed", False)
    assert "--home" in (result.error or "")
    assert record_failure(request, "killed").status == "failed"


def test_the_environment_is_put_back_without_being_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirrors' threads of this process read it at any moment."""
    monkeypatch.setenv("KEPT", "as it was")
    update, seen = os.environ.update, []
    with monkeypatch.context() as patch, worker._as_it_was():
        os.environ["KEPT"], os.environ["LEFT_BEHIND"] = "changed", "yes"
        patch.setattr(os.environ, "update", lambda given: (seen.append("KEPT" in os.environ), update(given)))
    assert seen == [True]
    assert os.environ["KEPT"] == "as it was"
    assert "LEFT_BEHIND" not in os.environ


def test_a_trial_that_goes_on_is_no_longer_told_as_failed(sweep_of: Make, tmp_path: Path) -> None:
    """Were it killed now, it would be shown as failed, with the words of a fault that is over."""
    request = request_of(sweep_of(), tmp_path)
    (tmp_path / f"fail-{request.trial_id}").write_text("1")
    assert run_trial(request).status == "failed"
    assert run_trial(replace(request, trainer="tests.sweep.test_worker:looking")).status == "finished"
    assert (tmp_path / "seen").read_text() == "None from 3"


def looking(cfg: Any, tracker: Any, home: Path, *more: Any) -> object:
    begun = read_provenance(tracker.folder)["from_iteration"]
    (home / "seen").write_text(f"{read_done(tracker.folder)} from {begun}")
    return fake.train(cfg, tracker, home, *more)


def test_a_worker_killed_after_the_last_row_is_no_failure(sweep_of: Make, tmp_path: Path) -> None:
    request = request_of(sweep_of(), tmp_path)
    run_trial(request)
    folder = trial_folder(tmp_path, request.trial_id)
    before = _unseen(folder)
    record_failure(request, "the worker process was killed.")
    assert read_done(folder) is None
    assert run_trial(request).status == "finished"
    assert (read_done(folder) or {})["status"] == before["status"]


def test_the_stage_before_the_first_row_is_told_to_its_end(tmp_path: Path) -> None:
    """Not at every step, which would be a file a millisecond."""
    told = worker._Stage(tmp_path / STAGE_FILE, Guard(tmp_path, Limits()))
    seen = []
    for step in (1, 2, 3):
        told(step, 3)
        seen.append(json.loads((tmp_path / STAGE_FILE).read_text())["step"])
    assert (seen[0], seen[-1]) == (1, 3)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk"),
        (OSError(errno.EACCES, "Permission denied"), ""),
        (MemoryError(), "memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), "memory"),
        (ValueError("out of memory, as the user's reward put it"), ""),
    ],
)
def test_causes_are_told_apart(error: BaseException, cause: str) -> None:
    assert worker._cause(error) == cause


def test_a_kept_process_keeps_no_file_of_an_earlier_trial_open(sweep_of: Make, tmp_path: Path) -> None:
    """Two a trial, and a worker of a long sweep could open no more."""
    sweep = sweep_of()
    run_trial(request_of(sweep, tmp_path, 0))
    before = len(os.listdir("/dev/fd"))
    run_trial(request_of(sweep, tmp_path, 1))
    assert len(os.listdir("/dev/fd")) <= before


def test_a_kept_process_draws_as_a_fresh_one_does() -> None:
    """From any generator that all the code of a process shares; an environment of the user's may."""
    import torch

    def draws() -> tuple[float, float, float]:
        with worker._as_it_was():
            return random.random(), float(np.random.random()), float(torch.rand(()))

    assert draws() == draws()
