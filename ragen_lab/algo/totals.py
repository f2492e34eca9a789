"""What one update phase adds up to: sums over its tokens, lists over its steps."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ragen_lab.algo.loss import kl_estimate, log_ratio
from ragen_lab.sections import AlgoSection


class Totals:
    """Filled by the optimizer steps of one iteration, in order; ``norms`` has one entry per finished step."""

    def __init__(self) -> None:
        self.tokens = 0
        self.sums: dict[str, float] = {"loss": 0.0, "entropy": 0.0, "clipped": 0.0, "kl": 0.0, "drift": 0.0}
        self.value_sum, self.value_tokens = 0.0, 0
        self.weight_sum, self.capped, self.weighted = 0.0, 0, 0
        self.max_ratio = 0.0
        self.drift_max = 0.0  # largest |log ratio| of a token; NaN once there was one
        self.entropy_range = (math.inf, -math.inf)
        self.age_sum = 0.0  # tokens x optimizer steps since they were sampled
        self.norms: list[float] = []
        self.critic_norms: list[float] = []

    def add_policy(
        self, loss_N: Tensor, ratio_N: Tensor, entropy_N: Tensor, new_N: Tensor, old_N: Tensor, algo: AlgoSection
    ) -> None:
        with torch.no_grad():
            self.tokens += len(loss_N)
            self.sums["loss"] += float(loss_N.sum())
            self.sums["entropy"] += float(entropy_N.sum())
            self.sums["clipped"] += float(((ratio_N < 1 - algo.clip_low) | (ratio_N > 1 + algo.clip_high)).sum())
            self.sums["kl"] += float(kl_estimate(log_ratio(old_N, new_N), torch.zeros_like(old_N), "k3").sum())
            drift_N = (new_N - old_N).abs()
            self.sums["drift"] += float(drift_N.sum())
            self.drift_max = float(np.maximum(self.drift_max, float(drift_N.max())))
            self.age_sum += len(loss_N) * len(self.norms)
            highest = float(ratio_N.max())
            self.max_ratio = highest if math.isnan(highest) else max(self.max_ratio, highest)
            low, high = self.entropy_range
            self.entropy_range = (min(low, float(entropy_N.min())), max(high, float(entropy_N.max())))

    def add_weights(self, weight_N: Tensor, cap: float) -> None:
        self.weight_sum += float(weight_N.sum())
        self.capped += int((weight_N >= cap).sum())
        self.weighted += len(weight_N)

    def add_value(self, loss_N: Tensor) -> None:
        self.value_sum += float(loss_N.detach().sum())
        self.value_tokens += len(loss_N)

    def metrics(self) -> dict[str, float]:
        found = {
            "train/updates": float(len(self.norms)),
            "train/policy_loss": self.sums["loss"] / self.tokens,
            "train/entropy": self.sums["entropy"] / self.tokens,
            "train/clip_fraction": self.sums["clipped"] / self.tokens,
            "train/kl_old": self.sums["kl"] / self.tokens,
            "train/log_ratio_abs": self.sums["drift"] / self.tokens,
            "train/steps_old": self.age_sum / self.tokens,
            "train/max_ratio": self.max_ratio,
            "train/grad_norm": float(np.mean(self.norms)),
            "train/grad_norm_max": float(np.max(self.norms)),
        }
        if self.value_tokens:
            found["train/value_loss"] = self.value_sum / self.value_tokens
            found["train/critic_grad_norm"] = float(np.mean(self.critic_norms))
        if self.weighted:
            found["train/importance_mean"] = self.weight_sum / self.weighted
            found["train/importance_capped"] = self.capped / self.weighted
        return found
