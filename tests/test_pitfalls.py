"""Every known way to be silently wrong has a test whose name carries its number (``test_pitfall_09_...``)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
COUNT = 24
NAME = re.compile(r"test_pitfall_(\d\d(?:_\d\d)*)_[a-z]")


def numbered() -> dict[str, set[int]]:
    """Test function -> the pitfalls that its name claims."""
    found = {}
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and (match := NAME.match(node.name)):
                found[f"{file.relative_to(TESTS)}::{node.name}"] = {int(n) for n in match[1].split("_")}
    return found


@pytest.mark.parametrize("number", range(1, COUNT + 1))
def test_each_has_a_test_by_name(number: int) -> None:
    assert any(number in numbers for numbers in numbered().values())


def test_no_name_claims_a_pitfall_that_is_not_there() -> None:
    assert {n for numbers in numbered().values() for n in numbers} == set(range(1, COUNT + 1))


def test_docstring_and_name_agree() -> None:
    """A docstring that begins with a pitfall's number belongs to a test whose name has it, and the other way round."""
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                said = re.match(r"Pitfalls? ([\d, ]+)", ast.get_docstring(node) or "")
                claimed = NAME.match(node.name)
                if said:
                    numbers = {int(n) for n in re.findall(r"\d+", said[1])}
                    assert claimed, f"{file.name}::{node.name}"
                    assert numbers <= {int(n) for n in claimed[1].split("_")}, f"{file.name}::{node.name}"
