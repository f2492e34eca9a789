"""From changes of knobs to a run's complete config: what all arms of a page share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ragen_lab.config import RunConfig, apply_overrides, build
from ragen_lab.sweep import ties


@dataclass(frozen=True)
class Template:
    """The base's tree and the ties of a page. ``ties``: target -> expression, in an order in which each can be
    computed."""

    tree: dict[str, Any]
    ties: dict[str, str]

    def resolve(self, changes: Mapping[str, Any], name: str) -> tuple[dict[str, Any], RunConfig]:
        """(changes with the tied knobs, config). Raises ConfigError and TieError."""
        found = dict(changes)
        tree = apply_overrides(self.tree, found, name)
        for target, text in self.ties.items():
            found[target] = ties.compute(ties.parse(text), leaves(tree))
            tree = apply_overrides(tree, {target: found[target]}, name)
        return found, build(tree, name)


def leaves(tree: dict[str, Any]) -> dict[str, Any]:
    """Every leaf of a tree with defaults filled in, for ties; rules across fields are not judged yet."""
    try:
        return RunConfig.model_validate(tree).flat()
    except ValidationError:
        build(tree, "")  # raises the same as plain sentences
        raise
