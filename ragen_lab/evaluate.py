"""The evaluation: fixed levels, generalisation sets, reasoning probes, each beside its reference lines."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from ragen_lab.config import RunConfig, eval_sets
from ragen_lab.diversity import distinct_n, mutual_information, template_share
from ragen_lab.env.base import GENERAL_SEED_BASE, eval_seeds, general_seeds
from ragen_lab.env.reference import ReferenceLines, cached_reference_lines
from ragen_lab.findings.statistics import wilson
from ragen_lab.locks import locked
from ragen_lab.policy.model import Policy
from ragen_lab.prompt import ChatWriter
from ragen_lab.reward import trajectory_reward
from ragen_lab.rollout.collect import collect
from ragen_lab.rollout.probe import first_thoughts, play_probe, thought_logprobs
from ragen_lab.seeds import derive
from ragen_lab.track import Tracker
from ragen_lab.trajectory import Trajectory

Lines = dict[str, ReferenceLines]  # by generalisation set; the evaluation itself is ''


def action_budget(cfg: RunConfig) -> int:
    """Actions that an episode can execute at most."""
    return min(cfg.rollout.max_actions, cfg.rollout.max_turns * cfg.rollout.actions_per_turn)


def reference_of(cfg: RunConfig, home: Path) -> Lines:
    """The reference lines of the evaluation ('') and of each generalisation set, cached in ``home``."""
    folder, actions, count = home / "cache" / "reference", action_budget(cfg), cfg.eval.prompts
    sections = eval_sets(cfg)
    asked = json.dumps([cfg.env.model_dump(), {name: each.model_dump() for name, each in sections.items()}, actions])
    lock = folder / f"{hashlib.sha256(asked.encode()).hexdigest()[:16]}.lock"
    with locked(lock, wait=3600, what="set of reference lines"):  # parallel trials: one computes, the others read
        lines = {"": cached_reference_lines(cfg.env, actions, count, folder)}
        for name, section in sections.items():
            lines[name] = cached_reference_lines(section, actions, count, folder, GENERAL_SEED_BASE)
    return lines


def evaluate(
    policy: Policy, writer: ChatWriter, cfg: RunConfig, iteration: int, lines: Lines, tracker: Tracker
) -> dict[str, float]:
    """Success on the fixed levels beside the reference lines of the same budget, then what else is asked for."""
    began = time.perf_counter()
    levels = list(eval_seeds(cfg.eval.prompts))
    dynamics = [[derive(cfg.seed, "eval-dynamics", i)] for i in range(len(levels))]
    seed = derive(cfg.seed, "eval-sample", iteration)
    rollout = collect(policy, writer, cfg, levels, dynamics, cfg.eval.temperature, seed)
    trajectories = [group.trajectories[0] for group in rollout.groups]
    if cfg.track.trajectories:
        tracker.trajectories(iteration, [as_text(t) for t in trajectories[: cfg.track.trajectories]])
    metrics = text_metrics("eval", trajectories) | success_metrics(trajectories, lines[""])
    seconds = time.perf_counter() - began
    metrics |= {"time/eval_seconds": seconds, "time/eval_tokens_per_second": rollout.tokens / seconds}
    if cfg.eval.sets:
        metrics |= evaluate_sets(policy, writer, cfg, iteration, lines)
    if cfg.eval.probes:
        began = time.perf_counter()
        for kind in cfg.eval.probes:
            played = play_probe(kind, policy, writer, cfg, levels, dynamics, seed, trajectories)
            metrics |= share_metrics(f"eval/success_{kind}", [group.trajectories[0] for group in played.groups])
        metrics["time/probe_seconds"] = time.perf_counter() - began
    if cfg.eval.mutual_information_every and iteration % cfg.eval.mutual_information_every == 0:
        metrics |= thought_metrics(policy, writer, cfg, trajectories)
    return metrics


def evaluate_sets(policy: Policy, writer: ChatWriter, cfg: RunConfig, iteration: int, lines: Lines) -> dict[str, float]:
    """``eval/success/<set>`` and its companions for each generalisation set."""
    began = time.perf_counter()
    metrics: dict[str, float] = {}
    for name, section in eval_sets(cfg).items():
        there = cfg.model_copy(update={"env": section})
        levels = list(general_seeds(cfg.eval.prompts))
        dynamics = [[derive(cfg.seed, f"set-dynamics {name}", i)] for i in range(len(levels))]
        seed = derive(cfg.seed, f"set-sample {name}", iteration)
        rollout = collect(policy, writer, there, levels, dynamics, cfg.eval.temperature, seed)
        found = success_metrics([group.trajectories[0] for group in rollout.groups], lines[name])
        metrics |= {f"{metric}/{name}": value for metric, value in found.items()}
    return metrics | {"time/sets_seconds": time.perf_counter() - began}


def thought_metrics(
    policy: Policy, writer: ChatWriter, cfg: RunConfig, trajectories: list[Trajectory]
) -> dict[str, float]:
    """Mutual information of first prompts and thoughts; nothing where fewer than two prompts have a thought."""
    began = time.perf_counter()
    prompts, thoughts = first_thoughts(trajectories, writer, cfg.eval.mutual_information_prompts)
    if len(prompts) < 2:
        return {}
    information, retrieval = mutual_information(thought_logprobs(policy, prompts, thoughts, cfg.eval.temperature))
    return {
        "eval/mutual_information": information,
        "eval/retrieval_accuracy": retrieval,
        "time/mutual_information_seconds": time.perf_counter() - began,
    }


# -- measures ---------------------------------------------------------------------------------------


def share_metrics(name: str, trajectories: list[Trajectory]) -> dict[str, float]:
    """The share of successes with its 95 % Wilson interval."""
    won = sum(t.success for t in trajectories)
    low, high = wilson(won, len(trajectories))
    return {name: won / len(trajectories), f"{name}_low": low, f"{name}_high": high}


def success_metrics(trajectories: list[Trajectory], lines: ReferenceLines) -> dict[str, float]:
    """Success and reward, beside the reference lines that are known."""
    metrics = share_metrics("eval/success", trajectories)
    metrics["eval/reward"] = float(np.mean([trajectory_reward(t) for t in trajectories]))
    known = {"eval/random": lines.random, "eval/fixed_string": lines.fixed_string, "eval/optimal": lines.optimal}
    return metrics | {name: value for name, value in known.items() if value is not None}


def text_metrics(prefix: str, trajectories: list[Trajectory]) -> dict[str, float]:
    """Lengths, format errors, diversity and truth of the replies."""
    turns = [turn for t in trajectories for turn in t.turns]
    names = frozenset(action.lower() for turn in turns for action in turn.actions)
    true, false = sum(turn.true_statements for turn in turns), sum(turn.false_statements for turn in turns)
    shaping = [t.shaping for t in trajectories]
    found: dict[str, float | None] = {
        "response_tokens": float(np.mean([turn.reply_tokens for turn in turns])),
        "think_tokens": float(np.mean([turn.think_tokens for turn in turns])),
        "format_error_rate": float(np.mean([not turn.format_ok for turn in turns])),
        "template_share": template_share([turn.think for turn in turns], names),
        "distinct_4": distinct_n([turn.think for turn in turns]),
        "grounded_share": true / (true + false) if true + false else None,
        "statements": (true + false) / len(turns) if true + false else None,
        "shaping": float(np.mean(shaping)) if any(shaping) else None,
    }
    return {f"{prefix}/{name}": value for name, value in found.items() if value is not None}


def as_text(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory for people: JSON-ready."""
    return {
        "level_seed": trajectory.level_seed,
        "stop": str(trajectory.stop),
        "reward": trajectory_reward(trajectory),
        "error": trajectory.error,
        "turns": [
            {
                "observation": turn.observation,
                "reply": turn.reply,
                "actions": list(turn.actions),
                "reward": turn.reward,
                "penalty": turn.penalty,
                "reasoning": turn.reasoning,
                "length_cost": turn.length_cost,
                "format_ok": turn.format_ok,
            }
            for turn in trajectory.turns
        ],
    }
