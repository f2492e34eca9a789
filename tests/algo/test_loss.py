"""Losses: worked numbers, gradients, and the KL estimators against a full distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_lab.algo.loss import aggregate, importance_weight, kl_estimate, policy_loss, value_loss
from ragen_lab.sections import AlgoSection

ALGO = AlgoSection(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
ROW = torch.tensor([0])


def loss_at(ratio: float, advantage: float) -> tuple[float, float]:
    """(loss, d loss / d log-prob) of one token."""
    old = torch.tensor([-1.0], dtype=torch.float64)
    new = (old + math.log(ratio)).requires_grad_()
    loss, seen = policy_loss(new, old, torch.tensor([advantage], dtype=torch.float64), ALGO, ROW)
    assert float(seen.detach()) == pytest.approx(ratio)
    loss.sum().backward()
    return float(loss.detach()), float(new.grad)


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


def test_pitfall_15_at_ratio_one_the_gradient_is_the_policy_gradient():
    """Pitfall 15: on-policy, d loss / d log-prob = -A."""
    for advantage in (-3.0, 0.5):
        assert loss_at(1.0, advantage)[1] == pytest.approx(-advantage)


def test_pitfall_22_an_extreme_ratio_stays_finite_and_nan_stays_nan():
    """Pitfall 22: no overflow to inf, and no NaN that is swallowed."""
    old = torch.tensor([-500.0, 0.0])
    new = torch.tensor([0.0, float("nan")])
    loss, ratio = policy_loss(new, old, torch.tensor([-1.0, 1.0]), ALGO, torch.zeros(2, dtype=torch.long))
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


def test_pitfall_16_kl_estimators_against_the_full_distribution():
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
def test_pitfall_16_the_gradient_of_each_kl_estimator_as_a_loss(kind):
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


def gradient_of(new, compute):
    """d sum(compute(new)) / d new."""
    leaf = new.clone().requires_grad_()
    compute(leaf).sum().backward()
    return leaf.grad


def test_the_sequence_ratio_worked_by_hand():
    """GSPO: the geometric mean of a trajectory's ratios, and its gradient."""
    # Trajectory 0: log-ratios 0.1 and 0.3: s = e^0.2 = 1.2214028;  trajectory 1: -0.1: s = e^-0.1 = 0.9048374
    old = torch.tensor([-1.0, -2.0, -1.5], dtype=torch.float64)
    new = old + torch.tensor([0.1, 0.3, -0.1], dtype=torch.float64)
    rows = torch.tensor([0, 0, 1])
    advantages = torch.tensor([2.0, 2.0, -1.0], dtype=torch.float64)
    algo = AlgoSection(ratio="sequence", clip_low=0.2, clip_high=0.28)
    loss, ratio = policy_loss(new, old, advantages, algo, rows)
    s0, s1 = math.exp(0.2), math.exp(-0.1)
    torch.testing.assert_close(ratio, torch.tensor([s0, s0, s1], dtype=torch.float64))
    torch.testing.assert_close(loss, torch.tensor([-2 * s0, -2 * s0, s1], dtype=torch.float64))
    found = gradient_of(new, lambda leaf: policy_loss(leaf, old, advantages, algo, rows)[0])
    # GSPO eq. 10: d(-A s_i)/d log pi_t = -A s_i / n_i, times n_i tokens of loss
    torch.testing.assert_close(found, torch.tensor([-2 * s0, -2 * s0, s1], dtype=torch.float64))
    plain = gradient_of(new, lambda leaf: -2 * (0.5 * (leaf[:2] - old[:2]).sum()).exp())
    torch.testing.assert_close(found[:2], 2 * plain[:2])


def test_the_sequence_ratio_clips_a_whole_trajectory():
    # log-ratios 0.6 and 0.0: s = e^0.3 = 1.35 > 1.28, so with A > 0 neither token has a gradient;
    # by token only the first (e^0.6) is clipped.
    old = torch.zeros(2, dtype=torch.float64) - 1
    new = old + torch.tensor([0.6, 0.0], dtype=torch.float64)
    advantages, rows = torch.ones(2, dtype=torch.float64), torch.tensor([0, 0])
    for ratio, expected in (("sequence", [0.0, 0.0]), ("token", [0.0, -1.0])):
        algo = AlgoSection(ratio=ratio, clip_low=0.2, clip_high=0.28)
        found = gradient_of(new, lambda leaf, algo=algo: policy_loss(leaf, old, advantages, algo, rows)[0])
        assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [(1.0, 2.0, 1.0), (1.1, 2.0, 1.1), (1.5, 2.0, 1.28), (0.5, 2.0, 0.8), (4.0, -2.0, 1.28), (0.5, -2.0, 0.8)],
)
def test_cispo_worked_by_hand(ratio, advantage, weight):
    """CISPO: loss -A w log pi with w the clipped ratio held constant: every token keeps the gradient -A w."""
    old = torch.tensor([-1.0], dtype=torch.float64)
    new = old + math.log(ratio)
    algo = AlgoSection(loss="cispo", clip_low=0.2, clip_high=0.28)
    a = torch.tensor([advantage], dtype=torch.float64)
    loss, seen = policy_loss(new, old, a, algo, ROW)
    assert float(seen) == pytest.approx(ratio)
    assert float(loss) == pytest.approx(-advantage * weight * float(new))
    assert float(gradient_of(new, lambda leaf: policy_loss(leaf, old, a, algo, ROW)[0])) == pytest.approx(
        -advantage * weight
    )


@pytest.mark.parametrize("loss", ["clip", "cispo"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_pitfall_15_at_ratio_one_every_loss_has_the_policy_gradient(loss, ratio):
    """Pitfall 15: d loss / d log-prob = -A for each token, whatever the loss."""
    old, rows = -torch.rand(5, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 1])
    advantages = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0], dtype=torch.float64)
    algo = AlgoSection(loss=loss, ratio=ratio)
    found = gradient_of(old, lambda leaf: policy_loss(leaf, old, advantages, algo, rows)[0])
    torch.testing.assert_close(found, -advantages)


def test_the_importance_weight_is_truncated_and_has_no_gradient():
    # pi_trainer / pi_sampler = e^0.1, e^1 = 2.718 -> cap 2, e^-0.5 = 0.6065 (never raised)
    old = torch.tensor([-1.0, -1.0, -1.5], requires_grad=True)
    found = importance_weight(old, torch.tensor([-1.1, -2.0, -1.0]), 2.0)
    torch.testing.assert_close(found, torch.tensor([math.exp(0.1), 2.0, math.exp(-0.5)]))
    assert not found.requires_grad


def test_aggregations_worked_by_hand():
    # Trajectory 0: losses 1, 2, 3;  trajectory 1: 10.  token mean 16/4;  mean of means (2 + 10)/2;  16/(2 x 8)
    loss, rows = torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([0, 0, 0, 1])
    assert float(aggregate(loss, rows, "token_mean", 4, 2, 8)) == 4.0
    assert float(aggregate(loss, rows, "sequence_mean", 4, 2, 8)) == 6.0
    assert float(aggregate(loss, rows, "fixed_length", 4, 2, 8)) == 1.0


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.data())
def test_pitfall_14_any_split_of_a_step_has_the_same_loss(tokens, data):
    """Pitfall 14: micro-batches and data-parallel workers alike, because each share is of the whole step."""
    losses = [torch.rand(n, dtype=torch.float64) for n in tokens]
    owner = [data.draw(st.integers(0, 2)) for _ in tokens]
    for how in ("token_mean", "sequence_mean", "fixed_length"):

        def share(members, how=how):
            rows = torch.repeat_interleave(torch.arange(len(members)), torch.tensor([tokens[i] for i in members]))
            return float(aggregate(torch.cat([losses[i] for i in members]), rows, how, sum(tokens), len(tokens), 9))

        parts = [[i for i, o in enumerate(owner) if o == part] for part in range(3)]
        assert sum(share(part) for part in parts if part) == pytest.approx(share(list(range(len(tokens)))))


def test_pitfall_22_a_ratio_is_bounded_at_e20_both_ways():
    """Pitfall 22: the log-ratio is cut at -20 and 20, where no clip range reaches, and left alone within."""
    old, new = torch.tensor([0.0, -19.0, 0.0, -60.0, 0.0]), torch.tensor([-60.0, 0.0, 0.0, 0.0, -19.0])
    _, ratio = policy_loss(new, old, torch.ones(5), AlgoSection(), torch.zeros(5, dtype=torch.long))
    torch.testing.assert_close(ratio.log(), torch.tensor([-20.0, 19.0, 0.0, 20.0, -19.0]))


def test_the_dual_clip_and_the_two_bounds_are_the_knobs():
    # A = -1, r = 4: -A r = 4, at most -A dual_clip;  A = 1, r = 4: -(1 + clip_high);  A = -1, r = 1/4: 1 - clip_low
    old = torch.zeros(3) - 5
    new = old + torch.tensor([4.0, 4.0, 0.25]).log()
    algo = AlgoSection(dual_clip=2.5, clip_low=0.4, clip_high=0.7)
    loss, _ = policy_loss(new, old, torch.tensor([-1.0, 1.0, -1.0]), algo, torch.zeros(3, dtype=torch.long))
    torch.testing.assert_close(loss, torch.tensor([2.5, -1.7, 0.6]))


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.randoms(use_true_random=False), st.integers(0, 10**6))
def test_permuting_the_rows_of_a_step_permutes_its_gradient(tokens, order, seed):
    """Every loss, ratio and aggregation: trajectories in another order give each token the gradient it had."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(3, n, generator=generator, dtype=torch.float64) for n in tokens]
    places = list(range(len(rows)))
    order.shuffle(places)
    for loss, ratio, how in (("clip", "token", "token_mean"), ("clip", "sequence", "sequence_mean"),
                             ("cispo", "token", "fixed_length")):  # fmt: skip
        algo = AlgoSection(loss=loss, ratio=ratio)

        def gradient(arranged, algo=algo, how=how):
            new_N, old_N, advantages_N = torch.cat(arranged, dim=1)
            row_N = torch.repeat_interleave(torch.arange(len(arranged)), torch.tensor([r.shape[1] for r in arranged]))
            found = gradient_of(
                new_N,
                lambda leaf: aggregate(
                    policy_loss(leaf, old_N, advantages_N, algo, row_N)[0], row_N, how, len(row_N), len(arranged), 9
                ),
            )
            return torch.split(found, [r.shape[1] for r in arranged])

        before, after = gradient(rows), gradient([rows[i] for i in places])
        for place, found in zip(places, after, strict=True):
            torch.testing.assert_close(found, before[place])
