"""Docs are tested: the reference is what the code says, and the handbook names every command and finding."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from typer.main import get_command

from ragen_lab.config import knobs
from ragen_lab.detect import DETECTORS
from ragen_lab.findings.registry import FINDINGS
from ragen_lab.metrics import METRICS
from ragen_lab.runs import View
from ragen_lab.sections import ENV_SECTIONS
from ragen_lab.sweep.plan import plan_of
from ragen_lab.sweep.spec import load_sweep

ROOT = Path(__file__).parent.parent
HANDBOOK = (ROOT / "docs" / "handbook.md").read_text()
REFERENCE = (ROOT / "docs" / "reference.md").read_text()


def test_the_reference_is_what_the_code_says():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.reference() == REFERENCE, "run `make docs`"


@pytest.mark.parametrize("name", [*knobs(), *METRICS, *ENV_SECTIONS, *DETECTORS])
def test_everything_has_its_line(name):
    assert f"| `{name}` |" in REFERENCE


def test_the_handbook_names_every_command():
    from ragen_lab.cli import app

    for name in get_command(app).commands:
        assert re.search(rf"^### `ragen-lab {name}\b", HANDBOOK, re.M), name


def test_the_handbook_names_every_finding():
    for number in FINDINGS:
        assert re.search(rf"^\| {number} \|", HANDBOOK, re.M), number


def test_the_page_of_the_handbook_is_a_page(tmp_path):
    """Its example resolves, and what it accepts is there to be accepted."""
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    block = re.search(r"```yaml\n(name: .*?)```", HANDBOOK, re.S)
    page = tmp_path / "sweeps" / "page.yaml"
    page.write_text(block.group(1))
    sweep = load_sweep(page)
    plan = plan_of(sweep, lambda trial: View(False, "pending"))
    assert len(sweep.arms) == 5
    assert {note.rule for note in plan.notes if note.accepted} == set(sweep.accept)


def test_links_between_pages_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
