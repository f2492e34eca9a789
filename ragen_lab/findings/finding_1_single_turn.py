"""Finding 1: single-turn recipes collapse in multi-turn training, and the critic delays it.

Three parts, and all must hold (intersection-union): *incidence*: more than one unfiltered multi-turn run in ten
collapses; *the critic delays*: PPO runs collapse later, or not at all, beside GRPO runs that are otherwise equal;
*multi-turn specific*: the same recipe with one turn per trajectory collapses later, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats

from ragen_lab.findings.base import FindingResult, Test, Verdict
from ragen_lab.findings.designs import (
    Ladder,
    both_ways,
    compound,
    describe,
    environment_of,
    judge,
    lead,
    survival_test,
)
from ragen_lab.findings.needs import not_yet
from ragen_lab.findings.outcomes import Outcome, Sesoi, horizon_of, outcome, strata, usable_runs
from ragen_lab.findings.statistics import Interval, Permuted, clopper_pearson, seeds_needed
from ragen_lab.findings.tables import standard_tables
from ragen_lab.runs import Run, RunTable

number = 1
title = "Single-turn recipes in multi-turn training"
claim = "Single-turn recipes (vanilla PPO and GRPO) collapse in multi-turn training; the critic delays it."

INCIDENCE = "incidence: share of unfiltered multi-turn runs that collapse (binomial)"
CRITIC = "the critic delays: PPO against GRPO (log-rank, permuted within seed)"
MULTI_TURN = "multi-turn specific: one turn against several (log-rank, permuted within seed)"
decisive = (INCIDENCE, CRITIC, MULTI_TURN)

OCCASIONAL = 0.10  # a share of collapses up to this is an accident, not a property of the recipe
ALGO, TURNS = "algo.name", "rollout.max_turns"
# Knobs that exist for one of the two estimators only, and so cannot make the other's runs differ.
ONE_SIDED = ("algo.gamma", "algo.lam", "algo.whiten", "algo.value_clip", "algo.std_normalize", "optim.critic_lr")


def evaluate(runs: RunTable, sesoi: Sesoi | None = None) -> FindingResult:
    """Judge the claim on the runs that keep every group (filter.keep_ratio 1)."""
    sesoi = sesoi or Sesoi()
    usable, warnings = usable_runs(runs)
    vanilla = [run for run in usable if ALGO in run.params and float(run.params.get("filter.keep_ratio", 1)) == 1]
    if not any(_several_turns(run) for run in vanilla):
        needs = [f"Runs of several turns that keep every group ({TURNS} above 1, filter.keep_ratio: 1).", *_needs({})]
        return not_yet(number, title, claim, runs, needs)
    horizon = horizon_of(vanilla)
    outcomes = {run.trial_id: outcome(run, horizon) for run in vanilla}

    def ladders(design: tuple[str, ...], arms: dict[str, object], members: Sequence[Run]) -> list[Ladder]:
        found = []
        for stratum in strata(members, design):
            by_arm = {
                name: tuple(outcomes[run.trial_id] for run in stratum.runs if _arm(run, design[0]) == value)
                for name, value in arms.items()
            }
            if all(by_arm.values()):
                found.append(Ladder(stratum.label, tuple(by_arm), tuple(by_arm.values())))
        return found

    several = [run for run in vanilla if _several_turns(run)]
    labels = sorted({str(run.params.get("env.name", "unknown")) for run in several})
    single = [
        Ladder(label, ("multi-turn",), (tuple(outcomes[r.trial_id] for r in several if _environment(r) == label),))
        for label in labels
    ]
    gap = sesoi.survival * horizon
    critics = ladders((ALGO, *ONE_SIDED), {"grpo": "grpo", "ppo": "ppo"}, several)
    turns = ladders((TURNS,), {"several turns": True, "one turn": False}, vanilla)
    tests = both_ways(single, lambda chosen: [_incidence(chosen)])
    if critics:
        question = "Do runs with a critic collapse later, or not at all?"
        tests += both_ways(critics, lambda chosen: [survival_test(CRITIC, question, chosen, horizon, gap)])
    if turns:
        question = "Do runs of one turn collapse later, or not at all?"
        tests += both_ways(turns, lambda chosen: [survival_test(MULTI_TURN, question, chosen, horizon, gap)])
    parts = {name: lead(tests, name) for name in decisive}
    verdict = compound([test.verdict if test else Verdict.NOT_TESTABLE for test in parts.values()])
    return FindingResult(
        number, title, claim, verdict, _headline(parts), tuple(tests), tuple(_needs(parts)), tuple(warnings),
        standard_tables(list(outcomes.values())),
    )  # fmt: skip


def _environment(run: Run) -> str:
    return str(run.params.get("env.name", "unknown"))


def _several_turns(run: Run) -> bool:
    """A bandit ends after its first turn, whatever is allowed."""
    return int(run.params.get(TURNS, 1)) > 1 and not _environment(run).startswith("bandit")


def _arm(run: Run, path: str) -> object:
    return _several_turns(run) if path == TURNS else run.params.get(path)


def _incidence(ladders: Sequence[Ladder]) -> Test:
    members: list[Outcome] = [o for ladder in ladders for arm in ladder.arms for o in arm]
    collapsed, n = sum(o.event for o in members), len(members)
    low, high = clopper_pearson(collapsed, n)
    p = float(stats.binomtest(collapsed, n, OCCASIONAL, alternative="greater").pvalue)
    test = Permuted(collapsed / n, p, OCCASIONAL**n, True)
    return Test(
        INCIDENCE, f"Do more than {OCCASIONAL:.0%} of the runs collapse?", environment_of(ladders), describe(ladders),
        collapsed / n, low, high, "share of runs", p, test.smallest_p, OCCASIONAL,
        judge(Interval(collapsed / n, low, high), test, OCCASIONAL),
        f"{collapsed} of {n} runs collapsed (95 % Clopper-Pearson interval of the share {low:.2f} to {high:.2f}).",
    )  # fmt: skip


def _headline(parts: dict[str, Test | None]) -> str:
    incidence, critic = parts[INCIDENCE], parts[CRITIC]
    sentences = [incidence.note] if incidence else []
    if critic is not None and not math.isnan(critic.p):
        sentences.append(
            f"The critic moves the mean time to collapse by {critic.effect:+.3g} iterations ({critic.spread}, "
            f"p = {critic.p:.2g})."
        )
    verdicts = {name: test.verdict if test else Verdict.NOT_TESTABLE for name, test in parts.items()}
    told = [f"{name.split(':')[0]} {verdict.value}" for name, verdict in verdicts.items()]
    return " ".join([*sentences, "Parts: " + "; ".join(told) + "."])


def _needs(parts: dict[str, Test | None]) -> list[str]:
    seeds = seeds_needed(2)
    needs = []
    if parts.get(CRITIC) is None:
        needs.append(f"Both ppo and grpo arms ({ALGO}), otherwise equal, {seeds} seeds each.")
    if parts.get(MULTI_TURN) is None:
        needs.append(f"A single-turn control ({TURNS}: 1), otherwise equal, {seeds} seeds.")
    for name, test in parts.items():
        if test is not None and test.verdict is Verdict.NOT_TESTABLE:
            told = [s for s in test.note.split(". ") if "nothing to improve" in s or "No run" in s]
            why = told[0] if told else f"{seeds} seeds"
            needs.append(f"For {name.split(':')[0]}: {why.rstrip('.')}.")
    return needs
