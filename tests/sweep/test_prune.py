"""Checkpoints are deleted by policy: told first, never what is needed, and growing still gives the same numbers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.errors import ConfigError, HomeError
from ragen_lab.keep import alarm_onset
from ragen_lab.locks import locked
from ragen_lab.runs import from_home, look
from ragen_lab.sweep import prune as pruning
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.prune import as_json, describe, prune, size
from ragen_lab.sweep.spec import Sweep
from ragen_lab.track import list_checkpoints, trial_folder
from tests.sweep.conftest import calls, numbers
from tests.sweep.test_search import HALVING

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]
MANY = {"train.keep_checkpoints": 100, "train.checkpoint_every": 1}


def points(home: Path, sweep: Sweep) -> dict[str, list[int]]:
    return {t.trial_id: [i for i, _ in list_checkpoints(trial_folder(home, t.trial_id))] for t in sweep.trials}


def rows_of(home: Path) -> dict[str, Any]:
    return {run.trial_id: numbers(run.rows) for run in from_home(home, "tested")}


def files_of(home: Path) -> dict[str, int]:
    return {
        str(file): file.stat().st_size for file in home.rglob("*") if file.is_file() and "/checkpoints/" in str(file)
    }


def set_success(home: Path, trial: str, at: int) -> None:
    """Make the checkpoint of an iteration the best one."""
    path = trial_folder(home, trial) / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[at]["eval/success"] = 0.99
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_told_first_with_its_bytes(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home, sweep = tmp_path / "home", sweep_of(**MANY)
    drive(sweep)
    before, there = files_of(home), points(home, sweep)
    found = prune(home, "tested", ["last"])
    assert files_of(home) == before  # nothing was touched
    assert {entry.trial_id: entry.keep for entry in found} == {t: (p[-1],) for t, p in there.items()}
    words = describe(["last"], found, False)
    assert "Repeat the command with --yes to delete." in words
    told = sum(entry.bytes for entry in found)
    assert size(told) in words
    assert prune(home, None, ["last"], delete=True) == sorted(found, key=lambda entry: entry.trial_id)
    assert sum(before.values()) - sum(files_of(home).values()) == told > 0
    assert points(home, sweep) == {t: [p[-1]] for t, p in there.items()}
    again = prune(home, "tested", ["last"], delete=True)
    assert not any(entry.delete for entry in again)
    assert "Nothing to delete" in describe(["last"], again, True)


def test_best_and_before_alarm(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home, sweep = tmp_path / "home", sweep_of(**MANY)
    drive(sweep)
    there = points(home, sweep)
    for policy, expected in (("best", _best), ("before-alarm", _before_alarm)):
        for entry in prune(home, "tested", [policy]):
            trial = next(t for t in sweep.trials if t.trial_id == entry.trial_id)
            rows = look(trial_folder(home, trial.trial_id), trial.cfg).rows
            wanted = expected(rows, trial.cfg.detect.vote_window)
            # A run without alarms has nothing before one: all of its checkpoints stay.
            assert list(entry.keep) == (there[entry.trial_id] if wanted is None else [wanted]), policy
    collapsed = [entry for entry in prune(home, "tested", ["before-alarm"]) if entry.delete]
    assert {entry.name.split()[0] for entry in collapsed} == {"keep_ratio=0.25"}


def _best(rows: Any, window: int) -> int:
    values = [row["eval/success"] for row in rows]
    return values.index(max(values))


def _before_alarm(rows: Any, window: int) -> int | None:
    onset = alarm_onset(rows, window)
    return None if onset is None else onset - 1


def test_growing_after_pruning_costs_what_was_told(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """The numbers are those of an unpruned sweep; the repeated iterations are those that were told."""
    home, sweep = tmp_path / "home", sweep_of(**MANY)
    drive(sweep)
    found = prune(home, "tested", ["best"], delete=True)
    dearer = sum(entry.repeats for entry in found)
    assert dearer > 0
    words = describe(["best"], found, True)
    assert "Afterwards growing costs more" in words
    assert f"repeat {dearer} iteration" in words
    longer = {**MANY, "train.iterations": 12, "on_collapse": "continue"}
    drive(sweep_of(**longer))
    assert sum(count - 1 for count in calls(home).values()) == dearer
    drive(sweep_of(**longer), tmp_path / "plain")
    assert rows_of(home) == rows_of(tmp_path / "plain")


def test_what_a_resume_needs_stays(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """A trial that is not done keeps its newest checkpoint, whatever the policy; nothing is repeated afterwards."""
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(**MANY, seeds=1)
    bad = sweep.trials[0].trial_id
    (home / f"fail-{bad}").write_text("9")
    drive(sweep)
    set_success(home, bad, 0)  # the best one is not the last
    (entry, _) = prune(home, "tested", ["best"], delete=True)
    assert (entry.trial_id, entry.keep, entry.repeats) == (bad, (0, 2), 0)
    (home / f"fail-{bad}").unlink()
    drive(sweep)
    assert set(calls(home).values()) == {1}


def test_another_sweep_may_still_need_it(sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: Any) -> None:
    """Done for one sweep is not done for all: a longer one that shares the trial keeps its way on."""
    home = tmp_path / "home"
    drive(sweep_of(**MANY, seeds=1))
    monkeypatch.setenv("FAKE_SLEEP", "0.3")
    longer = sweep_of(**MANY, seeds=1, name="longer", train__iterations=40, budget__minutes=0.02)
    drive(longer, workers=1)
    trial = longer.trials[0]
    view = look(trial_folder(home, trial.trial_id), trial.cfg)
    assert not view.done
    newest = points(home, longer)[trial.trial_id][-1]
    (entry,) = [each for each in prune(home, "tested", ["best"]) if each.trial_id == trial.trial_id]
    assert newest in entry.keep


def test_a_damaged_checkpoint_is_never_the_one_that_stays(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home, sweep = tmp_path / "home", sweep_of(**MANY, seeds=1)
    drive(sweep)
    mine = sweep.trials[0].trial_id
    last, folder = list_checkpoints(trial_folder(home, mine))[-1]
    (folder / "state").write_text("half")
    (entry, _) = prune(home, "tested", ["last"], delete=True)
    assert (entry.keep, entry.damaged, entry.repeats) == ((last - 1,), (last,), 0)  # nothing could have used it
    assert points(home, sweep)[mine] == [last - 1]
    assert f"damaged: {last}" in describe(["last"], [entry], True)
    for _, left in list_checkpoints(trial_folder(home, mine)):
        (left / "state").write_text("half")
    (entry, _) = prune(home, "tested", ["last"], delete=True)
    assert (entry.keep, entry.delete, entry.repeats) == ((), (last - 1,), 0)


@pytest.mark.parametrize("name", ["a-longer-one", "whole"])  # before and behind the shorter one in the ledger
def test_the_best_is_judged_on_the_rows_of_the_longest_sweep(
    sweep_of: Make, drive: Drive, tmp_path: Path, name: str
) -> None:
    """Two sweeps of 8 and 14 iterations share the trial; its best is at 12, which the shorter one does not see."""
    home, one = tmp_path / "home", {**MANY, "seeds": 1, "axes.filter.keep_ratio": [1.0], "on_collapse": "continue"}
    drive(sweep_of(**one))
    drive(sweep_of(**one, name=name, train__iterations=14))
    set_success(home, sweep_of(**one).trials[0].trial_id, 12)
    (entry,) = prune(home, "tested", ["best"])
    assert (entry.iteration, entry.keep, entry.repeats) == (14, (12,), 2)


def test_the_last_is_the_last_of_all_rows(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """The page asks for 8 iterations now; the 12 that were computed once are there all the same."""
    home, one = tmp_path / "home", {**MANY, "seeds": 1, "axes.filter.keep_ratio": [1.0]}
    drive(sweep_of(**one, train__iterations=12))
    drive(sweep_of(**one))
    (entry,) = prune(home, "tested", ["last"])
    assert (entry.iteration, entry.keep, entry.delete, entry.repeats) == (12, (12,), tuple(range(12)), 0)


def test_a_checkpoint_without_its_row_is_no_way_on(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Whole, but of an iteration that the rows do not reach: nothing resumes from it, so it neither stays nor counts
    for what growing repeats."""
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(**MANY, seeds=1, **{"axes.filter.keep_ratio": [1.0]})
    (mine,) = (trial.trial_id for trial in sweep.trials)
    (home / f"fail-{mine}").write_text("9")
    drive(sweep, workers=0)
    set_success(home, mine, 0)
    folder = trial_folder(home, mine) / "checkpoints"
    shutil.copytree(folder / "00000002", folder / "00000099")
    (entry,) = prune(home, "tested", ["best"], delete=True)
    assert (entry.keep, entry.delete, entry.repeats) == ((0, 2), (1, 99), 0)
    (home / f"fail-{mine}").unlink()
    drive(sweep)
    assert set(calls(home).values()) == {1}


def test_an_unfinished_trial_of_no_sweep_needs_no_way_on(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(**MANY, seeds=1)
    bad = sweep.trials[0].trial_id
    (home / f"fail-{bad}").write_text("9")
    drive(sweep, workers=0)
    set_success(home, bad, 0)
    kept = {entry.trial_id: entry.keep for entry in prune(home, None, ["best"])}
    assert kept[bad] == (0, 2)
    drive(sweep_of(**MANY, seeds=1, **{"axes.filter.keep_ratio": [0.25]}))
    (entry,) = [entry for entry in prune(home, None, ["best"]) if entry.trial_id == bad]
    assert (entry.name, entry.keep, entry.delete) == ("in no sweep now", (0,), (1, 2))


def test_trials_under_way_are_left_alone(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home, sweep = tmp_path / "home", sweep_of(**MANY, seeds=1)
    drive(sweep)
    there, mine = points(home, sweep), sweep.trials[0].trial_id
    with locked(trial_folder(home, mine) / "lock"):
        for delete in (False, True):
            found = {entry.trial_id: entry for entry in prune(home, "tested", ["last"], delete=delete)}
            assert found[mine].skipped
            assert not found[mine].delete
    assert points(home, sweep)[mine] == there[mine]
    assert len(points(home, sweep)[sweep.trials[1].trial_id]) == 1
    assert "left alone: this trial is being worked on" in describe(["last"], list(found.values()), True)


def test_trials_of_no_sweep_are_pruned_with_the_home(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home, whole = tmp_path / "home", sweep_of(**MANY)
    drive(whole)
    drive(sweep_of(**MANY, seeds=1))
    left = {trial.trial_id for trial in whole.trials if trial.seed == 1}
    assert not left & {entry.trial_id for entry in prune(home, "tested", ["last"])}
    found = {entry.trial_id: entry for entry in prune(home, None, ["last"], delete=True)}
    assert {found[trial].name for trial in left} == {"in no sweep now"}
    assert all(len(p) == 1 for p in points(home, whole).values())


def test_wrong_names(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(HomeError, match="holds no sweeps yet"):
        prune(home, None, ["last"])
    drive(sweep_of(seeds=1))
    with pytest.raises(ConfigError, match=r"no sweep named 'other' here. There are: tested"):
        prune(home, "other", ["last"])
    with pytest.raises(
        ConfigError, match=r"'lasst' is no policy. Did you mean 'last'\? Allowed: last, best, before-al"
    ):
        prune(home, "tested", ["lasst"])
    with pytest.raises(ConfigError, match="say what to keep"):
        prune(home, "tested", [])


def test_a_folder_in_which_nothing_can_be_deleted(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, sweep = tmp_path / "home", sweep_of(**MANY, seeds=1)
    drive(sweep)
    there = points(home, sweep)

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pruning.os, "rename", refuse)
    with pytest.raises(HomeError, match=r"cannot be deleted: .*Permission denied(.|\n)*Make the folder writable"):
        prune(home, "tested", ["last"], delete=True)
    assert points(home, sweep) == there


def test_what_a_killed_prune_left_goes_with_the_next(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home, sweep = tmp_path / "home", sweep_of(**MANY, seeds=1)
    drive(sweep)
    folder = trial_folder(home, sweep.trials[0].trial_id) / "checkpoints"
    os.rename(folder / "00000000", folder / ".00000000.gone")
    assert points(home, sweep)[sweep.trials[0].trial_id][0] == 1
    prune(home, "tested", ["last"], delete=True)
    assert not list(folder.glob(".*"))


def test_what_the_scheduler_has_ended_is_finished(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """A setting that ASHA has ended need not go on: its newest checkpoint is kept only where a policy says so. What
    another sweep has computed beyond that is judged by that sweep."""
    home = tmp_path / "home"
    sweep = sweep_of(HALVING, **MANY)
    drive(sweep, home)
    pruned = [run for run in from_home(home, "tested") if run.status == "pruned"]
    assert pruned
    found = {entry.trial_id: entry for entry in prune(home, "tested", ["best"])}
    for run in pruned:
        best = max(range(len(run.rows)), key=lambda i: run.rows[i]["eval/success"])
        assert found[run.trial_id].keep == (best,)
    held = sweep_of(HALVING, **MANY, name="whole", train__iterations=12, budget__trials=1)
    drive(held, home)
    open_ones = {r.trial_id for r in from_home(home, "whole") if r.status not in ("finished", "collapsed", "pruned")}
    for entry in prune(home, None, ["best"]):
        if entry.trial_id in open_ones:  # another sweep has still to finish it
            assert points(home, sweep)[entry.trial_id][-1] in entry.keep


def test_what_a_rerun_put_aside_is_told(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home, sweep = tmp_path / "home", sweep_of(seeds=1)
    drive(sweep, home)
    assert "set-aside" not in describe(["last"], prune(home, None, ["last"]), False, home)
    drive(sweep, home, rerun="keep_ratio=1.0")
    held = sum(file.stat().st_size for file in (home / "set-aside").rglob("*") if file.is_file())
    words = describe(["last"], prune(home, None, ["last"], delete=True), True, home)
    assert f"--rerun has put aside takes {size(held)}" in words
    assert f"rm -r {home / 'set-aside'}" in words
    assert held == sum(file.stat().st_size for file in (home / "set-aside").rglob("*") if file.is_file())


def test_json(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of(**MANY, seeds=1))
    found = prune(home, "tested", ["last"])
    plain = json.loads(json.dumps(as_json("tested", ["last"], found, False)))
    assert plain["bytes"] == sum(trial["bytes"] for trial in plain["trials"]) > 0
    assert list(plain["trials"][0]) == [
        "trial_id", "name", "iteration", "keep", "delete", "damaged", "bytes", "skipped", "repeats",
    ]  # fmt: skip
    shutil.rmtree(home / "trials")
    assert not any(entry.delete for entry in prune(home, "tested", ["last"]))


def test_sizes() -> None:
    assert [size(n) for n in (0, 1023, 1536, 5 * 2**20, 3 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]
