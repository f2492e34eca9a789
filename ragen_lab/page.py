"""Reading a YAML page: version 1.2 rules, duplicate keys refused, faults that name the line.

YAML 1.2 keeps ``on``, ``no`` and ``yes`` words and reads ``1e-4`` as a number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ragen_lab.errors import ConfigError


def _parser() -> YAML:
    parser = YAML(typ="safe", pure=True)
    parser.version = (1, 2)
    parser.allow_duplicate_keys = False
    return parser


def read_page(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError for a missing, malformed or non-mapping page."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), [f"no such file (looked in {file.absolute().parent}). Check the path."]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"cannot be read as text: {error}"]) from None
    try:
        tree = _parser().load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(str(path), [f"{line}not valid YAML: {problem}"]) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(str(path), [f"the page must be a mapping of keys, got a {type(tree).__name__}"])
    return tree


def read_value(text: str, where: str) -> Any:
    """One YAML value, as typed after ``--set a.b=``."""
    try:
        return _parser().load(text)
    except YAMLError:
        raise ConfigError(where, [f"{text!r} is not a YAML value"]) from None
