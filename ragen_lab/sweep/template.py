"""From changes of knobs to a run's complete config: what the settings that a search proposes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ragen_lab.config import RunConfig, apply_overrides, build
from ragen_lab.errors import ConfigError
from ragen_lab.sweep import ties
from ragen_lab.sweep.design import Condition, as_knob, as_knobs
from ragen_lab.sweep.page_check import leaves


@dataclass(frozen=True)
class Template:
    """The base's tree, and the ties, constraints and conditions of a page.

    ``ties``: target -> expression, in an order in which each can be computed. ``constraints``: comparisons that every
    setting keeps. ``conditions``: where an axis applies, in an order in which each can be judged.
    """

    tree: dict[str, Any]
    ties: dict[str, str]
    constraints: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def resolve(self, changes: Mapping[str, Any], name: str) -> tuple[dict[str, Any], RunConfig]:
        """(changes with the tied knobs, config). Raises ConfigError and TieError."""
        found = as_knobs(changes)
        tree = apply_overrides(self.tree, found, name)
        for target, text in self.ties.items():
            found[target] = as_knob(target, ties.compute(ties.parse(text), leaves(tree)))
            tree = apply_overrides(tree, {target: found[target]}, name)
        cfg = build(tree, name)
        broken = [text for text in self.constraints if not ties.holds(ties.parse_condition(text), cfg.flat())]
        if broken:
            raise ConfigError(name, [f"constraints: {text} does not hold." for text in broken])
        return found, cfg

    def plain(self) -> dict[str, Any]:
        """What every knob is where no setting changes it."""
        return leaves(self.tree)
