"""A plan for people (a table and sentences) and for scripts (JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ragen_lab.mirror import uri_fault
from ragen_lab.mirror_folders import lacking_libraries
from ragen_lab.sweep import local
from ragen_lab.sweep.board import duration, plural
from ragen_lab.sweep.compete import with_proposals
from ragen_lab.sweep.mirroring import mlflow_uri
from ragen_lab.sweep.plan import Plan, PlannedTrial, make_plan
from ragen_lab.sweep.search_page import better, rungs
from ragen_lab.sweep.spec import Sweep


def describe(plan: Plan, brief: bool = False) -> str:
    """The plan in words. ``brief``: without the table of trials, and of an accepted warning only why."""
    sweep, cost = plan.sweep, plan.cost
    done = len(plan.trials) - cost.trials
    size = f"{plural(len(sweep.arms), 'arm')} x {plural(len(sweep.seeds), 'seed')} = "
    if len(sweep.arms) * len(sweep.seeds) != len(plan.trials):  # not every setting of a search gets every seed
        size = f"{plural(len(sweep.arms), 'arm')}, "
    lines = [f"Sweep {sweep.name}: {size}{plural(len(plan.trials), 'trial')}, {done} there already."]
    if cost.trials:
        took = f", about {duration(cost.seconds)} one at a time" if cost.seconds is not None else ""
        lines.append(
            f"To do: {plural(cost.trials, 'trial')}, {plural(cost.iterations, 'iteration')}, {cost.trajectories} "
            f"trajectories, {plural(cost.updates, 'optimizer step')}{took}."
        )
    lines += _competition(sweep)
    if not brief:
        lines += ["", *_table(plan), "", *_bases(plan)]
    if plan.leaving:
        told = ", ".join(f"{left.arm} seed {left.seed} ({left.trial_id})" for left in plan.leaving)
        lines.append(
            f"Leaving: {plural(len(plan.leaving), 'trial')} of this sweep that the page no longer asks for: {told}. "
            f"The results stay in the home."
        )
    lines += [f"Left out: {told}" for told in sweep.left_out]
    lines += [f"Note ({note.rule}): {note}" for note in plan.notes if note.accepted is None]
    for note in plan.notes:
        if note.accepted is not None:
            short = brief and not sweep.overridden  # what --set has changed may not be what was accepted
            lines.append(f"Accepted ({note.rule}): {note.accepted}" if short else str(note))
    lines += [f"Note: {fault}" for fault in plan.lacking]
    return "\n".join(lines)


def _competition(sweep: Sweep) -> list[str]:
    """What a search and a scheduler do beyond the trials that are known now."""
    lines = []
    if sweep.search.kind != "grid":
        search, known = sweep.search, sum(arm.name.startswith("#") for arm in sweep.arms)
        how = "random search" if search.kind == "random" else f"Optuna ({search.sampler})"
        seeds = plural(len(sweep.seeds), "seed")
        if search.first_seeds and search.first_seeds < len(sweep.seeds):
            seeds = f"{search.first_seeds} to {seeds}"
        lines.append(
            f"Search: {search.trials} settings by {how}, {known} proposed so far, {seeds} each; better: "
            f"{', '.join(f'{name} {better(name)}' for name in search.objectives)}."
        )
        if unknown := max(0, (search.trials or 0) - known):
            lines.append(
                f"Not counted here: the {plural(unknown, 'setting')} still to be proposed, up to "
                f"{plural(unknown * len(sweep.seeds), 'trial')} more."
            )
    if sweep.scheduler.kind != "fifo":
        cfg, kind = sweep.trials[0].cfg, sweep.scheduler.kind
        at = ", ".join(map(str, rungs(sweep.scheduler, cfg.train.iterations, cfg.eval.every)[:-1]))
        rule = f"one in {sweep.scheduler.factor} goes on" if kind == "asha" else "who is below the median ends"
        lines.append(
            f"Scheduler {kind}: settings are compared by {sweep.scheduler.metric} at iterations {at}; {rule}, so that "
            f"not every trial runs to its end."
        )
    return lines


def _table(plan: Plan) -> list[str]:
    """One line per trial, in the order in which they run."""
    head = ("trial", "arm", "seed", "status", "iterations", "where", "to do")
    rows = [
        (
            planned.trial.trial_id,
            planned.trial.arm,
            str(planned.trial.seed),
            planned.view.status,
            f"{max(0, planned.view.iteration)}/{planned.trial.cfg.train.iterations}",
            where(plan, planned),
            _left(planned),
        )
        for planned in plan.trials
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [_line(row, widths) for row in (head, *rows)]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def where(plan: Plan, planned: PlannedTrial) -> str:
    """Where the results of a trial are, or what happens to it."""
    if not planned.view.done:
        return "goes on" if planned.view.rows else "to run"
    if plan.sweep.name in planned.sweeps:
        return "this sweep"
    return f"sweep {planned.sweeps[0]}" if planned.sweeps else "in the home"  # of a sweep that it has left


def _left(planned: PlannedTrial) -> str:
    if planned.view.done:
        return "-"
    return "unknown" if planned.estimate is None else f"about {duration(planned.estimate.seconds)}"


def _bases(plan: Plan) -> list[str]:
    """Whose pace the estimates are, each once."""
    left = [planned for planned in plan.trials if not planned.view.done]
    bases: dict[str, int] = {}
    for planned in left:
        if planned.estimate is not None:
            bases[planned.estimate.basis] = bases.get(planned.estimate.basis, 0) + 1
    lines = [f"Time of {plural(count, 'trial')} by {basis}." for basis, count in bases.items()]
    if unknown := len(left) - sum(bases.values()):
        lines.append(
            f"Time of {plural(unknown, 'trial')} unknown: nothing like it is in this home. --plan --probe runs two "
            f"iterations of each cost setting to find out."
        )
    if bases:
        lines.append("A first warm start and the start of the processes come on top.")
    return lines


def plan_here(sweep: Sweep, home: Path, address: str | None = None) -> Plan:
    """The plan, with what this machine has not of the resources that it asks for."""
    faults = [] if address else local.lacking(sweep.cpus, sweep.gpus, sweep.memory_gb)
    faults = [*faults, *_lacking_mirrors(sweep, home)]
    return replace(make_plan(with_proposals(sweep, home), home), lacking=tuple(faults))


def _lacking_mirrors(sweep: Sweep, home: Path) -> list[str]:
    """Why a mirror that the page asks for could not be written; the sweep itself then refuses to begin."""
    cfg = sweep.trials[0].cfg
    faults = lacking_libraries(cfg.track.model_dump())
    if cfg.track.mlflow and (fault := uri_fault(mlflow_uri(cfg, home.absolute()))):
        faults.append(f"track.mlflow_uri: {fault}")
    return faults


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """The plan for a script."""
    cost = plan.cost
    return {
        "sweep": plan.sweep.name,
        "arms": {arm.name: arm.changes for arm in plan.sweep.arms},
        "trials": [
            {
                "trial_id": planned.trial.trial_id,
                "arm": planned.trial.arm,
                "seed": planned.trial.seed,
                "status": planned.view.status,
                "done": planned.view.done,
                "iteration": planned.view.iteration,
                "iterations": planned.trial.cfg.train.iterations,
                "where": where(plan, planned),
                "sweeps": list(planned.sweeps),
                "estimated_seconds": planned.estimate.seconds if planned.estimate else None,
                "estimated_by": planned.estimate.basis if planned.estimate else None,
            }
            for planned in plan.trials
        ],
        "leaving": [{"trial_id": left.trial_id, "arm": left.arm, "seed": left.seed} for left in plan.leaving],
        "left_out": list(plan.sweep.left_out),
        "notes": [{"rule": note.rule, "text": note.text, "accepted": note.accepted} for note in plan.notes],
        "warnings": list(plan.warnings),
        "cost": {
            "trials": cost.trials,
            "iterations": cost.iterations,
            "trajectories": cost.trajectories,
            "updates": cost.updates,
            "seconds": cost.seconds,
        },
    }
