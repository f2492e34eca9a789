"""Searches and schedulers brought from another home: what they know comes along, so that they go on as they would."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.errors import ConfigError
from ragen_lab.runs import LEDGER_FILE, from_home, sweep_record
from ragen_lab.sweep.control import status_of
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.searched import summary
from ragen_lab.sweep.spec import Sweep
from ragen_lab.sweep.transfer import Transfer, bring, plan_import
from tests.sweep.conftest import calls
from tests.sweep.test_search import HALVING, PAGES, SEARCH, told

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]


def imported(home: Path, source: Path, sweep: str | None = None) -> Transfer:
    return bring(home, plan_import(home, source, sweep), sweep)


def seen(home: Path) -> list[Any]:
    return [(r.trial_id, r.arm, r.status, r.stop_iteration, r.stop_reason) for r in from_home(home, "tested")]


def proposals(home: Path) -> list[tuple[Any, ...]]:
    ledger = Ledger(home)
    found = [
        tuple(row) for row in ledger._read("SELECT number, search, arm, params, attrs, fault FROM proposals").fetchall()
    ]
    ledger.close()
    return sorted(found)


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize("trials", [3, 8])
def test_a_search_goes_on_in_its_new_home(kind: str, trials: int, sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Begun in one home, continued in both: the same proposals, promotions and results; nothing computed twice."""
    old, new = tmp_path / "old", tmp_path / "new"
    drive(sweep_of(PAGES[kind], budget__trials=trials), old)
    imported(new, old)
    assert seen(new) == seen(old)
    assert proposals(new) == proposals(old)
    before = calls(old)
    there, _ = drive(sweep_of(PAGES[kind]), old)
    here, _ = drive(sweep_of(PAGES[kind]), new)
    assert told(new, here) == told(old, there)
    assert proposals(new) == proposals(old)
    assert calls(new) == calls(old) - before


@pytest.mark.parametrize("kind", PAGES)
def test_a_finished_search_is_shown_as_it_was(kind: str, sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    drive(sweep_of(PAGES[kind]), old)
    imported(new, old)
    assert seen(new) == seen(old)
    assert summary(new, "tested", from_home(new, "tested")) == summary(old, "tested", from_home(old, "tested"))
    assert (summary(new, "tested", from_home(new, "tested")) is None) == ("search" not in kind and kind != "racing")
    assert status_of(new, "tested")["state"] == "done"
    again, text = drive(sweep_of(PAGES[kind]), new)
    assert all(trial["reused"] for trial in again.result["trials"]), text
    assert not calls(new)


def test_a_search_that_has_gone_on_comes_again(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """What was imported before and has grown there since: the rest of it comes."""
    old, new, page = tmp_path / "old", tmp_path / "new", PAGES["search with asha"]
    drive(sweep_of(page, budget__trials=4), old)
    imported(new, old)
    drive(sweep_of(page), old)
    assert "pruned" in {row[2] for row in seen(old)}
    imported(new, old)
    assert sorted(seen(new)) == sorted(seen(old))
    assert proposals(new) == proposals(old)
    drive(sweep_of(page), new)
    assert not calls(new)


def test_ours_is_kept_where_it_has_gone_further(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Theirs had ended a setting that ours, asked for more settings, has promoted since."""
    old, new = tmp_path / "old", tmp_path / "new"
    drive(sweep_of(HALVING), old)
    shutil.copytree(old, new)
    (new / "calls.log").unlink()
    more = HALVING.replace("0.6, 0.5]", "0.6, 0.5, 0.45, 0.4, 0.35, 0.3]")
    drive(sweep_of(more), new)
    before = seen(new)
    promoted = {row[0] for row in before if row[2] != "pruned"} & {row[0] for row in seen(old) if row[2] == "pruned"}
    assert promoted  # else this shows nothing
    imported(new, old)
    assert seen(new) == before


def test_two_searches_that_have_parted_are_not_mixed(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for home in (old, new):
        drive(sweep_of(SEARCH, budget__trials=8), home)
    with sqlite3.connect(new / LEDGER_FILE) as ledger:  # as with several workers, whose order decides
        ledger.execute("UPDATE proposals SET params = '{\"optim.lr\": 0.5}' WHERE number >= 1")
    ledger.close()
    with pytest.raises(ConfigError, match=r"'tested' is here too, and its search has proposed other settings from #1"):
        plan_import(new, old)


def test_a_changed_search_comes_beside_ours(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Another space is another search of the same sweep: ours stays the one that is shown."""
    old, new = tmp_path / "old", tmp_path / "new"
    drive(sweep_of(SEARCH.replace("low: 0.3", "low: 0.4")), old)
    drive(sweep_of(SEARCH), new)
    mine = sweep_record(new, "tested")["search"]
    imported(new, old)
    assert sweep_record(new, "tested")["search"] == mine
    assert {row[1] for row in proposals(new)} > {row[1] for row in proposals(old)}
    before = calls(new)
    drive(sweep_of(SEARCH.replace("low: 0.3", "low: 0.4")), new)
    assert calls(new) == before


def test_a_home_of_an_older_version(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Its ledger knows no searches; it is only read."""
    old, new = tmp_path / "old", tmp_path / "new"
    drive(sweep_of(HALVING.split("scheduler")[0]), old)
    with sqlite3.connect(old / LEDGER_FILE) as ledger:
        ledger.executescript(
            "DROP VIEW runs; DROP TABLE proposals; ALTER TABLE sweep_trials DROP COLUMN until; "
            "ALTER TABLE sweep_trials DROP COLUMN pruned_at; ALTER TABLE sweep_trials DROP COLUMN pruned_why; "
            "ALTER TABLE sweeps DROP COLUMN search; PRAGMA user_version = 2; "
            "CREATE VIEW runs AS SELECT t.sweep, t.position, t.trial_id, trials.config_id, t.arm, t.seed, "
            "t.iterations, t.on_collapse, t.config, t.mlflow_run_id FROM sweep_trials AS t JOIN trials ON "
            "trials.trial_id = t.trial_id WHERE t.left_at IS NULL;"
        )
    ledger.close()
    before = (old / LEDGER_FILE).read_bytes()
    assert imported(new, old).sweeps == {"tested": 6}
    assert (old / LEDGER_FILE).read_bytes() == before


def test_a_sweep_is_taken_over_whole_or_not_at_all(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    drive(sweep_of(SEARCH, budget__trials=3), old)
    ledger = Ledger(new)
    record = {**sweep_record(old, "tested"), "findings": "[]", "warnings": "[]"}
    rows = [{"trial_id": "x", "config_id": "y"}]  # cut short
    with pytest.raises(KeyError):
        ledger.adopt(record, rows)
    assert ledger.sweep_names() == []
    ledger.close()
