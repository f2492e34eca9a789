"""Included pages: lists join in order, and a page's own word ends a difference between two that it includes."""

from __future__ import annotations

from pathlib import Path

from ragen_lab.sweep.spec import load_sweep
from tests.sweep.test_design import names_of
from tests.sweep.test_spec import Write, faults_of, has

OWN = "include: rule.yaml\nbase: base.yaml\naxes: {optim.lr: [0.1, 0.2, 0.3]}\n"


def test_the_constraints_of_an_included_page_hold_beside_the_pages_own(write: Write, tmp_path: Path) -> None:
    """Below 0.3 is included, above 0.1 is the page's: only 0.2 is both."""
    (tmp_path / "rule.yaml").write_text("base: base.yaml\nconstraints: [optim.lr < 0.3]\n")
    assert names_of(load_sweep(write(OWN))) == ["lr=0.1", "lr=0.2"]
    assert names_of(load_sweep(write(OWN + "constraints: [optim.lr > 0.1]\n"))) == ["lr=0.2"]


def test_the_constraints_of_two_included_pages_both_hold(write: Write, tmp_path: Path) -> None:
    (tmp_path / "rule.yaml").write_text("base: base.yaml\nconstraints: [optim.lr < 0.3]\n")
    (tmp_path / "other.yaml").write_text("base: base.yaml\nconstraints: [optim.lr > 0.1]\n")
    assert names_of(load_sweep(write(OWN.replace("rule.yaml", "[rule.yaml, other.yaml]")))) == ["lr=0.2"]


def test_zips_join_the_pages_own(write: Write, tmp_path: Path) -> None:
    """Two zips of two axes of two levels each: 2 x 2 arms and not 2 x 2 x 2."""
    (tmp_path / "rule.yaml").write_text(
        "base: base.yaml\naxes: {rollout.prompts: [8, 16], rollout.responses: [16, 8]}\n"
        "zip: [[rollout.prompts, rollout.responses]]\n"
    )
    own = OWN.replace("{optim.lr: [0.1, 0.2, 0.3]}", "{optim.lr: [0.1, 0.2], optim.epochs: [1, 2]}")
    assert names_of(load_sweep(write(own + "zip: [[optim.lr, optim.epochs]]\n"))) == [
        "prompts=8, responses=16, lr=0.1, epochs=1", "prompts=8, responses=16, lr=0.2, epochs=2",
        "prompts=16, responses=8, lr=0.1, epochs=1", "prompts=16, responses=8, lr=0.2, epochs=2",
    ]  # fmt: skip


def test_two_included_pages_may_differ_where_this_page_says_which(write: Write, tmp_path: Path) -> None:
    (tmp_path / "rule.yaml").write_text("base: base.yaml\nseeds: 3\n")
    (tmp_path / "other.yaml").write_text("base: base.yaml\nseeds: 5\n")
    page = OWN.replace("rule.yaml", "[rule.yaml, other.yaml]")
    assert has(faults_of(write(page)), "seeds: rule.yaml and other.yaml differ")
    assert load_sweep(write(page + "seeds: 2\n")).seeds == (0, 1)
