"""Proposals of settings by Optuna, the only room that knows it.

Optuna remembers nothing here. Its study is made anew from what the ledger knows whenever a proposal is needed,
with a sampler seeded by (seed of the search, number of the proposal): a proposal is a function of what is known,
so a restarted search with one worker proposes what an undisturbed one would have. With several workers the order
in which trials end decides.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import get_param_importances
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from ragen_lab.seeds import derive
from ragen_lab.sweep.design import Condition
from ragen_lab.sweep.rounds import State
from ragen_lab.sweep.search_page import Range, SearchSection, better

optuna.logging.set_verbosity(optuna.logging.ERROR)
_STATES = {
    "running": TrialState.RUNNING,
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
Space = Mapping[str, "list[Any] | Range"]


@dataclass(frozen=True)
class Known:
    """A proposal and what has become of it. ``values``: one per objective; of a pruned one, at iteration ``step``."""

    number: int
    params: dict[str, Any]
    state: State
    values: tuple[float, ...] | None = None
    step: int | None = None
    excess: dict[str, float] = field(default_factory=dict)  # constraint -> by how much it is missed; <= 0 is kept
    attrs: dict[str, Any] = field(default_factory=dict)  # the sampler's own notes
    name: str = ""


@dataclass(frozen=True)
class Proposal:
    params: dict[str, Any]
    attrs: dict[str, Any]


def propose(
    space: Space,
    search: SearchSection,
    known: Sequence[Known],
    conditions: Sequence[Condition] = (),
    plain: Mapping[str, Any] | None = None,
) -> Proposal:
    """The next setting: dotted knob -> value, of those axes that apply.

    ``conditions``: in an order in which each can be judged; ``plain``: what a knob is where no axis changes it.
    """
    with _quiet():
        study = _study(space, search, known)
        trial = study.ask()
        params: dict[str, Any] = {}
        held = {condition.path: condition for condition in conditions}
        for path in (*(path for path in space if path not in held), *(path for path in held if path in space)):
            value = _suggest(trial, path, space[path]) if _applies(held.get(path), params, plain or {}) else None
            if value is not None:
                params[path] = value
        frozen = study.trials[trial.number]
        return Proposal(params, dict(frozen.system_attrs))


def importances(space: Space, search: SearchSection, known: Sequence[Known]) -> dict[str, dict[str, float]]:
    """Objective -> knob -> share of its variance among the finished proposals; {} where that cannot be told.

    The fANOVA of a random forest, seeded: a description of these runs, not a test.
    """
    complete = [each for each in known if each.state == "complete"]
    varied = {path for each in complete for path in each.params}
    if len(complete) < 4 or not varied:
        return {}
    found = {}
    with _quiet():
        study = _study(space, search, complete)
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        for place, objective in enumerate(search.objectives):
            values = [each.values[place] for each in complete if each.values]
            if len(set(values)) < 2:
                continue

            def target(trial: FrozenTrial, place: int = place) -> float:
                return float(trial.values[place])

            shares = get_param_importances(study, evaluator=evaluator, target=target)
            found[objective] = {path: float(share) for path, share in shares.items()}
    return found


def pareto(search: SearchSection, known: Sequence[Known]) -> list[int]:
    """Numbers of the finished proposals that no other one beats in every objective; constraints kept first."""
    complete = [each for each in known if each.state == "complete" and each.values is not None]
    kept = [each for each in complete if all(excess <= 0 for excess in each.excess.values())]
    signs = [1.0 if better(name) == "up" else -1.0 for name in search.objectives]

    def score(each: Known) -> list[float]:
        assert each.values is not None
        return [sign * value for sign, value in zip(signs, each.values, strict=True)]

    def beaten(one: list[float], other: list[float]) -> bool:
        return all(a <= b for a, b in zip(one, other, strict=True)) and one != other

    scores = {each.number: score(each) for each in kept}
    return [number for number, one in scores.items() if not any(beaten(one, other) for other in scores.values())]


def write_journal(file: Path, sweep: str, space: Space, search: SearchSection, known: Sequence[Known]) -> None:
    """The study as an Optuna journal, for optuna-dashboard: a mirror, written anew each time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.unlink(missing_ok=True)
    with _quiet():
        study = _study(space, search, known, JournalStorage(JournalFileBackend(str(temporary))), sweep)
        study.set_metric_names(search.objectives)  # else the pages call them 0 and 1
    temporary.replace(file)


def _study(
    space: Space, search: SearchSection, known: Sequence[Known], storage: Any = None, name: str | None = None
) -> optuna.Study:
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        sampler=_sampler(search, derive(search.seed, "proposal", len(known)) % 2**32),
        directions=["maximize" if better(objective) == "up" else "minimize" for objective in search.objectives],
    )
    for each in sorted(known, key=lambda each: each.number):
        study.add_trial(_trial(each, space, search))
    return study


def _trial(each: Known, space: Space, search: SearchSection) -> FrozenTrial:
    held = {path: _distribution(space[path]) for path in each.params}
    single = len(search.objectives) == 1
    # Of several objectives, values at an early end are no result: fewer collapses and smaller losses by then are no
    # merit. A pruned trial without values is to TPE worse than all finished ones; the other samplers pass it over.
    state = each.state
    step = each.step if state == "pruned" and single else None
    return create_trial(
        state=_STATES[state],
        values=each.values if state == "complete" else None,
        params=each.params,
        distributions=held,
        user_attrs={"arm": each.name} if each.name else {},
        system_attrs=each.attrs,
        intermediate_values={step: each.values[0]} if step is not None and each.values else {},
        constraints=dict(each.excess) if state in ("complete", "pruned") and each.excess else None,
    )


def _sampler(search: SearchSection, seed: int) -> BaseSampler:
    if search.kind == "random":
        return RandomSampler(seed=seed)
    if search.sampler == "gp":
        return GPSampler(seed=seed, n_startup_trials=search.startup)
    if search.sampler == "nsga2":
        return NSGAIISampler(seed=seed, population_size=search.startup)
    return TPESampler(seed=seed, n_startup_trials=search.startup)


def _distribution(axis: list[Any] | Range) -> BaseDistribution:
    if not isinstance(axis, Range):
        return CategoricalDistribution(axis)
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log, step=int(axis.step or 1))
    return FloatDistribution(float(axis.low), float(axis.high), log=axis.log, step=axis.step)


def _suggest(trial: optuna.Trial, path: str, axis: list[Any] | Range) -> Any:
    if not isinstance(axis, Range):
        return trial.suggest_categorical(path, axis)
    if axis.whole:
        return trial.suggest_int(path, int(axis.low), int(axis.high), log=axis.log, step=int(axis.step or 1))
    return trial.suggest_float(path, float(axis.low), float(axis.high), log=axis.log, step=axis.step)


def _applies(condition: Condition | None, params: Mapping[str, Any], plain: Mapping[str, Any]) -> bool:
    return condition is None or all(
        params.get(knob, plain.get(knob)) in allowed for knob, allowed in condition.allowed.items()
    )


class _quiet(warnings.catch_warnings):
    """Optuna warns of features that are marked experimental; which version is used is fixed in pyproject.toml."""

    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", category=UserWarning)
        return found
