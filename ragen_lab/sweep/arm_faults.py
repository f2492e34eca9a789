"""From an arm's changes to its run, and where on the page a fault of it comes from."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from ragen_lab.config import RunConfig, apply_overrides, build
from ragen_lab.errors import ConfigError
from ragen_lab.sweep import ties
from ragen_lab.sweep.design import as_knob
from ragen_lab.sweep.page_check import Constraint, leaves
from ragen_lab.sweep.page_keys import ConstraintSection

if TYPE_CHECKING:  # spec.py is built on this
    from ragen_lab.sweep.spec import Trial

SHOWN = 6  # arms named of those that a fault or a constraint is about


def tied(
    tree: dict[str, Any], parsed: Mapping[str, ast.expr], unread: Set[str]
) -> tuple[dict[str, Any], dict[str, Any], frozenset[str], list[str]]:
    """(the run's tree with its ties, those, the knobs whose value is not known, faults).

    ``unread``: knobs of which it is not known already. That a tie of them has no value either is no fault of its own.
    Raises ConfigError for a tree with values that no run may have.
    """
    values: dict[str, Any] = {}
    missing = set(unread)
    faults = []
    for target, node in parsed.items():
        if target in missing or ties.paths(node) & missing:
            missing.add(target)
            continue
        try:
            values[target] = as_knob(target, ties.compute(node, leaves(tree)))
        except ties.TieError as error:
            faults.append(f"ties.{target}: {error}")
            missing.add(target)
            continue
        tree = apply_overrides(tree, {target: values[target]}, "")
    return tree, values, frozenset(missing), faults


def broken(constraints: Sequence[Constraint], tree: dict[str, Any]) -> tuple[list[ConstraintSection], list[str]]:
    """(the constraints that a run breaks, those that cannot be judged). Raises ConfigError as ``tied`` does."""
    values, found, faults = leaves(tree), [], []
    for section, node in constraints:
        try:
            if not ties.holds(node, values):
                found.append(section)
        except ties.TieError as error:
            faults.append(f"constraints: {section.require}: {error}")
    return found, faults


def config_of(tree: dict[str, Any], missing: Set[str]) -> tuple[RunConfig | None, list[str]]:
    """(the run, its faults). Of those, not the ones that speak of a knob whose value is not known."""
    try:
        return build(tree, ""), []
    except ConfigError as error:
        return None, [fault for fault in error.faults if not any(target in fault for target in missing)]


def placed(of_arm: Sequence[tuple[str, list[str]]], arms: int, everywhere: Callable[[str], str]) -> list[str]:
    """The faults of the arms, each once: with the arms that have it, or, of all of them, with its place on the page."""
    owners: dict[str, list[str]] = {}
    for name, faults in of_arm:
        for fault in faults:
            owners.setdefault(fault, []).append(name)
    return [
        everywhere(fault) if len(names) == arms else f"arm{'s' if len(names) > 1 else ''} {shown(names, repr)}: {fault}"
        for fault, names in owners.items()
    ]


def shown(names: Sequence[str], how: Callable[[str], str] = str) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(how, names[:SHOWN])) + more


def trial_faults(trials: Sequence[Trial], gpus: float) -> list[str]:
    """What is wrong with complete trials: two that are one run, and GPUs that the page does not give them."""
    faults: list[str] = []
    owner: dict[str, Trial] = {}
    for trial in trials:
        first = owner.setdefault(trial.trial_id, trial)
        if first is trial:
            continue
        same = first.cfg == trial.cfg
        why = "equal in every knob" if same else "equal in every knob that can change their numbers"
        fault = f"arms: {first.arm!r} and {trial.arm!r} are the same run ({why}); remove one."
        if fault not in faults:
            faults.append(fault)
    devices = [trial.cfg.policy.device for trial in trials if trial.cfg.policy.device.startswith("cuda")]
    if devices and gpus == 0:
        faults.append(
            f"resources.gpus: 0, but policy.device is {devices[0]!r}; give each trial a GPU or a share of one, for "
            f"example resources: {{gpus: 1}}."
        )
    return faults
