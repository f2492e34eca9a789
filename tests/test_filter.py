"""The trajectory filter and the reward it scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_lab.config import kept_bounds, kept_count
from ragen_lab.filter import FILTERS, fill_up, keep_groups
from ragen_lab.reward import reward_matrix, spread, trajectory_reward, turn_penalty
from ragen_lab.sections import FilterSection, RewardSection
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
        "filter/kept_std_min": 1.0,
        "filter/dropped_std_max": 0.5,
        "filter/kept_spread_share": 3 / 3.5,
        "filter/kept_zero": 0.0,
        "filter/all_equal": 0.0,
    }


@pytest.mark.parametrize(
    ("groups_", "ratio", "count"),
    [(8, 0.25, 2), (8, 1.0, 8), (8, 0.01, 1), (8, 0.31, 2), (8, 0.3125, 3), (5, 0.5, 3), (1, 0.25, 1), (3, 0.5, 2)],
)
def test_pitfall_12_how_many_groups_are_kept(groups_, ratio, count):
    """Pitfall 12: max(1, round(ratio x groups)), halves up."""
    assert kept_count(groups_, ratio) == count
    assert len(kept([[0, i] for i in range(groups_)], ratio).indices) == count


def test_pitfall_12_ties_go_to_the_lower_index_and_ratio_one_keeps_all_in_order():
    """Pitfall 12."""
    assert kept([[0, 1], [1, 0], [0, 1], [0, 1]], 0.5).indices == (0, 1)
    assert kept([[0, 1], [0, 9], [0, 0]], 1.0).indices == (0, 1, 2)


def test_pitfall_12_all_groups_equal_is_counted_and_never_padded():
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


def test_pitfall_13_the_format_penalty_can_be_left_out_of_the_score():
    """Pitfall 13: a group whose only variance is the penalty counts with score=reward only."""
    rows, penalties = [[1, 1], [0, 0.1]], [[0, -0.5], [0, 0]]
    assert kept(rows, 0.5, score="reward", penalties=penalties).indices == (0,)
    assert kept(rows, 0.5, score="env_return", penalties=penalties).indices == (1,)


def test_pitfall_13_raw_rewards_are_scored():
    """Pitfall 13: scaling one group's rewards changes its rank; after normalisation it could not."""
    assert kept([[0, 1], [0, 0.5]], 0.5).indices == (0,)
    assert kept([[0, 0.1], [0, 0.5]], 0.5).indices == (1,)


def test_pitfall_11_float_noise_is_no_spread():
    """Pitfall 11: a spread below 1e-6 x max(1, |r|) is exactly 0."""
    noise = 0.1 + 0.2 - 0.3  # 5.6e-17
    assert spread(np.array([[0.3, 0.3 + noise], [1e6, 1e6 + 0.5], [0.0, 1e-3]])).tolist() == [0.0, 0.0, 5e-4]


def test_reward_is_the_sum_of_turns_and_penalties():
    assert trajectory_reward(trajectory(1.0, -0.1)) == pytest.approx(0.9)
    assert reward_matrix(groups([[1.0, 2.0]], [[-0.1, 0.0]])).tolist() == [[0.9, 2.0]]
    assert turn_penalty(True, RewardSection(format_penalty=0.3)) == 0.0
    assert turn_penalty(False, RewardSection(format_penalty=0.3)) == -0.3


def chosen(kind, rows, **knobs):
    section = FilterSection(kind=kind, **knobs)
    return keep_groups(groups(rows), section, np.random.default_rng(0))


SPREADS = [[0, 2], [0, 6], [1, 1], [0, 4], [0, 0.4]]  # stds 1, 3, 0, 2, 0.2: 6.2 in all; ranked 1, 3, 0, 4, 2


@pytest.mark.parametrize(
    ("kind", "knobs", "indices"),
    [
        ("top_p", {"top_p": 0.4}, (1,)),  # 3 >= 2.48
        ("top_p", {"top_p": 0.5}, (1, 3)),  # 3 < 3.1 <= 5
        ("top_p", {"top_p": 0.9}, (0, 1, 3)),  # 5 < 5.58 <= 6
        ("top_p", {"top_p": 1.0}, (0, 1, 3, 4)),  # all that have any
        ("top_k", {"top_k": 1}, (1,)),
        ("top_k", {"top_k": 3}, (0, 1, 3)),
        ("top_k", {"top_k": 9}, (0, 1, 2, 3, 4)),
        ("min_p", {"min_p": 0.5}, (1, 3)),  # at least 1.5
        ("min_p", {"min_p": 1 / 3}, (0, 1, 3)),  # at least 1: the bound itself is kept
        ("min_p", {"min_p": 0.0}, (0, 1, 2, 3, 4)),
        ("zero_only", {}, (0, 1, 3, 4)),
        ("smallest", {"keep_ratio": 0.4}, (2, 4)),
        ("std", {"keep_ratio": 0.4}, (1, 3)),
    ],
)
def test_kinds_worked_by_hand(kind, knobs, indices):
    result = chosen(kind, SPREADS, **knobs)
    assert result.indices == indices
    least, most = kept_bounds(FilterSection(kind=kind, **knobs), len(SPREADS))
    assert least <= len(indices) <= most


def test_why_a_group_was_kept_is_logged():
    metrics = chosen("top_p", SPREADS, top_p=0.5).metrics
    assert metrics["filter/kept_spread_share"] == pytest.approx(5 / 6.2)
    assert metrics["filter/kept_std_min"] == 2.0
    assert metrics["filter/dropped_std_max"] == 1.0
    assert metrics["filter/kept_zero"] == 0.0
    assert chosen("smallest", SPREADS, keep_ratio=0.4).metrics["filter/kept_zero"] == 1.0
    assert "filter/dropped_std_max" not in chosen("top_k", SPREADS, top_k=5).metrics


@pytest.mark.parametrize("kind", sorted(FILTERS))
def test_pitfall_12_no_spread_anywhere(kind):
    """Pitfall 12: at least one group, no group twice, counted; those that look for spread keep the first one."""
    result = chosen(kind, [[1, 1], [2, 2], [0, 0]], keep_ratio=0.5)
    assert len(set(result.indices)) == len(result.indices) >= 1
    assert result.metrics["filter/all_equal"] == 1.0
    assert result.metrics["filter/kept_zero"] == len(result.indices)
    assert result.metrics["filter/kept_spread_share"] == 1.0
    if kind in ("top_p", "min_p", "zero_only"):
        assert result.indices == (0,)


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=8),
    st.sampled_from(sorted(FILTERS)),
    st.floats(0.01, 1),
)
def test_pitfall_12_13_promises_of_every_kind(rows, kind, share):
    """Pitfalls 12, 13: ascending, distinct, within the stated bounds; blind to shift and scale of all rewards."""
    knobs = {"keep_ratio": share, "top_p": share, "min_p": share, "top_k": 1 + len(rows) // 2}
    result = chosen(kind, rows, **knobs)
    assert list(result.indices) == sorted(set(result.indices))
    least, most = kept_bounds(FilterSection(kind=kind, **knobs), len(rows))
    assert least <= len(result.indices) <= most
    assert chosen(kind, [[2 * r + 1 for r in row] for row in rows], **knobs).indices == result.indices
    if kind == "top_p":  # the fewest: without its weakest group the kept ones hold less than the share
        kept_std = sorted(result.std_G[list(result.indices)])
        assert sum(kept_std[1:]) <= share * result.std_G.sum() + 1e-9 or len(kept_std) == 1


def test_filling_up():
    """DAPO's dynamic sampling: rounds until enough groups have spread, those first, and no more than asked."""
    first = groups([[0, 0], [0, 1], [2, 2], [3, 3]])
    rounds = {1: groups([[1, 1], [0, 2], [5, 5], [5, 5]]), 2: groups([[0, 3], [0, 4], [0, 5], [0, 6]])}
    asked = []

    def more(number):
        asked.append(number)
        return rounds[number]

    found, told = fill_up(first, FilterSection(kind="zero_only", resample=5), more)
    assert asked == [1, 2]
    assert reward_matrix(found).tolist() == [[0, 1], [0, 2], [0, 3], [0, 4]]
    assert told == {"filter/extra_rollouts": 2.0, "filter/sampled_groups": 12.0, "filter/full": 1.0}
    asked.clear()  # one round at most: not full, topped up with groups without spread, in order
    found, told = fill_up(first, FilterSection(kind="zero_only", resample=1), more)
    assert asked == [1]
    assert reward_matrix(found).tolist() == [[0, 1], [0, 2], [0, 0], [2, 2]]
    assert told["filter/full"] == 0.0
    asked.clear()  # a filter that keeps a quarter needs one group only
    found, told = fill_up(first, FilterSection(kind="std", keep_ratio=0.25, resample=5), more)
    assert (asked, found) == ([], first)
    assert told["filter/full"] == 1.0, "one group with spread is all that it keeps"
    off, told = fill_up(first, FilterSection(kind="zero_only"), more)
    assert (asked, off) == ([], first)
    assert told == {"filter/extra_rollouts": 0.0, "filter/sampled_groups": 4.0, "filter/full": 0.0}


def test_the_turns_of_a_trajectory_sum_to_its_reward():
    """Turn-level credit sees the same money as trajectory-level credit, shaping included."""
    from dataclasses import replace

    from ragen_lab.reward import turn_reward

    whole = trajectory(1.0, -0.1)
    turns = tuple(replace(turn, reasoning=0.3, length_cost=-0.05) for turn in (*whole.turns, *whole.turns))
    longer = replace(whole, turns=turns)
    assert sum(map(turn_reward, turns)) == pytest.approx(trajectory_reward(longer)) == pytest.approx(2.3)


def test_pitfall_12_ties_go_to_the_lower_index_in_a_long_list_too():
    """Pitfall 12: 100 of 200 groups have the same spread; numpy's default sort is not stable above 16 elements."""
    rows = [[0, 1] if i % 2 else [0, 0] for i in range(200)]
    assert kept(rows, 0.25).indices == tuple(range(1, 100, 2))
    assert kept(rows, 0.25, kind="smallest").indices == tuple(range(0, 100, 2))
    assert chosen("top_k", rows, top_k=40).indices == tuple(range(1, 80, 2))
    # spreads sum to 100 x 0.5; half of them is 50 groups
    assert chosen("top_p", rows, top_p=0.5).indices == tuple(range(1, 100, 2))


def test_filling_up_keeps_the_order_of_sampling_in_a_long_list_too():
    first = groups([[i, i] for i in range(100)])
    more = groups([[1000 + i, 1001 + i] for i in range(100)])
    found, _ = fill_up(first[:50] + more[:50], FilterSection(kind="zero_only", resample=1), lambda n: more[50:75])
    assert reward_matrix(found)[:, 0].tolist() == [*range(1000, 1075), *range(25)]


def test_pitfall_12_equal_but_not_zero_spreads_count_as_all_equal():
    """Pitfall 12: no choice is possible where all spreads are the same, 0 or not; by one group it is."""
    assert kept([[0, 1], [1, 0], [2, 3]], 0.5).metrics["filter/all_equal"] == 1.0
    assert kept([[0, 1], [1, 0], [2, 4]], 0.5).metrics["filter/all_equal"] == 0.0


def test_pitfall_11_the_floor_of_a_spread_grows_with_the_size_of_the_rewards():
    """Pitfall 11: 1e-6 x max(1, |r|): absolute below 1, relative above, for either sign."""
    # [0, 1.9e-6]: std 0.95e-6 < 1e-6;  [0, 2.1e-6]: 1.05e-6;  |r| = 1e6: floor 1;  [-1e6, -1e6 + 1]: std 0.5 < 1
    rows = [[0, 1.9e-6], [0, 2.1e-6], [-1e6, -1e6 + 1], [-1e6, -1e6 + 4], [0, -2.1e-6]]
    assert spread(np.array(rows)).tolist() == pytest.approx([0, 1.05e-6, 0, 2, 1.05e-6])
    assert spread(np.array([[1.0, 2.0, 3.0, 6.0]])).tolist() == pytest.approx([np.sqrt(3.5)])  # (4 + 1 + 0 + 9) / 4


def test_filling_up_looks_at_the_score_that_the_filter_looks_at():
    """``filter.score: env_return``: a group whose members differ in their penalty only has no spread."""
    first = groups([[1, 1], [0, 0]], [[0, -0.1], [0, 0]])
    asked = []

    def more(number):
        asked.append(number)
        return groups([[0, 1], [1, 1]])

    section = FilterSection(kind="std", keep_ratio=0.5, score="env_return", resample=3)
    found, told = fill_up(first, section, more)
    assert asked == [1]
    assert reward_matrix(found, "env_return").tolist() == [[0, 1], [1, 1]]
    assert told["filter/full"] == 1.0
    assert fill_up(first, section.model_copy(update={"score": "reward"}), more)[1]["filter/extra_rollouts"] == 0.0
