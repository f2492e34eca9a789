"""The read side: runs of a sweep as plain data, whatever they were read from.

``Run`` is one trial as one sweep sees it: its rows are cut at that sweep's iterations and stopping policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Row = dict[str, float]  # one line of metrics.jsonl: "iteration", "timestamp" and metrics


@dataclass(frozen=True)
class Run:
    """One trial of a sweep."""

    trial_id: str
    config_id: str
    sweep: str
    arm: str  # human label, for example "keep_ratio=0.5" or "random_drop"
    seed: int
    params: dict[str, Any]  # RunConfig.flat()
    rows: tuple[Row, ...]
    status: str  # finished | collapsed | pruned | stopped | failed | pending
    stop_iteration: int | None = None
    stop_reason: str | None = None
    mlflow_run_id: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def series(self, metric: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """(iterations, values) of the rows that hold ``metric``; NaN and inf are kept."""
        points = [(row["iteration"], row[metric]) for row in self.rows if metric in row]
        iterations = np.array([int(i) for i, _ in points], dtype=np.int64)
        return iterations, np.array([v for _, v in points], dtype=np.float64)

    def last(self, metric: str) -> float | None:
        """The newest value of ``metric``, or None."""
        _, values = self.series(metric)
        return float(values[-1]) if len(values) else None


@dataclass(frozen=True)
class RunTable:
    """The runs of one or more sweeps."""

    runs: tuple[Run, ...]

    def __iter__(self) -> Iterable[Run]:  # type: ignore[override]
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)
