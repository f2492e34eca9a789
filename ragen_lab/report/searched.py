"""What a search has found, as plain data, and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Setting:
    """One proposal. ``values``: one per objective, None before its end; ``best``: on the Pareto front."""

    number: int
    arm: str
    params: dict[str, Any]
    state: str  # running | complete | pruned | failed
    seeds: int
    values: tuple[float, ...] | None
    missed: tuple[str, ...] = ()  # constraints that it does not keep
    best: bool = False
    fault: str | None = None  # why no run may have this setting


@dataclass(frozen=True)
class Searched:
    """A search: how it proposed, what it was to improve, and every proposal."""

    how: str
    seed: int
    asked: int
    objectives: tuple[tuple[str, Literal["up", "down"]], ...]
    constraints: tuple[str, ...]
    raced: bool
    settings: tuple[Setting, ...]
    importances: dict[str, dict[str, float]]  # objective -> knob -> share


WORDS = {"running": "under way", "complete": "to its end", "pruned": "ended by the scheduler", "failed": "failed"}


def lead(search: Searched) -> str:
    """What was searched for and how far it came, in words."""
    aims = " and ".join(f"{name} {'up' if way == 'up' else 'down'}" for name, way in search.objectives)
    counts = [f"{count} {word}" for state, word in WORDS.items() if (count := _count(search, state))]
    kept = f" Constraints: {'; '.join(search.constraints)}." if search.constraints else ""
    raced = " Settings that could not compete got fewer seeds." if search.raced else ""
    return (
        f"{search.how}, seed {search.seed}: {aims}. {search.asked} settings asked for; "
        f"{', '.join(counts) or 'none yet'}.{kept}{raced}"
    )


def _count(search: Searched, state: str) -> int:
    return len({each.arm or each.number for each in search.settings if each.state == state})


def setting_rows(search: Searched) -> list[Mapping[str, object]]:
    """The proposals, the best first by the first objective, those without values last."""
    sign = -1.0 if search.objectives[0][1] == "up" else 1.0

    def rank(each: Setting) -> tuple[bool, bool, float]:
        return (each.values is None, bool(each.missed), sign * each.values[0] if each.values else 0.0)

    several = len(search.objectives) > 1
    rows: list[Mapping[str, object]] = []
    for each in sorted(search.settings, key=rank):
        row: dict[str, object] = {"arm": each.arm or f"#{each.number}", "state": WORDS[each.state], "seeds": each.seeds}
        for place, (name, _) in enumerate(search.objectives):
            row[name] = each.values[place] if each.values else None
        if several:
            row["on the front"] = "yes" if each.best else "no"
        if search.constraints:
            row["misses"] = "; ".join(each.missed) or "-"
        if any(other.fault for other in search.settings):
            row["fault"] = each.fault or "-"
        rows.append(row)
    return rows


def importance_rows(search: Searched) -> list[Mapping[str, object]]:
    """Knob x objective: shares of the variance among the settings that came to their end."""
    knobs = sorted(
        {knob for shares in search.importances.values() for knob in shares},
        key=lambda knob: -max(shares.get(knob, 0.0) for shares in search.importances.values()),
    )
    return [
        {"knob": knob, **{objective: shares.get(knob) for objective, shares in search.importances.items()}}
        for knob in knobs
    ]
