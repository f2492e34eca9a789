"""Finding 4: filtering low-variance prompt groups improves stability and efficiency.

The claim has four parts, and all must hold (intersection-union, each at the full alpha):
*stability*: over the ladder of keep ratios, collapses come later or not at all as fewer groups are kept;
*efficiency*: an iteration costs fewer seconds;
*low variance*: keeping the groups of highest spread is more stable than keeping as many at random;
*not the updates*: the ladder holds when every arm takes as many optimizer steps as the arm that keeps all
(the keep ratio also sets the steps per iteration; where it does not, this part is the first one).
Final success, area under the curve, time to threshold and the departure from a trend stand beside them: where
a ratio between the ends is best, "smaller is better" is neither supported nor contradicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ragen_lab.config import steps_per_iteration
from ragen_lab.detect.ewma import Ewma
from ragen_lab.findings.base import FindingResult, Test, Verdict
from ragen_lab.findings.designs import (
    Ladder,
    both_ways,
    compound,
    departure_test,
    lead,
    restricted_times,
    survival_test,
    value_test,
)
from ragen_lab.findings.outcomes import (
    SECONDS,
    Outcome,
    Reading,
    Sesoi,
    Stratum,
    horizon_of,
    level_section,
    outcome,
    ratio_text,
    rebuilt,
    strata,
    usable_runs,
)
from ragen_lab.findings.tables import Table, standard_tables
from ragen_lab.runs import Run, RunTable

number = 4
title = "Filtering low-variance groups"
claim = "Filtering low-variance prompt groups improves stability (fewer or later collapses) and efficiency."

RATIO, KIND, UPDATES = "filter.keep_ratio", "filter.kind", "optim.updates_per_rollout"
DESIGN = (RATIO, KIND, UPDATES)
KEEPS_A_SHARE = ("std", "random", "smallest")  # the other kinds filter whatever the keep ratio says

STABILITY = "stability: trend over keep ratios (log-rank, permuted within seed)"
EFFICIENCY = "efficiency: seconds per iteration over keep ratios (Jonckheere, permuted within seed)"
LOW_VARIANCE = "low variance: against random drop at the same ratio (log-rank, permuted within seed)"
SAME_UPDATES = "not the updates: the ladder at equal optimizer steps (log-rank, permuted within seed)"
decisive = (STABILITY, EFFICIENCY, LOW_VARIANCE, SAME_UPDATES)

FINAL = "final success: trend over keep ratios (Jonckheere, permuted within seed)"
AREA = "area under the curve: trend over keep ratios (Jonckheere, permuted within seed)"
TURN_TIME = "departure from a trend: collapse time (umbrella, free peak)"
TURN_FINAL = "departure from a trend: final success (umbrella, free peak)"
THRESHOLD = "efficiency: seconds to the threshold over keep ratios (Jonckheere, permuted within seed)"
FINAL_RANDOM = "final success: against random drop at the same ratio (sign flip)"
FINAL_UPDATES = "final success: the ladder at equal optimizer steps"

OTHER_FALLS = (0.33, 0.67)


@dataclass(frozen=True)
class Design:
    """What one stratum offers: the ladder, and its controls where there are any."""

    ladder: Ladder
    random: tuple[Ladder, ...]  # per ratio: (random drop, lowest variance dropped)
    same_updates: Ladder | None
    steps: dict[float, float]  # keep ratio -> optimizer steps per iteration, on the ladder

    @property
    def _ladders(self) -> list[Ladder]:
        return [self.ladder, *self.random, *([self.same_updates] if self.same_updates else [])]

    @property
    def stopped(self) -> bool:
        return any(ladder.stopped for ladder in self._ladders)

    def read(self, reading: Reading) -> Design:
        return replace(
            self,
            ladder=self.ladder.read(reading),
            random=tuple(ladder.read(reading) for ladder in self.random),
            same_updates=self.same_updates.read(reading) if self.same_updates else None,
        )


def evaluate(runs: RunTable, sesoi: Sesoi | None = None) -> FindingResult:
    """Judge the claim on ``runs``; arms are found from their parameters, never from their labels."""
    sesoi = sesoi or Sesoi()
    usable, warnings = usable_runs(runs)
    usable = [run for run in usable if RATIO in run.params and run.params.get(KIND, "std") in KEEPS_A_SHARE]
    groups = [stratum for stratum in strata(usable, DESIGN) if _rungs(stratum) >= 2]
    if not groups:
        return _nothing_to_test(usable, warnings)

    members = [run for group in groups for run in group.runs]
    horizon = horizon_of(members)
    if len({run.params.get("train.iterations") for run in members}) > 1:
        warnings.append(f"Runs differ in train.iterations: all are judged over the first {horizon}.")
    if len({repr(level_section(run.params)) for run in members}) > 1:
        warnings.append("Runs differ in detect.level: each is judged by its own thresholds.")

    designs = [_design(group, horizon, None) for group in groups]
    outcomes = [outcome(run, horizon) for run in members]
    tests = both_ways(designs, lambda chosen: _all_tests(chosen, horizon, sesoi))
    stops = sum(o.ambiguous for o in outcomes)
    if any(o.stopped for o in outcomes):
        warnings.append(
            f"{sum(o.stopped for o in outcomes)} runs were stopped by our own detector ({stops} of them before the "
            "performance rule could hold): their censoring is informative, so everything is read both ways. "
            "Continue the sweep with detect.on_collapse: continue to avoid the question."
        )
    warnings += _confounds(designs)
    thresholds, flips = _other_thresholds(groups, horizon, sesoi, tests)
    warnings += flips
    parts = {name: lead(tests, name) for name in decisive}
    if all(len(set(design.steps.values())) == 1 for design in designs):
        parts[SAME_UPDATES] = parts[STABILITY]
    verdict = _compound(parts, tests)
    tables = standard_tables(outcomes)
    tables["Thresholds"] = thresholds
    return FindingResult(
        number, title, claim, verdict, _headline(designs, parts, tests, horizon), tuple(tests),
        tuple(_needs(designs, parts)), tuple(warnings), tables,
    )  # fmt: skip


def _nothing_to_test(usable: Sequence[Run], warnings: Sequence[str]) -> FindingResult:
    found = sorted({ratio for _, kind, ratio in map(_arm, usable) if kind == "std"}, reverse=True)
    have = f"found {', '.join(f'{r:g}' for r in found)}" if found else "found none"
    need = f"At least two values of {RATIO} (say 1.0, 0.5, 0.25) in runs that are equal in everything else but the seed"
    return FindingResult(
        number, title, claim, Verdict.NOT_TESTABLE,
        f"Not testable yet: no two arms differ in {RATIO} alone ({have}).", needs=(f"{need}; {have}.",),
        warnings=tuple(warnings), tables=standard_tables([outcome(r, horizon_of([r])) for r in usable]),
    )  # fmt: skip


# The arms ----------------------------------------------------------------------------------------------


def _arm(run: Run) -> tuple[int | None, str, float]:
    """(updates per rollout, kind, keep ratio); where all is kept, it does not matter how."""
    ratio = float(run.params[RATIO])
    return run.params.get(UPDATES), "std" if ratio == 1 else str(run.params.get(KIND, "std")), ratio


def _rungs(group: Stratum) -> int:
    """Keep ratios that the longest ladder of ``group`` has."""
    return max(map(len, _ladders(group.runs).values()), default=0)


def _ladders(runs: Sequence[Run]) -> dict[int | None, set[float]]:
    found: dict[int | None, set[float]] = {}
    for updates, kind, ratio in map(_arm, runs):
        if kind == "std":
            found.setdefault(updates, set()).add(ratio)
    return found


def _design(group: Stratum, horizon: int, fall: float | None) -> Design:
    by_arm: dict[tuple[int | None, str, float], list[Outcome]] = {}
    for run in sorted(group.runs, key=lambda run: run.params.get(KIND, "std") != "std"):
        arm = by_arm.setdefault(_arm(run), [])
        if run.seed not in {other.run.seed for other in arm}:  # a control that keeps all repeats the unfiltered run
            arm.append(outcome(run, horizon, fall))

    def ladder(updates: int | None) -> dict[float, list[Outcome]]:
        found = {ratio: arm for (u, kind, ratio), arm in by_arm.items() if u == updates and kind == "std"}
        return dict(sorted(found.items(), reverse=True))

    choices = sorted({u for u, _, _ in by_arm}, key=lambda u: (-len(ladder(u)), u is not None, u or 0))
    updates = choices[0]
    main = ladder(updates)
    steps = {ratio: _steps(arm[0].run) for ratio, arm in main.items()}
    random = tuple(
        _as_ladder(group.label, {f"random {ratio_text(r)}": by_arm[updates, "random", r], ratio_text(r): main[r]})
        for r in main
        if (updates, "random", r) in by_arm
    )
    largest = next(iter(main))
    equal = [u for u in choices if u is not None and u == steps[largest] and u != updates]
    same = None
    if equal and len(set(steps.values())) > 1:
        held = {r: arm for r, arm in ladder(equal[0]).items() if r != largest}
        if held:
            named = {f"{ratio_text(r)}, {equal[0]} updates": arm for r, arm in held.items()}
            same = _as_ladder(group.label, {ratio_text(largest): main[largest], **named})
    return Design(_as_ladder(group.label, {ratio_text(r): arm for r, arm in main.items()}), random, same, steps)


def _as_ladder(label: str, arms: dict[str, list[Outcome]]) -> Ladder:
    return Ladder(label, tuple(arms), tuple(tuple(sorted(arm, key=lambda o: o.run.seed)) for arm in arms.values()))


def _steps(run: Run) -> float:
    """Optimizer steps per iteration: from the config, or as logged where the params are not ours."""
    cfg = rebuilt(run.params)
    if cfg is not None:
        return float(steps_per_iteration(cfg))
    _, logged = run.series("train/updates")
    return float(np.median(logged)) if len(logged) else math.nan


# The tests ---------------------------------------------------------------------------------------------


def _stability_test(designs: Sequence[Design], horizon: int, sesoi: Sesoi) -> Test:
    question = "Do collapses come later, or not at all, as fewer groups are kept?"
    return survival_test(STABILITY, question, [d.ladder for d in designs], horizon, sesoi.survival * horizon)


def _all_tests(designs: Sequence[Design], horizon: int, sesoi: Sesoi) -> list[Test]:
    ladders = [d.ladder for d in designs]
    random = [ladder for d in designs for ladder in d.random]
    same = [d.same_updates for d in designs if d.same_updates is not None]
    gap = sesoi.survival * horizon
    tests: list[Test | None] = [_stability_test(designs, horizon, sesoi), _cost_test(ladders, sesoi)]
    if random:
        question = "Is keeping the groups of highest spread more stable than keeping as many at random?"
        tests.append(survival_test(LOW_VARIANCE, question, random, horizon, gap, baseline_must_fail=False))
    if same:
        question = "Do collapses come later as fewer groups are kept, at equal optimizer steps per iteration?"
        tests.append(survival_test(SAME_UPDATES, question, same, horizon, gap))
    measures: list[tuple[str, str, list[Ladder], Callable[[Outcome], float | None]]] = [
        (FINAL, "Does the final success rise as fewer groups are kept?", ladders, lambda o: o.final),
        (AREA, "Is the mean success over the run higher as fewer groups are kept?", ladders, lambda o: o.area),
        (FINAL_RANDOM, "Does the choice by spread end better than random drop?", random, lambda o: o.final),
        (FINAL_UPDATES, "Does the final success rise at equal optimizer steps?", same, lambda o: o.final),
    ]
    for name, question, arms, measure in measures:
        if arms and any(measure(o) is not None for ladder in arms for arm in ladder.arms for o in arm):
            test = value_test(name, question, arms, measure, "success", sesoi.success, span=1.0)
            tests.append(replace(test, note=f"{test.note} {_binomial(arms)}"))
    question = "Is a ratio between the ends better than both?"
    if any(o.event for ladder in ladders for arm in ladder.arms for o in arm):
        times = partial(restricted_times, horizon=horizon)
        tests.append(departure_test(TURN_TIME, question, ladders, times, "iterations", gap, span=horizon))
    tests.append(
        departure_test(TURN_FINAL, question, ladders, lambda _: lambda o: o.final, "success", sesoi.success, span=1.0)
    )
    tests.append(_threshold_test(ladders, sesoi))
    return [test for test in tests if test is not None]


def _binomial(ladders: Sequence[Ladder]) -> str:
    """The other noise level: what the evaluation's own sampling error makes of a difference."""
    prompts = min(o.eval_prompts for ladder in ladders for arm in ladder.arms for o in arm)
    finals = [o.final for ladder in ladders for arm in ladder.arms for o in arm if o.final is not None]
    if not prompts or not finals:
        return ""
    p = float(np.mean(finals))
    margin = 1.96 * math.sqrt(2 * max(p * (1 - p), 0.25 / prompts) / prompts)
    return f"Sampling error alone (95 % margin between two evaluations of {prompts} levels): {margin:.3f}."


def _cost_test(ladders: Sequence[Ladder], sesoi: Sesoi) -> Test | None:
    """Seconds saved per iteration, as a share: 1 - exp(change of the log)."""
    if not any(o.seconds for ladder in ladders for arm in ladder.arms for o in arm):
        return None
    return value_test(
        EFFICIENCY, "Does an iteration (rollout and update) cost fewer seconds as fewer groups are kept?", ladders,
        lambda o: -math.log(o.seconds) if o.seconds else None, "share of seconds saved", sesoi.cost,
        transform=lambda x: -math.expm1(-x),
    )  # fmt: skip


def _threshold_test(ladders: Sequence[Ladder], sesoi: Sesoi) -> Test | None:
    """Seconds until the smoothed success has made half of the best arm's mean gain.

    Over the time that every finished run had (runs of small ratios end sooner); a run that has not arrived by then,
    or was stopped before, counts with all of it.
    """
    table: dict[str, float] = {}
    for ladder in ladders:
        everyone = [o for arm in ladder.arms for o in arm]
        starts = [o.start for o in everyone if o.start is not None]
        means = [float(np.mean(f)) for arm in ladder.arms if (f := [o.final for o in arm if o.final is not None])]
        clocks = {o.run.trial_id: _clock(o) for o in everyone}
        spent = [clocks[o.run.trial_id][-1][1] for o in everyone if clocks[o.run.trial_id] and not o.stopped]
        if not starts or not means or not spent or max(means) - float(np.mean(starts)) < sesoi.success:
            continue
        goal = (float(np.mean(starts)) + max(means)) / 2
        limit = min(spent)
        for o in everyone:
            reached = [seconds for level, seconds in clocks[o.run.trial_id] if level >= goal]
            table[o.run.trial_id] = -min([limit, *reached]) / limit
    if not table:
        return None
    return value_test(
        THRESHOLD, "Is half of the best arm's gain reached in fewer seconds as fewer groups are kept?", ladders,
        lambda o: table.get(o.run.trial_id), "share of the common seconds", sesoi.cost, span=1.0,
    )  # fmt: skip


def _clock(o: Outcome) -> list[tuple[float, float]]:
    """(smoothed success, seconds of rollout and update so far) at each evaluation."""
    smooth, seconds, points = Ewma(level_section(o.run.params).ema), 0.0, []
    for row in o.run.rows:
        if "eval/success" in row and math.isfinite(row["eval/success"]):
            points.append((smooth.update(row["eval/success"]), seconds))
        seconds += sum(row.get(name, 0.0) for name in SECONDS)
    return points if seconds > 0 else []


# The verdict -------------------------------------------------------------------------------------------


def _turns(tests: Sequence[Test]) -> Test | None:
    """The test that says a ratio between the ends is best, where one does."""
    leads = [lead(tests, name) for name in (TURN_TIME, TURN_FINAL)]
    return next((test for test in leads if test is not None and test.verdict is Verdict.SUPPORTED), None)


def _part_verdict(name: str, test: Test | None, tests: Sequence[Test]) -> Verdict:
    if test is None:
        return Verdict.NOT_TESTABLE
    if name in (STABILITY, SAME_UPDATES) and test.verdict is Verdict.CONTRADICTED and _turns(tests):
        return Verdict.INCONCLUSIVE  # a ratio between the ends helps: the straight line is the wrong question
    return test.verdict


def _compound(parts: dict[str, Test | None], tests: Sequence[Test]) -> Verdict:
    return compound([_part_verdict(name, test, tests) for name, test in parts.items()])


def _headline(designs: Sequence[Design], parts: dict[str, Test | None], tests: Sequence[Test], horizon: int) -> str:
    stability, efficiency = parts[STABILITY], parts[EFFICIENCY]
    first, last = designs[0].ladder.names[0], designs[0].ladder.names[-1]
    said = []
    if stability is not None and math.isnan(stability.p):
        said.append("shows no difference in stability, because no run collapsed or none can be compared")
    elif stability is not None:
        said.append(
            f"moves the mean time to collapse by {stability.effect:+.3g} of {horizon} iterations "
            f"({stability.spread}, p = {stability.p:.2g})"
        )
    if efficiency is not None and not math.isnan(efficiency.effect):
        more = "saves" if efficiency.effect >= 0 else "adds"
        said.append(f"{more} {ratio_text(abs(efficiency.effect))} of the seconds per iteration")
    sentences = [f"Keeping {last} instead of {first} of the groups {' and '.join(said)}."] if said else []
    if turn := _turns(tests):
        best = turn.note.split(": ", 1)[1].split(",", 1)[0]
        sentences.append(
            f"The effect is not monotone: {best} is best, {turn.effect:+.3g} {turn.unit} over the better end "
            f"(p = {turn.p:.2g})."
        )
    told = []
    for name, test in parts.items():
        what = "no control arm" if test is None and name in (LOW_VARIANCE, SAME_UPDATES) else ""
        told.append(f"{name.split(':')[0]} {_part_verdict(name, test, tests).value}{f' ({what})' if what else ''}")
    return " ".join([*sentences, "Parts: " + "; ".join(told) + "."])


def _needs(designs: Sequence[Design], parts: dict[str, Test | None]) -> list[str]:
    needs = []
    ratios = sorted({ratio for d in designs for ratio in d.steps if ratio < 1})
    listed = ", ".join(f"{r:g}" for r in ratios)
    if not any(1.0 in d.steps for d in designs):
        needs.append(f"An arm that keeps all groups ({RATIO}: 1).")
    if parts[EFFICIENCY] is None:
        needs.append(f"Runs that log {' and '.join(SECONDS)}.")
    if parts[LOW_VARIANCE] is None:
        needs.append(f"A control that drops groups at random ({KIND}: random) at {RATIO} {listed}.")
    if parts[SAME_UPDATES] is None:
        steps = max(designs[0].steps.values())
        needs.append(f"An arm with {RATIO} {listed} and {UPDATES}: {steps:g}, the steps of the arm that keeps most.")
    for name, test in parts.items():
        if test is not None and test.verdict is Verdict.NOT_TESTABLE:
            why = next((s for s in test.note.split(". ") if s.startswith("Needs") or "nothing to improve" in s
                        or "No run collapsed" in s), "more runs")  # fmt: skip
            needs.append(f"For {name.split(':')[0]}: {why.removeprefix('Needs ').rstrip('.')}.")
    return list(dict.fromkeys(needs))


def _confounds(designs: Sequence[Design]) -> list[str]:
    warnings = []
    for design in designs:
        label, steps = design.ladder.label, design.steps
        if len({s for s in steps.values() if not math.isnan(s)}) > 1:
            told = ", ".join(f"{ratio_text(r)}: {s:g}" for r, s in steps.items())
            answer = "the arms at equal updates speak to it" if design.same_updates else "no arm here separates the two"
            warnings.append(f"{label}: the keep ratio also sets the optimizer steps per iteration ({told}); {answer}.")
        if single := [ratio_text(r) for r, s in steps.items() if s == 1]:
            warnings.append(
                f"{label}: at {', '.join(single)} there is one on-policy update per iteration: the clip is inert."
            )
    return warnings


def _other_thresholds(
    groups: Sequence[Stratum], horizon: int, sesoi: Sesoi, tests: Sequence[Test]
) -> tuple[Table, list[str]]:
    """The stability verdict recomputed with other collapse thresholds; a warning where it flips."""
    configured = lead(tests, STABILITY)
    rows: Table = []
    flips = []
    for fall in (None, *OTHER_FALLS):
        designs = [_design(group, horizon, fall) for group in groups]
        judged = both_ways(designs, lambda chosen: [_stability_test(chosen, horizon, sesoi)])
        again = configured if fall is None else lead(judged, STABILITY)
        if again is None or configured is None:
            continue
        used = level_section(groups[0].runs[0].params).fall if fall is None else fall
        rows.append(
            {"fall": used, "effect": again.effect, "low": again.low, "high": again.high, "p": again.p,
             "verdict": again.verdict.value}
        )  # fmt: skip
        if again.verdict is not configured.verdict:
            flips.append(
                f"The stability verdict depends on the collapse threshold: {configured.verdict.value} as configured, "
                f"{again.verdict.value} with detect.level.fall = {fall:g}."
            )
    return [{k: (None if isinstance(v, float) and math.isnan(v) else v) for k, v in row.items()} for row in rows], flips
