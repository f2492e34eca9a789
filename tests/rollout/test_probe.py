"""The reasoning probes force what they say they force, and the mutual information is the textbook's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ragen_lab.config import RunConfig
from ragen_lab.diversity import mutual_information
from ragen_lab.policy.model import make_batch, token_logprobs
from ragen_lab.prompt import END_THINK, THINK, ChatWriter
from ragen_lab.rollout.collect import collect
from ragen_lab.rollout.probe import (
    first_thoughts,
    play_probe,
    shuffled_thoughts,
    thought_ids,
    thought_logprobs,
)
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason, Trajectory, Turn
from tests.conftest import SMALL

ROWS = 24


@pytest.fixture(scope="module")
def evaluation(small_policy):
    cfg = RunConfig().with_overrides(SMALL)
    writer = ChatWriter(small_policy.tokenizer, cfg.prompt, cfg.rollout)
    levels, dynamics = list(range(ROWS)), [[i] for i in range(ROWS)]
    rollout = collect(small_policy, writer, cfg, levels, dynamics, cfg.eval.temperature, 7)
    return cfg, writer, levels, dynamics, [g.trajectories[0] for g in rollout.groups]


def probe(kind, small_policy, evaluation):
    cfg, writer, levels, dynamics, normal = evaluation
    played = play_probe(kind, small_policy, writer, cfg, levels, dynamics, 7, normal)
    return [g.trajectories[0] for g in played.groups]


def replies(trajectory, writer):
    """(forced ids + sampled ids, sampled ids) of each turn."""
    found = []
    for turn in range(len(trajectory.turns)):
        mine = trajectory.turns_T == turn
        ids, roles = trajectory.ids_T[mine].tolist(), trajectory.roles_T[mine]
        said = [i for i, role in zip(ids, roles, strict=True) if role == MODEL]
        opened = len(ids) - ids[::-1].index(writer.tokenizer.convert_tokens_to_ids("<assistant>"))
        found.append((ids[opened:], said))
    return found


def test_an_emptied_thought_is_forced_in_every_turn(small_policy, evaluation):
    _, writer, _, _, normal = evaluation
    empty = writer.tokenizer(f"{THINK}{END_THINK}", add_special_tokens=False)["input_ids"]
    for trajectory in probe("empty_think", small_policy, evaluation):
        for turn, (reply, said) in zip(trajectory.turns, replies(trajectory, writer), strict=True):
            assert reply == empty + said
            assert turn.think == ""
            assert turn.reply_tokens == len(said)
    assert any(turn.think for t in normal for turn in t.turns)


def test_a_shuffled_thought_is_another_row_s_token_for_token(small_policy, evaluation):
    _, writer, _, _, normal = evaluation
    donors = {tuple(thought_ids(t, turn, writer)): row for row, t in enumerate(normal) for turn in range(len(t.turns))}
    played = probe("shuffled_think", small_policy, evaluation)
    swapped = 0
    for row, trajectory in enumerate(played):
        for reply, said in replies(trajectory, writer):
            forced = tuple(reply[: len(reply) - len(said)])
            assert forced in donors
            swapped += forced != tuple(thought_ids(normal[row], 0, writer))
    assert swapped > 0.8 * sum(len(t.turns) for t in played)


def test_the_shuffle_has_no_fixed_point_and_uses_every_thought_once(evaluation):
    _, writer, _, _, normal = evaluation
    force = shuffled_thoughts(normal, writer, np.random.default_rng(0))
    own = [thought_ids(t, 0, writer) for t in normal]
    given = [force(0, row) for row in range(ROWS)]
    assert sorted(given) == sorted(own), "a permutation of the turn's thoughts"
    ring = {row: [i for i in range(ROWS) if own[i] == given[row]] for row in range(ROWS)}
    assert all(donors != [row] for row, donors in ring.items())
    assert force(9, 0) == force(9, 0), "beyond the last turn the last thoughts serve"


def test_without_a_complete_thought_nothing_is_forced(small_policy, evaluation):
    cfg, writer, levels, dynamics, _ = evaluation
    cut = cfg.with_overrides({"rollout.max_new_tokens": 1})
    rollout = collect(small_policy, writer, cut, levels, dynamics, 0.5, 7)
    normal = [g.trajectories[0] for g in rollout.groups]
    assert shuffled_thoughts(normal, writer, np.random.default_rng(0))(0, 0) == []
    assert first_thoughts(normal, writer, 8) == ([], [])


def test_pitfall_06_forced_tokens_are_context_and_the_rest_has_the_policy_s_log_probs(small_policy, evaluation):
    """Pitfall 6: a forced beginning is in the cache as if the model had said it, and is never a trained token."""
    for kind in ("empty_think", "shuffled_think"):
        trajectories = probe(kind, small_policy, evaluation)
        sampled = np.concatenate([t.logprobs_T[t.roles_T == MODEL] for t in trajectories])
        with torch.no_grad():
            trained_N, _ = token_logprobs(small_policy.model, make_batch(trajectories, small_policy.device), 0.5)
        np.testing.assert_allclose(sampled, trained_N.numpy(), atol=2e-5)
        assert all(np.isnan(t.logprobs_T[t.roles_T == CONTEXT]).all() for t in trajectories)


def test_the_probe_without_thinking_asks_for_an_answer_at_once(small_policy, evaluation):
    _, writer, _, _, normal = evaluation
    played = probe("no_think", small_policy, evaluation)
    opened = writer.decode([played[0].ids_T[:4].tolist()])[0].split()
    assert opened[:2] == ["<user>", "answer"]
    assert writer.decode([normal[0].ids_T[:4].tolist()])[0].split()[:2] == ["<user>", "think"]
    # the shipped model has only ever replied with a thought, which is no format without one
    assert all(not turn.format_ok for t in played for turn in t.turns if turn.think)


def test_a_reply_that_would_not_fit_behind_its_forced_beginning_ends_the_episode(small_policy, evaluation):
    cfg, writer, levels, dynamics, normal = evaluation
    longest = max(int(np.argmax(t.roles_T == MODEL)) for t in normal)
    tight = cfg.with_overrides({"rollout.max_context": longest + cfg.rollout.max_new_tokens})
    played = play_probe("empty_think", small_policy, writer, tight, levels, dynamics, 7, normal)
    stops = {str(t.stop) for g in played.groups for t in g.trajectories}
    assert "context" in stops
    assert any(len(t.turns) == 0 for g in played.groups for t in g.trajectories)


def test_no_force_changes_nothing(small_policy, evaluation):
    cfg, writer, levels, dynamics, normal = evaluation
    again = collect(small_policy, writer, cfg, levels, dynamics, cfg.eval.temperature, 7, lambda turn, row: [])
    assert [g.trajectories[0].ids_T.tolist() for g in again.groups] == [t.ids_T.tolist() for t in normal]


# -- mutual information -----------------------------------------------------------------------------


def test_mutual_information_of_a_hand_made_matrix():
    """Two thoughts, two prompts. Row 1: p = 1/2 and 1/4, marginal (1/2 + 1/4) / 2 = 3/8: ln(4/3) = 0.2877.
    Row 2: p(Z2|X1) = 1/3, p(Z2|X2) = 1/6, marginal 1/4: ln(2/3) = -0.4055. Mean -0.0589; one of two retrieved."""
    matrix = np.log([[1 / 2, 1 / 4], [1 / 3, 1 / 6]])
    information, retrieval = mutual_information(matrix)
    assert information == pytest.approx((math.log(4 / 3) + math.log(2 / 3)) / 2)
    assert retrieval == 0.5


def test_thoughts_that_ignore_their_prompts_tell_nothing_and_copies_tell_all():
    ignoring = np.log(np.array([[0.2] * 4, [0.5] * 4, [0.01] * 4, [0.1] * 4]))
    assert mutual_information(ignoring) == (pytest.approx(0.0), pytest.approx(1 / 4))
    copying = np.full((4, 4), -500.0) + 499 * np.eye(4)
    assert mutual_information(copying) == (pytest.approx(math.log(4)), 1.0)
    assert mutual_information(copying[:, [1, 2, 3, 0]])[1] == 0.0
    long = np.full((3, 3), -9000.0) + 10 * np.eye(3)  # no underflow for long thoughts
    assert mutual_information(long)[0] == pytest.approx(math.log(3), abs=1e-3)


def test_teacher_forced_log_probs_are_the_forward_s(small_policy, evaluation):
    """L[i, j] against one plain forward per pair; the diagonal is what the sampler said of its own thought."""
    _, writer, _, _, normal = evaluation
    prompts, thoughts = first_thoughts(normal, writer, 5)
    matrix = thought_logprobs(small_policy, prompts, thoughts, 0.5)
    for i, j in ((0, 0), (1, 4), (3, 2)):
        ids = torch.tensor([prompts[j] + thoughts[i]])
        with torch.no_grad():
            logits = (small_policy.model(input_ids=ids, use_cache=False).logits[0] / 0.5).log_softmax(-1)
        begin = len(prompts[j])
        expected = sum(float(logits[begin + k - 1, token]) for k, token in enumerate(thoughts[i]))
        assert matrix[i, j] == pytest.approx(expected, abs=1e-4)
    first = normal[0]
    sampled = first.logprobs_T[first.roles_T == MODEL][: len(thoughts[0])].sum()
    assert matrix[0, 0] == pytest.approx(float(sampled), abs=1e-4)


def test_a_model_that_ignores_and_one_that_copies(small_policy, monkeypatch):
    """The estimate on whole models: ignoring the prompt gives 0 nats, copying it gives ln N and every prompt back."""
    from ragen_lab.rollout import probe as module

    prompts = [[2, 20 + k, 3] for k in range(6)]
    thoughts = [[30, 20 + k, 31] for k in range(6)]

    def logprobs_of(copies):
        def compute(model, batch, temperature):
            prompt_word_N = batch.ids_BT[batch.row_N, 1]
            digit_N = (batch.targets_N >= 20) & (batch.targets_N < 26)
            right_N = batch.targets_N == prompt_word_N
            copied_N = torch.where(right_N, torch.tensor(-0.01), torch.tensor(-40.0))
            free_N = torch.tensor(-math.log(6.0)).expand(len(batch.targets_N))
            return torch.where(digit_N, copied_N if copies else free_N, torch.tensor(-0.5)), free_N

        return compute

    monkeypatch.setattr(module, "token_logprobs", logprobs_of(False))
    assert mutual_information(thought_logprobs(small_policy, prompts, thoughts, 1.0)) == (
        pytest.approx(0.0, abs=1e-6),
        pytest.approx(1 / 6),
    )
    monkeypatch.setattr(module, "token_logprobs", logprobs_of(True))
    assert mutual_information(thought_logprobs(small_policy, prompts, thoughts, 1.0)) == (
        pytest.approx(math.log(6)),
        1.0,
    )


# -- by hand: 5 <think>, 7 </think>, 8 what follows; each thought's word is its own ------------------------


class Words:
    """A writer whose ids are words."""

    def decode(self, rows):
        words = {5: "<think>", 7: "</think>"}
        return [" ".join(words.get(i, str(i)) for i in ids) for ids in rows]


def two_turns(prompt, first, second):
    """A trajectory: a prompt, a reply that thinks ``first``, a context, a reply that thinks ``second``."""
    ids = [*prompt, 5, first, 7, 8, 1, 5, second, 7, 8]
    n = len(prompt)
    roles = [CONTEXT] * n + [MODEL] * 4 + [CONTEXT] + [MODEL] * 4
    turn = Turn("o", "r", "t", ("Up",), True, False, 0.0, 0.0, 4, 1)
    return Trajectory(
        np.array(ids), np.array(roles, dtype=np.int8), np.array([0] * (n + 4) + [1] * 5, dtype=np.int16),
        np.zeros(len(ids), dtype=np.float32), (turn, turn), StopReason.TURNS, 0, 0,
    )  # fmt: skip


def test_a_shuffled_thought_is_of_the_same_turn_and_whole():
    normal = [two_turns([2, 3], 20, 21), two_turns([2, 4], 30, 31)]
    assert thought_ids(normal[0], 1, Words()) == [5, 21, 7]
    force = shuffled_thoughts(normal, Words(), np.random.default_rng(0))
    assert [force(turn, row) for turn in (0, 1) for row in (0, 1)] == [[5, 30, 7], [5, 20, 7], [5, 31, 7], [5, 21, 7]]
    assert force(5, 0) == [5, 31, 7]


def test_prompts_of_the_estimate_are_different_ones():
    """The same prompt twice would make its thoughts look as if they told nothing."""
    normal = [
        two_turns([2, 3], 20, 21),
        two_turns([2, 3], 22, 23),
        two_turns([2, 4], 30, 31),
        two_turns([2, 6], 40, 41),
    ]
    prompts, thoughts = first_thoughts(normal, Words(), 2)
    assert (prompts, thoughts) == ([[2, 3], [2, 4]], [[5, 20, 7], [5, 30, 7]])
