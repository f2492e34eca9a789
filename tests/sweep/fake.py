"""A trainer with the face of the real one and no model: a seeded random walk with a checkpoint.

Arms with a keep ratio of 0.25 lose their success half-way, so that the real detectors stop them.
Every iteration that is computed leaves a line in ``<home>/calls.log``. Files in the home make trouble:
``fail-<trial>`` an exception (as often as the number in it), ``die-<trial>`` a killed process (once),
``wrong-<trial>`` a ConfigError, each time; ``odd-<trial>`` what its name in ``ODD`` says, ``hang-<trial>`` a trial
that does not go on and ``leak-<trial>`` one that takes so many MB more (these as often as the file has lines).
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ragen_lab.config import RunConfig
from ragen_lab.detect import Panel
from ragen_lab.errors import CheckpointError, ConfigError
from ragen_lab.track import Outcome, Tracker

LEAKED: list[bytes] = []
LEAK = {"calls": 0}  # state that a kept process carries over; a trial must not depend on it


def train(
    cfg: RunConfig,
    tracker: Tracker,
    home: Path,
    progress: Callable[[int, int], None] | None = None,
    until: int | None = None,
) -> Outcome:
    last_now = cfg.train.iterations if until is None else min(until, cfg.train.iterations)
    LEAK["calls"] += 1
    name = cfg.trial_id()
    print("a word of the trainer")
    if progress is not None:
        progress(1, 1)
    rng = random.Random(cfg.seed * 1000 + round(cfg.filter.keep_ratio * 100) + (cfg.filter.kind == "random"))
    state = {"iteration": -1, "walk": 0.3}

    def load(path: Path) -> dict:
        try:
            found = json.loads(path.read_text())
        except ValueError as error:
            raise CheckpointError(str(error)) from None
        rng.setstate((found["rng"][0], tuple(found["rng"][1]), found["rng"][2]))
        return found

    def save(path: Path) -> None:
        path.write_text(json.dumps({**state, "rng": rng.getstate()}))

    state.update(tracker.resume(load) or {})
    panel = Panel(cfg.detect, cfg.train.iterations, tracker.rows)
    stops = cfg.detect.on_collapse == "stop"
    for iteration in range(state["iteration"] + 1, last_now + 1):
        if stops and panel.stop is not None:
            break
        _trouble(home, name, iteration)
        with (home / "calls.log").open("a") as calls:
            calls.write(f"{name} {iteration} {os.getpid()}\n")
        time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
        state["iteration"] = iteration
        state["walk"] = min(1.0, max(0.0, state["walk"] + rng.uniform(-0.01, 0.03)))
        metrics = {"rollout/reward_mean": state["walk"], "train/noise": rng.random()}
        if iteration == 0:  # drawn from the process's own generators: shows what an earlier trial has left there
            metrics["train/leak"] = random.random() + float(np.random.random())
        if iteration == 1:
            metrics["train/explained_variance"] = float("-inf")
        if iteration % cfg.eval.every == 0:
            lost = cfg.filter.keep_ratio == 0.25 and iteration > 3
            metrics["eval/success"] = 0.0 if lost else state["walk"]
        metrics |= panel.update({"iteration": float(iteration), **metrics})
        tracker.log(iteration, metrics)
        if iteration % cfg.train.checkpoint_every == 0 or iteration == last_now or (stops and panel.stop):
            tracker.checkpoint(iteration, save)
    if stops and panel.stop is not None:
        return Outcome("collapsed", panel.stop.iteration, panel.stop.reason)
    return Outcome("finished" if last_now == cfg.train.iterations else "paused", last_now)


def _trouble(home: Path, name: str, iteration: int) -> None:
    if (home / f"wrong-{name}").exists():
        raise ConfigError("page", ["policy.model: no such model; name another."])
    fail, die = home / f"fail-{name}", home / f"die-{name}"
    if iteration == 3 and fail.exists():
        left = int(fail.read_text())
        if left > 0:
            fail.write_text(str(left - 1))
            raise RuntimeError("made to fail\nsecond line")
    if iteration == 3 and die.exists():
        die.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    for kind in ("odd", "hang", "leak"):
        file = home / f"{kind}-{name}"
        if iteration == 3 and file.exists() and (lines := file.read_text().splitlines()):
            file.write_text("\n".join(lines[1:]))
            {"odd": _odd, "hang": _hang, "leak": _leak}[kind](lines[0])


def _hang(_: str) -> None:
    time.sleep(120)


def _leak(megabytes: str) -> None:
    LEAKED.append(b"x" * (int(megabytes) * 10**6))
    time.sleep(120)


class Unshowable(BaseException):
    """Neither an Exception, nor picklable, nor to be shown."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise ValueError("no words")


def _odd(kind: str) -> None:
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if kind == "exit":
        raise SystemExit(3)
    raise {"unshowable": Unshowable(), "memory": MemoryError(), "gpu": RuntimeError("CUDA out of memory. Tried")}[kind]
