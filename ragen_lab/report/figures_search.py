"""The figure of a search: its settings one after the other, or one objective against another."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from ragen_lab.report.figure_style import NEUTRAL, arm_color, base_figure, plain
from ragen_lab.report.searched import Searched, Setting


def progress(search: Searched) -> go.Figure:
    """The first objective of every setting in the order of the proposals, and the best so far."""
    name, way = search.objectives[0]
    shown = [each for each in search.settings if each.values is not None]
    figure = base_figure(height=320, margin={"l": 56, "r": 16, "t": 10, "b": 44})
    _dots(figure, shown, [each.number for each in shown], [_value(each, 0) for each in shown])
    best: list[float] = []
    pick = max if way == "up" else min
    for each in shown:
        value = best[-1] if best and (each.missed or each.state == "pruned") else _value(each, 0)
        best.append(pick(best[-1], value) if best else value)
    figure.add_trace(
        go.Scatter(
            x=[each.number for each in shown],
            y=best,
            mode="lines",
            line={"color": NEUTRAL, "width": 1.5, "shape": "hv"},
            name="best so far",
            meta="best",
            hoverinfo="skip",
        )
    )
    figure.update_xaxes(title={"text": "proposal"})
    figure.update_yaxes(title={"text": plain(name)})
    return figure


def trade_off(search: Searched) -> go.Figure:
    """The second objective against the first; the settings of the Pareto front are filled and joined."""
    shown = [each for each in search.settings if each.values is not None]
    figure = base_figure(height=380, margin={"l": 56, "r": 16, "t": 10, "b": 44})
    front = sorted((each for each in shown if each.best), key=lambda each: _value(each, 0))
    figure.add_trace(
        go.Scatter(
            x=[_value(each, 0) for each in front],
            y=[_value(each, 1) for each in front],
            mode="lines",
            line={"color": NEUTRAL, "width": 1.5, "dash": "dot"},
            name="Pareto front",
            meta="front",
            hoverinfo="skip",
        )
    )
    _dots(figure, shown, [_value(each, 0) for each in shown], [_value(each, 1) for each in shown])
    figure.update_xaxes(title={"text": plain(search.objectives[0][0])}, showgrid=True)
    figure.update_yaxes(title={"text": plain(search.objectives[1][0])})
    return figure


def _value(each: Setting, place: int) -> float:
    assert each.values is not None
    return each.values[place]


def _dots(figure: go.Figure, shown: Sequence[Setting], x: Sequence[float], y: Sequence[float]) -> None:
    figure.add_trace(
        go.Scatter(
            x=list(x),
            y=list(y),
            mode="markers",
            name="settings",
            meta="settings",
            marker={
                "size": 9,
                "color": arm_color(0),
                "symbol": [_symbol(each) for each in shown],
                "line": {"width": 1.6, "color": arm_color(0)},
            },
            customdata=[[plain(each.arm, 80), each.seeds, ", ".join(each.missed) or "none"] for each in shown],
            hovertemplate="%{customdata[0]}<br>seeds: %{customdata[1]}, constraints missed: %{customdata[2]}"
            "<br>%{x:.4g}, %{y:.4g}<extra></extra>",
        )
    )


def _symbol(each: Setting) -> str:
    if each.missed:
        return "x-thin"
    if each.state == "pruned":
        return "circle-open"
    return "diamond" if each.best else "circle"
