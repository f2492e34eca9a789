"""Which checkpoints of a run are worth keeping: one rule for training and for ``ragen-lab prune``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

Row = Mapping[str, float]
SUCCESS = "eval/success"
POLICIES = {
    "last": "the newest checkpoint",
    "best": "the checkpoint with the highest evaluation success so far (the earliest of equals)",
    "before-alarm": "the newest checkpoint before the alarms that led to the stop, or else before the latest alarms",
}


def worth_keeping(
    rows: Sequence[Row], checkpoints: Sequence[int], policies: Iterable[str], vote_window: int
) -> set[int]:
    """The iterations that ``policies`` keep of ``checkpoints``, which are in ascending order.

    ``rows``: row i is iteration i, with its ``detect/`` flags. A policy that finds nothing keeps nothing.
    """
    usable = [iteration for iteration in checkpoints if iteration < len(rows)]
    kept: set[int] = set()
    for policy in policies:
        if policy == "last":
            kept |= set(usable[-1:])
        elif policy == "best":
            scored = [(success, -i) for i in usable if (success := _success_at(rows, i)) is not None]
            kept |= {-max(scored)[1]} if scored else set()
        elif (onset := alarm_onset(rows, vote_window)) is not None:
            kept |= set([iteration for iteration in usable if iteration < onset][-1:])
    return kept


def _success_at(rows: Sequence[Row], iteration: int) -> float | None:
    """The newest finite evaluation success at or before an iteration."""
    for row in reversed(rows[: iteration + 1]):
        if SUCCESS in row and math.isfinite(row[SUCCESS]):
            return row[SUCCESS]
    return None


def alarm_onset(rows: Sequence[Row], vote_window: int) -> int | None:
    """Where the alarms began that led to the first stop (without a stop: the latest alarms); None without any.

    Alarms of which each comes within ``vote_window`` iterations of the one before belong together, as they do in the
    vote of the detectors.
    """
    onset = last = None
    for iteration, row in enumerate(rows):
        if any(value == 1 for name, value in row.items() if name.startswith("detect/")):
            if last is None or iteration - last >= vote_window:
                onset = iteration
            last = iteration
        if row.get("detect/stop") == 1:
            break
    return onset
