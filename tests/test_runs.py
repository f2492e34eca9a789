"""The read side: one definition of what a sweep sees of a trial, and two readers that agree."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.config import RunConfig
from ragen_lab.errors import ConfigError, HomeError, TrackingError
from ragen_lab.mirror import default_uri
from ragen_lab.runs import Run, durable, from_home, from_mlflow, look, sweep_record, view_of
from ragen_lab.track import Row, read_trajectories
from tests.sweep.conftest import drive, importable, sweep_of, write  # noqa: F401 - fixtures

CFG = RunConfig().with_overrides({"train.iterations": 20, "eval.every": 1})
# The level collapses when success falls to nothing for three evaluations and stays there.
FALLEN = [0.5] * 5 + [0.0] * 16


def rows(success: list[float]) -> list[Row]:
    return [{"iteration": i, "timestamp": float(i), "eval/success": value} for i, value in enumerate(success)]


def seen(success: list[float], ended: dict[str, Any] | None = None, busy: bool = False, **knobs: Any) -> Any:
    dotted = {key.replace("__", "."): value for key, value in knobs.items()}
    return view_of(rows(success), CFG.with_overrides(dotted), ended, busy)


def test_finished_when_the_rows_reach_what_is_asked_for() -> None:
    view = seen([0.5] * 21)
    assert (view.done, view.status, view.iteration, view.stop_iteration) == (True, "finished", 20, None)
    longer = seen([0.5] * 41)
    assert longer == view  # a folder may hold more than this sweep asks for


def test_growth_finds_the_same_folder_short() -> None:
    view = seen([0.5] * 21, train__iterations=40)
    assert (view.done, view.status, view.iteration) == (False, "stopped", 20)


def test_stop_and_shadow_share_a_folder() -> None:
    """A sweep with on_collapse stop sees a collapse in rows that a shadow sweep computed, and the reverse."""
    stopped = seen(FALLEN, detect__on_collapse="stop")
    shadow = seen(FALLEN, detect__on_collapse="continue")
    assert (stopped.done, stopped.status) == (True, "collapsed")
    assert stopped.stop_iteration is not None
    assert stopped.iteration == stopped.stop_iteration < 20
    assert "eval/success" in (stopped.stop_reason or "")
    assert (shadow.done, shadow.status, shadow.iteration, shadow.stop_iteration) == (True, "finished", 20, None)
    assert shadow.rows[stopped.stop_iteration]["detect/stop"] == 1.0
    cut = FALLEN[: stopped.iteration + 1]
    assert seen(cut, detect__on_collapse="stop") == stopped
    assert seen(cut, detect__on_collapse="continue").status == "stopped"  # goes on from there


def test_flags_are_those_of_this_sweeps_detectors() -> None:
    """Stored flags may come from a sweep with other thresholds."""
    stored = [{**row, "detect/level": 1.0, "detect/stop": 1.0} for row in rows([0.5] * 21)]
    view = view_of(stored, CFG)
    assert view.status == "finished"
    assert all(row["detect/level"] == 0.0 and row["detect/stop"] == 0.0 for row in view.rows)


def test_what_is_not_done() -> None:
    failed = {"status": "failed", "error": "out of memory"}
    assert (seen([]).status, seen([]).done) == ("pending", False)
    view = seen([0.5] * 4, failed)
    assert (view.status, view.stop_iteration, view.stop_reason) == ("failed", 3, "out of memory")
    assert seen([0.5] * 4, failed, busy=True).status == "pending"
    assert seen([0.5] * 21, failed).status == "finished"  # the rows decide, not an old note


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert look(tmp_path / "no", CFG).status == "pending"
    assert not (tmp_path / "no").exists()


def plain(run: Run) -> dict[str, Any]:
    """Comparable although NaN differs from itself."""
    fields = {name: getattr(run, name) for name in run.__dataclass_fields__}
    fields["rows"] = [sorted((key, repr(float(value))) for key, value in row.items()) for row in run.rows]
    fields["params"] = sorted((key, repr(value)) for key, value in run.params.items())
    return fields


def test_both_readers_agree(sweep_of: Callable[..., Any], drive: Callable[..., Any], tmp_path: Path) -> None:  # noqa: F811
    """Finished, collapsed and failed trials, NaN and infinity included, read alike from folders and MLflow."""
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(mlflow=True)
    (home / f"fail-{sweep.trials[0].trial_id}").write_text("9")
    finished, _ = drive(sweep, home)
    folders, mirror = from_home(home, sweep.name), from_mlflow(default_uri(home), sweep.name)
    assert [run.status for run in folders] == ["failed", "collapsed", "finished", "collapsed"]
    assert [plain(run) for run in folders] == [plain(run) for run in mirror]
    assert [run.params for run in mirror] == [trial.cfg.flat() for trial in sweep.trials]
    assert [run.mlflow_run_id for run in mirror] == [trial["mlflow_run_id"] for trial in finished.result["trials"]]
    assert repr(folders.runs[2].rows[1]["train/explained_variance"]) == "-inf"
    assert folders.runs[2].series("eval/success")[0].tolist() == list(range(9))


def test_unknown_names(sweep_of: Callable[..., Any], drive: Callable[..., Any], tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(HomeError, match="holds no sweeps yet"):
        from_home(tmp_path, "x")
    with pytest.raises(TrackingError, match="no MLflow database"):
        from_mlflow(default_uri(tmp_path / "void"), "x")
    sweep = sweep_of()
    drive(sweep)
    with pytest.raises(ConfigError, match="There are: tested"):
        from_home(tmp_path / "home", "x")
    assert read_trajectories(tmp_path / "home", sweep.trials[0].trial_id) == []


def test_only_rows_up_to_the_newest_checkpoint_are_durable(tmp_path: Path) -> None:
    """Later rows will be computed again: their times will differ."""
    view = seen([0.5] * 8)
    assert durable(view, tmp_path).rows == ()
    for iteration in (2, 5):
        (tmp_path / "checkpoints" / f"{iteration:08d}").mkdir(parents=True)
    assert durable(view, tmp_path).rows == view.rows[:6]
    whole = seen([0.5] * 21)
    assert durable(whole, tmp_path) is whole


def test_a_home_that_may_not_be_written_can_be_read(
    sweep_of: Callable[..., Any],  # noqa: F811
    drive: Callable[..., Any],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SQLite needs an index beside a write-ahead log, and cannot make one there. Root may write everywhere, so the
    refusal is SQLite's own words from such a folder."""
    home = tmp_path / "home"
    drive(sweep_of(), home)
    real = sqlite3.connect
    writer = real(home / "ledger.sqlite")  # a writer that is still there keeps its last entries in the log
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute("UPDATE sweeps SET command = 'newest'")
    writer.commit()
    refused = []

    def connect(path: Any, **options: Any) -> Any:
        if str(path).endswith("?mode=ro"):
            refused.append(path)
            raise sqlite3.OperationalError("unable to open database file")
        return real(path, **options)

    monkeypatch.setattr("ragen_lab.runs.sqlite3.connect", connect)
    assert len(from_home(home, "tested")) == 4
    assert sweep_record(home, "tested")["command"] == "newest"
    writer.close()
    assert not (home / "ledger.sqlite-wal").exists()
    assert sweep_record(home, "tested")["command"] == "newest"  # immutable
    assert len(refused) == 5
