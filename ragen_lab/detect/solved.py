"""Is the run simply solving its task? Then a vanishing reward spread is no collapse (pitfall 23)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ragen_lab.detect.ewma import Ewma

FAST = 0.3
HIGH = 0.8  # a success below this leaves in-group spread to be had: std of a coin is 0.4 at 0.8
AT_PEAK = 0.9  # and the level must not already be on its way down


class Solved:
    """Success is high and at its peak.

    Where a log has no ``rollout/success``, nobody knows which reward is high. Then: the smoothed reward
    has risen since the start by more than one in-group spread of the start, and at most a tenth of the rise is lost.
    """

    def __init__(self) -> None:
        self.success, self.reward = Ewma(FAST), Ewma(FAST)
        self.success_peak = self.reward_peak = -math.inf
        self.reward_start = self.spread_start = math.nan

    def update(self, row: Mapping[str, float]) -> None:
        if math.isfinite(value := float(row.get("rollout/success", math.nan))):
            self.success_peak = max(self.success_peak, self.success.update(value))
        if math.isnan(self.spread_start):
            self.spread_start = float(row.get("rollout/reward_std_in_group", math.nan))
        if math.isfinite(value := float(row.get("rollout/reward_mean", math.nan))):
            smoothed = self.reward.update(value)
            self.reward_peak = max(self.reward_peak, smoothed)
            if math.isnan(self.reward_start):
                self.reward_start = smoothed

    @property
    def holds(self) -> bool:
        if self.success.mean is not None:
            return self.success.mean >= HIGH and self.success.mean >= AT_PEAK * self.success_peak
        if self.reward.mean is None:
            return False
        rise = self.reward_peak - self.reward_start
        return rise > self.spread_start and self.reward.mean >= self.reward_peak - (1 - AT_PEAK) * rise
