"""The Ray engine: the same numbers as the local one, kept workers, retries, a quiet terminal."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private.node import Node

from ragen_lab.errors import ConfigError
from ragen_lab.runs import from_home
from ragen_lab.sweep import tune
from ragen_lab.sweep.desk import Desk, InOrder
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.interrupts import terminable
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.spec import Sweep
from ragen_lab.sweep.worker import TrialRequest, TrialResult
from ragen_lab.track import trial_folder, write_done
from tests.sweep.conftest import FAKE, calls, numbers, start_driver

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]


def test_pitfall_19_ray_equals_local(
    sweep_of: Make, drive: Drive, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Pitfall 19: bit-equal under Ray and in this process, with one worker killed and one trial failing on the
    way; every iteration once; nothing of Ray's on the terminal, nothing left in the temporary folder."""
    home = tmp_path / "ray"
    home.mkdir()
    sweep = sweep_of(seeds=3)
    (home / f"die-{sweep.trials[0].trial_id}").write_text("")
    (home / f"fail-{sweep.trials[1].trial_id}").write_text("9")
    (home / f"wrong-{sweep.trials[2].trial_id}").write_text("")
    finished, text = drive(sweep, home, engine="ray")
    assert finished.exit_code == 1
    statuses = {trial["trial_id"]: trial["status"] for trial in finished.result["trials"]}
    assert statuses.pop(sweep.trials[1].trial_id) == "failed"
    assert statuses.pop(sweep.trials[2].trial_id) == "failed"
    assert set(statuses.values()) == {"finished", "collapsed"}
    ledger = Ledger(home)
    attempts = [len(ledger.attempts(sweep.trials[i].trial_id)) for i in range(4)]
    ledger.close()
    assert attempts == [2, 3, 1, 1]  # killed once, failing each time, a ConfigError, undisturbed
    assert "made to fail" in text
    assert "Ray worker process" in text
    assert set(calls(home).values()) == {1}
    drive(sweep, tmp_path / "local")
    local = {run.trial_id: numbers(run.rows) for run in from_home(tmp_path / "local", "tested")}
    for run in from_home(home, "tested"):
        if run.status != "failed":
            assert numbers(run.rows) == local[run.trial_id]
    captured = capfd.readouterr()
    assert captured.err == ""
    assert "ray" not in captured.out.lower()
    assert not list(Path(tempfile.gettempdir()).glob(f"ragen-ray-{__import__('os').getpid()}-*"))


def test_a_cluster_that_lacks_what_a_trial_asks_for(sweep_of: Make, tmp_path: Path) -> None:
    """A trial runs on one machine: two halves are not a whole. A dead machine is none."""
    small, large = {"CPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}
    nodes = [{"Alive": True, "Resources": small}, {"Alive": True, "Resources": large}]
    assert tune.lacking(nodes, 4, 0) == tune.lacking(nodes, 2, 1) == tune.lacking(nodes, 1, 0.5) == []
    (fault,) = tune.lacking(nodes, 4, 1)
    assert "4 CPUs and 1 GPUs per trial" in fault
    assert "4 CPUs and 0 GPUs; 2 CPUs and 1 GPUs" in fault
    roomy = [{"Alive": True, "Resources": {"CPU": 8.0, "memory": 16e9}}]
    assert tune.places(roomy, 1, 0) == 8
    assert tune.places(roomy, 1, 0, 5.0) == 3
    (fault,) = tune.lacking(roomy, 1, 0, 17.0)
    assert "17 GB per trial" in fault
    assert "16 GB)" in fault
    assert tune.lacking([{"Alive": False, "Resources": large}], 1, 0)


def test_ray_itself_is_asked(sweep_of: Make, tmp_path: Path) -> None:
    trial = sweep_of().trials[0]
    request = TrialRequest(trial.trial_id, trial.arm, trial.seed, trial.cfg, str(tmp_path), FAKE)
    with pytest.raises(ConfigError, match="none has as much"):
        tune.run(Desk(InOrder([trial]), lambda job: request, lambda event: None), threading.Event(), cpus=4096)


@pytest.mark.parametrize("begun", [True, False])
def test_an_attempt_that_was_killed_early_has_not_failed_as_the_one_before(
    sweep_of: Make, tmp_path: Path, begun: bool
) -> None:
    """What DONE.json said before it is no word of this attempt; what it says since is."""
    trial, told = sweep_of().trials[0], []
    request = TrialRequest(trial.trial_id, trial.arm, trial.seed, trial.cfg, str(tmp_path), FAKE)
    folder = trial_folder(tmp_path, trial.trial_id)
    folder.mkdir(parents=True)
    write_done(folder, "failed", 5, error="ValueError: of yesterday")
    seen = SimpleNamespace(
        started=lambda request: None, ended=lambda request, result: told.append(result), check=lambda: None
    )
    listener = tune._Listener(seen, threading.Event())  # type: ignore[arg-type]
    of_ray = SimpleNamespace(config={"request": request}, pickled_error_file=None)
    if begun:
        listener.on_trial_start(1, [], of_ray)
    listener.on_trial_error(1, [], of_ray)
    assert "the Ray worker process failed" in told[0].error
    assert (told[0].iteration, told[0].cause) == (-1, "killed")
    listener.on_trial_start(2, [], of_ray)
    write_done(folder, "failed", 6, error="ValueError: of today")
    listener.on_trial_error(2, [], of_ray)
    assert (told[1].error, told[1].iteration) == ("ValueError: of today", 6)


def test_an_interrupt_under_ray(write: Callable[..., Path], tmp_path: Path) -> None:
    """Ctrl-C ends a Ray sweep at once, and the local engine goes on from what Ray's workers wrote."""
    home, file = tmp_path / "home", write()
    driver = start_driver(tmp_path, file, home, "ray", sleep=0.3)
    deadline = time.monotonic() + 90
    while sum(calls(home).values()) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    driver.send_signal(2)
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 130, errors
    assert "Interrupted" in errors
    assert "Traceback" not in errors
    again = start_driver(tmp_path, file, home)
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors


@pytest.mark.parametrize("after", [0.5, 1.5, 2.5, 4.0])
def test_sigterm_while_ray_starts(write: Callable[..., Path], tmp_path: Path, after: float) -> None:
    """Its core is not Python: an exception raised amid its start aborts the process, and Ray's own handler exits."""
    home, file = tmp_path / "home", write()
    driver = start_driver(tmp_path, file, home, "ray", sleep=0.3)
    assert driver.stderr is not None
    assert driver.stderr.readline().startswith("Sweep ")
    time.sleep(after)
    driver.terminate()
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 130, errors
    assert "Interrupted" in errors
    assert "Traceback" not in errors


def sigterm_is_caught() -> bool:
    """By the process as the system sees it, whatever Python believes."""
    caught = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_sigterm_is_ours_while_ray_ends_its_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes seconds: its core has just put back the handler of the system, which ends the process."""
    end, seen = Node.kill_all_processes, []

    def look(*args: Any, **named: Any) -> None:
        seen.append(sigterm_is_caught())
        end(*args, **named)

    monkeypatch.setattr(Node, "kill_all_processes", look)
    with tempfile.TemporaryDirectory(prefix="ragen-test-") as short, terminable():
        with tune._cluster(None, Path(short)):
            pass
        assert sigterm_is_caught()
    assert seen == [True]


def test_a_failed_attempt_is_told_in_its_own_words(sweep_of: Make, tmp_path: Path) -> None:
    """Also where the disk is full, so that nothing of it could be written into the trial's folder."""
    trial = sweep_of().trials[0]
    request = TrialRequest(trial.trial_id, trial.arm, trial.seed, trial.cfg, str(tmp_path), FAKE)
    said = TrialResult(
        trial.trial_id, "failed", 5, error="the disk is full (x). Free some.", cause="disk", notes=("n",)
    )
    file = tmp_path / "raised"
    file.write_bytes(pickle.dumps(SimpleNamespace(cause=tune.TrialFailed(asdict(said)))))
    ended = SimpleNamespace(pickled_error_file=str(file))
    assert tune._failure(request, ended, {}) == said
    file.write_bytes(pickle.dumps(SimpleNamespace(cause=RuntimeError("something else\nmore"))))
    assert "the Ray worker process failed: something else; the" in tune._failure(request, ended, {}).error
    file.unlink()
    (trial_folder(tmp_path, trial.trial_id) / "DONE.json").unlink()
    assert "(killed, or out of memory?)" in tune._failure(request, ended, {}).error


def test_a_failure_under_ray_tells_why(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    sweep = sweep_of(seeds=1)
    home = tmp_path / "home"
    home.mkdir()
    (home / f"fail-{sweep.trials[0].trial_id}").write_text("1")
    finished, text = drive(sweep, engine="ray")
    assert finished.exit_code == 0
    assert "RuntimeError: made to fail" in text
    assert "Trying again from its last checkpoint." in text


def test_what_a_killed_driver_left_of_ray_goes_at_the_next_start(tmp_path: Path) -> None:
    """By its command line: a program of Ray's that names the driver's folder, and no other."""
    scratch, rays = str(tmp_path / "ragen-ray-1-x" / "ray"), str(Path(ray.__file__).parent / "core" / "raylet")
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    left, reader, elsewhere = (
        subprocess.Popen([*sleeper, *words]) for words in ((rays, scratch), (scratch,), (rays, f"{tmp_path}/other"))
    )
    try:
        tune._end_daemons(tmp_path / "ragen-ray-1-x")
        assert left.wait(20) == -signal.SIGKILL
        assert (reader.poll(), elsewhere.poll()) == (None, None)
    finally:
        for process in (left, reader, elsewhere):
            process.kill()
            process.wait()


def test_a_budget_under_ray(sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setenv("FAKE_SLEEP", "3")
    finished, text = drive(sweep_of(budget__minutes=0.2), engine="ray")
    assert finished.exit_code == 0
    assert "budget of 0.2 minutes is over" in text
    assert not {trial["status"] for trial in finished.result["trials"]} & {"finished", "failed"}
