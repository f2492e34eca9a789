"""How long what is left will take: from a trial's own rows, from a probe, or from the nearest finished trial."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ragen_lab.config import RunConfig, flatten
from ragen_lab.runs import View
from ragen_lab.sweep.spec import Trial
from ragen_lab.track import DONE_FILE, METRICS_FILE, TRIALS_FOLDER, Row, read_done, read_json, read_rows

# What decides the seconds of an iteration. How often there is an evaluation is reckoned with by itself.
_COST = ("policy.model", "policy.dtype", "policy.device", "policy.tiny.", "env.", "prompt.", "rollout.", "filter.",
         "algo.name", "algo.kl.place", "optim.minibatch", "optim.epochs", "optim.updates_per_rollout",
         "optim.micro_batch", "train.threads", "eval.prompts", "eval.probes", "eval.sets",
         "eval.mutual_information_")  # fmt: skip
_RECENT = 11  # rows behind the present pace
_PHASE = re.compile(r"time/(?!cpu_)\w+_seconds")  # the phases of an iteration follow one another


@dataclass(frozen=True)
class Pace:
    """Seconds of an iteration, and of one that ends in an evaluation."""

    plain: float
    evaluated: float

    def of(self, cfg: RunConfig, last: int) -> float:
        """Seconds of what follows row ``last`` (-1: of everything, the evaluation of the start policy included)."""
        every, asked, done = cfg.eval.every, cfg.train.iterations, max(0, last)
        evaluations = asked // every - done // every
        start = max(0.0, self.evaluated - self.plain) if last < 0 else 0.0
        return start + (asked - done - evaluations) * self.plain + evaluations * self.evaluated

    def mean(self, cfg: RunConfig) -> float:
        """Seconds per iteration, evaluations included."""
        return self.plain + (self.evaluated - self.plain) / cfg.eval.every


@dataclass(frozen=True)
class Known:
    """A trial with a pace that others can borrow."""

    trial_id: str
    name: str
    costs: dict[str, Any]
    pace: Callable[[], Pace | None]


@dataclass(frozen=True)
class Estimate:
    """Seconds of what is left of one trial, alone on its machine, and whose pace that is."""

    seconds: float
    basis: str


def cost_setting(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of a flat config that change what an iteration costs."""
    return {path: value for path, value in leaves.items() if path.startswith(_COST)}


def pace_of(rows: Sequence[Row]) -> Pace | None:
    """Median seconds of an iteration, those with an evaluation apart; None where none was timed."""
    plain: list[float] = []
    evaluated: list[float] = []
    for earlier, later in pairwise(rows):
        if (seconds := _seconds_of(earlier, later)) is not None:
            (evaluated if "eval/success" in later else plain).append(seconds)
    if not plain and not evaluated:
        return None
    ordinary = _median(plain) if plain else _median(evaluated)
    return Pace(ordinary, _median(evaluated) if evaluated else ordinary)


def recent_pace(rows: Sequence[Row], cfg: RunConfig) -> Pace | None:
    """The present one: of the last rows, two evaluations among them where there are so many."""
    return pace_of(rows[-max(_RECENT, 2 * cfg.eval.every + 1) :])


def _seconds_of(earlier: Row, later: Row) -> float | None:
    """What the iteration of the later row took: by its own phases, else by the clock between the two.

    Between two rows may lie a night in which nobody worked on the trial, or a clock that was set.
    """
    phases = [value for name, value in later.items() if _PHASE.fullmatch(name) and math.isfinite(value)]
    if phases:
        return sum(phases)
    gap = later.get("timestamp", 0) - earlier.get("timestamp", 0)
    return gap if gap > 0 and "timestamp" in earlier else None


def _median(values: list[float]) -> float:
    """The lower one of two in the middle: what stands out is a pause."""
    return sorted(values)[(len(values) - 1) // 2]


def known_in(home: Path) -> list[Known]:
    """The finished trials of a home, newest first. Their rows are only read when a pace is asked for."""
    folders = [done.parent for done in (home / TRIALS_FOLDER).glob(f"*/{DONE_FILE}")]
    found = []
    for folder in sorted(folders, key=lambda each: (-_ended(each), each.name)):
        stored, ended = read_json(folder / "config.json"), read_done(folder)
        if not isinstance(stored, dict) or ended is None or ended.get("status") not in ("finished", "collapsed"):
            continue
        costs = cost_setting(flatten(stored.get("config", {})))
        found.append(Known(folder.name, f"trial {folder.name} of this home", costs, _reader(folder)))
    return found


def _ended(folder: Path) -> float:
    try:
        return (folder / DONE_FILE).stat().st_mtime
    except FileNotFoundError:  # another driver has just begun to continue it
        return 0.0


def _reader(folder: Path) -> Callable[[], Pace | None]:
    return lambda: pace_of(read_rows(folder / METRICS_FILE))


def estimates(
    trials: Sequence[tuple[Trial, View]], known: Sequence[Known], measured: Mapping[str, Known]
) -> dict[str, Estimate]:
    """Trial id -> estimate, for the trials that are not done and of which something like them was measured."""
    here = [_of_plan(trial, view) for trial, view in trials if view.done]
    ids = {each.trial_id for each in here}
    candidates = [*here, *(each for each in known if each.trial_id not in ids)]
    paces: dict[str, Pace | None] = {}
    nearest: dict[str, tuple[Known, list[str]] | None] = {}
    found = {}
    for trial, view in trials:
        if view.done:
            continue
        if (own := pace_of(view.rows)) is not None:
            found[trial.trial_id] = Estimate(own.of(trial.cfg, view.iteration), "its own rows")
            continue
        if (probed := measured.get(trial.trial_id)) is not None and (pace := probed.pace()) is not None:
            found[trial.trial_id] = Estimate(pace.of(trial.cfg, view.iteration), probed.name)
            continue
        costs = cost_setting(trial.cfg.flat())
        if (key := repr(costs)) not in nearest:
            nearest[key] = _nearest(costs, candidates, paces)
        if (near := nearest[key]) is not None:
            pace = paces[near[0].trial_id]
            assert pace is not None  # _nearest looks at it
            apart = f", which differs in {', '.join(near[1])}" if near[1] else ", whose cost knobs are the same"
            found[trial.trial_id] = Estimate(pace.of(trial.cfg, view.iteration), f"{near[0].name}{apart}")
    return found


def _of_plan(trial: Trial, view: View) -> Known:
    name = f"{trial.arm} seed {trial.seed} of this sweep"
    return Known(trial.trial_id, name, cost_setting(trial.cfg.flat()), lambda: pace_of(view.rows))


def _nearest(
    costs: Mapping[str, Any], candidates: Sequence[Known], paces: dict[str, Pace | None]
) -> tuple[Known, list[str]] | None:
    """The candidate of the same model with the fewest differing cost knobs that has a pace; the first of equals."""
    apart = [
        (each, sorted(path for path in {*costs, *each.costs} if costs.get(path) != each.costs.get(path)))
        for each in candidates
        if each.costs.get("policy.model") == costs["policy.model"]
    ]
    for each, paths in sorted(apart, key=lambda pair: len(pair[1])):
        if each.trial_id not in paces:
            paces[each.trial_id] = each.pace()
        if paces[each.trial_id] is not None:
            return each, paths
    return None
