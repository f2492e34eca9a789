"""docs/algorithms.md against the code: every algorithm, every choice and every default has its line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from ragen_lab.algo.advantages import ALGORITHMS
from ragen_lab.config import RunConfig, knobs
from ragen_lab.sections import AlgoSection, FilterSection, KlSection, Section

PAGE = (Path(__file__).parent.parent.parent / "docs" / "algorithms.md").read_text()
SOURCE = re.compile(r"\b\d{4}\.\d{5}\b")


def row(name: str, after: str) -> list[str]:
    """The cells behind the name, in the first table below the heading that has such a row."""
    found = re.search(rf"^\| `{re.escape(name)}` \|(.*)\|$", PAGE[PAGE.index(after) :], re.M)
    assert found, f"{name} has no row below {after!r}"
    return [cell.strip() for cell in found[1].split(" | ")]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_its_equation_and_source(name: str) -> None:
    equation, source = row(name, "## Advantages")
    assert len(equation) >= 7
    assert SOURCE.search(source)


def choices(section: type[Section]) -> list[str]:
    """The words that the section's knobs choose from."""
    found: list[str] = []
    for field in section.model_fields.values():
        for kind in (field.annotation, *get_args(field.annotation)):
            if get_origin(kind) is Literal:
                found += get_args(kind)
    return found


@pytest.mark.parametrize("word", [*choices(AlgoSection), *choices(KlSection), *choices(FilterSection)])
def test_every_choice_is_explained(word: str) -> None:
    assert re.search(rf"`([a-z_.]+: )?{word}`", PAGE[PAGE.index("## Advantages") :]), word


ALGO = [path for path in knobs() if path.startswith("algo.")]


@pytest.mark.parametrize("path", ALGO)
def test_every_default_is_the_code_s(path: str) -> None:
    default = RunConfig().flat()[path]
    stated: Any = row(path, "## Defaults")[0]
    read = yaml.safe_load(stated)
    assert (stated if isinstance(default, str) else read) == default, path
    assert type(read) is type(default) or isinstance(default, str)


@pytest.mark.parametrize("name", [name for name, algorithm in ALGORITHMS.items() if algorithm.critic])
def test_readers_of_the_critic_s_knobs_are_named(name: str) -> None:
    for path in ("algo.gamma", "algo.lam", "algo.value_clip"):
        assert name in row(path, "## Defaults")[1]


def test_where_we_differ_gives_each_its_reason() -> None:
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", PAGE[PAGE.index("## Where this differs") :], re.M)[2:]
    assert len(rows) >= 9
    assert all(len(cell) > 8 for cells in rows for cell in cells)
