"""Cross-check against TRL, an independent implementation, on identical tensors. Skipped where it is not installed.

What differs, and why (each difference is an assertion below):
- GRPO's std: TRL divides by the sample deviation (n - 1) plus 1e-4, we by the population's, and give 0 to noise.
- CISPO: TRL caps the weight at ``epsilon_high`` itself and has no lower bound; ours is clip(r, 1 - low, 1 + high).
- 'dapo' and 'bnpo' are our token_mean, 'grpo' our sequence_mean, 'dr_grpo' our fixed_length.
"""

from __future__ import annotations

import inspect
import textwrap
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ragen_lab.algo.grpo import group_advantages, leave_one_out
from ragen_lab.algo.loss import aggregate, importance_weight, kl_estimate, policy_loss
from ragen_lab.sections import AlgoSection

trl = pytest.importorskip("trl")

TOKENS = [5, 2, 4, 1]
MASK = torch.tensor([[1.0] * n + [0.0] * (5 - n) for n in TOKENS], dtype=torch.float64)
ROW = torch.repeat_interleave(torch.arange(4), torch.tensor(TOKENS))
BUDGET = 16


def tensors():
    generator = torch.Generator().manual_seed(1)

    def noise(size):
        return size * torch.randn(4, 5, generator=generator, dtype=torch.float64)

    old = -1.5 + noise(0.3)
    new, reference, sampler = old + noise(0.4), old + noise(0.2), old + noise(0.5)
    return new, old, reference, sampler, torch.tensor([1.5, -1.0, 0.7, -2.5], dtype=torch.float64)


def trl_loss(new, old, reference, sampler, advantages, loss_type, level="token", beta=0.0, delta=None, cap=None):
    """TRL's own GRPOTrainer._compute_loss; only the model's forward is replaced by the given log-probs."""
    from trl import GRPOTrainer

    same = lambda x, *rest, **more: x  # noqa: E731 - a world of one process
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (new, torch.zeros_like(new), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=delta, steps_per_generation=1),
        loss_type=loss_type,
        epsilon_low=0.2,
        epsilon_high=1.28 if loss_type == "cispo" else 0.28,
        use_vllm=cap is not None,
        vllm_importance_sampling_correction=True,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        accelerator=SimpleNamespace(
            num_processes=1, gather=same, reduce=same, gather_for_metrics=same, sync_gradients=True
        ),
        max_completion_length=BUDGET,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    ids = torch.zeros(4, 5, dtype=torch.long)
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": ids,
        "completion_mask": MASK,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": MASK.sum(),
    }
    if cap is not None:
        inputs["importance_sampling_ratio"] = torch.exp(old - sampler).clamp(max=cap)
    return GRPOTrainer._compute_loss(trainer, None, inputs)


def our_loss(new, old, reference, sampler, advantages, how, algo, cap=None):
    inside = MASK.bool()
    loss, _ = policy_loss(new[inside], old[inside], advantages[ROW], algo, ROW)
    if cap is not None:
        loss = loss * importance_weight(old[inside], sampler[inside], cap)
    if algo.kl.place == "loss":
        loss = loss + algo.kl.coef * kl_estimate(new[inside], reference[inside], algo.kl.estimator)
    return aggregate(loss, ROW, how, sum(TOKENS), len(TOKENS), BUDGET)


CLIP = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 1e6}
K3 = {"place": "loss", "estimator": "k3", "coef": 0.05}


@pytest.mark.parametrize(
    ("theirs", "how", "knobs", "cap"),
    [
        ({"loss_type": "grpo"}, "sequence_mean", CLIP, None),
        ({"loss_type": "dapo"}, "token_mean", CLIP, None),
        ({"loss_type": "bnpo"}, "token_mean", CLIP, None),
        ({"loss_type": "dr_grpo"}, "fixed_length", CLIP, None),
        ({"loss_type": "dapo", "delta": 1.5}, "token_mean", {**CLIP, "dual_clip": 1.5}, None),
        ({"loss_type": "grpo", "level": "sequence"}, "sequence_mean", {**CLIP, "ratio": "sequence"}, None),
        ({"loss_type": "cispo"}, "token_mean", {"loss": "cispo", "clip_low": 1.0, "clip_high": 0.28}, None),
        ({"loss_type": "dapo", "beta": 0.05}, "token_mean", {**CLIP, "kl": K3}, None),
        ({"loss_type": "dapo", "cap": 1.2}, "token_mean", CLIP, 1.2),
    ],
    ids=["grpo", "dapo", "bnpo", "dr_grpo", "dual clip", "gspo", "cispo", "kl", "importance"],
)
def test_loss_and_gradient_are_trl_s(theirs, how, knobs, cap):
    new, *rest = tensors()
    left, right = new.clone().requires_grad_(), new.clone().requires_grad_()
    expected = trl_loss(left, *rest, **theirs)
    found = our_loss(right, *rest, how, AlgoSection.model_validate(knobs), cap)
    expected.backward()
    found.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(right.grad, left.grad)


def test_our_lower_bound_is_what_cispo_differs_by():
    """At the default clip_low the weight of a token that became unlikely stays at 0.8 instead of falling to 0."""
    new, old, reference, sampler, advantages = tensors()
    bounded = AlgoSection(loss="cispo", clip_low=0.2, clip_high=0.28)
    found = our_loss(new, old, reference, sampler, advantages, "token_mean", bounded)
    expected = trl_loss(new, old, reference, sampler, advantages, "cispo")
    ratio = (new - old).exp()
    extra = -(0.8 - ratio).clamp(min=0) * advantages[:, None] * new
    assert float((extra * MASK).abs().max()) > 0.01
    torch.testing.assert_close(found - expected, (extra * MASK).sum() / sum(TOKENS))


def trl_advantages(trainer, first, last, rewards):
    """The lines from ``first`` up to ``last`` of TRL's method that scores completions, run on ``rewards``."""
    lines = inspect.getsource(trainer._generate_and_score_completions).splitlines()
    begin = next((i for i, line in enumerate(lines) if line.strip().startswith(first)), None)
    end = next((i for i, line in enumerate(lines) if begin is not None and i > begin and last in line), None)
    if begin is None or end is None:
        pytest.skip(f"TRL {trl.__version__} no longer has the lines this test reads")
    scope = dict(vars(inspect.getmodule(trainer)))
    scope |= {
        "rewards": torch.tensor(rewards.reshape(-1)),
        "num_generations": rewards.shape[1],
        "self": SimpleNamespace(scale_rewards="group", normalize_advantages=False),
    }
    exec(textwrap.dedent("\n".join(lines[begin:end])), scope)
    return scope["advantages"].reshape(rewards.shape).numpy(), scope


REWARDS = np.random.default_rng(0).normal(size=(5, 4))


def test_rloo_advantages_are_trl_s():
    from trl import RLOOTrainer

    expected, _ = trl_advantages(RLOOTrainer, "grouped_rewards =", "# Normalize advantages", REWARDS)
    np.testing.assert_allclose(leave_one_out(REWARDS), expected, atol=1e-12)


def test_grpo_advantages_are_trl_s_but_for_the_deviation():
    from trl import GRPOTrainer

    expected, scope = trl_advantages(
        GRPOTrainer, "mean_grouped_rewards = torch.nanmean(rewards.view", "is_std_zero", REWARDS
    )
    theirs = scope["std_rewards"].reshape(REWARDS.shape).numpy() + 1e-4
    ours = REWARDS.std(axis=1, keepdims=True)
    np.testing.assert_allclose(theirs, REWARDS.std(axis=1, ddof=1, keepdims=True) + 1e-4 + 0 * theirs, atol=1e-12)
    np.testing.assert_allclose(group_advantages(REWARDS, True) * ours, expected * theirs, atol=1e-12)
    np.testing.assert_allclose(group_advantages(REWARDS, False), expected * theirs, atol=1e-12)
