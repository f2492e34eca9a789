"""Pages and a driver for sweeps of the fake trainer."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ragen_lab.sweep.drive import Finished, Options, run_sweep
from ragen_lab.sweep.spec import Sweep, load_sweep

ROOT = Path(__file__).resolve().parents[2]
FAKE = "tests.sweep.fake:train"

BASE = """
policy: {model: tiny}
prompt: {style: compact}
env: {name: frozen_lake, slip: 0.0}
rollout: {max_new_tokens: 24, max_context: 512}
train: {iterations: 8, checkpoint_every: 2}
eval: {every: 1}
"""
PAGE = """
base: base.yaml
findings: [4]
axes:
  filter.keep_ratio: [1.0, 0.25]
seeds: 2
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import the fake trainer by name."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A test run in the background of a shell ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a base page and a sweep page; the sweep page's path."""

    def make(page: str = PAGE, base: str = BASE, name: str = "tested") -> Path:
        (tmp_path / "base.yaml").write_text(base)
        file = tmp_path / f"{name}.yaml"
        file.write_text(page)
        return file

    return make


@pytest.fixture
def sweep_of(write: Callable[..., Path]) -> Callable[..., Sweep]:
    """A resolved sweep, without MLflow unless asked for."""

    def make(page: str = PAGE, mlflow: bool = False, **overrides: Any) -> Sweep:
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        return load_sweep(write(page), {"track.mlflow": mlflow, **dotted})

    return make


@pytest.fixture
def drive(tmp_path: Path) -> Callable[..., tuple[Finished, str]]:
    """Run a sweep of the fake trainer in this process; the outcome and what people were told."""

    def run(sweep: Sweep, home: Path | None = None, **options: Any) -> tuple[Finished, str]:
        text = io.StringIO()
        chosen = Options(home or tmp_path / "home", "local", 0, trainer=FAKE, report=False, command="ragen-lab again")
        finished = run_sweep(sweep, replace(chosen, **options), Console(file=text, width=200))
        return finished, text.getvalue()

    return run


def calls(home: Path) -> Counter[tuple[str, int]]:
    """(trial, iteration) -> how often it was computed."""
    file = home / "calls.log"
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter((line.split()[0], int(line.split()[1])) for line in lines)


def numbers(rows: Any) -> list[dict[str, str]]:
    """Rows without their times, comparable although NaN differs from itself."""
    return [
        {k: repr(float(v)) for k, v in row.items() if k != "timestamp" and not k.startswith("time/")} for row in rows
    ]


SCRIPT = """
import sys
from pathlib import Path
from rich.console import Console
from ragen_lab.sweep.drive import Options, run_sweep
from ragen_lab.sweep.last_words import leave
from ragen_lab.sweep.spec import load_sweep, parse_sets

if __name__ == "__main__":
    file, home, engine, *sets = sys.argv[1:]
    options = Options(Path(home), engine, trainer="tests.sweep.fake:train", report=False, command="ragen-lab again")
    leave(lambda: run_sweep(load_sweep(file, parse_sets(sets)), options, Console(file=sys.stderr)).exit_code)
"""


def start_driver(
    folder: Path, file: Path, home: Path, engine: str = "local", mlflow: str = "false", sleep: float = 0.0
) -> subprocess.Popen[str]:
    """A driver in a process of its own, so that it can be killed."""
    script = folder / "driver.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FAKE_SLEEP": str(sleep)}
    command = [sys.executable, str(script), str(file), str(home), engine, f"track.mlflow={mlflow}"]
    # A test run in the background of a shell ignores Ctrl-C, and would hand that down.
    return subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
