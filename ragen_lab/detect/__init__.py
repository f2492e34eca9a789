"""Collapse detectors on plain floats: the same code live, on stored runs, and on other trainers' logs."""

from ragen_lab.detect.base import Detector, Signal, Stop
from ragen_lab.detect.level import CollapseStatus, collapse, collapse_of_rows, level_series
from ragen_lab.detect.panel import DETECTORS, Panel, Verdicts, replay

__all__ = [
    "DETECTORS",
    "CollapseStatus",
    "Detector",
    "Panel",
    "Signal",
    "Stop",
    "Verdicts",
    "collapse",
    "collapse_of_rows",
    "level_series",
    "replay",
]
