"""Collapse of the performance level: the one definition that detectors and findings share.

y = EMA of evaluation success minus the random line (success itself where there is no line; the
rollout reward where there is no evaluation). Peak = running maximum of y, the start included.
*Something to lose*: the peak reaches ``peak``. *Collapsed at T*: the first point from which y stays below
``fall`` x peak for 3 evaluations (5 iterations of a rollout metric) and never again reaches
``recovered`` x peak. Live, only the first half can be known: the alarm is on from the third such
evaluation until y recovers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ragen_lab.detect.base import QUIET, Signal, not_evaluable, row_iteration
from ragen_lab.detect.ewma import Ewma
from ragen_lab.sections import DetectSection, LevelSection

SUCCESS, RANDOM_LINE = "eval/success", "eval/random"
STAND_INS = ("rollout/reward_mean", "rollout/success")  # where a log has no evaluation, in this order

Kind = Literal["evaluation", "rollout"]
Status = Literal["collapsed", "held", "never_improved", "never_above_random", "not_evaluable"]


@dataclass(frozen=True)
class CollapseStatus:
    """How a run's level ended. Levels are y: above the random line where there is one."""

    status: Status
    time: int | None  # T, the iteration of the collapse
    alarm_time: int | None  # when the condition was complete, and a live detector could know
    peak: float
    peak_time: int | None
    start: float
    last: float
    improved: bool  # peak - start >= the level section's ``peak``
    recoveries: int  # falls that were made good again
    points: int

    @property
    def collapsed(self) -> bool:
        return self.status == "collapsed"


class LevelTracker:
    """The definition above as a state machine over the points of one series.

    A rollout reward can be negative, where "half of the peak" has no meaning. Heights are then taken above
    a floor, min(0, start, 2 x peak): for non-negative rewards that is 0 and the rule is the plain one;
    a run that rose from -1 to 5 has collapsed when half of that rise is lost (below 2); one that never
    left -1 when it falls by half of its own size (below -1.5).
    A non-finite point counts as a fall and enters no average (pitfall 22).
    """

    def __init__(self, section: LevelSection, kind: Kind):
        self.section = section
        self.kind = kind
        self.patience = section.evaluations if kind == "evaluation" else section.iterations
        self.smooth = Ewma(section.ema)
        self.line: float | None = None
        self.start = self.peak = self.last = math.nan
        self.peak_time: int | None = None
        self.points = 0
        self.streak = 0
        self.streak_start: int | None = None
        self.fallen_since: int | None = None
        self.alarm_time: int | None = None
        self.recoveries = 0

    def update(self, iteration: int, value: float, line: float | None = None) -> None:
        """Take the next point; ``line`` is the random line, where it is known."""
        self.points += 1
        if line is not None and math.isfinite(line):
            self._set_line(line)
        if math.isfinite(value):
            self.last = self.smooth.update(value - (self.line or 0.0))
            if math.isnan(self.start):
                self.start = self.last
            if not self.peak >= self.last:
                self.peak, self.peak_time = self.last, iteration
        below = not math.isfinite(value) or self.height < self.section.fall
        if not self.something_to_lose:
            below = False
        if self.fallen_since is not None and math.isfinite(value) and self.height >= self.section.recovered:
            self.fallen_since = self.alarm_time = None
            self.recoveries += 1
        if not below:
            self.streak = 0
        else:
            self.streak += 1
            if self.streak == 1:
                self.streak_start = iteration
            if self.streak >= self.patience and self.fallen_since is None:
                self.fallen_since, self.alarm_time = self.streak_start, iteration

    def _set_line(self, line: float) -> None:
        if self.line is None and self.smooth.mean is not None:  # the line came late: shift what was seen
            self.smooth.mean -= line
            self.start -= line
            self.peak -= line
            self.last -= line
        elif self.line is not None:
            return  # the line belongs to the fixed levels: it cannot change under way
        self.line = line

    @property
    def floor(self) -> float:
        return 0.0 if self.kind == "evaluation" else min(0.0, self.start, 2 * self.peak)

    @property
    def something_to_lose(self) -> bool:
        return self.peak - self.floor >= self.section.peak

    @property
    def height(self) -> float:
        """The level as a share of its peak: 1 at the peak, 0 at the floor; NaN before there is a peak."""
        span = self.peak - self.floor
        return (self.last - self.floor) / span if span > 0 else math.nan

    @property
    def fallen(self) -> bool:
        return self.fallen_since is not None

    def status(self) -> CollapseStatus:
        improved = self.peak - self.start >= self.section.peak
        status: Status
        if self.points == 0 or math.isnan(self.start):
            status = "not_evaluable"
        elif self.fallen:
            status = "collapsed"
        elif self.kind == "evaluation" and self.line is not None and self.peak <= 0:
            status = "never_above_random"
        else:
            status = "held" if improved else "never_improved"
        return CollapseStatus(
            status, self.fallen_since, self.alarm_time, self.peak, self.peak_time, self.start, self.last,
            improved, self.recoveries, self.points,
        )  # fmt: skip


def collapse(
    series: tuple[Sequence[int], Sequence[float]],
    random_line: float | None,
    section: LevelSection,
    kind: Kind = "evaluation",
) -> CollapseStatus:
    """Judge a whole series (iterations, values) by the definition above.

    Each evaluation of ``series`` is a share of levels solved; ``random_line`` is None where unknown. A fall
    that is still too short at the end of the series is no collapse: the run is censored there.
    """
    tracker = LevelTracker(section, kind)
    for iteration, value in zip(*series, strict=True):
        tracker.update(int(iteration), float(value), random_line)
    return tracker.status()


@dataclass(frozen=True)
class LevelSeries:
    """The series by which a run's level is judged."""

    metric: str
    kind: Kind
    iterations: tuple[int, ...]
    values: tuple[float, ...]
    random_line: float | None


def level_series(rows: Iterable[Mapping[str, float]]) -> LevelSeries | None:
    """Evaluation success where the rows hold any, else a stand-in; None where nothing can be judged."""
    rows = list(rows)
    line = next((row[RANDOM_LINE] for row in rows if math.isfinite(row.get(RANDOM_LINE, math.nan))), None)
    for metric in (SUCCESS, *STAND_INS):
        points = [(row_iteration(row, i), float(row[metric])) for i, row in enumerate(rows) if metric in row]
        if points:
            kind: Kind = "evaluation" if metric == SUCCESS else "rollout"
            iterations, values = zip(*points, strict=True)
            return LevelSeries(metric, kind, iterations, values, line if kind == "evaluation" else None)
    return None


def collapse_of_rows(rows: Iterable[Mapping[str, float]], section: LevelSection) -> CollapseStatus:
    """``collapse`` on the rows of a run."""
    found = level_series(rows)
    if found is None:
        return LevelTracker(section, "evaluation").status()
    return collapse((found.iterations, found.values), found.random_line, section, found.kind)


class LevelDetector:
    """The definition, live. Evaluations are judged as soon as there are any; until then a stand-in."""

    doc: ClassVar[str] = "The performance level has lost more than half of its peak and stays there."

    def __init__(self, section: LevelSection):
        self.evaluation = LevelTracker(section, "evaluation")
        self.rollout = {metric: LevelTracker(section, "rollout") for metric in STAND_INS}
        self.rows = 0

    @classmethod
    def build(cls, detect: DetectSection, horizon: int) -> LevelDetector:
        return cls(detect.level)

    def update(self, row: Mapping[str, float]) -> Signal:
        iteration = row_iteration(row, self.rows)
        self.rows += 1
        if SUCCESS in row:
            self.evaluation.update(iteration, float(row[SUCCESS]), row.get(RANDOM_LINE))
        for metric, tracker in self.rollout.items():
            if metric in row:
                tracker.update(iteration, float(row[metric]))
        metric, judged = self.judged()
        if judged is None:
            return not_evaluable(f"none of {SUCCESS}, {', '.join(STAND_INS)} is logged")
        if not judged.fallen:
            return QUIET
        above = " above the random line" if judged.line is not None else ""
        return Signal(
            True, True,
            f"{metric} (smoothed) fell to {judged.last:.3g}{above}, {judged.height:.0%} of its peak "
            f"{judged.peak:.3g} at iteration {judged.peak_time}, and has stayed down since iteration "
            f"{judged.fallen_since}.",
        )  # fmt: skip

    def judged(self) -> tuple[str, LevelTracker | None]:
        """The metric that speaks now, and its tracker."""
        for metric, tracker in ((SUCCESS, self.evaluation), *self.rollout.items()):
            if tracker.points:
                return metric, tracker
        return "", None
