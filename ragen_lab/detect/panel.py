"""All detectors and the vote over them: the registry, ``Panel`` for live use, ``replay`` for stored rows.

Hard stops: a non-finite number; every group without spread five times in a row while success is not high;
evaluation success below 1 % five times after having been above; collapse of the level. Soft: two families
within ``vote_window`` iterations while the task is not being solved, or a gradient spike and a falling
reward. A lone soft alarm is a warning: gradient spikes alone also occur in healthy runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ragen_lab.detect.base import Detector, Signal, Stop, row_iteration
from ragen_lab.detect.entropy import EntropyDetector
from ragen_lab.detect.grad_norm import GradNormDetector
from ragen_lab.detect.level import SUCCESS, CollapseStatus, LevelDetector, collapse_of_rows
from ragen_lab.detect.non_finite import NonFiniteDetector
from ragen_lab.detect.reward_std import RewardStdDetector
from ragen_lab.detect.solved import Solved
from ragen_lab.sections import DetectSection

DETECTORS: dict[str, type[Detector]] = {
    "level": LevelDetector,
    "reward_std": RewardStdDetector,
    "grad_norm": GradNormDetector,
    "entropy": EntropyDetector,
    "non_finite": NonFiniteDetector,
}
SOFT = ("reward_std", "grad_norm", "entropy")  # each may be wrong alone; two of them within the window vote
EMPTY, EMPTY_PATIENCE = "rollout/zero_std_share", 5
LOST, LOST_PATIENCE = 0.01, 5


class Panel:
    """The detectors of one run. ``stop`` is the vote's first call and stays; flags go on being computed.

    ``history``: rows already there when a run is resumed; they are replayed.
    """

    def __init__(self, detect: DetectSection, horizon: int, history: Iterable[Mapping[str, float]] = ()):
        self.detect = detect
        self.detectors: dict[str, Detector] = {name: cls.build(detect, horizon) for name, cls in DETECTORS.items()}
        self.signals: dict[str, Signal] = {}
        self.stop: Stop | None = None
        self._last_alarm: dict[str, tuple[int, str]] = {}
        self._solved = Solved()
        self._rows = self._empty_streak = self._lost_streak = 0
        self._was_above = False
        for row in history:
            self.update(row)

    def update(self, row: Mapping[str, float]) -> dict[str, float]:
        """Take the next row; returns the detect/ flags to log. What is not evaluable yields no flag."""
        iteration = row_iteration(row, self._rows)
        self._rows += 1
        self._solved.update(row)
        for name, detector in self.detectors.items():
            self.signals[name] = signal = detector.update(row)
            if signal.alarm:
                self._last_alarm[name] = (iteration, signal.reason)
        reason = self._vote(row, iteration)
        if reason and self.stop is None:
            self.stop = Stop(iteration, reason)
        flags = {f"detect/{name}": float(s.alarm) for name, s in self.signals.items() if s.evaluable}
        if flags or self.stop:
            flags["detect/stop"] = float(self.stop is not None)
        return flags

    def _vote(self, row: Mapping[str, float], iteration: int) -> str | None:
        """The reason to call the run collapsed at this row, or None."""
        empty, lost = self._empty_groups(row), self._success_lost(row)  # both count on every row
        if self.signals["non_finite"].alarm:
            return f"Not a number: {self.signals['non_finite'].reason}"
        if self.signals["level"].alarm:
            return f"Collapse of the level: {self.signals['level'].reason}"
        if empty or lost:
            return empty or lost
        recent = {
            name: self._last_alarm[name]
            for name in SOFT
            if name in self._last_alarm and iteration - self._last_alarm[name][0] < self.detect.vote_window
        }
        if len(recent) >= 2 and not self._solved.holds:
            told = " ".join(f"{name} (iteration {at}): {why}" for name, (at, why) in recent.items())
            return f"Two families of alarms within {self.detect.vote_window} iterations. {told}"
        if "grad_norm" in recent and (falling := self._falling()):
            at, why = recent["grad_norm"]
            return f"Gradient spike and falling reward: {falling} grad_norm (iteration {at}): {why}"
        return None

    def _empty_groups(self, row: Mapping[str, float]) -> str | None:
        if EMPTY in row:
            all_empty = row[EMPTY] >= 1 and not self._solved.holds
            self._empty_streak = self._empty_streak + 1 if all_empty else 0
        if self._empty_streak < EMPTY_PATIENCE:
            return None
        return f"No group had any reward spread for {self._empty_streak} iterations, and success is not high."

    def _success_lost(self, row: Mapping[str, float]) -> str | None:
        if SUCCESS in row and math.isfinite(row[SUCCESS]):
            above = row[SUCCESS] >= LOST
            self._was_above = self._was_above or above
            self._lost_streak = 0 if above else self._lost_streak + 1
        if not self._was_above or self._lost_streak < LOST_PATIENCE:
            return None
        return f"{SUCCESS} has been below {LOST:.0%} in {self._lost_streak} evaluations in a row, and was above before."

    def _falling(self) -> str | None:
        """A fall half-way to the collapse bound, of whichever level is logged."""
        detector = self.detectors["level"]
        assert isinstance(detector, LevelDetector)
        half_way = (1 + self.detect.level.fall) / 2
        for metric, tracker in ((SUCCESS, detector.evaluation), *detector.rollout.items()):
            if tracker.something_to_lose and tracker.height < half_way:
                return f"{metric} (smoothed) is at {tracker.height:.0%} of its peak."
        return None


@dataclass(frozen=True)
class DetectorVerdict:
    """One detector over a whole run."""

    name: str
    evaluable: bool
    first_alarm: int | None  # iteration
    alarms: int  # rows with the alarm on
    reason: str  # of the first alarm, or why the detector could not judge


@dataclass(frozen=True)
class Verdicts:
    """What all detectors say about stored rows. ``flags``: per row, as a live panel would have logged them."""

    detectors: dict[str, DetectorVerdict]
    stop: Stop | None
    level: CollapseStatus
    flags: tuple[dict[str, float], ...]


def replay(rows: Iterable[Mapping[str, float]], detect: DetectSection, horizon: int) -> Verdicts:
    """Judge stored rows, of our own runs or of another trainer's log under our metric names."""
    rows = list(rows)
    panel = Panel(detect, horizon)
    flags: list[dict[str, float]] = []
    first: dict[str, tuple[int, str]] = {}
    evaluable: set[str] = set()
    for position, row in enumerate(rows):
        flags.append(panel.update(row))
        for name, signal in panel.signals.items():
            if signal.evaluable:
                evaluable.add(name)
            if signal.alarm:
                first.setdefault(name, (row_iteration(row, position), signal.reason))
    verdicts = {}
    for name in DETECTORS:
        at, reason = first.get(name, (None, panel.signals[name].reason if panel.signals else "there are no rows"))
        alarms = sum(1 for flag in flags if flag.get(f"detect/{name}") == 1.0)
        verdicts[name] = DetectorVerdict(name, name in evaluable, at, alarms, reason)
    return Verdicts(verdicts, panel.stop, collapse_of_rows(rows, detect.level), tuple(flags))
