"""Losses: worked numbers, gradients, and the KL estimators against a full distribution."""

from __future__ import annotations

import math

import pytest
import torch

from ragen_lab.algo.loss import kl_estimate, policy_loss, value_loss
from ragen_lab.config import AlgoSection

ALGO = AlgoSection(clip_low=0.2, clip_high=0.28, dual_clip=3.0)


def loss_at(ratio: float, advantage: float) -> tuple[float, float]:
    """(loss, d loss / d log-prob) of one token."""
    old = torch.tensor([-1.0], dtype=torch.float64)
    new = (old + math.log(ratio)).requires_grad_()
    loss, seen = policy_loss(new, old, torch.tensor([advantage], dtype=torch.float64), ALGO)
    assert float(seen.detach()) == pytest.approx(ratio)
    loss.sum().backward()
    return float(loss), float(new.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),  # inside the range: -A r
        (1.5, 2.0, -2.56, 0.0),  # above 1 + 0.28: -A 1.28, no gradient
        (0.5, 2.0, -1.0, -1.0),  # below the range with A > 0: the pessimistic side is -A r
        (0.5, -2.0, 1.6, 0.0),  # below 1 - 0.2 with A < 0: -A 0.8, no gradient
        (1.5, -2.0, 3.0, 3.0),  # above the range with A < 0: -A r
        (4.0, -2.0, 6.0, 0.0),  # dual clip: at most -A 3
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_the_clipped_loss_worked_by_hand(ratio, advantage, loss, gradient):
    found, slope = loss_at(ratio, advantage)
    assert found == pytest.approx(loss)
    assert slope == pytest.approx(gradient, abs=1e-12)


def test_at_ratio_one_the_gradient_is_the_policy_gradient():
    """Pitfall 15: on-policy, d loss / d log-prob = -A."""
    for advantage in (-3.0, 0.5):
        assert loss_at(1.0, advantage)[1] == pytest.approx(-advantage)


def test_an_extreme_ratio_stays_finite_and_nan_stays_nan():
    """Pitfall 22: no overflow to inf, and no NaN that is swallowed."""
    old = torch.tensor([-500.0, 0.0])
    new = torch.tensor([0.0, float("nan")])
    loss, ratio = policy_loss(new, old, torch.tensor([-1.0, 1.0]), ALGO)
    assert torch.isfinite(loss[0])
    assert torch.isfinite(ratio[0])
    assert torch.isnan(loss[1])


def test_value_loss_worked_by_hand():
    # V 2, V_old 1, clip 0.5 -> V_near 1.5; R 1: 0.5 max(1, 0.25) = 0.5;  R 2: 0.5 max(0, 0.25) = 0.125
    found = value_loss(torch.tensor([2.0, 2.0]), torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0]), 0.5)
    torch.testing.assert_close(found, torch.tensor([0.5, 0.125]))


LOGITS = torch.tensor([0.3, -0.2, 1.0, 0.0, -1.5], dtype=torch.float64)
REFERENCE = torch.tensor([0.0, 0.5, 0.2, -0.3, -1.0], dtype=torch.float64)


def full_kl(p, q):
    return (p.exp() * (p - q)).sum()


def test_kl_estimators_against_the_full_distribution():
    """Pitfall 16: value. E[k1] = E[k3] = KL exactly; k3 and k2 are never negative; k1 may be."""
    p, q = LOGITS.log_softmax(0), REFERENCE.log_softmax(0)
    for kind in ("k1", "k3"):
        assert float((p.exp() * kl_estimate(p, q, kind)).sum()) == pytest.approx(float(full_kl(p, q)), abs=1e-12)
    assert (kl_estimate(p, q, "k3") >= 0).all()
    assert (kl_estimate(p, q, "k2") >= 0).all()
    assert (kl_estimate(p, q, "k1") < 0).any()
    for kind in ("k1", "k2", "k3"):
        assert float(kl_estimate(p, p, kind).abs().max()) == 0.0


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_gradient_of_each_kl_estimator_as_a_loss(kind):
    """Pitfall 16: gradient, as the docstring states: k1 none, k2 that of KL(p || q), k3 that of KL(q || p)."""
    logits = LOGITS.clone().requires_grad_()
    q = REFERENCE.log_softmax(0)
    p = logits.log_softmax(0)
    (p.detach().exp() * kl_estimate(p, q, kind)).sum().backward()
    other = LOGITS.clone().requires_grad_()
    p2 = other.log_softmax(0)
    expected = {"k1": 0 * p2.sum(), "k2": full_kl(p2, q), "k3": full_kl(q, p2)}[kind]
    expected.backward()
    torch.testing.assert_close(logits.grad, other.grad, atol=1e-12, rtol=0)
