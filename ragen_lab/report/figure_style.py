"""How every figure of the report looks: colours, marks, fonts, and texts that are safe in it.

Backgrounds are transparent and the font and grid colours are left to the page, which follows the
reader's light or dark scheme; every colour set here is legible on both (contrast of 3 or more).
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

# Okabe-Ito hues, the light ones darkened so that each has a contrast of 3 on white and on near-black;
# luminance differs between neighbours, so that the order survives a grey print.
PALETTE: tuple[str, ...] = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#C46A9F",
    "#A97F00",
    "#7567D6",
    "#8A5A3C",
    "#6F7F8F",
)
MARKERS: tuple[str, ...] = ("circle", "square", "diamond", "triangle-up", "pentagon", "hexagon", "star", "cross")
NEUTRAL = "#7E8791"
DASHES: dict[str, str] = {"random": "dot", "fixed string": "dashdot", "optimal": "dash"}
SHORT: dict[str, str] = {"fixed string": "fixed"}  # beside a panel there is little room
ALARM_SYMBOLS: dict[str, str] = {
    "level": "square-open",
    "reward_std": "triangle-down-open",
    "entropy": "diamond-open",
    "grad_norm": "triangle-up-open",
    "non_finite": "star-open",
}
FONT_SIZE = 13
PLATE = "plate"  # annotations of this name get the page's colour behind them, so that no line crosses their text


def plotly_javascript() -> str:
    """The library that draws the figures, to be inlined once."""
    return str(get_plotlyjs())


def arm_color(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def arm_dash(index: int) -> str:
    """Arms beyond the palette repeat its colours with another dash."""
    return ("solid", "dash", "dot", "dashdot")[index // len(PALETTE) % 4]


def plain(text: object, limit: int = 0) -> str:
    """Text for plotly, which reads a subset of HTML: escaped, and cut to ``limit`` characters if given."""
    words = str(text)
    if limit and len(words) > limit:
        words = words[: limit - 1].rstrip() + "…"
    return html.escape(words, quote=False)


def base_figure(**layout: Any) -> go.Figure:
    figure = go.Figure()
    return styled(figure, **layout)


def styled(figure: go.Figure, **layout: Any) -> go.Figure:
    figure.update_layout(
        template=go.layout.Template(),
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={
            "size": FONT_SIZE,
            "family": "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif",
        },
        margin={"l": 46, "r": 16, "t": 10, "b": 44},
        showlegend=False,
        hovermode="closest",
        dragmode=False,
        autosize=True,
    )
    figure.update_layout(**layout)
    title = {"font": {"size": FONT_SIZE}}
    figure.update_xaxes(
        zeroline=False, showgrid=False, ticks="outside", ticklen=4, showline=True, fixedrange=True, title=title
    )
    figure.update_yaxes(zeroline=False, title=title, showgrid=True, gridwidth=1, fixedrange=True)
    return figure


def translucent(color: str, alpha: float) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def set_apart(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending label positions near ``values``, at least ``gap`` from each other and within the axis."""
    positions: list[float] = []
    for value in values:
        positions.append(max(value, positions[-1] + gap) if positions else max(value, low))
    overflow = positions[-1] - high if positions else 0.0
    if overflow > 0:
        positions[-1] = high
        for i in range(len(positions) - 2, -1, -1):
            positions[i] = min(positions[i], positions[i + 1] - gap)
    return positions
