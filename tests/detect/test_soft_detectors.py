"""Reward spread, gradient norm, entropy, non-finite: worked numbers, and the synthetic study in small."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ragen_lab.detect.entropy import EntropyDetector
from ragen_lab.detect.grad_norm import GradNormDetector
from ragen_lab.detect.non_finite import NonFiniteDetector
from ragen_lab.detect.reward_std import RewardStdDetector
from ragen_lab.sections import DetectSection

STD, GRAD, ENTROPY = "rollout/reward_std_in_group", "train/grad_norm", "rollout/entropy"


def first_alarm(detector, rows) -> int | None:
    return next((t for t, row in enumerate(rows) if detector.update(row).alarm), None)


def spread(seed: int, n: int = 200, drift: float = 0.3, rho: float = 0.5, sd: float = 0.15, drop_at: int | None = None):
    """In-group spread of a run: linear drift, AR(1) noise, and a drop to a tenth within ten iterations."""
    rng = np.random.default_rng(seed)
    noise = np.zeros(n)
    noise[0] = rng.normal() * sd
    for t in range(1, n):
        noise[t] = rho * noise[t - 1] + rng.normal() * sd * math.sqrt(1 - rho**2)
    mean = 1 - drift * np.arange(n) / n
    if drop_at is not None:
        mean = mean * np.clip(1 - 0.9 * (np.arange(n) - drop_at) / 10, 0.1, 1)
    return [{STD: float(max(0.0, value))} for value in mean * (1 + noise)]


@pytest.mark.parametrize("trouble", [{}, {"rho": 0.8}, {"drift": 0.6}])
def test_reward_std_is_silent_on_healthy_drift(trouble: dict[str, float]) -> None:
    """No false alarm in 100 healthy runs of 200 steps, nor under AR(0.8) or twice the drift."""
    detectors = [RewardStdDetector.build(DetectSection(), 200) for _ in range(100)]
    assert [first_alarm(d, spread(seed, **trouble)) for seed, d in enumerate(detectors)] == [None] * 100


def test_reward_std_stays_rare_under_double_noise() -> None:
    """The design allows 0.09 per healthy run; 15 of 100 is what chance would leave of that."""
    alarms = [first_alarm(RewardStdDetector.build(DetectSection(), 200), spread(s, sd=0.3)) for s in range(100)]
    assert sum(a is not None for a in alarms) <= 15


@pytest.mark.parametrize(("horizon", "drop_at", "recall"), [(200, 100, 1.0), (60, 30, 0.95)])
def test_reward_std_finds_a_real_drop(horizon: int, drop_at: int, recall: float) -> None:
    """With a median delay of about 11 iterations; at 60 the constants are scaled and a few drops are missed."""
    runs = [spread(seed, n=horizon, drop_at=drop_at) for seed in range(60)]
    alarms = [first_alarm(RewardStdDetector.build(DetectSection(), horizon), run) for run in runs]
    delays = [at - drop_at for at in alarms if at is not None]
    assert len(delays) >= recall * len(runs)
    assert min(delays) >= 0
    assert 8 <= np.median(delays) <= 13


def test_reward_std_constants_scale_with_the_horizon() -> None:
    scaled = {h: RewardStdDetector.build(DetectSection(), h) for h in (200, 60, 1000, 4)}
    assert {h: (d.span, d.lag) for h, d in scaled.items()} == {200: (50, 10), 60: (15, 3), 1000: (50, 10), 4: (5, 1)}
    fixed = DetectSection.model_validate({"reward_std": {"span": 20, "lag": 7}})
    assert (RewardStdDetector.build(fixed, 200).span, RewardStdDetector.build(fixed, 200).lag) == (20, 7)


@pytest.mark.parametrize("metric", ["rollout/success", "rollout/reward_mean"])
def test_pitfall_23_a_solved_task_is_no_collapse(metric: str) -> None:
    """Pitfall 23: the spread vanishes because every rollout succeeds."""
    rng = np.random.default_rng(0)
    success = np.clip(0.1 + np.arange(120) / 60, 0, 1)
    for level, expected in ((success, None), (np.minimum(success, 1 - success).clip(0.02), "alarm")):
        # the same spread, once because all succeed and once because all fail
        rows = [
            {STD: float(math.sqrt(p * (1 - p)) + 0.01 * rng.random()), metric: float(q)}
            for p, q in zip(success.clip(0.02, 0.999), level, strict=True)
        ]
        at = first_alarm(RewardStdDetector.build(DetectSection(), 120), rows)
        assert (at is None) == (expected is None)


def test_a_small_rise_of_the_reward_does_not_excuse_a_vanished_spread() -> None:
    """Without rollout/success, 'high' means risen by more than one in-group spread: 0.1 against 0.4 is not."""
    rows = [{STD: 0.4 if t < 60 else 0.02, "rollout/reward_mean": 0.3 + 0.1 * min(1, t / 60)} for t in range(120)]
    assert first_alarm(RewardStdDetector.build(DetectSection(), 120), rows) is not None


def test_reward_std_without_any_spread_has_nothing_to_lose() -> None:
    assert first_alarm(RewardStdDetector.build(DetectSection(), 60), [{STD: 0.0}] * 60) is None


def test_grad_norm_needs_two_spikes_in_a_row_both_robustly_high() -> None:
    # past: 1, 1.1, 0.9 ... median 1, MAD of the logs about 0.1, sd about 0.15, z = 4 means about 1.8x: 3x decides
    past = [{GRAD: v} for v in [1.0, 1.1, 0.9] * 10]
    for spikes, alarm in (([2.9, 2.9], False), ([3.2], False), ([3.2, 1.0, 3.2], False), ([3.2, 3.2], True)):
        detector = GradNormDetector.build(DetectSection(), 60)
        assert (first_alarm(detector, past + [{GRAD: v} for v in spikes]) is not None) == alarm
    noisy = [{GRAD: v} for v in [1.0, 3.0, 1 / 3] * 10]  # MAD of the logs ln 3, so 4 sd = 3^5.9: 5x says nothing here
    detector = GradNormDetector.build(DetectSection(), 60)
    assert first_alarm(detector, [*noisy, {GRAD: 5.0}, {GRAD: 5.0}]) is None
    assert detector.smallest_visible_spike() == pytest.approx(3 ** (4 * 1.4826), rel=1e-6)


def test_grad_norm_study_in_small() -> None:
    """Log-sd 0.25: no false alarm, and 5x spikes are nearly always found."""
    false, found = 0, 0
    for seed in range(100):
        norms = np.exp(np.random.default_rng(seed).normal(size=100) * 0.25)
        rows = [{GRAD: float(v)} for v in norms]
        false += first_alarm(GradNormDetector.build(DetectSection(), 100), rows) is not None
        rows[70:73] = [{GRAD: float(5 * v)} for v in norms[70:73]]
        found += first_alarm(GradNormDetector.build(DetectSection(), 100), rows) is not None
    assert false == 0
    assert found >= 90


def test_grad_norm_zero_is_passed_over_and_infinity_is_a_spike() -> None:
    steady = [{GRAD: v} for v in [1.0, 1.1, 0.9] * 10]
    assert first_alarm(GradNormDetector.build(DetectSection(), 60), steady + [{GRAD: 0.0}] * 30 + steady) is None
    assert first_alarm(GradNormDetector.build(DetectSection(), 60), [*steady, *[{GRAD: math.inf}] * 2]) == 31


def test_pitfall_23_entropy_is_watched_on_both_sides() -> None:
    """Pitfall 23: entropy can rise as well as fall."""
    for tail, alarm in ((0.31, False), (0.1, True), (1.9, False), (2.5, True)):
        rows = [{ENTROPY: 1.0}] * 5 + [{ENTROPY: tail}] * 40
        assert (first_alarm(EntropyDetector.build(DetectSection(), 60), rows) is not None) == alarm


def test_entropy_waits_for_its_patience() -> None:
    # smoothed from 1 towards 3: 1.6, 2.02, 2.31, ...: above 2 from the second on, five times at index 5 + 1 + 4
    rows = [{ENTROPY: 1.0}] * 5 + [{ENTROPY: 3.0}] * 10
    assert first_alarm(EntropyDetector.build(DetectSection(), 60), rows) == 10


def test_entropy_survives_the_healthy_decline_of_seventy_percent() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        entropy = np.linspace(1.0, 0.3, 200) * (1 + 0.1 * rng.normal(size=200))
        assert first_alarm(EntropyDetector.build(DetectSection(), 200), [{ENTROPY: float(e)} for e in entropy]) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_pitfall_22_non_finite_speaks_on_the_row_itself(value: float) -> None:
    """Pitfall 22: what is not a number is the finding."""
    detector = NonFiniteDetector.build(DetectSection(), 60)
    assert not detector.update({"train/policy_loss": 0.1}).alarm
    signal = detector.update({"train/policy_loss": value, "rollout/entropy": 1.0})
    assert signal.alarm
    assert "train/policy_loss" in signal.reason
    assert not detector.update({"train/policy_loss": 0.1}).alarm
    assert not detector.update({"eval/reward": value}).alarm  # not a metric of training
    assert not detector.update({"rollout/template_share_success": math.nan}).alarm  # no success: an empty set


@pytest.mark.parametrize(
    ("cls", "other"),
    [
        (RewardStdDetector, GRAD),
        (GradNormDetector, ENTROPY),
        (EntropyDetector, STD),
        (NonFiniteDetector, "eval/reward"),
    ],
)
def test_pitfall_24_an_absent_metric_is_not_evaluable(cls, other: str) -> None:
    """Pitfall 24: what is not logged is never called healthy."""
    detector = cls.build(DetectSection(), 60)
    for _ in range(60):
        signal = detector.update({other: 1.0})
        assert not signal.evaluable
        assert not signal.alarm
        assert "logged" in signal.reason
