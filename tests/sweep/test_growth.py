"""A finished sweep grows: what is there is used, what is new is computed once, and the numbers are those of a sweep
that was as large from the start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.config import RunConfig, horizon_knobs
from ragen_lab.keep import alarm_onset, worth_keeping
from ragen_lab.runs import from_home, look
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.plan import make_plan
from ragen_lab.sweep.spec import Sweep
from ragen_lab.track import list_checkpoints, trial_folder
from tests.sweep.conftest import calls, numbers

ROOT = Path(__file__).resolve().parents[2]
Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]
LARGE: dict[str, Any] = {"axes.filter.keep_ratio": [1.0, 0.25]}


def rows_of(home: Path, sweep: str = "tested") -> dict[str, Any]:
    return {run.trial_id: (run.status, numbers(run.rows)) for run in from_home(home, sweep)}


@pytest.mark.parametrize(
    "more",
    [
        {"axes.filter.keep_ratio": [1.0, 0.25, 0.5]},
        {"seeds": 4},
        {"arms": {"control": {"filter.kind": "random", "filter.keep_ratio": 0.5}}},
        {"train.iterations": 14},
        {"on_collapse": "continue"},
        {"seeds": 3, "train.iterations": 14, "on_collapse": "continue", "axes.filter.keep_ratio": [0.25, 0.5, 1.0]},
    ],
    ids=["levels", "seeds", "arms", "iterations", "shadow", "all at once"],
)
def test_a_finished_sweep_grows(sweep_of: Make, drive: Drive, tmp_path: Path, more: dict[str, Any]) -> None:
    home = tmp_path / "home"
    small, _ = drive(sweep_of())
    before = sum(calls(home).values())
    finished, text = drive(sweep_of(**more))
    assert finished.exit_code == 0
    assert set(calls(home).values()) == {1}  # no iteration is computed twice
    assert sum(calls(home).values()) > before
    assert "left this sweep" not in text
    ids = {trial["trial_id"] for trial in finished.result["trials"]}
    assert {trial["trial_id"] for trial in small.result["trials"]} <= ids
    drive(sweep_of(**more), tmp_path / "plain")
    assert rows_of(home) == rows_of(tmp_path / "plain")


def test_growing_goes_on_from_the_checkpoints(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """8 -> 14 iterations: rows 9 to 14 of what had finished. What had collapsed stays as it is."""
    home, sweep = tmp_path / "home", sweep_of()
    drive(sweep)
    before = calls(home)
    drive(sweep_of(train__iterations=14))
    added = calls(home) - before
    finished = {trial.trial_id for trial in sweep.trials if trial.arm == "keep_ratio=1.0"}
    assert {i for _, i in added} == set(range(9, 15))
    assert {trial for trial, _ in added} == finished


@pytest.mark.parametrize("keep", [1, 2])
def test_a_collapsed_trial_can_go_on_whatever_checkpoints_are_kept(
    sweep_of: Make, drive: Drive, tmp_path: Path, keep: int
) -> None:
    """The stop itself writes a checkpoint, which is the newest one: shadow mode goes on from there."""
    home = tmp_path / "home"
    page = {"train.keep_checkpoints": keep, "train.checkpoint_every": 100, "seeds": 1}
    drive(sweep_of(**page))
    before = calls(home)
    finished, _ = drive(sweep_of(**page, on_collapse="continue"))
    assert {trial["status"] for trial in finished.result["trials"]} == {"finished"}
    assert set(calls(home).values()) == {1}
    stopped = {i for _, i in calls(home) - before}
    assert stopped == set(range(min(stopped), 9))


def test_a_schedule_forbids_growth_and_says_so(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """The plan names the schedule and the old trials; the old ones are left alone."""
    home = tmp_path / "home"
    page = {"optim.schedule": "linear", "seeds": 1}
    short = sweep_of(**page)
    assert make_plan(short, home).warnings == tuple(w for w in make_plan(short, home).warnings if "linear" not in w)
    drive(short)
    longer = sweep_of(**page, train__iterations=14)
    (note,) = [warning for warning in make_plan(longer, home).warnings if "linear" in warning]
    assert "optim.schedule=linear depends on it, so these are new trials" in note
    for trial in short.trials:
        assert f"{trial.arm} seed 0 to 14: not from {trial.trial_id}, which went to 8" in note
    _, text = drive(longer)
    assert f"Note (page): {note}" in text
    assert calls(home)[longer.trials[0].trial_id, 0] == 1  # from the start
    assert not [w for w in make_plan(longer, home).warnings if "linear" in w]  # they are there now
    both = sweep_of(**page, train__iterations=16, algo__entropy_schedule="linear", algo__entropy_coef=0.1)
    assert not [w for w in make_plan(both, home).warnings if "new trials" in w]  # another run for other reasons too


def test_schedules_that_know_the_horizon_are_part_of_the_identity() -> None:
    """Every knob that ``horizon_knobs`` names makes the longer run another one, and no other schedule does."""
    for path in ("optim.schedule", "algo.entropy_schedule"):
        for value in ("constant", "linear"):
            cfg = RunConfig().with_overrides({path: value})
            longer = cfg.with_overrides({"train.iterations": 400})
            assert (cfg.trial_id() != longer.trial_id()) == (value == "linear") == (horizon_knobs(cfg) == [path])


# --- checkpoints beside the newest ---


def test_which_checkpoints_are_worth_keeping() -> None:
    success = [0.1, 0.2, 0.6, 0.4, 0.6, 0.5, 0.1, 0.0, 0.0, 0.0]
    rows = [{"eval/success": value, "detect/level": 0.0} for value in success]
    rows[1]["detect/grad_norm"] = 1.0  # a lone alarm, long before
    rows[6]["detect/entropy"] = 1.0
    rows[8]["detect/level"] = rows[8]["detect/stop"] = 1.0
    assert alarm_onset(rows, 3) == 6  # 6 and 8 belong together, 1 does not
    assert alarm_onset(rows, 2) == 8  # two iterations apart are not within two of each other, in the vote neither
    assert alarm_onset(rows, 20) == 1
    assert alarm_onset(rows[:6], 3) == 1
    assert alarm_onset(rows[:1], 3) is None
    points = [0, 2, 4, 5, 8]
    assert worth_keeping(rows, points, ["best"], 3) == {2}  # the earliest of equals
    assert worth_keeping(rows, points, ["before-alarm"], 3) == {5}
    assert worth_keeping(rows, points, ["last"], 3) == {8}
    assert worth_keeping(rows, points, ["best", "before-alarm", "last"], 3) == {2, 5, 8}
    assert worth_keeping(rows[:8], points, ["last"], 3) == {5}  # a checkpoint without its row is none
    assert worth_keeping(rows[:1], [0], ["before-alarm"], 3) == set()
    assert worth_keeping([{}], [0], ["best"], 3) == set()  # never evaluated
    rows.append({"detect/entropy": 1.0, "detect/stop": 1.0, "eval/success": 0.9})
    rows += [{"detect/grad_norm": 1.0}] * 5
    assert alarm_onset(rows, 3) == 6  # what comes after the stop, in shadow, moves nothing
    late = [{"eval/success": float("nan")}, {"eval/success": 0.1}, {}]
    assert worth_keeping(late, [0, 2], ["best"], 3) == {2}  # its newest evaluation is that of row 1


def test_training_keeps_them(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """``train.keep_also`` is no part of the identity, and the kept ones are still there at the end."""
    home = tmp_path / "home"
    page = {"axes.filter.keep_ratio": [0.25], "seeds": 1, "train.keep_checkpoints": 1, "train.checkpoint_every": 1}
    plain, keeping = sweep_of(**page), sweep_of(**page, **{"train.keep_also": ["best", "before-alarm"]})
    trial = keeping.trials[0]
    assert trial.trial_id == plain.trials[0].trial_id
    drive(keeping)
    folder = trial_folder(home, trial.trial_id)
    view = look(folder, trial.cfg)
    assert view.status == "collapsed"
    success = [row["eval/success"] for row in view.rows]
    assert [round(value, 2) for value in success] == [0.31, 0.33, 0.35, 0.35, 0, 0, 0, 0]
    assert success[2] > success[3]
    assert [row["detect/level"] for row in view.rows] == [0, 0, 0, 0, 0, 0, 0, 1]
    assert [i for i, _ in list_checkpoints(folder)] == [2, 6, 7]  # best, before the alarm, newest
    drive(plain, tmp_path / "other")
    assert [i for i, _ in list_checkpoints(trial_folder(tmp_path / "other", trial.trial_id))] == [7]


# --- the real trainer ---

PAGE = """
base: {base}
axes:
  filter.keep_ratio: {levels}
seeds: {seeds}
on_collapse: {policy}
"""
SETS = ["eval.every=1", "eval.prompts=16", "rollout.prompts=4", "rollout.responses=4", "train.checkpoint_every=2",
        "track.mlflow=false", "detect.level.peak=1e-6", "detect.level.fall=1", "detect.level.recovered=1",
        "detect.level.evaluations=1",
        "optim.lr=0.01"]  # fmt: skip


def real(tmp_path: Path, home: str, levels: str, seeds: int, policy: str, iterations: int) -> dict[str, Any]:
    page = tmp_path / "grown.yaml"
    base = ROOT / "experiments" / "frozen_lake_edge.yaml"
    page.write_text(PAGE.format(base=base, levels=levels, seeds=seeds, policy=policy))
    sets = [word for text in (*SETS, f"train.iterations={iterations}") for word in ("--set", text)]
    done = subprocess.run(
        [sys.executable, "-m", "ragen_lab", "sweep", str(page), *sets, "--local", "--json", "--home",
         str(tmp_path / home)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_real_trainer_grows_bit_for_bit(tmp_path: Path) -> None:
    """Levels, seeds, iterations, and shadow after a stop (the detector is set so that any dip is a collapse): equal to
    a sweep that was as large, as long and in shadow from the start."""
    first = real(tmp_path, "grown", "[1.0]", 1, "stop", 3)
    statuses = [trial["status"] for trial in first["trials"]]
    assert statuses == ["collapsed"], "nothing was stopped, so nothing goes on after a stop"
    stopped = first["trials"][0]["stop_iteration"]
    assert stopped < 3
    real(tmp_path, "grown", "[1.0, 0.5]", 2, "continue", 4)
    large = real(tmp_path, "plain", "[1.0, 0.5]", 2, "continue", 4)
    assert [trial["status"] for trial in large["trials"]] == ["finished"] * 4
    assert rows_of(tmp_path / "grown", "grown") == rows_of(tmp_path / "plain", "grown")
    folder = trial_folder(tmp_path / "grown", first["trials"][0]["trial_id"])
    sessions = json.loads((folder / "provenance.json").read_text())
    assert [session["from_iteration"] for session in sessions] == [0, stopped + 1]  # nothing was repeated
