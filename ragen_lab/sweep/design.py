"""The design of a sweep page: from axes and settings to the arms, as changes of the base. Pure functions."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, get_args

from pydantic import BaseModel

from ragen_lab.config import RunConfig, apply_overrides, build, flatten, suggest
from ragen_lab.errors import ConfigError
from ragen_lab.sections import ENV_SECTIONS
from ragen_lab.sweep.page_check import known, knows
from ragen_lab.sweep.page_keys import MOST_TRIALS, SweepPage, lost
from ragen_lab.sweep.search_page import Range

Changes = dict[str, Any]


@dataclass(frozen=True)
class Factor:
    """One axis, or several that are walked together. ``values``: one tuple per level, in the order of ``paths``."""

    paths: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    def at(self, level: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        return zip(self.paths, level, strict=True)


@dataclass(frozen=True)
class Condition:
    """Where an axis applies: every knob has one of its values."""

    path: str
    allowed: dict[str, tuple[Any, ...]]


def factors_of(page: SweepPage, broken: Set[str]) -> tuple[list[Factor], list[str]]:
    """(the axes and groups of axes in page order, faults of ``zip``).

    Empty axes and unknown knobs are left out here; ``path_faults`` tells them.
    """
    faults: list[str] = []
    axes = page.levels()
    group_of: dict[str, tuple[str, ...]] = {}
    for place, group in enumerate(page.zip):
        where = f"zip.{place}"
        missing = [path for path in group if path not in page.axes]
        unknown = [path for path in missing if not lost(broken, "axes", path)]
        twice = sorted({path for path in group if path in group_of or group.count(path) > 1})
        for path in unknown:
            faults.append(f"{where}: {path} is no axis of this page.{suggest(path, list(page.axes))}")
        if twice:
            faults.append(f"{where}: {', '.join(twice)} is in two places; an axis is walked with one group only.")
        lengths = {path: len(axes[path]) for path in group if path in axes}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{path}: {length}" for path, length in lengths.items())
            faults.append(f"{where}: axes that are walked together have as many values each, not {told}.")
        if len(group) < 2:
            faults.append(f"{where}: names {len(group)} axis; a group has at least two.")
        if not (missing or twice or len(set(lengths.values())) > 1):
            group_of |= dict.fromkeys(group, tuple(group))
    found: list[Factor] = []
    for path, values in axes.items():
        paths = group_of.get(path, (path,))
        if path != paths[0] or not values or not all(knows(each) for each in paths):
            continue
        levels = zip(*([as_knob(each, value) for value in axes[each]] for each in paths), strict=True)
        found.append(Factor(paths, tuple(levels)))
    return found, faults


def size_fault(page: SweepPage, factors: Sequence[Factor], seeds: int) -> str | None:
    """Told before the combinations are made: there may be more of them than fit into any memory."""
    sizes = [len(factor.values) for factor in factors]
    settings, what = math.prod(sizes), f"axes: {' x '.join(map(str, sizes))} values"
    if page.design == "list" or not sizes:
        settings, what = len(page.settings), f"settings: {len(page.settings)} of them"
    elif page.design == "one_at_a_time":
        settings, what = 1 + sum(sizes) - len(sizes), f"axes: {' + '.join(map(str, sizes))} values one at a time"
    trials = (settings + len(page.arms)) * seeds
    if trials <= MOST_TRIALS:
        return None
    return (
        f"{what} with {seeds} seed{'s' if seeds != 1 else ''} make {trials} trials; at most {MOST_TRIALS} per sweep. "
        f"Give fewer values or seeds, walk axes together with zip, or let a search choose among them: search: {{kind: "
        f"optuna, trials: 20}}."
    )


def combinations(page: SweepPage, factors: Sequence[Factor]) -> list[Changes]:
    """The settings of the page's design, before conditions and constraints."""
    if page.design == "list":
        return [as_knobs(flatten(setting)) for setting in page.settings]
    if page.design == "grid":
        picked = [list(levels) for levels in itertools.product(*(factor.values for factor in factors))]
    else:
        start = [factor.values[0] for factor in factors]
        picked = [start]
        for place, factor in enumerate(factors):
            picked += [[*start[:place], level, *start[place + 1 :]] for level in factor.values[1:]]
    return [
        {
            path: value
            for factor, level in zip(factors, levels, strict=True)
            for path, value in zip(factor.paths, level, strict=True)
        }
        for levels in picked
    ]


def conditions_of(page: SweepPage, broken: Set[str]) -> tuple[list[Condition], list[str]]:
    """(the conditions in an order in which each can be judged, faults of ``when``)."""
    faults: list[str] = []
    found: dict[str, Condition] = {}
    in_settings = {path for setting in page.settings for path in flatten(setting)}
    for path, wanted in page.when.items():
        if path not in page.axes and path not in in_settings:
            if lost(broken, "axes", path) or lost(broken, "settings"):
                continue
            hint = suggest(path, [*page.axes, *in_settings])
            faults.append(f"when.{path}: is no axis of this page.{hint} A condition says where an axis applies.")
            continue
        allowed = {}
        for knob, values in flatten(wanted).items():
            where = f"when.{path}.{knob}"
            if not knows(knob):
                faults.append(f"{where}: no such knob.{suggest(knob, known())} `ragen-lab list knobs` shows them all.")
            elif knob in page.ties:
                faults.append(f"{where}: is a tie, which is computed after the axes; name what the tie reads.")
            elif values == []:
                faults.append(f"{where}: the list is empty; give at least one value.")
            else:
                listed = values if isinstance(values, list) else [values]
                allowed[knob] = tuple(as_knob(knob, value) for value in listed)
        found[path] = Condition(path, allowed)
    try:
        order = TopologicalSorter({path: set(each.allowed) & set(found) for path, each in found.items()})
        return [found[path] for path in order.static_order()], faults
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        return [], [*faults, f"when: {circle} go round in a circle; remove one of the conditions."]


def unmet(
    conditions: Sequence[Condition], base: dict[str, Any], held: Callable[[str], Sequence[Any]]
) -> tuple[list[str], list[str], list[str]]:
    """What conditions ask for and no arm has: (values that no run may have, those for want of which an axis never
    applies, those beside others that arms have).

    ``held``: what the arms have of a knob; a Range holds everything between its ends.
    """
    impossible: list[str] = []
    never: list[str] = []
    idle: list[str] = []
    for condition in conditions:
        for knob, allowed in condition.allowed.items():
            where, there = f"when.{condition.path}", held(knob)
            absent = [value for value in allowed if not any(_holds(each, value) for each in there)]
            wrong = [fault for value in absent for fault in _value_faults(base, knob, value)]
            impossible += [f"{where}.{fault}" for fault in wrong]
            told = f"{where}.{knob}: no arm has {', '.join(map(text, absent))}"
            if absent and not wrong and len(absent) == len(allowed):
                has = ", ".join(
                    f"{each.low} to {each.high}" if isinstance(each, Range) else text(each) for each in there
                )
                never.append(f"{told}, so that {condition.path} never applies; the arms have {has}.")
            elif absent and not wrong:
                idle.append(f"{told}.")
    return impossible, never, idle


def _holds(there: Any, value: Any) -> bool:
    if isinstance(there, Range):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and there.low <= value <= there.high
    return _same(there, value)


def _value_faults(base: dict[str, Any], path: str, value: Any) -> list[str]:
    """Why no run may have this value of a knob. What is wrong between knobs is not the value's fault."""
    try:
        build(apply_overrides(base, {path: value}, ""), "")
    except ConfigError as error:
        return [fault for fault in error.faults if fault.startswith((f"{path}: got ", f"{path}: unknown environment"))]
    return []


def applicable(changes: Changes, conditions: Sequence[Condition], values: Mapping[str, Any]) -> Changes:
    """``changes`` without the axes that do not apply. ``values``: what a knob is where nothing changes it."""
    kept = dict(changes)
    for condition in conditions:
        if condition.path in kept and not all(
            any(_same(kept.get(knob, values.get(knob)), each) for each in allowed)
            for knob, allowed in condition.allowed.items()
        ):
            del kept[condition.path]
    return kept


def _same(first: Any, second: Any) -> bool:
    return first == second and isinstance(first, bool) == isinstance(second, bool)


def merged(settings: Sequence[Changes], before: Sequence[Changes]) -> list[Changes]:
    """Settings that have become equal by losing an axis, once; ``before``: what they were."""
    found: dict[str, Changes] = {}
    lost: set[str] = set()
    kept: list[Changes] = []
    for now, then in zip(settings, before, strict=True):
        key = json.dumps(now, sort_keys=True, default=str)
        if key in found and (len(now) < len(then) or key in lost):
            continue
        if len(now) < len(then):
            lost.add(key)
        found[key] = now
        kept.append(now)
    return kept


def as_knobs(changes: Mapping[str, Any]) -> Changes:
    return {path: as_knob(path, value) for path, value in changes.items()}


def as_knob(path: str, value: Any) -> Any:
    """A whole number for a knob of fractions becomes one: 1 and 1.0 are the same value and have the same label."""
    return float(value) if type(value) is int and is_fraction(path) else value


def is_fraction(path: str) -> bool:
    """Whether a knob's values need not be whole numbers."""
    return path in _fractions()


@cache
def _fractions() -> frozenset[str]:
    """The knobs whose values are fractions (float), of every environment."""

    def walk(section: BaseModel, prefix: str) -> set[str]:
        found: set[str] = set()
        for name, info in type(section).model_fields.items():
            value = getattr(section, name)
            if isinstance(value, BaseModel):
                found |= walk(value, f"{prefix}{name}.")
            elif float in (info.annotation, *get_args(info.annotation)):
                found.add(f"{prefix}{name}")
        return found

    return frozenset(walk(RunConfig(), "").union(*(walk(section(), "env.") for section in ENV_SECTIONS.values())))


def label(changes: Mapping[str, Any]) -> str:
    """'keep_ratio=0.5, lr=0.001'; a knob by its whole path where its last part is ambiguous."""
    lasts = [path.rsplit(".", 1)[-1] for path in changes]
    words = [
        f"{last if lasts.count(last) == 1 else path}={text(value)}"
        for (path, value), last in zip(changes.items(), lasts, strict=True)
    ]
    return ", ".join(words)


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
