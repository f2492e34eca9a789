"""One sweep in a folder of its own, whose driver can be started, hurt and started again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.trainer import FOLDER, SECONDS, WITNESS

ROOT = Path(__file__).resolve().parents[2]
SWEEP = "faults"
BASE = """
policy: {model: tiny}
prompt: {style: compact}
env: {name: frozen_lake, slip: 0.0}
rollout: {max_new_tokens: 24, max_context: 512}
train: {iterations: 12, checkpoint_every: 3}
eval: {every: 1}
"""
COMMON = "base: base.yaml\non_collapse: stop\nseeds: 2\n"
# Grid sweeps run two trials at a time. What optuna and asha choose depends on the order in which trials end, so
# they run one at a time, and must then come to what an undisturbed sweep comes to.
DESIGNS = {
    "grid": (2, "axes: {filter.keep_ratio: [1.0, 0.5, 0.25]}\n"),
    "optuna": (
        1,
        "axes: {filter.keep_ratio: [1.0, 0.5, 0.25], optim.lr: {low: 1.0e-4, high: 1.0e-2, log: true}}\n"
        "search: {kind: optuna, trials: 4, startup: 2}\n",
    ),
    "asha": (
        1,
        "axes: {filter.keep_ratio: [1.0, 0.75, 0.5, 0.25]}\nscheduler: {kind: asha, first: 3, factor: 2}\n",
    ),
}


def page_of(design: str, cores: int, extra: str = "") -> str:
    """The sweep page: under Ray too, as many trials at a time as the design may have."""
    at_once, page = DESIGNS[design]
    resources = [f"cpus: {max(1, cores // at_once)}", *([extra] if extra else [])]
    return f"{COMMON}{page}resources: {{{', '.join(resources)}}}\n"


@dataclass
class Session:
    """``seconds``: of an iteration. ``extra``: more resources of the page, for example a limit."""

    folder: Path
    design: str
    engine: str
    seconds: float = 0.12
    extra: str = ""
    home: Path = field(init=False)
    template: Path | None = None  # an empty MLflow database: to make one takes seconds, and is no part of any fault
    mlflow: bool = True
    calls: int = 0  # how often the command had to be repeated
    tracking: str | None = None  # MLflow's address; None = the database of the home
    environment: dict[str, str] = field(default_factory=dict)
    drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.home = self.folder / "home"
        self.home.mkdir()
        self.furnish()
        (self.folder / "base.yaml").write_text(BASE)
        page = page_of(self.design, len(os.sched_getaffinity(0)), self.extra)
        (self.folder / f"{SWEEP}.yaml").write_text(page)

    def furnish(self) -> None:
        """What the home holds before the first start."""
        if self.template is not None:
            shutil.copy(self.template, self.home / "mlflow.db")

    def start(self) -> subprocess.Popen[bytes]:
        """Start a driver; what it says goes to said-N.txt."""
        workers = DESIGNS[self.design][0]
        command = [sys.executable, "-m", "benchmarks.faults.driver", str(self.folder / f"{SWEEP}.yaml"),
                   str(self.home), self.engine, str(workers)]  # fmt: skip
        command += [f"track.mlflow_uri={self.tracking}"] if self.tracking else []
        command += [] if self.mlflow else ["track.mlflow=false"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            FOLDER: str(self.folder),
            SECONDS: str(self.seconds),
            **self.environment,
        }
        with (self.folder / f"said-{len(self.drivers)}.txt").open("wb") as said:
            driver = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                # Started in the background of a shell, it would ignore Ctrl-C.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.drivers.append(driver)
        return driver

    def finish(self, times: int = 3, patience: float = 300) -> int:
        """Repeat the command until it ends well, at most ``times``; how often it took."""
        for count in range(1, times + 1):
            if self.start().wait(patience) == 0:
                return count
        raise RuntimeError(f"the sweep did not end well in {times} calls: {self.said()[-1500:]}")

    def resume(self, times: int = 1) -> None:
        """The same command, until it ends well. Ray may need more calls on a busy machine: its daemons have 30 s to
        start, and the message says so."""
        times = max(times, 4) if self.engine == "ray" else times
        self.calls = self.finish(times)

    def said(self, last: bool = False) -> str:
        """Everything that the drivers said, in order; of the last one only, if so asked."""
        files = [self.folder / f"said-{number}.txt" for number in range(len(self.drivers))][-1 if last else 0 :]
        return "".join(file.read_text(errors="replace") for file in files)

    def witness(self) -> list[str]:
        file = self.folder / WITNESS
        return file.read_text().splitlines() if file.exists() else []

    def wait_rows(self, count: int, patience: float = 120) -> None:
        """Until so many iterations have been computed."""
        self._wait(lambda: sum(line.startswith("row") for line in self.witness()) >= count, patience)

    def wait_until(self, reached: Callable[[Counter[str]], bool], patience: float = 120) -> None:
        """Until ``reached`` holds for the number of checkpoints that each trial has kept."""
        self._wait(
            lambda: reached(Counter(line.split()[1] for line in self.witness() if line.startswith("kept"))), patience
        )

    def _wait(self, reached: Callable[[], bool], patience: float) -> None:
        deadline = time.monotonic() + patience
        while not reached():
            if time.monotonic() > deadline or self.drivers[-1].poll() is not None:
                raise RuntimeError(f"it never came so far: {self.said()[-1500:]}")
            time.sleep(0.02)

    def wait_words(self, patience: float = 120) -> None:
        """Until the driver has told its plan."""
        self._wait(lambda: "Sweep " in self.said(), patience)

    def processes(self, words: str = "") -> list[int]:
        """Processes that this session has started, at any remove, whose command line holds ``words``."""
        mark = f"{FOLDER}={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if words in line:
                        found.append(int(entry.name))
            except OSError:  # it has gone meanwhile
                continue
        return found

    def quiet(self, patience: float = 60) -> list[int]:
        """Wait until no process of the session is left; those that are still there after ``patience``."""
        deadline = time.monotonic() + patience
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def kill(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def moment(chance: random.Random, seconds: float) -> float:
    """A random moment of a sweep that takes so long."""
    return chance.uniform(0.2, seconds)
