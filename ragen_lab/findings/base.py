"""What a finding says: a verdict with its numbers, as plain data. Figures only draw it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"
    MIXED = "mixed"  # environments point in opposite directions
    NOT_TESTABLE = "not testable yet"


@dataclass(frozen=True)
class Test:
    """One statistical comparison. ``effect`` with its 95 % interval, in ``unit``; NaN where undefined."""

    name: str  # for example "trend over keep ratios (log-rank, permuted within seed)"
    question: str  # plain English
    environment: str
    n: str  # for example "3 arms x 5 seeds"
    effect: float
    low: float
    high: float
    unit: str
    p: float  # one-sided in the claim's direction unless the name says otherwise
    smallest_p: float  # the smallest p this design can reach
    sesoi: float  # smallest effect of interest, in ``unit``
    verdict: Verdict
    note: str = ""

    __test__ = False  # its name would make pytest collect it

    @property
    def spread(self) -> str:
        """The interval in words, for a sentence that has told the effect."""
        if math.isnan(self.low) or math.isnan(self.high):
            return "too few seeds for an interval"
        return f"95 % interval {self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True)
class FindingResult:
    """The judgement of one finding on the user's runs."""

    number: int
    title: str
    claim: str
    verdict: Verdict
    headline: str  # one or two sentences in plain English, with the numbers
    tests: tuple[Test, ...] = ()
    needs: tuple[str, ...] = ()  # what is missing before it can be judged (computed from the runs)
    warnings: tuple[str, ...] = ()  # confounds, verdicts that flip with the thresholds, informative stops
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # title -> rows, plain values
