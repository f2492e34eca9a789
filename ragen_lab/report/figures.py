"""Figures of runs: plain data in, figure out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from ragen_lab.report.data import DETECTORS, ENDED, Cost, Curve, Dot, Reference, mean_curve
from ragen_lab.report.figure_style import (
    ALARM_SYMBOLS,
    DASHES,
    NEUTRAL,
    PLATE,
    SHORT,
    arm_dash,
    base_figure,
    plain,
    set_apart,
    translucent,
)


def learning_curves(
    group: Sequence[Curve],
    lines: Sequence[Reference],
    color: str,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    height: int = 320,
) -> go.Figure:
    """One arm: a thin line per seed, their mean in bold, reference lines, stops and alarms.

    The ranges are given, so that the panels of all arms share their axes.
    """
    figure = base_figure(margin={"l": 40, "r": 92, "t": 10, "b": 42}, height=height)
    for line in lines:
        figure.add_trace(
            go.Scatter(
                x=list(x_range),
                y=[line.value, line.value],
                mode="lines",
                name=line.name,
                meta="reference",
                line={"color": NEUTRAL, "width": 1.5, "dash": DASHES.get(line.name, "dash")},
                hovertemplate=f"{plain(line.name)}: {line.value:.3f}<extra></extra>",
            )
        )
    gap = (y_range[1] - y_range[0]) * 17 / max(height - 52, 1)
    for line, y in zip(lines, set_apart([line.value for line in lines], gap, y_range[0], y_range[1]), strict=True):
        figure.add_annotation(
            x=1,
            xref="paper",
            xanchor="left",
            xshift=6,
            y=y,
            yref="y",
            yanchor="middle",
            showarrow=False,
            text=f"{plain(SHORT.get(line.name, line.name))} {line.value:.2f}",
            font={"size": 12},
        )
    for curve in group:
        if curve.low:
            figure.add_trace(
                go.Scatter(
                    x=[*curve.iterations, *reversed(curve.iterations)],
                    y=[*curve.high, *reversed(curve.low)],
                    fill="toself",
                    fillcolor=translucent(color, 0.09),
                    line={"width": 0},
                    mode="lines",
                    name=f"seed {curve.seed}: 95 % interval",
                    meta="interval",
                    hoverinfo="skip",
                )
            )
    for curve in group:
        figure.add_trace(
            go.Scatter(
                x=list(curve.iterations),
                y=list(curve.values),
                customdata=list(zip(curve.low, curve.high, strict=True)) if curve.low else None,
                mode="lines+markers" if len(curve.iterations) < 30 else "lines",
                name=f"seed {curve.seed}",
                meta="run",
                line={"color": translucent(color, 0.75), "width": 1.3},
                marker={"size": 4, "color": translucent(color, 0.75)},
                hovertemplate=f"seed {curve.seed} ({curve.trial_id}), {plain(curve.status)}"
                + "<br>iteration %{x}: %{y:.3f}"
                + (" [%{customdata[0]:.3f}, %{customdata[1]:.3f}]" if curve.low else "")
                + "<extra></extra>",
            )
        )
    x, y_mean = mean_curve(group)
    if len(x) and sum(curve.status in ENDED for curve in group) > 1:
        figure.add_trace(
            go.Scatter(
                x=x,
                y=y_mean,
                mode="lines",
                name="mean over seeds",
                meta="mean",
                line={"color": color, "width": 4},
                hovertemplate="mean over seeds<br>iteration %{x}: %{y:.3f}<extra></extra>",
            )
        )
    for curve in group:
        _mark(figure, curve, color, y_range[0])
    figure.update_xaxes(range=list(x_range), title={"text": "iteration", "standoff": 6}, nticks=6)
    figure.update_yaxes(range=list(y_range), tickformat=".1f", nticks=6)
    return figure


def _mark(figure: go.Figure, curve: Curve, color: str, floor: float, alarms: bool = True) -> None:
    """Alarms, the vote's stop and non-finite points of one run, on its line."""
    for alarm in curve.alarms if alarms else ():
        y = curve.at(alarm.iteration)
        figure.add_trace(
            go.Scatter(
                x=[alarm.iteration],
                y=[y if math.isfinite(y) else floor],
                mode="markers",
                name=f"seed {curve.seed}: {alarm.detector}",
                meta="alarm",
                marker={"symbol": ALARM_SYMBOLS[alarm.detector], "size": 10, "color": color, "line": {"width": 1.6}},
                hovertemplate=f"seed {curve.seed}, iteration %{{x}}: {DETECTORS[alarm.detector]}<extra></extra>",
            )
        )
    if curve.called_at is not None:
        y = curve.at(curve.called_at)
        reason = f": {plain(curve.stop_reason)}" if curve.stop_reason else ""
        figure.add_trace(
            go.Scatter(
                x=[curve.called_at],
                y=[y if math.isfinite(y) else floor],
                mode="markers",
                name=f"seed {curve.seed}: called collapsed",
                meta="stop",
                marker={"symbol": "x", "size": 11, "color": color, "line": {"width": 0}},
                hovertemplate=f"seed {curve.seed}, iteration %{{x}}: called collapsed{reason}<extra></extra>",
            )
        )
    if curve.non_finite:
        figure.add_trace(
            go.Scatter(
                x=list(curve.non_finite),
                y=[floor] * len(curve.non_finite),
                mode="markers",
                name=f"seed {curve.seed}: NaN or infinite",
                meta="non_finite",
                cliponaxis=False,
                marker={"symbol": "asterisk-open", "size": 10, "color": color, "line": {"width": 2}},
                hovertemplate=f"seed {curve.seed}: not a finite number at iteration %{{x}}<extra></extra>",
            )
        )


def final_success(
    dots: Sequence[Dot],
    arms: Sequence[str],
    colors: Sequence[str],
    lines: Sequence[Reference],
    means: dict[str, tuple[float, float, float]],
    x_max: float = 1.0,
) -> go.Figure:
    """Final success per run, one row per arm; grey lines join the runs of one seed.

    ``means``: arm -> (mean, low, high) as the finding reports them; drawn as given, NaN ends left out.
    """
    row = {arm: len(arms) - 1 - i for i, arm in enumerate(arms)}
    seeds = sorted({dot.seed for dot in dots})
    # Runs of one seed sit at the same small offset in every row, so that equal values stay apart
    # and the joining lines stay readable.
    offset = {seed: 0.26 * (i / max(len(seeds) - 1, 1)) - 0.3 for i, seed in enumerate(seeds)}
    figure = base_figure(height=74 + 84 * len(arms), margin={"l": 14, "r": 22, "t": 34, "b": 44})
    for line in lines:
        figure.add_shape(
            type="line",
            x0=line.value,
            x1=line.value,
            xref="x",
            y0=0,
            y1=1,
            yref="paper",
            layer="below",
            name=line.name,
            line={"color": NEUTRAL, "width": 1.5, "dash": DASHES.get(line.name, "dash")},
        )
    for i, line in enumerate(lines):
        figure.add_annotation(
            x=line.value,
            xref="x",
            xanchor="right" if line.value > 0.85 * x_max else "center",
            y=1,
            yref="paper",
            yanchor="bottom",
            yshift=2 + (15 if i % 2 and len(lines) > 2 else 0),
            showarrow=False,
            text=f"{plain(line.name)} {line.value:.2f}",
            font={"size": 12},
        )
    for seed in seeds:
        path = sorted((row[dot.arm], dot.value) for dot in dots if dot.seed == seed and math.isfinite(dot.value))
        if len(path) > 1:
            figure.add_trace(
                go.Scatter(
                    x=[value for _, value in path],
                    y=[y + offset[seed] for y, _ in path],
                    mode="lines",
                    name=f"seed {seed}",
                    meta="pair",
                    line={"color": translucent(NEUTRAL, 0.55), "width": 1.2},
                    hoverinfo="skip",
                )
            )
    for i, arm in enumerate(arms):
        mine = [dot for dot in dots if dot.arm == arm and math.isfinite(dot.value)]
        figure.add_trace(
            go.Scatter(
                x=[dot.value for dot in mine],
                y=[row[arm] + offset[dot.seed] for dot in mine],
                mode="markers",
                name=plain(arm),
                meta="dots",
                marker={
                    "color": colors[i],
                    "size": 11,
                    "symbol": ["x" if dot.status == "collapsed" else "circle" for dot in mine],
                },
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [dot.high - dot.value for dot in mine],
                    "arrayminus": [dot.value - dot.low for dot in mine],
                    "thickness": 1.1,
                    "width": 0,
                    "color": translucent(colors[i], 0.6),
                },
                customdata=[[dot.seed, dot.trial_id, plain(dot.status), dot.low, dot.high] for dot in mine],
                hovertemplate="seed %{customdata[0]} (%{customdata[1]}), %{customdata[2]}<br>"
                "%{x:.3f} [%{customdata[3]:.3f}, %{customdata[4]:.3f}]<extra></extra>",
            )
        )
        mean, low, high = means.get(arm, (math.nan, math.nan, math.nan))
        if math.isfinite(mean):
            y = row[arm] + 0.14
            if math.isfinite(low) and math.isfinite(high):
                figure.add_trace(
                    go.Scatter(
                        x=[max(low, 0.0), min(high, 1.0)],
                        y=[y, y],
                        mode="lines",
                        name=f"{plain(arm)}: interval of the mean",
                        meta="mean_interval",
                        line={"color": colors[i], "width": 4},
                        hoverinfo="skip",
                    )
                )
            figure.add_trace(
                go.Scatter(
                    x=[mean],
                    y=[y],
                    mode="markers",
                    name=f"{plain(arm)}: mean",
                    meta="mean",
                    marker={"symbol": "line-ns-open", "size": 20, "color": colors[i], "line": {"width": 4}},
                    hovertemplate=f"mean %{{x:.3f}} [{low:.3f}, {high:.3f}]<extra></extra>",
                )
            )
        text = f"<b>{plain(arm, 30)}</b>" + (f"  {mean:.2f}" if math.isfinite(mean) else "  not evaluable")
        if math.isfinite(mean) and math.isfinite(low):
            text += f" [{low:.2f}, {high:.2f}]".replace("-", "−")
        figure.add_annotation(
            x=0,
            xref="paper",
            xanchor="left",
            y=row[arm] + 0.42,
            yref="y",
            yanchor="middle",
            showarrow=False,
            text=text,
            name=PLATE,
        )
    figure.update_xaxes(
        range=[0, x_max], tickformat=".1f", title={"text": "final success", "standoff": 6}, showgrid=True
    )
    figure.update_yaxes(range=[-0.5, len(arms) - 0.4], showticklabels=False, showgrid=False, ticks="")
    return figure


def signal(
    group: Sequence[Curve], arms: Sequence[str], colors: Sequence[str], log: bool, height: int = 270
) -> go.Figure:
    """One metric of all arms: a thin line per run, the mean over seeds in bold, ✕ where a run was called collapsed."""
    figure = base_figure(height=height, margin={"l": 54, "r": 14, "t": 8, "b": 42})
    finite = [v for curve in group for v in curve.values if math.isfinite(v) and (v > 0 or not log)]
    floor = min(finite, default=0.0)
    for i, arm in enumerate(arms):
        for curve in (c for c in group if c.arm == arm):
            figure.add_trace(
                go.Scatter(
                    x=list(curve.iterations),
                    y=list(curve.values),
                    mode="lines",
                    name=f"{plain(arm)}, seed {curve.seed}",
                    meta="run",
                    line={"color": translucent(colors[i], 0.5), "width": 1},
                    hovertemplate=f"{plain(arm)}, seed {curve.seed}<br>iteration %{{x}}: %{{y:.3g}}<extra></extra>",
                )
            )
    for i, arm in enumerate(arms):
        mine = [curve for curve in group if curve.arm == arm]
        x, y = mean_curve(mine)
        if len(x) and sum(curve.status in ENDED for curve in mine) > 1:
            figure.add_trace(
                go.Scatter(
                    x=x,
                    y=y,
                    mode="lines",
                    name=plain(arm),
                    meta="mean",
                    line={"color": colors[i], "width": 3, "dash": arm_dash(i)},
                    hovertemplate=f"{plain(arm)}, mean over seeds<br>iteration %{{x}}: %{{y:.3g}}<extra></extra>",
                )
            )
        for curve in mine:
            _mark(figure, curve, colors[i], floor, alarms=False)
    figure.update_xaxes(title={"text": "iteration", "standoff": 6}, nticks=6, rangemode="tozero")
    figure.update_yaxes(type="log" if log else "linear", nticks=6, exponentformat="power")
    if log and finite:
        ticks = _decades(min(finite), max(finite))
        figure.update_yaxes(tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return figure


def _decades(low: float, high: float) -> list[float]:
    """1, 2, 5 steps of every decade from ``low`` to ``high``; whole decades only over a wide range."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if low / 2 <= tick <= high * 2]


def cost(costs: Sequence[Cost], arms: Sequence[str], colors: Sequence[str], phases: Sequence[str]) -> go.Figure:
    """Seconds per iteration: one stacked bar per arm (mean over runs), a dot per run."""
    row = {arm: len(arms) - 1 - i for i, arm in enumerate(arms)}
    figure = base_figure(height=70 + 62 * len(arms), margin={"l": 14, "r": 22, "t": 8, "b": 44}, barmode="stack")
    for k, phase in enumerate(phases):
        shown = [arm for arm in arms if any(c.arm == arm for c in costs)]
        means = {arm: [c.phases.get(phase, 0.0) for c in costs if c.arm == arm] for arm in shown}
        figure.add_trace(
            go.Bar(
                x=[sum(means[arm]) / len(means[arm]) for arm in shown],
                y=[row[arm] for arm in shown],
                orientation="h",
                width=0.34,
                name=phase,
                meta="phase",
                marker={"color": [translucent(colors[arms.index(arm)], (0.95, 0.5)[k % 2]) for arm in shown]},
                hovertemplate=f"{plain(phase)}: %{{x:.2f}} s per iteration<extra></extra>",
            )
        )
    figure.add_trace(
        go.Scatter(
            x=[c.total for c in costs],
            y=[row[c.arm] - 0.28 for c in costs],
            mode="markers",
            name="runs",
            meta="dots",
            marker={
                "size": 8,
                "symbol": "circle-open",
                "color": [colors[arms.index(c.arm)] for c in costs],
                "line": {"width": 1.6},
            },
            customdata=[[c.seed, c.trial_id] for c in costs],
            hovertemplate="seed %{customdata[0]} (%{customdata[1]}): %{x:.2f} s per iteration<extra></extra>",
        )
    )
    for arm in arms:
        totals = [c.total for c in costs if c.arm == arm]
        text = f"<b>{plain(arm, 30)}</b>  " + (f"{sum(totals) / len(totals):.2f} s" if totals else "not logged")
        figure.add_annotation(
            x=0,
            xref="paper",
            xanchor="left",
            y=row[arm] + 0.36,
            yref="y",
            yanchor="middle",
            showarrow=False,
            text=text,
            name=PLATE,
        )
    figure.update_xaxes(rangemode="tozero", title={"text": "seconds per iteration", "standoff": 6}, showgrid=True)
    figure.update_yaxes(range=[-0.5, len(arms) - 0.4], showticklabels=False, showgrid=False, ticks="")
    return figure
