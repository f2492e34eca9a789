"""Writes docs/reference.md from the code: `make docs`. A test holds the two together."""

from __future__ import annotations

import json
from pathlib import Path

from ragen_lab.algo.advantages import ALGORITHMS
from ragen_lab.cli.listing import entries

HERE = Path(__file__).parent


def table(what: str, columns: list[str]) -> str:
    """One markdown table of everything that `ragen-lab list WHAT` names."""
    head = f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n"
    rows = ["| " + " | ".join(_cell(entry, column) for column in columns) + " |" for entry in entries(what, Path("."))]
    return head + "\n".join(rows) + "\n"


def _cell(entry: dict[str, object], column: str) -> str:
    value = entry[column]
    if column == "name":
        return f"`{value}`"
    text = json.dumps(value) if column == "default" else ", ".join(value) if isinstance(value, list) else str(value)
    return text.split(" [default:")[0].replace("|", "\\|")


def reference() -> str:
    """The whole page."""
    assert {entry["name"] for entry in entries("algorithms", Path("."))} == set(ALGORITHMS)
    return "\n".join(
        [
            "# Reference",
            "",
            "Made from the code by `make docs`; the same lists come from `ragen-lab list`.",
            "",
            "## Knobs",
            "",
            table("knobs", ["name", "default", "about"]),
            "## Metrics",
            "",
            table("metrics", ["name", "unit", "better", "about"]),
            "## Environments",
            "",
            table("envs", ["name", "about", "knobs"]),
            "## Algorithms",
            "",
            table("algorithms", ["name", "about"]),
            "## Filters",
            "",
            table("filters", ["name", "about"]),
            "## Detectors",
            "",
            table("detectors", ["name", "about"]),
        ]
    )


if __name__ == "__main__":
    (HERE / "reference.md").write_text(reference(), encoding="utf-8")
