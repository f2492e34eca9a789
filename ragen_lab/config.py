"""RunConfig: every knob of a run on one typed page. Imports no torch.

A knob's dotted path (``filter.keep_ratio``) is its YAML key, its command-line override, its MLflow
parameter and its report column. Class defaults are the paper's StarPO-S (PPO critic, top 25 % of
groups, no KL, clip-higher); source of the defaults: arXiv 2504.20073 and its released code.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from ragen_lab.errors import ConfigError
from ragen_lab.page import scan_page

# Raise this whenever a default below changes: identities leave out fields at their default, so an
# unchanged version would make old results pass for new ones (tests/test_config.py pins both).
SCHEMA_VERSION = 1

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


def knob(default: Any, doc: str, *, identity: bool = True, **bounds: Any) -> Any:
    """A field with its sentence. ``identity=False``: it cannot change a run's numbers."""
    return Field(default, description=doc, json_schema_extra={"identity": identity}, **bounds)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


class TinySection(Section):
    """Shape of the tiny causal LM (Llama architecture, word-level tokenizer)."""

    hidden: Count = knob(64, "Width of the residual stream.")
    layers: Count = knob(2, "Number of transformer blocks.")
    heads: Count = knob(4, "Attention heads; must divide hidden.")
    kv_heads: Count = knob(1, "Key-value heads; must divide heads.")
    intermediate: Count = knob(192, "Width of the feed-forward layer.")


class WarmStartSection(Section):
    """Supervised start of the tiny model on synthetic play with a skill that is latent per episode."""

    episodes: int = knob(10_000, "Synthetic episodes; 0 leaves the weights random.", ge=0)
    epochs: Count = knob(4, "Passes over the episodes.")
    batch: Count = knob(32, "Episodes per optimizer step.")
    lr: Positive = knob(4e-3, "Peak learning rate (linear warm-up, cosine decay).")
    expert_share: Share = knob(0.3, "Share of episodes played by an expert; the rest play at random with filler words.")
    think_share: Share = knob(1.0, "Share of episodes written with a think block; the rest answer at once.")
    seed: int = knob(0, "Seed of the synthetic play and of the initial weights.", ge=0)


class PolicySection(Section):
    model: str = knob(
        "Qwen/Qwen2.5-0.5B-Instruct",
        "'tiny', or the folder or hub name of a transformers causal LM.",
        min_length=1,
    )
    dtype: Literal["float32", "bfloat16"] = knob("float32", "Number format of activations; weights and optimizer states are float32.")
    device: str = knob(
        "auto", "'auto' (a GPU when there is one), 'cpu', 'cuda' or 'cuda:N'.", pattern=r"^(auto|cpu|cuda(:\d+)?)$"
    )
    tiny: TinySection = TinySection()
    warm_start: WarmStartSection = WarmStartSection()


EvalLevels = Literal["auto", "published", "generated"]
MIN_MOVES_DOC = "Shortest solution of a generated level at least; null for no bound. Published levels stay as they are."
MAX_MOVES_DOC = "Shortest solution of a generated level at most; null for no bound. Published levels stay as they are."
EVAL_LEVELS_DOC = (
    "Evaluation levels: 'published' = the paper's release's own 256, 'generated' = ours, "
    "'auto' = published where the release has a set for this setting."
)


class BanditSection(Section):
    name: Literal["bandit"] = knob("bandit", "Two named arms whose names fit their payoff.")
    low: NonNegative = knob(0.15, "Certain reward of the low arm.")
    high: NonNegative = knob(1.0, "Reward of the high arm when it pays.")
    chance: Share = knob(0.25, "Probability that the high arm pays.")


class BanditRevSection(BanditSection):
    name: Literal["bandit_rev"] = knob("bandit_rev", "Two named arms whose names contradict their payoff.")  # type: ignore[assignment]


class FrozenLakeSection(Section):
    name: Literal["frozen_lake"] = knob("frozen_lake", "Cross a frozen lake to the goal; holes end the episode.")
    size: int = knob(4, "Side of the square map.", ge=2, le=10)
    frozen: Share = knob(0.8, "Probability that a tile is frozen and not a hole.")
    slip: float = knob(
        1 / 3, "Probability of sliding to each of the two sides; the intended move has 1 - 2 * slip.", ge=0, le=0.5
    )
    eval_levels: EvalLevels = knob("auto", EVAL_LEVELS_DOC)
    view: Literal["grid", "coordinates"] = knob(
        "grid", "What is seen: 'grid' the map, 'coordinates' the rows and columns of player, goal and holes."
    )
    min_moves: Count | None = knob(None, MIN_MOVES_DOC)
    max_moves: Count | None = knob(None, MAX_MOVES_DOC)


class SokobanSection(Section):
    name: Literal["sokoban"] = knob("sokoban", "Push every box onto a target.")
    size: int = knob(6, "Side of the square room, walls included.", ge=5, le=12)
    boxes: int = knob(1, "Number of boxes and targets.", ge=1, le=4)
    vocab: Literal["standard", "new"] = knob("standard", "Symbols: 'standard' # _ O X P, 'new' W . G C A.")
    eval_levels: EvalLevels = knob("auto", EVAL_LEVELS_DOC)
    min_moves: Count | None = knob(None, MIN_MOVES_DOC)
    max_moves: Count | None = knob(None, MAX_MOVES_DOC)


class CountdownSection(Section):
    name: Literal["countdown"] = knob("countdown", "Make a target out of numbers; the action is an equation.")
    numbers: int = knob(3, "How many numbers are given.", ge=2, le=5)
    largest: int = knob(99, "Largest number and largest target.", ge=9, le=999)


class OutsideSection(Section):
    """An environment of another package (docs/environments.md)."""

    name: str = knob(
        "module:Class", "An environment from outside: 'module:Class', or the name of an installed entry point."
    )
    options: dict[str, Any] = knob({}, "Keyword arguments of the outside environment's class, as they are.")


OUTSIDE_GROUP = "ragen_lab.environments"  # entry points: name = "module:Class"


def outside_names() -> list[str]:
    """Names of environments that installed packages bring along."""
    return sorted({point.name for point in entry_points(group=OUTSIDE_GROUP)})


def _env_kind(value: Any) -> str | None:
    """Which section a page's env belongs to; an unknown name is its own answer, and pydantic refuses it."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    if isinstance(name, str) and name not in ENV_SECTIONS and (":" in name or name in outside_names()):
        return "outside"
    return name if isinstance(name, str) else None


EnvSection = Annotated[
    Annotated[BanditSection, Tag("bandit")]
    | Annotated[BanditRevSection, Tag("bandit_rev")]
    | Annotated[FrozenLakeSection, Tag("frozen_lake")]
    | Annotated[SokobanSection, Tag("sokoban")]
    | Annotated[CountdownSection, Tag("countdown")]
    | Annotated[OutsideSection, Tag("outside")],
    Discriminator(_env_kind),
]


class PromptSection(Section):
    think: bool = knob(True, "Ask for <think>...</think> before <answer>...</answer>.")
    style: Literal["full", "compact"] = knob(
        "full", "'full' explains the rules in a system message; 'compact' is for the tiny model's vocabulary."
    )


class RolloutSection(Section):
    engine: Literal["native"] = knob("native", "Who decodes: 'native' (torch).")
    prompts: Count = knob(8, "Prompt groups (levels) per iteration.")
    responses: Count = knob(16, "Trajectories per prompt group.")
    max_turns: Count = knob(5, "Turns per trajectory at most.")
    actions_per_turn: Count = knob(5, "Actions executed per turn at most; further ones make the reply invalid.")
    max_actions: Count = knob(10, "Actions per trajectory at most.")
    max_new_tokens: Count = knob(400, "New tokens per turn at most.")
    max_context: Count = knob(3600, "Tokens per trajectory at most.")
    temperature: Positive = knob(1.0, "Sampling temperature; training log-probs use the same.")
    shared_dynamics: bool = knob(False, "Give all members of a group the same chance events (the released code does).")


class RewardSection(Section):
    format_penalty: NonNegative = knob(0.1, "Taken off per turn with no valid action or with any invalid one.")
    reasoning: Literal["none", "grounded"] = knob(
        "none", "Reward of the think text: 'none', or 'grounded' for what it states truly about the board."
    )
    reasoning_weight: NonNegative = knob(0.1, "Most that the think text of one turn can earn, and lose.")
    length_penalty: NonNegative = knob(0.0, "Taken off per token of a reply beyond reward.length_free.")
    length_free: int = knob(0, "Tokens of each reply that cost nothing.", ge=0)


class FilterSection(Section):
    kind: Literal["std", "top_p", "top_k", "min_p", "zero_only", "random", "smallest"] = knob(
        "std",
        "Which groups to keep: 'std' highest in-group reward spread, 'top_p' the fewest that hold a share of all "
        "spread, 'top_k' a fixed number with the highest, 'min_p' at least a share of the highest, 'zero_only' all "
        "that have any, 'random' a control, 'smallest' lowest spread: a control.",
    )
    keep_ratio: float = knob(0.25, "Share of prompt groups kept; 1 keeps all (std, random, smallest).", gt=0, le=1)
    score: Literal["reward", "env_return"] = knob(
        "reward", "Spread of what: 'reward' includes the format penalty, 'env_return' does not."
    )
    top_p: float = knob(0.9, "Share of the summed spread that the kept groups hold (top_p).", gt=0, le=1)
    top_k: Count = knob(2, "Prompt groups kept (top_k).")
    min_p: Share = knob(0.1, "Keep groups whose spread is at least this share of the highest (min_p).")
    resample: int = knob(
        0,
        "Extra rollouts per iteration at most, taken while too few groups have any spread (DAPO's dynamic "
        "sampling); 0 = off.",
        ge=0,
        le=20,
    )


class KlSection(Section):
    place: Literal["off", "reward", "loss"] = knob("off", "Where the KL to the start policy enters.")
    estimator: Literal["k1", "k2", "k3"] = knob("k1", "Estimator of the KL per token.")
    coef: NonNegative = knob(0.001, "Weight of the KL term.")


class AlgoSection(Section):
    name: Literal["ppo", "bi_level_gae", "grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"] = knob(
        "ppo",
        "Advantage estimator: 'ppo' (critic, GAE), 'bi_level_gae' (critic, GAE over turns and then tokens), 'grpo' "
        "(group baseline), 'dr_grpo' (group baseline, nothing divided), 'rloo' (leave-one-out baseline), "
        "'reinforce_pp' (no baseline, normalised over the batch), 'reinforce_pp_baseline' (group mean, then "
        "normalised over the batch).",
    )
    gamma: Share = knob(1.0, "Discount per model token (ppo, bi_level_gae, reinforce_pp).")
    lam: Share = knob(1.0, "GAE lambda (ppo, bi_level_gae).")
    whiten: bool = knob(True, "Whiten advantages over the batch (all but grpo, dr_grpo and rloo).")
    std_normalize: bool = knob(True, "Divide by the group's standard deviation (grpo).")
    clip_low: Share = knob(0.2, "The ratio is clipped below 1 - clip_low.")
    clip_high: NonNegative = knob(0.28, "The ratio is clipped above 1 + clip_high.")
    dual_clip: float = knob(3.0, "Bound of the ratio for negative advantages; must exceed 1.", gt=1)
    value_clip: Positive = knob(0.5, "Largest move of a value per update (ppo, bi_level_gae).")
    entropy_coef: NonNegative = knob(0.001, "Weight of the entropy bonus.")
    kl: KlSection = KlSection()
    gamma_turn: Share = knob(0.95, "Discount per turn (bi_level_gae).")
    credit: Literal["trajectory", "turn"] = knob(
        "trajectory",
        "What a token answers for: 'trajectory' the whole reward, 'turn' what was earned in its turn and after.",
    )
    ratio: Literal["token", "sequence"] = knob(
        "token", "Probability ratio in the loss: 'token' its own, 'sequence' its trajectory's geometric mean (GSPO)."
    )
    loss: Literal["clip", "cispo"] = knob(
        "clip", "Policy loss: 'clip' (PPO, dual clip), 'cispo' (clipped weight on the log-prob; no token is dropped)."
    )
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] | None = knob(
        None,
        "How tokens become a loss: 'token_mean' over the step, 'sequence_mean' of the trajectories' means, "
        "'fixed_length' over the largest possible length; null = fixed_length for dr_grpo, else token_mean.",
    )
    entropy_schedule: Literal["constant", "linear"] = knob(
        "constant", "Entropy bonus over iterations: 'constant', or 'linear' down to 0 at train.iterations."
    )
    importance_cap: float | None = knob(
        None,
        "Weight a token's loss by min(pi_trainer / pi_sampler, this), for engines whose log-probs differ; null = off.",
        ge=1,
    )

    @property
    def has_critic(self) -> bool:
        return self.name in ("ppo", "bi_level_gae")

    @property
    def has_group_baseline(self) -> bool:
        return self.name in ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline")

    @property
    def whitens(self) -> bool:
        return self.name not in ("grpo", "dr_grpo", "rloo")

    @property
    def aggregates_by(self) -> str:
        """``aggregation``, or the algorithm's own where that is null."""
        return self.aggregation or ("fixed_length" if self.name == "dr_grpo" else "token_mean")


class OptimSection(Section):
    lr: Positive = knob(1e-6, "Learning rate of the policy (Adam).")
    critic_lr: Positive = knob(1e-5, "Learning rate of the critic (ppo, bi_level_gae).")
    beta1: Share = knob(0.9, "Adam beta 1.")
    beta2: Share = knob(0.999, "Adam beta 2.")
    weight_decay: NonNegative = knob(0.01, "Decoupled weight decay.")
    grad_clip: Positive = knob(1.0, "Largest gradient norm; longer gradients are scaled down.")
    minibatch: Count = knob(32, "Trajectories per optimizer step.")
    epochs: Count = knob(1, "Passes over the kept trajectories per iteration.")
    updates_per_rollout: Count | None = knob(
        None, "Split the kept trajectories evenly into exactly this many optimizer steps; null = by minibatch."
    )
    micro_batch: Count = knob(32, "Trajectories per forward pass; memory only, the gradient is the same.")
    schedule: Literal["constant", "linear"] = knob(
        "constant", "Learning rate over iterations: 'constant', or 'linear' down to 0 at train.iterations."
    )


class TrainSection(Section):
    iterations: int = knob(200, "Iterations (rollout and update); may grow later.", identity=False, ge=1)
    threads: Count = knob(1, "torch threads of a trial.")
    checkpoint_every: Count = knob(10, "Iterations between checkpoints.", identity=False)
    keep_checkpoints: Count = knob(2, "Newest checkpoints kept.", identity=False)
    check: Literal["strict", "warn", "off"] = knob(
        "warn",
        "Check the first update (ratio 1, KL 0, entropy, sampler, groups): 'strict' stops, 'warn' logs, or 'off'.",
        identity=False,
    )


class EvalSection(Section):
    every: Count = knob(10, "Iterations between evaluations; iteration 0 is always evaluated.")
    prompts: Count = knob(256, "Fixed evaluation levels, one response each.")
    temperature: Positive = knob(0.5, "Sampling temperature in evaluations.")
    probes: list[Literal["no_think", "empty_think", "shuffled_think"]] = knob(
        [], "Evaluations that take the reasoning away: no_think, empty_think, shuffled_think."
    )
    mutual_information_every: int = knob(
        0, "Iterations between estimates of how much the thoughts tell of their prompts; 0 never.", ge=0
    )
    mutual_information_prompts: int = knob(32, "Different prompts in that estimate; its cost is their square.", ge=2)
    sets: list[str | dict[str, dict[str, Any]]] = knob(
        [], "Generalisation sets, evaluated too: names, or {name: {env.key: value}} (docs/environments.md)."
    )


class LevelSection(Section):
    """Collapse of the performance level (the definition that findings use too)."""

    ema: float = knob(0.3, "Weight of the newest value in the smoothed series.", gt=0, le=1, identity=False)
    peak: Positive = knob(0.05, "Something to lose: the peak above the random line must reach this.", identity=False)
    fall: Share = knob(0.5, "Collapsed below this share of the peak ...", identity=False)
    recovered: Share = knob(0.8, "... and never again at or above this share of it.", identity=False)
    evaluations: Count = knob(3, "Evaluations in a row below the bound.", identity=False)
    iterations: Count = knob(5, "Iterations in a row, where a rollout metric stands in.", identity=False)


class RewardStdSection(Section):
    """Slow-reference ratio on the in-group reward spread before filtering."""

    fast: float = knob(0.3, "EWMA weight of the fast average.", gt=0, le=1, identity=False)
    span: Count | None = knob(
        None, "Span of the slow average; null = a quarter of the horizon, at most 50.", identity=False
    )
    lag: Count | None = knob(None, "Lag of the slow average; null = a fifth of the span.", identity=False)
    ratio: Share = knob(0.5, "Alarm when fast < ratio * slow ...", identity=False)
    sigma: Positive = knob(3.0, "... and the drop exceeds this many standard deviations ...", identity=False)
    patience: Count = knob(3, "... this many iterations in a row.", identity=False)


class GradSpikeSection(Section):
    """Spike of the gradient norm before clipping."""

    window: Count = knob(30, "Iterations behind the median and MAD.", identity=False)
    z: Positive = knob(4.0, "Alarm above this robust z of the log ...", identity=False)
    factor: float = knob(3.0, "... and above this multiple of the median ...", gt=1, identity=False)
    patience: Count = knob(2, "... this many iterations in a row.", identity=False)


class EntropyBandSection(Section):
    """Entropy leaving its band on either side."""

    low: Share = knob(0.15, "Alarm when the smoothed entropy is below this share of its start ...", identity=False)
    high: float = knob(2.0, "... or above this multiple of it ...", gt=1, identity=False)
    patience: Count = knob(5, "... this many iterations in a row.", identity=False)


class DetectSection(Section):
    on_collapse: Literal["stop", "continue"] = knob(
        "stop", "'stop' ends a collapsed run; 'continue' logs the alarms and goes on (shadow).", identity=False
    )
    level: LevelSection = LevelSection()
    reward_std: RewardStdSection = RewardStdSection()
    grad_norm: GradSpikeSection = GradSpikeSection()
    entropy: EntropyBandSection = EntropyBandSection()
    vote_window: Count = knob(15, "Iterations within which two detector families must alarm.", identity=False)


class TrackSection(Section):
    mlflow_uri: str | None = knob(
        None, "MLflow tracking URI; null = a SQLite file in the home folder.", identity=False, min_length=1
    )
    mlflow: bool = knob(True, "Mirror runs into MLflow.", identity=False)
    trajectories: int = knob(4, "Evaluation trajectories stored as text per evaluation.", identity=False, ge=0)


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
        if "linear" in (self.optim.schedule, self.algo.entropy_schedule):  # only then the horizon reaches the numbers
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
            leaves.append((f"{prefix}{name}", value))
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
    found = walk(RunConfig(), "")
    for section in ENV_SECTIONS.values():
        found.update(walk(section(), "env."))
    found["env.options"] = OutsideSection.model_fields["options"].description or ""
    return found


ENV_SECTIONS: dict[str, type[Section]] = {
    "bandit": BanditSection,
    "bandit_rev": BanditRevSection,
    "frozen_lake": FrozenLakeSection,
    "sokoban": SokobanSection,
    "countdown": CountdownSection,
}


def suggest(word: str, known: list[str]) -> str:
    """' Did you mean X?' for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not near:  # a known leaf under the wrong section: compare the last parts
        tail = word.rsplit(".", 1)[-1]
        near = [path for path in known if path.rsplit(".", 1)[-1] == tail][:1]
    return f" Did you mean '{near[0]}'?" if near else ""


def apply_overrides(tree: dict[str, Any], overrides: dict[str, Any], where: str) -> dict[str, Any]:
    """``tree`` with dotted paths set; unknown paths are left for ``build`` to name."""
    tree = json.loads(json.dumps(tree))
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
    known = list(knobs())
    faults: list[str] = []
    remaining = json.loads(json.dumps(tree, default=str))
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
            meaning = knobs().get(path, "a section of the page")
            faults.append(f"{path}: got {got!r}; {message.replace('input ', '', 1)}. Its meaning: {meaning}")
        _drop(remaining, parts)
    return faults, remaining


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
    faults += _eval_faults(cfg)
    if cfg.detect.level.recovered < cfg.detect.level.fall:
        faults.append("detect.level.recovered: must not be below detect.level.fall.")
    return faults


GROUNDED = ("frozen_lake", "sokoban")  # environments of ours that can say where things are


def _eval_faults(cfg: RunConfig) -> list[str]:
    """Rules of the reasoning reward and of the evaluation's extras."""
    faults: list[str] = []
    if cfg.reward.reasoning == "grounded" and cfg.env.name in ENV_SECTIONS and cfg.env.name not in GROUNDED:
        faults.append(
            f"reward.reasoning: grounded needs an environment that can say where things are; {cfg.env.name} cannot. "
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


def inert_knobs(cfg: RunConfig) -> list[str]:
    """Knobs set away from their default that cannot change this run: one sentence each (pitfall 18)."""
    leaves = cfg.identity()
    notes: list[str] = []

    def inert(prefix: str, why: str) -> None:
        for path in leaves:
            if path == prefix or path.startswith(prefix + "."):
                notes.append(f"{path} = {leaves[path]!r} has no effect: {why}")

    if cfg.policy.model != "tiny":
        inert("policy.tiny", "policy.model is not 'tiny'.")
        inert("policy.warm_start", "only the tiny model is warm-started.")
    _inert_filter(cfg, inert)
    _inert_algo(cfg, inert)
    if cfg.reward.reasoning == "none":
        inert("reward.reasoning_weight", "reward.reasoning is none.")
    elif not cfg.prompt.think or cfg.reward.reasoning_weight == 0:
        inert("reward.reasoning", "there is no think text to reward (prompt.think), or reward.reasoning_weight is 0.")
    if cfg.reward.length_penalty == 0:
        inert("reward.length_free", "reward.length_penalty is 0.")
    if cfg.eval.mutual_information_every == 0:
        inert("eval.mutual_information_prompts", "eval.mutual_information_every is 0.")
    if cfg.optim.updates_per_rollout is not None:
        inert("optim.minibatch", "optim.updates_per_rollout decides the split.")
    return notes


def _inert_filter(cfg: RunConfig, inert: Callable[[str, str], None]) -> None:
    kind = cfg.filter.kind
    if kind not in ("std", "random", "smallest"):
        inert("filter.keep_ratio", f"filter.kind {kind} does not use it.")
    for knob_of in ("top_p", "top_k", "min_p"):
        if kind != knob_of:
            inert(f"filter.{knob_of}", f"filter.kind {kind} does not use it.")
    if keeps_all(cfg) and cfg.filter.resample == 0:
        how = "filter.keep_ratio 1" if kind in ("std", "random", "smallest") else f"filter.{kind} at this value"
        inert("filter.kind", f"{how} keeps every group.")
        inert("filter.score", f"{how} keeps every group.")
    if kind == "random":
        inert("filter.score", "random groups are kept whatever they score.")


def _inert_algo(cfg: RunConfig, inert: Callable[[str, str], None]) -> None:
    algo, name = cfg.algo, cfg.algo.name
    if algo.kl.place == "off":
        inert("algo.kl.coef", "algo.kl.place is off.")
        inert("algo.kl.estimator", "algo.kl.place is off.")
    if not algo.has_critic:
        for path in ("algo.lam", "algo.value_clip", "optim.critic_lr"):
            inert(path, f"{name} has no critic.")
        if name != "reinforce_pp":
            inert("algo.gamma", f"{name} does not discount.")
    if name != "bi_level_gae":
        inert("algo.gamma_turn", f"{name} has one level.")
    if not algo.whitens:
        inert("algo.whiten", f"{name} does not normalise over the batch.")
    if name != "grpo":
        inert("algo.std_normalize", f"{name} does not divide by a group's spread.")
    if name == "bi_level_gae":
        inert("algo.credit", "bi_level_gae always counts a turn's reward at its own turn.")
    elif cfg.rollout.max_turns == 1:
        inert("algo.credit", "with one turn both are the same.")
    if algo.model_copy(update={"aggregation": None}).aggregates_by == algo.aggregation:
        inert("algo.aggregation", f"it is what {name} does anyway.")
    if algo.entropy_coef == 0:
        inert("algo.entropy_schedule", "algo.entropy_coef is 0.")
    if algo.loss == "cispo":
        inert("algo.dual_clip", "cispo bounds its weight by the clip range alone.")
    if steps_per_iteration(cfg) == 1:
        for path in ("algo.clip_low", "algo.clip_high", "algo.dual_clip", "algo.ratio", "algo.loss"):
            inert(path, "one on-policy update per rollout has ratio 1 throughout.")


def load(path: str | Path, overrides: dict[str, Any] | None = None) -> RunConfig:
    """Read an experiment page. Raises ConfigError that names the file and every dotted path at fault."""
    tree, twice = scan_page(path)
    try:
        cfg = build(apply_overrides(tree, overrides or {}, str(path)), str(path))
    except ConfigError as error:
        raise ConfigError(str(path), twice + error.faults) from None
    if twice:
        raise ConfigError(str(path), twice)
    return cfg
