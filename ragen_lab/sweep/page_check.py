"""What is wrong with a sweep page before any run is built: each function returns its faults, none raises."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import ValidationError

from ragen_lab.config import RunConfig, build, flatten, knobs, suggest
from ragen_lab.sweep import ties
from ragen_lab.sweep.page_keys import HERE, MOST_SEEDS, ConstraintSection, SweepPage, lost
from ragen_lab.sweep.rules import RULES

Constraint = tuple[ConstraintSection, ast.expr]


@cache
def _known() -> tuple[str, ...]:
    return tuple(knobs())


def known() -> list[str]:
    """Every knob there is."""
    return list(_known())


def knows(path: str) -> bool:
    """Whether it is a knob; the options of an outside environment are its own affair."""
    return path in _known() or path.startswith("env.options.")


def leaves(tree: dict[str, Any]) -> dict[str, Any]:
    """Every leaf of a run's tree with defaults filled in, for arithmetic; rules across fields are not judged yet.

    Raises ConfigError for a leaf that is no value of its knob.
    """
    try:
        return RunConfig.model_validate(tree).flat()
    except ValidationError:
        build(tree, "")  # raises the same as plain sentences
        raise


def seeds_of(page: SweepPage) -> tuple[list[int], list[str]]:
    """(the seeds, faults)."""
    seeds, faults = page.seeds, []
    if isinstance(seeds, int):
        if seeds < 1:
            faults.append("seeds: got 0; give at least 1 replicate, for example seeds: 3.")
        if seeds > MOST_SEEDS:
            faults.append(
                f"seeds: got {seeds}; at most {MOST_SEEDS} replicates per sweep. For particular seeds give a list, for "
                f"example seeds: [0, 1, 2]."
            )
        return list(range(min(seeds, MOST_SEEDS))), faults
    if not seeds:
        faults.append("seeds: the list is empty; give at least one seed, or a number of replicates.")
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        told = ", ".join(map(str, twice))
        faults.append(f"seeds: {told} is there twice; a replicate with the same seed is the same run.")
    return seeds, faults


def ties_of(page: SweepPage) -> tuple[dict[str, ast.expr], list[str]]:
    """(target -> parsed expression, in an order in which each can be computed; faults)."""
    parsed, faults = {}, []
    for target, text in page.ties.items():
        try:
            parsed[target] = ties.parse(str(text))
        except ties.TieError as error:
            faults.append(f"ties.{target}: {error}")
    reads = {target: ties.paths(node) & set(parsed) for target, node in parsed.items()}
    try:
        order = list(TopologicalSorter(reads).static_order())
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        return {}, [*faults, f"ties: {circle} go round in a circle; give one of them a value."]
    return {target: parsed[target] for target in order}, faults


def constraints_of(page: SweepPage) -> tuple[list[Constraint], list[str]]:
    """(the constraints with their parsed comparisons, faults)."""
    parsed, faults = [], []
    for place, given in enumerate(page.constraints):
        section = given if isinstance(given, ConstraintSection) else ConstraintSection(require=given)
        try:
            node = ties.parse_condition(section.require)
        except ties.TieError as error:
            faults.append(f"constraints.{place}: {error}")
            continue
        unknown = sorted(path for path in ties.paths(node) if not knows(path))
        faults += [
            f"constraints.{place}: reads '{path}', which is no knob.{suggest(path, known())}" for path in unknown
        ]
        if not unknown:
            parsed.append((section, node))
    return parsed, faults


def path_faults(
    page: SweepPage, parsed: Mapping[str, ast.expr], overrides: Mapping[str, Any], broken: Set[str]
) -> list[str]:
    """Names that are no knobs, axes without values, and knobs that are set in two places."""
    faults = []
    for where, path in _named(page, overrides):
        if path in HERE:
            faults.append(f"{where}: set this with the page's own key '{HERE[path]}'.")
        elif not knows(path):
            section = [knob for knob in known() if knob.startswith(path + ".")]
            hint = f" It is a section; name a knob of it, for example {section[0]}." if section else ""
            pages = list(SweepPage.model_fields) if where.startswith("--set") and "." not in path else []
            hint = hint or suggest(path, [*pages, *known()])
            faults.append(f"{where}: no such knob.{hint} `ragen-lab list knobs` shows them all.")
    for target, node in parsed.items():
        for path in sorted(ties.paths(node)):
            if not knows(path):
                faults.append(f"ties.{target}: reads '{path}', which is no knob.{suggest(path, known())}")
    zipped = {path for group in page.zip for path in group}  # these may stay while others of their group move
    for path, values in page.levels().items():
        if not values:
            faults.append(f"axes.{path}: the axis is empty; give at least one value, or remove it.")
        twice = _twice(values)
        if twice and path not in zipped and not lost(broken, "zip"):
            faults.append(f"axes.{path}: {', '.join(map(str, twice))} is there twice.")
        if path in overrides:
            faults.append(f"--set {path}: is an axis of this page; use --set 'axes.{path}=[...]'.")
    for path in page.ties:
        if setters := [
            where for where, set_path in _named(page, overrides) if set_path == path and where != f"ties.{path}"
        ]:
            faults.append(f"ties.{path}: is also set by {', '.join(setters)}; keep one of them.")
    return faults


def _twice(values: Sequence[Any]) -> list[Any]:
    """The values that came before already. An axis may have thousands, so that each is looked up, not searched."""
    seen: set[Any] = set()
    found = []
    for value in values:
        key = json.dumps(value, sort_keys=True) if isinstance(value, (list, dict)) else value
        if key in seen:
            found.append(value)
        seen.add(key)
    return found


def _named(page: SweepPage, overrides: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(place on the page, knob) of everything that sets a knob."""
    for path in page.axes:
        yield f"axes.{path}", path
    for place, setting in enumerate(page.settings):
        for path in flatten(setting):
            yield f"settings.{place}.{path}", path
    for arm, changes in page.arms.items():
        for path in flatten(changes):
            yield f"arms.{arm}.{path}", path
    for path in page.ties:
        yield f"ties.{path}", path
    for path in overrides:
        yield f"--set {path}", path


def override_notes(page: SweepPage, overrides: Mapping[str, Any]) -> list[str]:
    """Where a knob of ``--set`` does not reach, because an arm or a setting says otherwise."""
    notes = []
    for path in overrides:
        arms = [f"settings.{place}" for place, setting in enumerate(page.settings) if path in flatten(setting)]
        arms += [arm for arm, changes in page.arms.items() if path in flatten(changes)]
        if arms:
            notes.append(f"--set {path} does not reach {', '.join(arms)}, which set it themselves.")
    return notes


def design_faults(page: SweepPage, broken: Set[str]) -> list[str]:
    """Keys that the chosen design does not read, and accepted rules that do not exist."""
    faults = []
    if lost(broken, "design"):
        pass  # what its keys are for cannot be said
    elif page.design == "list":
        if page.axes:
            faults.append(
                "axes: design list takes its arms from settings, for example settings: [{optim.lr: 1e-3}, {optim.lr: "
                "2e-3}]. To walk axes side by side use design grid with zip."
            )
        if not page.settings and not lost(broken, "settings"):
            faults.append("settings: missing; design list needs at least one entry, {} for the base itself.")
    elif page.settings:
        faults.append(f"settings: design {page.design} takes its arms from axes; say design: list, or use arms.")
    for rule, reason in page.accept.items():
        if rule not in RULES:
            faults.append(f"accept.{rule}: no such rule.{suggest(rule, list(RULES))} There are: {', '.join(RULES)}.")
        elif not reason.strip():
            faults.append(f"accept.{rule}: says no reason; write why the warning does not matter here.")
    return faults
