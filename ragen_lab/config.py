"""RunConfig: one complete run; reading it, its identity, and the rules between its knobs.

The knobs themselves, with their defaults and bounds, are in ``sections.py``.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from ragen_lab.errors import ConfigError
from ragen_lab.page import scan_experiment
from ragen_lab.redaction import REFUSED, redact, without_secrets
from ragen_lab.sections import (
    ENV_SECTIONS,
    PUBLISHED,
    REASONING_NAMES,
    SCHEMA_VERSION,
    URI_SCHEMES,
    AlgoSection,
    DetectSection,
    EnvSection,
    EvalSection,
    FilterSection,
    FrozenLakeSection,
    OptimSection,
    OutsideSection,
    PolicySection,
    PromptSection,
    RewardSection,
    RolloutSection,
    Section,
    TrackSection,
    TrainSection,
    canonical,
    knob,
    outside_names,
    unreadable,
)


class RunConfig(Section):
    """One complete run. Frozen; equal configs have equal ``trial_id``."""

    policy: PolicySection = PolicySection()
    env: EnvSection = FrozenLakeSection()
    prompt: PromptSection = PromptSection()
    rollout: RolloutSection = RolloutSection()
    reward: RewardSection = RewardSection()
    filter: FilterSection = FilterSection()
    algo: AlgoSection = AlgoSection()
    optim: OptimSection = OptimSection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    detect: DetectSection = DetectSection()
    track: TrackSection = TrackSection()
    seed: int = knob(0, "Seed of everything that this run draws.", ge=0, lt=2**31)

    def with_overrides(self, overrides: dict[str, Any], where: str = "overrides") -> RunConfig:
        """This config with dotted paths replaced. Raises ConfigError naming every fault at once."""
        return build(apply_overrides(self.model_dump(), overrides, where), where)

    def flat(self) -> dict[str, Any]:
        """Dotted path -> plain value, for every leaf, in page order."""
        return flatten(self.model_dump())

    def identity(self) -> dict[str, Any]:
        """The flat leaves that can change this run's numbers and are not at their default."""
        leaves = dict(_identity_leaves(self))
        if horizon_knobs(self):
            leaves["train.iterations"] = self.train.iterations
        leaves["env.name"] = self.env.name
        return leaves

    def trial_id(self) -> str:
        """First 12 hex digits of the SHA-256 of the identity, seed and schema version."""
        return _digest({**self.identity(), "seed": self.seed, "schema": SCHEMA_VERSION})

    def config_id(self) -> str:
        """The trial id without the seed: equal for all replicates of one arm."""
        leaves = {path: value for path, value in self.identity().items() if path != "seed"}
        return _digest({**leaves, "schema": SCHEMA_VERSION})


def horizon_knobs(cfg: RunConfig) -> list[str]:
    """The knobs by which train.iterations reaches the numbers: with one of them a longer run is another run."""
    return scheduled({"optim.schedule": cfg.optim.schedule, "algo.entropy_schedule": cfg.algo.entropy_schedule})


def scheduled(leaves: Mapping[str, Any]) -> list[str]:
    """Of a run's flat parameters, those by which train.iterations reaches the numbers."""
    return [path for path in ("optim.schedule", "algo.entropy_schedule") if leaves.get(path) == "linear"]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts -> dotted paths; lists are leaves."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            leaves.update(flatten(value, f"{path}."))
        else:
            leaves[path] = value
    return leaves


def _identity_leaves(section: Section, prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            leaves += _identity_leaves(value, f"{prefix}{name}.")
            continue
        extra = info.json_schema_extra
        counts = not isinstance(extra, dict) or extra.get("identity", True)
        if counts and value != info.default:
            leaves.append((f"{prefix}{name}", canonical(value)))
    return leaves


def knobs(cfg: RunConfig | None = None) -> dict[str, str]:
    """Dotted path -> its sentence, for every leaf of ``cfg`` (default: every knob of every environment)."""

    def walk(section: Section, prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, info in type(section).model_fields.items():
            value = getattr(section, name)
            if isinstance(value, Section):
                found.update(walk(value, f"{prefix}{name}."))
            else:
                found[f"{prefix}{name}"] = info.description or ""
        return found

    if cfg is not None:
        return walk(cfg, "")
    found = walk(RunConfig(), "")  # of a name that several environments have, the default environment's sentence
    for section in ENV_SECTIONS.values():
        found = walk(section(), "env.") | found
    found["env.name"] = "The environment: one of `ragen-lab list envs`, or 'module:Class' of another package."
    found["env.options"] = OutsideSection.model_fields["options"].description or ""
    return found


def suggest(word: str, known: list[str]) -> str:
    """' Did you mean X?' for the nearest known word, or nothing."""
    tail = word.rsplit(".", 1)[-1]
    near = [
        path
        for path in difflib.get_close_matches(word, known, n=5, cutoff=0.6)
        # a shared section name alone is no likeness
        if difflib.SequenceMatcher(None, tail, path.rsplit(".", 1)[-1]).ratio() >= 0.6
    ]
    if not near:  # a known leaf under the wrong section: compare the last parts
        near = [path for path in known if path.rsplit(".", 1)[-1] == tail][:1]
    return f" Did you mean '{near[0]}'?" if near else ""


def apply_overrides(tree: dict[str, Any], overrides: dict[str, Any], where: str) -> dict[str, Any]:
    """``tree`` with dotted paths set; unknown paths are left for ``build`` to name."""
    tree = copy.deepcopy(tree)
    faults: list[str] = []
    if "env.name" in overrides:  # first, because it decides which env keys exist
        overrides = {"env.name": overrides["env.name"], **overrides}
        if tree.get("env", {}).get("name") != overrides["env.name"]:
            tree["env"] = {}
    for path, value in overrides.items():
        node = tree
        *parents, leaf = path.split(".")
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                faults.append(f"{path}: '{parent}' is a value, not a section; {_all_paths_hint(path)}")
                break
            node = child
        else:
            if isinstance(node.get(leaf), dict) and not isinstance(value, dict):
                faults.append(f"{path}: is a section; set one of its keys, for example {path}.{next(iter(node[leaf]))}")
                continue
            node[leaf] = value
    if faults:
        raise ConfigError(where, faults)
    return tree


def _all_paths_hint(path: str) -> str:
    return "see `ragen-lab list knobs`." + suggest(path, list(knobs()))


def build(tree: dict[str, Any], where: str) -> RunConfig:
    """Validate a nested dict into a RunConfig. Raises ConfigError with every fault: types, bounds,
    unknown keys and the checks across fields, all at once."""
    try:
        cfg = RunConfig.model_validate(tree)
    except ValidationError as error:
        faults, remaining = _explain(error, tree)
        with suppress(ValidationError):  # what is still well-formed may break a rule across fields: tell that too
            faults += cross_faults(RunConfig.model_validate(remaining))
        raise ConfigError(where, faults) from None
    if faults := cross_faults(cfg):
        raise ConfigError(where, faults)
    return cfg


def _explain(error: ValidationError, tree: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Plain sentences for pydantic's errors, and the tree without the leaves at fault."""
    meanings = _knobs_of(tree)
    known = list(meanings)
    faults: list[str] = []
    remaining = copy.deepcopy(tree)
    for item in error.errors():
        parts = [str(part) for part in item["loc"]]
        if len(parts) > 1 and parts[0] == "env" and parts[1] in (*ENV_SECTIONS, "outside"):
            del parts[1]  # pydantic puts the union's tag into the path
        path = ".".join(parts)
        kind, got = item["type"], item.get("input")
        if kind == "extra_forbidden":
            section = path.rsplit(".", 1)[0]
            siblings = [p for p in known if p.rsplit(".", 1)[0] == section] or [f.split(".")[0] for f in known]
            allowed = ", ".join(sorted({s.rsplit(".", 1)[-1] for s in siblings}))
            faults.append(f"{path}: unknown key.{suggest(path, known)} Allowed here: {allowed}.")
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            name = got.get("name") if isinstance(got, dict) else got
            names = [*ENV_SECTIONS, *outside_names()]
            allowed = f"{', '.join(names)}, or 'module:Class' for one from outside"
            what = f"unknown environment {name!r}" if kind == "union_tag_invalid" else "missing"
            faults.append(f"env.name: {what}.{suggest(str(name), names)} Allowed: {allowed}.")
            remaining.pop("env", None)
            continue
        else:
            message = item["msg"][0].lower() + item["msg"][1:]
            message = message.replace("input ", "", 1)
            if path in meanings:
                faults.append(f"{path}: got {got!r}; {message}. Its meaning: {meanings[path]}")
            elif inside := [name for name in known if name.startswith(f"{path}.")]:
                faults.append(f"{path}: got {got!r}; it is a section and holds keys, for example {inside[0]}.")
            elif kind != "invalid_key":  # scan_page has told a key that is not a word
                faults.append(f"{path}: got {got!r}; {message}.")
        _drop(remaining, parts)
    return faults, remaining


def _knobs_of(tree: dict[str, Any]) -> dict[str, str]:
    """The knobs that a page of this environment has (of every environment, where its name is not known)."""
    env = tree.get("env")
    name = env.get("name", RunConfig().env.name) if isinstance(env, dict) else RunConfig().env.name
    section = ENV_SECTIONS.get(name) if isinstance(name, str) else None
    return knobs() if section is None else knobs(RunConfig.model_construct(env=section()))


def _drop(tree: dict[str, Any], parts: list[str]) -> None:
    node: Any = tree
    for part in parts[:-1]:
        node = node.get(part) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.pop(parts[-1], None)


def kept_count(groups: int, ratio: float) -> int:
    """Groups left by the filter: ``max(1, round(ratio * groups))``, halves rounded up."""
    return max(1, int(ratio * groups + 0.5))


def kept_bounds(section: FilterSection, groups: int) -> tuple[int, int]:
    """Fewest and most groups that the filter keeps of ``groups``; equal where the count is known beforehand."""
    if section.kind in ("std", "random", "smallest"):
        count = kept_count(groups, section.keep_ratio)
        return count, count
    if section.kind == "top_k":
        return min(section.top_k, groups), min(section.top_k, groups)
    return 1, groups


def keeps_all(cfg: RunConfig) -> bool:
    """Whether the filter can drop nothing, whatever the rewards."""
    least, _ = kept_bounds(cfg.filter, cfg.rollout.prompts)
    return least == cfg.rollout.prompts or (cfg.filter.kind == "min_p" and cfg.filter.min_p == 0)


def cross_faults(cfg: RunConfig) -> list[str]:
    """What is wrong between fields that are each fine."""
    faults: list[str] = []
    tiny, rollout, optim = cfg.policy.tiny, cfg.rollout, cfg.optim
    if rollout.responses == 1 and cfg.algo.has_group_baseline:
        faults.append(
            f"rollout.responses: 1 with algo.name {cfg.algo.name} has no group baseline; use at least 2, or "
            "algo.name ppo."
        )
    if rollout.responses == 1 and cfg.filter.kind != "random" and not (keeps_all(cfg) and cfg.filter.resample == 0):
        faults.append(
            f"rollout.responses: 1 with filter.kind {cfg.filter.kind} has no in-group spread; use at least 2, "
            "or filter.kind std with filter.keep_ratio 1 and filter.resample 0, or filter.kind random."
        )
    if cfg.filter.resample and cfg.filter.kind in ("random", "smallest"):
        faults.append(
            f"filter.resample: {cfg.filter.resample} looks for groups that have spread, and filter.kind "
            f"{cfg.filter.kind} is the control that does not; use 0, or another kind."
        )
    if cfg.train.iterations % cfg.eval.every:
        near = max(1, round(cfg.train.iterations / cfg.eval.every)) * cfg.eval.every
        faults.append(
            f"train.iterations: {cfg.train.iterations} is not a multiple of eval.every {cfg.eval.every}, so the "
            f"final policy would not be evaluated; use {near}, or another eval.every."
        )
    if tiny.hidden % tiny.heads or (tiny.hidden // tiny.heads) % 2:
        faults.append(f"policy.tiny.heads: hidden {tiny.hidden} / heads {tiny.heads} must be an even whole number.")
    if tiny.heads % tiny.kv_heads:
        faults.append(f"policy.tiny.kv_heads: {tiny.kv_heads} does not divide heads {tiny.heads}.")
    if cfg.policy.model == "tiny" and cfg.prompt.style == "full":
        faults.append("prompt.style: the tiny model reads no English; use prompt.style compact with policy.model tiny.")
    share = cfg.policy.warm_start.think_share
    if cfg.policy.model == "tiny" and cfg.policy.warm_start.episodes and share == (0.0 if cfg.prompt.think else 1.0):
        shown = "with" if cfg.prompt.think else "without"
        faults.append(
            f"policy.warm_start.think_share: {share:g} never shows the model a reply {shown} a think block, which "
            f"prompt.think {str(cfg.prompt.think).lower()} asks for; use 0.5 for both kinds."
        )
    if rollout.max_new_tokens >= rollout.max_context:
        faults.append(
            f"rollout.max_new_tokens: {rollout.max_new_tokens} leaves no room for a prompt in "
            f"rollout.max_context {rollout.max_context}; lower the one or raise the other."
        )
    rows = kept_bounds(cfg.filter, rollout.prompts)[0] * rollout.responses
    if (updates := optim.updates_per_rollout) is not None and (
        updates % optim.epochs or updates // optim.epochs > rows
    ):
        faults.append(
            f"optim.updates_per_rollout: {updates} must be a multiple of optim.epochs {optim.epochs} and at most "
            f"{rows * optim.epochs} (the {rows} trajectories kept at least, times the epochs)."
        )
    faults += _env_faults(cfg.env)
    uri = cfg.track.mlflow_uri
    why = unreadable(uri or "")
    if uri is not None and (why or urlsplit(uri).scheme.split("+")[0] not in URI_SCHEMES):
        faults.append(
            f"track.mlflow_uri: {redact(uri)!r} {why or 'is no address that MLflow knows'}; it begins with one of "
            f"{', '.join(URI_SCHEMES)}, for example http://localhost:5000. null is the database of the home."
        )
    faults += _eval_faults(cfg)
    faults += _secret_faults(cfg)
    if cfg.detect.level.recovered < cfg.detect.level.fall:
        faults.append("detect.level.recovered: must not be below detect.level.fall.")
    return faults


def _env_faults(env: Any) -> list[str]:
    """Rules between the knobs of one environment."""
    faults: list[str] = []
    if env.name == "sokoban" and 2 * env.boxes + 2 > (inner := (env.size - 2) ** 2):
        faults.append(
            f"env.boxes: {env.boxes} do not fit size {env.size}; at most {(inner - 2) // 2}, or a larger size."
        )
    settings = PUBLISHED.get(env.name, ())
    fits = any(all(getattr(env, key) == value for key, value in setting.items()) for setting in settings)
    if settings and env.eval_levels == "published" and not fits:
        allowed = "; ".join(", ".join(f"{key} {value}" for key, value in setting.items()) for setting in settings)
        faults.append(
            f"env.eval_levels: there are no published levels for this setting, only for: {allowed}. Use auto."
        )
    return faults


def _secret_faults(cfg: RunConfig) -> list[str]:
    """Whatever would be hidden in config.json, which would then be another config; the address decides no number."""
    tree = cfg.model_dump()
    shown = {**flatten(without_secrets(tree)), "track.mlflow_uri": cfg.track.mlflow_uri}
    return [f"{path}: {REFUSED}" for path, value in flatten(tree).items() if shown[path] != value]


GROUNDED = ("frozen_lake", "sokoban")  # environments of ours that can say where things are


def _eval_faults(cfg: RunConfig) -> list[str]:
    """Rules of the reasoning reward and of the evaluation's extras."""
    faults: list[str] = []
    reasoning = cfg.reward.reasoning
    if reasoning not in REASONING_NAMES and ":" not in reasoning:
        faults.append(
            f"reward.reasoning: unknown reward {reasoning!r}.{suggest(reasoning, list(REASONING_NAMES))} Allowed: "
            f"{', '.join(REASONING_NAMES)}, or 'module:function' for one from outside."
        )
    elif reasoning != "none" and cfg.env.name in ENV_SECTIONS and cfg.env.name not in GROUNDED:
        faults.append(
            f"reward.reasoning: {reasoning} needs an environment that can say where things are; {cfg.env.name} cannot. "
            f"Use {' or '.join(GROUNDED)}, or none."
        )
    try:
        eval_sets(cfg)
    except ConfigError as error:
        faults += error.faults
    low, high = getattr(cfg.env, "min_moves", None), getattr(cfg.env, "max_moves", None)
    if low is not None and high is not None and low > high:
        faults.append(f"env.min_moves: {low} is above env.max_moves {high}.")
    if len(set(cfg.eval.probes)) < len(cfg.eval.probes):
        faults.append("eval.probes: a probe is there twice.")
    if cfg.eval.probes and not cfg.prompt.think:
        faults.append("eval.probes: prompt.think is false, so there is no reasoning to take away.")
    if "shuffled_think" in cfg.eval.probes and cfg.eval.prompts < 2:
        faults.append("eval.probes: shuffled_think needs eval.prompts of at least 2.")
    every = cfg.eval.mutual_information_every
    if every % cfg.eval.every:
        faults.append(
            f"eval.mutual_information_every: {every} is not a multiple of eval.every {cfg.eval.every}, "
            f"whose thoughts it reads; use {max(1, round(every / cfg.eval.every)) * cfg.eval.every}, or 0 for never."
        )
    if every and not cfg.prompt.think:
        faults.append("eval.mutual_information_every: prompt.think is false, so there are no thoughts; use 0.")
    return faults


# Generalisation sets by name, for runs that train on an environment: what the set changes in the env section.
EVAL_SETS: dict[str, dict[str, dict[str, Any]]] = {
    "bandit": {"reversed": {"env.name": "bandit_rev"}},
    "bandit_rev": {"agreeing": {"env.name": "bandit"}},
    "frozen_lake": {
        "slippery": {"env.slip": 1 / 3},
        "firm": {"env.slip": 0.0},
        "large": {"env.size": 6},
        "fewer_holes": {"env.frozen": 0.9},
        "coordinates": {"env.view": "coordinates"},
    },
    "sokoban": {"new_vocab": {"env.vocab": "new"}, "large": {"env.size": 8, "env.boxes": 2}},
    "countdown": {"more_numbers": {"env.numbers": 4}},
}


def eval_sets(cfg: RunConfig) -> dict[str, Any]:
    """Name -> env section of each generalisation set. Raises ConfigError with every fault of ``eval.sets``."""
    faults: list[str] = []
    found: dict[str, Any] = {}
    named = EVAL_SETS.get(cfg.env.name, {})
    for entry in cfg.eval.sets:
        if isinstance(entry, str) and entry not in named:
            allowed = ", ".join(named) or "none by name"
            faults.append(
                f"eval.sets: no set {entry!r} for {cfg.env.name}.{suggest(entry, list(named))} There are: {allowed}. "
                "Or describe one: {name: {env.key: value}}."
            )
            continue
        for name, changes in {entry: named[entry]}.items() if isinstance(entry, str) else entry.items():
            foreign = [path for path in changes if not path.startswith("env.")]
            if not re.fullmatch(r"[a-z0-9_]+", name):
                faults.append(f"eval.sets: the name {name!r} must be of lowercase letters, digits and _.")
            elif name in found:
                faults.append(f"eval.sets: {name} is there twice.")
            elif foreign:
                faults.append(f"eval.sets: {name}: only env.* can differ, not {', '.join(foreign)}.")
            else:
                try:
                    tree = apply_overrides({"env": cfg.env.model_dump()}, changes, "eval.sets")
                    found[name] = build(tree, "eval.sets").env
                except ConfigError as error:
                    faults += [f"eval.sets: {name}: {fault}" for fault in error.faults]
    if faults:
        raise ConfigError("eval.sets", faults)
    return found


def steps_per_iteration(cfg: RunConfig) -> int:
    """Optimizer steps that one iteration takes at most; exactly so unless ``steps_vary``."""
    if cfg.optim.updates_per_rollout is not None:
        return cfg.optim.updates_per_rollout
    rows = kept_bounds(cfg.filter, cfg.rollout.prompts)[1] * cfg.rollout.responses
    return cfg.optim.epochs * -(-rows // cfg.optim.minibatch)


def steps_vary(cfg: RunConfig) -> bool:
    """Whether the number of steps is only known at run time: the filter decides how many groups are left."""
    least, most = (count * cfg.rollout.responses for count in kept_bounds(cfg.filter, cfg.rollout.prompts))
    size = cfg.optim.minibatch
    return cfg.optim.updates_per_rollout is None and -(-least // size) != -(-most // size)


def load(path: str | Path, overrides: dict[str, Any] | None = None) -> RunConfig:
    """Read an experiment page and what it inherits from its ``base``.

    Raises ConfigError that names the file and every dotted path at fault.
    """
    tree, twice = scan_experiment(path)
    try:
        cfg = build(apply_overrides(tree, overrides or {}, str(path)), str(path))
    except ConfigError as error:
        raise ConfigError(str(path), twice + error.faults) from None
    if twice:
        raise ConfigError(str(path), twice)
    return cfg
