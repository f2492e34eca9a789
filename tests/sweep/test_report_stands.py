"""A repeated sweep leaves its report alone as long as it would come out the same, and no longer."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.report import inputs
from ragen_lab.report.inputs import fingerprint, stands
from ragen_lab.sweep.drive import Finished, report_of
from ragen_lab.sweep.spec import Sweep
from ragen_lab.track import DONE_FILE, METRICS_FILE, PROVENANCE_FILE

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]
LEFT = "(up to date, left as it was)"


@pytest.fixture
def done(sweep_of: Make, drive: Drive, tmp_path: Path) -> Callable[..., tuple[Finished, str]]:
    """Run the sweep with its report at report.html; again by each call."""

    def again(**overrides: Any) -> tuple[Finished, str]:
        return drive(sweep_of(**{"train__iterations": 3, **overrides}), report=True, out=tmp_path / "report.html")

    finished, text = again()
    assert finished.exit_code == 0
    assert LEFT not in text
    return again


def test_a_repeated_sweep_leaves_its_report_alone(done: Drive, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    before = (out.read_bytes(), out.stat().st_mtime_ns)
    finished, text = done()
    assert finished.result["report"] == str(out)
    assert f"Report: {out} {LEFT}" in text
    assert (out.read_bytes(), out.stat().st_mtime_ns) == before


def test_a_lost_or_foreign_report_is_written(done: Drive, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    whole = out.read_text()
    out.unlink()
    assert LEFT not in done()[1]
    assert out.is_file()
    out.write_text(whole.replace('<meta name="ragen-lab-inputs"', '<meta name="other"'))
    assert LEFT not in done()[1]
    assert LEFT in done()[1]


def test_a_sweep_that_grew_gets_a_new_report(done: Drive, tmp_path: Path) -> None:
    before = (tmp_path / "report.html").read_bytes()
    assert LEFT not in done(seeds=3)[1]
    assert (tmp_path / "report.html").read_bytes() != before


def _touch(file: Path) -> None:
    os.utime(file, ns=(1, 1))


def _in_ledger(home: Path, statement: str) -> None:
    with sqlite3.connect(home / "ledger.sqlite") as ledger:
        ledger.execute(statement)
    ledger.close()


@pytest.mark.parametrize("name", [METRICS_FILE, DONE_FILE, PROVENANCE_FILE])
def test_a_trial_that_was_written_again_counts(done: Drive, tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    file = next(home.glob(f"trials/*/{name}"))
    before = fingerprint(home, "tested")
    _touch(file)
    touched = fingerprint(home, "tested")
    assert touched != before
    file.unlink()
    assert fingerprint(home, "tested") not in (before, touched)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE sweeps SET findings = '[1]'",
        "UPDATE sweeps SET warnings = '[\"something\"]'",
        "UPDATE sweeps SET command = 'another'",
        "UPDATE sweep_trials SET pruned_at = 1 WHERE position = 0",
        "UPDATE sweep_trials SET arm = 'renamed' WHERE position = 0",
        "UPDATE sweep_trials SET left_at = 1 WHERE position = 0",
        "UPDATE sweep_trials SET mlflow_run_id = 'abc' WHERE position = 0",
        "INSERT INTO proposals VALUES ('tested', 0, '{}', 'a', '{}', '{}', NULL, 0)",
    ],
)
def test_what_the_ledger_says_counts(done: Drive, tmp_path: Path, change: str) -> None:
    home = tmp_path / "home"
    before = fingerprint(home, "tested")
    _in_ledger(home, change)
    assert fingerprint(home, "tested") != before


def test_when_it_was_last_run_does_not_count(done: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    before = fingerprint(home, "tested")
    _in_ledger(home, "UPDATE sweeps SET updated = updated + 1, mirrored = 'else'")
    assert fingerprint(home, "tested") == before


def test_the_code_and_the_command_count(done: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    before = fingerprint(home, "tested", "one")
    assert fingerprint(home, "tested", "two") != before
    assert fingerprint(home, "tested", "one") == before
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "other.py").write_text("x = 1\n")
    monkeypatch.setattr(inputs, "_PACKAGE", tmp_path / "code")
    other = fingerprint(home, "tested", "one")
    assert other != before
    (tmp_path / "code" / "other.py").write_text("x = 2\n")
    assert fingerprint(home, "tested", "one") != other


def test_the_report_of_an_unfinished_sweep_never_stands(done: Drive, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "report.html"
    folder = next(home.glob("trials/*"))
    rows = (folder / METRICS_FILE).read_text().splitlines(keepends=True)
    (folder / METRICS_FILE).write_text("".join(rows[:2]))
    assert report_of(home, "tested", out) == out
    assert "ragen-lab-inputs" not in out.read_text()
    assert not stands(out, fingerprint(home, "tested"))
