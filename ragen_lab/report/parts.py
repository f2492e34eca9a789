"""The template, style and script that a report is made of."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ragen_lab.errors import HomeError

TEMPLATE = "report.html.j2"
PARTS = (TEMPLATE, "style.css", "scheme.js")


def page_parts() -> dict[str, str]:
    """Template, style and script: from the installed package, else from the checkout's reports/ folder."""
    packed = files("ragen_lab").joinpath("_pages", "reports")
    checkout = Path(__file__).resolve().parents[2] / "reports"
    for folder in (packed, checkout):
        if all(folder.joinpath(part).is_file() for part in PARTS):
            return {part: folder.joinpath(part).read_text(encoding="utf-8") for part in PARTS}
    raise HomeError(
        f"the report's template was not found: looked for {', '.join(PARTS)} in {packed} and in {checkout}. "
        "Reinstall ragen-lab, or run it from a whole checkout."
    )
