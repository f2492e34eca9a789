"""Finding 5: diverse prompts, 5 or 6 actions per turn, fresh rollouts. This version computes what is missing."""

from __future__ import annotations

from ragen_lab.findings.base import FindingResult
from ragen_lab.findings.needs import ladder_needs, not_yet
from ragen_lab.findings.outcomes import usable_runs
from ragen_lab.runs import Run, RunTable

number = 5
title = "Rollouts: prompts, actions per turn, freshness"
claim = (
    "At a fixed batch, more prompts with fewer responses generalise better (5a); 5 or 6 actions per turn are best "
    "(5b); frequent rollouts, that is fresh data, are more stable (5c)."
)
decisive: tuple[str, ...] = ()

BATCH = ("rollout.prompts", "rollout.responses")
ACTIONS = "rollout.actions_per_turn"
TURNS = "rollout.max_turns"
UPDATES = "optim.updates_per_rollout"


def evaluate(runs: RunTable) -> FindingResult:
    """Always 'not testable yet' in this version, with what the runs lack for each of the three parts."""
    usable, _ = usable_runs(runs)
    needs = [
        *_fixed_batch(usable),
        *ladder_needs(
            _same_budget(usable), (ACTIONS, TURNS), 3, f"5b, {ACTIONS} at the same budget of actions in all arms",
        ),
        *_freshness(usable),
    ]  # fmt: skip
    warnings = []
    if any(int(run.params.get("rollout.responses", 2)) == 1 for run in usable):
        warnings.append("5a: with one response per prompt the spread filter is undefined; use at least 2 with it.")
    budgets = {_budget(run) for run in usable if ACTIONS in run.params}
    if len({run.params.get(ACTIONS) for run in usable}) > 1 and len(budgets) > 1:
        warnings.append(
            f"5b: the total budget of actions differs between arms ({', '.join(str(b) for b in sorted(budgets))}): an "
            "arm with more actions per turn succeeds more often even at random."
        )
    return not_yet(number, title, claim, runs, needs, warnings)


def _fixed_batch(runs: list[Run]) -> list[str]:
    by_size: dict[int, list[Run]] = {}
    for run in runs:
        if all(path in run.params for path in BATCH):
            by_size.setdefault(run.params[BATCH[0]] * run.params[BATCH[1]], []).append(run)
    what = f"5a, {' x '.join(BATCH)} at a fixed product"
    answers = [ladder_needs(members, BATCH, 3, what) for members in (*by_size.values(), [])]
    return min(answers, key=lambda answer: (len(answer), "levels" in " ".join(answer)))


def _budget(run: Run) -> int:
    params = run.params
    return min(int(params.get("rollout.max_actions", 10)), int(params[ACTIONS]) * int(params.get(TURNS, 5)))


def _same_budget(runs: list[Run]) -> list[Run]:
    """The runs of the budget that most of them share."""
    groups: dict[int, list[Run]] = {}
    for run in runs:
        if ACTIONS in run.params:
            groups.setdefault(_budget(run), []).append(run)
    return max(groups.values(), key=lambda members: len({run.params[ACTIONS] for run in members}), default=[])


def _freshness(runs: list[Run]) -> list[str]:
    """Either reading of staleness: k updates from a k-times larger rollout, or k passes over one batch."""
    what = f"5c, {UPDATES} or optim.epochs"
    split = [run for run in runs if run.params.get(UPDATES) is not None]
    split = split if len({run.params[UPDATES] for run in split}) >= 3 else []  # the rollout alone may vary too
    readings = [ladder_needs(split, (UPDATES, *BATCH), 3, what), ladder_needs(runs, ("optim.epochs",), 3, what)]
    return min(readings, key=len)
