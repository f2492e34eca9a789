"""A plan for people (a table and sentences) and for scripts (JSON)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ragen_lab.sweep import local
from ragen_lab.sweep.board import duration, plural
from ragen_lab.sweep.plan import Plan, make_plan
from ragen_lab.sweep.spec import Sweep


def describe(plan: Plan, brief: bool = False) -> str:
    """The plan in words. ``brief``: without the list of trials."""
    sweep, cost = plan.sweep, plan.cost
    done = len(plan.trials) - cost.trials
    size = f"{plural(len(sweep.arms), 'arm')} x {plural(len(sweep.seeds), 'seed')}"
    lines = [f"Sweep {sweep.name}: {size} = {plural(len(plan.trials), 'trial')}, {done} there already."]
    if cost.trials:
        took = f", about {duration(cost.seconds)} one at a time" if cost.seconds is not None else ""
        lines.append(
            f"To do: {plural(cost.trials, 'trial')}, {plural(cost.iterations, 'iteration')}, {cost.trajectories} "
            f"trajectories, {plural(cost.updates, 'optimizer step')}{took}."
        )
    if not brief:
        for planned in plan.trials:
            view, trial = planned.view, planned.trial
            what = f"{view.status} at {view.iteration}" if view.rows else view.status
            lines.append(f"  {trial.trial_id}  {trial.arm} · seed {trial.seed}: {what} of {trial.cfg.train.iterations}")
    lines += [f"Note: {warning}" for warning in plan.warnings]
    return "\n".join(lines)


def plan_here(sweep: Sweep, home: Path, address: str | None = None) -> Plan:
    """The plan, with a warning for what this machine has not of the resources that it asks for."""
    plan = make_plan(sweep, home)
    faults = [] if address else local.lacking(sweep.cpus, sweep.gpus, sweep.memory_gb)
    return replace(plan, warnings=(*plan.warnings, *faults))


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """The plan for a script."""
    cost = plan.cost
    return {
        "sweep": plan.sweep.name,
        "trials": [
            {
                "trial_id": planned.trial.trial_id,
                "arm": planned.trial.arm,
                "seed": planned.trial.seed,
                "status": planned.view.status,
                "done": planned.view.done,
                "iteration": planned.view.iteration,
                "iterations": planned.trial.cfg.train.iterations,
            }
            for planned in plan.trials
        ],
        "warnings": list(plan.warnings),
        "cost": {
            "trials": cost.trials,
            "iterations": cost.iterations,
            "trajectories": cost.trajectories,
            "updates": cost.updates,
            "seconds": cost.seconds,
        },
    }
