"""The harness of benchmarks/faults counts by fact: a worked example, a doctored sweep, and one real fault."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import Line, inject, make_template, message, reference
from benchmarks.faults.inject import FAULTS, LIMITS, Length
from benchmarks.faults.measure import Damage, Reference, compare_home, compare_mlflow, compare_witness, read_home
from benchmarks.faults.session import DESIGNS, SWEEP, Session
from ragen_lab.mirror import default_uri

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds its processes in /proc")


def test_repeated_work_by_hand() -> None:
    """a: rows 0 to 4 with checkpoints at 0 and 3, then begun at 4: one row twice, none needlessly. b: checkpoint at 2,
    begun again at 1: rows 1 and 2 twice, both needlessly. c: its checkpoint at 2 was spoilt on purpose."""
    a = ["begin a 0 1", *(f"row a {i} 1" for i in range(5)), "kept a 0 1", "kept a 3 1", "begin a 4 2", "row a 4 2"]
    b = ["begin b 0 1", "row b 0 1", "row b 1 1", "row b 2 1", "kept b 2 1", "begin b 1 2", "row b 1 2", "row b 2 2"]
    c = ["begin c 0 1", "row c 0 1", "kept c 0 1", "row c 1 1", "row c 2 1", "kept c 2 1", "begin c 1 2", "row c 1 2"]
    damage = Damage()
    compare_witness([*a, *b], damage)
    assert (damage.repeated, damage.beyond) == (3, 2)
    damage = Damage()
    compare_witness(c, damage)
    assert damage.beyond == 2
    damage = Damage()
    compare_witness(c, damage, [("c", 2)])
    assert (damage.repeated, damage.beyond) == (1, 0)


def test_the_message_is_what_was_shown() -> None:
    assert message("first\nthe disk is full (/a/b/c). Free\n", "No space|disk is full") == (
        "the disk is full (.../c). Free"
    )
    assert message("first", "second") is None


def test_what_meets_the_goal() -> None:
    assert not Line("leak", "grid", "local").clean  # not run
    assert Line("leak", "grid", "local", 1, Damage(repeated=2)).clean
    for damage in (Damage(lost=1), Damage(repeated=2, beyond=1), Damage(missing=1), Damage(faults=["a traceback"])):
        assert not Line("leak", "grid", "local", 1, damage).clean


def test_every_fault_has_its_name() -> None:
    assert set(LIMITS) <= set(FAULTS)
    assert {"grid", "optuna", "asha"} == set(DESIGNS)


def test_a_real_fault_and_a_doctored_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that cannot be pickled costs nothing; then damage of every kind is done by hand."""
    make_template(tmp_path)
    monkeypatch.setattr(shutil, "rmtree", lambda *_: None)  # the folder is doctored below
    truth = reference("grid", tmp_path)
    assert sorted(truth.status.values()) == ["collapsed"] * 2 + ["finished"] * 4
    line = Line("odd_exception", "grid", "local")
    inject(line, 0, truth, Length(1.0, 60), tmp_path, 0.0)
    assert line.clean, line.text()
    assert "cannot be shown" in line.message
    home = next(tmp_path.glob("odd_exception-*")) / "home"
    rows, status = read_home(home, SWEEP)
    trial = next(name for name in status if status[name] == "finished")

    with sqlite3.connect(home / "mlflow.db") as database:
        run, key, step = database.execute("SELECT run_uuid, key, step FROM metrics LIMIT 1").fetchone()
        database.execute("UPDATE metrics SET step = step + 1 WHERE (run_uuid, key, step) = (?, ?, ?)", (run, key, step))
    database.close()
    damage = Damage()
    compare_mlflow(default_uri(home), home, SWEEP, truth, damage)
    assert (damage.duplicates, damage.missing) == (1, 1)  # a point moved onto its neighbour
    moved = damage.differing

    spoilt = 0
    for change in ("value = value + 1", "timestamp = timestamp + 1"):
        with sqlite3.connect(home / "mlflow.db") as database:
            point = database.execute(
                "SELECT run_uuid, key, step FROM metrics WHERE key = 'eval/success' AND step = ?", (6 + spoilt,)
            ).fetchone()
            database.execute(f"UPDATE metrics SET {change} WHERE (run_uuid, key, step) = (?, ?, ?)", point)
        database.close()
        damage, spoilt = Damage(), spoilt + 1
        compare_mlflow(default_uri(home), home, SWEEP, truth, damage)
        assert damage.differing == spoilt + moved

    with sqlite3.connect(home / "mlflow.db") as database:
        database.execute("UPDATE runs SET status = 'KILLED' WHERE run_uuid NOT IN (SELECT run_uuid FROM metrics)")
    database.close()
    damage = Damage()
    compare_mlflow(default_uri(home), home, SWEEP, truth, damage)
    assert damage.faults == ["MLflow calls the sweep KILLED"]

    other = dict.fromkeys(status, "finished")
    lacking = {**rows, trial: rows[trial][:-2]}
    damage = Damage()
    compare_home(home, SWEEP, Reference({**truth.rows, "x": rows[trial]}, {**truth.status, "x": "finished"}), damage)
    assert (damage.lost, damage.wrong) == (len(rows[trial]), 1)  # a trial that never ran
    damage = Damage()
    compare_home(home, SWEEP, Reference(lacking, other), damage)
    assert (damage.differing, damage.wrong) == (2, 2)  # two rows too many; two that collapsed


def test_a_session_finds_its_own_processes_only(tmp_path: Path) -> None:
    session = Session(tmp_path / "one", "grid", "local", mlflow=False)
    driver = session.start()
    assert driver.pid in session.processes()
    assert Session(tmp_path / "two", "grid", "local").processes() == []
    session.kill(session.processes())
    driver.wait()
    assert session.quiet(10) == []
