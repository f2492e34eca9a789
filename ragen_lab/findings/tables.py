"""Plain tables for the report: arms, runs, survival curves, and the gain over the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ragen_lab.findings.outcomes import Outcome, horizon_of, outcome, strata, usable_runs
from ragen_lab.findings.statistics import (
    Interval,
    clopper_pearson,
    iqm,
    kaplan_meier,
    rmst,
    sign_flip,
    t_interval,
)
from ragen_lab.runs import RunTable

Table = list[dict[str, Any]]


def outcomes_of(runs: RunTable, fall: float | None = None) -> list[Outcome]:
    """Every usable run, judged up to the horizon of its arm."""
    usable, _ = usable_runs(runs)
    found = []
    for config_id in dict.fromkeys(run.config_id for run in usable):
        members = [run for run in usable if run.config_id == config_id]
        horizon = horizon_of(members)
        found += [outcome(run, horizon, fall) for run in members]
    return found


def by_arm(outcomes: Sequence[Outcome]) -> list[tuple[str, str, list[Outcome]]]:
    """(environment label, arm label, runs) for each config, in the order of appearance."""
    labels = {
        run.trial_id: stratum.label for stratum in strata([o.run for o in outcomes], ("arm",)) for run in stratum.runs
    }
    environments = {o.run.trial_id: str(o.run.params.get("env.name", "unknown")) for o in outcomes}
    arms: dict[tuple[str, str], list[Outcome]] = {}
    for o in outcomes:
        arms.setdefault((o.run.config_id, o.run.arm), []).append(o)
    names = [(environments[members[0].run.trial_id], members[0].run.arm) for members in arms.values()]
    return [
        (env if names.count((env, arm)) == 1 else labels[members[0].run.trial_id], arm, members)
        for (env, arm), members in zip(names, arms.values(), strict=True)
    ]


def arm_table(outcomes: Sequence[Outcome]) -> Table:
    """One row per arm. Final success with the t interval over seeds; collapses with Clopper-Pearson."""
    rows = []
    for environment, arm, members in by_arm(outcomes):
        finals = [o.final for o in members if o.final is not None]
        starts = [o.start for o in members if o.start is not None]
        seconds = [o.seconds for o in members if o.seconds is not None]
        times = [o.time for o in members]
        final, gain = t_interval(finals), t_interval(gains(members))
        collapsed = sum(o.event for o in members)
        low, high = clopper_pearson(collapsed, len(members))
        rows.append(
            {
                "environment": environment,
                "arm": arm,
                "seeds": len({o.run.seed for o in members}),
                "seeds_ended": len({o.run.seed for o in members if o.final is not None}),
                "start_success": _number(float(np.mean(starts))) if starts else None,
                **_interval("final_success", final),
                "final_success_iqm": _number(iqm(finals)) if finals else None,
                **_interval("gain", gain),
                "collapsed": collapsed,
                "runs": len(members),
                "collapsed_low": low,
                "collapsed_high": high,
                "stopped": sum(o.stopped for o in members),
                "rmst_iterations": _number(rmst(times, [o.event for o in members], members[0].horizon)),
                "seconds_per_iteration": _number(float(np.mean(seconds))) if seconds else None,
            }
        )
    return rows


def run_table(outcomes: Sequence[Outcome]) -> Table:
    """One row per run."""
    return [
        {
            "environment": environment,
            "arm": arm,
            "seed": o.run.seed,
            "status": o.run.status,
            "level": o.level.status,
            "collapse_iteration": o.level.time,
            "stop_iteration": o.run.stop_iteration,
            "stop_reason": o.run.stop_reason,
            "start_success": o.start,
            "final_success": o.final,
            "area": o.area,
            "seconds_per_iteration": o.seconds,
            "trial_id": o.run.trial_id,
        }
        for environment, arm, members in by_arm(outcomes)
        for o in sorted(members, key=lambda o: o.run.seed)
    ]


def survival_table(outcomes: Sequence[Outcome]) -> Table:
    """Kaplan-Meier points of each arm: share not collapsed after ``time``, numbers at risk just before it."""
    rows: Table = []
    for environment, arm, members in by_arm(outcomes):
        curve = kaplan_meier([o.time for o in members], [o.event for o in members])
        rows += [
            {"environment": environment, "arm": arm, "time": t, "survival": s, "at_risk": n, "events": d}
            for t, s, n, d in zip(curve.times, curve.survival, curve.at_risk, curve.events, strict=True)
        ]
    return rows


def gains(members: Sequence[Outcome]) -> list[float]:
    """Final success minus the same run's evaluation at iteration 0."""
    return [o.final - o.start for o in members if o.final is not None and o.start is not None]


def gain_over_start(runs: RunTable) -> Table:
    """Per arm: the gain over its own iteration 0, paired within runs, with the t interval over seeds.

    ``clear``: the interval lies above zero. ``p``: exact sign flip over seeds, one-sided. A run that our
    detector stopped counts with its last evaluations.
    """
    rows = []
    for environment, arm, members in by_arm(outcomes_of(runs)):
        paired = gains(members)
        interval, test = t_interval(paired), sign_flip(paired)
        starts = [o.start for o in members if o.start is not None and o.final is not None]
        rows.append(
            {
                "environment": environment,
                "arm": arm,
                "seeds": len(paired),
                "start_success": float(np.mean(starts)) if starts else None,
                "final_success": float(np.mean(starts)) + interval.estimate if starts else None,
                **_interval("gain", interval),
                "p": _number(test.p),
                "smallest_p": test.smallest_p,
                "clear": bool(interval.low > 0),
            }
        )
    return rows


def _interval(name: str, interval: Interval) -> dict[str, float | None]:
    return {
        name: _number(interval.estimate),
        f"{name}_low": _number(interval.low),
        f"{name}_high": _number(interval.high),
    }


def _number(value: float) -> float | None:
    """NaN has no place in a table: what is not known is None."""
    return float(value) if np.isfinite(value) else None


def standard_tables(outcomes: Sequence[Outcome]) -> dict[str, Table]:
    """The tables that every finding shows for the runs it read."""
    return {"Arms": arm_table(outcomes), "Runs": run_table(outcomes), "Survival": survival_table(outcomes)}
