"""What a sweep will do, before it does it: the trials in order, what is there already, and what is
wrong with the design. Pure functions of the resolved page and of what the folders hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from ragen_lab.config import RunConfig, steps_per_iteration
from ragen_lab.env.base import make_env
from ragen_lab.errors import ConfigError
from ragen_lab.inert import inert_knobs
from ragen_lab.reward import reasoning_of, refuse_silent
from ragen_lab.runs import View, look
from ragen_lab.sections import ENV_SECTIONS
from ragen_lab.sweep.spec import Arm, Sweep, Trial
from ragen_lab.track import trial_folder

ALPHA = 0.05


@dataclass(frozen=True)
class PlannedTrial:
    """One trial and what its folder holds of it."""

    trial: Trial
    view: View

    @property
    def remaining(self) -> int:
        """Iterations still to be computed (from the last row; a resume may repeat some)."""
        return 0 if self.view.done else self.trial.cfg.train.iterations - max(0, self.view.iteration)


@dataclass(frozen=True)
class Cost:
    """What is left to compute. ``seconds`` of one trial at a time; None before anything was measured."""

    trials: int
    iterations: int
    trajectories: int
    updates: int
    seconds: float | None


@dataclass(frozen=True)
class Plan:
    """Trials in the order in which they run, and what a reader of the report should know of the design."""

    sweep: Sweep
    trials: tuple[PlannedTrial, ...]
    warnings: tuple[str, ...]

    @property
    def pending(self) -> tuple[Trial, ...]:
        return tuple(planned.trial for planned in self.trials if not planned.view.done)

    @property
    def cost(self) -> Cost:
        left = [planned for planned in self.trials if planned.remaining]
        rates = {planned.trial.trial_id: seconds_per_iteration(planned.view) for planned in self.trials}
        known = [rate for rate in rates.values() if rate is not None]
        typical = sorted(known)[len(known) // 2] if known else None
        seconds = None
        if typical is not None:
            seconds = sum(planned.remaining * (rates[planned.trial.trial_id] or typical) for planned in left)
        return Cost(
            trials=sum(not planned.view.done for planned in self.trials),
            iterations=sum(planned.remaining for planned in left),
            trajectories=sum(
                planned.remaining * planned.trial.cfg.rollout.prompts * planned.trial.cfg.rollout.responses
                for planned in left
            ),
            updates=sum(planned.remaining * steps_per_iteration(planned.trial.cfg) for planned in left),
            seconds=seconds,
        )


def seconds_per_iteration(view: View) -> float | None:
    """Median seconds between the rows of a view, or None with fewer than two."""
    stamps = [row["timestamp"] for row in view.rows if "timestamp" in row]
    gaps = sorted(later - earlier for earlier, later in pairwise(stamps) if later > earlier)
    return gaps[len(gaps) // 2] if gaps else None


def make_plan(sweep: Sweep, home: Path) -> Plan:
    """The plan for a home folder, which need not exist."""
    return plan_of(sweep, lambda trial: look(trial_folder(home, trial.trial_id), trial.cfg))


def plan_of(sweep: Sweep, seen: Callable[[Trial], View]) -> Plan:
    """The plan, given what is there of each trial. The first seed of every arm comes first, so that a
    sweep that is cut short has something of everything."""
    trials = tuple(PlannedTrial(trial, seen(trial)) for trial in sweep.trials)
    return Plan(sweep, trials, (*sweep.notes, *lint(sweep)))


# --- the linter -----------------------------------------------------------------------------------


def lint(sweep: Sweep) -> list[str]:
    """What may spoil the conclusions: one plain sentence each."""
    notes = [
        *_inert(sweep),
        *_confounds(sweep),
        *_named_arms(sweep),
        *_power(sweep),
        *_finding_4_controls(sweep),
    ]
    if sweep.minutes is not None and sweep.minutes < 1:
        notes.append(f"budget: {sweep.minutes:g} minutes are over before most trials have begun.")
    return notes


def _grid(sweep: Sweep) -> list[Arm]:
    return [arm for arm in sweep.arms if arm.grid]


def _inert(sweep: Sweep) -> Iterator[str]:
    """Knobs without effect, told once for all arms that share one; an axis is told where it does nothing at all."""
    where: dict[str, list[str]] = {}
    for arm in sweep.arms:
        for note in (*inert_knobs(sweep.cfg_of(arm.name)), *_unjudged(sweep.cfg_of(arm.name))):
            where.setdefault(note, []).append(arm.name)
    for note, arms in where.items():
        yield note if len(arms) == len(sweep.arms) else f"{note} (arms: {', '.join(arms)})"


def _unjudged(cfg: RunConfig) -> list[str]:
    """A reasoning reward that an environment from outside cannot judge; the trial would refuse to start."""
    if cfg.reward.reasoning == "none" or cfg.env.name in ENV_SECTIONS:
        return []
    try:
        refuse_silent(make_env(cfg.env), cfg.reward)
        reasoning_of(cfg.reward.reasoning)
    except ConfigError as error:
        return error.faults
    return []


def _confounds(sweep: Sweep) -> Iterator[str]:
    """What else changes along an axis: optimizer steps, samples, and whatever a tie moves."""
    for axis in sweep.axes:
        for name, measure, remedy in _SIDE_EFFECTS:
            if axis in remedy.caused_by:
                continue
            by_value = _along(sweep, axis, measure)
            if len(set(by_value.values())) > 1:
                told = ", ".join(f"{value}: {amount:g}" for value, amount in by_value.items())
                controls = [arm.name for arm in sweep.arms if not arm.grid and set(remedy.controls) & set(arm.changes)]
                text = f"Its control: arm {', '.join(map(repr, controls))}." if controls else remedy.text
                yield f"axes.{axis} also changes {name} ({told}). {text}"
        for target in sweep.tied:
            by_value = _along(sweep, axis, partial(_knob, target))
            if len(set(by_value.values())) > 1:
                yield f"ties.{target} moves together with axes.{axis}: an effect belongs to both."


@dataclass(frozen=True)
class _Remedy:
    text: str
    caused_by: tuple[str, ...]  # axes that are about just this
    controls: tuple[str, ...] = ()  # knobs by which a named arm takes it out


_SIDE_EFFECTS: tuple[tuple[str, Callable[[RunConfig], float], _Remedy], ...] = (
    (
        "the optimizer steps per iteration",
        steps_per_iteration,
        _Remedy(
            "Its effect and theirs cannot be told apart; set optim.updates_per_rollout, or add an arm that does.",
            ("optim.minibatch", "optim.epochs", "optim.updates_per_rollout"),
            ("optim.updates_per_rollout",),
        ),
    ),
    (
        "the trajectories sampled per iteration",
        lambda cfg: cfg.rollout.prompts * cfg.rollout.responses,
        _Remedy(
            "Tie rollout.prompts and rollout.responses to keep their product, unless that is the question.",
            (),
        ),
    ),
)


def _along(sweep: Sweep, axis: str, measure: Callable[[RunConfig], Any]) -> dict[str, Any]:
    """Axis value -> measure, with the other axes at the values of the first arm."""
    grid = _grid(sweep)
    first = {path: values[0] for path, values in sweep.axes.items()}
    found = {}
    for arm in grid:
        others = {path: arm.changes[path] for path in sweep.axes if path != axis}
        if all(value == first[path] for path, value in others.items()):
            found[str(arm.changes[axis])] = measure(sweep.cfg_of(arm.name))
    return found


def _named_arms(sweep: Sweep) -> Iterator[str]:
    """A named arm that departs from every other arm in more than one knob has no one to be compared with."""
    for arm in sweep.arms:
        if arm.grid:
            continue
        mine = sweep.cfg_of(arm.name).identity()
        differences = {}
        for other in sweep.arms:
            if other.name != arm.name:
                theirs = sweep.cfg_of(other.name).identity()
                differences[other.name] = sorted(
                    path for path in {*mine, *theirs} if path != "seed" and mine.get(path) != theirs.get(path)
                )
        if not differences:
            continue
        nearest = min(differences, key=lambda name: len(differences[name]))
        if len(differences[nearest]) > 1:
            yield (
                f"arm {arm.name!r} differs from its nearest arm {nearest!r} in {len(differences[nearest])} knobs "
                f"({', '.join(differences[nearest])}): a difference cannot be put down to one of them."
            )


def _knob(path: str, cfg: RunConfig) -> Any:
    return cfg.flat()[path]


def smallest_p(levels: int, seeds: int) -> float:
    """Smallest one-sided p of an exact test that permutes ``levels`` arms within each of ``seeds`` blocks."""
    return float(math.factorial(levels)) ** -seeds


def seeds_needed(levels: int, alpha: float) -> int:
    """Paired seeds from which ``smallest_p`` can reach ``alpha``."""
    return math.ceil(math.log(1 / alpha) / math.log(math.factorial(levels)))


def _power(sweep: Sweep) -> Iterator[str]:
    """Whether the seeds can carry any verdict, whatever the runs show."""
    if len(sweep.arms) < 2:
        return
    alpha = ALPHA / max(1, len(sweep.findings))
    strict = f" ({ALPHA} shared by {len(sweep.findings)} findings)" if len(sweep.findings) > 1 else ""
    count = len(sweep.seeds)
    ordered = [len(values) for values in sweep.axes.values() if len(values) > 2 and all(map(_is_number, values))]
    best = max(ordered, default=2)
    reach = smallest_p(best, count)
    if reach > alpha:
        what = f"a trend over {best} levels" if best > 2 else "a comparison of two arms"
        yield (
            f"seeds: with {count} the smallest p that {what} can reach is {reach:.2g}, above {alpha:.2g}{strict}: no "
            f"verdict is possible. At least {seeds_needed(best, alpha)} are needed."
        )
    elif best > 2 and smallest_p(2, count) > alpha:
        yield (
            f"seeds: {count} can carry a trend over {best} levels (p down to {reach:.2g}), but not a comparison of two "
            f"arms (p down to {smallest_p(2, count):.2g}); that takes {seeds_needed(2, alpha)}."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _finding_4_controls(sweep: Sweep) -> Iterator[str]:
    """Finding 4 (filtering): does the variance matter, or only that fewer groups and updates are left?"""
    if 4 not in sweep.findings:
        return
    configs = [sweep.cfg_of(arm.name) for arm in sweep.arms]
    ratios = {cfg.filter.keep_ratio for cfg in configs if cfg.filter.kind == "std"}
    if len(ratios) < 2:
        yield "finding 4 needs at least two keep ratios, for example axes: {filter.keep_ratio: [1.0, 0.5, 0.25]}."
        return
    if not any(cfg.filter.kind == "random" and cfg.filter.keep_ratio in ratios for cfg in configs):
        yield (
            "finding 4 has no random-drop control (filter.kind: random at one of the keep ratios): whether the choice "
            "of groups matters, or only that there are fewer, cannot be told."
        )
    whole = [cfg for cfg in configs if cfg.filter.keep_ratio == max(ratios)]
    least = min(ratios)
    steps = {steps_per_iteration(cfg) for cfg in whole}
    if not any(cfg.filter.keep_ratio == least and steps_per_iteration(cfg) in steps for cfg in configs):
        yield (
            f"finding 4 has no control with as many updates as the unfiltered arm (keep ratio {least:g} with "
            f"optim.updates_per_rollout: {max(steps)}): filtering also means fewer optimizer steps."
        )
    if whole and whole[0].detect.on_collapse == "stop":
        yield (
            "on_collapse: stop ends runs by our own detector, and survival tests must then be given both ways; "
            "on_collapse: continue lets the runs show whether they would have recovered."
        )
