"""Numbers and sentences of the report, computed from the runs: nothing here is typed in beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from statistics import median

from ragen_lab.findings.base import Verdict
from ragen_lab.report import data
from ragen_lab.report.data import Cost, Curve, Dot, Reference, Survival, mean_curve
from ragen_lab.runs import RunTable

NOT_EVALUABLE = "not evaluable"

MEANINGS: dict[Verdict, str] = {
    Verdict.SUPPORTED: "These runs show the claimed effect: it is at least the smallest effect of interest, and it is "
    "unlikely to be chance after correction for the number of findings tested.",
    Verdict.CONTRADICTED: "These runs speak against the claim: an effect worth the name, in the claimed direction, "
    "lies outside the 95 % interval.",
    Verdict.INCONCLUSIVE: "These runs neither show the claimed effect nor rule it out: the data are compatible with "
    "both. This is not evidence of no effect.",
    Verdict.MIXED: "The environments point in opposite directions, so no single answer is given.",
    Verdict.NOT_TESTABLE: "The claim as a whole cannot be judged on these runs, whatever their numbers are: see what "
    "is missing.",
}
SYMBOLS: dict[Verdict, str] = {
    Verdict.SUPPORTED: "✓",
    Verdict.CONTRADICTED: "✕",
    Verdict.INCONCLUSIVE: "?",
    Verdict.MIXED: "⇄",
    Verdict.NOT_TESTABLE: "○",
}
STATUSES: dict[str, str] = {
    "finished": "ran to the last iteration asked for",
    "collapsed": "called collapsed by the detectors' vote and stopped",
    "pruned": "ended early by the scheduler, not for collapse",
    "stopped": "interrupted; the next start of the sweep goes on from its checkpoint",
    "failed": "ended by an error, after its retries",
    "pending": "waiting, or still running",
}


def number(value: float, digits: int = 3) -> str:
    """A float for reading: about ``digits`` significant digits, never an empty word for NaN."""
    if math.isnan(value):
        return NOT_EVALUABLE
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 100:
        text = f"{value:.0f}"
    elif size >= 10:
        text = f"{value:.{max(digits - 2, 0)}f}"
    elif size >= 1e-3 or size == 0:
        text = f"{value:.{digits if size < 1 else digits - 1}f}"
    else:
        text = f"{value:.1e}"
    return text.replace("-", "−") if text[0] == "-" and "e" not in text else text


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def probability(value: float) -> str:
    """A p-value: two significant digits, with a floor that no design of this size can need to see beyond."""
    if math.isnan(value):
        return NOT_EVALUABLE
    if value < 1e-4:
        return f"{value:.0e}" if value > 0 else "0"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def cell(value: object) -> str:
    """A plain value of any kind as text; what is missing is called so."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {cell(item)}" for key, item in value.items()) or "–"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(cell(item) for item in value) or "–"
    return str(value)


def setting(value: object) -> str:
    """A knob's value, exactly as a page of YAML would hold it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def status_counts(runs: RunTable) -> str:
    counts = {status: sum(run.status == status for run in runs.runs) for status in STATUSES}
    other = len(runs) - sum(counts.values())
    parts = [f"{count} {status}" for status, count in counts.items() if count]
    return ", ".join(parts + ([f"{other} of unknown status"] if other else []))


def reference_words(lines: Sequence[Reference]) -> str:
    return ", ".join(f"{line.name} {line.value:.2f}" for line in lines)


def curves_caption(groups: Mapping[str, Sequence[Curve]], lines: Sequence[Reference]) -> str:
    """What to look at in the learning curves: the arms that gained most and least, and who was called collapsed."""
    told = []
    for arm, group in groups.items():
        iterations, values = mean_curve(group)
        if not iterations:
            continue
        called = sum(curve.called_at is not None for curve in group)
        text = f"{arm} goes from {values[0]:.2f} to {values[-1]:.2f} by iteration {iterations[-1]}"
        last = max(curve.iterations[-1] for curve in group)
        if iterations[-1] < last:
            text += ", where its first run ends"
        if called:
            text += f", {called} of {plural(len(group), 'run')} called collapsed (✕)"
        told.append((called / len(group), values[0] - values[-1], text))
    if not told:
        return "No arm has ended runs with an evaluation, so there is no mean to compare yet."
    told.sort()
    parts = [told[0][2]] if len(told) == 1 else [told[0][2], told[-1][2]]
    text = "Look at where each bold mean goes from its own start, and at the crosses: " + "; ".join(parts)
    return text + (f". Reference lines: {reference_words(lines)}." if lines else ". No reference lines were logged.")


def final_caption(dots: Sequence[Dot], means: Mapping[str, tuple[float, float, float]]) -> str:
    """What to look at in the dots of final success."""
    values = {(dot.arm, dot.seed): dot.value for dot in dots if math.isfinite(dot.value)}
    ranked = sorted((arm for arm, mean in means.items() if math.isfinite(mean[0])), key=lambda arm: means[arm][0])
    if not values or not ranked:
        return "No run has come to its end with an evaluation, so there is no final success to compare."
    within = {
        arm: max(mine) - min(mine)
        for arm in ranked
        if len(mine := [value for (a, _), value in values.items() if a == arm]) > 1
    }
    text = ""
    if len(ranked) > 1:
        worst, best = ranked[0], ranked[-1]
        shared = sorted({seed for arm, seed in values if arm == best} & {seed for arm, seed in values if arm == worst})
        above = sum(values[best, seed] > values[worst, seed] for seed in shared)
        text = (
            f"Look at whether the grey lines all lean the same way: {best} (mean {means[best][0]:.2f}) lies above "
            f"{worst} ({means[worst][0]:.2f}) in {above} of {plural(len(shared), 'shared seed')}."
        )
    else:
        text = f"Look at the spread of the dots around the mean of {ranked[0]}, {means[ranked[0]][0]:.2f}."
    if within:
        widest = max(within, key=lambda arm: within[arm])
        text += f" Seeds of one arm alone differ by up to {within[widest]:.2f} ({widest})."
    return text


def survival_caption(curves: Sequence[Survival], others: Sequence[Survival]) -> str:
    """What to look at in the Kaplan-Meier curves. ``others``: stops by a detector counted as collapses."""
    events, runs = sum(curve.events for curve in curves), sum(curve.runs for curve in curves)
    stops = sum(curve.events for curve in others) - events
    if events:
        parts = "; ".join(f"{curve.arm} {curve.events} of {curve.runs}" for curve in curves)
        text = f"Look at which curves step down, and when: {events} of {plural(runs, 'run')} collapsed ({parts})."
    else:
        text = f"Look at the ticks: none of {plural(runs, 'run')} has collapsed by the definition."
    if stops:
        parts = "; ".join(
            f"{other.arm} {other.events} of {other.runs}"
            for curve, other in zip(curves, others, strict=True)
            if other.events != curve.events
        )
        were = "was" if stops == 1 else "were"
        text += (
            f" {plural(stops, 'more run' if events else 'run')} {were} stopped by the detectors before the definition "
            f"could hold: counted as collapses (dotted) it is {parts}."
        )
    return text


def signal_caption(group: Sequence[Curve]) -> str:
    """First and last value of a metric, in the runs called collapsed and in the others."""

    def ends(curves: Sequence[Curve]) -> str:
        pairs = [
            (finite[0], finite[-1]) for curve in curves if (finite := [v for v in curve.values if math.isfinite(v)])
        ]
        if not pairs:
            return NOT_EVALUABLE
        return f"{number(median(a for a, _ in pairs), 2)} → {number(median(b for _, b in pairs), 2)}"

    called = [curve for curve in group if curve.called_at is not None]
    others = [curve for curve in group if curve.called_at is None]
    parts = []
    if called:
        parts.append(f"{plural(len(called), 'run')} called collapsed: {ends(called)}")
    if others:
        parts.append(f"{plural(len(others), 'other run' if called else 'run')}: {ends(others)}")
    unfit = sum(bool(curve.non_finite) for curve in group)
    return "First → last value, median. " + "; ".join(parts) + (f"; {unfit} with NaN or inf (✳)" if unfit else "") + "."


def alarm_rows(runs: RunTable) -> tuple[list[dict[str, object]], int]:
    """Each detector against the collapses by the definition, in hindsight.

    Judging the detectors by their own vote would be a circle. Runs that the vote ended before the definition
    could hold are neither: they are counted apart, in the second return value.
    """
    judged = data.outcomes(runs)
    cut = sum(outcome.ambiguous for outcome in judged)
    rows: list[dict[str, object]] = []
    for detector, sentence in data.DETECTORS.items():
        logged = [o for o in judged if len(o.run.series(f"detect/{detector}")[0]) and not o.ambiguous]
        first = {
            id(o): min((a.iteration for a in data.alarms_of(o.run) if a.detector == detector), default=None)
            for o in logged
        }
        fallen = [o for o in logged if o.level.collapsed]
        healthy = [o for o in logged if o.level.status in ("held", "never_improved", "never_above_random")]
        leads = [
            collapse - alarm
            for o in fallen
            if (alarm := first[id(o)]) is not None and (collapse := o.level.time) is not None
        ]
        false = sum(first[id(o)] is not None for o in healthy)
        rows.append(
            {
                "detector": detector,
                "alarm means": sentence,
                "fired in collapsed runs": f"{len(leads)} of {len(fallen)}" if fallen else NOT_EVALUABLE,
                "before the collapse began": f"{sum(lead > 0 for lead in leads)} of {len(fallen)}"
                if fallen
                else NOT_EVALUABLE,
                "median lead (iterations)": float(median(leads)) if leads else None,
                "fired in runs that did not collapse": f"{false} of {len(healthy)}" if healthy else NOT_EVALUABLE,
            }
        )
    return rows, cut


def cost_caption(costs: Sequence[Cost], evaluation: float) -> str:
    """What to look at in the costs. ``evaluation``: mean seconds of one, NaN where not logged."""
    apart = "" if math.isnan(evaluation) else f" An evaluation takes {evaluation:.2f} s more, each time."
    totals: dict[str, list[float]] = {}
    for item in costs:
        totals.setdefault(item.arm, []).append(item.total)
    means = sorted((sum(values) / len(values), arm) for arm, values in totals.items())
    if len(means) == 1:
        return f"One iteration of {means[0][1]} takes {means[0][0]:.2f} s." + apart
    (low, cheap), (high, dear) = means[0], means[-1]
    shares = {
        phase: sum(c.phases.get(phase, 0.0) for c in costs if c.arm == dear) / len(totals[dear])
        - sum(c.phases.get(phase, 0.0) for c in costs if c.arm == cheap) / len(totals[cheap])
        for phase in dict.fromkeys(phase for c in costs for phase in c.phases)
    }
    cause = max(shares, key=lambda phase: shares[phase])
    if low <= 0:
        return f"An iteration of {dear} takes {high:.2f} s." + apart
    return (
        f"Look at the length of the bars: an iteration of {cheap} takes {low:.2f} s, of {dear} {high:.2f} s "
        f"({high / low:.1f} times as long); the largest part of the difference is the {cause}.{apart} Seconds depend "
        "on what else the machine was doing."
    )
