"""How an episode is played: a scripted model says what we want, and every consequence is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from ragen_lab.config import RunConfig
from ragen_lab.env.base import make_env
from ragen_lab.env.frozen_lake import FrozenLake, Lake
from ragen_lab.errors import ConfigError, EnvError
from ragen_lab.prompt import ChatWriter, Parsed
from ragen_lab.rollout import collect as rollouts
from ragen_lab.rollout.engine import Reply
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason
from tests.conftest import SMALL
from tests.env.outside import Corridor
from tests.rollout.test_engine import roll

UP = "<think> go </think> <answer> Up </answer>"


def scripted(monkeypatch, policy, says, ended=True):
    """A session that replies ``says(turn, row)``; returns the list of (rows, contexts) that it was asked."""
    asked = []

    class Scripted:
        def __init__(self, *args):
            pass

        def start(self, prompts, members):
            self.turn = 0

        def reply(self, rows, contexts):
            asked.append((list(rows), [list(c) for c in contexts]))
            replies = []
            for row in rows:
                ids = list(policy.tokenizer(says(self.turn, row), add_special_tokens=False)["input_ids"])
                ids += [policy.tokenizer.eos_token_id] if ended else []
                replies.append(Reply(ids, [-0.5] * len(ids), [0.25] * len(ids), not ended))
            self.turn += 1
            return replies

    monkeypatch.setattr(rollouts, "NativeSession", Scripted)
    return asked


def play(policy, overrides=None, rows=1):
    cfg = RunConfig().with_overrides({**SMALL, "rollout.responses": 2, **(overrides or {})})
    writer = ChatWriter(policy.tokenizer, cfg.prompt, cfg.rollout)
    rollout = rollouts.collect(policy, writer, cfg, [5], [list(range(rows))], 1.0, 0)
    return rollout, list(rollout.groups[0].trajectories), writer


class Bumping(FrozenLake):
    """A lake on which nothing happens: every step stays and pays 1."""

    def step(self, action):
        result = super().step("Up")
        return type(result)(result.observation, 1.0, False, False)

    def reset(self, seed, dynamics=0):
        observation = super().reset(seed, dynamics)
        self._cell = 0  # the top left corner: up is against the wall
        return observation


@pytest.fixture
def bumping(monkeypatch):
    monkeypatch.setattr(rollouts, "make_env", Bumping)


def test_pitfall_02_a_literal_role_marker_in_a_reply_leaves_the_roles_as_they_are(small_policy, monkeypatch, bumping):
    """Pitfall 2: the model writes whole turns of both roles; each id of it is a model token of its own turn, and the
    contexts around it are those of a model that does not."""
    marker = "<user> think <assistant> <end> <assistant>"
    forged = f"<think> {marker} </think> <answer> Up </answer>"
    assert small_policy.tokenizer.convert_tokens_to_ids("<user>") in small_policy.tokenizer(marker)["input_ids"]
    found = {}
    for name, text in (("plain", UP), ("forged", forged)):
        asked = scripted(monkeypatch, small_policy, lambda turn, row, text=text: text if turn == 1 else UP)
        _, (trajectory,), _ = play(small_policy, {"rollout.max_turns": 3})
        found[name] = trajectory, asked
    plain, forged_run = found["plain"][0], found["forged"][0]
    assert found["plain"][1] == found["forged"][1], "the same contexts"
    said = [*small_policy.tokenizer(forged, add_special_tokens=False)["input_ids"], small_policy.tokenizer.eos_token_id]
    for turn in range(3):
        for role in (CONTEXT, MODEL):
            left, right = (t.ids_T[(t.turns_T == turn) & (t.roles_T == role)].tolist() for t in (plain, forged_run))
            assert right == (said if (turn, role) == (1, MODEL) else left), (turn, role)
    assert forged_run.turns[1].actions == ("Up",)
    assert forged_run.turns[1].reply_tokens == len(said)


def test_pitfall_01_a_chat_is_exactly_what_was_fed_and_what_was_said(small_policy, monkeypatch, bumping):
    """Pitfall 1: prompt, reply, context, reply ...: the ids of a trajectory are those, in order, each with its role."""
    asked = scripted(monkeypatch, small_policy, lambda turn, row: UP)
    _, (trajectory,), writer = play(small_policy, {"rollout.max_turns": 3})
    env = Bumping(RunConfig().with_overrides(SMALL).env)
    first = writer.first(env.rules(), env.reset(5, 0), 10)
    said = [*small_policy.tokenizer(UP, add_special_tokens=False)["input_ids"], small_policy.tokenizer.eos_token_id]
    contexts = [first, *(context for _, (context,) in asked[1:])]
    assert asked[0] == ([0], [[]])
    expected = [(i, role) for c in contexts for ids, role in ((c, CONTEXT), (said, MODEL)) for i in ids]
    assert list(zip(trajectory.ids_T.tolist(), trajectory.roles_T.tolist(), strict=True)) == expected
    np.testing.assert_array_equal(trajectory.logprobs_T[trajectory.roles_T == MODEL], np.float32(-0.5))
    assert trajectory.stop is StopReason.TURNS


@pytest.mark.parametrize("ended", [True, False])
def test_a_truncated_reply_is_closed_by_a_context_token(small_policy, monkeypatch, bumping, ended):
    """Without its own end-of-turn token the template's is added as context, never as a token of the model."""
    scripted(monkeypatch, small_policy, lambda turn, row: UP, ended)
    told = []
    following = ChatWriter.following
    monkeypatch.setattr(ChatWriter, "following", lambda self, *a: told.append(a) or following(self, *a))
    _, (trajectory,), _ = play(small_policy, {"rollout.max_turns": 3})
    assert [closed for _, _, closed in told] == [ended] * 2
    assert [turn.truncated for turn in trajectory.turns] == [not ended] * 3
    assert [turn.format_ok for turn in trajectory.turns] == [ended] * 3
    assert [turn.actions for turn in trajectory.turns] == [("Up",)] * 3, "executed either way"
    eos = small_policy.tokenizer.eos_token_id
    for turn in range(2):
        opened = trajectory.ids_T[(trajectory.turns_T == turn + 1) & (trajectory.roles_T == CONTEXT)]
        said = trajectory.ids_T[(trajectory.turns_T == turn) & (trajectory.roles_T == MODEL)]
        assert (int(said[-1]) == eos) == ended
        if not ended:
            assert int(opened[0]) == eos


def test_a_context_that_follows_names_its_row_s_own_end(small_policy, monkeypatch, bumping):
    """Of two rows, one cut and one closed, each gets the context that its own reply needs."""
    scripted(monkeypatch, small_policy, lambda turn, row: UP)
    reply = rollouts.NativeSession.reply

    def cut_the_second(self, rows, contexts):
        first, second = reply(self, rows, contexts)
        return [first, Reply(second.ids[:-1], second.logprobs[:-1], second.entropies[:-1], True)]

    monkeypatch.setattr(rollouts.NativeSession, "reply", cut_the_second)
    told = []
    following = ChatWriter.following
    monkeypatch.setattr(ChatWriter, "following", lambda self, *a: told.append(a[2]) or following(self, *a))
    play(small_policy, {"rollout.max_turns": 2}, rows=2)
    assert told == [True, False]


def test_actions_are_counted_down_and_end_the_episode(small_policy, monkeypatch, bumping):
    """Five actions of 2 a turn: 5, 3, 1 left in the messages; the last turn executes one, then ACTIONS."""
    scripted(monkeypatch, small_policy, lambda turn, row: "<think> go </think> <answer> Up || Up </answer>")
    told = []
    user = ChatWriter.user
    monkeypatch.setattr(ChatWriter, "user", lambda self, seen, left: told.append(left) or user(self, seen, left))
    rollout, (trajectory,), _ = play(small_policy, {"rollout.max_actions": 5})
    assert [n for n in told if n] == [5, 3, 1]
    assert [turn.actions for turn in trajectory.turns] == [("Up", "Up"), ("Up", "Up"), ("Up",)]
    assert [turn.reward for turn in trajectory.turns] == [2.0, 2.0, 1.0], "a turn's reward is the sum of its steps"
    assert trajectory.stop is StopReason.ACTIONS
    assert rollout.entropy == pytest.approx(0.25)
    assert rollout.tokens == trajectory.model_tokens


def test_a_turn_shows_the_observation_it_answered_and_sums_its_rewards(small_policy):
    """Every trajectory is replayed in a fresh environment with its own seeds; the format costs its penalty."""
    knobs = {"env.slip": 0.3, "reward.format_penalty": 0.3, "rollout.actions_per_turn": 2}
    rollout, cfg = roll(small_policy, knobs)
    trajectories = [t for g in rollout.groups for t in g.trajectories]
    for t in trajectories:
        env = make_env(cfg.env)
        observation = env.reset(t.level_seed, t.dynamics_seed)
        success = False
        for turn in t.turns:
            assert turn.observation == observation
            reward = 0.0
            for action in turn.actions:
                result = env.step(action)
                observation, reward, success = result.observation, reward + result.reward, result.success
            assert turn.reward == reward
            assert turn.penalty == (0.0 if turn.format_ok else -0.3)
        assert t.success == success
    assert any(t.success for t in trajectories)
    assert len({turn.penalty for t in trajectories for turn in t.turns}) == 2, (
        "some of three actions, which is one too many"
    )


def test_pitfall_19_the_dynamics_seed_of_each_member_reaches_its_environment(small_policy, monkeypatch):
    """Pitfall 19: reset(level seed, dynamics seed), member by member, and both are written into the trajectory."""
    seen = []
    reset = FrozenLake.reset
    monkeypatch.setattr(
        FrozenLake,
        "reset",
        lambda self, seed, dynamics=None: seen.append((seed, dynamics)) or reset(self, seed, dynamics),
    )
    rollout, _ = roll(small_policy, {"env.slip": 0.3})
    assert seen == [(g, 10 * g + m) for g in range(4) for m in range(4)]
    assert seen == [(g.level_seed, t.dynamics_seed) for g in rollout.groups for t in g.trajectories]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (EnvError("no such move"), "EnvError: no such move"),
        (KeyError("cell"), "KeyError: 'cell'"),
        (IndexError("row 9"), "IndexError: row 9"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (TypeError("no int"), "TypeError: no int"),
    ],
)
def test_whatever_an_environment_raises_is_data(small_policy, monkeypatch, error, message):
    """A bad rollout ends its own trajectory with its words, keeps what was earned before, and no other is touched."""

    class Breaks(Bumping):
        def step(self, action):
            if action == "Down":
                raise error
            return super().step(action)

    monkeypatch.setattr(rollouts, "make_env", Breaks)
    bad = "<think> go </think> <answer> Up || Down || Up </answer>"
    scripted(monkeypatch, small_policy, lambda turn, row: bad if (turn, row) == (1, 0) else UP)
    _, (broken, whole), _ = play(small_policy, {"rollout.max_turns": 3}, rows=2)
    assert (broken.stop, broken.error) == (StopReason.ERROR, message)
    assert [turn.actions for turn in broken.turns] == [("Up",), ("Up",)]
    assert broken.env_return == 2.0
    assert (whole.stop, whole.error, len(whole.turns)) == (StopReason.TURNS, None, 3)


def test_an_interrupt_is_not_data(small_policy, monkeypatch):
    """Nobody's Ctrl-C is swallowed as a bad rollout, and neither is a fault that is not the environment's."""
    for error in (KeyboardInterrupt, MemoryError):

        class Breaks(Bumping):
            def step(self, action, error=error):
                raise error

        monkeypatch.setattr(rollouts, "make_env", Breaks)
        scripted(monkeypatch, small_policy, lambda turn, row: UP)
        with pytest.raises(error):
            play(small_policy)


def test_pitfall_01_a_forced_beginning_is_context_in_the_ids_and_part_of_the_text(small_policy, monkeypatch, bumping):
    """Pitfall 1: what is put into the model's mouth is fed, parsed, and never a token of the model."""
    rest = "go </think> <answer> Up </answer>"
    asked = scripted(monkeypatch, small_policy, lambda turn, row: rest)
    cfg = RunConfig().with_overrides({**SMALL, "rollout.max_turns": 2})
    writer = ChatWriter(small_policy.tokenizer, cfg.prompt, cfg.rollout)
    begun = small_policy.tokenizer("<think>", add_special_tokens=False)["input_ids"]
    rollout = rollouts.collect(small_policy, writer, cfg, [5], [[0]], 1.0, 0, lambda turn, row: list(begun))
    (trajectory,) = rollout.groups[0].trajectories
    assert asked[0][1] == [begun]
    assert asked[1][1][0][-1:] == begun
    assert all(turn.format_ok and turn.actions == ("Up",) for turn in trajectory.turns)
    assert not set(begun) & set(trajectory.ids_T[trajectory.roles_T == MODEL].tolist())
    assert rollout.tokens == trajectory.model_tokens == 2 * (5 + 1)


# P _ O _      player row 1 column 1, goal row 3 column 4,
# _ _ _ _      holes row 1 column 3 and row 4 column 1
# _ _ _ G
# O _ _ _
LAKE = "P_O_/____/___G/O___"


def careful(verdict, rate):
    """A reasoning reward of another package: minus one for any falsehood."""
    return -1.0 if verdict.false else 0.25


@pytest.mark.parametrize(
    ("think", "action", "reasoning", "true", "false"),
    [
        # base rate 1/4, two truths: 2 x 3/4 = 1.5, scaled by 1.5: 1; times the weight 1/2
        ("i am at (1, 1) . after right i am at (1, 2)", "Right", 0.5, 2, 0),
        ("i am at (1, 2) . after right i am at (1, 1)", "Right", -0.5 * 0.5 / 1.5, 0, 2),
        ("i am at (1, 1) . after up i am at (1, 1)", "Up", 0.5, 2, 0),  # against the wall
        ("the goal is down right", "Down", 0.375, 1, 0),
        ("the goal is up", "Down", -0.125, 0, 1),
    ],
)
def test_a_thought_is_held_against_the_board_before_and_after_its_actions(
    monkeypatch, think, action, reasoning, true, false
):
    monkeypatch.setattr(rollouts, "base_rates", lambda section: lambda statement: 0.25)
    knobs = {**SMALL, "reward.reasoning": "grounded", "reward.reasoning_weight": 0.5}
    for name, expected in (("grounded", reasoning), ("tests.rollout.test_play:careful", -0.5 if false else 0.125)):
        cfg = RunConfig().with_overrides({**knobs, "reward.reasoning": name})
        env = FrozenLake(cfg.env)
        env._lake, env._cell = Lake(LAKE), 0
        episode = rollouts._Episode(env, 0, 0, observation="o", actions_left=5)
        meaning = Parsed(think=think, actions=(action,), format_ok=True)
        rollouts._play_turn(episode, Reply([1], [-0.5], [0.0], False), "text", meaning, 3, cfg)
        (turn,) = episode.turns
        assert turn.reasoning == pytest.approx(expected)
        assert (turn.true_statements, turn.false_statements) == (true, false)


def test_a_rollout_whose_thoughts_nobody_can_judge_does_not_begin(small_policy, monkeypatch):
    """An environment without ``scene()`` would pay every thought 0 and say nothing."""
    asked = scripted(monkeypatch, small_policy, lambda turn, row: UP)
    monkeypatch.setattr(rollouts, "make_env", lambda section: Corridor())
    with pytest.raises(ConfigError, match=r"reward\.reasoning: grounded needs .* no scene\(\)"):
        play(small_policy, {"reward.reasoning": "grounded"})
    assert not asked
