"""The warm start: what the package ships is what its command builds, and building is safe and fair."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from ragen_lab import warm_start
from ragen_lab.config import RunConfig, load
from ragen_lab.env.base import eval_seeds, general_seeds, is_eval_seed, make_env
from ragen_lab.findings.statistics import wilson
from ragen_lab.phrases import NOVICE
from ragen_lab.policy.model import load_policy
from ragen_lab.prompt import ChatWriter, parse_reply
from ragen_lab.rollout.collect import collect
from ragen_lab.train import Learner
from tests.conftest import SMALL

ROOT = Path(__file__).parent.parent
QUICKSTART = ROOT / "experiments" / "frozen_lake_edge.yaml"
LITTLE = {**SMALL, "policy.warm_start.episodes": 64, "policy.warm_start.epochs": 1}


def test_the_shipped_checkpoint_is_the_one_the_quickstart_asks_for():
    cfg = load(QUICKSTART)
    folder = warm_start.shipped_folder() / warm_start.key_hash(cfg)
    assert json.loads((folder / "key.json").read_text()) == warm_start.key(cfg)
    assert [p.name for p in warm_start.shipped_folder().iterdir()] == [folder.name], "and there is no other"
    size = sum(p.stat().st_size for p in folder.iterdir())
    assert size <= 3 * 2**20
    assert warm_start.prepare(cfg, Path("/nonexistent")) == folder, "so nothing has to be built"


def test_the_shipped_checkpoint_speaks_the_vocabulary_of_its_play():
    """A changed phrase or environment changes the words, and with them the checkpoint that belongs to it."""
    cfg = load(QUICKSTART)
    _, words = warm_start.synthetic_play(cfg, cfg.policy.warm_start.episodes)
    tokenizer = load_policy(warm_start.prepare(cfg, Path("/nonexistent")), cfg.policy).tokenizer
    special = {
        "<pad>",
        "<unk>",
        "<user>",
        "<assistant>",
        "<end>",
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "\n",
        "||",
    }
    assert set(tokenizer.get_vocab()) == words | special


@pytest.mark.slow
def test_the_shipped_checkpoint_can_be_rebuilt(tmp_path):
    """The command of the Makefile gives the shipped weights again: bit for bit, or (where another processor adds in
    another order) a policy of the same success on the evaluation levels."""
    torch.set_num_threads(1)
    cfg = load(QUICKSTART)
    warm_start.build(cfg, tmp_path)
    shipped = warm_start.prepare(cfg, tmp_path)
    if warm_start.digest(tmp_path) == warm_start.digest(shipped):
        return
    spans = []
    for folder in (shipped, tmp_path):
        learner = Learner(load_policy(folder, cfg.policy), cfg)
        levels = list(eval_seeds(256))
        played = collect(learner.policy, learner.writer, cfg, levels, [[i] for i in range(256)], 1.0, 0)
        spans.append(wilson(sum(g.trajectories[0].success for g in played.groups), 256))
    (low, high), (other_low, other_high) = spans
    assert low < other_high
    assert other_low < high


def test_the_shipped_weights_are_those_that_were_shipped():
    """Any other bit in the checkpoint is seen."""
    folder = warm_start.prepare(load(QUICKSTART), Path("/nonexistent"))
    assert warm_start.digest(folder) == (folder / warm_start.DIGEST_FILE).read_text().strip()


def test_arms_that_differ_in_training_share_one_start():
    """The start depends on model, play and environment only: no arm of a sweep gets another policy."""
    base = RunConfig().with_overrides(SMALL)
    for change in (
        {"seed": 3},
        {"env.eval_levels": "generated"},
        {"filter.keep_ratio": 0.25},
        {"rollout.max_actions": 20},
        {"rollout.actions_per_turn": 2},
        {"rollout.max_turns": 3},
        {"algo.name": "ppo"},
        {"reward.format_penalty": 0.5},
        {"optim.lr": 0.1},
    ):
        assert warm_start.key_hash(base.with_overrides(change)) == warm_start.key_hash(base), change
    for change in ({"env.slip": 0.1}, {"policy.tiny.hidden": 32}, {"policy.warm_start.seed": 1}):
        assert warm_start.key_hash(base.with_overrides(change)) != warm_start.key_hash(base), change


def _prepare(home: Path) -> None:
    torch.set_num_threads(1)
    warm_start.prepare(RunConfig().with_overrides(LITTLE), home)


def test_two_sweeps_at_once_build_it_once(tmp_path, monkeypatch):
    """The second process waits for the first; nothing half-written is ever seen."""
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_prepare, args=(tmp_path,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    cache = tmp_path / "cache" / "warm_start"
    folders = [p for p in cache.iterdir() if p.is_dir()]
    assert [p.name for p in folders] == [warm_start.key_hash(RunConfig().with_overrides(LITTLE))]
    monkeypatch.setattr(warm_start, "build", lambda *a: pytest.fail("it was there already"))
    assert warm_start.prepare(RunConfig().with_overrides(LITTLE), tmp_path) == folders[0]


def test_a_build_that_dies_leaves_nothing_behind(tmp_path, monkeypatch):
    def dies(cfg, folder, progress):
        (folder / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    cfg = RunConfig().with_overrides(LITTLE)
    monkeypatch.setattr(warm_start, "build", dies)
    with pytest.raises(KeyboardInterrupt):
        warm_start.prepare(cfg, tmp_path)
    assert not warm_start.is_ready(cfg, tmp_path)
    assert [p for p in (tmp_path / "cache" / "warm_start").iterdir() if p.is_dir()] == []


@pytest.mark.parametrize("env", ["frozen_lake", "sokoban", "bandit", "bandit_rev"])
@pytest.mark.parametrize("think", [True, False])
def test_the_players_write_well_formed_replies_in_every_environment(env, think):
    cfg = RunConfig().with_overrides(
        {
            **{k: v for k, v in LITTLE.items() if not k.startswith("env.")},
            "env.name": env,
            "policy.warm_start.think_share": 1.0 if think else 0.0,
            "prompt.think": think,
        }
    )
    chats, words = warm_start.synthetic_play(cfg, 80)
    for chat in chats:
        assert chat.think == think
        for _, _, reply in chat.turns:
            answer = reply.split("<answer>")[1].split("</answer>")[0]
            valid = tuple(part.strip() for part in answer.split("||"))
            assert parse_reply(reply, valid, 3, think).format_ok, reply
            assert set(reply.split()) <= words


def test_experts_look_and_novices_do_not():
    """The skill is latent: about the configured share of episodes is expert, and only those solve reliably."""
    cfg = RunConfig().with_overrides({**LITTLE, "policy.warm_start.expert_share": 0.3})
    chats, _ = warm_start.synthetic_play(cfg, 600)
    novice = [chat for chat in chats if any(sentence in chat.turns[0][2] for sentence in NOVICE)]
    assert 0.64 < len(novice) / len(chats) < 0.76
    wins = {True: [], False: []}
    for index, chat in enumerate(chats):  # every episode again, on its own level
        env = make_env(cfg.env)
        env.reset(warm_start._LEVEL_SEED + index)
        words = [w for turn in chat.turns for w in turn[2].split("<answer>")[1].split("</answer>")[0].split("||")]
        for word in words:
            result = env.step(word.strip())
            if result.done:
                break
        wins[chat in novice].append(result.success)
    assert np.mean(wins[False]) > 0.85 > 0.35 > np.mean(wins[True])
    templates = Counter(turn[2].split("<answer>")[0] for chat in chats for turn in chat.turns)
    assert max(templates.values()) / templates.total() < 0.1, (
        "many phrasings, so that one template's share means something"
    )


def test_players_on_slippery_ice_look_before_every_step():
    """One action a turn, for the whole budget; other starts keep their key, and with it their cache."""
    slippery = RunConfig().with_overrides({**LITTLE, "env.slip": 1 / 3})
    firm = RunConfig().with_overrides(LITTLE)
    for cfg, most, turns in ((slippery, 1, 10), (firm, 3, 5)):
        chats, _ = warm_start.synthetic_play(cfg, 200)
        said = [reply.count("||") + 1 for chat in chats for _, _, reply in chat.turns]
        assert max(said) == most
        assert max(len(chat.turns) for chat in chats) == turns
    assert "players" in warm_start.key(slippery)
    assert "players" not in warm_start.key(firm)


def test_held_out_names_are_known_words_but_their_payoff_is_not():
    """A model that never saw a name cannot reason about it: evaluation names occur in play, by novices only."""
    cfg = RunConfig().with_overrides(
        {**{k: v for k, v in LITTLE.items() if not k.startswith("env.")}, "env.name": "bandit"}
    )
    env = make_env(cfg.env)
    held_out = set()
    for seed in eval_seeds(64):
        env.reset(seed)
        held_out |= set(env.actions())
    chats, words = warm_start.synthetic_play(cfg, 800)
    assert held_out <= words
    said = [reply for chat in chats for _, _, reply in chat.turns if any(name in reply.split() for name in held_out)]
    assert len(said) > 20
    assert all(any(sentence in reply for sentence in NOVICE) for reply in said)


def test_the_shipped_policy_is_between_random_and_solved(small_policy):
    """There is something to sharpen and room above: about a third of the levels at T = 1."""
    cfg = RunConfig().with_overrides({**SMALL, "rollout.prompts": 64, "rollout.responses": 4})
    rollout = Learner(small_policy, cfg).roll_out(1)
    trajectories = [t for g in rollout.groups for t in g.trajectories]
    assert 0.2 < np.mean([t.success for t in trajectories]) < 0.5
    assert np.mean([turn.format_ok for t in trajectories for turn in t.turns]) > 0.95


def test_the_writer_of_the_warm_start_is_the_writer_of_the_rollout(small_policy):
    """Training and sampling see the same ids for the same chat."""
    cfg = RunConfig().with_overrides(SMALL)
    chats, _ = warm_start.synthetic_play(cfg, 5)
    writer = ChatWriter(small_policy.tokenizer, cfg.prompt, cfg.rollout)
    for chat in chats:
        trajectory = warm_start._tokenise(writer, chat)
        first = writer.first(chat.rules, chat.turns[0][0], 10)
        assert trajectory.ids_T[: len(first)].tolist() == first
        assert small_policy.tokenizer.unk_token_id not in trajectory.ids_T


def test_a_knob_at_its_default_is_not_part_of_the_key():
    """New knobs keep old starts: only what differs from the defaults (and the environment's name) counts."""
    key = warm_start.key(RunConfig().with_overrides({**SMALL, "env.slip": 1 / 3, "env.size": 5}))
    assert key["env"] == {"name": "frozen_lake", "size": 5}
    assert (key["tiny"], key["warm_start"]) == ({}, {})


def test_pitfall_19_the_levels_of_the_play_are_nobody_else_s(monkeypatch):
    """Pitfall 19: warm-start levels are no training level (below 2^32), no evaluation level and of one episode each;
    held-out names alone come from evaluation levels, and those are not played by experts."""
    from ragen_lab.env.frozen_lake import FrozenLake
    from ragen_lab.train import _LEVEL_SEEDS

    seen = []
    reset = FrozenLake.reset
    monkeypatch.setattr(FrozenLake, "reset", lambda self, seed, *a: seen.append((seed, *a)) or reset(self, seed, *a))
    warm_start.synthetic_play(RunConfig().with_overrides(SMALL), 50)
    played, words = [call for call in seen if len(call) == 2], [call for call in seen if len(call) == 1]
    assert [seed for seed, _ in played] == [2**33 + i for i in range(50)]
    assert len({dynamics for _, dynamics in played}) == 50
    assert len(words) == 256, "levels that are only read for their words"
    last = 2**33 + RunConfig().policy.warm_start.episodes
    assert _LEVEL_SEEDS <= 2**33 < last < min(*eval_seeds(1), *general_seeds(1))
    assert not is_eval_seed(last)
