"""The trajectory filter and the reward it scores."""

from __future__ import annotations

import numpy as np
import pytest

from ragen_lab.config import FilterSection, RewardSection, kept_count
from ragen_lab.filter import keep_groups
from ragen_lab.reward import reward_matrix, spread, trajectory_reward, turn_penalty
from ragen_lab.trajectory import StopReason, Trajectory, TrajectoryGroup, Turn


def trajectory(reward: float, penalty: float = 0.0) -> Trajectory:
    turn = Turn("o", "r", "t", ("Up",), penalty == 0, False, reward, penalty, 3, 1)
    empty = np.zeros(1)
    return Trajectory(
        empty.astype(np.int64),
        empty.astype(np.int8),
        empty.astype(np.int16),
        empty.astype(np.float32),
        (turn,),
        StopReason.TURNS,
        0,
        0,
    )


def groups(rows, penalties=None):
    penalties = penalties or [[0.0] * len(row) for row in rows]
    return [
        TrajectoryGroup(i, tuple(trajectory(r, p) for r, p in zip(row, pen, strict=True)))
        for i, (row, pen) in enumerate(zip(rows, penalties, strict=True))
    ]


def kept(rows, ratio, kind="std", score="reward", penalties=None, seed=0):
    section = FilterSection(kind=kind, keep_ratio=ratio, score=score)
    return keep_groups(groups(rows, penalties), section, np.random.default_rng(seed))


def test_the_groups_with_the_highest_spread_are_kept():
    # population std of [0, 1] = 0.5, of [0, 2] = 1, of [0, 0] = 0, of [0, 4] = 2
    result = kept([[0, 1], [0, 2], [0, 0], [0, 4]], 0.5)
    assert result.indices == (1, 3)
    assert result.std_G.tolist() == [0.5, 1.0, 0.0, 2.0]
    assert result.metrics == {
        "filter/kept_groups": 2.0,
        "filter/kept_share": 0.5,
        "filter/kept_std": 1.5,
        "filter/all_equal": 0.0,
    }


@pytest.mark.parametrize(
    ("groups_", "ratio", "count"),
    [(8, 0.25, 2), (8, 1.0, 8), (8, 0.01, 1), (8, 0.31, 2), (8, 0.3125, 3), (5, 0.5, 3), (1, 0.25, 1), (3, 0.5, 2)],
)
def test_how_many_groups_are_kept(groups_, ratio, count):
    """Pitfall 12: max(1, round(ratio x groups)), halves up."""
    assert kept_count(groups_, ratio) == count
    assert len(kept([[0, i] for i in range(groups_)], ratio).indices) == count


def test_ties_go_to_the_lower_index_and_ratio_one_keeps_all_in_order():
    """Pitfall 12."""
    assert kept([[0, 1], [1, 0], [0, 1], [0, 1]], 0.5).indices == (0, 1)
    assert kept([[0, 1], [0, 9], [0, 0]], 1.0).indices == (0, 1, 2)


def test_all_groups_equal_is_counted_and_never_padded():
    """Pitfall 12."""
    result = kept([[1, 1], [2, 2], [3, 3], [0, 0]], 0.5)
    assert result.indices == (0, 1)
    assert result.metrics["filter/all_equal"] == 1.0


def test_random_keeps_as_many_whatever_they_score():
    rows = [[0, i] for i in range(8)]
    chosen = {kept(rows, 0.25, kind="random", seed=s).indices for s in range(50)}
    assert {len(c) for c in chosen} == {2}
    assert len(chosen) > 10
    assert set().union(*chosen) == set(range(8))


def test_the_format_penalty_can_be_left_out_of_the_score():
    """Pitfall 13: a group whose only variance is the penalty counts with score=reward only."""
    rows, penalties = [[1, 1], [0, 0.1]], [[0, -0.5], [0, 0]]
    assert kept(rows, 0.5, score="reward", penalties=penalties).indices == (0,)
    assert kept(rows, 0.5, score="env_return", penalties=penalties).indices == (1,)


def test_raw_rewards_are_scored():
    """Pitfall 13: scaling one group's rewards changes its rank; after normalisation it could not."""
    assert kept([[0, 1], [0, 0.5]], 0.5).indices == (0,)
    assert kept([[0, 0.1], [0, 0.5]], 0.5).indices == (1,)


def test_float_noise_is_no_spread():
    """Pitfall 11: a spread below 1e-6 x max(1, |r|) is exactly 0."""
    noise = 0.1 + 0.2 - 0.3  # 5.6e-17
    assert spread(np.array([[0.3, 0.3 + noise], [1e6, 1e6 + 0.5], [0.0, 1e-3]])).tolist() == [0.0, 0.0, 5e-4]


def test_reward_is_the_sum_of_turns_and_penalties():
    assert trajectory_reward(trajectory(1.0, -0.1)) == pytest.approx(0.9)
    assert reward_matrix(groups([[1.0, 2.0]], [[-0.1, 0.0]])).tolist() == [[0.9, 2.0]]
    assert turn_penalty(True, RewardSection(format_penalty=0.3)) == 0.0
    assert turn_penalty(False, RewardSection(format_penalty=0.3)) == -0.3
