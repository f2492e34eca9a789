"""The warm start: a tiny model taught by synthetic play, built once per configuration and cached.

The players' *skill is latent per episode*: an expert (true reasoning, best actions) or a novice (filler,
random actions) plays a whole episode, and nothing in the prompt tells which. A model of this mixture can
do better than it does on average, and reinforcement learning has something to find.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch.nn.functional import cross_entropy

from ragen_lab.config import RunConfig, load
from ragen_lab.env.base import EVAL_SEED_BASE, has_expert, make_env
from ragen_lab.phrases import EXPERT, NOVICE, WORDS
from ragen_lab.policy.model import load_policy, make_batch, token_logits
from ragen_lab.policy.tiny import build_model, build_tokenizer
from ragen_lab.prompt import ChatWriter, reply_text
from ragen_lab.sections import PolicySection, RolloutSection, Section
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason, Trajectory

# Raise whenever the phrases, the players or the training below change: old caches are then left aside.
VERSION = 2

# Held-out names of these environments never occur in training levels; without any play on them their
# word vectors would stay random. Novices play them, so nothing about their payoff is given away.
_HELD_OUT_WORDS = frozenset({"bandit", "bandit_rev"})
_HELD_OUT_SHARE = 0.2
_ONE_SHOT = _HELD_OUT_WORDS | {"countdown"}  # one action ends the episode
_LEVEL_SEED = 2**33  # warm-start levels: far above the level seeds that training draws
# The players' own limits. They are not the run's: arms that differ in their budgets share one start.
_TURNS, _ACTIONS, _ACTIONS_PER_TURN = 5, 10, 3
_CAREFUL = "one action a turn"  # where the ice slips: a plan of several steps is out of date after the first slide

DIGEST_FILE = "weights.sha256"  # beside the weights that the package ships

Progress = Callable[[int, int], None]


def key(cfg: RunConfig) -> dict[str, Any]:
    """All that the warm start depends on; knobs at their default are left out.

    So a new knob whose default changes nothing keeps every key. A *changed* default must raise ``VERSION``. Which
    levels are evaluated changes no level that the players see.
    """
    env = _changed(cfg.env)
    env.pop("eval_levels", None)
    found = {
        "version": VERSION,
        "tiny": _changed(cfg.policy.tiny),
        "warm_start": _changed(cfg.policy.warm_start),
        "env": {**env, "name": cfg.env.name},
        "context": _context(cfg),
    }
    return {**found, "players": _CAREFUL} if _careful(cfg) else found


def _careful(cfg: RunConfig) -> bool:
    """Whether the players look before every step (an entry of the key, so that other starts keep theirs)."""
    return getattr(cfg.env, "slip", 0.0) > 0


def _changed(section: Section) -> dict[str, Any]:
    """The fields that are not at their class default."""
    return section.model_dump(exclude_defaults=True)


def key_hash(cfg: RunConfig) -> str:
    """First 12 hex digits of the SHA-256 of ``key``."""
    text = json.dumps(key(cfg), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def shipped_folder() -> Path:
    """Where the package keeps the checkpoints that it brings along."""
    return Path(str(resources.files("ragen_lab"))) / "data" / "warm_start"


def prepare(cfg: RunConfig, home: Path, progress: Progress | None = None) -> Path:
    """The folder of the warm-started model: the shipped one, the cached one, or built now.

    Two processes that ask at once build it once: the second waits for the first. ``progress(done, total)``
    is called with optimizer steps.
    """
    name = key_hash(cfg)
    shipped = shipped_folder() / name
    if (shipped / "key.json").is_file():
        return shipped
    cache = home / "cache" / "warm_start"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / name
    with FileLock(cache / f"{name}.lock"):
        if not (target / "key.json").is_file():
            staging = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=cache))
            staging.chmod(0o755)  # mkdtemp makes private folders; a home may be shared
            try:
                build(cfg, staging, progress)
                shutil.rmtree(target, ignore_errors=True)
                os.replace(staging, target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return target


def is_ready(cfg: RunConfig, home: Path) -> bool:
    """Whether ``prepare`` would return at once."""
    name = key_hash(cfg)
    return any((folder / name / "key.json").is_file() for folder in (shipped_folder(), home / "cache" / "warm_start"))


def build(cfg: RunConfig, folder: Path, progress: Progress | None = None) -> None:
    """Play, train and write model, tokenizer and ``key.json`` into ``folder``."""
    section = cfg.policy.warm_start
    chats, words = synthetic_play(cfg, section.episodes)
    tokenizer = build_tokenizer(words)
    model = build_model(cfg.policy.tiny, len(tokenizer), _context(cfg), section.seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if section.episodes:
        policy = load_policy(folder, PolicySection(model=str(folder), device="cpu"))
        writers = {think: _writer(cfg, policy.tokenizer, think) for think in (True, False)}
        trajectories = [_tokenise(writers[chat.think], chat) for chat in chats]
        _fit(policy.model, trajectories, cfg, progress)
        policy.model.save_pretrained(folder)
    (folder / "key.json").write_text(json.dumps(key(cfg), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def ship(page: str) -> Path:
    """Build the start of an experiment page into the package (`make warm-start`), replacing what it ships."""
    cfg = load(page)
    folder = shipped_folder() / key_hash(cfg)
    shutil.rmtree(shipped_folder(), ignore_errors=True)
    folder.mkdir(parents=True)
    build(cfg, folder)
    (folder / DIGEST_FILE).write_text(digest(folder) + "\n", encoding="utf-8")
    return folder


def digest(folder: Path) -> str:
    """SHA-256 of the weights in a model folder."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


class Chat:
    """One synthetic episode: the observations seen and the replies given, in turn."""

    def __init__(self, rules: str, think: bool):
        self.rules = rules
        self.think = think
        self.turns: list[tuple[str, int, str]] = []  # observation, actions left, reply


def synthetic_play(cfg: RunConfig, episodes: int) -> tuple[list[Chat], set[str]]:
    """(episodes, every word that the environment, the players and held-out levels use)."""
    rng = np.random.default_rng([cfg.policy.warm_start.seed, VERSION])
    words = set(WORDS) | {"think", "answer"} | {str(digit) for digit in range(10)}
    words |= {"up", "down", "left", "right", "here"}
    words |= {word for s in EXPERT.get(cfg.env.name, ()) for word in s.split() if not word.startswith("{")}
    chats = [_play_episode(cfg, rng, index) for index in range(episodes)]
    for chat in chats:
        for observation, _, reply in chat.turns:
            words.update(observation.replace("\n", " ").split())
            words.update(reply.split())
    env = make_env(cfg.env)
    for index in range(256):
        words.update(env.reset(EVAL_SEED_BASE + index).replace("\n", " ").split())
        words.update(word for action in env.actions() for word in action.split())
    return chats, words


def _play_episode(cfg: RunConfig, rng: np.random.Generator, index: int) -> Chat:
    section = cfg.policy.warm_start
    skilled = bool(rng.random() < section.expert_share)
    think = bool(rng.random() < section.think_share)
    held_out = not skilled and cfg.env.name in _HELD_OUT_WORDS and rng.random() < _HELD_OUT_SHARE
    seed = int(rng.integers(256)) + EVAL_SEED_BASE if held_out else _LEVEL_SEED + index
    env = make_env(cfg.env)
    expert = skilled and has_expert(env)
    observation = env.reset(seed, int(rng.integers(2**31)))
    chat = Chat(env.rules(), think)
    actions_left = _ACTIONS
    turns, most = (_ACTIONS, 1) if _careful(cfg) else (_TURNS, _ACTIONS_PER_TURN)
    for _ in range(turns):
        count = int(rng.integers(1, most + 1))
        if expert:
            demonstration = env.demonstrate()
            actions = demonstration.actions[:count] or (str(rng.choice(env.actions())),)
            sentences = EXPERT.get(cfg.env.name, NOVICE)  # an outside environment's expert has no words of its own
            thought = sentences[rng.integers(len(sentences))].format_map(demonstration.facts)
        else:
            names = env.actions()
            one_shot = cfg.env.name in _ONE_SHOT
            actions = tuple(names[rng.integers(len(names))] for _ in range(1 if one_shot else count))
            thought = NOVICE[rng.integers(len(NOVICE))]
        actions = actions[:actions_left]
        chat.turns.append((observation, actions_left, reply_text(thought if think else None, actions)))
        done = False
        for action in actions:
            result = env.step(action)
            observation, done = result.observation, result.done
            if done:
                break
        actions_left -= len(actions)
        if done or actions_left <= 0:
            break
    return chat


def _context(cfg: RunConfig) -> int:
    """Positions that the tiny model is built for."""
    return max(2048, cfg.rollout.max_context)


def _writer(cfg: RunConfig, tokenizer: Any, think: bool) -> ChatWriter:
    rollout: RolloutSection = cfg.rollout
    return ChatWriter(tokenizer, cfg.prompt.model_copy(update={"think": think}), rollout)


def _tokenise(writer: ChatWriter, chat: Chat) -> Trajectory:
    """The chat as the rollout would have recorded it: the same contexts, replies as model tokens."""
    ids: list[int] = []
    roles: list[int] = []
    for number, (observation, actions_left, reply) in enumerate(chat.turns):
        if number == 0:
            context = writer.first(chat.rules, observation, actions_left)
        else:
            context = writer.following(observation, actions_left, ended=True)
        said = [*writer.tokenizer(reply, add_special_tokens=False)["input_ids"], writer.tokenizer.eos_token_id]
        ids += [*context, *said]
        roles += [CONTEXT] * len(context) + [MODEL] * len(said)
    count = len(ids)
    return Trajectory(
        np.array(ids, dtype=np.int64),
        np.array(roles, dtype=np.int8),
        np.zeros(count, dtype=np.int16),
        np.full(count, np.nan, dtype=np.float32),
        (),
        StopReason.TURNS,
        0,
        0,
    )


def _fit(model: torch.nn.Module, trajectories: list[Trajectory], cfg: RunConfig, progress: Progress | None) -> None:
    """Cross-entropy on the players' tokens; Adam, linear warm-up over 5 %, cosine decay to 5 %."""
    section = cfg.policy.warm_start
    optimizer = torch.optim.AdamW(model.parameters(), lr=section.lr, weight_decay=0.01, betas=(0.9, 0.98))
    rng = np.random.default_rng([section.seed, VERSION, 1])
    steps = section.epochs * -(-len(trajectories) // section.batch)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _cosine(step, steps))
    lengths = np.array([len(t.ids_T) for t in trajectories])
    done = 0
    for _ in range(section.epochs):
        # Batches of similar length (less padding), visited in random order.
        order = np.argsort(lengths + rng.uniform(0, 8, len(lengths)), kind="stable")
        batches = [order[i : i + section.batch] for i in range(0, len(order), section.batch)]
        for index in rng.permutation(len(batches)):
            batch = make_batch([trajectories[i] for i in batches[index]], next(model.parameters()).device)
            loss = cross_entropy(token_logits(model, batch, 1.0), batch.targets_N)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            done += 1
            if progress is not None:
                progress(done, steps)


def _cosine(step: int, steps: int) -> float:
    ramp = max(1, steps // 20)
    if step < ramp:
        return (step + 1) / ramp
    return 0.05 + 0.95 * 0.5 * (1 + float(np.cos(np.pi * (step - ramp) / max(1, steps - ramp))))
