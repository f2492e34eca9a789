"""Every knob of a run on one typed page: name, default, bounds and a sentence each. Imports no torch.

A knob's dotted path (``filter.keep_ratio``) is its YAML key, its command-line override, its MLflow
parameter and its report column. Class defaults are the paper's StarPO-S (PPO critic, top 25 % of
groups, no KL, clip-higher); source of the defaults: arXiv 2504.20073 and its released code.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

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


def canonical(value: Any) -> Any:
    """A knob's value as an identity holds it: -0.0 is 0.0, and in a described generalisation set 1 is 1.0, as in typed
    knobs. Options of an outside environment stay as they are: what a number means there is for its class to say."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, list):
        return [_canonical_sets(entry) if isinstance(entry, dict) else entry for entry in value]
    return value


def _canonical_sets(entry: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            path: value + 0.0 if type(value) in (int, float) and not path.startswith("env.options") else value
            for path, value in changes.items()
        }
        for name, changes in entry.items()
    }


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
    dtype: Literal["float32", "bfloat16"] = knob(
        "float32", "Number format of activations; weights and optimizer states are float32."
    )
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


REASONING_NAMES = ("none", "grounded")  # rewards of the think text; reward.py has what they do


class RewardSection(Section):
    format_penalty: NonNegative = knob(0.1, "Taken off per turn with no valid action or with any invalid one.")
    reasoning: str = knob(
        "none",
        "Reward of the think text: 'none', 'grounded' for what it states truly about the board, or 'module:function' "
        "for one from outside.",
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
    micro_batch: Count = knob(
        32, "Trajectories per forward pass; memory only, the gradient is the same up to rounding."
    )
    schedule: Literal["constant", "linear"] = knob(
        "constant", "Learning rate over iterations: 'constant', or 'linear' down to 0 at train.iterations."
    )


class TrainSection(Section):
    iterations: int = knob(200, "Iterations (rollout and update); may grow later.", identity=False, ge=1)
    threads: Count = knob(1, "torch threads of a trial.")
    checkpoint_every: Count = knob(10, "Iterations between checkpoints.", identity=False)
    keep_checkpoints: Count = knob(2, "Newest checkpoints kept.", identity=False)
    keep_also: list[Literal["best", "before-alarm"]] = knob(
        [],
        "Checkpoints kept beside the newest: 'best' (evaluation success), 'before-alarm' (the last before trouble).",
        identity=False,
    )
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


URI_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks", "uc")


def unreadable(uri: str) -> str:
    """Why an address cannot be taken apart; "" where it can."""
    try:
        _ = urlsplit(uri).scheme in ("http", "https") and urlsplit(uri).port  # looked at only when asked for
    except ValueError:  # its text may hold a password
        return "cannot be read as an address: its host or its port is malformed"
    return ""


class TrackSection(Section):
    mlflow_uri: str | None = knob(
        None, "MLflow tracking URI; null = a SQLite file in the home folder.", identity=False, min_length=1
    )
    mlflow: bool = knob(True, "Mirror runs into MLflow.", identity=False)
    trajectories: int = knob(4, "Evaluation trajectories stored as text per evaluation.", identity=False, ge=0)
    traces: int = knob(
        2,
        "Stored trajectories per trial shown as MLflow traces, from the first to the last evaluation; 0 = none.",
        identity=False,
        ge=0,
        le=100,
    )
    system_metrics: bool = knob(
        False, "Record the worker's CPU use and memory per iteration (system.jsonl, and MLflow).", identity=False
    )
    tensorboard: bool = knob(
        False, "Mirror runs into TensorBoard event files in the home (extra: tensorboard).", identity=False
    )
    wandb: bool = knob(
        False, "Mirror runs into offline runs of Weights & Biases in the home (extra: wandb).", identity=False
    )


ENV_SECTIONS: dict[str, type[Section]] = {
    "bandit": BanditSection,
    "bandit_rev": BanditRevSection,
    "frozen_lake": FrozenLakeSection,
    "sokoban": SokobanSection,
    "countdown": CountdownSection,
}

# Settings for which the paper's release has evaluation levels of its own (env/ holds them).
PUBLISHED: dict[str, tuple[dict[str, Any], ...]] = {
    "frozen_lake": ({"size": 4, "frozen": 0.8}, {"size": 4, "frozen": 0.9}),
    "sokoban": (
        {"size": 6, "boxes": 1, "vocab": "standard"},
        {"size": 6, "boxes": 1, "vocab": "new"},
        {"size": 8, "boxes": 2, "vocab": "standard"},
    ),
}
