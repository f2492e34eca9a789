"""The six findings, and judging all of them at once with Holm's correction over those that were tested."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

from ragen_lab.findings import (
    finding_1_single_turn,
    finding_2_echo_trap,
    finding_3_early_signs,
    finding_4_filtering,
    finding_5_rollouts,
    finding_6_reward_design,
)
from ragen_lab.findings.base import FindingResult, Verdict
from ragen_lab.findings.designs import lead
from ragen_lab.findings.statistics import ALPHA, holm
from ragen_lab.runs import RunTable


class Finding(Protocol):
    """What a module of a finding offers. ``decisive``: names of the tests that must all hold for its claim."""

    number: int
    title: str
    claim: str

    @property
    def decisive(self) -> tuple[str, ...]: ...

    def evaluate(self, runs: RunTable) -> FindingResult:
        """Judge the claim on the user's runs; reads parameters and metrics, never labels."""


FINDINGS: dict[int, Finding] = {
    1: finding_1_single_turn,
    2: finding_2_echo_trap,
    3: finding_3_early_signs,
    4: finding_4_filtering,
    5: finding_5_rollouts,
    6: finding_6_reward_design,
}


def p_value(result: FindingResult) -> float | None:
    """The p of a compound claim: the largest of its decisive tests. None where a part could not be tested."""
    if result.verdict is Verdict.NOT_TESTABLE:
        return None
    found = [test.p for name in FINDINGS[result.number].decisive if (test := lead(result.tests, name)) is not None]
    return max(found) if found and not any(math.isnan(p) for p in found) else None


def evaluate_all(runs: RunTable) -> list[FindingResult]:
    """Every finding in order. 'Supported' needs a Holm-corrected p of at most 0.05 over the findings tested."""
    results = [finding.evaluate(runs) for finding in FINDINGS.values()]
    tested = {result.number: p for result in results if (p := p_value(result)) is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return [_corrected(result, corrected, len(tested)) for result in results]


def _corrected(result: FindingResult, corrected: dict[int, float], tested: int) -> FindingResult:
    if result.number not in corrected or tested < 2:
        return result
    p = corrected[result.number]
    note = f"Corrected over the {tested} findings tested (Holm): p = {p:.2g}."
    if result.verdict is Verdict.SUPPORTED and p > ALPHA:
        warnings = (*result.warnings, f"{note} Supported only when judged alone.")
        result = replace(result, verdict=Verdict.INCONCLUSIVE, warnings=warnings)
    return replace(result, headline=f"{result.headline} {note}")
