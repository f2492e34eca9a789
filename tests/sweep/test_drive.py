"""The driver under the local engine: exactly once, whatever is killed; one driver per sweep; plain words."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.errors import ConfigError, HomeError, TrialLocked
from ragen_lab.locks import locked
from ragen_lab.mirror import MLflowMirror, default_uri
from ragen_lab.runs import from_home, from_mlflow
from ragen_lab.sweep import local
from ragen_lab.sweep.desk import Desk, Event, InOrder
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.ledger import LEDGER_VERSION, Ledger
from ragen_lab.sweep.mirroring import sync
from ragen_lab.sweep.spec import Sweep, load_sweep, one_run
from tests.sweep.conftest import calls, numbers, start_driver

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


def rows_of(home: Path, sweep: str = "tested") -> dict[str, Any]:
    return {run.trial_id: numbers(run.rows) for run in from_home(home, sweep)}


def test_the_result_is_the_contract(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    sweep = sweep_of()
    finished, text = drive(sweep)
    assert finished.exit_code == 0
    assert list(finished.result) == ["sweep", "trials", "report"]
    assert [list(trial) for trial in finished.result["trials"]] == [
        [
            "trial_id", "mlflow_run_id", "arm", "seed", "status", "reused", "stop_iteration", "stop_reason",
            "final_success",
        ]
    ] * 4  # fmt: skip
    by_arm = {(trial["arm"], trial["seed"]): trial for trial in finished.result["trials"]}
    good, bad = by_arm["keep_ratio=1.0", 0], by_arm["keep_ratio=0.25", 0]
    assert (good["status"], good["stop_iteration"], good["reused"]) == ("finished", None, False)
    assert good["final_success"] > 0.25
    assert (bad["status"], bad["final_success"]) == ("collapsed", 0.0)
    assert bad["stop_iteration"] < 8
    assert bad["stop_reason"]
    assert "4 of 4 trials done (2 stopped as collapsed)" in text
    again, _ = drive(sweep)
    assert all(trial["reused"] for trial in again.result["trials"])
    assert set(calls(tmp_path / "home").values()) == {1}


def test_sweeps_share_trials_and_grow(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Another sweep with some of the same runs, more seeds and more iterations computes only what is new."""
    home = tmp_path / "home"
    drive(sweep_of())
    before = calls(home)
    other, _ = drive(sweep_of(name="other", seeds=3, train__iterations=12))
    added = calls(home) - before
    assert set(calls(home).values()) == {1}
    reused = {(trial["arm"], trial["seed"]): trial["reused"] for trial in other.result["trials"]}
    assert not reused["keep_ratio=1.0", 0]  # four iterations more
    assert sum(added.values()) == 2 * 4 + 13 + 8  # two finished go on; the new seed to its end, and to its collapse
    assert len(from_home(home, "tested").runs) == 4
    assert [len(run.rows) for run in from_home(home, "tested") if run.status == "finished"] == [9, 9]
    assert [len(run.rows) for run in from_home(home, "other") if run.status == "finished"] == [13, 13, 13]


def test_a_page_that_changes_takes_its_trials_along(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    drive(sweep_of())
    drive(sweep_of(**{"axes.filter.keep_ratio": [1.0, 0.5]}))
    arms = [run.arm for run in from_home(tmp_path / "home", "tested")]
    assert arms == ["keep_ratio=1.0", "keep_ratio=0.5"] * 2


def test_failed_trials_are_retried_twice_then_reported(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of()
    bad, twice = sweep.trials[0].trial_id, sweep.trials[2].trial_id
    (home / f"fail-{bad}").write_text("3")
    (home / f"fail-{twice}").write_text("2")
    finished, text = drive(sweep)
    assert finished.exit_code == 1
    assert [trial["status"] for trial in finished.result["trials"]] == ["failed", "collapsed", "finished", "collapsed"]
    assert "made to fail" in finished.result["trials"][0]["stop_reason"]
    assert "Trying again from its last checkpoint" in text
    assert "log.txt" in text
    ledger = Ledger(home)
    assert [attempt["status"] for attempt in ledger.attempts(bad)] == ["failed"] * 3
    assert [attempt["status"] for attempt in ledger.attempts(twice)] == ["failed", "failed", "finished"]
    ledger.close()
    again, _ = drive(sweep)  # the cause is gone
    assert again.exit_code == 0
    assert set(calls(home).values()) == {1}


def test_the_pool_survives_a_killed_worker(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """The trial of a killed worker goes on from its checkpoint in a new process; nothing else is touched."""
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of()
    (home / f"die-{sweep.trials[0].trial_id}").write_text("")
    finished, text = drive(sweep, workers=2)
    assert finished.exit_code == 0
    assert "was killed by signal 9" in text
    assert set(calls(home).values()) == {1}  # checkpoint at 2, killed before 3
    drive(sweep, tmp_path / "plain")
    assert rows_of(home) == rows_of(tmp_path / "plain")  # the pool equals this process


def test_pitfall_20_a_killed_driver_resumes_exactly(
    write: Callable[..., Path], sweep_of: Make, drive: Drive, tmp_path: Path
) -> None:
    """kill -9 of the driver: its workers go too; the same command repeats no finished trial, goes on from the
    checkpoints, and ends with the numbers of an undisturbed sweep (pitfall 20)."""
    home, file = tmp_path / "home", write()
    driver = start_driver(tmp_path, file, home, sleep=0.15)
    wait_for(lambda: sum(calls(home).values()) >= 14)
    driver.kill()
    driver.communicate()
    done = set(calls(home))
    workers = {int(line.split()[2]) for line in (home / "calls.log").read_text().splitlines()}
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") and _running(pid) for pid in workers), 10)
    finished_before = {run.trial_id for run in from_home(home, "tested") if run.status in ("finished", "collapsed")}
    again = start_driver(tmp_path, file, home)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    counts = calls(home)
    assert all(counts[trial, i] == 1 for trial, i in counts if trial in finished_before)
    assert max(counts.values()) <= 2
    assert sum(count - 1 for count in counts.values()) <= 4  # at most two rows since a checkpoint, two trials
    assert done <= set(counts)
    drive(sweep_of(), tmp_path / "plain")
    assert rows_of(home) == rows_of(tmp_path / "plain")
    ledger = Ledger(home)
    lost = [a for trial in load_sweep(file).trials for a in ledger.attempts(trial.trial_id) if a["status"] == "lost"]
    ledger.close()
    assert lost


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_resumable_sweep(write: Callable[..., Path], tmp_path: Path, number: int) -> None:
    home, file = tmp_path / "home", write()
    driver = start_driver(tmp_path, file, home, sleep=0.15)
    wait_for(lambda: sum(calls(home).values()) >= 5)
    driver.send_signal(number)
    _, errors = driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert "Interrupted" in errors
    assert "ragen-lab again" in errors
    assert "Traceback" not in errors
    statuses = {run.status for run in from_home(home, "tested")}
    assert statuses <= {"stopped", "pending", "finished", "collapsed"}
    again = start_driver(tmp_path, file, home)
    assert again.wait(60) == 0
    again.communicate()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("flushed", [0, 1])
def test_an_interrupt_after_the_training(
    sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, flushed: int
) -> None:
    """Who cannot wait for MLflow need not: told in plain words, and the next call writes what is missing. Also where
    an earlier flush went well: of a thread that it was joining, Python 3.11 then says that it has ended."""
    flush, join, end, done = MLflowMirror.flush, threading.Thread.join, threading.Event(), threading.Semaphore(0)
    calls = iter(range(1000))

    def slow(*args: Any, **more: Any) -> Any:
        if next(calls) < flushed:
            done.release()
            return {}  # nothing to do yet
        end.wait(30)
        return flush(*args, **more)

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "mirror-MLflow":
            for _ in range(flushed):
                assert done.acquire(timeout=60)
            threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
        join(thread, timeout)

    monkeypatch.setattr(MLflowMirror, "flush", slow)
    monkeypatch.setattr(threading.Thread, "join", joined)
    finished, text = drive(sweep_of(mlflow=True, seeds=1))
    assert finished.exit_code == 130
    assert "lacks the newest results" in text
    assert "Interrupted" in text
    monkeypatch.undo()
    end.set()
    again, _ = drive(sweep_of(mlflow=True, seeds=1))
    assert again.exit_code == 0
    assert all(trial["reused"] and trial["mlflow_run_id"] for trial in again.result["trials"])


def test_a_budget_ends_a_sweep_without_a_fault(sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLEEP", "0.3")
    finished, text = drive(sweep_of(budget__minutes=0.03), workers=1)
    assert finished.exit_code == 0
    assert "budget of 0.03 minutes is over" in text
    assert {"stopped", "pending"} & {trial["status"] for trial in finished.result["trials"]}
    monkeypatch.setenv("FAKE_SLEEP", "0")
    again, _ = drive(sweep_of(), workers=1)
    assert {trial["status"] for trial in again.result["trials"]} == {"finished", "collapsed"}


def test_one_driver_per_sweep(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    sweep = sweep_of()
    with (
        locked(tmp_path / "home" / "locks" / "tested.lock"),
        pytest.raises(TrialLocked, match="this sweep is being worked on by process"),
    ):
        drive(sweep)


def test_two_first_starts_at_once(write: Callable[..., Path], tmp_path: Path) -> None:
    """Two sweeps in a new home share the ledger and one trial: each is computed once."""
    home = tmp_path / "home"
    home.mkdir()
    write("base: base.yaml\naxes: {filter.keep_ratio: [1.0, 0.5]}\n", name="one")
    write("base: base.yaml\naxes: {filter.keep_ratio: [1.0, 0.75]}\n", name="two")
    drivers = [start_driver(tmp_path, tmp_path / f"{name}.yaml", home, sleep=0.05) for name in ("one", "two")]
    for driver in drivers:
        _, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
    assert set(calls(home).values()) == {1}
    assert len({trial for trial, _ in calls(home)}) == 3


def test_a_ledger_of_a_newer_version(tmp_path: Path) -> None:
    Ledger(tmp_path).close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        database.execute(f"PRAGMA user_version = {LEDGER_VERSION + 1}")
    database.close()
    with pytest.raises(HomeError, match="newer ragen-lab"):
        Ledger(tmp_path)


def test_a_home_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match="--home"):
        Ledger(tmp_path / "file" / "home")


def test_mlflow_that_is_away_at_the_start(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Training goes on, one warning says how to catch up, and `sync` does."""
    sweep = sweep_of(mlflow=True, **{"track.mlflow_uri": "http://127.0.0.1:9"})
    finished, text = drive(sweep)
    assert finished.exit_code == 0
    assert text.count("cannot be used") == 1
    assert "ragen-lab sync tested" in text
    assert {trial["mlflow_run_id"] for trial in finished.result["trials"]} == {None}
    local_again, text = drive(sweep_of(mlflow=True))  # the same trials, now into the home's own database
    assert "cannot be used" not in text
    assert all(trial["reused"] and trial["mlflow_run_id"] for trial in local_again.result["trials"])


def test_the_mirror_is_rebuilt_from_the_folders(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    sweep = sweep_of(mlflow=True)
    first, _ = drive(sweep)
    again, _ = drive(sweep)
    ids = [[trial["mlflow_run_id"] for trial in each.result["trials"]] for each in (first, again)]
    assert ids[0] == ids[1]
    count, (uri,) = sync(home, "tested")
    assert (count, uri) == (4, default_uri(home.absolute()))
    rebuilt = from_mlflow(uri, "tested")
    assert {run.trial_id: numbers(run.rows) for run in rebuilt} == rows_of(home)
    assert not {run.mlflow_run_id for run in rebuilt} & set(ids[0])
    assert [run.mlflow_run_id for run in from_home(home, "tested")] == [run.mlflow_run_id for run in rebuilt]


def test_a_deleted_database_is_written_anew(write: Callable[..., Path], tmp_path: Path) -> None:
    home, file = tmp_path / "home", write()
    for _ in range(2):
        driver = start_driver(tmp_path, file, home, mlflow="true")
        _, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
        with sqlite3.connect(home / "mlflow.db") as database:
            assert database.execute("SELECT count(*) FROM runs").fetchone()[0] == 5  # four trials and the sweep
        database.close()
        for old in home.glob("mlflow.db*"):
            old.unlink()
    assert set(calls(home).values()) == {1}


def test_gpus_are_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "cores", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert local.slots(1, 0) == [""] * 8
    assert local.slots(1, 0, 3) == [""] * 3
    assert local.slots(2, 0) == [""] * 4
    assert local.slots(1, 1) == ["0", "1", "2", "3"]
    assert local.slots(1, 2) == ["0,1", "2,3"]
    assert local.slots(2, 0.5) == ["0", "0", "1", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert local.slots(1, 2) == ["0,1"]  # the third device alone is too little for another trial
    assert local.slots(1, 3) == ["0,1,2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(local, "memory", lambda: 20.0)
    assert local.slots(1, 0, memory_gb=8) == local.slots(1, 0, 5, memory_gb=8) == ["", ""]
    assert local.slots(1, 1, memory_gb=8) == ["0", "1"]
    with pytest.raises(ValueError, match=r"resources.memory_gb: 21 per trial, but this machine has 20"):
        local.slots(1, 0, memory_gb=21)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match=r"resources.gpus: 1 per trial, but 0 are visible"):
        local.slots(1, 1)
    with pytest.raises(ValueError, match=r"resources.cpus: 9 per trial, but this machine has 8"):
        local.slots(9, 0)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_resources_that_this_machine_has_not(sweep_of: Make, drive: Drive, tmp_path: Path, engine: str) -> None:
    """Ray would wait for them for ever, without a word."""
    with pytest.raises(ConfigError, match=r"resources.cpus: 4096 per trial(.|\n)*resources.gpus: 64 per trial"):
        drive(sweep_of(resources={"cpus": 4096, "gpus": 64}), engine=engine, workers=1)
    with pytest.raises(ConfigError, match="There are: none"):
        from_home(tmp_path / "home", "tested")  # nothing was recorded


# --- the name of a sweep ---


def test_growth_is_silent_and_what_leaves_is_told(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of(seeds=1))
    _, text = drive(sweep_of(seeds=2))
    assert "left this sweep" not in text
    _, text = drive(sweep_of(seeds=1))
    assert "2 trials left this sweep" in text
    assert "the results stay in the home" in text
    assert [run.seed for run in from_home(home, "tested")] == [0, 0]
    again, text = drive(sweep_of(seeds=2))
    assert "left this sweep" not in text
    assert all(trial["reused"] for trial in again.result["trials"])
    assert [run.seed for run in from_home(home, "tested")] == [0, 0, 1, 1]


def test_runs_of_trials_that_left_stay_in_mlflow(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    import mlflow

    first, _ = drive(sweep_of(mlflow=True))
    drive(sweep_of(mlflow=True, seeds=1))
    client = mlflow.MlflowClient(default_uri(tmp_path / "home"))
    for trial in first.result["trials"]:
        run = client.get_run(trial["mlflow_run_id"])
        assert run.info.lifecycle_stage == "active"
        assert run.data.tags.get("left_sweep", "") == ("true" if trial["seed"] == 1 else "")
    assert len(from_mlflow(default_uri(tmp_path / "home"), "tested")) == 2
    back, _ = drive(sweep_of(mlflow=True))
    assert [t["mlflow_run_id"] for t in back.result["trials"]] == [t["mlflow_run_id"] for t in first.result["trials"]]
    assert len(from_mlflow(default_uri(tmp_path / "home"), "tested")) == 4


def test_another_page_may_not_take_a_name(write: Callable[..., Path], drive: Drive, tmp_path: Path) -> None:
    off = {"track.mlflow": False}
    first = write()
    drive(load_sweep(first, off))
    other = write("name: tested\nbase: base.yaml\naxes: {filter.keep_ratio: [0.5]}\n", name="other")
    with pytest.raises(ConfigError, match=rf"of another page in this home, {first}, and 4 .*--set name="):
        drive(load_sweep(other, off))
    assert len(from_home(tmp_path / "home", "tested")) == 4
    drive(load_sweep(other, {**off, "name": "mine"}))
    larger = write(
        "name: tested\nbase: base.yaml\naxes: {filter.keep_ratio: [1.0, 0.25, 0.5]}\nseeds: 2", name="larger"
    )
    drive(load_sweep(larger, off))  # it has all of the other's trials
    assert len(from_home(tmp_path / "home", "tested")) == 6
    larger.unlink()
    _, text = drive(load_sweep(other, off))  # the page has been moved: no one else claims the name
    assert "5 trials left this sweep" in text  # of six; the page has 0.5 with seed 0 as well


def test_runs_of_a_page_add_up(write: Callable[..., Path], drive: Drive, tmp_path: Path) -> None:
    """`run X --set seed=1` after seed 0 is a second replicate; what makes it another run names its arm."""
    write()
    home, page, off = tmp_path / "home", tmp_path / "base.yaml", {"track.mlflow": False}

    def there() -> list[tuple[str, int]]:
        return [(run.arm, run.seed) for run in from_home(home, "base")]

    for changes in ({"seed": 1}, {"seed": 0}, {"optim.lr": 0.5}, {"seed": 1, "train.iterations": 10}):
        finished, text = drive(one_run(page, {**off, **changes}))
        assert len(finished.result["trials"]) == 1
        assert "left this sweep" not in text
    assert there() == [("run", 1), ("run", 0), ("lr=0.5", 0)]
    page.write_text(page.read_text() + "optim: {lr: 0.25}\n")
    _, text = drive(one_run(page, off))  # the page's own run is another one now
    assert "2 trials left this sweep" in text
    assert there() == [("lr=0.5", 0), ("run", 0)]


# --- failures that are the user's ---


@pytest.mark.parametrize("workers", [0, 1])
def test_config_errors_inside_trials_are_the_users_input(
    sweep_of: Make, drive: Drive, tmp_path: Path, workers: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(seeds=1)
    wrong = sweep.trials[0].trial_id
    (home / f"wrong-{wrong}").write_text("")
    finished, text = drive(sweep, workers=workers)
    assert finished.exit_code == 2
    assert "policy.model: no such model" in text
    assert "mend the page" in text
    ledger = Ledger(home)
    assert len(ledger.attempts(wrong)) == 1
    ledger.close()
    (home / f"wrong-{wrong}").unlink()
    other = sweep_of(seeds=1, optim__lr=0.5)
    (home / f"wrong-{other.trials[0].trial_id}").write_text("")
    (home / f"fail-{other.trials[1].trial_id}").write_text("9")
    assert drive(other, workers=workers)[0].exit_code == 1  # not all of them are


def test_an_mlflow_address_that_can_never_be_one(sweep_of: Make, drive: Drive) -> None:
    with pytest.raises(ConfigError, match=r"track.mlflow_uri: 'http:/nope' has no host name"):
        drive(sweep_of(mlflow=True, **{"track.mlflow_uri": "http:/nope"}))


# --- homes that ail ---


def test_a_damaged_ledger(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of())
    for file in home.glob("ledger.sqlite*"):
        file.unlink()
    (home / "ledger.sqlite").write_text("garbage " * 1000)
    for call in (lambda: Ledger(home), lambda: from_home(home, "tested"), lambda: sync(home, "tested")):
        with pytest.raises(HomeError, match=r"is damaged: (.|\n)*move this file"):
            call()
    (home / "ledger.sqlite").unlink()  # the advice is good
    again, _ = drive(sweep_of())
    assert all(trial["reused"] for trial in again.result["trials"])


@pytest.mark.parametrize("name", ["trials", "locks"])
def test_a_file_in_the_place_of_a_folder(sweep_of: Make, drive: Drive, tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / name).write_text("")
    with pytest.raises(HomeError, match=rf"{name}(.|\n)*--home"):
        drive(sweep_of())


def test_a_ledger_of_version_1_is_brought_up(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of())
    with sqlite3.connect(home / "ledger.sqlite") as database:
        database.executescript(
            "DROP VIEW runs; DROP TABLE proposals; ALTER TABLE sweep_trials DROP COLUMN left_at;"
            "ALTER TABLE sweep_trials DROP COLUMN until; ALTER TABLE sweep_trials DROP COLUMN pruned_at;"
            "ALTER TABLE sweep_trials DROP COLUMN pruned_why; ALTER TABLE sweeps DROP COLUMN search;"
            "PRAGMA user_version = 1;"
            "CREATE VIEW runs AS SELECT t.sweep, t.position, t.trial_id, trials.config_id, t.arm, t.seed, t.iterations,"
            " t.on_collapse, t.config, t.mlflow_run_id FROM sweep_trials AS t"
            " JOIN trials ON trials.trial_id = t.trial_id;"
        )
    database.close()
    assert len(from_home(home, "tested")) == 4  # read as it is
    drive(sweep_of(seeds=1))
    assert len(from_home(home, "tested")) == 2


def test_a_stop_is_heeded_between_trials(sweep_of: Make) -> None:
    stop = threading.Event()
    stop.set()
    events: list[Event] = []
    desk = Desk(InOrder(sweep_of().trials), lambda job: pytest.fail("nothing may be asked for"), events.append)
    local.run(desk, stop, workers=0)
    assert events == []
