"""What a collapse detector is: one plain-float row in, one signal out.

A new detector is a new file, a section of its own in ``config.DetectSection`` and one line in
``panel.DETECTORS``. Detectors hold no torch and no files, so that the same code runs inside training,
on stored runs and on other trainers' logs. Their state is never stored: it is rebuilt by replaying
the rows, so that a changed ``detect`` section needs no retraining.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from ragen_lab.sections import DetectSection


@dataclass(frozen=True)
class Signal:
    """A detector's answer to one row. ``reason`` is one sentence: why the alarm, or why not evaluable."""

    alarm: bool
    evaluable: bool
    reason: str = ""


QUIET = Signal(alarm=False, evaluable=True)


def not_evaluable(reason: str) -> Signal:
    """Not judged is never healthy: such a detector logs no flag (pitfall 24)."""
    return Signal(alarm=False, evaluable=False, reason=reason)


@dataclass(frozen=True)
class Stop:
    """The vote's call that a run has collapsed."""

    iteration: int
    reason: str


class Detector(Protocol):
    """Sees the rows of a run in order and says after each whether its alarm is on."""

    doc: ClassVar[str]  # one line for `ragen-lab list detectors`

    @classmethod
    def build(cls, detect: DetectSection, horizon: int) -> Self:
        """From the config; ``horizon`` = train.iterations scales what the section leaves open."""

    def update(self, row: Mapping[str, float]) -> Signal:
        """Take the next row. A row without the detector's metric leaves the signal as it was."""


def row_iteration(row: Mapping[str, float], position: int) -> int:
    """The row's iteration; its position where a foreign log has none."""
    return int(row.get("iteration", position))
