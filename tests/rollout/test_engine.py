"""The native engine samples from the policy that the trainer differentiates, whatever leaves the batch when."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ragen_lab.config import RunConfig
from ragen_lab.errors import ConfigError
from ragen_lab.policy.model import make_batch, token_logprobs
from ragen_lab.prompt import ChatWriter
from ragen_lab.rollout.collect import collect
from ragen_lab.rollout.engine import NativeSession
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason
from tests.conftest import SMALL


def roll(policy, overrides=None, seed=3, temperature=1.0):
    cfg = RunConfig().with_overrides({**SMALL, **(overrides or {})})
    writer = ChatWriter(policy.tokenizer, cfg.prompt, cfg.rollout)
    levels = list(range(cfg.rollout.prompts))
    dynamics = [[10 * g + m for m in range(cfg.rollout.responses)] for g in levels]
    return collect(policy, writer, cfg, levels, dynamics, temperature, seed), cfg


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_pitfall_06_07_15_sampler_and_trainer_agree_on_every_token(small_policy, temperature):
    """Pitfalls 6, 7, 15: the sampler's log-probs (cache, swapped rows, several turns) are the training
    forward's at the same temperature, and so is the entropy."""
    rollout, _ = roll(small_policy, temperature=temperature)
    trajectories = [t for g in rollout.groups for t in g.trajectories]
    assert len({len(t.turns) for t in trajectories}) > 1, "the episodes should end at different turns"
    with torch.no_grad():
        trained_N, entropy_N = token_logprobs(
            small_policy.model, make_batch(trajectories, small_policy.device), temperature
        )
    sampled_N = np.concatenate([t.logprobs_T[t.roles_T == MODEL] for t in trajectories])
    np.testing.assert_allclose(sampled_N, trained_N.numpy(), atol=2e-5)
    assert rollout.entropy == pytest.approx(float(entropy_N.mean()), abs=1e-5)
    # A temperature that only one side applies would be seen:
    if temperature != 1.0:
        with torch.no_grad():
            other_N, _ = token_logprobs(small_policy.model, make_batch(trajectories, small_policy.device), 1.0)
        assert np.abs(sampled_N - other_N.numpy()).max() > 0.01


def test_pitfall_19_same_seed_same_tokens_and_members_differ(small_policy):
    """Pitfall 19: equal seeds give equal ids; the members of a group differ while their prompt is equal."""
    first, _ = roll(small_policy)
    again, _ = roll(small_policy)
    other, _ = roll(small_policy, seed=4)
    ids = [[t.ids_T.tolist() for t in g.trajectories] for g in first.groups]
    assert ids == [[t.ids_T.tolist() for t in g.trajectories] for g in again.groups]
    assert ids != [[t.ids_T.tolist() for t in g.trajectories] for g in other.groups]
    for group in first.groups:
        prompts = {tuple(t.ids_T[: int(np.argmax(t.roles_T == MODEL))]) for t in group.trajectories}
        assert len(prompts) == 1
        assert len({tuple(t.ids_T) for t in group.trajectories}) > 1


def test_a_prompt_shared_by_a_group_equals_prompts_fed_one_by_one(small_policy):
    """Sharing a group's prefix in the cache changes no log-prob."""
    prompts = [[2, 11, 12, 3], [2, 15, 16, 17, 18, 3]]
    shared = NativeSession(small_policy, 4, 1.0, 8, frozenset({4}), seed=0)
    shared.start(prompts, members=2)
    alone = NativeSession(small_policy, 4, 1.0, 8, frozenset({4}), seed=0)
    alone.start([prompts[0], prompts[0], prompts[1], prompts[1]], members=1)
    together = shared.reply([0, 1, 2, 3], [[]] * 4)
    separate = alone.reply([0, 1, 2, 3], [[]] * 4)
    assert [r.ids for r in together] == [r.ids for r in separate]
    for a, b in zip(together, separate, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-6)


def test_pitfall_05_unwritten_cache_positions_cannot_leak(small_policy):
    """Pitfall 5: whatever lies in the cache beyond a row's own tokens changes nothing."""

    def replies(poison: bool):
        session = NativeSession(small_policy, 3, 1.0, 8, frozenset({4}), seed=0)
        session.start([[2, 11, 3], [2, 11, 12, 13, 14, 15, 3], [2, 9, 3]], members=1)
        if poison:
            with torch.inference_mode():
                for held in session.cache.keys + session.cache.values:
                    for row, length in enumerate(session.lengths):
                        held[session.slot[row], :, length:] = 1e4
        first = session.reply([0, 1, 2], [[]] * 3)
        return first + session.reply([0, 2], [[5, 6], [7]])

    for clean, poisoned in zip(replies(False), replies(True), strict=True):
        assert clean.ids == poisoned.ids
        np.testing.assert_allclose(clean.logprobs, poisoned.logprobs, atol=1e-6)


def test_rows_that_leave_and_come_back_keep_their_history(small_policy):
    """Any subset and order of rows may reply; each continues its own chat (checked against the forward)."""
    session = NativeSession(small_policy, 4, 1.0, 6, frozenset({4}), seed=1)
    prompts = [[2, 9, 10 + i, 3] for i in range(4)]
    session.start(prompts, members=1)
    chats = [list(p) for p in prompts]
    marks: list[tuple[int, int, list[float]]] = []
    for rows in ([0, 1, 2, 3], [3, 1], [2], [1, 0, 3]):
        contexts = [[20 + row, 21] if marks else [] for row in rows]
        for row, context, reply in zip(rows, contexts, session.reply(rows, contexts), strict=True):
            chats[row] += context
            marks.append((row, len(chats[row]), reply.logprobs))
            chats[row] += reply.ids
    for row, start, logprobs in marks:
        ids = torch.tensor([chats[row]])
        with torch.no_grad():
            logits = small_policy.model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        expected = [float(logits[start + k - 1, chats[row][start + k]]) for k in range(len(logprobs))]
        np.testing.assert_allclose(logprobs, expected, atol=2e-5)


def test_pitfall_01_02_roles_and_turns_cover_every_token(small_policy):
    """Pitfalls 1, 2: every id has a role and a turn; model tokens have log-probs, context tokens none."""
    rollout, cfg = roll(small_policy)
    for trajectory in (t for g in rollout.groups for t in g.trajectories):
        assert len(trajectory.ids_T) == len(trajectory.roles_T) == len(trajectory.turns_T) == len(trajectory.logprobs_T)
        assert (np.isfinite(trajectory.logprobs_T) == (trajectory.roles_T == MODEL)).all()
        assert trajectory.roles_T[0] == CONTEXT
        assert trajectory.roles_T[-1] == MODEL, "the episode ends with what the model said"
        assert set(trajectory.turns_T.tolist()) == set(range(len(trajectory.turns)))
        for number, turn in enumerate(trajectory.turns):
            said = trajectory.ids_T[(trajectory.turns_T == number) & (trajectory.roles_T == MODEL)]
            assert len(said) == turn.reply_tokens <= cfg.rollout.max_new_tokens
        assert sum(len(turn.actions) for turn in trajectory.turns) <= cfg.rollout.max_actions


def test_limits_give_their_stop_reasons(small_policy):
    """Turn, action and context limits end episodes with their own reason; a truncated reply is a format error."""
    one_turn, _ = roll(small_policy, {"rollout.max_turns": 1})
    assert {t.stop for g in one_turn.groups for t in g.trajectories} <= {
        StopReason.TURNS,
        StopReason.SUCCESS,
        StopReason.FAILURE,
        StopReason.ACTIONS,
    }
    assert any(t.stop is StopReason.TURNS for g in one_turn.groups for t in g.trajectories)
    one_action, _ = roll(small_policy, {"rollout.max_actions": 1})
    assert any(t.stop is StopReason.ACTIONS for g in one_action.groups for t in g.trajectories)
    assert all(sum(len(u.actions) for u in t.turns) <= 1 for g in one_action.groups for t in g.trajectories)
    tight, _ = roll(small_policy, {"rollout.max_context": 60})
    assert any(t.stop is StopReason.CONTEXT for g in tight.groups for t in g.trajectories)
    cut, _ = roll(small_policy, {"rollout.max_new_tokens": 3})
    assert all(
        u.truncated and not u.format_ok and u.penalty < 0 for g in cut.groups for t in g.trajectories for u in t.turns
    )


def test_an_environment_that_raises_is_data(small_policy, monkeypatch):
    """A bad rollout ends its own trajectory and no other."""
    from ragen_lab.env.frozen_lake import FrozenLake

    step = FrozenLake.step

    def breaks(self, action):
        if action == "Up":
            raise ValueError("the ice has melted")
        return step(self, action)

    monkeypatch.setattr(FrozenLake, "step", breaks)
    rollout, _ = roll(small_policy)
    trajectories = [t for g in rollout.groups for t in g.trajectories]
    broken = [t for t in trajectories if t.stop is StopReason.ERROR]
    assert broken
    assert len(broken) < len(trajectories)
    assert all(t.error == "ValueError: the ice has melted" for t in broken)


def test_attention_that_the_engine_cannot_reproduce_is_refused(small_policy, monkeypatch):
    """A sliding window shorter than the context, or another kind of layer, would be silently wrong."""
    monkeypatch.setattr(small_policy.model.config, "sliding_window", 64, raising=False)
    monkeypatch.setattr(small_policy.model.config, "layer_types", ["sliding_attention"] * 2, raising=False)
    with pytest.raises(ConfigError, match="sliding window of 64 tokens"):
        roll(small_policy)
    roll(small_policy, {"rollout.max_context": 64})
    monkeypatch.setattr(small_policy.model.config, "layer_types", ["linear_attention", "full_attention"])
    with pytest.raises(ConfigError, match="linear_attention"):
        roll(small_policy, {"rollout.max_context": 64})
