"""Finding 2: the Echo Trap. Needs the think texts early and late; this version computes what is missing."""

from __future__ import annotations

from ragen_lab.findings.base import FindingResult
from ragen_lab.findings.needs import not_yet
from ragen_lab.findings.outcomes import usable_runs
from ragen_lab.findings.statistics import seeds_needed
from ragen_lab.runs import RunTable

number = 2
title = "Echo Trap"
claim = "Reasoning converges to fixed phrasing while the reward is still fine."
decisive: tuple[str, ...] = ()

DIVERSITY = ("rollout/template_share", "rollout/distinct_4")


def evaluate(runs: RunTable) -> FindingResult:
    """Always 'not testable yet' in this version, with what the runs lack."""
    usable, _ = usable_runs(runs)
    thinking = [run for run in usable if run.params.get("prompt.think")]
    texts = [run for run in thinking if int(run.params.get("track.trajectories", 0)) > 0]
    logged = [run for run in thinking if all(len(run.series(metric)[0]) >= 2 for metric in DIVERSITY)]
    seeds = seeds_needed(2)
    needs = []
    if not thinking:
        needs.append("Runs that think (prompt.think: true).")
    if len({run.seed for run in logged}) < seeds:
        needs.append(
            f"{' and '.join(DIVERSITY)} early and late in runs of at least {seeds} seeds "
            f"(now {len({run.seed for run in logged})}): the sign flip over runs cannot reach 0.05 with fewer."
        )
    if len(texts) < len(thinking) or not texts:
        needs.append(
            "Stored think texts, early and late (track.trajectories above 0), to compare replies of matched length "
            f"(now {len(texts)} of {len(thinking)} thinking runs)."
        )
    warned = [
        "The tiny model starts from play of experts and novices: a rising template share may be the policy choosing "
        "the experts' phrasing, not an Echo Trap. Compare rollout/template_share_success."
    ]
    tiny = any(run.params.get("policy.model") == "tiny" for run in thinking)
    return not_yet(number, title, claim, runs, needs, warned if tiny else ())
