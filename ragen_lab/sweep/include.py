"""Pages that a sweep page includes: their arms and axes join, and what it does not say itself comes from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen_lab.errors import ConfigError
from ragen_lab.page import scan_page
from ragen_lab.sweep.page_keys import is_sweep_page

_MAPPINGS = ("axes", "when", "arms", "ties")  # joined name by name; a name that is there twice is a fault
_LISTS = ("zip", "settings", "constraints")  # joined one after the other
_OWN = ("name", "include", "accept")  # never taken from an included page


def with_included(file: Path, tree: dict[str, Any], chain: tuple[Path, ...] = ()) -> tuple[dict[str, Any], list[str]]:
    """(``tree`` of the page ``file`` with its included pages joined, faults). Arms and axes of those come first."""
    paths = tree.get("include", [])
    paths = [paths] if isinstance(paths, str) else paths
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return tree, []  # told with the page's other keys
    chain = (*chain, file.resolve())
    joined: dict[str, Any] = {}
    owner: dict[str, str] = {}  # 'axes.filter.keep_ratio' or 'seeds' -> the page that it is from
    faults: list[str] = []
    for path in paths:
        target = file.parent / path
        if target.resolve() in chain:
            circle = [page.name for page in (*chain[chain.index(target.resolve()) :], target)]
            faults.append(f"include: {' -> '.join(circle)} go round in a circle; remove one of them.")
            continue
        try:
            theirs, twice = scan_page(target)
        except ConfigError as error:
            faults += [f"include: {error.where}: {fault}" for fault in error.faults]
            continue
        faults += [f"include: {target}: {fault}" for fault in twice]
        if not is_sweep_page(theirs):
            faults.append(f"include: {target} is an experiment page; name it as base, or include a sweep page.")
            continue
        theirs, below = with_included(target, theirs, chain)
        faults += below
        if isinstance(theirs.get("base"), str):  # relative to the page that names it
            theirs["base"] = str(Path(path).parent / theirs["base"])
        faults += _join(joined, {key: value for key, value in theirs.items() if key not in _OWN}, path, tree, owner)
    return {**joined, **_joined_with_own(joined, tree, owner, faults)}, faults


def _join(
    joined: dict[str, Any], theirs: Mapping[str, Any], path: str, own: Mapping[str, Any], owner: dict[str, str]
) -> list[str]:
    """Put one included page's keys into ``joined``; what two pages say differently is a fault."""
    faults = []
    for key, value in theirs.items():
        if key in _MAPPINGS and isinstance(value, dict):
            held = joined.setdefault(key, {})
            for name, entry in value.items():
                if name in held:
                    faults.append(_clash(f"{key}.{name}", path, owner[f"{key}.{name}"]))
                held[name] = entry
                owner[f"{key}.{name}"] = path
        elif key in _LISTS and isinstance(value, list):
            joined[key] = [*joined.get(key, []), *value]
        elif key not in own:
            if key in joined and joined[key] != value:
                faults.append(f"{key}: {owner[key]} and {path} differ; say on this page which it is.")
            joined[key] = value
            owner[key] = path
    return faults


def _joined_with_own(
    joined: Mapping[str, Any], own: Mapping[str, Any], owner: Mapping[str, str], faults: list[str]
) -> dict[str, Any]:
    result = dict(own)
    for key in _MAPPINGS:
        if isinstance(own.get(key), dict) and key in joined:
            faults += [
                _clash(f"{key}.{name}", "this page", owner[f"{key}.{name}"]) for name in own[key] if name in joined[key]
            ]
            result[key] = {**joined[key], **own[key]}
    for key in _LISTS:
        if isinstance(own.get(key), list) and key in joined:
            result[key] = [*joined[key], *own[key]]
    return result


def _clash(path: str, here: str, there: str) -> str:
    return f"{path}: is on {there} and on {here}; rename or remove one of them."
