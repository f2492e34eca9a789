"""Policy x environment x prompt -> groups of trajectories, all episodes of a phase in one batch.

A bad rollout is data: an environment that raises ends its own trajectory with ``StopReason.ERROR``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ragen_lab.config import RunConfig
from ragen_lab.env.base import Env, OpenActions, make_env, read_action
from ragen_lab.env.base_rates import base_rates
from ragen_lab.env.grounding import Grounded, judge
from ragen_lab.errors import ConfigError, EnvError
from ragen_lab.policy.model import Policy
from ragen_lab.prompt import ChatWriter, Parsed, parse_reply
from ragen_lab.reward import length_cost, reasoning_of, refuse_silent, turn_penalty
from ragen_lab.rollout.engine import NativeSession, Reply, refuse_unsupported
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason, Trajectory, TrajectoryGroup, Turn

# (turn, row) -> ids that the reply of this row is made to begin with. They are context, never trained on.
Force = Callable[[int, int], list[int]]


@dataclass(frozen=True)
class Rollout:
    """What a phase produced. ``entropy``: mean over the model tokens of the sampling distribution, nats."""

    groups: list[TrajectoryGroup]
    entropy: float
    tokens: int  # sampled


@dataclass
class _Episode:
    """One episode under way."""

    env: Env
    level_seed: int
    dynamics_seed: int
    observation: str = ""
    ids: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    turn_of: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    actions_left: int = 0
    stop: StopReason | None = None
    error: str | None = None

    def append(self, ids: list[int], role: int, logprobs: list[float] | None = None) -> None:
        """Add tokens of the turn that is under way; a context belongs to the turn that it opens."""
        self.ids += ids
        self.roles += [role] * len(ids)
        self.turn_of += [len(self.turns)] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [float("nan")] * len(ids)

    def finish(self) -> Trajectory:
        assert self.stop is not None
        return Trajectory(
            ids_T=np.array(self.ids, dtype=np.int64),
            roles_T=np.array(self.roles, dtype=np.int8),
            turns_T=np.array(self.turn_of, dtype=np.int16),
            logprobs_T=np.array(self.logprobs, dtype=np.float32),
            turns=tuple(self.turns),
            stop=self.stop,
            level_seed=self.level_seed,
            dynamics_seed=self.dynamics_seed,
            error=self.error,
        )


def collect(
    policy: Policy,
    writer: ChatWriter,
    cfg: RunConfig,
    level_seeds: list[int],
    dynamics_seeds: list[list[int]],
    temperature: float,
    seed: int,
    force: Force | None = None,
) -> Rollout:
    """Play ``dynamics_seeds[g][m]`` on level ``level_seeds[g]`` for every group g and member m.

    ``seed`` drives the sampling of tokens. All groups have the same number of members. ``force`` puts the beginning
    of replies into the model's mouth (row = g * members + m); the reply that is parsed includes it.
    """
    refuse_unsupported(policy, cfg.rollout.max_context)
    members = len(dynamics_seeds[0])
    episodes: list[_Episode] = []
    prompts: list[list[int]] = []
    for level_seed, dynamics in zip(level_seeds, dynamics_seeds, strict=True):
        for dynamics_seed in dynamics:
            env = make_env(cfg.env)
            refuse_silent(env, cfg.reward)
            episode = _Episode(env, level_seed, dynamics_seed, actions_left=cfg.rollout.max_actions)
            episode.observation = env.reset(level_seed, dynamics_seed)
            episodes.append(episode)
        first = episodes[-members]
        prompts.append(writer.first(first.env.rules(), first.observation, first.actions_left))
        for episode in episodes[-members:]:
            episode.append(prompts[-1], CONTEXT)
    longest = max(len(prompt) for prompt in prompts)
    if longest + cfg.rollout.max_new_tokens > cfg.rollout.max_context:
        raise ConfigError(
            "rollout.max_context",
            [
                f"rollout.max_context: {cfg.rollout.max_context} is too small for a prompt of {longest} tokens and a "
                f"reply of rollout.max_new_tokens; use at least {longest + cfg.rollout.max_new_tokens}."
            ],
        )
    session = NativeSession(policy, len(episodes), temperature, cfg.rollout.max_new_tokens, writer.eos_ids, seed)
    session.start(prompts, members)

    entropy_sum, tokens = 0.0, 0
    alive, forced = _open_replies(episodes, list(range(len(episodes))), 0, force, cfg)
    contexts: list[list[int]] = [[] for _ in alive]
    for turn in range(cfg.rollout.max_turns):
        if not alive:
            break
        replies = session.reply(alive, [c + f for c, f in zip(contexts, forced, strict=True)])
        texts = writer.decode([f + reply.ids for f, reply in zip(forced, replies, strict=True)])
        parsed = [
            _read(episodes[row].env, text, reply.truncated, cfg)
            for row, text, reply in zip(alive, texts, replies, strict=True)
        ]
        think_tokens = writer.count_tokens([p.think for p in parsed])
        for row, reply, text, meaning, count in zip(alive, replies, texts, parsed, think_tokens, strict=True):
            entropy_sum += sum(reply.entropies)
            tokens += len(reply.ids)
            _play_turn(episodes[row], reply, text, meaning, count, cfg)
        going = [row for row in alive if episodes[row].stop is None]
        if turn == cfg.rollout.max_turns - 1:
            for row in going:
                episodes[row].stop = StopReason.TURNS
            break
        ended = {row: not reply.truncated for row, reply in zip(alive, replies, strict=True)}
        alive, contexts = _open_turns(episodes, going, ended, writer, cfg)
        opened = dict(zip(alive, contexts, strict=True))
        alive, forced = _open_replies(episodes, alive, turn + 1, force, cfg)
        contexts = [opened[row] for row in alive]
    trajectories = [episode.finish() for episode in episodes]
    groups = [
        TrajectoryGroup(level_seed, tuple(trajectories[g * members : (g + 1) * members]))
        for g, level_seed in enumerate(level_seeds)
    ]
    return Rollout(groups, entropy_sum / max(tokens, 1), tokens)


def _read(env: Env, text: str, truncated: bool, cfg: RunConfig) -> Parsed:
    """What a reply means to an environment."""
    valid, read = ((), env.parse) if isinstance(env, OpenActions) else (env.actions(), None)
    return parse_reply(text, valid, cfg.rollout.actions_per_turn, cfg.prompt.think, truncated, read)


def _play_turn(episode: _Episode, reply: Reply, text: str, meaning: Parsed, think_tokens: int, cfg: RunConfig) -> None:
    """Let the environment execute a reply and write down the turn."""
    episode.append(reply.ids, MODEL, reply.logprobs)
    board = episode.env.scene() if isinstance(episode.env, Grounded) and meaning.think else None
    shown, reward, executed = episode.observation, 0.0, []
    try:
        for action in meaning.actions[: episode.actions_left]:
            if read_action(episode.env, action) is None:
                break  # valid when the reply was written, not any more
            result = episode.env.step(action)
            executed.append(action)
            reward += result.reward
            episode.observation = result.observation
            if result.done:
                episode.stop = StopReason.SUCCESS if result.success else StopReason.FAILURE
                break
    except (EnvError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        episode.stop, episode.error = StopReason.ERROR, f"{type(error).__name__}: {error}"
    episode.actions_left -= len(executed)
    if episode.stop is None and episode.actions_left == 0:
        episode.stop = StopReason.ACTIONS
    said = None
    if board is not None and meaning.format_ok and isinstance(episode.env, Grounded):
        # measured whether it is rewarded or not, so that arms can be compared
        said = judge(meaning.think, board, episode.env.scene())
    pay = reasoning_of(cfg.reward.reasoning)
    episode.turns.append(
        Turn(
            observation=shown,
            reply=text,
            think=meaning.think,
            actions=tuple(executed),
            format_ok=meaning.format_ok,
            truncated=reply.truncated,
            reward=reward,
            penalty=turn_penalty(meaning.format_ok, cfg.reward),
            reply_tokens=len(reply.ids),
            think_tokens=think_tokens,
            reasoning=cfg.reward.reasoning_weight * pay(said, base_rates(cfg.env)) if said and pay else 0.0,
            length_cost=length_cost(len(reply.ids), cfg.reward),
            true_statements=said.true if said is not None else 0,
            false_statements=said.false if said is not None else 0,
        )
    )


def _open_replies(
    episodes: list[_Episode], rows: list[int], turn: int, force: Force | None, cfg: RunConfig
) -> tuple[list[int], list[list[int]]]:
    """The forced beginning of each row's reply; an episode that has no room left for a reply behind it ends."""
    if force is None:
        return rows, [[] for _ in rows]
    kept: list[int] = []
    beginnings: list[list[int]] = []
    for row in rows:
        begun = force(turn, row)
        if len(episodes[row].ids) + len(begun) + cfg.rollout.max_new_tokens > cfg.rollout.max_context:
            episodes[row].stop = StopReason.CONTEXT
            continue
        episodes[row].append(begun, CONTEXT)
        kept.append(row)
        beginnings.append(begun)
    return kept, beginnings


def _open_turns(
    episodes: list[_Episode], going: list[int], ended: dict[int, bool], writer: ChatWriter, cfg: RunConfig
) -> tuple[list[int], list[list[int]]]:
    """The context that opens the next turn of each episode; one that has no room left ends."""
    rows: list[int] = []
    contexts: list[list[int]] = []
    for row in going:
        episode = episodes[row]
        context = writer.following(episode.observation, episode.actions_left, ended[row])
        if len(episode.ids) + len(context) + cfg.rollout.max_new_tokens > cfg.rollout.max_context:
            episode.stop = StopReason.CONTEXT
            continue
        episode.append(context, CONTEXT)
        rows.append(row)
        contexts.append(context)
    return rows, contexts
