"""Entropy leaving its band: too low is a policy that has stopped trying, too high one that has come apart.

Healthy runs lose about 70 % of their entropy while they improve, so the lower bound lies well below that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from ragen_lab.detect.base import QUIET, Signal, not_evaluable
from ragen_lab.detect.ewma import Ewma
from ragen_lab.sections import DetectSection, EntropyBandSection

METRIC = "rollout/entropy"
FAST = 0.3
START = 5  # iterations whose mean is the start


class EntropyDetector:
    """Alarm when the smoothed entropy is below ``low`` x or above ``high`` x its start (the mean of the first
    five iterations), ``patience`` iterations in a row on the same side."""

    doc: ClassVar[str] = "The entropy has left its band around the start, on either side."

    def __init__(self, section: EntropyBandSection):
        self.section = section
        self.start_values: list[float] = []
        self.smooth = Ewma(FAST)
        self.low_streak = self.high_streak = 0
        self.signal = not_evaluable(f"{METRIC} is not logged")

    @classmethod
    def build(cls, detect: DetectSection, horizon: int) -> EntropyDetector:
        return cls(detect.entropy)

    def update(self, row: Mapping[str, float]) -> Signal:
        if METRIC in row:
            self.signal = self._judge(float(row[METRIC]))
        return self.signal

    def _judge(self, value: float) -> Signal:
        if not math.isfinite(value):  # the non_finite detector speaks
            return self.signal
        smoothed = self.smooth.update(value)
        if len(self.start_values) < START:
            self.start_values.append(value)
            return not_evaluable(f"needs {START + 1} iterations, has {len(self.start_values)}")
        start = sum(self.start_values) / START
        if start <= 0:
            return not_evaluable(f"{METRIC} was {start:.3g} at the start, so that no band can be drawn around it")
        self.low_streak = self.low_streak + 1 if smoothed < self.section.low * start else 0
        self.high_streak = self.high_streak + 1 if smoothed > self.section.high * start else 0
        if max(self.low_streak, self.high_streak) < self.section.patience:
            return QUIET
        side, bound = ("below", self.section.low) if self.low_streak else ("above", self.section.high)
        return Signal(
            True, True,
            f"entropy {smoothed:.3g} is {smoothed / start:.0%} of its start {start:.3g}, {side} {bound:.0%} "
            f"for {max(self.low_streak, self.high_streak)} iterations.",
        )  # fmt: skip
