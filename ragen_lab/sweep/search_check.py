"""What a search, and a scheduler that compares settings, need of a sweep page: each function returns faults."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from ragen_lab.config import RunConfig
from ragen_lab.errors import ConfigError
from ragen_lab.sweep.design import is_fraction
from ragen_lab.sweep.page_check import knows
from ragen_lab.sweep.page_keys import SweepPage, lost
from ragen_lab.sweep.search_page import Range, rungs
from ragen_lab.sweep.template import Template
from ragen_lab.sweep.ties import TieError


def without_space(page: SweepPage, broken: Set[str]) -> tuple[SweepPage, dict[str, Any], list[str]]:
    """(the page as a design of fixed arms, the space of its search, faults).

    A search proposes its settings while it runs; the base itself is its first arm, to be compared with.
    """
    ranges = [path for path, axis in page.axes.items() if isinstance(axis, Range)]
    if page.search.kind == "grid":
        faults = [
            f"axes.{path}: a grid needs a list of values; for a range choose search: {{kind: optuna, trials: 20}}."
            for path in ranges
        ]
        kept = {path: axis for path, axis in page.axes.items() if path not in ranges}
        return page.model_copy(update={"axes": kept}), {}, faults
    faults = []
    if not page.axes and not lost(broken, "axes"):
        faults.append("axes: empty; a search needs at least one axis to vary.")
    if page.zip:
        faults.append("zip: a search varies every axis by itself; tie knobs together with ties.")
    if page.design != "grid":
        faults.append(f"design: {page.design} is a list of arms, and a search proposes its own; leave one of them out.")
    faults += [fault for path in ranges if (fault := _steps_fault(path, page.axes[path])) is not None]
    fixed = page.model_copy(update={"axes": {}, "zip": [], "when": {}, "design": "grid"})
    return fixed, {path: _typed(path, axis) for path, axis in page.axes.items()}, faults


def _typed(path: str, axis: Any) -> Any:
    """From 0 to 1 of a knob that need not be whole is everything between, however its ends are written."""
    if not isinstance(axis, Range) or not is_fraction(path):
        return axis
    step = None if axis.step is None else float(axis.step)
    return axis.model_copy(update={"low": float(axis.low), "high": float(axis.high), "step": step})


def _steps_fault(path: str, axis: Any) -> str | None:
    numbers = (axis.low, axis.high, 1 if axis.step is None else axis.step)
    if not knows(path) or is_fraction(path) or all(isinstance(number, int) for number in numbers):
        return None
    return f"axes.{path}: takes whole numbers, so low, high and step must be whole, for example {{low: 1, high: 8}}."


def space_faults(space: dict[str, Any], template: Template) -> list[str]:
    """Ends and levels that no run may have, the other knobs as in the base."""
    faults = []
    for path, axis in space.items():
        if not knows(path):
            continue  # told already
        for value in (axis.low, axis.high) if isinstance(axis, Range) else axis:
            try:
                template.resolve({path: value}, path)
            except (ConfigError, TieError) as error:
                told = error.faults if isinstance(error, ConfigError) else [str(error)]
                faults += [f"axes.{fault}" for fault in told if fault.startswith(f"{path}:")]
    return list(dict.fromkeys(faults))


def scheduler_faults(page: SweepPage, configs: Sequence[RunConfig]) -> list[str]:
    """Whether settings can be compared at the same iterations."""
    if page.scheduler.kind == "fifo" or not configs:
        return []
    varied = {"train.iterations", "eval.every"} & set(page.axes)
    if len({(cfg.train.iterations, cfg.eval.every) for cfg in configs}) > 1 or varied:
        return [
            f"scheduler.kind: {page.scheduler.kind} compares settings at the same iterations, so all arms need the "
            f"same train.iterations and eval.every; use fifo."
        ]
    iterations = configs[0].train.iterations
    if len(rungs(page.scheduler, iterations, configs[0].eval.every)) < 2:
        return [
            f"scheduler.first: leaves no comparison before iteration {iterations}; give less, or more train.iterations."
        ]
    return []


def seed_faults(page: SweepPage, seeds: Sequence[int], broken: Set[str]) -> list[str]:
    first = page.search.first_seeds
    if first is None or first <= len(seeds) or page.search.kind == "grid" or lost(broken, "seeds"):
        return []
    has = f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''}"
    return [f"search.first_seeds: got {first}, but the page has {has}; give at most {len(seeds)}, or more seeds."]


def budget_faults(page: SweepPage, broken: Set[str]) -> list[str]:
    if page.budget.gpu_hours is not None and page.resources.gpus == 0 and not lost(broken, "resources", "gpus"):
        return ["budget.gpu_hours: resources.gpus is 0, so that none is ever spent; give each trial a share of a GPU."]
    return []
