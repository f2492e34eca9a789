"""StarPO on one page: rollout, reward, filter, advantage, loss, step, log, detect.

Where this differs from the released code of the paper (arXiv 2504.20073):
- the loss covers exactly the sampled tokens, by role, and nothing of the chat template;
- groups are scored on raw rewards before any normalisation;
- the trajectory's reward sits on its last model token, and GAE skips observation tokens;
- all randomness is a function of (seed, purpose, iteration), so that a resumed run equals an
  uninterrupted one and replicate k sees the same levels in every arm.
"""

from __future__ import annotations

import logging
import math
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ragen_lab import warm_start
from ragen_lab.algo.advantages import ALGORITHMS, as_episodes
from ragen_lab.algo.base import TokenSignals
from ragen_lab.algo.loss import aggregate, importance_weight, kl_estimate, policy_loss, value_loss
from ragen_lab.algo.self_check import self_check
from ragen_lab.algo.totals import Totals
from ragen_lab.config import RunConfig
from ragen_lab.detect.panel import Panel
from ragen_lab.diversity import template_share
from ragen_lab.errors import CheckpointError, SelfCheckError
from ragen_lab.evaluate import evaluate, reference_of, text_metrics
from ragen_lab.filter import fill_up, keep_groups
from ragen_lab.policy.model import Critic, Policy, frozen_copy, load_policy, make_batch, token_logprobs
from ragen_lab.prompt import ChatWriter
from ragen_lab.reward import reward_matrix, spread
from ragen_lab.rollout.collect import Rollout, collect
from ragen_lab.rollout.engine import LOGPROB_TOLERANCE
from ragen_lab.seeds import derive
from ragen_lab.track import Outcome, Tracker
from ragen_lab.trajectory import MODEL, Trajectory, TrajectoryGroup

log = logging.getLogger(__name__)
_LEVEL_SEEDS = 2**32  # training levels are drawn below this


def train(
    cfg: RunConfig,
    tracker: Tracker,
    home: Path,
    progress: Callable[[int, int], None] | None = None,
    until: int | None = None,
) -> Outcome:
    """Train from the newest checkpoint (or from the start) to ``cfg.train.iterations`` or to a collapse.

    Row 0 is the evaluation of the start policy; row i >= 1 is update i. ``home`` holds the caches;
    ``progress`` is told of the warm start's steps where one has to be built; ``until`` pauses after that iteration,
    with a checkpoint from which a later call goes on.
    """
    last_now = cfg.train.iterations if until is None else min(until, cfg.train.iterations)
    torch.set_num_threads(cfg.train.threads)
    source = warm_start.prepare(cfg, home, progress) if cfg.policy.model == "tiny" else cfg.policy.model
    learner = Learner(load_policy(source, cfg.policy), cfg)
    lines = reference_of(cfg, home)
    last = tracker.resume(learner.load)
    panel = Panel(cfg.detect, cfg.train.iterations, tracker.rows)
    for iteration in range(0 if last is None else last + 1, last_now + 1):
        if panel.stop is not None and cfg.detect.on_collapse == "stop":
            break
        spent = time.process_time()
        metrics = learner.iterate(iteration, tracker) if iteration else {}
        if iteration % cfg.eval.every == 0:
            metrics |= evaluate(learner.policy, learner.writer, cfg, iteration, lines, tracker)
        metrics["time/cpu_seconds"] = time.process_time() - spent
        metrics |= panel.update({"iteration": float(iteration), **metrics})
        tracker.log(iteration, metrics)
        stopping = panel.stop is not None and cfg.detect.on_collapse == "stop"
        if stopping or iteration % cfg.train.checkpoint_every == 0 or iteration == last_now:
            tracker.checkpoint(iteration, lambda path, i=iteration: learner.save(path, i))  # type: ignore[misc]
    if panel.stop is not None and cfg.detect.on_collapse == "stop":
        return Outcome("collapsed", panel.stop.iteration, panel.stop.reason)
    return Outcome("finished" if last_now == cfg.train.iterations else "paused", last_now, None)


class Learner:
    """Policy, critic and their optimizers: the state that training changes."""

    def __init__(self, policy: Policy, cfg: RunConfig):
        self.cfg = cfg
        self.policy = policy
        self.writer = ChatWriter(policy.tokenizer, cfg.prompt, cfg.rollout)
        self.reference = frozen_copy(policy) if cfg.algo.kl.place != "off" else None
        optim = cfg.optim
        adam = {"betas": (optim.beta1, optim.beta2), "weight_decay": optim.weight_decay}
        self.optimizer = torch.optim.AdamW(policy.model.parameters(), lr=optim.lr, **adam)  # type: ignore[arg-type]
        self.critic = Critic(policy) if cfg.algo.has_critic else None
        self.critic_optimizer = (
            torch.optim.AdamW(self.critic.parameters(), lr=optim.critic_lr, **adam) if self.critic else None  # type: ignore[arg-type]
        )

    def state(self) -> dict[str, Any]:
        modules = {"policy": self.policy.model, "critic": self.critic}
        optimizers = {"optimizer": self.optimizer, "critic_optimizer": self.critic_optimizer}
        return {name: part.state_dict() for name, part in {**modules, **optimizers}.items() if part is not None}

    def save(self, path: Path, iteration: int) -> None:
        torch.save({"iteration": iteration, "trial_id": self.cfg.trial_id(), "state": self.state()}, path)

    def load(self, path: Path) -> int:
        """Restore a checkpoint; returns its iteration. Raises CheckpointError for another trial's or a damaged one."""
        try:
            saved = torch.load(path, map_location=self.policy.device, weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if not (isinstance(saved, dict) and {"trial_id", "iteration", "state"} <= set(saved)):
            raise CheckpointError(f"{path} is not a checkpoint of a trial")
        if saved["trial_id"] != self.cfg.trial_id():
            raise CheckpointError(f"{path} belongs to trial {saved['trial_id']}, not {self.cfg.trial_id()}")
        parts = {
            "policy": self.policy.model,
            "critic": self.critic,
            "optimizer": self.optimizer,
            "critic_optimizer": self.critic_optimizer,
        }
        wanted = {name: part for name, part in parts.items() if part is not None}
        if missing := sorted(set(wanted) - set(saved["state"])):
            raise CheckpointError(f"{path} lacks {', '.join(missing)}")
        for name, part in wanted.items():
            part.load_state_dict(saved["state"][name])
        return int(saved["iteration"])

    # -- one iteration ------------------------------------------------------------------------------

    def iterate(self, iteration: int, tracker: Tracker | None = None) -> dict[str, float]:
        """Rollout and update number ``iteration``; ``tracker`` is told which groups the filter kept."""
        cfg = self.cfg
        began = time.perf_counter()
        rollout = self.roll_out(iteration)
        rolled = time.perf_counter()
        metrics = rollout_metrics(rollout)
        candidates, filled = fill_up(rollout.groups, cfg.filter, lambda extra: self.roll_out(iteration, extra).groups)
        refilled = time.perf_counter()
        rng = np.random.default_rng(derive(cfg.seed, "filter", iteration))
        kept = keep_groups(candidates, cfg.filter, rng)
        groups = [candidates[i] for i in kept.indices]
        if tracker is not None:
            tracker.groups(iteration, kept.record([group.level_seed for group in candidates]))
        metrics |= kept.metrics | filled | self.update(groups, iteration)
        ended = time.perf_counter()
        trained = sum(len(t.ids_T) for group in groups for t in group.trajectories) * cfg.optim.epochs
        return metrics | {
            "time/rollout_seconds": refilled - began,
            "time/update_seconds": ended - refilled,
            "time/rollout_tokens_per_second": rollout.tokens / (rolled - began),
            "time/update_tokens_per_second": trained / (ended - refilled),
        }

    def roll_out(self, iteration: int, extra: int = 0) -> Rollout:
        """Sample ``prompts x responses`` trajectories on this iteration's levels; ``extra`` numbers further rounds."""
        cfg = self.cfg
        prompts, responses = cfg.rollout.prompts, cfg.rollout.responses
        again = () if extra == 0 else (extra,)
        levels = [derive(cfg.seed, "level", iteration, g, *again) % _LEVEL_SEEDS for g in range(prompts)]
        dynamics = [
            [
                derive(cfg.seed, "dynamics", iteration, g, 0 if cfg.rollout.shared_dynamics else m, *again)
                for m in range(responses)
            ]
            for g in range(prompts)
        ]
        seed = derive(cfg.seed, "sample", iteration, *again)
        return collect(self.policy, self.writer, cfg, levels, dynamics, cfg.rollout.temperature, seed)

    def update(self, groups: list[TrajectoryGroup], iteration: int) -> dict[str, float]:
        """Optimizer steps on the kept groups."""
        cfg, algo = self.cfg, self.cfg.algo
        trajectories = [t for group in groups for t in group.trajectories]
        splits = split_rows(len(trajectories), cfg, np.random.default_rng(derive(cfg.seed, "split", iteration)))
        first = frozenset(splits[0].tolist())
        old = self._infer(
            trajectories, lambda batch: token_logprobs(self.policy.model, batch, cfg.rollout.temperature)[0]
        )
        sampler = [t.logprobs_T[t.roles_T == MODEL] for t in trajectories]
        gap_N = np.concatenate([np.abs(old[i] - sampler[i]) for i in sorted(first)])
        sampler_gap = float(gap_N.mean())
        reference = None
        if self.reference is not None:
            model = self.reference.model
            reference = self._infer(
                trajectories, lambda batch: token_logprobs(model, batch, cfg.rollout.temperature)[0]
            )
        values = self._infer(trajectories, self.critic) if self.critic is not None else None
        signals = self.signals(groups, old, reference, values)
        rate, entropy_coef = self._set_rate(iteration), self.entropy_coef(iteration)
        totals, checked = Totals(), {}
        for number, rows in enumerate(splits):
            self._step(trajectories, rows, signals, old, reference, values, sampler, entropy_coef, totals)
            if number == 0 and iteration == 1 and cfg.train.check != "off":
                checked = {"check/faults": float(self._check(groups, totals, (sampler_gap, float(gap_N.max()))))}
        metrics = (
            totals.metrics()
            | checked
            | {
                "train/lr": rate,
                "train/entropy_coef": entropy_coef,
                "train/sampler_gap": sampler_gap,
            }
        )
        if signals.returns is not None and values is not None:
            metrics["train/explained_variance"] = explained_variance(
                np.concatenate(signals.returns), np.concatenate(values)
            )
        if algo.kl.place != "off" and reference is not None:
            d = torch.from_numpy(np.concatenate([o - r for o, r in zip(old, reference, strict=True)]))
            metrics["train/kl_ref"] = float(kl_estimate(d, torch.zeros_like(d), "k3").mean())
        return metrics

    def signals(
        self,
        groups: list[TrajectoryGroup],
        old: list[Any],
        reference: list[Any] | None,
        values: list[Any] | None,
    ) -> TokenSignals:
        """Advantages (and returns) per model token, from raw rewards."""
        algo = self.cfg.algo
        penalties: list[Any] = [np.zeros(len(o)) for o in old]
        if algo.kl.place == "reward" and reference is not None:
            penalties = [
                -algo.kl.coef * kl_estimate(torch.from_numpy(o), torch.from_numpy(r), algo.kl.estimator).numpy()
                for o, r in zip(old, reference, strict=True)
            ]
        return ALGORITHMS[algo.name].estimate(as_episodes(groups, penalties, values), algo)

    def entropy_coef(self, iteration: int) -> float:
        """Weight of the entropy bonus at this iteration."""
        algo = self.cfg.algo
        gone = (iteration - 1) / self.cfg.train.iterations if algo.entropy_schedule == "linear" else 0.0
        return algo.entropy_coef * (1.0 - gone)

    def _check(self, groups: list[TrajectoryGroup], totals: Totals, sampler_gap: tuple[float, float]) -> int:
        """Count, and tell, what the first step broke. Raises SelfCheckError under ``train.check`` strict."""
        dtype = self.cfg.policy.dtype
        faults = self_check(groups, totals, sampler_gap, LOGPROB_TOLERANCE[dtype], self.policy.vocabulary, dtype)
        if faults and self.cfg.train.check == "strict":
            raise SelfCheckError("The first update broke what must hold (train.check: strict):\n" + "\n".join(faults))
        for fault in faults:
            log.warning("self-check of the first update: %s", fault)
        return len(faults)

    def _step(
        self,
        trajectories: list[Trajectory],
        rows: Any,
        signals: TokenSignals,
        old: list[Any],
        reference: list[Any] | None,
        values: list[Any] | None,
        sampler: list[Any],
        entropy_coef: float,
        totals: Totals,
    ) -> None:
        """One optimizer step on ``rows``, aggregated over the whole step, whatever the micro-batches."""
        cfg, algo, device = self.cfg, self.cfg.algo, self.policy.device
        count = sum(len(old[i]) for i in rows)
        budget = cfg.rollout.max_turns * cfg.rollout.max_new_tokens
        self.optimizer.zero_grad(set_to_none=True)
        if self.critic_optimizer is not None:
            self.critic_optimizer.zero_grad(set_to_none=True)
        for part in micro_batches(trajectories, rows, cfg.optim.micro_batch):
            batch = make_batch([trajectories[i] for i in part], device)

            def gather(arrays: list[Any], part: list[int] = part) -> Tensor:
                return torch.from_numpy(np.concatenate([arrays[i] for i in part])).to(device, torch.float32)

            old_N, advantages_N = gather(old), gather(signals.advantages)
            new_N, entropy_N = token_logprobs(self.policy.model, batch, cfg.rollout.temperature)
            loss_N, ratio_N = policy_loss(new_N, old_N, advantages_N, algo, batch.row_N)
            if algo.importance_cap is not None:
                weight_N = importance_weight(old_N, gather(sampler), algo.importance_cap)
                loss_N = loss_N * weight_N
                totals.add_weights(weight_N, algo.importance_cap)
            objective_N = loss_N - entropy_coef * entropy_N
            if algo.kl.place == "loss" and reference is not None:
                objective_N = objective_N + algo.kl.coef * kl_estimate(new_N, gather(reference), algo.kl.estimator)
            _backward(aggregate(objective_N, batch.row_N, algo.aggregates_by, count, len(rows), budget))
            totals.add_policy(loss_N, ratio_N, entropy_N, new_N, old_N, algo)
            if self.critic is not None and values is not None and signals.returns is not None:
                value_loss_N = value_loss(self.critic(batch), gather(values), gather(signals.returns), algo.value_clip)
                _backward(value_loss_N.sum() / count)
                totals.add_value(value_loss_N)
        norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), cfg.optim.grad_clip)
        totals.norms.append(float(norm))
        if math.isfinite(totals.norms[-1]):
            self.optimizer.step()
        if self.critic is not None and self.critic_optimizer is not None:
            norm = torch.nn.utils.clip_grad_norm_(self.critic.parameters(), cfg.optim.grad_clip)
            totals.critic_norms.append(float(norm))
            if math.isfinite(totals.critic_norms[-1]):
                self.critic_optimizer.step()

    @torch.no_grad()
    def _infer(self, trajectories: list[Trajectory], compute: Callable[[Any], Tensor]) -> list[Any]:
        """``compute(batch)`` -> [N] for all trajectories, as one float32 array per trajectory."""
        found: list[Any] = [None] * len(trajectories)
        everyone = np.arange(len(trajectories))
        for part in micro_batches(trajectories, everyone, self.cfg.optim.micro_batch):
            batch = make_batch([trajectories[i] for i in part], self.policy.device)
            result_N = compute(batch).float().cpu().numpy()
            ends = np.cumsum([trajectories[i].model_tokens for i in part])[:-1]
            for i, values_n in zip(part, np.split(result_N, ends), strict=True):
                found[i] = values_n
        return found

    def _set_rate(self, iteration: int) -> float:
        optim, horizon = self.cfg.optim, self.cfg.train.iterations
        factor = 1.0 if optim.schedule == "constant" else 1.0 - (iteration - 1) / horizon
        for group in self.optimizer.param_groups:
            group["lr"] = optim.lr * factor
        if self.critic_optimizer is not None:
            for group in self.critic_optimizer.param_groups:
                group["lr"] = optim.critic_lr * factor
        return optim.lr * factor


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def split_rows(rows: int, cfg: RunConfig, rng: np.random.Generator) -> list[Any]:
    """Rows of each optimizer step: every row once per epoch, shuffled.

    By ``optim.minibatch``, or evenly into exactly ``optim.updates_per_rollout`` steps.
    """
    optim = cfg.optim
    steps = (
        -(-rows // optim.minibatch) if optim.updates_per_rollout is None else optim.updates_per_rollout // optim.epochs
    )
    return [part for _ in range(optim.epochs) for part in np.array_split(rng.permutation(rows), steps)]


def micro_batches(trajectories: list[Trajectory], rows: Any, size: int) -> list[list[int]]:
    """``rows`` in parts of at most ``size``, of similar length each, so that little padding is computed."""
    ordered = sorted((int(i) for i in rows), key=lambda i: (len(trajectories[i].ids_T), i))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def explained_variance(returns: Any, values: Any) -> float:
    """1 - Var(return - value) / Var(return); 0 where the returns do not vary."""
    variance = float(np.var(returns))
    return 1.0 - float(np.var(returns - values)) / variance if variance > 1e-12 else 0.0


# -- measures ---------------------------------------------------------------------------------------


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Everything measured on the sampled trajectories, before filtering."""
    trajectories = [t for group in rollout.groups for t in group.trajectories]
    rewards_GR = reward_matrix(rollout.groups)
    std_G = spread(rewards_GR)
    turns = [turn for t in trajectories for turn in t.turns]
    won = [turn for t in trajectories if t.success for turn in t.turns]
    metrics = text_metrics("rollout", trajectories) | {
        "rollout/reward_mean": float(rewards_GR.mean()),
        "rollout/env_return": float(np.mean([t.env_return for t in trajectories])),
        "rollout/reward_std_in_group": float(std_G.mean()),
        "rollout/zero_std_share": float((std_G == 0).mean()),
        "rollout/success": float(np.mean([t.success for t in trajectories])),
        "rollout/entropy": rollout.entropy,
        "rollout/turns": len(turns) / len(trajectories),
        "rollout/actions": sum(len(turn.actions) for turn in turns) / len(trajectories),
        "rollout/truncated_share": float(np.mean([turn.truncated for turn in turns])),
        "rollout/error_share": float(np.mean([t.error is not None for t in trajectories])),
    }
    names = frozenset(action.lower() for turn in turns for action in turn.actions)
    share = template_share([turn.think for turn in won], names)
    return metrics if share is None else metrics | {"rollout/template_share_success": share}
