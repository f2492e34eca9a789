"""Pitfalls 4 and 15 on models made on the spot: rotary and absolute positions, and one that has dropout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from ragen_lab.policy.model import Critic, Policy, frozen_copy, make_batch, token_logprobs
from ragen_lab.rollout.engine import NativeSession
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason, Trajectory

VOCABULARY = 32


def absolute(dropout=0.0):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=2,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, initializer_range=0.3,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def rotary():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


MODELS = {"absolute": absolute(), "rotary": rotary()}


def trajectory(ids, context):
    """``context`` tokens of context, then the model's."""
    n = len(ids)
    roles = np.array([CONTEXT] * context + [MODEL] * (n - context), dtype=np.int8)
    none = np.full(n, np.nan, dtype=np.float32)
    return Trajectory(np.array(ids), roles, np.zeros(n, dtype=np.int16), none, (), StopReason.TURNS, 0, 0)


def ours(model, rows):
    """Log-probs of each row's model tokens, from one padded batch."""
    batch = make_batch(rows, torch.device("cpu"))
    with torch.no_grad():
        found_N = token_logprobs(model, batch, 1.0)[0]
    return [found_N[batch.row_N == i] for i in range(len(rows))]


rows_of = st.lists(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=3, max_size=12).map(lambda ids: trajectory(ids, 2)),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("kind", sorted(MODELS))
@settings(max_examples=25)
@given(rows=rows_of, order=st.randoms(use_true_random=False))
def test_pitfall_04_a_row_has_its_log_probs_in_any_batch(kind, rows, order):
    """Pitfall 4: alone, padded to any length, in any order of rows; ids of 0, which padding has too, among them."""
    model = MODELS[kind]
    alone = [ours(model, [row])[0] for row in rows]
    places = list(range(len(rows)))
    order.shuffle(places)
    for place, found in zip(places, ours(model, [rows[i] for i in places]), strict=True):
        torch.testing.assert_close(found, alone[place], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_pitfall_04_left_padded_and_packed_rows_agree_with_ours(kind):
    """Pitfall 4: the same rows laid out by hand, padded on the left and packed into one, each token at the position
    that it has alone and blind for whatever is not of its row."""
    model = MODELS[kind]
    rows = [trajectory([3, 9, 4, 7, 1, 0, 2], 3), trajectory([5, 6, 8], 2), trajectory([1, 1, 2, 3, 5], 2)]
    expected = ours(model, rows)
    longest = max(len(t.ids_T) for t in rows)
    packed = [(i, k) for i, t in enumerate(rows) for k in range(len(t.ids_T))]
    row_P, position_P = (torch.tensor(numbers) for numbers in zip(*packed, strict=True))
    seen_PP = (row_P[:, None] == row_P[None]) & (position_P[:, None] >= position_P[None])
    with torch.no_grad():
        for t, wanted in zip(rows, expected, strict=True):
            gap, n = longest - len(t.ids_T), len(t.ids_T)
            ids = torch.tensor([[0] * gap + t.ids_T.tolist()])
            mask = torch.tensor([[0] * gap + [1] * n])
            places = torch.tensor([[0] * gap + list(range(n))])
            logits = model(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False).logits[0]
            found = logits.log_softmax(-1)[gap + 1 : -1].gather(1, ids[0, gap + 2 :, None])[:, 0]
            torch.testing.assert_close(found[-len(wanted) :], wanted, atol=1e-5, rtol=0)
        ids_1P = torch.cat([torch.from_numpy(t.ids_T) for t in rows])[None]
        logits_PV = model(
            input_ids=ids_1P, position_ids=position_P[None], attention_mask=seen_PP[None, None], use_cache=False
        ).logits[0].log_softmax(-1)  # fmt: skip
    for i, (t, wanted) in enumerate(zip(rows, expected, strict=True)):
        first = int((row_P == i).nonzero()[0])
        places = [first + k for k in range(len(t.ids_T)) if t.roles_T[k] == MODEL]
        found = torch.stack([logits_PV[place - 1, ids_1P[0, place]] for place in places])
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_pitfall_04_the_engine_agrees_with_the_trainer_for_either_kind_of_positions(kind):
    """Pitfall 4: two rows of different length, two replies each, over one cache."""
    model = MODELS[kind]
    session = NativeSession(Policy(model, None, torch.device("cpu")), 2, 1.0, 6, frozenset({4}), seed=0)
    chats = [[2, 11, 3], [2, 12, 13, 14, 3]]
    session.start(chats, 1)
    for context in ([], [7, 8]):
        replies = session.reply([0, 1], [context, context])
        for row, reply in enumerate(replies):
            begun = [*chats[row], *context]
            (wanted,) = ours(model, [trajectory([*begun, *reply.ids], len(begun))])
            np.testing.assert_allclose(reply.logprobs, wanted.numpy(), atol=1e-5)
            chats[row] = [*begun, *reply.ids]


def test_pitfall_15_dropout_is_off_in_critic_and_reference_too():
    """Pitfall 15: GPT-2 with dropout 0.1, handed over in training mode: two forwards are bit-equal all the same."""
    rows = [trajectory([3, 9, 4, 7, 1, 0, 2], 3), trajectory([5, 6, 8], 2)]
    batch = make_batch(rows, torch.device("cpu"))
    awake = Policy(absolute(0.1).train(), None, torch.device("cpu"))
    with torch.no_grad():
        noisy = [token_logprobs(awake.model, batch, 1.0)[0] for _ in range(2)]
        assert not torch.equal(*noisy), "the model should have dropout, or this test sees nothing"
        reference, critic = frozen_copy(awake), Critic(awake)
        torch.nn.init.normal_(critic.head.weight)
        assert torch.equal(*(token_logprobs(reference.model, batch, 1.0)[0] for _ in range(2)))
        assert torch.equal(*(critic(batch) for _ in range(2)))
        assert float(critic(batch).abs().max()) > 1e-3
