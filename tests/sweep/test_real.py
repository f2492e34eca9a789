"""The whole path with the real trainer: engines agree, and a killed driver or worker changes no number."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ragen_lab.locks import is_locked

ROOT = Path(__file__).resolve().parents[2]
PAGE = """
base: {base}
axes:
  filter.keep_ratio: [1.0, 0.5]
seeds: 2
on_collapse: continue
"""
SETS = {
    "train.iterations": 6,
    "train.checkpoint_every": 2,
    "eval.every": 2,
    "eval.prompts": 32,
    "rollout.prompts": 4,
    "rollout.responses": 8,
}


def command(tmp_path: Path, home: str, *more: str) -> list[str]:
    page = tmp_path / "real.yaml"
    page.write_text(PAGE.format(base=ROOT / "experiments" / "frozen_lake_edge.yaml"))
    sets = [word for path, value in SETS.items() for word in ("--set", f"{path}={value}")]
    return [
        sys.executable,
        "-m",
        "ragen_lab",
        "sweep",
        str(page),
        *sets,
        "--home",
        str(tmp_path / home),
        "--json",
        *more,
    ]


def run(tmp_path: Path, home: str, *more: str) -> dict:
    done = subprocess.run(command(tmp_path, home, *more), capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def numbers(home: Path) -> dict[str, list[dict]]:
    """Rows of every trial without what a clock decides."""
    found = {}
    for file in sorted(home.glob("trials/*/metrics.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        found[file.parent.name] = [
            {k: v for k, v in row.items() if k != "timestamp" and not k.startswith("time/")} for row in rows
        ]
    return found


def interrupted(tmp_path: Path, home: str, strike, *more: str) -> None:
    """Start the sweep; once two trials have rows beyond a checkpoint, ``strike(driver)``."""
    driver = subprocess.Popen(
        command(tmp_path, home, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    try:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and driver.poll() is None:
            if any(len(rows) >= 4 for rows in numbers_or_none(tmp_path / home).values()):
                break
            time.sleep(0.1)
        assert driver.poll() is None, "the driver ended before anything could be interrupted"
        strike(driver)
    finally:
        if driver.poll() is None and strike is kill_driver:
            driver.kill()
        code = driver.wait(300)
    assert code == (-signal.SIGKILL if strike is kill_driver else 0)


def numbers_or_none(home: Path) -> dict[str, list[dict]]:
    try:
        return numbers(home)
    except (OSError, ValueError):  # a line that is being written
        return {}


def kill_driver(driver: subprocess.Popen) -> None:
    os.kill(driver.pid, signal.SIGKILL)


def worker_killer(home: Path, name: str):
    """A strike at one process: the one that holds the lock of a trial under way, known by its ``name`` too."""

    def strike(driver: subprocess.Popen) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for trial, rows in numbers_or_none(home).items():
                file = home / "trials" / trial / "lock"
                if len(rows) < 7 and is_locked(file):
                    pid = int(file.read_text().split()[1])  # "process 123 on host"
                    called = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    assert name in called, called
                    assert pid != driver.pid
                    os.kill(pid, signal.SIGKILL)
                    return
            time.sleep(0.05)
        raise AssertionError("no worker was at work")

    return strike


def attempts(home: Path) -> list[int]:
    """How often each trial was begun, by the ledger."""
    with sqlite3.connect(home / "ledger.sqlite") as ledger:
        return [row[0] for row in ledger.execute("SELECT count(*) FROM attempts GROUP BY trial_id")]


@pytest.mark.slow
def test_pitfall_19_20_engines_agree_and_kills_change_nothing(tmp_path):
    """Pitfalls 19, 20: local = Ray = after kill -9 of the driver = after kill -9 of a worker, bit for bit."""
    first = run(tmp_path, "local", "--local")
    assert [t["status"] for t in first["trials"]] == ["finished"] * 4
    expected = numbers(tmp_path / "local")
    assert all([row["iteration"] for row in rows] == list(range(7)) for rows in expected.values())

    run(tmp_path, "ray")
    assert numbers(tmp_path / "ray") == expected

    interrupted(tmp_path, "killed", kill_driver, "--local")
    before = {trial: len(rows) for trial, rows in numbers(tmp_path / "killed").items()}
    assert any(count < 7 for count in before.values()) or len(before) < 4, "nothing was interrupted"
    again = run(tmp_path, "killed", "--local")
    assert numbers(tmp_path / "killed") == expected
    finished = {trial for trial, count in before.items() if count == 7}
    assert {t["trial_id"] for t in again["trials"] if t["reused"]} >= finished

    interrupted(tmp_path, "worker", worker_killer(tmp_path / "worker", "ragen_lab.sweep.local"), "--local")
    assert numbers(tmp_path / "worker") == expected
    assert sorted(attempts(tmp_path / "worker")) == [1, 1, 1, 2]  # it was tried again, and by itself

    # The actor is called after the wrapper that Tune puts around our OneTrial.
    interrupted(tmp_path, "ray-worker", worker_killer(tmp_path / "ray-worker", "ray::ResourceTrainable"))
    assert numbers(tmp_path / "ray-worker") == expected
    assert sorted(attempts(tmp_path / "ray-worker")) == [1, 1, 1, 2]

    interrupted(tmp_path, "killed-ray", kill_driver)
    run(tmp_path, "killed-ray")
    assert numbers(tmp_path / "killed-ray") == expected

    repeated = run(tmp_path, "local", "--local")
    assert all(t["reused"] for t in repeated["trials"])
