"""A trainer whose numbers are a chain of hashes, and which leaves a witness of every iteration that it computes.

What it does is a function of (config, seed, iteration) and of the state in its checkpoint, so a run that was
resumed wrongly shows in its numbers. The witness is a file outside the home, appended to in one write per line:
`begin TRIAL FIRST PID`, `row TRIAL ITERATION PID`, `kept TRIAL ITERATION PID`. Arms with a keep ratio of 0.25 lose
their success half-way, so that the real detectors stop them. `order.json` beside the witness makes one trial, once,
do what it names when it comes to the iteration that it names.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ragen_lab.config import RunConfig
from ragen_lab.detect import Panel
from ragen_lab.errors import CheckpointError
from ragen_lab.track import Outcome, Tracker

FOLDER = "FAULTS_FOLDER"  # environment: where the witness and the order are
SECONDS = "FAULTS_SECONDS"  # environment: of an iteration
WITNESS, ORDER, CLAIMED = "witness.log", "order.json", "order.claimed"
LOUD_BYTES = 100 * 10**6
_leaked: list[bytes] = []


def train(
    cfg: RunConfig,
    tracker: Tracker,
    home: Path,
    progress: Callable[[int, int], None] | None = None,
    until: int | None = None,
) -> Outcome:
    """The face of ``ragen_lab.train.train``."""
    name, last = cfg.trial_id(), cfg.train.iterations if until is None else until
    state = {"iteration": -1, "chain": f"{cfg.config_id()} {cfg.seed}", "level": 0.3}
    state.update(tracker.resume(_load) or {})
    panel = Panel(cfg.detect, cfg.train.iterations, tracker.rows)
    stops = cfg.detect.on_collapse == "stop"
    _witness("begin", name, state["iteration"] + 1)
    for iteration in range(state["iteration"] + 1, last + 1):
        if stops and panel.stop is not None:
            break
        _trouble(home, name, iteration, "row")
        time.sleep(float(os.environ.get(SECONDS, "0.1")))
        metrics = _step(cfg, state, iteration)
        metrics |= panel.update({"iteration": float(iteration), **metrics})
        _witness("row", name, iteration)
        tracker.log(iteration, metrics)
        if iteration % cfg.train.checkpoint_every == 0 or iteration == last or (stops and panel.stop):
            _trouble(home, name, iteration, "checkpoint")
            tracker.checkpoint(iteration, lambda path: _save(path, state))
            _witness("kept", name, iteration)
    if stops and panel.stop is not None:
        return Outcome("collapsed", panel.stop.iteration, panel.stop.reason)
    return Outcome("finished", last)


def _step(cfg: RunConfig, state: dict[str, Any], iteration: int) -> dict[str, float]:
    state["chain"] = hashlib.sha256(f"{state['chain']} {iteration}".encode()).hexdigest()
    draw = int(state["chain"][:12], 16) / 16**12
    state["iteration"] = iteration
    state["level"] = min(1.0, max(0.0, state["level"] + 0.04 * (draw - 0.3)))
    lost = cfg.filter.keep_ratio == 0.25 and iteration > 3
    return {
        "eval/success": 0.0 if lost else state["level"],
        "rollout/reward_mean": state["level"],
        "rollout/success": draw,
        "train/explained_variance": float("-inf") if iteration == 1 else draw / 3,
    }


def _save(path: Path, state: dict[str, Any]) -> None:
    path.write_text(json.dumps({**state, "padding": "x" * 20_000}))


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    return {key: found[key] for key in ("iteration", "chain", "level")}


def _witness(what: str, name: str, iteration: int) -> None:
    handle = os.open(Path(os.environ[FOLDER]) / WITNESS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, f"{what} {name} {iteration} {os.getpid()}\n".encode())
    finally:
        os.close(handle)


def _trouble(home: Path, name: str, iteration: int, where: str) -> None:
    folder = Path(os.environ[FOLDER])
    file = folder / ORDER
    if not file.exists():
        return
    order = json.loads(file.read_text())
    if iteration != order["iteration"] or where != order.get("where", "row"):
        return
    try:
        file.rename(folder / CLAIMED)  # by one trial, once
    except FileNotFoundError:
        return
    if order["kind"] == "hang":  # with the interpreter's lock held, as a hanging library does
        ctypes.PyDLL(None).sleep(600)
    elif order["kind"] == "leak":
        while True:
            _leaked.append(b"x" * 20 * 10**6)
            time.sleep(0.02)
    elif order["kind"] == "loud":
        line = "word " * 200
        for _ in range(LOUD_BYTES // 2 // len(line)):
            print(line)
        block = b"a word of C\n" * 5000
        for _ in range(LOUD_BYTES // 2 // len(block)):
            os.write(1, block)
    elif order["kind"] == "odd":
        raise Odd
    elif order["kind"] == "fill":
        fill(home)


class Odd(BaseException):
    """Cannot be pickled, cannot be shown, is no Exception."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise ValueError("no words")


def fill(home: Path) -> None:
    """Leave no byte free on the home's disk."""
    with (home / "filler").open("ab", buffering=0) as handle:
        for size in (2**16, 2**12, 1):
            try:
                while True:
                    handle.write(b"x" * size)
            except OSError:
                continue
