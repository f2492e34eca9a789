"""Slow-reference ratio on the in-group reward spread: the early sign of collapse that RAGEN reports.

Healthy runs drift and are autocorrelated, so control charts on a fixed baseline cry wolf (0.55 to 1.0 false
alarms per healthy run). Here the baseline follows the run, slowly and with a lag.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import ClassVar

from ragen_lab.detect.base import QUIET, Signal, not_evaluable
from ragen_lab.detect.ewma import Ewma
from ragen_lab.detect.solved import Solved
from ragen_lab.sections import DetectSection, RewardStdSection

METRIC = "rollout/reward_std_in_group"
NO_SPREAD = 1e-6  # a reference below this has nothing to lose; rewards are of the order of 1
AUTOCORRELATION = 0.5  # of healthy runs; it makes the fast average noisier than white noise would
NOISE_LAG = 10  # at short horizons the lag is 3: a drop would then feed the noise it is measured against


class RewardStdDetector:
    """Alarm when the fast average is below ``ratio`` x the slow lagged one and the drop exceeds ``sigma``
    standard deviations of the fast average, ``patience`` iterations in a row.

    With AR(1) noise of sd s, an EWMA of weight a has sd s * sqrt(a / (2 - a) * (1 + c) / (1 - c)), c = rho * (1 - a).
    A drop while success is high and at its peak is the task being solved, not a collapse.
    """

    doc: ClassVar[str] = "The in-group reward spread has dropped below half of its slow average."

    def __init__(self, section: RewardStdSection, horizon: int):
        self.section = section
        self.span = section.span if section.span is not None else min(50, max(5, round(horizon / 4)))
        self.lag = section.lag if section.lag is not None else max(1, round(self.span / 5))
        self.fast = Ewma(section.fast)
        self.slow = Ewma(2 / (self.span + 1), even_start=True)
        self.variance = Ewma(2 / (self.span + 1), even_start=True)
        self.waiting: deque[float] = deque()  # values younger than the lag
        self.residuals: deque[float] = deque()  # squared residuals younger than the noise's lag
        carried = AUTOCORRELATION * (1 - section.fast)
        self.noise_share = math.sqrt(section.fast / (2 - section.fast) * (1 + carried) / (1 - carried))
        self.solved = Solved()
        self.streak = 0
        self.signal = not_evaluable(f"{METRIC} is not logged")

    @classmethod
    def build(cls, detect: DetectSection, horizon: int) -> RewardStdDetector:
        return cls(detect.reward_std, horizon)

    @property
    def warm_up(self) -> int:
        """Iterations before the slow average and the noise are worth the name."""
        return max(self.lag, NOISE_LAG) + max(5, self.span // 3)

    def update(self, row: Mapping[str, float]) -> Signal:
        self.solved.update(row)
        if METRIC in row:
            self.signal = self._judge(float(row[METRIC]))
        return self.signal

    def _judge(self, value: float) -> Signal:
        if not math.isfinite(value):  # the non_finite detector speaks; an average of NaN would never end
            return self.signal
        residual = value - self.fast.mean if self.fast.mean is not None else 0.0
        fast = self.fast.update(value)
        self.waiting.append(value)
        self.residuals.append(residual**2)
        if len(self.waiting) > self.lag:
            self.slow.update(self.waiting.popleft())
        if len(self.residuals) > max(self.lag, NOISE_LAG):
            self.variance.update(self.residuals.popleft())
        has = self.variance.count + len(self.residuals)
        if has < self.warm_up or self.slow.mean is None or self.variance.mean is None:
            return not_evaluable(f"needs {self.warm_up} iterations, has {has}")
        reference, sd = self.slow.mean, self.noise_share * math.sqrt(self.variance.mean)
        low = (
            reference > NO_SPREAD
            and fast < self.section.ratio * reference
            and reference - fast > self.section.sigma * sd
        )
        self.streak = self.streak + 1 if low else 0
        if self.streak < self.section.patience:
            return QUIET
        if self.solved.holds:
            return Signal(False, True, "the reward spread has dropped because the task is being solved.")
        return Signal(
            True, True,
            f"in-group reward spread {fast:.3g} is {fast / reference:.0%} of its slow average {reference:.3g} "
            f"for {self.streak} iterations.",
        )  # fmt: skip
