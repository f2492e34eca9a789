"""What is missing before a finding can be judged, counted from the runs; and the honest answer that follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ragen_lab.findings.base import FindingResult, Verdict
from ragen_lab.findings.outcomes import strata, usable_runs
from ragen_lab.findings.statistics import seeds_needed
from ragen_lab.findings.tables import outcomes_of, standard_tables
from ragen_lab.runs import Run, RunTable

Level = tuple[Any, ...]


def levels(runs: Sequence[Run], design: Sequence[str]) -> dict[Level, int]:
    """Values of the ``design`` parameters -> seeds, in the stratum that has most of them.

    Runs of one stratum are equal in everything else but the seed.
    """
    best: dict[Level, int] = {}
    for stratum in strata(runs, design):
        found: dict[Level, set[int]] = {}
        for run in stratum.runs:
            found.setdefault(tuple(run.params.get(path) for path in design), set()).add(run.seed)
        counted = {level: len(seeds) for level, seeds in found.items()}
        if (len(counted), sum(counted.values())) > (len(best), sum(best.values())):
            best = counted
    return best


def ladder_needs(
    runs: Sequence[Run], design: Sequence[str], least: int, what: str, allowed: Callable[[Run], bool] = lambda run: True
) -> list[str]:
    """Needs of a trend over at least ``least`` levels of ``design``, each with enough seeds."""
    found = levels([run for run in runs if all(path in run.params for path in design) and allowed(run)], design)
    seeds = seeds_needed(max(least, len(found)))
    if len(found) < least:
        have = ", ".join("/".join(str(value) for value in level) for level in found) or "none"
        return [f"{what}: at least {least} levels in runs that are otherwise equal, {seeds_needed(least)} seeds each "
                f"(found: {have})."]  # fmt: skip
    if min(found.values()) < seeds:
        return [f"{what}: at least {seeds} seeds per level (the smallest has {min(found.values())})."]
    return []


def not_yet(
    number: int, title: str, claim: str, runs: RunTable, needs: Sequence[str], warnings: Sequence[str] = ()
) -> FindingResult:
    """Not testable yet: because of the runs, or, where they would do, because this version lacks the test."""
    _, left_out = usable_runs(runs)
    if needs:
        headline = f"Not testable yet: {len(needs)} {'things are' if len(needs) > 1 else 'thing is'} missing."
    else:
        headline = "Not testable yet: the runs would do, but this version does not evaluate this finding."
    return FindingResult(
        number, title, claim, Verdict.NOT_TESTABLE, headline, needs=tuple(needs),
        warnings=(*left_out, *warnings), tables=standard_tables(outcomes_of(runs)),
    )  # fmt: skip
