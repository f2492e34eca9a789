"""The exponentially weighted mean that the detectors share."""

from __future__ import annotations


class Ewma:
    """``mean += alpha * (x - mean)``, started at the first value.

    ``even_start``: the first values weigh alike (alpha = 1/n until that is smaller than ``alpha``), so
    that a slow average does not hang on its first value for a whole span.
    """

    def __init__(self, alpha: float, even_start: bool = False):
        self.alpha = alpha
        self.even_start = even_start
        self.count = 0
        self.mean: float | None = None

    def update(self, value: float) -> float:
        self.count += 1
        if self.mean is None:
            self.mean = value
        else:
            alpha = max(self.alpha, 1 / self.count) if self.even_start else self.alpha
            self.mean += alpha * (value - self.mean)
        return self.mean
