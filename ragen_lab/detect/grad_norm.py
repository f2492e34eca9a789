"""Spikes of the gradient norm: log value against median and MAD of the recent past."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import ClassVar

from ragen_lab.detect.base import QUIET, Signal, not_evaluable
from ragen_lab.sections import DetectSection, GradSpikeSection

METRIC = "train/grad_norm"
MAD_TO_SD = 1.4826  # for a normal distribution


class GradNormDetector:
    """Alarm when log(norm) lies above ``z`` robust standard deviations and the norm above ``factor`` x the
    median of the last ``window`` iterations, ``patience`` times in a row.

    The suspects of a running streak enter the window only when the streak ends, so that a second spike is
    measured against the same past. A norm of exactly 0 (no group had any spread) says nothing and is passed over.
    """

    doc: ClassVar[str] = "The gradient norm has spiked above its recent median (a warning when alone)."

    def __init__(self, section: GradSpikeSection):
        self.section = section
        self.past: deque[float] = deque(maxlen=section.window)
        self.suspects: list[float] = []
        self.streak = 0
        self.signal = not_evaluable(f"{METRIC} is not logged")

    @classmethod
    def build(cls, detect: DetectSection, horizon: int) -> GradNormDetector:
        return cls(detect.grad_norm)

    @property
    def warm_up(self) -> int:
        """Values behind the first verdict: half a window, so that short runs are judged at all."""
        return max(4, self.section.window // 2)

    def update(self, row: Mapping[str, float]) -> Signal:
        if METRIC in row:
            self.signal = self._judge(float(row[METRIC]))
        return self.signal

    def smallest_visible_spike(self) -> float:
        """The multiple of the median norm below which no spike could raise the alarm now; NaN in warm-up."""
        if len(self.past) < self.warm_up:
            return math.nan
        return max(self.section.factor, math.exp(self.section.z * self._centre_and_sd()[1]))

    def _centre_and_sd(self) -> tuple[float, float]:
        centre = median(self.past)
        return centre, MAD_TO_SD * median(abs(x - centre) for x in self.past)

    def _judge(self, norm: float) -> Signal:
        if norm == 0:
            return self.signal
        log_norm = math.log(norm) if norm > 0 and math.isfinite(norm) else math.inf
        if len(self.past) < self.warm_up:
            if math.isfinite(log_norm):
                self.past.append(log_norm)
            return not_evaluable(f"needs {self.warm_up} iterations, has {len(self.past)}")
        centre, sd = self._centre_and_sd()
        spike = log_norm - centre > max(self.section.z * sd, math.log(self.section.factor))
        self.streak = self.streak + 1 if spike else 0
        if spike:
            self.suspects.append(log_norm)
        if not spike or self.streak > self.section.window:  # a new level that lasts is no spike any more
            self.past.extend(x for x in (*self.suspects, log_norm) if math.isfinite(x))
            self.suspects.clear()
        if self.streak < self.section.patience:
            return QUIET
        return Signal(
            True, True,
            f"gradient norm {norm:.3g} is {math.exp(log_norm - centre):.3g} times its median {math.exp(centre):.3g}, "
            f"{self.streak} times in a row (smallest visible spike {self.smallest_visible_spike():.1f}x).",
        )  # fmt: skip
