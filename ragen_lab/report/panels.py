"""The figures of the page: each with its title, its caption and the data that the browser draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ragen_lab.metrics import METRICS
from ragen_lab.report import data, figures, figures_search, figures_survival, words
from ragen_lab.report.searched import Searched
from ragen_lab.report.tables import Means, Rows
from ragen_lab.runs import RunTable

LOG_SCALE = frozenset({"train/grad_norm"})


@dataclass(frozen=True)
class Panel:
    """One figure on the page. ``caption`` is also its text for readers who cannot see it."""

    title: str
    caption: str
    figure: str  # JSON, safe inside a <script> element
    height: int
    swatch: str | None = None
    note: str = ""


def panel(title: str, caption: str, figure: Any, swatch: str | None = None, note: str = "") -> Panel:
    text = figure.to_json()
    for character in "<>&\u2028\u2029":  # no character of a name may end the <script> element around it
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Panel(title, caption, text, int(figure.layout.height), swatch, note)


def curve_panels(runs: RunTable, arms: Sequence[str], colors: Sequence[str]) -> list[Panel]:
    """Learning curves: one panel per arm, all with the same axes."""
    everything = data.curves(runs, "eval/success")
    if not everything:
        return []
    last = max(max(*curve.iterations, curve.called_at or 0) for curve in everything)
    x_range = (-0.02 * max(last, 1), 1.03 * max(last, 1))
    several = len(data.environments_of(runs)) > 1
    found = []
    for arm, color in zip(arms, colors, strict=True):
        mine = [run for run in runs.runs if run.arm == arm]
        group = [curve for curve in everything if curve.arm == arm]
        lines = data.references(mine)
        figure = figures.learning_curves(group, lines, color, x_range, (0.0, 1.02))
        place = f"{', '.join(sorted({data.environment_of(run) for run in mine}))}; " if several else ""
        silent = len(mine) - len(group)
        note = (
            place + words.status_counts(RunTable(tuple(mine))) + (f"; {silent} without an evaluation" if silent else "")
        )
        found.append(
            panel(arm, f"Learning curves of {arm}. " + words.curves_caption({arm: group}, lines), figure, color, note)
        )
    return found


def final_panels(runs: RunTable, means: Means, arms: Sequence[str], colors: Sequence[str]) -> list[Panel]:
    """Final success: one panel per environment, since seeds are paired within it."""
    found = []
    for environment in data.environments_of(runs):
        here = RunTable(tuple(run for run in runs.runs if data.environment_of(run) == environment))
        mine = data.arms_of(here)
        dots = data.dots(here)
        if not any(math.isfinite(dot.value) for dot in dots):
            continue
        local = {arm: means.get((environment, arm), (math.nan, math.nan, math.nan)) for arm in mine}
        palette = [colors[arms.index(arm)] for arm in mine]
        figure = figures.final_success(dots, mine, palette, data.references(here.runs), local)
        found.append(panel(environment, words.final_caption(dots, local), figure))
    return found


def survival_panels(rows: Rows, strict: Rows, arms: Sequence[str], colors: Sequence[str]) -> list[Panel]:
    """Kaplan-Meier curves, one panel per environment.

    ``rows``: runs that a detector stopped are censored there; ``strict``: they count as collapses.
    """

    def read(table: Rows, environment: str, arm: str) -> data.Survival:
        return data.survival_of(arm, [r for r in table if r["environment"] == environment and r["arm"] == arm])

    found = []
    for environment in dict.fromkeys(str(row["environment"]) for row in rows):
        here = [row for row in rows if row["environment"] == environment]
        mine = [arm for arm in arms if any(row["arm"] == arm for row in here)]
        curves = [read(rows, environment, arm) for arm in mine]
        others = [read(strict, environment, arm) for arm in mine]
        horizon = max(max(curve.leaves, default=0.0) for curve in curves)
        figure = figures_survival.survival(curves, others, [colors[arms.index(arm)] for arm in mine], horizon)
        found.append(panel(environment, words.survival_caption(curves, others), figure))
    return found


def signal_panels(runs: RunTable, arms: Sequence[str], colors: Sequence[str]) -> list[Panel]:
    """Signals that may precede a collapse: one panel per metric that at least one run logs."""
    found = []
    for name in data.SIGNALS:
        group = data.curves(runs, name)
        if not group:
            continue
        metric = METRICS[name]
        unit = "" if metric.unit == "flag" else f"{metric.unit}{', log scale' if name in LOG_SCALE else ''}"
        figure = figures.signal(group, arms, colors, log=name in LOG_SCALE)
        missing = len(runs) - len({curve.trial_id for curve in group})
        note = unit + (f"; {words.plural(missing, 'run')} without it" if missing else "")
        found.append(panel(name, words.signal_caption(group), figure, None, note))
    return found


def cost_panels(runs: RunTable, arms: Sequence[str], colors: Sequence[str]) -> list[Panel]:
    costs = data.costs(runs)
    if not costs:
        return []
    seconds = [v for run in runs.runs for v in run.series("time/eval_seconds")[1] if math.isfinite(v)]
    evaluation = sum(seconds) / len(seconds) if seconds else math.nan
    return [
        panel(
            "seconds per iteration",
            words.cost_caption(costs, evaluation),
            figures.cost(costs, arms, colors, list(data.PHASES.values())),
        )
    ]


def search_panels(search: Searched | None) -> list[Panel]:
    """How a search went: the settings in their order and, for several objectives, one against another."""
    if search is None or not any(each.values for each in search.settings):
        return []
    signs = "Circle: to its end; open circle: ended by the scheduler; diamond: the best; cross: a constraint missed."
    first = search.objectives[0][0]
    found = [panel(first, f"{first} of every proposal, and the best so far. {signs}", figures_search.progress(search))]
    if len(search.objectives) > 1:
        second = search.objectives[1][0]
        caption = f"{second} against {first}. The dotted line joins the settings that none beats in both. {signs}"
        found.append(panel(f"{first} and {second}", caption, figures_search.trade_off(search)))
    return found
