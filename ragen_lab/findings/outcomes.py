"""One number per run: collapse time, final success, area under the curve, cost; and runs sorted into strata.

Runs that never collapse are right-censored. A stop by our own detector is informative: where the
performance rule already holds it is an event; elsewhere the run is read both ways (``Reading``), and a
verdict that depends on the reading is inconclusive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ragen_lab.config import RunConfig, build, scheduled
from ragen_lab.detect.level import CollapseStatus, collapse_of_rows
from ragen_lab.errors import ConfigError
from ragen_lab.runs import Run, RunTable
from ragen_lab.sections import LevelSection, Section

FINAL_EVALUATIONS = 3
SECONDS = ("time/rollout_seconds", "time/update_seconds")

# How runs that our detector stopped are read. "held": censored at the stop, and the last evaluations stand
# for the final ones. "collapsed": an event at the stop, and nothing is solved from there on.
Reading = Literal["held", "collapsed"]


@dataclass(frozen=True)
class Sesoi:
    """Smallest effects of interest."""

    success: float = 0.05  # absolute
    survival: float = 0.10  # share of the horizon, for the restricted mean survival time
    cost: float = 0.10  # share of the seconds


@dataclass(frozen=True)
class Outcome:
    """What a run came to. Times in iterations."""

    run: Run
    horizon: int
    level: CollapseStatus
    event: bool
    time: float  # of the event, else of the censoring
    stopped: bool  # ended before the horizon by our own detector
    ambiguous: bool  # stopped, and the performance rule does not hold
    start: float | None  # success of the evaluation at iteration 0
    final: float | None  # mean success of the last three evaluations; None for an unfinished run
    area: float | None  # mean success over the horizon (trapezoids); None for an unfinished run
    seconds: float | None  # rollout and update, per iteration
    eval_prompts: int  # evaluation levels behind each success

    def read(self, reading: Reading) -> Outcome:
        """This outcome where a stop by our detector is taken as ``reading``.

        Read as collapsed, a run that had not collapsed by the performance rule ends at the random line (at 0
        where there is none): what was measured before the stop is not where a collapse would have led.
        """
        if not self.ambiguous or reading == "held":
            return self
        floor = self.run.last("eval/random") or 0.0
        area = _area(self.run, self.horizon, after=floor)
        return replace(self, event=True, final=floor if self.final is not None else None, area=area)


def level_section(params: dict[str, Any], fall: float | None = None) -> LevelSection:
    """The thresholds of a run, ``fall`` replaced for a recomputation."""
    prefix = "detect.level."
    leaves = {path.removeprefix(prefix): value for path, value in params.items() if path.startswith(prefix)}
    if fall is not None:
        leaves |= {"fall": fall, "recovered": max(fall, leaves.get("recovered", LevelSection().recovered))}
    return LevelSection(**leaves)


def outcome(run: Run, horizon: int, fall: float | None = None) -> Outcome:
    """Judge one run up to ``horizon``; ``fall`` replaces the collapse threshold."""
    run = replace(run, rows=tuple(row for row in run.rows if row["iteration"] <= horizon))
    level = collapse_of_rows(run.rows, level_section(run.params, fall))
    last = max((int(row["iteration"]) for row in run.rows), default=0)
    stopped = run.status == "collapsed" and last < horizon - 1
    complete = last >= horizon - 1 or stopped
    iterations, success = run.series("eval/success")
    trained = success[iterations > 0]
    time = float(level.time) if level.time is not None else float(horizon if last >= horizon - 1 else last)
    return Outcome(
        run=run,
        horizon=horizon,
        level=level,
        event=level.collapsed,
        time=time,
        stopped=stopped,
        ambiguous=stopped and not level.collapsed,
        start=float(success[0]) if len(success) and iterations[0] == 0 else None,
        final=float(trained[-FINAL_EVALUATIONS:].mean()) if complete and len(trained) else None,
        area=_area(run, horizon, after=None) if complete else None,
        seconds=_seconds_per_iteration(run),
        eval_prompts=int(run.params.get("eval.prompts", 0)),
    )


def _area(run: Run, horizon: int, after: float | None) -> float | None:
    """Mean success over the horizon. Beyond the last evaluation: its value, or ``after``."""
    iterations, success = run.series("eval/success")
    if len(success) < 2 or horizon <= 0:
        return None
    tail = float(success[-1]) if after is None else after
    measured = float(np.trapezoid(success, iterations))
    return (measured + tail * float(horizon - iterations[-1])) / float(horizon - iterations[0])


def _seconds_per_iteration(run: Run) -> float | None:
    costs = [sum(row[name] for name in SECONDS) for row in run.rows if all(name in row for name in SECONDS)]
    return float(np.mean(costs)) if costs else None


# Strata ------------------------------------------------------------------------------------------------


def _free_leaves(section: Section, prefix: str = "") -> frozenset[str]:
    """Leaves that cannot change a run's numbers (marked so on the page of knobs)."""
    found: set[str] = set()
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            found |= _free_leaves(value, f"{prefix}{name}.")
        elif isinstance(info.json_schema_extra, dict) and not info.json_schema_extra.get("identity", True):
            found.add(prefix + name)
    return frozenset(found)


FREE = _free_leaves(RunConfig()) | {"seed"}
USABLE = ("finished", "collapsed", "stopped", "pruned")


@dataclass(frozen=True)
class Stratum:
    """Runs that are equal in every parameter but the seed and the design's own."""

    label: str  # for example "frozen_lake" or "frozen_lake (algo.name=grpo)"
    environment: str
    runs: tuple[Run, ...]


def usable_runs(runs: RunTable) -> tuple[list[Run], list[str]]:
    """Runs that can be judged, each trial once (its longest record), and a sentence for what was left out."""
    best: dict[str, Run] = {}
    left: dict[str, int] = {}
    for run in runs.runs:
        if run.status not in USABLE or not run.rows:
            left[run.status] = left.get(run.status, 0) + 1
        elif run.trial_id not in best or len(run.rows) > len(best[run.trial_id].rows):
            best[run.trial_id] = run
    notes = [f"{n} {status} run{'s are' if n > 1 else ' is'} left out." for status, n in sorted(left.items())]
    early = [r for r in best.values() if r.status in ("stopped", "pruned")]
    if early:
        notes.append(
            f"{len(early)} run{'s' if len(early) > 1 else ''} ended early, interrupted or by a budget or scheduler: "
            "censored there for collapse, and without a final success. Of an interrupted one only what its newest "
            "checkpoint holds counts; later rows will be computed again."
        )
    return list(best.values()), notes


def strata(runs: Iterable[Run], design: Sequence[str]) -> list[Stratum]:
    """Sort runs by all that is neither the seed, nor in ``design`` (dotted paths), nor without effect."""
    groups: dict[str, tuple[dict[str, Any], list[Run]]] = {}
    for run in runs:
        fixed = _fixed(run, design)
        groups.setdefault(repr(sorted(fixed.items())), (fixed, []))[1].append(run)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for fixed, _ in groups.values():
        kinds.setdefault(_environment(fixed), []).append(fixed)
    varying = {name: _varying(peers) for name, peers in kinds.items()}
    found = []
    for fixed, members in groups.values():
        environment = _environment(fixed)
        differs = [f"{path}={fixed[path]}" for path in sorted(fixed) if path in varying[environment]]
        label = f"{environment} ({', '.join(differs)})" if differs else environment
        found.append(Stratum(label, environment, tuple(members)))
    return sorted(found, key=lambda stratum: stratum.label)


def _environment(params: Mapping[str, Any]) -> str:
    return str(params.get("env.name", "unknown"))


def _varying(params: Sequence[Mapping[str, Any]]) -> set[str]:
    """Paths at which not all of ``params`` are equal."""
    first = params[0]
    return {
        path
        for path in {path for each in params for path in each}
        if any(each.get(path) != first.get(path) for each in params)
    }


def _fixed(run: Run, design: Sequence[str]) -> dict[str, Any]:
    free = FREE - {"train.iterations"} if scheduled(run.params) else FREE
    return {path: value for path, value in run.params.items() if path not in free and path not in design}


def horizon_of(runs: Iterable[Run]) -> int:
    """The shortest horizon asked of any of the runs, so that all are judged over the same time."""
    asked = [int(run.params["train.iterations"]) for run in runs if "train.iterations" in run.params]
    return min(asked) if asked else max(int(row["iteration"]) for run in runs for row in run.rows)


def rebuilt(params: dict[str, Any]) -> RunConfig | None:
    """The RunConfig that a run's flat params came from, but for its tracking, whose address may be shown without its
    password; None where they are another program's."""
    tree: dict[str, Any] = {}
    for path, value in params.items():
        if path.startswith("track."):
            continue
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    try:
        return build(tree, "params of a run")
    except ConfigError:
        return None


def ratio_text(value: float) -> str:
    """0.25 -> '25 %'."""
    return f"{value:.0%}".replace("%", " %")
