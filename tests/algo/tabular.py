"""A problem small enough to enumerate: two turns, three tokens, a policy that is one table.

The policy is a causal LM with a row of logits for every possible prefix, behind the same interface as a
transformers model; so the trainer's own code (batches, log-probs, advantages, losses, optimizer step) runs
on it unchanged, and every expectation can be summed over all episodes.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from ragen_lab.config import RunConfig
from ragen_lab.policy.model import Policy
from ragen_lab.train import Learner
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason, Trajectory, TrajectoryGroup, Turn

VOCABULARY = 3
PROMPT = [0]  # the id that padding has too: roles decide, never ids
TURNS = 2
# What the environment answers to the first action; without and with observation tokens between the turns.
OBSERVATIONS = {"silent": lambda a: [], "talking": lambda a: [a, 2 - a]}
BASE = VOCABULARY + 1


def reward_1(a: int) -> float:
    return [0.5, -1.0, 0.2][a]


def reward_2(a: int, b: int) -> float:
    return [[1.0, 0.0, -2.0], [0.0, 3.0, 0.5], [-1.0, 0.25, 2.0]][a][b]


class TabularLM(nn.Module):
    """Logits of the next token from a table with one row per prefix."""

    def __init__(self, length: int, seed: int | None):
        super().__init__()
        generator = torch.Generator().manual_seed(seed or 0)
        table = torch.randn(BASE**length, VOCABULARY, generator=generator)
        self.table = nn.Parameter(table if seed is not None else torch.zeros_like(table))
        self._ragen_lab_plain_head = False

    @staticmethod
    def states(ids_BT: torch.Tensor) -> torch.Tensor:
        """Row of the table for every prefix, [B, T]."""
        state, states = torch.zeros_like(ids_BT[:, 0]), []
        for t in range(ids_BT.shape[1]):
            state = state * BASE + ids_BT[:, t] + 1
            states.append(state)
        return torch.stack(states, dim=1)

    def forward(self, input_ids, position_ids=None, use_cache=False):
        return SimpleNamespace(logits=self.table[self.states(input_ids)])

    def get_output_embeddings(self):
        return SimpleNamespace(weight=torch.empty(VOCABULARY, 1))


class TabularCritic(nn.Module):
    """A value for every prefix."""

    def __init__(self, length: int, seed: int | None):
        super().__init__()
        generator = torch.Generator().manual_seed(seed or 0)
        table = torch.randn(BASE**length, generator=generator)
        self.table = nn.Parameter(table if seed is not None else torch.zeros_like(table))

    def forward(self, batch):
        return self.table[TabularLM.states(batch.ids_BT)][batch.before]


def length_of(observe) -> int:
    return 1 + 1 + len(observe(0)) + 1


def every_episode():
    """All pairs of actions."""
    return list(itertools.product(range(VOCABULARY), repeat=TURNS))


def prefixes(actions, observe):
    """The ids before each of the two actions."""
    a, _ = actions
    return [list(PROMPT), [*PROMPT, a, *observe(a)]]


def log_probability(table, actions, observe):
    """log p(episode), written without any of the trainer's code."""
    total = torch.zeros(())
    for prefix, action in zip(prefixes(actions, observe), actions, strict=True):
        row = 0
        for token in prefix:
            row = row * BASE + token + 1
        total = total + table[row].log_softmax(-1)[action]
    return total


def trajectory(model, actions, observe, rewards=(reward_1, reward_2), level=0):
    """The episode as the rollout would hand it over."""
    a, b = actions
    seen = observe(a)
    ids = np.array([*PROMPT, a, *seen, b], dtype=np.int64)
    roles = np.array([CONTEXT, MODEL, *[CONTEXT] * len(seen), MODEL], dtype=np.int8)
    turns = np.array([0, 0, *[1] * len(seen), 1], dtype=np.int16)
    logprobs = np.full(len(ids), np.nan, dtype=np.float32)
    with torch.no_grad():
        for position, (prefix, action) in zip(
            np.flatnonzero(roles == MODEL), zip(prefixes(actions, observe), actions, strict=True), strict=True
        ):
            logprobs[position] = float(model(torch.tensor([prefix])).logits[0, -1].log_softmax(-1)[action])
    earned = (rewards[0](a), rewards[1](a, b))
    records = tuple(Turn("o", "r", "t", (), True, False, r, 0.0, 1, 0) for r in earned)
    return Trajectory(ids, roles, turns, logprobs, records, StopReason.TURNS, level, 0)


def group(model, members, observe, **knobs):
    made = {actions: trajectory(model, actions, observe, **knobs) for actions in set(members)}
    return TrajectoryGroup(0, tuple(made[actions] for actions in members))


def sample(model, count, observe, rng):
    """``count`` episodes drawn from the policy."""
    episodes = every_episode()
    with torch.no_grad():
        weights = np.array([float(log_probability(model.table, e, observe).exp()) for e in episodes])
    return [episodes[i] for i in rng.choice(len(episodes), size=count, p=weights / weights.sum())]


def expected_reward(table, observe, rewards=(reward_1, reward_2)):
    """J = sum over episodes of p(episode) x reward; differentiable."""
    return sum(log_probability(table, e, observe).exp() * (rewards[0](e[0]) + rewards[1](*e)) for e in every_episode())


def config(**knobs):
    return RunConfig().with_overrides(
        {
            "policy.model": "tiny",
            "prompt.style": "compact",
            "filter.keep_ratio": 1.0,
            "filter.kind": "random",
            "rollout.max_turns": TURNS,
            "rollout.max_new_tokens": 1,
            "algo.entropy_coef": 0.0,
            "optim.grad_clip": 1e9,
            "optim.updates_per_rollout": 1,
            "train.check": "off",
            **{key.replace("__", "."): value for key, value in knobs.items()},
        }
    )


def learner(cfg, observe, seed=0, optimizer=torch.optim.SGD):
    """The trainer around the table, without the parts that load a real model."""
    found = object.__new__(Learner)
    length = length_of(observe)
    found.cfg = cfg
    found.policy = Policy(TabularLM(length, seed), None, torch.device("cpu"))
    found.reference = None
    found.optimizer = optimizer(found.policy.model.parameters(), lr=cfg.optim.lr)
    found.critic = TabularCritic(length, None if seed is None else seed + 1) if cfg.algo.has_critic else None
    found.critic_optimizer = (
        optimizer(found.critic.parameters(), lr=cfg.optim.critic_lr) if found.critic is not None else None
    )
    return found
