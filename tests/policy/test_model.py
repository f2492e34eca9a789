"""Log-probs of padded batches, the critic, and the shipped warm start."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ragen_lab.policy.model import Critic, make_batch, token_logits, token_logprobs
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason, Trajectory


def trajectory(ids, roles):
    n = len(ids)
    return Trajectory(
        np.array(ids, dtype=np.int64),
        np.array(roles, dtype=np.int8),
        np.zeros(n, dtype=np.int16),
        np.full(n, np.nan, dtype=np.float32),
        (),
        StopReason.TURNS,
        0,
        0,
    )


M, C = MODEL, CONTEXT
LONG = trajectory([2, 11, 12, 3, 20, 21, 4, 2, 30, 3, 22, 4], [C, C, C, C, M, M, M, C, C, C, M, M])
SHORT = trajectory([2, 13, 3, 25, 4], [C, C, C, M, M])


def test_pitfall_04_a_row_alone_equals_the_row_in_a_padded_batch(small_policy):
    """Pitfall 4: unpadded, right-padded and another order give the same log-probs."""
    with torch.no_grad():
        alone = torch.cat(
            [token_logprobs(small_policy.model, make_batch([t], small_policy.device), 1.0)[0] for t in (LONG, SHORT)]
        )
        together = token_logprobs(small_policy.model, make_batch([LONG, SHORT], small_policy.device), 1.0)[0]
        swapped = token_logprobs(small_policy.model, make_batch([SHORT, LONG], small_policy.device), 1.0)[0]
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.cat([swapped[2:], swapped[:2]]), together, atol=1e-5, rtol=0)


def test_pitfall_04_left_padding_agrees_too(small_policy):
    """Pitfall 4: rotary positions are relative, so a left-padded row with a mask gives the same."""
    batch = make_batch([SHORT], small_policy.device)
    with torch.no_grad():
        expected = token_logprobs(small_policy.model, batch, 1.0)[0]
        ids = torch.tensor([[0, 0, 0, *SHORT.ids_T]])
        mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
        logits = small_policy.model(input_ids=ids, attention_mask=mask, use_cache=False).logits[0].log_softmax(-1)
    found = torch.stack([logits[3 + 2, 25], logits[3 + 3, 4]])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_pitfall_03_05_padding_is_never_recognised_by_its_id(small_policy):
    """Pitfalls 3, 5: other ids in the padding change nothing, and a real token with the pad id counts."""
    batch = make_batch([LONG, SHORT], small_policy.device)
    poisoned = batch.ids_BT.clone()
    poisoned[1, len(SHORT.ids_T) :] = 7
    with torch.no_grad():
        clean = token_logprobs(small_policy.model, batch, 1.0)[0]
        other = type(batch)(poisoned, batch.positions_BT, batch.before, batch.targets_N, batch.row_N, batch.tokens)
        torch.testing.assert_close(token_logprobs(small_policy.model, other, 1.0)[0], clean, atol=1e-6, rtol=0)
    says_pad = trajectory([2, 13, 3, 0, 4], [C, C, C, M, M])
    assert make_batch([says_pad], small_policy.device).targets_N.tolist() == [0, 4]


def test_pitfall_07_the_log_prob_of_a_token_is_read_one_position_before_it(small_policy):
    """Pitfall 7: against an independent full forward, token by token."""
    with torch.no_grad():
        found = token_logprobs(small_policy.model, make_batch([LONG], small_policy.device), 1.0)[0]
        logits = (
            small_policy.model(input_ids=torch.from_numpy(LONG.ids_T)[None], use_cache=False).logits[0].log_softmax(-1)
        )
    positions = [i for i, role in enumerate(LONG.roles_T) if role == M]
    expected = torch.stack([logits[i - 1, int(LONG.ids_T[i])] for i in positions])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_pitfall_17_entropy_lies_between_zero_and_log_vocabulary(small_policy):
    """Pitfall 17."""
    with torch.no_grad():
        for temperature in (0.1, 1.0, 100.0):
            _, entropy = token_logprobs(small_policy.model, make_batch([LONG, SHORT], small_policy.device), temperature)
            assert (entropy >= 0).all()
            assert (entropy <= math.log(small_policy.vocabulary) + 1e-5).all()
        assert float(entropy.min()) > math.log(small_policy.vocabulary) - 0.1, "at T = 100 it is nearly uniform"


def test_pitfall_06_the_temperature_divides_the_logits(small_policy):
    """Pitfall 6."""
    batch = make_batch([LONG], small_policy.device)
    with torch.no_grad():
        torch.testing.assert_close(
            token_logits(small_policy.model, batch, 0.5), 2 * token_logits(small_policy.model, batch, 1.0)
        )


def test_pitfall_07_the_critic_values_the_state_before_each_model_token(small_policy):
    """Pitfall 7: what comes after a token cannot change its value; a new critic says 0."""
    critic = Critic(small_policy)
    with torch.no_grad():
        assert critic(make_batch([LONG, SHORT], small_policy.device)).tolist() == [0.0] * 7
        torch.nn.init.normal_(critic.head.weight)
        values = critic(make_batch([LONG], small_policy.device))
        changed = trajectory([*LONG.ids_T[:-1], 9], LONG.roles_T)
        torch.testing.assert_close(critic(make_batch([changed], small_policy.device)), values)
        earlier = trajectory([*LONG.ids_T[:4], 9, *LONG.ids_T[5:]], LONG.roles_T)
        moved = critic(make_batch([earlier], small_policy.device))
        assert float(moved[0]) == pytest.approx(float(values[0]), abs=1e-6)
        assert abs(float(moved[1] - values[1])) > 1e-4


def test_pitfall_15_a_loaded_policy_has_dropout_off(small_policy):
    """Pitfall 15."""
    assert not any(module.training for module in small_policy.model.modules())


def test_bfloat16_is_for_activations_and_every_weight_still_moves(shared_home):
    """At lr 1e-6 an update is smaller than the spacing of bfloat16 numbers: the weights stay float32."""
    from ragen_lab import warm_start
    from ragen_lab.config import RunConfig
    from ragen_lab.policy.model import load_policy
    from ragen_lab.train import Learner
    from tests.conftest import SMALL

    cfg = RunConfig().with_overrides(
        {**SMALL, "policy.dtype": "bfloat16", "optim.lr": 1e-6, "optim.critic_lr": 1e-5, "algo.name": "ppo"}
    )
    learner = Learner(load_policy(warm_start.prepare(cfg, shared_home), cfg.policy), cfg)
    modules = (learner.policy.model, learner.critic)
    before = [torch.cat([p.detach().flatten().clone() for p in m.parameters()]) for m in modules]
    exact = make_batch([LONG, SHORT], learner.policy.device)
    with torch.no_grad():
        half = token_logprobs(learner.policy.model, exact, 1.0)[0]
        learner.policy.model._ragen_lab_activations = torch.float32
        full = token_logprobs(learner.policy.model, exact, 1.0)[0]
        learner.policy.model._ragen_lab_activations = torch.bfloat16
    assert 0 < float((half - full).abs().max()) < 0.2, "the activations are bfloat16"
    learner.update(learner.roll_out(1).groups, 1)
    for module, old in zip(modules, before, strict=True):
        new = torch.cat([p.detach().flatten() for p in module.parameters()])
        assert new.dtype is torch.float32
        used = float((new != old).float().mean())
        assert used > 0.5, used  # words that did not occur have no gradient
