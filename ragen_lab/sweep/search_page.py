"""The keys of a sweep page that decide which trials run at all, and how far: search, scheduler, budget."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, field_validator, model_validator

from ragen_lab.config import suggest
from ragen_lab.metrics import METRICS
from ragen_lab.sections import Section, knob

# Objectives that are no metric of one row; each with the way that is better.
DERIVED: dict[str, Literal["up", "down"]] = {
    "collapses": "down",  # share of the seeds that collapsed
    "cost": "down",  # trajectories sampled per seed, in thousands: repeatable, unlike seconds
    "seconds": "down",  # rollout and update seconds per seed: not repeatable
}
_CONSTRAINT = re.compile(r"^\s*([A-Za-z0-9_/]+)\s*(<=|>=)\s*(-?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*$")


class Range(Section):
    """An axis without levels, for a search: everything from ``low`` to ``high``, both included."""

    low: float | int = knob(..., "Smallest value.")
    high: float | int = knob(..., "Largest value.")
    log: bool = knob(False, "Whether factors matter rather than differences.")
    step: float | int | None = knob(None, "Distance of neighbouring values; whole numbers default to 1.", gt=0)

    @model_validator(mode="after")
    def _sensible(self) -> Range:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"log: a range of factors begins above 0, not at {self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("log: has no step; leave one of the two out")
        return self

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers only: both its ends are written as such."""
        return isinstance(self.low, int) and isinstance(self.high, int)


def better(objective: str) -> Literal["up", "down"]:
    """Which way an objective is better. Raises ValueError for one that has no better."""
    if objective in DERIVED:
        return DERIVED[objective]
    if objective not in METRICS:
        known = [*DERIVED, *METRICS]
        raise ValueError(f"no metric {objective!r}.{suggest(objective, known)} `ragen-lab list metrics` shows them")
    way = METRICS[objective].better
    if way == "neither":
        raise ValueError(f"{objective}: neither more nor less of it is better; name another metric")
    return way


class SearchSection(Section):
    kind: Literal["grid", "random", "optuna"] = knob(
        "grid", "'grid' takes every combination of the axes; 'random' and 'optuna' propose settings within them."
    )
    sampler: Literal["tpe", "gp", "nsga2"] = knob("tpe", "How 'optuna' proposes: TPE, a Gaussian process or NSGA-II.")
    trials: int | None = knob(None, "Settings to propose in all; raising it later goes on.", ge=1)
    objectives: list[str] = knob(
        ["eval/success"], "What is to become better: metrics, 'collapses', 'cost' or 'seconds'.", min_length=1
    )
    constraints: list[str] = knob([], "What a setting must keep, for example 'eval/format_error_rate <= 0.1'.")
    seed: int = knob(0, "Seed of the proposals.", ge=0)
    startup: int = knob(10, "Random proposals before the sampler learns.", ge=1)
    first_seeds: int | None = knob(
        None, "Seeds that every setting gets; the others only while it can compete. Default: all seeds at once.", ge=1
    )
    margin: float = knob(0.05, "How far below the best a setting may lie and still get its next seed.", ge=0)

    @field_validator("objectives")
    @classmethod
    def _known_objectives(cls, names: list[str]) -> list[str]:
        for name in names:
            better(name)
        if len(set(names)) < len(names):
            raise ValueError("an objective is there twice")
        return names

    @field_validator("constraints")
    @classmethod
    def _readable_constraints(cls, texts: list[str]) -> list[str]:
        for text in texts:
            parse_constraint(text)
        return texts

    @model_validator(mode="after")
    def _complete(self) -> SearchSection:
        if self.kind != "grid" and self.trials is None:
            raise ValueError("trials: missing; say how many settings to propose, for example trials: 20")
        if self.sampler == "gp" and len(self.objectives) > 1 and self.constraints:
            raise ValueError("sampler: gp takes constraints with one objective only; use tpe or nsga2")
        return self


def parse_constraint(text: str) -> tuple[str, str, float]:
    """``"eval/format_error_rate <= 0.1"`` -> (metric, "<=" or ">=", bound). Raises ValueError."""
    found = _CONSTRAINT.match(text)
    if not found:
        raise ValueError(f"{text!r}: write METRIC <= NUMBER or METRIC >= NUMBER")
    metric, sign, bound = found.groups()
    if metric not in METRICS and metric not in DERIVED:
        raise ValueError(f"{text!r}: no metric {metric!r}.{suggest(metric, [*DERIVED, *METRICS])}")
    return metric, sign, float(bound)


class SchedulerSection(Section):
    kind: Literal["fifo", "asha", "median"] = knob(
        "fifo",
        "'fifo' runs every trial to its end (or to its collapse); 'asha' lets the best part of each rung go on; "
        "'median' ends settings below the median of the others.",
    )
    metric: str = knob("eval/success", "What the rungs compare: the mean over a setting's seeds.")
    first: int | None = knob(None, "Iterations before the first comparison. Default: an eighth of the run.", ge=1)
    factor: int = knob(3, "asha: one in so many goes on, and each rung is so many times longer.", ge=2)
    every: int | None = knob(
        None, "median: iterations between comparisons. Default: as many as before the first.", ge=1
    )
    least: int = knob(3, "median: other settings that must have come as far before one is ended.", ge=1)

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, name: str) -> str:
        if name in DERIVED:
            raise ValueError(f"{name}: rungs compare a metric of the rows, for example eval/success")
        better(name)
        return name


class BudgetSection(Section):
    minutes: float | None = knob(None, "Wall clock of one call; what is unfinished goes on next time.", gt=0)
    trials: int | None = knob(None, "Trials that one call may work on; the others wait for the next.", ge=1)
    gpu_hours: float | None = knob(None, "GPU hours of one call: resources.gpus times the time of its trials.", gt=0)


AXIS_KINDS = ("levels", "range")
Axis = Annotated[
    Annotated[list[Any], Tag("levels")] | Annotated[Range, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, (dict, Range)) else "levels"),
]


def rungs(scheduler: SchedulerSection, iterations: int, every: int) -> tuple[int, ...]:
    """Iterations at which settings are compared, the last of the run included.

    Each but the last is a multiple of ``every``, so that it has an evaluation.
    """
    if scheduler.kind == "fifo":
        return (iterations,)

    def evaluated(iteration: float) -> int:
        return max(every, -(-int(iteration) // every) * every)

    found, at = [], evaluated(scheduler.first or max(1, iterations // 8))
    step = evaluated(scheduler.every or at)
    while at < iterations:
        found.append(at)
        at = evaluated(at * scheduler.factor) if scheduler.kind == "asha" else at + step
    return (*found, iterations)
