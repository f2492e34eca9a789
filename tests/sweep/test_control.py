"""A running sweep seen and ended from another terminal, and trials computed anew."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from ragen_lab.errors import ConfigError, HomeError, TrialLocked
from ragen_lab.locks import locked
from ragen_lab.mirror import default_uri
from ragen_lab.runs import from_home, from_mlflow
from ragen_lab.sweep import control, rerun
from ragen_lab.sweep.desk import Desk
from ragen_lab.sweep.drive import Finished, Options, run_sweep
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.plan import make_plan
from ragen_lab.sweep.spec import Sweep, load_sweep
from ragen_lab.sweep.worker import run_trial
from ragen_lab.track import encode_row, list_checkpoints, read_done, read_rows, trial_folder, write_json
from tests.sweep.conftest import FAKE, PAGE, calls, numbers, start_driver

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


def rows_of(home: Path, sweep: str = "tested") -> dict[str, Any]:
    return {run.trial_id: numbers(run.rows) for run in from_home(home, sweep)}


def running(tmp_path: Path, file: Path, home: Path, engine: str, rows: int = 5) -> subprocess.Popen[str]:
    """A driver with some rows behind it."""
    driver = start_driver(tmp_path, file, home, engine, sleep=0.4)
    try:
        wait_for(lambda: sum(calls(home).values()) >= rows or driver.poll() is not None, 480)
        assert driver.poll() is None, driver.communicate()
    except BaseException:
        driver.kill()
        raise
    return driver


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.slow)])
@pytest.mark.parametrize("action", ["stop", "pause"])
def test_a_sweep_is_ended_from_elsewhere(
    write: Callable[..., Path], sweep_of: Make, drive: Drive, tmp_path: Path, action: str, engine: str
) -> None:
    """The driver ends by itself, says what happened and how to go on; the repeated command ends with the numbers of an
    undisturbed sweep. After a pause no iteration is computed twice."""
    home, file = tmp_path / "home", write()
    driver = running(tmp_path, file, home, engine)
    said: list[str] = []
    told = control.ask(home, "tested", action, said.append, patience=240)  # a busy machine
    _, errors = driver.communicate(timeout=60)
    assert told == {"sweep": "tested", "asked": action, "was_running": True, "ended": True}
    assert f"process {driver.pid} on" in said[0]
    assert f"To go on: ragen-lab sweep {file} --home {home} (first run elsewhere, as: ragen-lab again)" in said[1]
    assert driver.returncode == 130
    assert f"{'Stopped' if action == 'stop' else 'Paused'} from another terminal" in errors
    assert "repeat the same command: ragen-lab again" in errors
    assert "Traceback" not in errors
    assert not list((home / "locks").glob("*.pause")) + list((home / "locks").glob("*.json"))
    left = [run for run in from_home(home, "tested") if run.status not in ("finished", "collapsed")]
    assert left
    if action == "pause":
        begun = [run.trial_id for run in left if run.rows]
        assert begun
        for trial in begun:  # rests exactly at a checkpoint
            folder = trial_folder(home, trial)
            assert (read_done(folder) or {})["status"] == "paused"
            assert max(i for t, i in calls(home) if t == trial) == list_checkpoints(folder)[-1][0]
    again = start_driver(tmp_path, file, home)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    repeated = sum(count - 1 for count in calls(home).values())
    assert repeated == 0 if action == "pause" else repeated <= 4
    drive(sweep_of(), tmp_path / "plain")
    assert rows_of(home) == rows_of(tmp_path / "plain")


@pytest.mark.parametrize("action", ["stop", "pause"])
def test_a_sweep_without_workers_is_ended_too(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """One process, as in `ragen-lab run`: a pause ends at the checkpoint, a stop inside the trial."""
    monkeypatch.setenv("FAKE_SLEEP", "0.4")
    home = tmp_path / "home"

    def ask() -> None:
        wait_for(lambda: len(calls(home)) >= 2)
        control.ask(home, "tested", action, lambda line: None)

    asking = threading.Thread(target=ask)
    asking.start()
    finished, text = drive(sweep_of())
    asking.join()
    assert finished.exit_code == 130
    assert "from another terminal" in text
    assert len({trial for trial, _ in calls(home)}) == 1  # nothing new was begun
    monkeypatch.setenv("FAKE_SLEEP", "0")
    assert drive(sweep_of())[0].exit_code == 0
    assert max(calls(home).values()) == 1 or action == "stop"


def test_a_request_reaches_one_driver_only(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """What is left of a request to an earlier driver, or of its pause, does not end the next one."""
    home = tmp_path / "home"
    drive(sweep_of(seeds=1))
    control.request_file(home, "tested").write_text(json.dumps({"action": "stop", "to": 1}))
    control.pause_file(home, "tested").write_text("")
    finished, _ = drive(sweep_of(seeds=3), workers=1)
    assert finished.exit_code == 0
    assert not control.pause_file(home, "tested").exists()


@pytest.mark.parametrize("in_process", [False, True])
def test_a_pause_of_what_is_about_to_end_is_no_pause(
    sweep_of: Make, tmp_path: Path, request: pytest.FixtureRequest, in_process: bool
) -> None:
    """A sweep whose last trials are done when the pause is heard has ended by itself: nothing is interrupted."""
    stop, interrupts = threading.Event(), []
    before = signal.signal(signal.SIGTERM, lambda number, frame: interrupts.append(number))
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))
    (tmp_path / "locks").mkdir()
    with (
        locked(control.lock_of(tmp_path, "tested")),
        control.Listener(tmp_path, "tested", stop, list, in_process) as listener,
    ):
        token = control.lock_of(tmp_path, "tested").stat().st_mtime_ns
        control.request_file(tmp_path, "tested").write_text(json.dumps({"action": "pause", "to": token}))
        assert stop.wait(10)
        time.sleep(2.5 * control.POLL_SECONDS)  # until it has looked who is at work
    assert listener.action == "pause"
    assert not interrupts
    assert not control.pause_file(tmp_path, "tested").exists()


def test_a_pause_of_a_driver_that_was_killed_is_not_the_next_ones(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """It may have nothing to train, and never look at what was left."""
    home = tmp_path / "home"
    drive(sweep_of())
    control.pause_file(home, "tested").touch()
    time.sleep(0.02)
    with locked(control.lock_of(home, "tested"), what="sweep"):
        assert control.status_of(home, "tested")["state"] == "running"
        time.sleep(0.02)
        control.pause_file(home, "tested").touch()
        assert control.status_of(home, "tested")["state"] == "pausing"


def test_a_stop_of_what_has_ended_is_no_stop(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last trial had ended, and its worker could not say so any more."""
    home, sweep = tmp_path / "home", sweep_of()

    def engine(desk: Desk, stop: threading.Event, **_: Any) -> None:
        while request := desk.take(1):
            desk.started(request, os.getpid())
            result = run_trial(request)
            if request.trial_id == sweep.trials[-1].trial_id:
                lock = control.lock_of(home, "tested")
                write_json(control.request_file(home, "tested"), {"action": "stop", "to": lock.stat().st_mtime_ns})
                assert stop.wait(60)
                return
            desk.ended(request, result)

    monkeypatch.setattr("ragen_lab.sweep.local.run", engine)
    finished, text = drive(sweep, workers=1)
    assert {trial["status"] for trial in finished.result["trials"]} == {"finished", "collapsed"}
    assert "Stopped" not in text
    assert finished.exit_code == 0


def test_nothing_to_end(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of(seeds=1))
    said: list[str] = []
    told = control.ask(home, "tested", "stop", said.append)
    assert told == {"sweep": "tested", "asked": "stop", "was_running": False, "ended": True}
    assert "does not run, so there is nothing to stop" in said[0]
    with pytest.raises(ConfigError, match=r"no sweep named 'teste' here. There are: tested"):
        control.ask(home, "teste", "stop", said.append)


def test_a_driver_that_does_not_answer(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of(seeds=1))
    with (
        locked(control.lock_of(home, "tested")),
        pytest.raises(TrialLocked, match=rf"process {os.getpid()} on .* has not stopped .*`kill {os.getpid()}`"),
    ):
        control.ask(home, "tested", "stop", lambda line: None, patience=0.3)


def test_a_home_in_which_nothing_can_be_asked(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    drive(sweep_of(seeds=1))

    def refuse(file: Path, value: Any) -> None:
        raise PermissionError(13, "Read-only file system", str(file))

    monkeypatch.setattr(control, "write_json", refuse)
    with (
        locked(control.lock_of(home, "tested")),
        pytest.raises(HomeError, match=r"cannot be written(.|\n)*Make .* writable, or end process"),
    ):
        control.ask(home, "tested", "pause", lambda line: None)


def test_the_status_of_a_sweep_at_rest(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of()
    (home / f"fail-{sweep.trials[0].trial_id}").write_text("9")
    drive(sweep)
    status = control.status_of(home, "tested")
    assert (status["state"], status["process"], status["done"]) == ("not running", None, 3)
    assert [trial["status"] for trial in status["trials"]] == ["failed", "collapsed", "finished", "collapsed"]
    assert status["trials"][0]["iteration"] == 2
    assert status["trials"][2]["seconds_left"] == 0
    words = control.describe_status(status)
    assert "tested: not running, 3 of 4 trials done" in words
    assert "made to fail" in words
    page = tmp_path / "tested.yaml"
    assert f"To go on: ragen-lab sweep {page} --home {home} (first run elsewhere, as: ragen-lab again)" in words
    (home / f"fail-{sweep.trials[0].trial_id}").unlink()
    drive(sweep)
    assert control.status_of(home, "tested")["state"] == "done"
    json.dumps(status)


def test_the_command_that_goes_on_is_one_for_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was typed, where that leads to this page and this home; else with both in full."""
    (tmp_path / "here" / "pages").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    page = tmp_path / "here" / "pages" / "a.yaml"
    typed = "ragen-lab sweep pages/a.yaml --set seeds=3"
    record = {"command": typed, "file": str(page)}
    monkeypatch.chdir(tmp_path / "here")
    default = tmp_path / "here" / ".ragen-lab"
    assert control.again(record, default) == typed
    assert control.again({**record, "command": f"{typed} --home=.ragen-lab"}, default) == f"{typed} --home=.ragen-lab"
    other = f"ragen-lab sweep {page} --home {tmp_path / 'h'} (first run elsewhere, as: {typed})"
    assert control.again(record, tmp_path / "h") == other
    assert control.again({**record, "command": f"{typed} --home ../h"}, tmp_path / "h") == f"{typed} --home ../h"
    assert control.again({**record, "command": ""}, default) == f"ragen-lab sweep {page}"
    monkeypatch.chdir(tmp_path / "there")
    assert control.again(record, default).startswith(f"ragen-lab sweep {page} --home {default} (first run elsewhere")


def test_the_time_left_leaves_out_pauses_and_counts_evaluations(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Rows of 2 s, 5 s with an evaluation, and a night in between; 8 asked for and 4 there: 2 x 2 + 2 x 5 = 14."""
    home = tmp_path / "home"
    drive(sweep_of(seeds=1, train__checkpoint_every=4, eval__every=2))
    (run,) = [run for run in from_home(home, "tested") if run.arm == "keep_ratio=1.0"]
    folder = trial_folder(home, run.trial_id)
    stamps, rows = 0.0, []
    for row in read_rows(folder / "metrics.jsonl")[:5]:
        evaluated = row["iteration"] % 2 == 0
        stamps += 36000.0 if row["iteration"] == 3 else 5.0 if evaluated else 2.0
        phases = {"time/rollout_seconds": 2.0, **({"time/eval_seconds": 3.0} if evaluated else {})}
        rows.append({**row, **phases, "timestamp": stamps})
    (folder / "metrics.jsonl").write_text("".join(encode_row(row) + "\n" for row in rows))
    (folder / "DONE.json").unlink()
    (trial,) = [each for each in control.status_of(home, "tested")["trials"] if each["arm"] == "keep_ratio=1.0"]
    assert (trial["iteration"], trial["seconds_left"], trial["seconds_per_iteration"]) == (4, 14.0, 3.5)
    assert trial["seconds_since_last_row"] is None
    with locked(folder / "lock"):  # a process that took it now has not written a row yet
        (trial,) = [each for each in control.status_of(home, "tested")["trials"] if each["arm"] == "keep_ratio=1.0"]
    assert (trial["status"], trial["seconds_since_last_row"]) == ("running", None)


def test_the_status_of_a_sweep_that_runs(write: Callable[..., Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    driver = running(tmp_path, write(), home, "local", rows=8)
    try:
        wait_for(lambda: any(trial["seconds_left"] for trial in control.status_of(home, "tested")["trials"]))
        status = control.status_of(home, "tested")
        assert status["state"] == "running"
        assert status["process"].startswith(f"process {driver.pid} on ")
        workers = {int(line.split()[2]) for line in (home / "calls.log").read_text().splitlines()}
        busy = [trial for trial in status["trials"] if trial["status"] == "running"]
        assert {int(trial["process"].split()[1]) for trial in busy} <= workers
        assert busy
        paces = [trial["seconds_per_iteration"] for trial in busy if trial["seconds_per_iteration"]]
        assert min(paces) >= 0.39, paces  # the fake trainer sleeps for 0.4 s; a busy machine takes longer
        assert paces
        # At most two at a time: the whole cannot take less than half of what is left in iterations.
        left = sum(trial["iterations"] - max(0, trial["iteration"]) for trial in status["trials"] if not trial["done"])
        assert status["seconds_left"] >= 0.4 * left / 2
        words = control.describe_status(status)
        assert f"running by process {driver.pid} on" in words
        assert "last row" in words
    finally:
        driver.kill()
        driver.communicate()
    wait_for(lambda: control.status_of(home, "tested")["state"] == "not running")


def test_words_that_do_not_go_together() -> None:
    names = {"status": None, "stop": None, "pause": None}
    assert control.choice(Path("a.yaml"), names, {}) is None
    assert control.choice(None, {**names, "stop": "tested"}, {"plan": False}) == ("stop", "tested")
    with pytest.raises(ConfigError, match="name a sweep page"):
        control.choice(None, names, {})
    with pytest.raises(ConfigError, match="--plan changes nothing"):
        control.choice(Path("a.yaml"), names, {"plan": True, "rerun": "failed"})
    with pytest.raises(ConfigError) as error:
        control.choice(Path("a.yaml"), {**names, "stop": "x", "status": "y"}, {"plan": True, "local": False})
    assert len(error.value.faults) == 3
    assert "--status and --stop cannot go together" in str(error.value)
    assert "leave out a.yaml" in str(error.value)
    assert "--plan is for running a page" in str(error.value)


# --- computed anew ---


def test_rerun_of_an_arm(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """The old folders are kept under a name that says when, the new ones hold the same numbers, and MLflow shows the
    new attempt once."""
    home, sweep = tmp_path / "home", sweep_of(mlflow=True)
    first, _ = drive(sweep)
    before = rows_of(home)
    again, text = drive(sweep, rerun="keep_ratio=1.0")
    assert "2 trials will be computed anew, from the start" in text
    assert text.count("the same numbers as the earlier attempt, over 9 rows") == 2
    assert rows_of(home) == before
    mine = {trial.trial_id for trial in sweep.trials if trial.arm == "keep_ratio=1.0"}
    assert {trial for trial, _ in calls(home) if calls(home)[trial, 0] == 2} == mine
    aside = sorted((home / "set-aside").iterdir())
    assert {folder.name.split(".")[0] for folder in aside} == mine
    assert all(folder.name.split(".")[1].startswith("20") for folder in aside)
    assert all((folder / "metrics.jsonl").is_file() and list_checkpoints(folder) for folder in aside)
    assert {t["reused"] for t in again.result["trials"] if t["trial_id"] not in mine} == {True}
    ids = {t["trial_id"]: t["mlflow_run_id"] for t in first.result["trials"]}
    changed = {t["trial_id"] for t in again.result["trials"] if t["mlflow_run_id"] != ids[t["trial_id"]]}
    assert changed == mine
    mirrored = from_mlflow(default_uri(home), "tested")
    assert {run.trial_id: numbers(run.rows) for run in mirrored} == before
    stamps = {run.trial_id: run.rows[0]["timestamp"] for run in from_home(home, "tested")}
    assert {run.trial_id: run.rows[0]["timestamp"] for run in mirrored} == stamps  # the new attempt's


def test_rerun_of_what_failed_begins_at_the_start(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(seeds=1)
    bad = sweep.trials[0].trial_id
    (home / f"fail-{bad}").write_text("9")
    drive(sweep)
    (home / f"fail-{bad}").unlink()
    finished, _ = drive(sweep, rerun="failed")
    assert finished.exit_code == 0
    assert [calls(home)[bad, i] for i in range(4)] == [2, 2, 2, 1]
    assert {count for (trial, _), count in calls(home).items() if trial != bad} == {1}
    with pytest.raises(ConfigError, match=r"no trial of tested has failed. Leave out --rerun"):
        drive(sweep, rerun="failed")


def test_rerun_of_what_collapsed(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    sweep = sweep_of()
    drive(sweep)
    finished, text = drive(sweep, rerun="collapsed")
    assert [trial["reused"] for trial in finished.result["trials"]] == [True, False] * 2
    assert text.count("the same numbers as the earlier attempt") == 2
    other = sweep_of(name="other")
    drive(other)
    assert "They also belong to tested" in drive(other, rerun="collapsed")[1]


def test_a_rerun_that_differs_is_told(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.sweep import fake

    sweep = sweep_of(seeds=1)
    drive(sweep)
    train = fake.train

    def changed(cfg: Any, tracker: Any, home: Path, *rest: Any) -> Any:
        log = tracker.log
        tracker.log = lambda i, metrics: log(i, {**metrics, "train/noise": 0.5} if i == 3 else metrics)
        return train(cfg, tracker, home, *rest)

    monkeypatch.setattr(fake, "train", changed)
    _, text = drive(sweep, rerun="keep_ratio=1.0")
    assert "differs from the earlier attempt, at iteration 3 in train/noise (0." in text
    assert "and 0.5)" in text


def test_rerun_of_nothing_there_and_of_unknown_arms(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(ConfigError, match=r"no arm 'collapse'. Did you mean 'collapsed'\?"):
        drive(sweep_of(), rerun="collapse")
    _, text = drive(sweep_of(), rerun="keep_ratio=1.0")
    assert "computed for the first time" in text
    assert not (home / "set-aside").exists()


def test_rerun_leaves_trials_that_others_work_on(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home, sweep = tmp_path / "home", sweep_of()
    drive(sweep)
    with (
        locked(trial_folder(home, sweep.trials[2].trial_id) / "lock"),
        pytest.raises(TrialLocked, match="this trial is being worked on"),
    ):
        drive(sweep, rerun="keep_ratio=1.0")
    assert not (home / "set-aside").exists()  # not half of them either
    with pytest.raises(ConfigError, match=r"resources\.cpus"):
        drive(sweep_of(resources={"cpus": 4096}), rerun="keep_ratio=1.0")
    assert not (home / "set-aside").exists()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"resources": {"memory_gb": 100000.0}}, r"resources\.memory_gb"),
        ({"resources": {"gpus": 4096}}, r"resources\.gpus"),
        ({"accept": {"warm_start": "known"}}, r"accept\.warm_start"),
    ],
)
def test_every_refusal_of_a_rerun_comes_before_anything_is_moved(
    write: Callable[..., Path], sweep_of: Make, drive: Drive, tmp_path: Path, fault: dict[str, Any], words: str
) -> None:
    home = tmp_path / "home"
    drive(sweep_of())
    refused = load_sweep(write(PAGE + yaml.safe_dump(fault)), {})
    with pytest.raises(ConfigError, match=words):
        drive(refused, rerun="keep_ratio=1.0")
    assert not (home / "set-aside").exists()


def test_a_rerun_of_another_page_of_that_name_moves_nothing(
    write: Callable[..., Path], sweep_of: Make, drive: Drive, tmp_path: Path
) -> None:
    drive(sweep_of())
    page = PAGE.replace("keep_ratio: [1.0, 0.25]", "keep_ratio: [1.0, 0.5]") + "name: tested\n"
    with pytest.raises(ConfigError, match="is the sweep of another page in this home"):
        drive(load_sweep(write(page, name="another"), {}), rerun="keep_ratio=1.0")
    assert not (tmp_path / "home" / "set-aside").exists()


def test_a_rerun_that_cannot_move_all_moves_nothing(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, sweep = tmp_path / "home", sweep_of()
    drive(sweep)
    before, rename, last = rows_of(home), os.rename, sweep.trials[2].trial_id

    def failing(source: Path, target: Path) -> None:
        if Path(source).name == last:
            raise PermissionError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(rerun.os, "rename", failing)
    with pytest.raises(HomeError, match=r"cannot be moved to(.|\n)*nothing was changed"):
        drive(sweep, rerun="keep_ratio=1.0")
    assert rows_of(home) == before
    assert not list((home / "set-aside").iterdir())


def test_a_rerun_says_what_it_moved_before_anything_can_fail(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, text = sweep_of(), io.StringIO()
    drive(sweep)

    def full(*_: Any, **__: Any) -> None:
        raise HomeError("the disk is full")

    monkeypatch.setattr(Ledger, "record_sweep", full)
    chosen = Options(tmp_path / "home", "local", 0, trainer=FAKE, report=False, rerun="keep_ratio=1.0")
    with pytest.raises(HomeError):
        run_sweep(sweep, chosen, Console(file=text, width=200))
    assert "The old results are kept in" in text.getvalue()


@pytest.mark.parametrize("moment", ["the first move", "the second move", "the plan"])
def test_a_rerun_that_is_interrupted_says_what_it_moved(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Of results that are no longer in their place nobody would know otherwise."""
    sweep, text, moves = sweep_of(), io.StringIO(), iter(["the first move", "the second move"])
    rename = os.rename
    drive(sweep)

    def interrupt(now: str) -> None:
        if now == moment:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)

    def moving(source: Path, target: Path) -> None:
        rename(source, target)
        interrupt(next(moves))

    def planning(*given: Any) -> Any:
        interrupt("the plan")
        return make_plan(*given)

    monkeypatch.setattr(rerun.os, "rename", moving)
    monkeypatch.setattr("ragen_lab.sweep.drive.make_plan", planning)
    chosen = Options(tmp_path / "home", "local", 0, trainer=FAKE, report=False, rerun="keep_ratio=1.0")
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, chosen, Console(file=text, width=200))
    assert "The old results are kept in" in text.getvalue()
    assert len(list((tmp_path / "home" / "set-aside").iterdir())) == 2


@pytest.mark.parametrize("late", [False, True])
def test_a_rerun_that_is_interrupted_twice_as_it_moves_moves_nothing(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """What comes during a move is raised when that is over."""
    home, sweep, rename, moves = tmp_path / "home", sweep_of(), os.rename, iter([0, 2])
    drive(sweep)
    before = rows_of(home)

    def interrupted(source: Path, target: Path) -> None:
        if late:
            rename(source, target)
        for _ in range(next(moves, 0)):
            os.kill(os.getpid(), signal.SIGTERM)
        if not late:
            rename(source, target)

    monkeypatch.setattr(rerun.os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drive(sweep, rerun="keep_ratio=1.0")
    assert rows_of(home) == before


PRUNING = """
base: base.yaml
axes:
  filter.keep_ratio: [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
seeds: 1
"""
RULES = {
    "asha": "scheduler: {kind: asha, first: 2, factor: 2}\n",
    "median": "scheduler: {kind: median, first: 2, least: 2}\n",
}


@pytest.mark.parametrize("kind", RULES)
def test_the_status_of_a_sweep_that_has_pruned(sweep_of: Make, drive: Drive, tmp_path: Path, kind: str) -> None:
    """What the scheduler has ended is done, as in the report."""
    home = tmp_path / "home"
    drive(sweep_of(PRUNING + RULES[kind]))
    status = control.status_of(home, "tested")
    expected = [(run.trial_id, run.status, run.stop_reason) for run in from_home(home, "tested")]
    assert "pruned" in {state for _, state, _ in expected}
    assert [(t["trial_id"], t["status"], t["reason"]) for t in status["trials"]] == expected
    assert (status["state"], status["done"], status["seconds_left"]) == ("done", 6, 0)
    words = control.describe_status(status)
    assert "tested: done, 6 of 6 trials done." in words
    assert "To go on" not in words
    assert next(reason for _, state, reason in expected if state == "pruned" and reason) in words


def test_rerun_of_what_failed_leaves_what_was_pruned(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Another sweep has taken the same trial further and failed there: for this sweep it was ended before that."""
    home, sweep = tmp_path / "home", sweep_of(PRUNING + RULES["asha"])
    drive(sweep)
    pruned = [run.trial_id for run in from_home(home, "tested") if run.status == "pruned" and len(run.rows) < 4]
    for trial in pruned:
        (home / f"fail-{trial}").write_text("9")
    drive(sweep_of(PRUNING, name="whole"))
    assert {run.status for run in from_home(home, "whole")} == {"finished", "failed"}
    with pytest.raises(ConfigError, match="no trial of tested has failed"):
        drive(sweep, rerun="failed")


def test_a_lock_that_moved_away_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    """A process that waits for a trial which is set aside meanwhile must not work beside the next holder."""
    lock = tmp_path / "trial" / "lock"
    entered = threading.Event()

    def second() -> None:
        with locked(lock, wait=30):
            entered.set()
            time.sleep(1)

    with locked(lock):
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.3)
        (tmp_path / "trial").rename(tmp_path / "aside")
    assert entered.wait(10)
    with pytest.raises(TrialLocked), locked(lock):
        pass
    waiting.join()


def test_attempts_of_a_paused_trial(sweep_of: Make, drive: Drive, tmp_path: Path, write: Callable[..., Path]) -> None:
    home, file = tmp_path / "home", write()
    driver = running(tmp_path, file, home, "local", rows=3)
    control.ask(home, "tested", "pause", lambda line: None)
    driver.communicate(timeout=30)
    ledger = Ledger(home)
    statuses = [a["status"] for trial in load_sweep(file).trials for a in ledger.attempts(trial.trial_id)]
    ledger.close()
    assert "paused" in statuses
    assert "failed" not in statuses
