"""Token losses: policy loss, value loss, KL estimators, and how tokens become the loss of a step.

Sources: PPO clip (arXiv 1707.06347, eq. 7) with separate bounds (DAPO, arXiv 2503.14476, eq. 10), dual clip
(arXiv 1912.09729, eq. 3), sequence-level ratio (GSPO, arXiv 2507.18071, section 4.3), CISPO (MiniMax-M1,
arXiv 2506.13585), truncated importance sampling between sampler and trainer (Yao et al. 2025, "Your
efficient RL framework secretly brings you off-policy RL training"), KL estimators k1, k2, k3 (Schulman
2020, "Approximating KL divergence").
"""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_lab.sections import AlgoSection

# A ratio beyond e^20 is recorded as e^20: far outside any clip range, and finite.
_LOG_RATIO_BOUND = 20.0


def log_ratio(new_N: Tensor, old_N: Tensor) -> Tensor:
    """log(pi_new / pi_old) of each token, bounded so that the ratio stays finite; NaN stays NaN."""
    return (new_N - old_N).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)


def sequence_log_ratio(log_ratio_N: Tensor, row_N: Tensor) -> Tensor:
    """The mean log-ratio of each token's trajectory, [N] (GSPO-token): log s_i = (1/n_i) sum_t log r_it.

    The value is the trajectory's, the gradient the token's own: sum_t grad = s_i sum_t A_it grad log pi_it, which
    for one advantage per trajectory is n_i times GSPO's gradient, as a token-wise sum must have it.
    """
    rows = int(row_N.max()) + 1
    fixed_N = log_ratio_N.detach()
    sums_B = torch.zeros(rows, dtype=fixed_N.dtype, device=fixed_N.device).index_add_(0, row_N, fixed_N)
    mean_B = sums_B / torch.bincount(row_N, minlength=rows).clamp(min=1)
    return mean_B[row_N] + (log_ratio_N - fixed_N)


def policy_loss(
    new_N: Tensor, old_N: Tensor, advantages_N: Tensor, algo: AlgoSection, row_N: Tensor
) -> tuple[Tensor, Tensor]:
    """(loss [N], ratio [N]); ``row_N`` is the trajectory of each token within this forward pass.

    r = pi_new / pi_old of the token, or s_i of its trajectory (``algo.ratio`` sequence).
    clip:   L = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)),  and for A < 0:  min(L, -A dual_clip)
    cispo:  L = -A stop_gradient(clip(r, 1 - clip_low, 1 + clip_high)) log pi_new: a clipped token keeps a gradient
    """
    log_N = log_ratio(new_N, old_N)
    if algo.ratio == "sequence":
        log_N = sequence_log_ratio(log_N, row_N)
    ratio_N = log_N.exp()
    near_N = ratio_N.clamp(1 - algo.clip_low, 1 + algo.clip_high)
    if algo.loss == "cispo":
        return -advantages_N * near_N.detach() * new_N, ratio_N
    loss_N = torch.maximum(-advantages_N * ratio_N, -advantages_N * near_N)
    bounded_N = torch.minimum(loss_N, -advantages_N * algo.dual_clip)
    return torch.where(advantages_N < 0, bounded_N, loss_N), ratio_N


def importance_weight(old_N: Tensor, sampler_N: Tensor, cap: float) -> Tensor:
    """min(pi_trainer / pi_sampler, cap) of each token before the first step, [N]: a constant factor of its loss."""
    return log_ratio(old_N, sampler_N).exp().clamp(max=cap).detach()


def aggregate(loss_N: Tensor, row_N: Tensor, how: str, step_tokens: int, step_rows: int, budget: int) -> Tensor:
    """This forward pass's share of the loss of the whole optimizer step.

    token_mean:     sum of all tokens / tokens of the step
    sequence_mean:  mean of each trajectory's mean
    fixed_length:   sum of all tokens / (trajectories of the step x ``budget``), the budget being the most tokens
                    that a trajectory may have (Dr. GRPO, arXiv 2503.20783)

    ``step_tokens`` and ``step_rows`` are of the whole step, so that the shares of any split into
    micro-batches or workers sum to the same loss and the same gradient.
    """
    if how == "sequence_mean":
        tokens_B = torch.bincount(row_N)
        return (loss_N / tokens_B[row_N]).sum() / step_rows
    return loss_N.sum() / (step_tokens if how == "token_mean" else step_rows * budget)


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, clip: float) -> Tensor:
    """0.5 max((V - R)^2, (clip(V, V_old +- clip) - R)^2), [N] (PPO's clipped value loss)."""
    near_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
    return 0.5 * torch.maximum((values_N - returns_N) ** 2, (near_N - returns_N) ** 2)


def kl_estimate(logprobs_N: Tensor, reference_N: Tensor, kind: str) -> Tensor:
    """Per-token estimate of KL(policy || reference) from the policy's own samples, [N].

    With d = log pi - log ref:  k1 = d (unbiased, any sign),  k2 = d^2 / 2 (biased, low variance),
    k3 = exp(-d) - 1 + d (unbiased, never negative). As a *loss* term the gradients differ: that of k1 has
    mean zero (it does not pull towards the reference), that of k2 is the gradient of KL(policy || reference)
    for on-policy samples, that of k3 the gradient of KL(reference || policy).
    """
    d_N = logprobs_N - reference_N
    if kind == "k1":
        return d_N
    if kind == "k2":
        return 0.5 * d_N**2
    return torch.exp(-d_N) - 1 + d_N
