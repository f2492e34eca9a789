"""Token losses: clipped policy loss, clipped value loss, KL estimators. All per token, summed by the caller.

Sources: PPO clip (arXiv 1707.06347, eq. 7) with separate bounds (DAPO, arXiv 2503.14476, eq. 10), dual clip
(arXiv 1912.09729, eq. 3), KL estimators k1, k2, k3 (Schulman 2020, "Approximating KL divergence").
"""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_lab.config import AlgoSection

# A ratio beyond e^20 is recorded as e^20: far outside any clip range, and finite.
_LOG_RATIO_BOUND = 20.0


def log_ratio(new_N: Tensor, old_N: Tensor) -> Tensor:
    """log(pi_new / pi_old) of each token, bounded so that the ratio stays finite; NaN stays NaN."""
    return (new_N - old_N).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)


def policy_loss(new_N: Tensor, old_N: Tensor, advantages_N: Tensor, algo: AlgoSection) -> tuple[Tensor, Tensor]:
    """(loss [N], ratio [N]).

    L = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)),  and for A < 0:  min(L, -A dual_clip)
    """
    ratio_N = log_ratio(new_N, old_N).exp()
    free_N = -advantages_N * ratio_N
    clipped_N = -advantages_N * ratio_N.clamp(1 - algo.clip_low, 1 + algo.clip_high)
    loss_N = torch.maximum(free_N, clipped_N)
    bounded_N = torch.minimum(loss_N, -advantages_N * algo.dual_clip)
    return torch.where(advantages_N < 0, bounded_N, loss_N), ratio_N


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
