"""Finding 6: reasoning needs reasoning-aware rewards. This version computes what is missing."""

from __future__ import annotations

from ragen_lab.findings.base import FindingResult
from ragen_lab.findings.needs import ladder_needs, levels, not_yet
from ragen_lab.findings.outcomes import usable_runs
from ragen_lab.findings.statistics import seeds_needed
from ragen_lab.runs import RunTable

number = 6
title = "Reward design and reasoning"
claim = "Reasoning does not grow without fine-grained, reasoning-aware rewards; a format penalty alone is not enough."
decisive: tuple[str, ...] = ()

THINK = "prompt.think"
THINK_TOKENS = "rollout/think_tokens"


def evaluate(runs: RunTable) -> FindingResult:
    """Always 'not testable yet' in this version, with what the runs lack."""
    usable, _ = usable_runs(runs)
    needs = []
    # the tiny model's warm start has its own share of thinking episodes, which follows the prompt
    found = levels([run for run in usable if THINK in run.params], (THINK, "policy.warm_start.think_share"))
    seen = {level[0] for level in found}
    missing = [word for value, word in ((True, "think"), (False, "no-think")) if value not in seen]
    if missing:
        needs.append(f"Trained {' and '.join(missing)} arms ({THINK} true and false) that are otherwise equal.")
    elif min(found.values()) < seeds_needed(2):
        needs.append(f"At least {seeds_needed(2)} seeds of the think and no-think arms (now {min(found.values())}).")
    measured = [run for run in usable if run.params.get(THINK) and len(run.series(THINK_TOKENS)[0]) >= 2]
    if not measured:
        needs.append(f"{THINK_TOKENS} over the iterations of the think arms.")
    rewards = {run.params.get("reward.reasoning", "none") for run in usable}
    if not {"none", "grounded"} <= rewards:
        needs.append("Arms with and without a reasoning-aware reward (reward.reasoning none and grounded).")
    needs += ladder_needs(usable, ("reward.format_penalty",), 2, "reward.format_penalty (the claim's control)")
    return not_yet(number, title, claim, runs, needs)
