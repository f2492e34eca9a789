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


CHOSEN = (
    "The best of many settings looks better than it is, because it was chosen for the very number that is shown: run "
    "it again with new seeds before you believe it."
)


def answer(search: Searched) -> str:
    """What the search says to its own question, in a sentence or two."""
    found = [each for each in search.settings if each.best and each.values is not None]
    tried = len({each.arm or each.number for each in search.settings if each.values is not None})
    if not found:
        kept = " that keeps every constraint" if search.constraints and tried else ""
        return f"No setting{kept} has come to its end yet."
    if len(search.objectives) > 1:
        names = " and ".join(name for name, _ in search.objectives)
        shown = "; ".join(f"{each.arm or f'#{each.number}'} ({_values(search, each)})" for each in found[:3])
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        front = "one is not beaten in" if len(found) == 1 else f"{len(found)} are not beaten in"
        return f"Of {_settings(tried)} with a result, {front} {names} at once: {shown}{more}."
    best = found[0]
    seeds = "1 seed" if best.seeds == 1 else f"the mean of {best.seeds} seeds"
    ties = "" if len(found) == 1 else f" {_settings(len(found) - 1).capitalize()} more came to the same."
    return (
        f"Best of {_settings(tried)} with a result: {best.arm or f'#{best.number}'}, {_values(search, best)} "
        f"({seeds}).{ties}"
    )


def _settings(count: int) -> str:
    return "1 setting" if count == 1 else f"{count} settings"


def _values(search: Searched, each: Setting) -> str:
    values = each.values or ()
    return ", ".join(f"{name} {value:.3g}" for (name, _), value in zip(search.objectives, values, strict=True))
