"""Finding 3: reward spread and entropy move before the mean reward, and a gradient spike marks the point of no return.

Judged on shadow runs only (detect.on_collapse: continue), some of which collapsed and some of which did not: a
run that the detectors stopped would prove them right by construction. Parts (intersection-union): *spread* and
*entropy*: their alarms lead the collapse; *placebo*: the leading alarms fit their own run's collapse better than
other runs' collapses; *spike*: runs with a gradient spike collapse more often than runs without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy import stats

from ragen_lab.detect.panel import replay
from ragen_lab.findings.base import FindingResult, Test, Verdict
from ragen_lab.findings.designs import POOLED, compound, judge
from ragen_lab.findings.needs import not_yet
from ragen_lab.findings.outcomes import Outcome, horizon_of, outcome, rebuilt, usable_runs
from ragen_lab.findings.statistics import (
    LIMIT,
    UNDECIDED,
    Interval,
    Permuted,
    clopper_pearson,
    seeds_needed,
    sign_flip,
    t_interval,
    wilson,
)
from ragen_lab.findings.tables import Table, standard_tables
from ragen_lab.runs import Run, RunTable
from ragen_lab.sections import DetectSection

number = 3
title = "Early signs of collapse"
claim = (
    "In-group reward spread and entropy move before the mean reward falls, and a spike of the gradient norm marks the "
    "point of no return."
)

SPREAD = "spread: lead time of the reward-spread alarm (sign flip over runs)"
ENTROPY = "entropy: lead time of the entropy alarm (sign flip over runs)"
PLACEBO = "placebo: distance of alarms to their own run's collapse, against other runs' (permutation)"
SPIKE = "spike: collapse after a gradient spike, against none (Fisher)"
decisive = (SPREAD, ENTROPY, PLACEBO, SPIKE)

SHARE = 0.10  # smallest difference of shares worth the name


@dataclass(frozen=True)
class Watched:
    """A run with each family's first alarm (iteration): None where it was silent, absent where not evaluable."""

    outcome: Outcome
    alarms: dict[str, int | None]


def evaluate(runs: RunTable) -> FindingResult:
    """Judge the claim on the shadow runs; alarms are recomputed from the stored rows."""
    usable, warnings = usable_runs(runs)
    shadow = [run for run in usable if run.status == "finished"]
    watched = _watch(shadow)
    collapsed = [w for w in watched if w.outcome.event]
    healthy = [w for w in watched if not w.outcome.event]
    stopped = sum(run.status == "collapsed" for run in usable)
    if stopped:
        warnings.append(f"{stopped} runs that the detectors stopped are left out: continue them in shadow.")
    seeds = seeds_needed(2)
    needs = [
        f"At least {least} {what} shadow runs (detect.on_collapse: continue), now {len(found)}."
        for least, what, found in ((seeds, "collapsed", collapsed), (1, "healthy", healthy))
        if len(found) < least
    ]
    for family, metric in (("reward_std", "rollout/reward_std_in_group"), ("entropy", "rollout/entropy"),
                           ("grad_norm", "train/grad_norm")):  # fmt: skip
        if watched and not any(family in w.alarms for w in watched):
            needs.append(f"{metric} in the rows, long enough for its detector.")
    if needs:
        return not_yet(number, title, claim, runs, needs, warnings[len(usable_runs(runs)[1]) :])
    tests = [
        _lead(SPREAD, "reward_std", "Does the spread alarm come before the collapse?", collapsed, healthy),
        _lead(ENTROPY, "entropy", "Does the entropy alarm come before the collapse?", collapsed, healthy),
        _placebo(collapsed),
        _spike(watched),
    ]
    verdict = compound([test.verdict for test in tests])
    told = "; ".join(f"{test.name.split(':')[0]} {test.verdict.value}" for test in tests)
    headline = (
        f"Over {len(collapsed)} collapsed and {len(healthy)} healthy runs the spread alarm leads the collapse by "
        f"{tests[0].effect:.3g} iterations and the entropy alarm by {tests[1].effect:.3g}. Parts: {told}."
    )
    tables = {**standard_tables([w.outcome for w in watched]), "Lead times": _table(watched)}
    return FindingResult(
        number, title, claim, verdict, headline, tuple(tests), tuple(_missing(tests)), tuple(warnings), tables
    )


def _watch(runs: Sequence[Run]) -> list[Watched]:
    found = []
    for run in runs:
        horizon = horizon_of([run])
        cfg = rebuilt(run.params)
        verdicts = replay(run.rows, cfg.detect if cfg else DetectSection(), horizon)
        alarms = {name: v.first_alarm for name, v in verdicts.detectors.items() if v.evaluable}
        found.append(Watched(outcome(run, horizon), alarms))
    return found


def _lead(name: str, family: str, question: str, collapsed: Sequence[Watched], healthy: Sequence[Watched]) -> Test:
    """A collapsed run without an alarm counts with the worst lead there is: as if it came at the very end."""
    judged = [w for w in collapsed if family in w.alarms]
    leads = [w.outcome.time - _or(w.alarms[family], w.outcome.horizon) for w in judged]
    every = max(int(w.outcome.run.params.get("eval.every", 1)) for w in collapsed)
    test, interval = sign_flip(leads), t_interval(leads)
    hits = sum(lead > 0 for lead in leads)
    fit = [w for w in healthy if family in w.alarms]
    false = sum(w.alarms[family] is not None for w in fit)
    note = f"Recall before the collapse {hits} of {len(leads)}; false alarms {false} of {len(fit)} healthy runs"
    if fit:
        low, high = clopper_pearson(false, len(fit))
        note += f" (95 % interval {low:.2f} to {high:.2f})"
    return Test(
        name, question, POOLED, f"{len(leads)} collapsed runs", interval.estimate, interval.low, interval.high,
        "iterations", test.p, test.smallest_p, float(every), judge(interval, test, float(every)),
        f"{note}. Collapse times are known to {every} iterations, which is also the smallest lead of interest.",
    )  # fmt: skip


def _or(alarm: int | None, otherwise: int) -> int:
    return otherwise if alarm is None else alarm


def _placebo(collapsed: Sequence[Watched]) -> Test:
    """Re-pair alarms with other runs' collapse times. Distance: from the alarm plus the mean lead to the collapse.

    An alarm that comes at the same iteration in every run leads some collapses too, but not this one's.
    """
    first = [[a for f in ("reward_std", "entropy") if (a := w.alarms.get(f)) is not None] for w in collapsed]
    pairs = [(min(alarms), w.outcome.time) for alarms, w in zip(first, collapsed, strict=True) if alarms]
    alarms, times = np.array([a for a, _ in pairs], float), np.array([t for _, t in pairs], float)
    n = len(pairs)
    test, interval = UNDECIDED, Interval(math.nan, math.nan, math.nan)
    if n >= 2:
        lead = times.mean() - alarms.mean()  # the same for every pairing
        distance = np.abs(alarms[:, None] + lead - times[None, :])
        own = np.diag(distance)
        others = (distance.sum(axis=1) - own) / (n - 1)
        interval = t_interval([float(d) for d in others - own])
        exact = math.factorial(n) <= LIMIT
        rng = np.random.default_rng(0)
        orders = permutations(range(n)) if exact else (rng.permutation(n) for _ in range(LIMIT - 1))
        bar = float(own.sum()) + 1e-9
        reached = sum(bool(distance[np.arange(n), np.array(order)].sum() <= bar) for order in orders)
        smallest = 1 / math.factorial(n) if exact else 1 / LIMIT
        p = float(reached * smallest) if exact else (1 + reached) / LIMIT
        test = Permuted(float(own.mean()), p, smallest, exact)
    every = max((int(w.outcome.run.params.get("eval.every", 1)) for w in collapsed), default=1)
    return Test(
        PLACEBO, "Do alarms belong to their own run's collapse?", POOLED, f"{n} collapsed runs with an alarm",
        interval.estimate, interval.low, interval.high, "iterations nearer", test.p, test.smallest_p, float(every),
        judge(interval, test, float(every)),
        "Earlier of the two alarms, plus the mean lead; effect: how much nearer it is to the own collapse.",
    )  # fmt: skip


def _spike(watched: Sequence[Watched]) -> Test:
    """Spikes up to the collapse (or, in a healthy run, at any time)."""
    fit = [w for w in watched if "grad_norm" in w.alarms]
    spiked = [w for w in fit if _or(w.alarms["grad_norm"], w.outcome.horizon + 1) <= w.outcome.time]
    calm = [w for w in fit if w not in spiked]
    a, b = sum(w.outcome.event for w in spiked), sum(w.outcome.event for w in calm)
    p, smallest, interval = math.nan, 1.0, Interval(math.nan, math.nan, math.nan)
    if spiked and calm:
        p = float(stats.fisher_exact([[a, len(spiked) - a], [b, len(calm) - b]], alternative="greater").pvalue)
        most = min(a + b, len(spiked))  # with these margins, the clearest table there could be
        rest = a + b - most
        best = [[most, len(spiked) - most], [rest, len(calm) - rest]]
        smallest = float(stats.fisher_exact(best, alternative="greater").pvalue)
        interval = _newcombe(a, len(spiked), b, len(calm))
    note = f"After a spike {a} of {len(spiked)} runs collapsed for good, without one {b} of {len(calm)}."
    return Test(
        SPIKE, "Is there no way back after a gradient spike?", POOLED, f"{len(fit)} runs", interval.estimate,
        interval.low, interval.high, "difference of shares", p, smallest, SHARE,
        judge(interval, Permuted(math.nan, p, smallest, True), SHARE), note,
    )  # fmt: skip


def _newcombe(a: int, n: int, b: int, m: int) -> Interval:
    """Difference of two shares with Newcombe's hybrid score interval (1998, method 10)."""
    (low_a, high_a), (low_b, high_b) = wilson(a, n), wilson(b, m)
    share_a, share_b = a / n, b / m
    difference = share_a - share_b
    return Interval(
        difference,
        difference - math.hypot(share_a - low_a, high_b - share_b),
        difference + math.hypot(high_a - share_a, share_b - low_b),
    )


def _missing(tests: Sequence[Test]) -> list[str]:
    return [
        f"For {test.name.split(':')[0]}: more runs (smallest reachable p {test.smallest_p:.2g}). {test.note}"
        for test in tests
        if test.verdict is Verdict.NOT_TESTABLE
    ]


def _table(watched: Sequence[Watched]) -> Table:
    return [
        {
            "arm": w.outcome.run.arm,
            "seed": w.outcome.run.seed,
            "collapse_iteration": w.outcome.level.time,
            **{f"{family}_alarm": w.alarms.get(family) for family in ("reward_std", "entropy", "grad_norm")},
            **{
                f"{family}_lead": None if alarm is None or not w.outcome.event else w.outcome.time - alarm
                for family in ("reward_std", "entropy", "grad_norm")
                for alarm in (w.alarms.get(family),)
            },
            "trial_id": w.outcome.run.trial_id,
        }
        for w in watched
    ]
