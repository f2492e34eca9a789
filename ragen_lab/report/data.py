"""What the figures draw, as plain data computed from runs: tested without ink, and free of plotly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen_lab.detect import DETECTORS as REGISTRY
from ragen_lab.findings.outcomes import SECONDS, Outcome, horizon_of, outcome
from ragen_lab.runs import Run, RunTable

Floats = npt.NDArray[np.float64]

# The metric of a detector is ``detect/<name>``.
DETECTORS: dict[str, str] = {name: detector.doc for name, detector in REGISTRY.items()}

# Metrics that the literature reads as early signs; only those that at least one run logs are drawn.
SIGNALS: tuple[str, ...] = (
    "rollout/reward_std_in_group",
    "rollout/entropy",
    "train/grad_norm",
    "rollout/template_share",
    "rollout/think_tokens",
    "rollout/format_error_rate",
)

PHASES: dict[str, str] = {metric: metric.removeprefix("time/").removesuffix("_seconds") for metric in SECONDS}

# A run of another status has not shown how it ends, so a mean over seeds leaves it out.
ENDED = frozenset({"finished", "collapsed", "pruned"})


@dataclass(frozen=True)
class Alarm:
    """First firing of one detector in one run."""

    detector: str
    iteration: int


@dataclass(frozen=True)
class Curve:
    """One metric of one run. ``low`` and ``high`` hold its 95 % interval where the run logs one."""

    arm: str
    seed: int
    trial_id: str
    status: str
    iterations: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    called_at: int | None = None
    stop_reason: str | None = None
    alarms: tuple[Alarm, ...] = ()

    def at(self, iteration: float) -> float:
        """The value at ``iteration``, interpolated over the finite points; NaN where there are none."""
        points = [(i, v) for i, v in zip(self.iterations, self.values, strict=True) if math.isfinite(v)]
        if not points:
            return math.nan
        return float(np.interp(iteration, [i for i, _ in points], [v for _, v in points]))

    @property
    def non_finite(self) -> tuple[int, ...]:
        return tuple(i for i, v in zip(self.iterations, self.values, strict=True) if not math.isfinite(v))


@dataclass(frozen=True)
class Reference:
    """A horizontal line without which a success rate means nothing."""

    name: str
    value: float


@dataclass(frozen=True)
class Dot:
    """Final success of one run, with its 95 % interval (NaN where it cannot be had)."""

    arm: str
    seed: int
    trial_id: str
    status: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Cost:
    """Mean seconds per iteration of one run, by phase."""

    arm: str
    seed: int
    trial_id: str
    phases: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.phases.values())


@dataclass(frozen=True)
class Survival:
    """Kaplan-Meier curve of one arm: share of runs not collapsed from each of ``times`` on."""

    arm: str
    runs: int
    events: int
    times: tuple[float, ...]  # begins at 0
    survival: tuple[float, ...]
    censored: tuple[float, ...]  # times at which a run left without having collapsed
    leaves: tuple[float, ...]  # for every run, the time of its collapse or of its censoring

    def at_risk(self, time: float) -> int:
        """Runs that are still observed, and not collapsed, just before ``time``."""
        return sum(leave >= time for leave in self.leaves)


def arms_of(runs: RunTable) -> list[str]:
    """Arms in the order in which the sweep names them."""
    return list(dict.fromkeys(run.arm for run in runs.runs))


def environments_of(runs: RunTable) -> list[str]:
    return list(dict.fromkeys(environment_of(run) for run in runs.runs))


def environment_of(run: Run) -> str:
    return str(run.params.get("env.name", "unknown"))


def levels_of(run: Run) -> int:
    """Evaluation levels behind each success of a run; 0 where unknown."""
    return int(run.params.get("eval.prompts", 0))


def wilson(share: float, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """95 % Wilson interval of a proportion seen in ``n`` trials."""
    if n <= 0 or not math.isfinite(share):
        return math.nan, math.nan
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def alarms_of(run: Run) -> tuple[Alarm, ...]:
    """First iteration at which each detector fired, for detectors that did."""
    found = []
    for detector in DETECTORS:
        iterations, values = run.series(f"detect/{detector}")
        fired = iterations[values >= 1]
        if len(fired):
            found.append(Alarm(detector, int(fired[0])))
    return tuple(found)


def vote_of(run: Run) -> int | None:
    """First iteration at which the vote called the run collapsed, stopped or in shadow."""
    iterations, values = run.series("detect/stop")
    fired = iterations[values >= 1]
    return int(fired[0]) if len(fired) else run.stop_iteration if run.status == "collapsed" else None


def curves(runs: RunTable, metric: str) -> list[Curve]:
    """The series of every run that logs ``metric``, in the table's order."""
    found = []
    for run in runs.runs:
        iterations, values = run.series(metric)
        if not len(iterations):
            continue
        low, high = _interval(run, metric, iterations)
        found.append(
            Curve(
                arm=run.arm,
                seed=run.seed,
                trial_id=run.trial_id,
                status=run.status,
                iterations=tuple(int(i) for i in iterations),
                values=tuple(float(v) for v in values),
                low=low,
                high=high,
                called_at=vote_of(run),
                stop_reason=run.stop_reason,
                alarms=alarms_of(run),
            )
        )
    return found


def _interval(run: Run, metric: str, iterations: npt.NDArray[np.int64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    low_at, low = run.series(f"{metric}_low")
    high_at, high = run.series(f"{metric}_high")
    if list(low_at) != list(iterations) or list(high_at) != list(iterations):
        return (), ()
    return tuple(float(v) for v in low), tuple(float(v) for v in high)


def mean_curve(group: Sequence[Curve]) -> tuple[list[int], list[float]]:
    """Mean over the ended runs of ``group``, only where all of them have a finite value.

    It ends where the first run ends: a mean over the survivors would flatter an unstable arm.
    """
    ended = [curve for curve in group if curve.status in ENDED]
    if not ended:
        return [], []
    tables = [
        {i: v for i, v in zip(curve.iterations, curve.values, strict=True) if math.isfinite(v)} for curve in ended
    ]
    common = sorted(set.intersection(*(set(table) for table in tables)))
    return common, [float(np.mean([table[i] for table in tables])) for i in common]


def references(runs: Sequence[Run]) -> list[Reference]:
    """Random, best-fixed-string and optimal lines of these runs, lowest first; each distinct value once."""
    found: list[Reference] = []
    for name, metric in (("random", "eval/random"), ("fixed string", "eval/fixed_string"), ("optimal", "eval/optimal")):
        values = {round(v, 6) for run in runs if (v := run.last(metric)) is not None and math.isfinite(v)}
        found += [Reference(name, value) for value in sorted(values)]
    return sorted(found, key=lambda reference: reference.value)


def costs(runs: RunTable) -> list[Cost]:
    """Mean seconds per training iteration of every run that logs both phases; evaluations are counted apart."""
    found = []
    for run in runs.runs:
        timed = [row for row in run.rows if all(math.isfinite(row.get(metric, math.nan)) for metric in PHASES)]
        if timed:
            phases = {phase: float(np.mean([row[metric] for row in timed])) for metric, phase in PHASES.items()}
            found.append(Cost(run.arm, run.seed, run.trial_id, phases))
    return found


def outcomes(runs: RunTable) -> list[Outcome]:
    """What each run came to, in the table's order, as the findings judge it: up to the horizon of its arm."""
    found = []
    for run in runs.runs:
        members = [other for other in runs.runs if other.config_id == run.config_id]
        known = any(other.rows or "train.iterations" in other.params for other in members)
        found.append(outcome(run, horizon_of(members) if known else 0))
    return found


def final_success(judged: Outcome) -> float:
    """Mean of the last three evaluations after the start; NaN for an unfinished run."""
    return math.nan if judged.final is None else judged.final


def dots(runs: RunTable) -> list[Dot]:
    """Final success of every run. The interval is that of one evaluation: its levels are the same each time."""
    found = []
    for judged in outcomes(runs):
        run, value = judged.run, final_success(judged)
        low, high = wilson(value, levels_of(run))
        found.append(Dot(run.arm, run.seed, run.trial_id, run.status, value, low, high))
    return found


def survival_of(arm: str, rows: Sequence[Mapping[str, Any]]) -> Survival:
    """One arm's curve from rows of time, survival, events and at_risk (just before that time), in order of time."""
    leaves: list[float] = []
    censored: list[float] = []
    for row, after in zip(rows, [*(int(row["at_risk"]) for row in rows[1:]), 0], strict=True):
        leaving = int(row["at_risk"]) - after
        leaves += [float(row["time"])] * leaving
        if leaving > int(row["events"]):
            censored.append(float(row["time"]))
    points = [(float(row["time"]), float(row["survival"])) for row in rows]
    if points[0][0] > 0:
        points.insert(0, (0.0, 1.0))
    return Survival(
        arm=arm,
        runs=len(leaves),
        events=sum(int(row["events"]) for row in rows),
        times=tuple(time for time, _ in points),
        survival=tuple(share for _, share in points),
        censored=tuple(censored),
        leaves=tuple(leaves),
    )
