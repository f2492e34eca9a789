"""The survival curves of the arms, with the runs at risk below them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ragen_lab.report.data import Survival
from ragen_lab.report.figure_style import (
    plain,
    styled,
)


def survival(
    curves: Sequence[Survival], others: Sequence[Survival], colors: Sequence[str], horizon: float
) -> go.Figure:
    """Kaplan-Meier step curves over the number of runs at risk at five times.

    ``others``: the same arms where runs that a detector stopped count as collapses; dotted where they differ.
    """
    rows = len(curves)
    table = 22 * rows + 26
    plot = 250
    figure = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=62 / (plot + table + 62),
        row_heights=[plot / (plot + table), table / (plot + table)],
    )
    styled(figure, height=plot + table + 100, margin={"l": 12, "r": 22, "t": 10, "b": 14})
    for i, curve in enumerate(curves):
        # Arms that never collapse lie on one line: the earlier ones are drawn wider, so that each shows.
        width = 2.5 + 2.5 * (rows - 1 - i) * (4 / max(rows, 4))
        figure.add_trace(
            go.Scatter(
                x=[*curve.times, max(curve.leaves, default=0.0)],
                y=[*curve.survival, curve.survival[-1]],
                mode="lines",
                name=plain(curve.arm),
                meta="survival",
                line={"shape": "hv", "color": colors[i], "width": width},
                hovertemplate=f"{plain(curve.arm)}<br>from iteration %{{x}}: %{{y:.2f}} not collapsed<extra></extra>",
            ),
            row=1,
            col=1,
        )
    for i, curve in enumerate(curves):
        if curve.censored:
            figure.add_trace(
                go.Scatter(
                    x=list(curve.censored),
                    y=[_level(curve, time) for time in curve.censored],
                    mode="markers",
                    name=f"{plain(curve.arm)}: left without collapse",
                    meta="censored",
                    cliponaxis=False,
                    marker={"symbol": "line-ns-open", "size": 13, "color": colors[i], "line": {"width": 2}},
                    hovertemplate=f"{plain(curve.arm)}: observed until iteration %{{x}}, not collapsed<extra></extra>",
                ),
                row=1,
                col=1,
            )
    for i, (curve, other) in enumerate(zip(curves, others, strict=True)):
        if other.events != curve.events:
            figure.add_trace(
                go.Scatter(
                    x=list(other.times),
                    y=list(other.survival),
                    mode="lines",
                    name=f"{plain(other.arm)}: stops counted as collapses",
                    meta="other",
                    line={"shape": "hv", "color": colors[i], "width": 2.2, "dash": "dot"},
                    hovertemplate=f"{plain(other.arm)}, stops counted as collapses<br>from iteration %{{x}}: "
                    "%{y:.2f} not collapsed<extra></extra>",
                ),
                row=1,
                col=1,
            )
    ticks = _ticks(horizon)
    for i, curve in enumerate(curves):
        figure.add_trace(
            go.Scatter(
                x=ticks,
                y=[rows - 1 - i] * len(ticks),
                mode="text",
                text=[str(curve.at_risk(tick)) for tick in ticks],
                name=f"{plain(curve.arm)}: at risk",
                meta="at_risk",
                cliponaxis=False,
                hoverinfo="skip",
            ),
            row=2,
            col=1,
        )
    span = [-0.04 * horizon, 1.03 * horizon]
    figure.update_xaxes(range=span, tickvals=ticks)
    figure.update_xaxes(title={"text": "iteration", "standoff": 4}, showticklabels=True, row=1, col=1)
    figure.update_xaxes(showticklabels=False, ticks="", showline=False, row=2, col=1)
    figure.update_yaxes(range=[-0.03, 1.06], tickformat=".0%", nticks=5, automargin=True, row=1, col=1)
    names = [f"<span style='color:{colors[i]}'>■</span> {plain(curve.arm, 22)}" for i, curve in enumerate(curves)]
    figure.update_yaxes(
        range=[-0.6, rows - 0.4],
        showgrid=False,
        automargin=True,
        tickvals=[rows - 1 - i for i in range(rows)],
        ticktext=names,
        row=2,
        col=1,
    )
    figure.add_annotation(
        x=0,
        xref="x2 domain",
        xanchor="left",
        y=1,
        yref="y2 domain",
        yanchor="bottom",
        yshift=2,
        showarrow=False,
        text="runs at risk",
        font={"size": 12},
    )
    return figure


def _level(curve: Survival, time: float) -> float:
    level = 1.0
    for start, share in zip(curve.times, curve.survival, strict=True):
        if start <= time:
            level = share
    return level


def _ticks(horizon: float) -> list[float]:
    """About five round times from 0 to the horizon, the horizon itself being the last."""
    if horizon <= 0:
        return [0.0]
    raw = horizon / 5
    scale = 10 ** math.floor(math.log10(raw))
    step = next(m * scale for m in (1, 2, 2.5, 5, 10) if m * scale >= raw)
    ticks = [k * step for k in range(int(horizon / step) + 1)]
    if horizon - ticks[-1] > step / 2:
        ticks.append(horizon)
    else:
        ticks[-1] = horizon
    return [float(tick) for tick in ticks]
