"""The sweep page: YAML -> arms and trials, each with its complete RunConfig.

Every fault of a page is told at once, those of every resolved run included; a fault that all arms
share is told once.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ragen_lab.config import RunConfig, apply_overrides, build, flatten, load
from ragen_lab.errors import ConfigError
from ragen_lab.page import read_value, scan_experiment, scan_page
from ragen_lab.sections import Section
from ragen_lab.sweep import ties
from ragen_lab.sweep.arm_faults import broken, config_of, placed, shown, tied, trial_faults
from ragen_lab.sweep.design import (
    Condition,
    Factor,
    applicable,
    as_knob,
    as_knobs,
    combinations,
    conditions_of,
    factors_of,
    label,
    merged,
    size_fault,
    unmet,
)
from ragen_lab.sweep.include import with_included
from ragen_lab.sweep.page_check import (
    Constraint,
    constraints_of,
    design_faults,
    known,
    knows,
    leaves,
    override_notes,
    path_faults,
    seeds_of,
    ties_of,
)
from ragen_lab.sweep.page_keys import (
    HERE,
    MOST_TRIALS,
    NAME,
    NAME_WORDS,
    SweepPage,
    is_sweep_page,
    lost,
    read_keys,
)
from ragen_lab.sweep.search_check import budget_faults, scheduler_faults, seed_faults, space_faults, without_space
from ragen_lab.sweep.search_page import BudgetSection, SchedulerSection, SearchSection
from ragen_lab.sweep.template import Template


@dataclass(frozen=True)
class Arm:
    """One setting of a sweep. ``changes``: the knobs in which it departs from the base, ties included."""

    name: str
    changes: dict[str, Any]
    grid: bool  # from the axes or the list of settings, not a named control


@dataclass(frozen=True)
class Trial:
    """One arm with one seed."""

    arm: str
    seed: int
    cfg: RunConfig
    trial_id: str


def trial_of(arm: str, seed: int, cfg: RunConfig) -> Trial:
    """An arm's config with a seed. Both have been validated: once per arm, not per seed."""
    seeded = cfg.model_copy(update={"seed": seed})
    return Trial(arm, seed, seeded, seeded.trial_id())


@dataclass(frozen=True)
class Sweep:
    """A resolved page: every trial complete. ``trials``: the first seed of every arm comes first.

    ``axes``: dotted knob -> its values (of a list of settings: those that occur). ``groups``: the axes that are walked
    together; an axis of its own is a group of one. ``left_out``: what conditions and constraints took out, in words.
    """

    name: str
    file: str
    findings: tuple[int, ...]
    axes: dict[str, tuple[Any, ...]]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
    groups: tuple[tuple[str, ...], ...] = ()
    tied: tuple[str, ...] = ()
    cpus: float = 1
    gpus: float = 0
    memory_gb: float | None = None
    hang_minutes: float | None = None
    minutes: float | None = None
    notes: tuple[str, ...] = ()
    search: SearchSection = field(default_factory=SearchSection)
    scheduler: SchedulerSection = field(default_factory=SchedulerSection)
    budget: BudgetSection = field(default_factory=BudgetSection)
    space: dict[str, Any] = field(default_factory=dict)  # axes of a search: levels or a Range
    template: Template | None = None  # what every setting of a search starts from
    left_out: tuple[str, ...] = ()
    accept: dict[str, str] = field(default_factory=dict)  # rule of the linter -> why its warnings are accepted
    overridden: bool = False  # by --set: an accepted warning may then be gone
    listed: bool = False  # the arms are a list of settings: nothing says that they differ in one axis
    grows: bool = False  # trials that earlier calls asked for stay in it

    def cfg_of(self, arm: str) -> RunConfig:
        """The config of an arm with the sweep's first seed."""
        return next(trial.cfg for trial in self.trials if trial.arm == arm)


def load_sweep(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Read and resolve a sweep page. ``overrides``: page keys (``seeds``) or knobs of the base (``optim.lr``).

    Raises ConfigError with every fault of the page and of every run it asks for.
    """
    file, sets = Path(path), dict(overrides or {})
    tree, faults = scan_page(file)
    if "include" in sets:
        tree["include"] = sets.pop("include")
    tree, included = with_included(file, tree)
    tree.setdefault("name", file.stem)
    return _Resolver(file, tree, sets, faults, included, overridden=bool(overrides)).resolve()


def one_run(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """An experiment page as a sweep of one trial, named after its file (or ``name``); earlier trials stay in it.

    Overrides that make it another run name its arm, so that the runs of a page can be told apart.
    """
    file, changes = Path(path), dict(overrides or {})
    if is_sweep_page(tree := scan_page(file)[0]):
        keys = ", ".join(key for key in tree if key in SweepPage.model_fields)
        raise ConfigError(str(path), [f"this is a sweep page (it has {keys}): use `ragen-lab sweep {path}`."])
    name = str(changes.pop("name", re.sub(r"[^A-Za-z0-9_.-]", "_", file.stem).lstrip("_.-")[:100] or "run"))
    if not re.match(NAME, name):
        raise ConfigError("--set", [f"name: got {name!r}; {NAME_WORDS}."])
    cfg = load(file, changes)
    mine = cfg.identity()
    try:
        plain = load(file).identity()
    except ConfigError:  # a page that needs its overrides
        plain = {}
    told = {path: value for path, value in changes.items() if path != "seed" and mine.get(path) != plain.get(path)}
    arm = label(told)[:100] or "run"
    trial = Trial(arm, cfg.seed, cfg, cfg.trial_id())
    return Sweep(name, str(path), (), {}, (Arm(arm, told, True),), (cfg.seed,), (trial,), grows=True)


def load_page(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """A sweep page or an experiment page, whichever the file is."""
    if is_sweep_page(scan_page(path)[0]):
        return load_sweep(path, overrides)
    return one_run(path, overrides)


def parse_sets(texts: Sequence[str]) -> dict[str, Any]:
    """``["a.b=1", ...]`` -> dotted path -> value, read as YAML. Raises ConfigError with every fault."""
    found: dict[str, Any] = {}
    faults: list[str] = []
    for typed in texts:
        path, equals, value = typed.partition("=")
        if not equals or not path.strip():
            faults.append(f"{typed!r}: write PATH=VALUE, for example optim.lr=1e-3.")
            continue
        if path.strip() in found:
            faults.append(f"{path.strip()}: is given twice; give it once.")
        try:
            found[path.strip()] = read_value(value, path)
        except ConfigError as error:
            faults += [f"{path.strip()}: {fault}." for fault in error.faults]
    if faults:
        raise ConfigError("--set", faults)
    return found


def env_section(name: str, overrides: Mapping[str, Any]) -> Section:
    """The ``env`` section for an environment's name and overrides of ``env.*`` alone."""
    foreign = [path for path in overrides if not path.startswith("env.") or path == "env.name"]
    if foreign:
        raise ConfigError("--set", [f"{path}: only knobs of the environment count here (env.*)." for path in foreign])
    return build(apply_overrides({"env": {"name": name}}, dict(overrides), "--env"), "--env").env


T = TypeVar("T")


class _Resolver:
    """One reading of one page; ``faults`` fills up on the way and is raised at the end."""

    def __init__(
        self,
        file: Path,
        tree: dict[str, Any],
        overrides: dict[str, Any],
        faults: list[str],
        included: list[str],
        overridden: bool,
    ) -> None:
        self.file, self.faults, self.overridden = file, [*faults, *included], overridden
        self.notes: list[str] = []
        self.left_out: list[str] = []
        self.knob_overrides: dict[str, Any] = {}
        self._plain_of: dict[str, dict[str, Any]] = {}
        missing = {"include"} if included else set()
        self.whole, told, places = read_keys(self._with_page_overrides(tree, overrides))
        self.broken = places | missing  # those of the page that could not be read
        self.page, self.space, follow = without_space(self.whole, self.broken)
        self.faults += told + follow

    def resolve(self) -> Sweep:
        page = self.page
        seeds = self._told(seeds_of(page))
        parsed = self._told(ties_of(page))
        constraints = self._told(constraints_of(page))
        conditions = self._told(conditions_of(self.whole, self.broken))
        self.faults += [
            *path_faults(self.whole, parsed, self.knob_overrides, self.broken),
            *design_faults(page, self.broken),
            *seed_faults(page, seeds, self.broken),
            *budget_faults(page, self.broken),
        ]
        self.notes += override_notes(page, self.knob_overrides)
        base = self._base()
        arms, factors = self._arms(base, conditions, len(seeds))
        resolved: list[tuple[Arm, RunConfig]] = []
        trials: list[Trial] = []
        template = None
        if base is not None:
            resolved = self._configs(arms, parsed, constraints, base)
            self.faults += scheduler_faults(self.whole, [cfg for _, cfg in resolved])
            texts = {target: ast.unparse(node) for target, node in parsed.items()}
            kept = tuple(section.require for section, _ in constraints)
            template = Template(base, texts, kept, tuple(conditions))
            if self.space:
                self.faults += space_faults(self.space, template)
            if not self.faults:
                trials = [trial_of(arm.name, seed, cfg) for seed in seeds for arm, cfg in resolved]
                self.faults += trial_faults(trials, page.resources.gpus)
        if self.faults:
            raise ConfigError(str(self.file), self.faults)
        return Sweep(
            name=page.name,
            file=str(self.file),
            findings=tuple(sorted(set(page.findings))),
            axes={path: tuple(values) for path, values in self._axes(factors, arms).items()},
            arms=tuple(arm for arm, _ in resolved),
            seeds=tuple(seeds),
            trials=tuple(trials),
            groups=tuple(factor.paths for factor in factors) or tuple((path,) for path in self._axes(factors, arms)),
            tied=tuple(page.ties),
            cpus=page.resources.cpus,
            gpus=page.resources.gpus,
            memory_gb=page.resources.memory_gb,
            hang_minutes=page.resources.hang_minutes,
            minutes=page.budget.minutes,
            notes=tuple(self.notes),
            search=page.search,
            scheduler=page.scheduler,
            budget=page.budget,
            space=self.space,
            template=template if self.space else None,
            left_out=tuple(self.left_out),
            accept=dict(page.accept),
            overridden=self.overridden,
            listed=page.design == "list",
        )

    def _told(self, found: tuple[T, list[str]]) -> T:
        """The first of a pair, whose second are faults."""
        self.faults += found[1]
        return found[0]

    # --- the page itself ---

    def _with_page_overrides(self, tree: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
        """Page keys of ``--set`` into the tree; the others are knobs of the base."""
        tree = json.loads(json.dumps(tree, default=str))
        for path, value in overrides.items():
            head, _, rest = path.partition(".")
            if path in HERE:
                self.faults.append(f"--set {path}: the sweep page decides this; use --set {HERE[path]}=...")
            elif head not in SweepPage.model_fields:
                self.knob_overrides[path] = value
            elif not rest:
                tree[head] = value
            else:
                node = tree.setdefault(head, {})
                if head == "arms" and "." in rest:  # arms.NAME.dotted.path
                    name, _, rest = rest.partition(".")
                    node = node.setdefault(name, {}) if isinstance(node, dict) else node
                if isinstance(node, dict):
                    node[rest] = value
                else:
                    self.faults.append(f"--set {path}: '{head}' is a value on this page, not a section.")
        return tree

    # --- arms and runs ---

    def _arms(
        self, base: dict[str, Any] | None, conditions: Sequence[Condition], seeds: int
    ) -> tuple[list[Arm], list[Factor]]:
        """The arms of the design, those that differ only in an axis that does not apply once, then the named ones."""
        page = self.page
        # An empty or unknown axis has been told already.
        factors = self._told(factors_of(page, self.broken))
        arms = []
        if page.axes or page.settings or not page.arms or self.space:
            before = combinations(self._within_limits(factors, seeds), factors)[:MOST_TRIALS]
            if base is not None:
                self._judge(conditions, base, before)
            here = [] if self.space else conditions  # a search judges them for every setting that it proposes
            after = [applicable(each, here, self._plain(base, each)) for each in before] if here else before
            kept = merged(after, before)
            if len(kept) < len(before):
                gone = len(before) - len(kept)
                self.left_out.append(
                    f"when: {gone} of {len(before)} combinations differ from another one only in an axis that does not "
                    f"apply to them; each is one arm with it."
                )
            for place, changes in enumerate(kept):
                shown = changes
                if page.design == "one_at_a_time" and place:
                    shown = {path: value for path, value in changes.items() if kept[0].get(path) != value} or changes
                name = label(shown) if place or page.design != "one_at_a_time" else ""
                arms.append(Arm(name or "base", changes, True))
        labels = {arm.name for arm in arms}
        for name, changes in page.arms.items():
            if name in labels:
                self.faults.append(f"arms.{name}: an arm of the axes has this name already; choose another.")
            if not name.strip() or len(name) > 100:
                self.faults.append(f"arms.{name!r}: a name has 1 to 100 characters.")
            arms.append(Arm(name, as_knobs(flatten(changes)), False))
        return arms, factors

    def _within_limits(self, factors: Sequence[Factor], seeds: int) -> SweepPage:
        """The page; of one that asks for too much, a design in which every value can still be looked at."""
        fault = size_fault(self.page, factors, seeds)
        if fault is None:
            return self.page
        self.faults += [] if lost(self.broken, "zip") or lost(self.broken, "design") else [fault]
        return self.page.model_copy(update={"design": "one_at_a_time"}) if factors else self.page

    def _judge(
        self, conditions: Sequence[Condition], base: dict[str, Any], before: Sequence[Mapping[str, Any]]
    ) -> None:
        """Tell which values of the conditions no arm has. With ``--set`` an axis may well lose what they ask for."""
        conditional = {condition.path for condition in conditions}

        def held(knob: str) -> list[Any]:
            axis = self.space.get(knob, [])
            found = list(axis) if isinstance(axis, list) else [axis]
            for each in before:
                plain = self._plain(base, each).get(knob)
                values = [each.get(knob, plain), plain] if knob in conditional else [each.get(knob, plain)]
                found += [value for value in values if value not in found]
            return found

        known = [each for each in conditions if not any(lost(self.broken, "axes", knob) for knob in each.allowed)]
        impossible, never, idle = unmet(known if not lost(self.broken, "settings") else [], base, held)
        self.faults += impossible + ([] if self.overridden else never)
        self.notes += idle + (never if self.overridden else [])

    def _plain(self, base: dict[str, Any] | None, changes: Mapping[str, Any]) -> dict[str, Any]:
        """What every knob is where an arm does not change it; of a base that is at fault, the defaults."""
        name = {path: value for path, value in changes.items() if path == "env.name"}
        if (key := repr(name)) not in self._plain_of:
            try:
                self._plain_of[key] = leaves(apply_overrides(base or {}, name, ""))
            except ConfigError:
                self._plain_of[key] = RunConfig().flat()
        return self._plain_of[key]

    def _axes(self, factors: list[Factor], arms: list[Arm]) -> dict[str, list[Any]]:
        if self.page.design != "list":
            axes = self.page.levels()
            values = {path: axes[path] for factor in factors for path in factor.paths}
            return {path: [as_knob(path, value) for value in listed] for path, listed in values.items()}
        found: dict[str, list[Any]] = {}
        for arm in arms:
            for path, value in arm.changes.items() if arm.grid else ():
                if value not in (listed := found.setdefault(path, [])):
                    listed.append(value)
        return found

    def _base(self) -> dict[str, Any] | None:
        """The tree of the base page with ``--set`` applied; None where it cannot be read."""
        if self.page.base is None:
            if not lost(self.broken, "base"):
                self.faults.append("base: missing; name the experiment page that every arm starts from.")
            return None
        file = self.file.parent / self.page.base
        try:
            if is_sweep_page(scan_page(file)[0]):
                self.faults.append(f"base: {file} is itself a sweep page; name an experiment page.")
                return None
            tree, twice = scan_experiment(file)
            self.faults += [f"base: {file}: {fault}" for fault in twice]
            if "seed" in tree:
                self.notes.append(f"seed: {tree['seed']} of the base page is not used: the sweep's seeds are.")
            overrides = {path: value for path, value in self.knob_overrides.items() if knows(path)}
            if self.page.on_collapse is not None:
                overrides["detect.on_collapse"] = self.page.on_collapse
            return apply_overrides(tree, overrides, str(file))
        except ConfigError as error:
            self.faults += [
                f"{fault if fault.startswith('base:') else f'base: {error.where}: {fault}'}" for fault in error.faults
            ]
            return None

    def _configs(
        self,
        arms: list[Arm],
        parsed: Mapping[str, ast.expr],
        constraints: list[Constraint],
        base: dict[str, Any],
    ) -> list[tuple[Arm, RunConfig]]:
        """The arms that keep the constraints, with one config each. Faults are gathered; a fault of all arms is told
        once, at its place on the page."""
        unread = {target for target, node in parsed.items() if not {target, *ties.paths(node)} <= set(known())}
        unread |= {*self.page.ties} - {*parsed}
        unread |= {place.partition(".")[2] for place in self.broken if place.startswith(("ties.", "axes."))}
        if not self.broken.isdisjoint({"ties", "axes", "include"}):
            constraints = []  # whatever they read may be said there
        of_arm: list[tuple[str, list[str]]] = []
        kept = []
        dropped: dict[str, list[str]] = {}
        for arm in arms:
            changes = {path: value for path, value in arm.changes.items() if knows(path)}
            try:
                tree, values, missing, faults = tied(apply_overrides(base, changes, arm.name), parsed, unread)
                readable = [each for each in constraints if not ties.paths(each[1]) & missing]
                gone, unclear = broken(readable, tree) if readable else ([], [])
            except ConfigError as error:
                of_arm.append((arm.name, error.faults))
                continue
            if gone and gone[0].otherwise == "drop" and arm.grid:
                dropped.setdefault(gone[0].require, []).append(arm.name)
                continue
            named = "" if arm.grid else " A named arm is not dropped: change it, or the constraint."
            faults += [f"constraints: {section.require} does not hold.{named}" for section in gone]
            cfg, wrong = (None, []) if gone else config_of(tree, missing)  # it may break rules across knobs as well
            faults += [*unclear, *wrong]
            of_arm.append((arm.name, faults))
            if cfg is not None and not faults:
                kept.append((Arm(arm.name, {**changes, **values}, arm.grid), cfg))
        for text, names in dropped.items():
            self.left_out.append(f"constraints: {text} leaves out {len(names)} of {len(arms)} arms: {shown(names)}.")
        self.faults += placed(of_arm, len(arms), lambda fault: self._everywhere(fault, arms))
        if dropped and len(of_arm) == 0 and not self.broken:
            self.faults.append("constraints: no arm is left; loosen one of them, or change the axes.")
        return kept

    def _everywhere(self, fault: str, arms: Sequence[Arm]) -> str:
        """A fault that all arms have, with the place on the page that it comes from."""
        path = fault.partition(":")[0]
        every = "in every arm; " if len(arms) > 1 else ""
        if path in self.whole.axes:
            return f"axes.{fault}"
        if path in self.knob_overrides:
            return f"--set {fault}" + (" (in every arm)" if every else "")
        if all(path in arm.changes for arm in arms):
            return f"arm{'s' if len(arms) > 1 else ''} {shown([arm.name for arm in arms], repr)}: {fault}"
        if path in self.page.ties:
            return f"{fault} ({every}by ties.{path})"
        if path.startswith("ties.") or path == "constraints":
            return fault + (" (in every arm)" if every else "")
        return f"{fault} ({every}base page {self.file.parent / (self.page.base or '')})"
