"""The sweep page: YAML -> arms and trials, each with its complete RunConfig.

Every fault of a page is told at once, those of every resolved run included; a fault that all arms
share is told once.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from ragen_lab.config import RunConfig, apply_overrides, build, flatten, knobs, load, suggest
from ragen_lab.errors import ConfigError
from ragen_lab.page import read_value, scan_page
from ragen_lab.sections import Section
from ragen_lab.sweep import ties
from ragen_lab.sweep.page_keys import HERE, MOST_SEEDS, NAME, SweepPage, is_sweep_page, read_keys
from ragen_lab.sweep.search_page import BudgetSection, Range, SchedulerSection, SearchSection, rungs
from ragen_lab.sweep.template import Template, leaves


@dataclass(frozen=True)
class Arm:
    """One setting of a sweep. ``changes``: the knobs in which it departs from the base, ties included."""

    name: str
    changes: dict[str, Any]
    grid: bool  # from the axes, not a named control


@dataclass(frozen=True)
class Trial:
    """One arm with one seed."""

    arm: str
    seed: int
    cfg: RunConfig
    trial_id: str


@dataclass(frozen=True)
class Sweep:
    """A resolved page: every trial complete. ``trials``: the first seed of every arm comes first."""

    name: str
    file: str
    findings: tuple[int, ...]
    axes: dict[str, tuple[Any, ...]]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
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
    template: Template | None = None  # what every arm of the page starts from
    grows: bool = False  # trials that earlier calls asked for stay in it

    def cfg_of(self, arm: str) -> RunConfig:
        """The config of an arm with the sweep's first seed."""
        return next(trial.cfg for trial in self.trials if trial.arm == arm)


def load_sweep(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Read and resolve a sweep page. ``overrides``: page keys (``seeds``) or knobs of the base (``optim.lr``).

    Raises ConfigError with every fault of the page and of every run it asks for.
    """
    file = Path(path)
    tree, twice = scan_page(file)
    tree.setdefault("name", file.stem)
    return _Resolver(file, tree, dict(overrides or {}), twice).resolve()


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
        raise ConfigError("--set", [f"name: got {name!r}; letters, digits, '_', '-' and '.', 100 at most."])
    cfg = load(file, changes)
    mine = cfg.identity()
    try:
        plain = load(file).identity()
    except ConfigError:  # a page that needs its overrides
        plain = {}
    told = {path: value for path, value in changes.items() if path != "seed" and mine.get(path) != plain.get(path)}
    arm = _label(told)[:100] or "run"
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
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            faults.append(f"{text!r}: write PATH=VALUE, for example optim.lr=1e-3.")
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


class _Resolver:
    """One reading of one page; ``faults`` fills up on the way and is raised at the end."""

    def __init__(self, file: Path, tree: dict[str, Any], overrides: dict[str, Any], faults: list[str]) -> None:
        self.file, self.faults = file, list(faults)
        self.notes: list[str] = []
        self.known = list(knobs())
        self.knob_overrides: dict[str, Any] = {}
        self.page = self._read(self._with_page_overrides(tree, overrides))

    def resolve(self) -> Sweep:
        page = self.page
        seeds = self._seeds()
        parsed = self._ties()
        self._check_paths(parsed)
        arms = self._arms()
        base = self._base()
        trials: list[Trial] = []
        template = None
        if base is not None:
            configs = self._configs(arms, parsed, base)
            arms = [Arm(arm.name, changes, arm.grid) for arm, changes in zip(arms, self._changes, strict=True)]
            template = Template(base, {target: ast.unparse(node) for target, node in parsed.items()})
            if configs:
                self._check_search(template, configs)
            if not self.faults:
                pairs = list(zip(arms, configs, strict=True))
                trials = [self._trial(arm.name, seed, cfg) for seed in seeds for arm, cfg in pairs]
                self._check_distinct(trials)
        if self.faults:
            raise ConfigError(str(self.file), self.faults)
        return Sweep(
            name=page.name,
            file=str(self.file),
            findings=tuple(sorted(set(page.findings))),
            axes={path: tuple(values) for path, values in self._levels().items()},
            arms=tuple(arms),
            seeds=tuple(seeds),
            trials=tuple(trials),
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
            space=dict(page.axes) if page.search.kind != "grid" else {},
            template=template,
        )

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

    def _read(self, tree: dict[str, Any]) -> SweepPage:
        page, faults = read_keys(tree)
        self.faults += faults
        return page

    def _seeds(self) -> list[int]:
        seeds = self.page.seeds
        if isinstance(seeds, int):
            if seeds < 1:
                self.faults.append("seeds: got 0; give at least 1 replicate, for example seeds: 3.")
            if seeds > MOST_SEEDS:
                self.faults.append(
                    f"seeds: got {seeds}; at most {MOST_SEEDS} replicates per sweep. For particular seeds give a list, "
                    f"for example seeds: [0, 1, 2]."
                )
            return list(range(min(seeds, MOST_SEEDS)))
        if not seeds:
            self.faults.append("seeds: the list is empty; give at least one seed, or a number of replicates.")
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            told = ", ".join(map(str, twice))
            self.faults.append(f"seeds: {told} is there twice; a replicate with the same seed is the same run.")
        return seeds

    def _ties(self) -> dict[str, Any]:
        """Target -> parsed expression, in an order in which each can be computed."""
        parsed = {}
        for target, text in self.page.ties.items():
            try:
                parsed[target] = ties.parse(str(text))
            except ties.TieError as error:
                self.faults.append(f"ties.{target}: {error}")
        reads = {target: ties.paths(node) & set(parsed) for target, node in parsed.items()}
        try:
            order = list(TopologicalSorter(reads).static_order())
        except CycleError as error:
            self.faults.append(f"ties: {' -> '.join(error.args[1])} go round in a circle; give one of them a value.")
            return {}
        return {target: parsed[target] for target in order}

    def _knows(self, path: str) -> bool:
        """Whether it is a knob; the options of an outside environment are its own affair."""
        return path in self.known or path.startswith("env.options.")

    def _check_paths(self, parsed: Mapping[str, Any]) -> None:
        page = self.page
        named = [(f"axes.{path}", path) for path in page.axes]
        named += [(f"arms.{arm}.{path}", path) for arm, changes in page.arms.items() for path in flatten(changes)]
        named += [(f"ties.{path}", path) for path in page.ties]
        named += [(f"--set {path}", path) for path in self.knob_overrides]
        for where, path in named:
            if path in HERE:
                self.faults.append(f"{where}: set this with the page's own key '{HERE[path]}'.")
            elif not self._knows(path):
                section = [knob for knob in self.known if knob.startswith(path + ".")]
                hint = f" It is a section; name a knob of it, for example {section[0]}." if section else ""
                pages = list(SweepPage.model_fields) if where.startswith("--set") and "." not in path else []
                hint = hint or suggest(path, [*pages, *self.known])
                self.faults.append(f"{where}: no such knob.{hint} `ragen-lab list knobs` shows them all.")
        for target, node in parsed.items():
            for path in sorted(ties.paths(node)):
                if not self._knows(path):
                    self.faults.append(f"ties.{target}: reads '{path}', which is no knob.{suggest(path, self.known)}")
        for path, values in page.axes.items():
            if isinstance(values, Range):
                continue
            if not values:
                self.faults.append(f"axes.{path}: the axis is empty; give at least one value, or remove it.")
            twice = [value for position, value in enumerate(values) if value in values[:position]]
            if twice:
                self.faults.append(f"axes.{path}: {', '.join(_text(value) for value in twice)} is there twice.")
            if path in self.knob_overrides:
                self.faults.append(f"--set {path}: is an axis of this page; use --set 'axes.{path}=[...]'.")
        for path in page.ties:
            setters = [f"axes.{path}"] if path in page.axes else []
            setters += [f"arms.{arm}" for arm, changes in page.arms.items() if path in flatten(changes)]
            setters += [f"--set {path}"] if path in self.knob_overrides else []
            if setters:
                self.faults.append(f"ties.{path}: is also set by {', '.join(setters)}; keep one of them.")
        for path in self.knob_overrides:
            arms = [arm for arm, changes in page.arms.items() if path in flatten(changes)]
            if arms:
                self.notes.append(f"--set {path} does not reach {', '.join(arms)}, which set it themselves.")

    # --- arms and runs ---

    def _levels(self) -> dict[str, list[Any]]:
        """The axes of a grid. A search proposes its settings while it runs; the base itself is its first arm."""
        if self.page.search.kind != "grid":
            return {}
        return {path: values for path, values in self.page.axes.items() if not isinstance(values, Range)}

    def _check_search(self, template: Template, configs: Sequence[RunConfig]) -> None:
        """What a search, and a scheduler that compares settings, need of the page."""
        page = self.page
        ranges = [path for path, values in page.axes.items() if isinstance(values, Range)]
        if page.search.kind == "grid":
            self.faults += [
                f"axes.{path}: a grid needs a list of values; for a range choose search: {{kind: optuna, trials: 20}}."
                for path in ranges
            ]
        elif not page.axes:
            self.faults.append("axes: empty; a search needs at least one axis to vary.")
        else:
            for path, values in page.axes.items():
                for value in (values.low, values.high) if isinstance(values, Range) else values:
                    try:
                        template.resolve({path: value}, path)
                    except (ConfigError, ties.TieError) as error:
                        told = error.faults if isinstance(error, ConfigError) else [str(error)]
                        self.faults += [f"axes.{path}: {fault}" for fault in told if fault.startswith(f"{path}:")]
        if page.scheduler.kind != "fifo":
            if len({(cfg.train.iterations, cfg.eval.every) for cfg in configs}) > 1 or {
                "train.iterations",
                "eval.every",
            } & set(page.axes):
                self.faults.append(
                    f"scheduler.kind: {page.scheduler.kind} compares settings at the same iterations, so that all arms "
                    f"need the same train.iterations and eval.every; use fifo."
                )
            elif len(rungs(page.scheduler, configs[0].train.iterations, configs[0].eval.every)) < 2:
                self.faults.append(
                    f"scheduler.first: leaves no comparison before iteration {configs[0].train.iterations}; give less, "
                    f"or more train.iterations."
                )

    def _arms(self) -> list[Arm]:
        page = self.page
        arms = []
        if page.axes or not page.arms:
            # An empty or unknown axis has been told already.
            axes = {path: values for path, values in self._levels().items() if values and self._knows(path)}
            for values in itertools.product(*axes.values()):
                changes = dict(zip(axes, values, strict=True))
                arms.append(Arm(_label(changes) or "base", changes, True))
        labels = {arm.name for arm in arms}
        for name, changes in page.arms.items():
            if name in labels:
                self.faults.append(f"arms.{name}: an arm of the axes has this name already; choose another.")
            if not name.strip() or len(name) > 100:
                self.faults.append(f"arms.{name!r}: a name has 1 to 100 characters.")
            arms.append(Arm(name, flatten(changes), False))
        return arms

    def _base(self) -> dict[str, Any] | None:
        """The tree of the base page with ``--set`` applied; None where it cannot be read."""
        if self.page.base is None:
            if not any(fault.startswith("base:") for fault in self.faults):
                self.faults.append("base: missing; name the experiment page that every arm starts from.")
            return None
        file = self.file.parent / self.page.base
        try:
            tree, twice = scan_page(file)
            self.faults += [f"base: {file}: {fault}" for fault in twice]
            if is_sweep_page(tree):
                self.faults.append(f"base: {file} is itself a sweep page; name an experiment page.")
                return None
            if "seed" in tree:
                self.notes.append(f"seed: {tree['seed']} of the base page is not used: the sweep's seeds are.")
            overrides = {path: value for path, value in self.knob_overrides.items() if self._knows(path)}
            if self.page.on_collapse is not None:
                overrides["detect.on_collapse"] = self.page.on_collapse
            return apply_overrides(tree, overrides, str(file))
        except ConfigError as error:
            self.faults += [f"base: {error.where}: {fault}" for fault in error.faults]
            return None

    def _configs(self, arms: list[Arm], parsed: Mapping[str, Any], base: dict[str, Any]) -> list[RunConfig]:
        """One config per arm, its faults gathered; a fault of all arms is told once, as the base's."""
        of_arm: list[tuple[str, list[str]]] = []
        configs = []
        self._changes: list[dict[str, Any]] = []
        for arm in arms:
            changes = {path: value for path, value in arm.changes.items() if self._knows(path)}
            try:
                tree = apply_overrides(base, changes, arm.name)
                for target, node in parsed.items():
                    if {target, *ties.paths(node)} <= set(self.known):
                        value = ties.compute(node, leaves(tree))
                        tree = apply_overrides(tree, {target: value}, arm.name)
                        changes[target] = value
                configs.append(build(tree, arm.name))
            except ties.TieError as error:
                of_arm.append((arm.name, [f"ties: {error}"]))
            except ConfigError as error:
                of_arm.append((arm.name, error.faults))
            self._changes.append(changes)
        base_file = self.file.parent / (self.page.base or "")
        told: list[str] = []
        for _, faults in of_arm:
            for fault in faults:
                where = [name for name, theirs in of_arm if fault in theirs]
                if len(where) == len(arms):
                    text = f"{fault} ({'in every arm; ' if len(arms) > 1 else ''}base page {base_file})"
                else:
                    text = f"arm{'s' if len(where) > 1 else ''} {', '.join(map(repr, where))}: {fault}"
                if text not in told:
                    told.append(text)
        self.faults += told
        return configs

    def _trial(self, arm: str, seed: int, cfg: RunConfig) -> Trial:
        seeded = cfg.model_copy(update={"seed": seed})  # both have been validated: once per arm, not per seed
        return Trial(arm, seed, seeded, seeded.trial_id())

    def _check_distinct(self, trials: list[Trial]) -> None:
        owner: dict[str, Trial] = {}
        for trial in trials:
            first = owner.setdefault(trial.trial_id, trial)
            if first is trial:
                continue
            same = first.cfg == trial.cfg
            why = "equal in every knob" if same else "equal in every knob that can change their numbers"
            fault = f"arms: {first.arm!r} and {trial.arm!r} are the same run ({why}); remove one."
            if fault not in self.faults:
                self.faults.append(fault)
        for cfg in {trial.arm: trial.cfg for trial in trials}.values():
            if cfg.policy.device.startswith("cuda") and self.page.resources.gpus == 0:
                self.faults.append(
                    f"resources.gpus: 0, but policy.device is {cfg.policy.device!r}; give each trial a GPU or a "
                    f"share of one, for example resources: {{gpus: 1}}."
                )
                break


def _label(changes: Mapping[str, Any]) -> str:
    """'keep_ratio=0.5, lr=0.001'; a knob by its whole path where its last part is ambiguous."""
    lasts = [path.rsplit(".", 1)[-1] for path in changes]
    words = [
        f"{last if lasts.count(last) == 1 else path}={_text(value)}"
        for (path, value), last in zip(changes.items(), lasts, strict=True)
    ]
    return ", ".join(words)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
