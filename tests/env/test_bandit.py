"""Bandit: names, payoffs, and what depends on which seed."""

from __future__ import annotations

import pytest

from ragen_lab.env.bandit import EVAL_PAIRS, TRAIN_PAIRS, Bandit
from ragen_lab.env.base import EVAL_SEED_BASE, eval_seeds
from ragen_lab.errors import EnvError
from ragen_lab.sections import BanditRevSection, BanditSection

BOLD = {bold for _, bold in TRAIN_PAIRS + EVAL_PAIRS}


def test_every_name_is_one_lowercase_word_and_occurs_once() -> None:
    names = [name for pair in TRAIN_PAIRS + EVAL_PAIRS for name in pair]
    assert len(TRAIN_PAIRS) + len(EVAL_PAIRS) >= 24
    assert len(set(names)) == len(names)
    assert all(name.isascii() and name.isalpha() and name.islower() for name in names)


def test_the_bold_name_is_the_high_arm_of_bandit_and_the_low_arm_of_bandit_rev() -> None:
    fits, contradicts = Bandit(BanditSection()), Bandit(BanditRevSection())
    for seed in [*range(50), *eval_seeds(50)]:
        assert fits.reset(seed) == contradicts.reset(seed)  # the page tells nothing about the payoff
        assert fits.demonstrate().facts["high"] in BOLD
        assert contradicts.demonstrate().facts["low"] in BOLD
        assert {*fits.demonstrate().facts.values()} == {*fits.actions()}


def test_training_and_evaluation_use_different_names_in_both_orders() -> None:
    env = Bandit(BanditSection())
    train, evaluation = ({env.level(seed)[0] for seed in seeds} for seeds in (range(600), eval_seeds(256)))
    assert {frozenset(arms) for arms in train} == {frozenset(pair) for pair in TRAIN_PAIRS}
    assert {frozenset(arms) for arms in evaluation} == {frozenset(pair) for pair in EVAL_PAIRS}
    assert len(evaluation) == 2 * len(EVAL_PAIRS)


def test_high_arm_first_is_a_coin() -> None:
    env = Bandit(BanditSection())
    first = sum(arms[0] == high for arms, high in map(env.level, range(4000))) / 4000
    assert abs(first - 0.5) < 0.03  # 3.8 standard errors of 0.0079


def test_payoffs() -> None:
    env = Bandit(BanditSection(low=0.15, high=2.0, chance=0.25))
    paid = []
    for dynamics in range(4000):
        env.reset(7, dynamics)
        result = env.step(env.demonstrate().facts["high"])
        assert (result.done, result.success) == (True, True)  # success is the choice, not the luck
        paid.append(result.reward)
        env.reset(7, dynamics)
        result = env.step(env.demonstrate().facts["low"])
        assert (result.reward, result.done, result.success) == (0.15, True, False)
    assert {*paid} == {0.0, 2.0}
    assert abs(sum(paid) / 4000 - 0.5) < 0.055  # mean 0.25 * 2; four standard errors of 0.0137


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_a_certain_high_arm(chance: float) -> None:
    env = Bandit(BanditSection(chance=chance))
    for seed in range(20):
        env.reset(seed, seed)
        assert env.step(*env.demonstrate().actions).reward == chance * 1.0


def test_the_page_names_both_arms_as_words_of_their_own() -> None:
    env = Bandit(BanditSection())
    page = env.reset(EVAL_SEED_BASE)
    assert {*env.actions()} <= {*page.split()}
    assert page == f"Two arms : {env.actions()[0]} and {env.actions()[1]}\nChoose one arm"


def test_faults_are_refused_and_leave_the_episode_as_it_was() -> None:
    env = Bandit(BanditSection())
    with pytest.raises(EnvError, match="reset"):
        env.actions()
    env.reset(3)
    with pytest.raises(EnvError, match=env.actions()[0]):
        env.step("dentist")
    env.step(env.actions()[0])
    assert env.demonstrate().actions == ()
    with pytest.raises(EnvError, match="after the end"):
        env.step(env.actions()[0])


def test_rules_do_not_claim_that_a_poor_high_arm_pays_more() -> None:
    assert "pays more on average" in Bandit(BanditSection()).rules()
    assert "pays more on average" not in Bandit(BanditSection(low=0.5)).rules()
