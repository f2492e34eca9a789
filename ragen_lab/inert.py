"""Knobs that are set but cannot change anything in a given run (pitfall 18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ragen_lab.config import RunConfig, keeps_all, steps_per_iteration


def inert_knobs(cfg: RunConfig) -> list[str]:
    """Knobs set away from their default that cannot change this run: one sentence each (pitfall 18)."""
    return [note for _, note in inert(cfg)]


def inert(cfg: RunConfig) -> list[tuple[str, str]]:
    """The same with the knob's dotted path before each sentence."""
    leaves = cfg.identity()
    notes: list[tuple[str, str]] = []

    def idle(prefix: str, why: str) -> None:
        for path in leaves:
            if path == prefix or path.startswith(prefix + "."):
                notes.append((path, f"{path} = {leaves[path]!r} has no effect: {why}"))

    if cfg.policy.model != "tiny":
        idle("policy.tiny", "policy.model is not 'tiny'.")
        idle("policy.warm_start", "only the tiny model is warm-started.")
    _inert_filter(cfg, idle)
    _inert_algo(cfg, idle)
    if cfg.rollout.shared_dynamics and (why := _no_chance(cfg.env)):
        idle("rollout.shared_dynamics", why)
    if cfg.reward.reasoning == "none":
        idle("reward.reasoning_weight", "reward.reasoning is none.")
    elif not cfg.prompt.think or cfg.reward.reasoning_weight == 0:
        idle("reward.reasoning", "there is no think text to reward (prompt.think), or reward.reasoning_weight is 0.")
    if cfg.reward.length_penalty == 0:
        idle("reward.length_free", "reward.length_penalty is 0.")
    if cfg.eval.mutual_information_every == 0:
        idle("eval.mutual_information_prompts", "eval.mutual_information_every is 0.")
    if cfg.optim.updates_per_rollout is not None:
        idle("optim.minibatch", "optim.updates_per_rollout decides the split.")
    return notes


def _no_chance(env: Any) -> str | None:
    """Why nothing in an environment is left to chance; None where something is, or may be."""
    if env.name in ("sokoban", "countdown"):
        return f"nothing in {env.name} is left to chance."
    if env.name == "frozen_lake" and env.slip == 0:
        return "with env.slip 0 nothing is left to chance."
    if env.name in ("bandit", "bandit_rev") and env.chance in (0, 1):
        return f"with env.chance {env.chance:g} nothing is left to chance."
    if env.name == "ragen_lab.env.gym:TextGym":
        return "a Gymnasium environment draws its chance events from the level's seed: they are always shared."
    return None


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
    elif cfg.rollout.max_turns == 1:
        inert("algo.gamma_turn", "there is one turn.")
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
    if cfg.rollout.engine == "native" and cfg.policy.dtype == "float32":
        inert("algo.importance_cap", "in float32 the native engine samples with the trainer's own log-probs.")
    if steps_per_iteration(cfg) == 1:
        if algo.has_critic:
            inert("algo.value_clip", "one update per rollout starts at the old values, which no clip can reach.")
        for path in ("algo.clip_low", "algo.clip_high", "algo.dual_clip", "algo.ratio", "algo.loss"):
            inert(path, "one on-policy update per rollout has ratio 1 throughout.")
