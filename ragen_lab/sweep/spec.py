"""The sweep page: YAML -> arms and trials, each with its complete RunConfig.

Every fault of a page is told at once, those of every resolved run included; a fault that all arms
share is told once.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ragen_lab.config import RunConfig, apply_overrides, build, flatten, knobs, load, suggest
from ragen_lab.errors import ConfigError
from ragen_lab.page import read_value, scan_page
from ragen_lab.sections import Section, knob
from ragen_lab.sweep import ties

MOST_SEEDS = 1000
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
Finding = Annotated[int, Field(ge=1, le=6)]
SeedNumber = Annotated[int, Field(ge=0, lt=2**31)]


class SearchSection(Section):
    kind: Literal["grid"] = knob("grid", "How the axes are walked: 'grid' takes every combination.")


class SchedulerSection(Section):
    kind: Literal["fifo"] = knob("fifo", "'fifo' runs every trial to its end (or to its collapse).")


class ResourcesSection(Section):
    cpus: float = knob(1.0, "CPU cores per trial.", gt=0)
    gpus: float = knob(0.0, "GPUs per trial; fractions share one. 0 hides the GPUs from a trial.", ge=0)
    memory_gb: float | None = knob(
        None, "Memory of a trial's process at most, in 10^9 bytes; one that takes more is ended and retried.", gt=0
    )
    hang_minutes: float | None = knob(
        None, "A trial without a new iteration for so long is ended and retried from its checkpoint.", gt=0
    )


class BudgetSection(Section):
    minutes: float | None = knob(None, "Wall clock of one call; what is unfinished goes on next time.", gt=0)


class SweepPage(Section):
    """The keys of a sweep page."""

    name: str = Field(pattern=NAME, description="Letters, digits, '_', '-' and '.'; the default is the file's name.")
    base: str | None = knob(None, "The page that every arm starts from, relative to this page.", min_length=1)
    findings: list[Finding] = knob([], "Which claims (1 to 6) these runs can speak to.")
    axes: dict[str, list[Any]] = knob({}, "Dotted knob -> values; the arms are all combinations.")
    arms: dict[str, dict[str, Any]] = knob({}, "Named arms beside the grid: name -> knobs that they change.")
    ties: dict[str, str | int | float] = knob({}, "Dotted knob -> arithmetic over other knobs.")
    seeds: SeedNumber | list[SeedNumber] = knob(1, "Replicates per arm: how many, or which seeds.")
    search: SearchSection = SearchSection()
    scheduler: SchedulerSection = SchedulerSection()
    on_collapse: Literal["stop", "continue"] | None = knob(
        None, "'stop' ends collapsed runs, 'continue' only logs alarms; default: the base's detect.on_collapse."
    )
    resources: ResourcesSection = ResourcesSection()
    budget: BudgetSection = BudgetSection()


# Words of the design that this version does not act on: told apart from plain mistakes.
_NOT_BUILT = {
    "search.kind": ("random", "optuna"),
    "scheduler.kind": ("asha", "median"),
    "on_collapse": ("rollback",),
    "budget.trials": None,
    "budget.gpu_hours": None,
}
_HERE = {"seed": "seeds", "detect.on_collapse": "on_collapse"}  # knobs that the page itself sets


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
    grows: bool = False  # trials that earlier calls asked for stay in it

    def cfg_of(self, arm: str) -> RunConfig:
        """The config of an arm with the sweep's first seed."""
        return next(trial.cfg for trial in self.trials if trial.arm == arm)


def is_sweep_page(tree: Mapping[str, Any]) -> bool:
    """Whether a page is meant as a sweep: it has a key that only sweep pages have."""
    return any(key in SweepPage.model_fields for key in tree)


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
        self.page = self._page(self._with_page_overrides(tree, overrides))

    def resolve(self) -> Sweep:
        page = self.page
        seeds = self._seeds()
        parsed = self._ties()
        self._check_paths(parsed)
        arms = self._arms()
        base = self._base()
        trials: list[Trial] = []
        if base is not None:
            configs = self._configs(arms, parsed, base)
            arms = [Arm(arm.name, changes, arm.grid) for arm, changes in zip(arms, self._changes, strict=True)]
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
            axes={path: tuple(values) for path, values in page.axes.items()},
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
        )

    # --- the page itself ---

    def _with_page_overrides(self, tree: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
        """Page keys of ``--set`` into the tree; the others are knobs of the base."""
        tree = json.loads(json.dumps(tree, default=str))
        for path, value in overrides.items():
            head, _, rest = path.partition(".")
            if path in _HERE:
                self.faults.append(f"--set {path}: the sweep page decides this; use --set {_HERE[path]}=...")
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

    def _page(self, tree: dict[str, Any]) -> SweepPage:
        """The validated page; keys at fault are told and then left out, so that the rest is looked at too."""
        try:
            return SweepPage.model_validate(tree)
        except ValidationError as error:
            broken = set()
            seen = set()
            for item in error.errors():
                path = ".".join(str(part) for part in item["loc"])
                broken.add(str(item["loc"][0]))
                if item["loc"][0] == "seeds":  # a union: pydantic tells one fault per member
                    path, text = "seeds", "give a number of replicates (at least 1), or a list of whole seeds from 0"
                    fault = f"seeds: got {tree['seeds']!r}; {text}."
                else:
                    fault = self._page_fault(path, item)
                if fault not in seen:
                    self.faults.append(fault)
                seen.add(fault)
            kept = {key: value for key, value in tree.items() if key not in broken}
            kept.setdefault("name", "unnamed")
            return SweepPage.model_validate(kept)

    def _page_fault(self, path: str, item: Any) -> str:
        got = item.get("input")
        if path in _NOT_BUILT:
            words = _NOT_BUILT[path]
            if words is None or got in words:
                return f"{path}: {got!r} is not built in this version; allowed: {self._allowed(path)}."
        if item["type"] == "extra_forbidden":
            head, _, leaf = path.rpartition(".")
            section = SweepPage.model_fields[head].annotation if head in SweepPage.model_fields else SweepPage
            fields = list(getattr(section, "model_fields", SweepPage.model_fields))
            hint = suggest(leaf or path, fields)
            where = ""
            if not head and path in RunConfig.model_fields:
                where = " Knobs of a run belong into the base page, or under axes or arms."
            return f"{path}: unknown key.{hint}{where} Allowed here: {', '.join(fields)}."
        if item["type"] == "literal_error":
            return f"{path}: got {got!r}; allowed: {self._allowed(path)}."
        message = item["msg"][0].lower() + item["msg"][1:]
        return f"{path}: got {got!r}; {message.replace('input ', '', 1)}. Its meaning: {_describe(path)}"

    @staticmethod
    def _allowed(path: str) -> str:
        return {"search.kind": "grid", "scheduler.kind": "fifo", "on_collapse": "stop, continue"}.get(path, "minutes")

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
            if path in _HERE:
                self.faults.append(f"{where}: set this with the page's own key '{_HERE[path]}'.")
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

    def _arms(self) -> list[Arm]:
        page = self.page
        arms = []
        if page.axes or not page.arms:
            # An empty or unknown axis has been told already.
            axes = {path: values for path, values in page.axes.items() if values and self._knows(path)}
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
                        value = ties.compute(node, self._values(tree))
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

    @staticmethod
    def _values(tree: dict[str, Any]) -> dict[str, Any]:
        """Every leaf of a tree with defaults filled in, for ties; rules across fields are not judged yet."""
        try:
            return RunConfig.model_validate(tree).flat()
        except ValidationError:
            build(tree, "")  # raises the same as plain sentences
            raise

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


def _describe(path: str) -> str:
    section: Any = SweepPage
    description = "a key of the sweep page."
    for part in path.split("."):
        field = getattr(section, "model_fields", {}).get(part)
        if field is None:
            break
        description, section = field.description or description, field.annotation
    return description
