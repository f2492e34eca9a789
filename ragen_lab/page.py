"""Reading a YAML page: version 1.2 rules, duplicate keys refused, faults that name the line.

YAML 1.2 keeps ``on``, ``no`` and ``yes`` words and reads ``1e-4`` as a number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import ComposerError
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from ragen_lab.errors import ConfigError

_EMPTY = (
    "the page is empty. Copy one to start from: a run from experiments/ (for example frozen_lake_grpo.yaml), or a "
    "sweep from sweeps/; `ragen-lab list knobs` shows what a run can say."
)


class _Core(SafeConstructor):
    """What YAML 1.2's core schema knows and no more: dates stay words, and foreign types are refused."""


def _refuse(constructor: _Core, node: Any) -> None:
    raise ConstructorError(None, None, f"the type {node.tag.rsplit(':', 1)[-1]!r} has no place here", node.start_mark)


_Core.add_constructor("tag:yaml.org,2002:timestamp", lambda constructor, node: str(node.value))
for _kind in ("binary", "set", "omap", "pairs"):
    _Core.add_constructor(f"tag:yaml.org,2002:{_kind}", _refuse)


def _parser() -> YAML:
    parser = YAML(typ="safe", pure=True)
    parser.Constructor = _Core
    parser.version = (1, 2)
    parser.allow_duplicate_keys = True  # told by scan_page, which goes on to look at the rest of the page
    return parser


def scan_page(path: str | Path) -> tuple[dict[str, Any], list[str]]:
    """(the mapping in a YAML file, a fault for every key that is there twice or is not a word).

    Raises ConfigError for a missing, empty, malformed or non-mapping page, which leaves nothing to look at.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), [f"no such file (looked in {file.absolute().parent}). Check the path."]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"cannot be read as text: {error}"]) from None
    try:
        faults = _bad_keys(_parser().compose(text), ())
        tree = _parser().load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(str(path), [f"{line}not valid YAML: {problem}"]) from None
    except RecursionError:
        raise ConfigError(str(path), ["is nested too deeply to be a page. Write it flatter."]) from None
    if tree is None or tree == {}:
        raise ConfigError(str(path), [_EMPTY])
    if not isinstance(tree, dict):
        raise ConfigError(str(path), [f"the page must be a mapping of keys, got a {type(tree).__name__}"])
    return tree, faults


def scan_experiment(path: str | Path, chain: tuple[Path, ...] = ()) -> tuple[dict[str, Any], list[str]]:
    """An experiment page with the pages that it names as ``base`` below it, as ``scan_page`` returns one page.

    What a page says goes before what its base says, key by key; another ``env.name`` drops the base's whole ``env``.
    Raises ConfigError as ``scan_page`` does, and for a circle of bases.
    """
    file = Path(path)
    tree, faults = scan_page(file)
    base = tree.pop("base", None)
    if base is None:
        return tree, faults
    if not isinstance(base, str):
        return tree, [*faults, f"base: got {base!r}; give the path of an experiment page, relative to this one."]
    chain = (*chain, file.resolve())
    below = file.parent / base
    if below.resolve() in chain:
        circle = " -> ".join(page.name for page in (*chain[chain.index(below.resolve()) :], below))
        raise ConfigError(str(path), [f"base: {circle} go round in a circle; remove one of them."])
    try:
        inherited, theirs = scan_experiment(below, chain)
    except ConfigError as error:
        below_faults = [
            fault if fault.startswith("base:") else f"base: {error.where}: {fault}" for fault in error.faults
        ]
        raise ConfigError(str(path), [*faults, *below_faults]) from None
    return _over(inherited, tree), [*faults, *(f"base: {below}: {fault}" for fault in theirs)]


def _over(below: dict[str, Any], above: dict[str, Any], top: bool = True) -> dict[str, Any]:
    """``below`` with the keys of ``above`` laid over it, section by section."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        if not isinstance(value, dict) or not isinstance(under, dict):
            result[key] = value
        elif top and key == "env" and value.get("name", under.get("name")) != under.get("name"):
            result[key] = value  # the knobs of one environment mean nothing in another
        else:
            result[key] = _over(under, value, top=False)
    return result


def read_page(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError for a page that ``scan_page`` finds fault with."""
    tree, faults = scan_page(path)
    if faults:
        raise ConfigError(str(path), faults)
    return tree


def _bad_keys(node: Any, above: tuple[int, ...]) -> list[str]:
    """A fault for every repeated key below a node, and for every key that is not a word."""
    if id(node) in above:
        raise ComposerError(None, None, "a value that contains itself", node.start_mark)
    above = (*above, id(node))
    if isinstance(node, SequenceNode):
        return [fault for child in node.value for fault in _bad_keys(child, above)]
    if not isinstance(node, MappingNode):
        return []
    faults: list[str] = []
    seen: set[str] = set()
    for key, value in node.value:
        line = f"line {key.start_mark.line + 1}"
        if not isinstance(key, ScalarNode):
            raise ComposerError(None, None, "a key must be a word, not a list or a mapping", key.start_mark)
        if not str(key.tag).endswith(":str"):
            faults.append(f"{line}: the key {key.value} is not a word; write it in quotes: '{key.value}'.")
        if key.value in seen:
            faults.append(
                f"{line}: '{key.value}' is there twice. Arms, axes and keys need names of their own: rename or "
                "remove one."
            )
        seen.add(key.value)
        faults += _bad_keys(value, above)
    return faults


def read_value(text: str, where: str) -> Any:
    """One YAML value, as typed after ``--set a.b=``."""
    try:
        return _parser().load(text)
    except YAMLError:
        raise ConfigError(where, [f"{text!r} is not a YAML value"]) from None
