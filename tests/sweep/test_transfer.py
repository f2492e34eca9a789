"""Trials of another home: verified, whole or not at all, the longer one wins, and what differs is refused."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.errors import ConfigError, HomeError, TrialLocked
from ragen_lab.locks import is_locked, locked
from ragen_lab.runs import from_home
from ragen_lab.sweep import transfer
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.guard import STAGE_FILE
from ragen_lab.sweep.mirroring import sync
from ragen_lab.sweep.spec import Sweep
from ragen_lab.sweep.transfer import Transfer, as_json, bring, describe, plan_import
from ragen_lab.track import damage, list_checkpoints, read_done, read_rows, trial_folder
from tests.sweep.conftest import calls, numbers

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]


def rows_of(home: Path, sweep: str = "tested") -> dict[str, Any]:
    return {run.trial_id: numbers(run.rows) for run in from_home(home, sweep)}


def imported(home: Path, source: Path, sweep: str | None = None) -> Transfer:
    return bring(home, plan_import(home, source, sweep), sweep)


def actions(found: Transfer) -> list[str]:
    return [arrival.action for arrival in found.arrivals]


def usable(home: Path, trial: str) -> set[int]:
    return {i for i, path in list_checkpoints(trial_folder(home, trial)) if damage(path) is None}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}


@pytest.fixture
def other(sweep_of: Make, drive: Drive, tmp_path: Path) -> Path:
    """A home with a finished sweep."""
    drive(sweep_of(), tmp_path / "other")
    return tmp_path / "other"


def test_a_sweep_comes_whole_and_goes_on(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    home = tmp_path / "home"
    planned = plan_import(home, other)
    assert actions(planned) == ["copy"] * 4
    assert not home.exists()  # a plan writes nothing
    weight = sum(len(data) for data in tree(other / "trials").values())
    assert abs(planned.bytes - weight) < 4 * 64  # the lock files stay behind
    found = bring(home, planned)
    assert (found.done, found.sweeps, actions(found)) == (True, {"tested": 4}, ["copy"] * 4)
    assert tree(home / "trials") == tree(other / "trials")
    assert rows_of(home) == rows_of(other)
    assert [(r.arm, r.seed) for r in from_home(home, "tested")] == [(r.arm, r.seed) for r in from_home(other, "tested")]
    assert sync(home, "tested")[0] == 4
    again, _ = drive(sweep_of(), home)
    assert all(trial["reused"] for trial in again.result["trials"])
    drive(sweep_of(train__iterations=12), home)  # from their checkpoints
    assert {i for _, i in calls(home)} == {9, 10, 11, 12}
    drive(sweep_of(train__iterations=12), tmp_path / "plain")
    assert rows_of(home) == rows_of(tmp_path / "plain")
    once_more = imported(home, other)
    assert actions(once_more) == ["keep"] * 4  # ours are as long or longer
    assert once_more.bytes == 0


def test_what_comes_from_a_read_only_home_can_be_written(tmp_path: Path, other: Path) -> None:
    """Else its folders could be neither moved into their place nor gone on with; nor could what a kill leaves."""
    home, theirs = tmp_path / "home", sorted((other / "trials").rglob("*"))
    left = home / "arriving" / "a-trial" / "checkpoints"
    left.mkdir(parents=True)
    for path in (*theirs, left, left.parent):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        found = imported(home, other)
    finally:
        for path in theirs:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert actions(found) == ["copy"] * 4
    came = list((home / "trials").rglob("*"))
    assert len(came) > 20
    assert [path for path in came if not path.stat().st_mode & stat.S_IWUSR] == []
    assert not list((home / "arriving").iterdir())


def test_the_longer_one_wins(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of(train__iterations=4, name="short"), home)
    mine = tree(home / "trials")
    found = imported(home, other)
    assert set(actions(found)) <= {"replace", "keep"}
    assert actions(found).count("replace") >= 2
    assert "theirs goes on to 8, ours to 4" in describe(found, tmp_path)
    assert tree(home / "trials") != mine
    assert [len(run.rows) for run in from_home(home, "short")][0::2] == [5, 5]  # its view is what it was
    assert rows_of(home) == rows_of(other)
    assert not list((home / "arriving").iterdir())


def test_what_differs_is_refused_and_not_touched(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    home, sweep = tmp_path / "home", sweep_of()
    drive(sweep, home)
    shutil.rmtree(trial_folder(home, sweep.trials[2].trial_id))
    mine = sweep.trials[0].trial_id
    file = trial_folder(other, mine) / "metrics.jsonl"
    lines = file.read_text().splitlines()
    row = json.loads(lines[3])
    row["train/noise"] += 1e-16 if row["train/noise"] < 0.5 else 1e-15
    file.write_text(
        "\n".join([*lines[:3], json.dumps(row), *lines[4:], lines[-1].replace('"iteration": 8', '"iteration": 9')])
        + "\n"
    )
    before = tree(home / "trials")
    found = imported(home, other)
    assert dict(zip([a.trial_id for a in found.arrivals], actions(found), strict=True)) == {
        mine: "refuse", sweep.trials[1].trial_id: "keep", sweep.trials[2].trial_id: "copy",
        sweep.trials[3].trial_id: "keep",
    }  # fmt: skip
    (refused,) = found.refused
    assert "differ at iteration 3 in train/noise" in refused.about
    after = tree(home / "trials")
    assert {name: data for name, data in after.items() if name in before} == before
    assert rows_of(home).keys() == {trial.trial_id for trial in sweep.trials}


def part_ways(home: Path, trial: str, at: int, length: int) -> None:
    """Give a trial another number at an iteration, and so many rows."""
    file = trial_folder(home, trial) / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[at]["train/noise"] = 2.0
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:length]))


@pytest.mark.parametrize("length", [5, 9])
def test_a_shorter_or_equal_one_that_differs_is_refused_too(
    sweep_of: Make, tmp_path: Path, other: Path, length: int
) -> None:
    home, trial = tmp_path / "home", sweep_of().trials[0].trial_id
    shutil.copytree(other, home)
    part_ways(other, trial, 3, length)
    (refused,) = plan_import(home, other).refused
    assert refused.trial_id == trial
    assert "differ at iteration 3 in train/noise" in refused.about


def test_what_has_changed_since_it_was_planned_is_looked_at_again(
    sweep_of: Make, drive: Drive, tmp_path: Path, other: Path
) -> None:
    home, trial = tmp_path / "home", sweep_of().trials[0].trial_id
    drive(sweep_of(train__iterations=4, name="short"), home)
    planned = plan_import(home, other)
    assert planned.arrivals[0].action == "replace"
    part_ways(other, trial, 3, 9)
    before = tree(trial_folder(home, trial))
    (refused,) = bring(home, planned).refused
    assert (refused.trial_id, "differ at iteration 3 in train/noise" in refused.about) == (trial, True)
    assert tree(trial_folder(home, trial)) == before


def test_a_folder_of_ours_that_is_not_what_it_says(sweep_of: Make, tmp_path: Path, other: Path) -> None:
    """Nothing is put into it, although theirs is the longer one."""
    home, trial = tmp_path / "home", sweep_of().trials[0].trial_id
    shutil.copytree(other, home)
    folder = trial_folder(home, trial)
    (folder / "config.json").write_text('{"trial_id": ')
    (folder / "metrics.jsonl").write_text("")
    before = tree(folder)
    found = imported(home, other)
    assert [each.about for each in found.refused] == [
        "the folder of this name here is at fault: its config.json is missing or cut short"
    ]
    assert tree(folder) == before


def test_nobody_begins_on_a_trial_there_while_it_is_copied(
    sweep_of: Make, tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ragen_lab.locks._A_LOOK", 0.0)
    copy, told = transfer._copy, []

    def watched(theirs: Path, arriving: Path, damaged: Any) -> None:
        with pytest.raises(TrialLocked, match="worked on by a process that copies it"), locked(theirs / "lock"):
            pass
        told.append(theirs.name)
        copy(theirs, arriving, damaged)

    monkeypatch.setattr(transfer, "_copy", watched)
    assert actions(imported(tmp_path / "home", other)) == ["copy"] * 4
    assert sorted(told) == sorted(trial.trial_id for trial in sweep_of().trials)


def test_two_imports_at_once(tmp_path: Path, other: Path) -> None:
    home = tmp_path / "home"
    planned = plan_import(home, other)
    with locked(home / "import.lock"), pytest.raises(TrialLocked, match="this import is being worked on"):
        bring(home, planned)
    assert not list((home / "trials").iterdir())
    assert actions(bring(home, planned)) == ["copy"] * 4


def test_what_a_killed_worker_was_doing_does_not_come(sweep_of: Make, tmp_path: Path, other: Path) -> None:
    home, trial = tmp_path / "home", sweep_of().trials[0].trial_id
    before, folder = tree(trial_folder(other, trial)), trial_folder(other, trial)
    (folder / STAGE_FILE).write_text('{"stage": "warm start", "step": 1, "steps": 2}')
    for half in (".DONE.json.7.tmp", "checkpoints/.00000012.tmp"):
        (folder / half).write_text("half")
    imported(home, other)
    assert tree(trial_folder(home, trial)) == before


def test_what_no_worker_has_been_in(sweep_of: Make, tmp_path: Path, other: Path) -> None:
    """A trial without rows is nothing to bring; one without a lock was copied by hand; and a file system may keep
    folders of its own anywhere."""
    home, (empty, copied, *_) = tmp_path / "home", sweep_of().trials
    (trial_folder(other, empty.trial_id) / "metrics.jsonl").write_text("")
    (trial_folder(other, copied.trial_id) / "lock").unlink()
    (other / "trials" / ".snapshot").mkdir()
    found = imported(home, other)
    assert actions(found) == ["skip", "copy", "copy", "copy"]
    assert not trial_folder(home, empty.trial_id).exists()
    assert rows_of(home)[copied.trial_id] == rows_of(other)[copied.trial_id]


def test_an_arm_that_has_left_our_sweep_stays_left(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(other, home)
    drive(sweep_of(**{"axes.filter.keep_ratio": [1.0]}), home)
    found = imported(home, other)
    assert (actions(found), found.sweeps) == (["keep"] * 4, {"tested": 2})
    assert [(run.arm, run.seed) for run in from_home(home, "tested")] == [("keep_ratio=1.0", 0), ("keep_ratio=1.0", 1)]


def test_times_and_alarms_are_no_difference(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    """Another clock, and other thresholds of the detectors, give other words about the same run."""
    home = tmp_path / "home"
    drive(sweep_of(**{"detect.level.evaluations": 2, "on_collapse": "continue"}), home)
    assert set(actions(imported(home, other))) == {"keep"}


@pytest.mark.parametrize("fault", ["forged", "renamed", "torn", "missing", "schema"])
def test_a_folder_that_is_not_what_it_says(sweep_of: Make, tmp_path: Path, other: Path, fault: str) -> None:
    home, trial = tmp_path / "home", sweep_of().trials[0].trial_id
    file = trial_folder(other, trial) / "config.json"
    stored = json.loads(file.read_text())
    if fault == "forged":
        stored["config"]["optim"]["lr"] = 0.123
    elif fault == "renamed":  # a worker would refuse to go on with it
        stored["trial_id"] = sweep_of().trials[1].trial_id
    elif fault == "schema":
        stored["schema"] += 1
    file.write_text(json.dumps(stored))
    if fault == "torn":
        file.write_text('{"trial_id": ')
    if fault == "missing":
        file.unlink()
    found = imported(home, other)
    assert sorted(actions(found)) == ["copy", "copy", "copy", "refuse"]
    words = {
        "forged": "is that of trial",
        "renamed": "is that of trial",
        "torn": "cut short",
        "missing": "missing",
        "schema": "schema version",
    }
    assert words[fault] in found.refused[0].about
    assert not trial_folder(home, trial).exists()
    assert trial not in rows_of(home)


def test_damaged_checkpoints_stay_behind(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    home, trial = tmp_path / "home", sweep_of().trials[0].trial_id
    (old, _), (newest, folder) = list_checkpoints(trial_folder(other, trial))
    (folder / "state").write_text("half")
    found = imported(home, other)
    assert f"damaged checkpoints left out: {newest}" in found.arrivals[0].about
    weight = sum(len(data) for data in tree(trial_folder(home, trial)).values())
    assert abs(found.arrivals[0].bytes - weight) < 64  # the lock file stays behind
    assert [i for i, _ in list_checkpoints(trial_folder(home, trial))] == [old]
    drive(sweep_of(train__iterations=12), home)
    drive(sweep_of(train__iterations=12), tmp_path / "plain")
    assert rows_of(home) == rows_of(tmp_path / "plain")


def test_a_copy_that_goes_wrong_leaves_all_as_it_was(
    sweep_of: Make, drive: Drive, tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails half-way: ours is untouched, nothing half stays, and a repeated import brings the rest."""
    home = tmp_path / "home"
    drive(sweep_of(train__iterations=4, name="short"), home)
    before, copytree = tree(home / "trials"), shutil.copytree

    def failing(source: Path, target: Path, *rest: Any, **more: Any) -> None:  # it calls itself for every subfolder
        copytree(source, target, *rest, **more)
        for state in Path(target).rglob("state"):
            state.write_text("other bytes")

    monkeypatch.setattr(transfer.shutil, "copytree", failing)
    with pytest.raises(HomeError, match=r"could not be copied(.|\n)*is not what it was(.|\n)*repeat the import"):
        imported(home, other)
    assert tree(home / "trials") == before
    assert not list((home / "arriving").iterdir())
    monkeypatch.setattr(transfer.shutil, "copytree", copytree)
    imported(home, other)
    assert rows_of(home) == rows_of(other)


@pytest.mark.parametrize("step", range(12))
def test_a_kill_at_every_step_of_a_replacement(
    sweep_of: Make, drive: Drive, tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Ours is at its place and locked all the time; nothing usable is lost, and a repeated import brings the rest."""
    home, trial = tmp_path / "home", sweep_of().trials[0].trial_id
    drive(sweep_of(train__iterations=6, name="short"), home)
    mine, folder, steps = rows_of(home, "short"), trial_folder(home, trial), []
    moves = {name: getattr(os, name) for name in ("rename", "replace")}

    def watched(name: str) -> Callable[..., None]:
        def move(source: Any, target: Any, **more: Any) -> None:
            if Path(source).is_relative_to(home / "arriving" / trial):
                assert folder.is_dir()
                assert is_locked(folder / "lock")
                steps.append(target)
                if len(steps) == step + 1:
                    raise KeyboardInterrupt
            moves[name](source, target, **more)

        return move

    for name in moves:
        monkeypatch.setattr(transfer.os, name, watched(name))
    killed = False
    try:
        imported(home, other)
    except KeyboardInterrupt:
        killed = True
    assert killed or len(steps) <= step
    assert len(steps) > 3 or killed
    assert rows_of(home, "short") == mine
    assert usable(home, trial) >= {4, 6}
    done = read_done(folder)
    assert done is None or done["iteration"] == len(read_rows(folder / "metrics.jsonl")) - 1
    for name, move in moves.items():
        monkeypatch.setattr(transfer.os, name, move)
    imported(home, other)
    assert rows_of(home) == rows_of(other)
    assert usable(home, trial) == {4, 6, 8}  # both had 6
    assert not list((home / "arriving").glob("*"))
    drive(sweep_of(train__iterations=12), home)
    assert {i for t, i in calls(home) if t == trial} == {0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12}


def test_the_only_usable_checkpoints_are_kept(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    """All of theirs are damaged: their rows are more, but ours is where growth can go on from."""
    home, sweep = tmp_path / "home", sweep_of()
    drive(sweep_of(train__iterations=4, name="short"), home)
    for trial in sweep.trials:
        for _, path in list_checkpoints(trial_folder(other, trial.trial_id)):
            (path / "state").write_text("half")
    before = {trial.trial_id: usable(home, trial.trial_id) for trial in sweep.trials}
    found = imported(home, other)
    assert "replace" in actions(found)
    assert {trial.trial_id: usable(home, trial.trial_id) for trial in sweep.trials} == before
    assert rows_of(home) == rows_of(other)
    drive(sweep_of(train__iterations=12), home)
    drive(sweep_of(train__iterations=12), tmp_path / "plain")
    assert rows_of(home) == rows_of(tmp_path / "plain")
    assert max(count for (_, i), count in calls(home).items() if i <= 4) == 1


def test_a_damaged_one_of_ours_is_replaced(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    home, trial = tmp_path / "home", sweep_of().trials[0].trial_id
    drive(sweep_of(train__iterations=6, name="short"), home)
    for _, path in list_checkpoints(trial_folder(home, trial)):
        (path / "state").write_text("half")
    imported(home, other)
    assert usable(home, trial) == {6, 8}


def test_a_trial_that_has_ended_here_and_goes_on_there(
    sweep_of: Make, drive: Drive, tmp_path: Path, other: Path
) -> None:
    """What DONE.json said of the shorter one does not stay beside the longer."""
    home, trial = tmp_path / "home", sweep_of().trials[0].trial_id
    drive(sweep_of(train__iterations=4, name="short"), home)
    (trial_folder(other, trial) / "DONE.json").unlink()
    imported(home, other)
    assert not (trial_folder(home, trial) / "DONE.json").exists()


def test_a_worker_that_begins_while_a_trial_arrives(
    sweep_of: Make, drive: Drive, tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has made the folder and holds its lock: that trial is refused for now, the others come."""
    home, trial, rename = tmp_path / "home", sweep_of().trials[0].trial_id, os.rename

    def late(source: Any, target: Any) -> None:
        if Path(target) == trial_folder(home, trial):
            Path(target).mkdir()
            (Path(target) / "lock").write_text("")
        rename(source, target)

    monkeypatch.setattr(transfer.os, "rename", late)
    found = imported(home, other)
    assert [arrival.trial_id for arrival in found.refused] == [trial]
    assert "has begun on it here" in found.refused[0].about
    assert actions(found).count("copy") == 3
    assert [path.name for path in trial_folder(home, trial).iterdir()] == ["lock"]
    assert not list((home / "arriving").iterdir())


def test_a_folder_that_cannot_be_put_in_its_place(tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has begun on it: that is the home's fault, and no reason to wait."""

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(transfer.os, "rename", refuse)
    with pytest.raises(HomeError, match=r"could not be copied(.|\n)*Permission denied(.|\n)*repeat the import"):
        imported(tmp_path / "home", other)


def test_a_full_disk_is_told_before(tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 10

    planned = plan_import(tmp_path / "home", other)
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda place: Usage)
    with pytest.raises(HomeError, match=r"are to be copied, but only 10 B are free"):
        bring(tmp_path / "home", planned)
    assert not (tmp_path / "home").exists()


def test_one_sweep_only(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of(name="second", optim__lr=0.5, seeds=1), other)
    drive(sweep_of(name="second", optim__lr=0.25, seeds=1), other)  # two trials have left it
    found = imported(home, other, "second")
    assert (found.sweeps, len(found.arrivals)) == ({"second": 2}, 2)
    whole = imported(home, other)
    assert whole.sweeps == {"second": 2, "tested": 4}
    assert len(whole.arrivals) == 8  # what has left comes with the whole home
    assert len(list((home / "trials").iterdir())) == 8


def test_sweeps_of_one_name(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    """More of the same sweep joins it; another sweep of that name is refused before anything is copied."""
    home, clash = tmp_path / "home", tmp_path / "clash"
    drive(sweep_of(seeds=3), home)
    drive(sweep_of(seeds=[7]), other)  # their page asks for another seed now
    found = imported(home, other)
    assert found.sweeps == {"tested": 8}
    assert sorted({run.seed for run in from_home(home, "tested")}) == [0, 1, 2, 7]
    drive(sweep_of(optim__lr=0.5), clash)
    with pytest.raises(ConfigError, match=r"'tested' is here too, and its arm 'keep_ratio=0.25' has other settings"):
        plan_import(home, clash)


def test_wrong_homes_and_names(tmp_path: Path, other: Path) -> None:
    home = tmp_path / "home"
    (tmp_path / "link").symlink_to(other)
    for same in (other, tmp_path / "link"):
        with pytest.raises(ConfigError, match="is this home itself"):
            plan_import(other, same)
    with pytest.raises(HomeError, match="holds no sweeps yet"):
        plan_import(home, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"no sweep named 'testd' here. Did you mean 'tested'\? There are: tested"):
        plan_import(home, other, "testd")
    assert not home.exists()


def test_what_is_being_worked_on(sweep_of: Make, drive: Drive, tmp_path: Path, other: Path) -> None:
    """A trial under way there or here is refused for now; a sweep that runs here is left alone altogether."""
    home, sweep = tmp_path / "home", sweep_of()
    planned = plan_import(home, other)
    with locked(trial_folder(other, sweep.trials[0].trial_id) / "lock"):
        assert "another process works on it there" in plan_import(home, other).refused[0].about
        found = bring(home, planned)  # it was free when that was planned
        assert [arrival.trial_id for arrival in found.refused] == [sweep.trials[0].trial_id]
        assert sweep.trials[0].trial_id not in rows_of(home)
    shutil.rmtree(home)
    drive(sweep_of(train__iterations=4), home)
    planned = plan_import(home, other)
    with locked(trial_folder(home, sweep.trials[0].trial_id) / "lock"):
        assert "another process works on it here" in plan_import(home, other).refused[0].about
        assert sweep.trials[0].trial_id in [arrival.trial_id for arrival in bring(home, planned).refused]
    with locked(home / "locks" / "tested.lock"), pytest.raises(TrialLocked, match="this sweep is being worked on"):
        imported(home, other)


def test_a_home_that_may_only_be_read(tmp_path: Path, other: Path) -> None:
    """Nothing is written into the other home, not even a lock."""
    before = {str(p): p.stat().st_mtime_ns for p in other.rglob("*")}
    for path in [*other.rglob("*"), other]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        found = imported(tmp_path / "home", other)
    finally:
        for path in [other, *other.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert actions(found) == ["copy"] * 4
    assert {str(p): p.stat().st_mtime_ns for p in other.rglob("*") if "sqlite" not in p.name} == {
        name: stamp for name, stamp in before.items() if "sqlite" not in name
    }


def test_json(tmp_path: Path, other: Path) -> None:
    plain = json.loads(json.dumps(as_json(plan_import(tmp_path / "home", other))))
    assert list(plain) == ["source", "done", "bytes", "sweeps", "trials"]
    assert list(plain["trials"][0]) == ["trial_id", "action", "about", "iterations", "bytes", "damaged"]
