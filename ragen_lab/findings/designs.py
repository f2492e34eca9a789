"""Ordered arms of one stratum, and the tests that read them: each returns a ``Test``, ready to print.

Level 0 is the arm that the claim says is worst; with two levels a trend test is the paired comparison.
Arms are paired by seed: a block is one seed of one stratum, and labels are permuted within blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

import numpy as np

from ragen_lab.findings.base import Test, Verdict
from ragen_lab.findings.outcomes import Outcome, Reading
from ragen_lab.findings.statistics import (
    ALPHA,
    Interval,
    Permuted,
    jonckheere,
    page,
    probability_of_improvement,
    rmst,
    rmst_pseudo_values,
    seeds_needed,
    sign_flip,
    t_interval,
    trend_logrank,
    umbrella,
)

Measure = Callable[[Outcome], float | None]
POOLED = "pooled"


@dataclass(frozen=True)
class Ladder:
    """The arms of one stratum in the order of the claim."""

    label: str
    names: tuple[str, ...]
    arms: tuple[tuple[Outcome, ...], ...]

    def read(self, reading: Reading) -> Ladder:
        """This ladder where stops by our detector are taken as ``reading``."""
        return replace(self, arms=tuple(tuple(o.read(reading) for o in arm) for arm in self.arms))

    @property
    def stopped(self) -> bool:
        return any(o.stopped for arm in self.arms for o in arm)

    @property
    def seeds(self) -> int:
        return min(len({o.run.seed for o in arm}) for arm in self.arms)

    @property
    def size(self) -> str:
        return f"{len(self.arms)} arms x {self.seeds} seeds"


@dataclass(frozen=True)
class Cells:
    """Runs of one or more ladders as parallel lists; every block holds at least two runs."""

    outcomes: list[Outcome]
    values: list[float]
    levels: list[float]
    blocks: list[int]
    strata: list[int]


def cells(ladders: Sequence[Ladder], measure: Measure) -> Cells:
    """Runs without the measure, and seeds with a single run, say nothing about a difference between arms."""
    found: list[tuple[Outcome, float, int, tuple[int, int], int]] = []
    for s, ladder in enumerate(ladders):
        for k, arm in enumerate(ladder.arms):
            found += [(o, v, k, (s, o.run.seed), s) for o in arm if (v := measure(o)) is not None and math.isfinite(v)]
    keys = [key for _, _, _, key, _ in found]
    kept = [item for item in found if keys.count(item[3]) >= 2]
    ids = {key: i for i, key in enumerate(dict.fromkeys(item[3] for item in kept))}
    return Cells(
        [o for o, *_ in kept], [v for _, v, *_ in kept], [float(k) for _, _, k, _, _ in kept],
        [ids[key] for _, _, _, key, _ in kept], [s for *_, s in kept],
    )  # fmt: skip


def complete_blocks(ladder: Ladder, measure: Measure) -> list[list[float]]:
    """One row per seed that has the measure in every arm, columns = levels."""
    by_seed = [
        {o.run.seed: v for o in arm if (v := measure(o)) is not None and math.isfinite(v)} for arm in ladder.arms
    ]
    shared = sorted(set.intersection(*(set(arm) for arm in by_seed)))
    return [[arm[seed] for arm in by_seed] for seed in shared]


def trend_weights(levels: int) -> list[float]:
    """Contrast weights: the change from the first to the last level along the least-squares line."""
    centred = np.arange(levels) - (levels - 1) / 2
    return [float(w) for w in centred / (centred**2).sum() * (levels - 1)]


def block_effects(ladders: Sequence[Ladder], measure: Measure) -> list[float]:
    """The trend contrast of every complete block."""
    return [
        float(np.dot(trend_weights(len(row)), row)) for ladder in ladders for row in complete_blocks(ladder, measure)
    ]


def judge(effect: Interval, test: Permuted, sesoi: float, p: float | None = None) -> Verdict:
    """The four verdicts, for one test (Holm over the findings comes later)."""
    p = test.p if p is None else p
    if math.isnan(p) or math.isnan(effect.estimate) or test.smallest_p > ALPHA:
        return Verdict.NOT_TESTABLE
    if p <= ALPHA and effect.estimate >= sesoi:
        return Verdict.SUPPORTED
    if effect.high < sesoi:
        return Verdict.CONTRADICTED
    return Verdict.INCONCLUSIVE


def environment_of(ladders: Sequence[Ladder]) -> str:
    return ladders[0].label if len({ladder.label for ladder in ladders}) == 1 else POOLED


def describe(ladders: Sequence[Ladder]) -> str:
    sizes = [ladder.size for ladder in ladders]
    return sizes[0] if len(set(sizes)) == 1 and len(sizes) == 1 else f"{len(sizes)} strata: " + "; ".join(sizes)


def how(test: Permuted) -> str:
    if math.isnan(test.p):
        return "no arrangement of these runs can be told from another."
    return f"{'exact' if test.exact else 'drawn'} permutation within seeds, smallest reachable p {test.smallest_p:.2g}."


def missing_seeds(ladders: Sequence[Ladder], test: Permuted) -> str | None:
    """How many seeds would make the test possible; None where it is."""
    if test.smallest_p <= ALPHA:
        return None
    arms = min(len(ladder.arms) for ladder in ladders)
    return f"{seeds_needed(arms, len(ladders))} seeds per arm (now {min(ladder.seeds for ladder in ladders)})"


def value_test(
    name: str, question: str, ladders: Sequence[Ladder], measure: Measure, unit: str, sesoi: float,
    span: float | None = None,
    transform: Callable[[float], float] = lambda x: x,
) -> Test:  # fmt: skip
    """Does ``measure`` rise with the level? Jonckheere within seeds; with two arms the sign flip.

    The effect is the change from the first to the last level along the least-squares line, with the t interval
    over seeds; ``transform`` (rising) turns it into ``unit``.
    """
    flat = cells(ladders, measure)
    effects = block_effects(ladders, measure)
    two = all(len(ladder.arms) == 2 for ladder in ladders)
    test = sign_flip(effects) if two else jonckheere(flat.values, flat.levels, flat.blocks, flat.strata)
    raw = t_interval(effects, span)
    interval = Interval(transform(raw.estimate), transform(raw.low), transform(raw.high))
    notes = ["Means: " + "; ".join(_means(ladder, measure) for ladder in ladders) + ".", "Test: " + how(test)]
    if len(ladders) == 1 and len(ladders[0].arms) > 2 and len(rows := complete_blocks(ladders[0], measure)) >= 2:
        notes.append(f"Page's test: p = {page(rows):.3g}.")
    first, last = ([v for o in ladders[0].arms[k] if (v := measure(o)) is not None] for k in (0, -1))
    if len(ladders) == 1 and first and last:
        notes.append(f"Probability of improvement, last arm over first: {probability_of_improvement(last, first):.2f}.")
    if seeds := missing_seeds(ladders, test):
        notes.append(f"Needs {seeds}.")
    return Test(
        name, question, environment_of(ladders), describe(ladders), interval.estimate, interval.low, interval.high,
        unit, test.p, test.smallest_p, sesoi, judge(interval, test, sesoi), " ".join(notes),
    )  # fmt: skip


def _means(ladder: Ladder, measure: Measure) -> str:
    parts = []
    for name, arm in zip(ladder.names, ladder.arms, strict=True):
        values = [v for o in arm if (v := measure(o)) is not None]
        parts.append(f"{name} {np.mean(values):.3g}" if values else f"{name} none")
    return f"{ladder.label}: " + ", ".join(parts)


def restricted_times(ladder: Ladder, horizon: float) -> Measure:
    """Each run's contribution to the restricted mean survival time of its arm."""
    table: dict[str, float] = {}
    for arm in ladder.arms:
        values = rmst_pseudo_values([o.time for o in arm], [o.event for o in arm], horizon)
        table |= {o.run.trial_id: v for o, v in zip(arm, values, strict=True)}
    return lambda o: table.get(o.run.trial_id)


def survival_test(
    name: str, question: str, ladders: Sequence[Ladder], horizon: float, sesoi: float, baseline_must_fail: bool = True
) -> Test:
    """Do collapses come later, or not at all, as the level rises? Trend log-rank within seeds, RMST effect.

    ``baseline_must_fail``: where the first arm hardly collapses there is nothing to improve, and only harm can be
    shown. Without it (comparison with a control) no collapse on either side means no difference.
    """
    flat = cells(ladders, lambda o: o.time)
    events = [o.event for o in flat.outcomes]
    test = trend_logrank(flat.values, events, flat.levels, flat.blocks, flat.strata)
    if not any(events) and not baseline_must_fail and flat.values:
        reach = sign_flip(block_effects(ladders, lambda o: o.time))
        test = replace(reach, p=1.0)
    measures = [restricted_times(ladder, horizon) for ladder in ladders]
    effects = [e for ladder, measure in zip(ladders, measures, strict=True) for e in block_effects([ladder], measure)]
    wide = t_interval(effects, span=horizon)
    interval = replace(wide, low=max(wide.low, -horizon), high=min(wide.high, horizon))  # NaN stays NaN
    verdict = judge(interval, test, sesoi)
    notes = [f"Collapsed: {'; '.join(_counts(ladder) for ladder in ladders)}.", "Test: " + how(test)]
    first = [o for ladder in ladders for o in ladder.arms[0]]
    room = horizon - rmst([o.time for o in first], [o.event for o in first], horizon)
    if baseline_must_fail and not any(events):
        notes.append("No run collapsed: these settings cannot show what makes runs more stable.")
    elif baseline_must_fail and room < sesoi:
        verdict = Verdict.CONTRADICTED if interval.high < 0 else Verdict.NOT_TESTABLE
        name_0 = ladders[0].names[0]
        notes.append(f"{name_0} hardly collapses ({room:.3g} iterations lost), so there is nothing to improve.")
    elif seeds := missing_seeds(ladders, test):
        notes.append(f"Needs {seeds}.")
    return Test(
        name, question, environment_of(ladders), describe(ladders), interval.estimate, interval.low, interval.high,
        "iterations", test.p, test.smallest_p, sesoi, verdict, " ".join(notes),
    )  # fmt: skip


def _counts(ladder: Ladder) -> str:
    arms = zip(ladder.names, ladder.arms, strict=True)
    return f"{ladder.label}: " + ", ".join(f"{name} {sum(o.event for o in arm)}/{len(arm)}" for name, arm in arms)


def departure_test(
    name: str, question: str, ladders: Sequence[Ladder], measure: Callable[[Ladder], Measure], unit: str, sesoi: float,
    span: float,
) -> Test | None:  # fmt: skip
    """Is a level between the ends better than both (umbrella with free peak)? None below three common levels."""
    if len({ladder.names for ladder in ladders}) != 1 or len(ladders[0].arms) < 3:
        return None
    rows = [row for ladder in ladders for row in complete_blocks(ladder, measure(ladder))]
    if not rows:
        return None
    found = umbrella(rows)
    means = np.mean(rows, axis=0)
    end = 0 if means[0] >= means[-1] else -1
    interval = t_interval([row[found.peak] - row[end] for row in rows], span)
    names = ladders[0].names
    note = (
        f"Best between the ends: {names[found.peak]}, against the better end, {names[end]}. Means: "
        + ", ".join(f"{n} {m:.3g}" for n, m in zip(names, means, strict=True))
        + f". The p value allows for the choice of the peak, the interval does not. Test: {how(found.test)}"
    )
    return Test(
        name, question, environment_of(ladders), describe(ladders), interval.estimate, interval.low, interval.high,
        unit, found.test.p, found.test.smallest_p, sesoi, judge(interval, found.test, sesoi), note,
    )  # fmt: skip


# Several strata, and stops that are informative ---------------------------------------------------------


class Readable(Protocol):
    """What one stratum offers: a ladder, or a ladder with its controls."""

    def read(self, reading: Reading) -> Self: ...

    @property
    def stopped(self) -> bool: ...


D = TypeVar("D", bound=Readable)


def both_ways(designs: Sequence[D], family: Callable[[Sequence[D]], list[Test]]) -> list[Test]:
    """A family of tests pooled and per stratum; where our detector stopped runs, read both ways and merged."""
    if not any(design.stopped for design in designs):
        return by_environment(designs, family)
    held = by_environment([design.read("held") for design in designs], family)
    return agree(held, by_environment([design.read("collapsed") for design in designs], family))


def by_environment(designs: Sequence[D], family: Callable[[Sequence[D]], list[Test]]) -> list[Test]:
    """Every test pooled, then per stratum."""
    parts = [test for design in designs for test in family([design])]
    if len(designs) == 1:
        return parts
    pooled = [test for test in family(designs) if test.environment == POOLED]
    return [*(pooled_verdict(test, [part for part in parts if part.name == test.name]) for test in pooled), *parts]


def agree(held: Sequence[Test], collapsed: Sequence[Test]) -> list[Test]:
    """Both readings of informative stops as one list: a verdict that depends on the reading is inconclusive."""
    merged = []
    other = {(test.name, test.environment): test for test in held}
    for test in collapsed:
        twin = other.get((test.name, test.environment), test)
        both = (
            f"Read both ways (stops are collapses / are none): {test.verdict.value}, p = {test.p:.3g} / "
            f"{twin.verdict.value}, p = {twin.p:.3g}."
        )
        verdict = test.verdict if test.verdict is twin.verdict else Verdict.INCONCLUSIVE
        merged.append(replace(test, verdict=verdict, note=f"{test.note} {both}"))
    return merged


def pooled_verdict(pooled: Test, parts: Sequence[Test]) -> Test:
    """The pooled line says 'mixed' where environments point in opposite directions."""
    up = [t for t in parts if t.verdict is Verdict.SUPPORTED]
    down = [t for t in parts if t.verdict is Verdict.CONTRADICTED and t.high < 0]
    if not up or not down:
        return pooled
    note = f"Opposite directions: for it {', '.join(t.environment for t in up)}; against it "
    return replace(pooled, verdict=Verdict.MIXED, note=f"{note}{', '.join(t.environment for t in down)}. {pooled.note}")


def lead(tests: Sequence[Test], name: str) -> Test | None:
    """The pooled line of a test where there is one, else that of the only stratum."""
    named = [test for test in tests if test.name == name]
    return next((test for test in named if test.environment == POOLED), named[0] if named else None)


def compound(verdicts: Sequence[Verdict]) -> Verdict:
    """Intersection-union: a claim of several parts holds when all of them do."""
    for worst in (Verdict.MIXED, Verdict.CONTRADICTED, Verdict.NOT_TESTABLE, Verdict.INCONCLUSIVE):
        if worst in verdicts:
            return worst
    return Verdict.SUPPORTED if verdicts else Verdict.NOT_TESTABLE
