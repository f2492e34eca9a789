"""Countdown: the parser reads arithmetic and nothing else, the paper's rewards, levels that can be solved."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_lab.config import RunConfig
from ragen_lab.env.arithmetic import LONGEST, read_equation
from ragen_lab.env.base import OpenActions, eval_seeds, general_seeds, make_env, read_action
from ragen_lab.env.countdown import Countdown, random_equation, solve
from ragen_lab.env.reference import reference_lines
from ragen_lab.errors import EnvError
from ragen_lab.prompt import parse_reply
from ragen_lab.sections import CountdownSection


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("3+4*5", 23, (3, 4, 5)),
        ("( 3 + 4 ) * 5", 35, (3, 4, 5)),
        ("3 - 4 - 5", -6, (3, 4, 5)),  # from the left
        ("8 / 4 / 2", 1, (8, 4, 2)),
        ("1 / 3 * 3", 1, (1, 3, 3)),  # exact: no 0.999
        ("7 / 2", Fraction(7, 2), (7, 2)),
        ("((((2))))", 2, (2,)),
        ("3 + 4 = 7", 7, (3, 4)),
        ("3 + 4 = 99", 7, (3, 4)),  # what stands behind = is not believed
        ("6 × 7 ÷ 2 − 1", 20, (6, 7, 2, 1)),
        ("1 / ( 2 - 2 )", None, (1, 2, 2)),
        ("007", 7, (7,)),
    ],
)
def test_what_an_equation_is_worth(text: str, value: Fraction | None, numbers: tuple[int, ...]) -> None:
    found = read_equation(text)
    assert found is not None
    assert (found.value, found.numbers) == (value, numbers)


NO_EQUATIONS = (
    "| |3 +|+ 3|-3|3 4|3 ** 4|3 // 4|3 % 2|2 ^ 3|(3|3)|()|3 + 4 =|= 7|3 = 3 = 3|x + 1|__import__('os')|1e9|1.5|"
    "1_000|0x10|³|٣|3 = 1 + 2|1234567|exit()|3;4|3\x004"
)


@pytest.mark.parametrize(
    "text",
    NO_EQUATIONS.split("|"),
)
def test_everything_else_is_no_equation(text: str) -> None:
    assert read_equation(text) is None


def test_no_text_is_too_deep_or_too_long() -> None:
    """One of a million characters would take minutes, were it read as often as it is long."""
    for text in (
        "(" * 1_000_000,
        "9*" * 1_000_000,
        "(" * 99 + "1" + ")" * 99,
        "1" * 200,
        "-" * LONGEST,
        " " * 1_000_000 + "x",
    ):
        assert read_equation(text) is None
    assert read_equation("*".join(["999999"] * 28)) is not None


@given(st.text("0123456789+-*/() =", max_size=60) | st.text(max_size=60))
def test_the_parser_agrees_with_python_wherever_it_reads_anything(text: str) -> None:
    found = read_equation(text)
    if found is None:
        return
    tokens = found.text.split()
    rational = " ".join(f"Fraction({int(t)})" if t.isdigit() else t for t in tokens)
    try:
        expected: Fraction | None = eval(rational, {"Fraction": Fraction})
    except ZeroDivisionError:
        expected = None
    assert found.value == expected


@given(st.integers(0, 10**6), st.lists(st.integers(1, 99), min_size=2, max_size=5))
def test_random_equations_are_read_as_they_are_meant(seed: int, numbers: list[int]) -> None:
    made = random_equation(Random(seed), tuple(numbers))
    if made is not None:
        found = read_equation(made[1])
        assert found is not None
        assert found.value == made[0]
        assert sorted(found.numbers) == sorted(numbers)


def started(numbers: tuple[int, ...], target: int) -> Countdown:
    env = Countdown(CountdownSection())
    env.reset(0)
    env._numbers, env._target = numbers, target
    return env


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        ("( 6 - 2 ) * 25", 1.0),
        ("25 * ( 6 - 2 ) = 100", 1.0),
        ("25 * 6 - 2", 0.1),  # right numbers, wrong value
        ("25 + 2", 0.1),  # not all of them need be used
        ("6 / ( 2 - 2 )", 0.0),  # 2 is there only once
        ("6 / ( 2 * 25 )", 0.1),
        ("4 * 25", 0.0),  # right value, 4 is not given
        ("25 * 2 * 2", 0.0),
        ("25 * 2 + 25 * 2", 0.0),
    ],
)
def test_rewards(action: str, reward: float) -> None:
    """paper.md, section 2: 1 correct, 0.1 right numbers and wrong value, 0 else."""
    env = started((2, 6, 25), 100)
    result = env.step(action)
    assert (result.reward, result.done, result.success) == (reward, True, reward == 1.0)
    with pytest.raises(EnvError, match="after the end"):
        env.step(action)


def test_fewer_numbers_may_do_and_division_is_exact() -> None:
    assert started((8, 3, 3), 8).step("8 / ( 3 / 3 )").success  # = 8
    assert solve((3, 3, 8, 8), 24) is not None  # 8 / (3 - 8 / 3): only rationals find it
    found = read_equation(solve((3, 3, 8, 8), 24) or "")
    assert found is not None
    assert found.value == 24
    assert solve((1, 1), 5) is None


def test_free_text_through_the_prompt() -> None:
    """The answer of a reply is read by the environment; other text is no action and costs the format."""
    env = started((2, 6, 25), 100)
    assert isinstance(env, OpenActions)
    reply = "<think> 6 - 2 is 4 </think><answer> 25*(6-2) </answer>"
    parsed = parse_reply(reply, (), 5, True, False, env.parse)
    assert (parsed.actions, parsed.format_ok) == (("25 * ( 6 - 2 )",), True)
    parsed = parse_reply("<think>a</think><answer>one hundred</answer>", (), 5, True, False, env.parse)
    assert (parsed.actions, parsed.format_ok) == ((), False)
    assert read_action(env, "2+2") == "2 + 2"
    assert read_action(env, "import os") is None


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_level_can_be_solved_and_sides_are_disjoint(count: int) -> None:
    env = Countdown(CountdownSection(numbers=count))
    sides: list[set[tuple[tuple[int, ...], int]]] = [set(), set(), set()]
    for side, seeds in enumerate((range(100), eval_seeds(100), general_seeds(100))):
        for seed in seeds:
            numbers, target = env.level(seed)
            assert len(numbers) == count
            assert target not in numbers
            assert 1 <= target <= 99
            env.reset(seed)
            (plan,) = env.demonstrate().actions
            assert env.step(plan).success
            sides[side].add((tuple(sorted(numbers)), target))
    assert not sides[0] & (sides[1] | sides[2])


def test_lines() -> None:
    """Random: one random equation over all three numbers; optimal: every level has a solution by search."""
    lines = reference_lines(CountdownSection(), 10, 64)
    assert lines.optimal == 1.0
    assert lines.random is not None
    assert 0.01 < lines.random < 0.1
    assert lines.fixed_string is None
    assert "search" in lines.how["optimal"]
    # the line is what playing it gives: the sample is what actions() offers
    env, won = make_env(CountdownSection()), 0
    rng = Random(0)
    for seed in list(eval_seeds(64)) * 20:
        env.reset(seed)
        won += env.step(rng.choice(env.actions())).success
    assert won / 1280 == pytest.approx(lines.random, abs=0.02)


def test_a_run_plays_countdown_with_free_text(tmp_path) -> None:
    """The tiny model, warm-started on Countdown play, writes equations that are read and paid."""
    from ragen_lab.track import MemoryTracker
    from ragen_lab.train import train
    from tests.conftest import SMALL

    little = {k: v for k, v in SMALL.items() if not k.startswith("env.")}
    cfg = RunConfig().with_overrides(
        {
            **little,
            "env.name": "countdown",
            "env.numbers": 2,
            "env.largest": 20,
            "policy.warm_start.episodes": 600,
            "policy.warm_start.epochs": 4,
            "policy.warm_start.batch": 8,
            "rollout.max_new_tokens": 40,
            "train.iterations": 2,
        }
    )
    tracker = MemoryTracker()
    train(cfg, tracker, tmp_path)
    assert tracker.rows[-1]["eval/optimal"] == 1.0
    assert tracker.rows[-1]["rollout/format_error_rate"] < 0.9
    assert tracker.rows[-1]["rollout/actions"] > 0
