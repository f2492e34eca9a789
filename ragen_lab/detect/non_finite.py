"""NaN and infinity: recorded, never dropped, because they are the finding (pitfall 22)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from ragen_lab.detect.base import QUIET, Signal, not_evaluable
from ragen_lab.sections import DetectSection

WATCHED = ("train/", "rollout/")
# Shares of something that an iteration may not contain (no think text, no success, no variance): 0/0 there
# is an empty set, not a broken number.
MAY_BE_UNDEFINED = frozenset(
    {
        "rollout/template_share",
        "rollout/template_share_success",
        "rollout/distinct_4",
        "train/explained_variance",
    }
)


class NonFiniteDetector:
    """Alarm on the very row in which a train/ or rollout/ metric is NaN or infinite."""

    doc: ClassVar[str] = "A loss, gradient, reward or other training metric is NaN or infinite."

    def __init__(self) -> None:
        self.signal = not_evaluable("no train/ or rollout/ metric is logged")

    @classmethod
    def build(cls, detect: DetectSection, horizon: int) -> NonFiniteDetector:
        return cls()

    def update(self, row: Mapping[str, float]) -> Signal:
        watched = [name for name in row if name.startswith(WATCHED)]
        if not watched:
            return self.signal
        bad = [name for name in watched if not math.isfinite(row[name])]
        bad = [name for name in bad if name not in MAY_BE_UNDEFINED]
        self.signal = QUIET
        if bad:
            listed = ", ".join(f"{name} = {row[name]}" for name in sorted(bad)[:3])
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            return Signal(True, True, f"{listed}{more}.")
        return self.signal
