"""A sweep to look at while it runs: a table that redraws itself and fits its terminal, or a plain line now and then."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ragen_lab.sweep.board import SUCCESS, Board, Entry, duration, last_value, remaining
from ragen_lab.track import Row

# Columns in their order, with how early they give way on a narrow terminal (0 = never).
COLUMNS = {"arm": 0, "seed": 0, "iter": 0, "success": 1, "trend": 5, "alarms": 3, "status": 2, "time": 6,
           "left": 4, "try": 7}  # fmt: skip
_SHORTEST_ARM = 16
_TREND = 10  # characters
_BLOCKS, _PLAIN = "▁▂▃▄▅▆▇█", "._-~=+*#"
_DETECTORS = {"level": "level", "reward_std": "std", "grad_norm": "grad", "entropy": "entropy", "non_finite": "nan"}
_STYLES = {"running": "cyan", "collapsed": "yellow", "failed": "red", "finished": "green"}


def sparkline(values: Sequence[float], unicode: bool = True, width: int = _TREND) -> str:
    """Shares from 0 to 1 on a fixed scale, so that rows compare; the means of equal parts where there are too many.

    A value that is not finite is an "x": it is the finding.
    """
    parts = min(width, len(values))
    signs = _BLOCKS if unicode else _PLAIN
    found = ""
    for k in range(parts):
        part = values[k * len(values) // parts : (k + 1) * len(values) // parts]
        mean = sum(part) / len(part)
        found += signs[min(7, max(0, int(mean * 8)))] if math.isfinite(mean) else "x"
    return found


def alarms(rows: Sequence[Row]) -> list[str] | None:
    """Names of the detectors whose alarm is on in the newest row; None where none of them could judge it."""
    flags = {key.removeprefix("detect/"): value for key, value in rows[-1].items() if "detect/" in key} if rows else {}
    judged = [name for name in _DETECTORS if name in flags]
    return [name for name in judged if flags[name] == 1.0] if judged else None


def cut_in_the_middle(text: str, width: int) -> str:
    """Labels of arms often differ at their ends, where an ellipsis would make them look alike."""
    if len(text) <= width:
        return text
    tail = width // 2
    return f"{text[: width - tail - 1]}…{text[len(text) - tail :]}"


def _row_of(entry: Entry, unicode: bool) -> dict[str, Text]:
    rows, iteration = entry.rows, len(entry.rows) - 1
    success, pace, seconds = last_value(rows, SUCCESS), entry.pace(), entry.seconds()
    on = alarms(rows)
    quiet = Text("-" if on is None else "none", style="dim")
    status = entry.stage or entry.status
    if entry.status == "collapsed":
        status = f"collapsed at {entry.view.stop_iteration}"
    if entry.reused:
        status += " (old)"
    return {
        "arm": Text(entry.trial.arm),
        "seed": Text(str(entry.trial.seed)),
        "iter": Text(f"{iteration if iteration >= 0 else '-'}/{entry.trial.cfg.train.iterations}"),
        "success": Text("" if success is None else f"{success:.3f}"),
        "trend": Text(sparkline([row[SUCCESS] for row in rows if SUCCESS in row], unicode)),
        "alarms": Text(" ".join(_DETECTORS[name] for name in on), style="yellow") if on else quiet,
        "status": Text(status, style=_STYLES.get(entry.status, "dim")),
        "time": Text("" if seconds is None else duration(seconds)),
        "left": Text(duration(remaining(entry) * pace) if entry.running and pace is not None else ""),
        "try": Text(str(entry.tries) if entry.tries else ""),
    }


def _fitted(cells: list[dict[str, Text]], width: int) -> Table:
    """As many columns as fit beside a readable arm."""
    needs = {name: max([len(name), *(row[name].cell_len for row in cells)]) for name in COLUMNS}
    whole = needs["arm"]
    needs["arm"] = min(whole, _SHORTEST_ARM)
    names = list(COLUMNS)
    while (taken := sum(needs[name] + 1 for name in names) - 1) > width and any(COLUMNS[name] for name in names):
        names.remove(max(names, key=lambda name: COLUMNS[name]))
    needs["arm"] = max(3, min(whole, needs["arm"] + width - taken))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in names:
        justify: Literal["left", "right"] = "left" if name in ("arm", "trend", "alarms", "status") else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", width=needs[name])
    for row in cells:
        arm = Text(cut_in_the_middle(row["arm"].plain, needs["arm"]))
        table.add_row(arm, *(row[name] for name in names[1:]))
    return table


def table(board: Board, width: int, height: int, unicode: bool = True) -> RenderableType:
    """The live table: running trials first, then what has ended, as many rows and columns as fit."""
    with board.lock:
        entries = sorted(board.entries.values(), key=lambda entry: (not entry.running, not entry.view.done))
        room = max(4, height - 3)  # without the head, the foot and the cursor's line
        shown = entries if len(entries) <= room else entries[: room - 1]
        cells = [_row_of(entry, unicode) for entry in shown]
    hidden, left = len(entries) - len(shown), board.seconds_left()
    foot = board.counts() + (f" · about {duration(left)} left" if left is not None else "")
    more = [Text(f"... and {hidden} more", style="dim")] if hidden else []
    return Group(_fitted(cells, width), *more, Text(foot, style="bold", no_wrap=True, overflow="ellipsis"))


class Follower:
    """Keeps the board up to date and shows it: a table that redraws itself, or a plain line now and then."""

    def __init__(
        self,
        board: Board,
        console: Console,
        live: bool,
        every: float = 20.0,
        on_poll: Callable[[], None] = lambda: None,
    ) -> None:
        self.board, self.console, self.every, self.on_poll = board, console, every, on_poll
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="follower")
        self._live: Live | None = None
        if live:
            self._live = Live(
                get_renderable=lambda: table(board, *console.size, unicode=console.encoding.startswith("utf")),
                console=console,
                refresh_per_second=2,
                redirect_stdout=False,
                redirect_stderr=False,
                transient=False,
            )

    def __enter__(self) -> Follower:
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        try:
            self._thread.join()
        finally:  # whatever comes, a terminal gets its cursor back
            if self._live is not None:
                self._live.stop()

    def _follow(self) -> None:
        told = time.monotonic()
        while not self._end.wait(0.5):
            self.board.poll()
            self.on_poll()
            if self._live is None and time.monotonic() - told >= self.every:
                told = time.monotonic()
                self.console.print(self.board.line(), highlight=False, markup=False, soft_wrap=True)
