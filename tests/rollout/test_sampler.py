"""What the native engine samples, whatever ends a reply, whichever rows leave, and whatever the model's head does."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from ragen_lab.config import RunConfig
from ragen_lab.errors import ConfigError
from ragen_lab.policy.model import Policy, make_batch, token_logprobs
from ragen_lab.rollout.engine import NativeSession
from ragen_lab.trajectory import MODEL
from tests.rollout.test_engine import roll

PROMPT = [2, 11, 12, 3, 7]


def logits_after(policy, ids):
    with torch.no_grad():
        return policy.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double()


def check_against_the_forward(policy, chats, marks, temperature=1.0):
    """Every (row, start, reply) in ``marks`` has the log-probs of a full forward over its chat."""
    for row, start, reply in marks:
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([chats[row]]), use_cache=False).logits[0]
        logprobs = (logits / temperature).log_softmax(-1)
        expected = [float(logprobs[start + k - 1, token]) for k, token in enumerate(reply.ids)]
        np.testing.assert_allclose(reply.logprobs, expected, atol=2e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_pitfall_06_the_sampler_draws_from_the_distribution_that_it_reports(small_policy, temperature):
    """Pitfall 6: 4000 first tokens against softmax(logits / T), by chi-square."""
    n = 4000
    session = NativeSession(small_policy, n, temperature, 1, frozenset({4}), seed=0)
    session.start([PROMPT], members=n)
    replies = session.reply(list(range(n)), [[]] * n)
    wanted = (logits_after(small_policy, PROMPT) / temperature).softmax(-1).numpy() * n
    counts = np.bincount([reply.ids[0] for reply in replies], minlength=len(wanted))
    common = wanted >= 5
    assert common.sum() >= 2
    # the rare tokens are one cell; it counts where five or more are expected in it
    cells = np.array([*wanted[common], wanted[~common].sum()])
    seen = np.array([*counts[common], counts[~common].sum()])
    enough = cells >= 1
    chi2 = ((seen - cells)[enough] ** 2 / cells[enough]).sum()
    assert chi2 < stats.chi2.isf(1e-5, enough.sum() - 1)
    for reply in replies[:20]:
        assert reply.logprobs[0] == pytest.approx(float(np.log(wanted[reply.ids[0]] / n)), abs=1e-4)
    p = wanted / n
    assert replies[0].entropies[0] == pytest.approx(float(-(p * np.log(p)).sum()), abs=1e-4)


def test_pitfall_06_later_tokens_are_drawn_from_the_reported_distribution_too(small_policy):
    """Pitfall 6: the mean of -log p over sampled tokens is the mean entropy, within the error of 400 replies."""
    n = 400
    session = NativeSession(small_policy, n, 1.0, 12, frozenset({4}), seed=3)
    session.start([PROMPT], members=n)
    replies = session.reply(list(range(n)), [[]] * n)
    surprise = np.array([-lp - h for r in replies for lp, h in zip(r.logprobs, r.entropies, strict=True)])
    assert abs(surprise.mean()) < 5 * surprise.std() / np.sqrt(len(surprise))


def test_pitfall_03_several_ids_end_a_reply(small_policy):
    """Pitfall 3: a reply ends at the first of any of them, which is its last token; else it is truncated."""
    likely = logits_after(small_policy, PROMPT).argsort(descending=True)[:4].tolist()
    eos = frozenset(range(small_policy.vocabulary)) - {*likely[:2], 11, 12}  # nearly every token
    n = 64
    session = NativeSession(small_policy, n, 1.5, 5, eos, seed=1)
    session.start([PROMPT], members=n)
    chats, marks = [list(PROMPT) for _ in range(n)], []
    for _ in range(2):
        rows = list(range(n))
        for row, reply in zip(rows, session.reply(rows, [[]] * n), strict=True):
            assert not set(reply.ids[:-1]) & eos
            assert reply.truncated == (reply.ids[-1] not in eos)
            assert len(reply.ids) == 5 if reply.truncated else 1 <= len(reply.ids) <= 5
            assert len(reply.ids) == len(reply.logprobs) == len(reply.entropies)
            marks.append((row, len(chats[row]), reply))
            chats[row] += reply.ids
    ends = {reply.ids[-1] for _, _, reply in marks if not reply.truncated}
    assert len(ends) > 2
    check_against_the_forward(small_policy, chats, marks[:8] + marks[-8:], 1.5)


def test_pitfall_03_an_end_of_turn_with_the_id_of_padding_is_a_token(small_policy):
    """Pitfall 3: pads are 0 in every batch; where 0 also ends replies and stands in contexts it is read as written."""
    n = 64
    eos = frozenset({0, *range(100, small_policy.vocabulary)})
    prompts = [[2, 0, 11, 3], [2, 0, 0, 12, 13, 14, 3, 0]]
    session = NativeSession(small_policy, 2 * n, 40.0, 4, eos, seed=2)  # nearly uniform draws
    session.start(prompts, members=n)
    rows = list(range(2 * n))
    chats, marks = [list(prompts[row // n]) for row in rows], []
    for turn in range(3):
        contexts = [[0] * (row % 3) + [5] if turn else [] for row in rows]
        for row, context, reply in zip(rows, contexts, session.reply(rows, contexts), strict=True):
            chats[row] += context
            marks.append((row, len(chats[row]), reply))
            chats[row] += reply.ids
    assert any(reply.ids[-1] == 0 and not reply.truncated for _, _, reply in marks)
    check_against_the_forward(small_policy, chats, marks[::7], 40.0)


def test_pitfall_03_a_tokenizer_whose_pad_is_its_eos_changes_nothing(small_policy):
    """Pitfall 3: the roles say what is padding, so the same rollout and the same log-probs come out."""
    tokenizer = copy.deepcopy(small_policy.tokenizer)
    tokenizer.pad_token = tokenizer.eos_token
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    plain, _ = roll(small_policy)
    other, _ = roll(replace(small_policy, tokenizer=tokenizer))
    ids = [[t.ids_T.tolist() for t in g.trajectories] for g in plain.groups]
    assert ids == [[t.ids_T.tolist() for t in g.trajectories] for g in other.groups]
    trajectories = [t for g in other.groups for t in g.trajectories]
    batch = make_batch(trajectories, small_policy.device)
    ends = sum(int((t.ids_T[t.roles_T == MODEL] == tokenizer.eos_token_id).sum()) for t in trajectories)
    assert int((batch.targets_N == tokenizer.eos_token_id).sum()) == ends > 0, "closing tokens are trained"


@pytest.mark.parametrize("first", [[0, 1, 2, 3], [3, 2, 1, 0]])
def test_pitfall_07_swapped_rows_of_unequal_lengths_keep_their_history(small_policy, first):
    """Pitfall 7: a row that is 40 tokens longer than the rest is swapped with short ones, and back."""
    session = NativeSession(small_policy, 4, 1.0, 6, frozenset({4}), seed=1)
    prompts = [[2, 9, 10 + i, 3] for i in range(4)]
    session.start(prompts, members=1)
    chats, marks = [list(p) for p in prompts], []
    rounds = [
        (first, {}),
        ([3], {3: [11 + i % 7 for i in range(40)]}),
        ([0], {}),
        ([3], {}),
        ([1], {}),
        ([2, 3, 0], {}),
    ]
    for rows, long in rounds:
        contexts = [long.get(row, [20 + row, 21] if marks else []) for row in rows]
        for row, context, reply in zip(rows, contexts, session.reply(rows, contexts), strict=True):
            chats[row] += context
            marks.append((row, len(chats[row]), reply))
            chats[row] += reply.ids
    assert len(chats[3]) > len(chats[1]) + 30
    check_against_the_forward(small_policy, chats, marks)


def test_pitfall_05_a_row_that_has_left_cannot_leak_even_nan(small_policy):
    """Pitfall 5: the cache of rows that do not reply is filled with NaN; the others sample as before."""

    def replies(poison):
        session = NativeSession(small_policy, 4, 1.0, 8, frozenset({4}), seed=0)
        session.start([[2, 11, 3], [2, 11, 12, 13, 14, 15, 3], [2, 9, 3], [2, 9, 10, 3]], members=1)
        first = session.reply([0, 1, 2, 3], [[]] * 4)
        if poison:
            with torch.inference_mode():
                for held in session.cache.keys + session.cache.values:
                    for row in (0, 1):
                        held[session.slot[row]] = float("nan")
        return first + session.reply([3, 2], [[5, 6], [7]])

    for clean, poisoned in zip(replies(False), replies(True), strict=True):
        assert clean.ids == poisoned.ids
        np.testing.assert_allclose(clean.logprobs, poisoned.logprobs, atol=1e-6)


def scaled(policy, factor):
    """The same model with its logits multiplied in its own forward, as some architectures do (Cohere, Granite)."""
    model = copy.deepcopy(policy.model)
    model.__dict__.pop("_ragen_lab_plain_head", None)
    plain = model.forward

    def forward(*args, **kwargs):
        out = plain(*args, **kwargs)
        out.logits = out.logits * factor
        return out

    forward.__signature__ = inspect.signature(plain)
    model.forward = forward
    return Policy(model, policy.tokenizer, policy.device)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_pitfall_06_15_a_model_that_scales_its_logits_is_sampled_and_trained_as_it_is(small_policy, temperature):
    """Pitfalls 6, 15: such a head is not the output embedding alone: halved logits are the sampler's and the
    trainer's, which is the plain model at twice the temperature."""
    half = scaled(small_policy, 0.5)
    rollout, _ = roll(half, temperature=temperature)
    trajectories = [t for g in rollout.groups for t in g.trajectories]
    batch = make_batch(trajectories, half.device)
    with torch.no_grad():
        trained_N, entropy_N = token_logprobs(half.model, batch, temperature)
        plain_N, _ = token_logprobs(small_policy.model, batch, 2 * temperature)
        other_N, _ = token_logprobs(small_policy.model, batch, temperature)
    sampled_N = np.concatenate([t.logprobs_T[t.roles_T == MODEL] for t in trajectories])
    np.testing.assert_allclose(sampled_N, trained_N.numpy(), atol=5e-5)
    torch.testing.assert_close(trained_N, plain_N, atol=1e-5, rtol=0)
    assert float((trained_N - other_N).abs().max()) > 0.1
    assert rollout.entropy == pytest.approx(float(entropy_N.mean()), abs=1e-4)


@pytest.mark.parametrize("knob", ["top_p", "top_k", "min_p"])
def test_pitfall_06_a_truncated_distribution_cannot_be_asked_for(small_policy, knob):
    """Pitfall 6: no such knob is there to be set, and what the model's own generation config says is not looked at."""
    with pytest.raises(ConfigError, match=rf"rollout.{knob}: unknown key"):
        RunConfig().with_overrides({f"rollout.{knob}": 1})

    def drawn():
        session = NativeSession(small_policy, 64, 1.0, 6, frozenset({4}), seed=0)
        session.start([PROMPT], members=64)
        return [reply.ids for reply in session.reply(list(range(64)), [[]] * 64)]

    free = drawn()
    config = small_policy.model.generation_config
    before = getattr(config, knob)
    try:
        setattr(config, knob, {"top_k": 1, "top_p": 1e-6, "min_p": 1.0}[knob])
        assert drawn() == free
    finally:
        setattr(config, knob, before)
    assert len(set(map(tuple, free))) > 1
