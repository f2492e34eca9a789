"""Advantages: worked numbers and the properties that other trainers lack."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_lab.algo.advantages import ALGORITHMS, as_episodes
from ragen_lab.algo.base import Episodes
from ragen_lab.algo.gae import bi_level_gae, gae, terminal_reward, token_rewards, whiten
from ragen_lab.algo.grpo import broadcast, group_advantages
from ragen_lab.sections import AlgoSection
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason, Trajectory, TrajectoryGroup, Turn

floats = st.floats(-5, 5, allow_nan=False)


def test_gae_worked_by_hand():
    # gamma 0.9, lambda 0.8, rewards 0 0 1, values 0.5 0.4 0.3
    # delta3 = 1 - 0.3 = 0.7;  delta2 = 0.9*0.3 - 0.4 = -0.13;  delta1 = 0.9*0.4 - 0.5 = -0.14
    # A3 = 0.7;  A2 = -0.13 + 0.72*0.7 = 0.374;  A1 = -0.14 + 0.72*0.374 = 0.12928
    advantages, returns = gae(np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.4, 0.3]), 0.9, 0.8)
    np.testing.assert_allclose(advantages, [0.12928, 0.374, 0.7])
    np.testing.assert_allclose(returns, [0.62928, 0.774, 1.0])


@given(st.lists(floats, min_size=1, max_size=12), floats)
def test_pitfall_07_a_perfect_critic_leaves_no_advantage(values, reward):
    """Pitfall 7: with a deterministic outcome and V = the outcome in every state, A = 0 everywhere."""
    advantages, _ = gae(terminal_reward(reward, len(values)), np.full(len(values), reward), 1.0, 0.95)
    np.testing.assert_allclose(advantages, 0, atol=1e-12)


@given(st.lists(floats, min_size=1, max_size=12), floats, st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_the_sum_of_discounted_deltas(values, reward, gamma, lam):
    """Schulman et al. eq. 16, written out as a double sum."""
    n = len(values)
    rewards = terminal_reward(reward, n)
    after = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * after[t] - values[t] for t in range(n)]
    expected = [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]
    np.testing.assert_allclose(gae(rewards, np.array(values), gamma, lam)[0], expected, atol=1e-9)


def test_pitfall_09_the_reward_sits_on_the_last_model_token():
    """Pitfall 9: all the estimators see are model tokens, so a trailing observation cannot swallow it."""
    assert terminal_reward(2.5, 3).tolist() == [0.0, 0.0, 2.5]


def test_group_advantages_worked_by_hand():
    # group 1: rewards 1 0 0 1: mean 0.5, population std 0.5 -> +1 -1 -1 +1
    # group 2: rewards 3 0 0 0: mean 0.75, std sqrt((2.25^2 + 3*0.75^2)/4) = 1.29904 -> 1.73205, -0.57735
    found = group_advantages(np.array([[1.0, 0, 0, 1], [3.0, 0, 0, 0]]), std_normalize=True)
    np.testing.assert_allclose(found, [[1, -1, -1, 1], [1.7320508, -0.5773503, -0.5773503, -0.5773503]], atol=1e-6)
    plain = group_advantages(np.array([[3.0, 0, 0, 0]]), std_normalize=False)
    np.testing.assert_allclose(plain, [[2.25, -0.75, -0.75, -0.75]])


def test_pitfall_11_float_noise_is_not_blown_up():
    """Pitfall 11: rewards that differ by rounding give exactly 0, whatever their size."""
    noisy = np.array([[0.1 + 0.2, 0.3, 0.3, 0.3], [1e8, 1e8 + 1e-7, 1e8, 1e8]])
    assert (group_advantages(noisy, True) == 0).all()
    assert (group_advantages(noisy, False) == 0).all()


def test_pitfall_11_a_group_of_one_has_no_baseline():
    """Pitfall 11: an error, never the raw score."""
    with pytest.raises(ValueError, match="responses >= 2"):
        group_advantages(np.array([[1.0]]), True)


@given(st.lists(floats, min_size=2, max_size=6), st.floats(0.5, 10), floats)
def test_normalised_group_advantages_ignore_scale_and_shift(rewards, scale, shift):
    rewards_GR = np.array([rewards])
    if rewards_GR.std() < 1e-3:
        return
    moved = group_advantages(rewards_GR * scale + shift, True)
    np.testing.assert_allclose(moved, group_advantages(rewards_GR, True), atol=1e-6)


def test_broadcast_gives_every_model_token_its_trajectory_advantage():
    found = broadcast(np.array([[1.0, -1.0]]), [2, 3])
    assert [a.tolist() for a in found] == [[1.0, 1.0], [-1.0, -1.0, -1.0]]


def test_whitening_is_over_all_tokens_of_the_batch():
    # values 1, 2, 3, 6: mean 3, population std sqrt((4+1+0+9)/4) = 1.8708287
    found = np.concatenate(whiten([np.array([1.0, 2.0]), np.array([3.0, 6.0])]))
    np.testing.assert_allclose(found, np.array([-2, -1, 0, 3]) / 1.8708287, atol=1e-6)
    assert [a.tolist() for a in whiten([np.array([0.7, 0.7]), np.array([0.7])])] == [[0.0, 0.0], [0.0]]


# -- estimators on episodes ---------------------------------------------------------------------------


def episodes(turn_rewards, turn_tokens, values=None, penalties=None, responses=2):
    """Episodes from turn rewards and tokens per turn, one list each per trajectory."""
    counts = [sum(tokens) for tokens in turn_tokens]
    return Episodes(
        rewards_GR=np.array([sum(r) for r in turn_rewards], dtype=np.float64).reshape(-1, responses),
        turn_rewards=[np.array(r, dtype=np.float64) for r in turn_rewards],
        turn_ends=[np.cumsum(tokens) for tokens in turn_tokens],
        penalties=[np.zeros(n) for n in counts] if penalties is None else [np.array(p, dtype=float) for p in penalties],
        values=None if values is None else [np.array(v, dtype=np.float64) for v in values],
    )


def advantages(name, batch, **knobs):
    return ALGORITHMS[name].estimate(batch, AlgoSection(name=name, **knobs)).advantages


def test_bi_level_gae_worked_by_hand():
    # Two turns of two tokens, rewards 1 and 0; values 0.5 0.4 0.3 0.2; gamma_turn 0.9, gamma 0.8, lambda 0.5
    # Turns, values before their last tokens 0.4 and 0.2: d2 = 0 - 0.2 = -0.2;  d1 = 1 + 0.9*0.2 - 0.4 = 0.78
    #   A(turn 2) = -0.2;  A(turn 1) = 0.78 + 0.9*0.5*(-0.2) = 0.69
    # Tokens of turn 2: last earns -0.2 + 0.2 = 0: A4 = 0 - 0.2 = -0.2
    #   A3 = (0.8*0.2 - 0.3) + 0.8*0.5*(-0.2) = -0.14 - 0.08 = -0.22
    # Tokens of turn 1: last earns 0.69 + 0.4 = 1.09: A2 = 0.69
    #   A1 = (0.8*0.4 - 0.5) + 0.4*0.69 = -0.18 + 0.276 = 0.096
    found, returns = bi_level_gae(
        np.array([1.0, 0.0]), np.array([2, 4]), np.zeros(4), np.array([0.5, 0.4, 0.3, 0.2]), 0.9, 0.8, 0.5
    )
    np.testing.assert_allclose(found, [0.096, 0.69, -0.22, -0.2], atol=1e-12)
    np.testing.assert_allclose(returns, [0.596, 1.09, 0.08, 0.0], atol=1e-12)


def test_bi_level_gae_pays_each_token_s_kl_once():
    # The same turns and values, with KL -0.1 -0.2 | -0.3 -0.4: turns pay -0.3 and -0.7
    #   d2 = 0 - 0.7 - 0.2 = -0.9;  d1 = 1 - 0.3 + 0.9*0.2 - 0.4 = 0.48;  A(turn 1) = 0.48 + 0.45*(-0.9) = 0.075
    # Turn 2: last earns -0.9 + 0.2 + 0.3 = -0.4 (its own): A4 = -0.6
    #   A3 = (-0.3 + 0.8*0.2 - 0.3) + 0.4*(-0.6) = -0.44 - 0.24 = -0.68
    # Turn 1: last earns 0.075 + 0.4 + 0.1 = 0.575: A2 = 0.175;  A1 = (-0.1 + 0.32 - 0.5) + 0.4*0.175 = -0.21
    found, returns = bi_level_gae(
        np.array([1.0, 0.0]),
        np.array([2, 4]),
        np.array([-0.1, -0.2, -0.3, -0.4]),
        np.array([0.5, 0.4, 0.3, 0.2]),
        0.9,
        0.8,
        0.5,
    )
    np.testing.assert_allclose(found, [-0.21, 0.175, -0.68, -0.6], atol=1e-12)
    np.testing.assert_allclose(returns, [0.29, 0.575, -0.38, -0.4], atol=1e-12)


@given(
    st.lists(floats, min_size=1, max_size=6), st.lists(floats, min_size=6, max_size=6), st.floats(0, 1), st.floats(0, 1)
)
def test_bi_level_gae_of_one_turn_with_kl_is_plain_gae(values, kl, gamma, lam):
    n = len(values)
    kl_N, values_N = np.array(kl[:n]), np.array(values)
    found = bi_level_gae(np.array([2.0]), np.array([n]), kl_N, values_N, 0.3, gamma, lam)
    np.testing.assert_allclose(found, gae(terminal_reward(2.0, n) + kl_N, values_N, gamma, lam), atol=1e-9)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_without_discounts_every_token_answers_for_all_that_is_paid_from_it_on(tokens, data):
    """gamma = gamma_turn = lambda = 1: A_t = rewards and KL from token t on, less V_t, across the ends of turns."""
    n, ends = sum(tokens), np.cumsum(tokens)
    kl, values = (np.array(data.draw(st.lists(floats, min_size=n, max_size=n))) for _ in range(2))
    rewards = np.array(data.draw(st.lists(floats, min_size=len(tokens), max_size=len(tokens))))
    paid = kl.copy()
    paid[ends - 1] += rewards
    found, _ = bi_level_gae(rewards, ends, kl, values, 1.0, 1.0, 1.0)
    np.testing.assert_allclose(found, paid[::-1].cumsum()[::-1] - values, atol=1e-9)


def test_pitfall_10_bi_level_gae_needs_no_reward_to_find_a_turn():
    """Pitfall 10: zero-reward turns, an episode without any reward, and a single turn."""
    values = np.array([0.5, 0.4, 0.3, 0.2, 0.1])
    ends = np.array([2, 3, 5])
    silent, _ = bi_level_gae(np.array([0.0, 0.0, 1.0]), ends, np.zeros(5), values, 0.9, 1.0, 1.0)
    # lambda = gamma = 1: a token's advantage is its turn's return, 0.9^(turns to go) x 1, less its value
    np.testing.assert_allclose(silent, np.array([0.81, 0.81, 0.9, 1.0, 1.0]) - values, atol=1e-12)
    nothing, _ = bi_level_gae(np.zeros(3), ends, np.zeros(5), values, 0.9, 1.0, 1.0)
    np.testing.assert_allclose(nothing, -values, atol=1e-12)
    one, one_returns = bi_level_gae(np.array([2.0]), np.array([5]), np.zeros(5), values, 0.9, 0.9, 0.8)
    plain, returns = gae(terminal_reward(2.0, 5), values, 0.9, 0.8)
    np.testing.assert_allclose(one, plain, atol=1e-12)
    np.testing.assert_allclose(one_returns, returns, atol=1e-12)


def test_ppo_credit_puts_a_turn_s_reward_on_that_turn_s_last_model_token():
    # Turns of 2 and 1 tokens, rewards 1 and 3, V = 0, gamma = lambda = 1: reward to go.
    batch = episodes([[1, 3], [0, 0]], [[2, 1], [2, 1]], values=[[0, 0, 0], [0, 0, 0]])
    assert token_rewards(batch, "trajectory")[0].tolist() == [0, 0, 4]
    assert token_rewards(batch, "turn")[0].tolist() == [0, 1, 3]
    assert advantages("ppo", batch, whiten=False)[0].tolist() == [4, 4, 4]
    assert advantages("ppo", batch, whiten=False, credit="turn")[0].tolist() == [4, 4, 3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # rewards 3, 0, 0: mean 1, population std sqrt((4 + 1 + 1)/3) = 1.4142136
        ("grpo", [1.4142136, -0.7071068, -0.7071068]),
        ("dr_grpo", [2, -1, -1]),
        ("rloo", [3, -1.5, -1.5]),  # 3 - (0+0)/2;  0 - (3+0)/2
        # Over the tokens: 3 once, 0 twice and 0 once more (2 tokens): mean 3/4, std sqrt((2.25^2 + 3*0.75^2)/4)
        ("reinforce_pp", [1.7320508, -0.5773503, -0.5773503]),
        # Centred 2, -1, -1, -1 over the tokens: mean -1/4, std sqrt((2.25^2 + 3*0.75^2)/4) = 1.2990381
        ("reinforce_pp_baseline", [1.7320508, -0.5773503, -0.5773503]),
    ],
)
def test_estimators_without_a_critic_worked_by_hand(name, expected):
    batch = episodes([[3], [0], [0]], [[1], [2], [1]], responses=3)
    found = advantages(name, batch)
    assert [len(a) for a in found] == [1, 2, 1]
    np.testing.assert_allclose([a[0] for a in found], expected, atol=1e-6)
    for a in found:
        assert np.ptp(a) == 0.0


def test_reinforce_pp_discounts_and_sums_kl_from_each_token_on():
    # gamma 0.5, reward 1 on the third token, penalties -0.1 each: 0.9;  -0.1 + 0.45;  -0.1 + 0.175
    batch = episodes([[1], [0]], [[3], [1]], penalties=[[-0.1, -0.1, -0.1], [0]])
    found = advantages("reinforce_pp", batch, gamma=0.5, whiten=False)
    np.testing.assert_allclose(found[0], [0.075, 0.35, 0.9])
    lam = advantages("reinforce_pp", batch, gamma=0.5, lam=0.3, whiten=False)
    np.testing.assert_array_equal(lam[0], found[0], "there is no lambda in it")


def test_the_global_baselines_differ_where_groups_differ():
    """REINFORCE++ compares with the whole batch, its baseline variant first with the group."""
    batch = episodes([[10], [10], [0], [1]], [[1]] * 4)
    plain, based = advantages("reinforce_pp", batch), advantages("reinforce_pp_baseline", batch)
    assert plain[0][0] > 0.9
    assert based[0][0] == based[1][0] == pytest.approx(0.0, abs=1e-12)
    assert based[3][0] == -based[2][0] > 0


def test_turn_credit_of_group_baselines_worked_by_hand():
    # To go: trajectory 0: 3, 2;  1: 1, 1;  2: 0 (one turn only)
    # Turn 1: mean 4/3 over three;  turn 2: mean 1.5 over the two that reached it
    batch = episodes([[1, 2], [0, 1], [0]], [[1, 2], [2, 1], [1]], responses=3)
    found = advantages("dr_grpo", batch, credit="turn")
    np.testing.assert_allclose(found[0], [5 / 3, 0.5, 0.5])
    np.testing.assert_allclose(found[1], [-1 / 3, -1 / 3, -0.5])
    np.testing.assert_allclose(found[2], [-4 / 3])
    leave_out = advantages("rloo", batch, credit="turn")
    np.testing.assert_allclose(leave_out[0], [3 - 0.5, 2 - 1, 2 - 1])  # against (1 + 0)/2, then against 1
    kl = episodes([[1, 2], [0, 1]], [[1, 2], [2, 1]], penalties=[[-1, 0, -1], [0, 0, 0]])
    np.testing.assert_allclose(  # to go: 1, 1 and 1, 1: nothing differs
        np.concatenate(advantages("dr_grpo", kl, credit="turn")), 0, atol=1e-12
    )


def test_pitfall_11_a_turn_that_only_one_member_reached_has_no_baseline():
    """Pitfall 11, by turn: exactly 0, never the raw reward."""
    batch = episodes([[0, 5], [1]], [[1, 2], [1]])
    for name in ("grpo", "dr_grpo", "rloo"):
        assert advantages(name, batch, credit="turn")[0][1:].tolist() == [0, 0]


GROUP = [name for name, algorithm in ALGORITHMS.items() if algorithm.group]


@st.composite
def batches(draw):
    """Two groups of three trajectories of one to three turns."""
    lengths = [draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)) for _ in range(6)]
    numbers = st.integers(-8, 8).map(lambda k: k / 4)  # sums of quarters are exact: no float noise in the groups
    rewards = [[draw(numbers) for _ in tokens] for tokens in lengths]
    values = [[draw(numbers) for _ in range(sum(tokens))] for tokens in lengths]
    return episodes(rewards, lengths, values=values, responses=3)


@given(batches(), st.sampled_from(["trajectory", "turn"]), st.sampled_from(sorted(ALGORITHMS)))
def test_every_estimator_gives_each_model_token_one_finite_number(batch, credit, name):
    algo = AlgoSection(name=name, credit=credit)
    signals = ALGORITHMS[name].estimate(batch, algo)
    assert [len(a) for a in signals.advantages] == batch.tokens
    assert all(np.isfinite(a).all() for a in signals.advantages)
    assert (signals.returns is not None) == ALGORITHMS[name].critic


@given(
    batches(), st.sampled_from(["trajectory", "turn"]), st.permutations([0, 1, 2]), st.sampled_from(sorted(ALGORITHMS))
)
def test_permuting_members_and_groups_permutes_the_advantages(batch, credit, order, name):
    rows = [3 + i for i in order] + list(order)

    def pick(items):
        return [items[i] for i in rows]

    moved = Episodes(
        batch.rewards_GR.reshape(-1)[rows].reshape(2, 3),
        pick(batch.turn_rewards),
        pick(batch.turn_ends),
        pick(batch.penalties),
        pick(batch.values),
    )
    before, after = advantages(name, batch, credit=credit), advantages(name, moved, credit=credit)
    for expected, found in zip(pick(before), after, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


def scaled(batch, scale, shift=0.0):
    """Rewards times ``scale``, plus ``shift`` on the last turn; values alike (they foretell rewards)."""
    turns = [r * scale + shift * (np.arange(len(r)) == len(r) - 1) for r in batch.turn_rewards]
    values = [v * scale for v in batch.values]
    return Episodes(batch.rewards_GR * scale + shift, turns, batch.turn_ends, batch.penalties, values)


@given(batches(), st.floats(0.25, 8), st.sampled_from(["trajectory", "turn"]), st.sampled_from(sorted(ALGORITHMS)))
def test_scaling_the_rewards(batch, scale, credit, name):
    """Promised: no change where something is normalised (grpo, whitening), proportional for dr_grpo and rloo."""
    factor = scale if name in ("dr_grpo", "rloo") else 1.0
    before, after = advantages(name, batch, credit=credit), advantages(name, scaled(batch, scale), credit=credit)
    for expected, found in zip(before, after, strict=True):
        np.testing.assert_allclose(found, expected * factor, atol=1e-6)


@given(batches(), st.integers(-8, 8), st.sampled_from(["trajectory", "turn"]), st.sampled_from(GROUP))
def test_a_constant_added_to_every_episode_changes_no_group_baseline(batch, shift, credit, name):
    before, after = advantages(name, batch, credit=credit), advantages(name, scaled(batch, 1.0, shift), credit=credit)
    for expected, found in zip(before, after, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@given(batches(), st.sampled_from(GROUP))
def test_turn_credit_with_one_turn_is_trajectory_credit(batch, name):
    one = Episodes(
        batch.rewards_GR,
        [np.array([r.sum()]) for r in batch.turn_rewards],
        [ends[-1:] for ends in batch.turn_ends],
        batch.penalties,
        None,
    )
    for by_turn, whole in zip(
        advantages(name, one, credit="turn"), advantages(name, one, credit="trajectory"), strict=True
    ):
        np.testing.assert_allclose(by_turn, whole, atol=1e-12)


def played(turns, observation):
    """A trajectory with ``observation(k)`` tokens before turn k (and after the last), rewards k + 1."""
    ids, roles, turn_of = [], [], []
    for k, tokens in enumerate(turns):
        ids += [*observation(k), *range(1, tokens + 1)]
        roles += [CONTEXT] * len(observation(k)) + [MODEL] * tokens
        turn_of += [k] * (len(observation(k)) + tokens)
    ids += observation(len(turns))
    roles += [CONTEXT] * len(observation(len(turns)))
    turn_of += [len(turns)] * len(observation(len(turns)))
    records = tuple(Turn("o", "r", "t", (), True, False, k + 1.0, -0.1, n, 0) for k, n in enumerate(turns))
    return Trajectory(
        np.array(ids), np.array(roles, dtype=np.int8), np.array(turn_of, dtype=np.int16), np.zeros(len(ids)),
        records, StopReason.TURNS, 0, 0,
    )  # fmt: skip


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=4, max_size=4),
    st.sampled_from(["trajectory", "turn"]),
    st.sampled_from(sorted(ALGORITHMS)),
)
def test_pitfall_09_observations_change_no_advantage(turns, observations, credit, name):
    """Pitfall 9: between turns and after the last, of any length and content."""
    found = []
    for context in (lambda k: [5], lambda k: observations[k]):
        groups = [TrajectoryGroup(0, (played(turns, context), played([2], context)))]
        counts = [sum(turns), 2]
        batch = as_episodes(groups, [np.zeros(n) for n in counts], [np.linspace(0, 1, n) for n in counts])
        assert batch.turn_ends[0].tolist() == np.cumsum(turns).tolist()
        assert sum(batch.turn_rewards[0]) == pytest.approx(batch.rewards_GR[0, 0])
        found.append(np.concatenate(advantages(name, batch, credit=credit)))
    np.testing.assert_array_equal(found[0], found[1])


def test_the_registry_and_the_config_agree():
    assert set(get_args(AlgoSection.model_fields["name"].annotation)) == set(ALGORITHMS)
    for name, algorithm in ALGORITHMS.items():
        section = AlgoSection(name=name)
        assert (section.has_critic, section.has_group_baseline) == (algorithm.critic, algorithm.group)
    assert AlgoSection(name="dr_grpo").aggregates_by == "fixed_length"
    assert AlgoSection(name="grpo").aggregates_by == "token_mean"
    assert AlgoSection(name="dr_grpo", aggregation="token_mean").aggregates_by == "token_mean"
