"""The ledger's own promises: a change is one transaction, and what fails says why."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.errors import HomeError
from ragen_lab.runs import LEDGER_FILE
from ragen_lab.sweep.ledger import Ledger

RECORD = {"name": "s", "file": "f", "findings": "[]", "warnings": "[]", "command": "", "created": 0, "updated": 0}
ROW = {"trial_id": "t", "config_id": "c", "arm": "a", "seed": 0, "iterations": 8, "on_collapse": "stop",
       "config": "{}"}  # fmt: skip


def test_a_full_disk_says_so_and_the_ledger_goes_on(tmp_path: Path) -> None:
    """SQLite rolls back by itself when the disk is full: our own rollback must not hide that."""
    ledger = Ledger(tmp_path)
    pages = ledger._database.execute("PRAGMA page_count").fetchone()[0]
    ledger._database.execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        for number in range(10_000):
            ledger.attempt_started("tested", f"{number:012d}", 1)

    with pytest.raises(HomeError, match="database or disk is full"):
        fill()
    before = len(ledger._read("SELECT * FROM attempts").fetchall())
    ledger._database.execute("PRAGMA max_page_count = 100000")
    ledger.attempt_started("tested", "after", 1)
    assert len(ledger._read("SELECT * FROM attempts").fetchall()) == before + 1
    ledger.close()


def test_a_commit_that_fails_leaves_no_transaction_open(tmp_path: Path) -> None:
    """The next change must not meet what a failed one left."""
    ledger = Ledger(tmp_path)

    class Failing:
        """The connection, whose first commit fails."""

        failed = False

        def __init__(self, real: object) -> None:
            self.real = real

        def execute(self, query: str, *values: object) -> object:
            if query == "COMMIT" and not self.failed:
                self.failed = True
                raise sqlite3.OperationalError("disk I/O error")
            return self.real.execute(query, *values)  # type: ignore[attr-defined]

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

    ledger._database = Failing(ledger._database)  # type: ignore[assignment]
    with pytest.raises(HomeError, match="disk I/O error"):
        ledger.attempt_started("tested", "first", 1)
    ledger.attempt_started("tested", "second", 1)
    rows = ledger._read("SELECT trial_id FROM attempts").fetchall()
    assert [row["trial_id"] for row in rows] == ["second"]
    ledger.close()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_another_writes_leaves_no_transaction_open(tmp_path: Path) -> None:
    """It is raised when SQLite returns, with the transaction begun; an open one would keep every other driver out."""
    ledger, other = Ledger(tmp_path), Ledger(tmp_path)
    database = sqlite3.connect(tmp_path / LEDGER_FILE, isolation_level=None, check_same_thread=False)
    database.execute("BEGIN IMMEDIATE")

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        database.execute("ROLLBACK")

    timer = threading.Timer(0.3, interrupt)

    def begin() -> None:  # the interrupt may come early on a busy machine
        timer.start()
        ledger.attempt_started("tested", "first", 1)

    with pytest.raises(KeyboardInterrupt):
        begin()
    timer.join()
    assert not ledger._database.in_transaction
    other._database.execute("PRAGMA busy_timeout = 0")
    other.attempt_started("tested", "second", 1)
    ledger.attempt_started("tested", "third", 1)
    rows = ledger._read("SELECT trial_id FROM attempts").fetchall()
    assert [row["trial_id"] for row in rows] == ["second", "third"]


def test_an_interrupt_before_the_block_of_a_change_is_undone_by_the_next(tmp_path: Path) -> None:
    """Its exception may still be under way, with the block's frame."""
    ledger = Ledger(tmp_path)
    opened: Generator[Any] = ledger._change().gen  # type: ignore[attr-defined]
    next(opened).execute("INSERT INTO meta VALUES ('half', '')")
    ledger.attempt_started("tested", "first", 1)
    assert ledger._read("SELECT * FROM meta WHERE key = 'half'").fetchall() == []
    opened.close()
    assert len(ledger.attempts("first")) == 1


def test_a_trial_adopted_again_is_as_where_it_came_further(tmp_path: Path) -> None:
    """First from a home of an older version, which knows nothing of schedulers; then ended there; then promoted; and a
    home that is behind changes nothing."""
    ledger = Ledger(tmp_path)
    told = []
    for until, at in ((None, None), (2, 2), (4, None), (2, 2), (4, 4), (4, None)):
        known = {} if until is None else {"until": until, "pruned_at": at, "pruned_why": at and "why"}
        assert ledger.adopt(RECORD, [{**ROW, **known}]) == 1
        told.append(tuple(ledger._read("SELECT until, pruned_at, pruned_why FROM runs").fetchone()))
    assert told == [(None, None, None), (2, 2, "why"), (4, None, None), (4, None, None), (4, 4, "why"), (4, 4, "why")]
    ledger.close()


def test_a_trial_that_has_left_is_not_called_back_by_a_home_that_came_further(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.adopt(RECORD, [{**ROW, "until": 2}])
    ledger._database.execute("UPDATE sweep_trials SET left_at = 1.0")
    assert ledger.adopt(RECORD, [{**ROW, "until": 4}]) == 0
    assert ledger.left("s") == {"t"}
    ledger.close()
