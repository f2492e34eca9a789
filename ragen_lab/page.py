"""Reading a YAML page: version 1.2 rules, duplicate keys refused, faults that name the line.

YAML 1.2 keeps ``on``, ``no`` and ``yes`` words and reads ``1e-4`` as a number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, SequenceNode

from ragen_lab.errors import ConfigError


def _parser() -> YAML:
    parser = YAML(typ="safe", pure=True)
    parser.version = (1, 2)
    parser.allow_duplicate_keys = True  # told by scan_page, which goes on to look at the rest of the page
    return parser


def scan_page(path: str | Path) -> tuple[dict[str, Any], list[str]]:
    """(the mapping in a YAML file, a fault for every key that is there twice).

    Raises ConfigError for a missing, malformed or non-mapping page, which leaves nothing to look at.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), [f"no such file (looked in {file.absolute().parent}). Check the path."]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"cannot be read as text: {error}"]) from None
    try:
        tree = _parser().load(text)
        twice = _duplicates(_parser().compose(text))
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(str(path), [f"{line}not valid YAML: {problem}"]) from None
    if tree is None:
        return {}, []
    if not isinstance(tree, dict):
        raise ConfigError(str(path), [f"the page must be a mapping of keys, got a {type(tree).__name__}"])
    return tree, twice


def read_page(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError for a page that ``scan_page`` finds fault with."""
    tree, twice = scan_page(path)
    if twice:
        raise ConfigError(str(path), twice)
    return tree


def _duplicates(node: Any) -> list[str]:
    """A fault for every repeated key below a node."""
    if isinstance(node, SequenceNode):
        return [fault for child in node.value for fault in _duplicates(child)]
    if not isinstance(node, MappingNode):
        return []
    faults: list[str] = []
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            faults.append(
                f"line {key.start_mark.line + 1}: '{key.value}' is there twice. Arms, axes and keys need names of "
                "their own: rename or remove one."
            )
        seen.add(str(key.value))
        faults += _duplicates(value)
    return faults


def read_value(text: str, where: str) -> Any:
    """One YAML value, as typed after ``--set a.b=``."""
    try:
        return _parser().load(text)
    except YAMLError:
        raise ConfigError(where, [f"{text!r} is not a YAML value"]) from None
