"""What a sweep will do, before it does it: the trials in order, what is there already and where, what is left to
compute and how long that takes. Functions of the resolved page and of what the home holds; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ragen_lab.config import steps_per_iteration
from ragen_lab.errors import ConfigError
from ragen_lab.runs import View, pruned_trials, seen
from ragen_lab.sweep.estimate import Estimate, Known, estimates, known_in
from ragen_lab.sweep.growth import horizon_notes
from ragen_lab.sweep.lint import lint
from ragen_lab.sweep.neighbours import Left, Neighbours, check_name, neighbours_of
from ragen_lab.sweep.rules import Note
from ragen_lab.sweep.spec import Sweep, Trial


@dataclass(frozen=True)
class PlannedTrial:
    """One trial and what its folder holds of it. ``sweeps``: those of this home that ask for it, this one first."""

    trial: Trial
    view: View
    sweeps: tuple[str, ...] = ()
    estimate: Estimate | None = None  # of what is left; None before anything like it was measured

    @property
    def remaining(self) -> int:
        """Iterations still to be computed (from the last row; a resume may repeat some)."""
        return 0 if self.view.done else self.trial.cfg.train.iterations - max(0, self.view.iteration)


@dataclass(frozen=True)
class Cost:
    """What is left to compute. ``seconds`` of one trial at a time; None where some of it was never measured."""

    trials: int
    iterations: int
    trajectories: int
    updates: int
    seconds: float | None


@dataclass(frozen=True)
class Plan:
    """Trials in the order in which they run, and what a reader of the report should know of the design.

    ``leaving``: trials that the sweep asked for before and would no longer. ``lacking``: what this machine has not.
    """

    sweep: Sweep
    trials: tuple[PlannedTrial, ...]
    notes: tuple[Note, ...]
    leaving: tuple[Left, ...] = ()
    lacking: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Everything that belongs into the report: what was left out of the design, and every note."""
        return (*self.sweep.left_out, *map(str, self.notes), *self.lacking)

    @property
    def pending(self) -> tuple[Trial, ...]:
        return tuple(planned.trial for planned in self.trials if not planned.view.done)

    @property
    def cost(self) -> Cost:
        left = [planned for planned in self.trials if planned.remaining]
        parts = [planned.estimate.seconds for planned in left if planned.estimate is not None]
        return Cost(
            trials=sum(not planned.view.done for planned in self.trials),
            iterations=sum(planned.remaining for planned in left),
            trajectories=sum(
                planned.remaining * planned.trial.cfg.rollout.prompts * planned.trial.cfg.rollout.responses
                for planned in left
            ),
            updates=sum(planned.remaining * steps_per_iteration(planned.trial.cfg) for planned in left),
            seconds=sum(parts) if left and len(parts) == len(left) else None,
        )


def make_plan(sweep: Sweep, home: Path) -> Plan:
    """The plan for a home folder, which need not exist.

    Raises ConfigError for an accepted warning that is not there and for the name of another page's sweep, HomeError for
    a home that cannot be read.
    """
    pruned = pruned_trials(home, sweep.name)
    near = neighbours_of(sweep, home)
    check_name(sweep, near)
    plan = _bare_plan(sweep, lambda trial: seen(home, trial.trial_id, trial.cfg, pruned), near)
    unseen = [planned.trial for planned in plan.trials if not planned.view.rows]
    grown = tuple(Note("page", text) for text in horizon_notes(unseen, home))
    plan = replace(plan, notes=(*plan.notes, *grown))
    return with_estimates(plan, known_in(home)) if plan.pending else plan


def plan_of(sweep: Sweep, seen: Callable[[Trial], View]) -> Plan:
    """The plan, given what is there of each trial, and nothing else of a home."""
    return with_estimates(_bare_plan(sweep, seen, Neighbours()), ())


def _bare_plan(sweep: Sweep, seen: Callable[[Trial], View], near: Neighbours) -> Plan:
    """The first seed of every arm comes first, so that a sweep that is cut short has something of everything."""
    trials = tuple(PlannedTrial(trial, seen(trial), near.sweeps.get(trial.trial_id, ())) for trial in sweep.trials)
    return Plan(sweep, trials, tuple(accepted(sweep, lint(sweep))), near.leaving)


def with_estimates(plan: Plan, known: Sequence[Known], measured: Mapping[str, Known] | None = None) -> Plan:
    """The plan with seconds for what is left: from each trial's own rows, else from a probe of its cost setting
    (``measured``: by trial), else from the nearest finished trial of the plan or of ``known``."""
    views = [(planned.trial, planned.view) for planned in plan.trials]
    found = estimates(views, known, measured or {})
    return replace(
        plan, trials=tuple(replace(planned, estimate=found.get(planned.trial.trial_id)) for planned in plan.trials)
    )


def accepted(sweep: Sweep, notes: Sequence[Note]) -> list[Note]:
    """The notes, those that the page accepts with its reason. Raises ConfigError for an accept that matches nothing.

    With ``--set`` it need not match: what it was accepted for may be mended by that.
    """
    idle = [rule for rule in sweep.accept if rule not in {note.rule for note in notes}]
    if idle and not sweep.overridden:
        raise ConfigError(
            sweep.file,
            [f"accept.{rule}: this sweep has no warning of that rule; remove the line." for rule in idle],
        )
    return [replace(note, accepted=sweep.accept.get(note.rule)) for note in notes]
