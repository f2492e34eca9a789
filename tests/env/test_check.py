"""The contract check passes every shipped environment and names the fault of broken ones; preflight's figures."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ragen_lab.config import RunConfig
from ragen_lab.env.base import ENVS, EVAL_SEED_BASE, Demonstration, Env, StepResult, is_eval_seed, make_env
from ragen_lab.env.check import check_env, preflight, preflight_sentence, preflights
from ragen_lab.env.frozen_lake import FrozenLake
from ragen_lab.errors import EnvError
from ragen_lab.sections import (
    BanditRevSection,
    BanditSection,
    CountdownSection,
    EvalSection,
    FrozenLakeSection,
    RolloutSection,
    SokobanSection,
)

SECTIONS: list[Any] = [
    BanditSection(),
    BanditSection(chance=1.0),
    BanditRevSection(),
    FrozenLakeSection(),
    FrozenLakeSection(slip=0.0),
    FrozenLakeSection(frozen=0.9, eval_levels="generated"),
    FrozenLakeSection(size=8),
    FrozenLakeSection(view="coordinates"),
    FrozenLakeSection(slip=0.0, min_moves=3, max_moves=5),
    SokobanSection(),
    SokobanSection(vocab="new"),
    SokobanSection(size=8, boxes=2),
    SokobanSection(size=7, boxes=3, vocab="new"),
    SokobanSection(min_moves=5, max_moves=9),
    CountdownSection(),
    CountdownSection(numbers=4, largest=50),
]
STILL = FrozenLakeSection(slip=0.0)


def test_every_registered_environment_is_checked() -> None:
    assert {section.name for section in SECTIONS} == {*ENVS}


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_shipped_environments_keep_the_contract(section: Any) -> None:
    assert check_env(section) == []
    assert isinstance(make_env(section), Env)
    assert len(make_env(section).rules()) > 100


class Wrapped(FrozenLake):
    """A sound lake without slip; each broken environment below spoils one promise."""


class GlobalRandom(Wrapped):
    def step(self, action: str) -> StepResult:
        return super().step(random.choice(self.actions()) if action in self.actions() else action)


class Leaks(Wrapped):
    """Remembers the episode before: its first action is lost in every second episode."""

    played = 0

    def reset(self, seed: int, dynamics: int = 0) -> str:
        self.played += 1
        self.fresh = self.played % 2
        return super().reset(seed, dynamics)

    def step(self, action: str) -> StepResult:
        if self.fresh and action in self.actions():
            self.fresh = 0
            return StepResult(self._page(self._started()), 0.0, False, False)
        return super().step(action)


class TakesAnything(Wrapped):
    def step(self, action: str) -> StepResult:
        return super().step(action if action in self.actions() else "Left")


class WrongError(Wrapped):
    def step(self, action: str) -> StepResult:
        if action not in self.actions():
            raise KeyError(action)
        return super().step(action)


class Endless(Wrapped):
    last = StepResult("_", 0.0, False, False)

    def reset(self, seed: int, dynamics: int = 0) -> str:
        self.last = Endless.last
        return super().reset(seed, dynamics)

    def step(self, action: str) -> StepResult:
        if not self.last.done or action not in self.actions():
            self.last = super().step(action)
        return self.last


class PaysNan(Wrapped):
    def step(self, action: str) -> StepResult:
        result = super().step(action)
        return StepResult(result.observation, float("inf") if result.success else 0.0, result.done, result.success)


class SuccessGoesOn(Wrapped):
    """Success on the way, before the end."""

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        return StepResult(result.observation, result.reward, result.done, result.success or not result.done)


class LosesTheWay(Wrapped):
    def demonstrate(self) -> Demonstration:
        return Demonstration(super().demonstrate().actions[:-1])


class BlankPage(Wrapped):
    def step(self, action: str) -> StepResult:
        result = super().step(action)
        return StepResult(" ", result.reward, result.done, result.success)


class PageOfDynamics(Wrapped):
    def reset(self, seed: int, dynamics: int = 0) -> str:
        return f"{super().reset(seed, dynamics)} {dynamics}"


class NoActions(Wrapped):
    def actions(self) -> tuple[str, ...]:
        return ()


class ShuffledActions(Wrapped):
    turn = 0

    def actions(self) -> tuple[str, ...]:
        self.turn += 1
        return super().actions()[:: -1 if self.turn % 2 else 1]


class TrainsOnTheTest(Wrapped):
    def reset(self, seed: int, dynamics: int = 0) -> str:
        return super().reset(seed - EVAL_SEED_BASE if is_eval_seed(seed) else seed, dynamics)


class NeverEnds(Wrapped):
    def step(self, action: str) -> StepResult:
        if action not in self.actions():
            raise EnvError(action)
        return StepResult("_", 0.0, False, False)

    def demonstrate(self) -> Demonstration:
        return Demonstration(())


BROKEN: list[tuple[Callable[[Any], Env], list[str]]] = [
    (GlobalRandom, ["the same level, dynamics seed and actions gave different episodes"]),
    (Leaks, ["the same level, dynamics seed and actions gave different episodes"]),
    (TakesAnything, ["an unknown action was accepted"]),
    (WrongError, ["an unknown action raised KeyError"]),
    (Endless, ["a step after the end was accepted"]),
    (PaysNan, ["rewards must be finite"]),
    (SuccessGoesOn, ["success without done"]),
    (LosesTheWay, ["do not reach success"]),
    (BlankPage, ["observations must be non-empty"]),
    (PageOfDynamics, ["differs between resets"]),
    (NoActions, ["distinct non-empty words", "no episode ended"]),
    (ShuffledActions, ["without a step"]),
    (TrainsOnTheTest, ["both training and evaluation"]),
    (NeverEnds, ["do not reach success", "no episode ended"]),
]


@pytest.mark.parametrize(("broken", "phrases"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_environment_is_told_its_fault(broken: Callable[[Any], Env], phrases: list[str]) -> None:
    faults = check_env(STILL, make=broken)
    for phrase in phrases:
        assert any(phrase in fault for fault in faults), faults
    # one mistake, one sentence; a shuffle of the actions or a loss of memory disturbs further promises
    if broken not in (ShuffledActions, Leaks, GlobalRandom):
        assert len(faults) == len(phrases), faults


def test_the_unbroken_wrapper_passes() -> None:
    assert check_env(STILL, make=Wrapped) == []


def test_evaluation_seeds_are_refused_as_training_seeds() -> None:
    assert any("not training seeds" in fault for fault in check_env(STILL, seeds=[1, EVAL_SEED_BASE]))


def config(env: Any, **rollout: Any) -> RunConfig:
    return RunConfig(env=env, rollout=RolloutSection(**rollout), eval=EvalSection(prompts=64))


def test_preflight_of_the_default_sokoban() -> None:
    found = preflight(config(SokobanSection()), 100)
    assert found["prompts"] == 100
    assert found["overlap"] == 0
    assert found["unequal_prompts"] == 0
    assert found["solvable"] >= 0.97
    assert 0.3 < found["zero_spread"] < 0.55  # 0.46 on the published levels
    assert found["random_success"] == pytest.approx(0.19, abs=0.05)
    # never below ten steps and a box pushed off; at best solved in one push
    assert -2.0 <= found["reward_min"] <= -0.9
    assert found["reward_max"] == pytest.approx(10.9)


def test_preflight_counts_the_budget_of_turns_too() -> None:
    one = preflight(config(SokobanSection(), max_actions=1, responses=2), 60)
    same = preflight(config(SokobanSection(), max_turns=1, actions_per_turn=1, responses=2), 60)
    env = make_env(SokobanSection())
    lengths = []
    for seed in range(60):
        env.reset(seed)
        lengths.append(len(env.demonstrate().actions))
    assert one == same
    assert one["solvable"] == sum(length == 1 for length in lengths) / 60


def test_preflight_looks_at_the_generalisation_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training levels are on no set; a set that serves one is seen."""
    cfg = config(STILL, responses=2).with_overrides({"eval.sets": ["slippery"], "eval.prompts": 32})
    assert preflight(cfg, 20)["sets_overlap"] == 0
    real = FrozenLake.reset
    monkeypatch.setattr(FrozenLake, "reset", lambda self, seed, dynamics=0: real(self, seed % 2**41))
    assert preflight(cfg, 20)["sets_overlap"] == 20


def test_preflight_of_bandit_and_of_groups_of_one() -> None:
    found = preflight(config(BanditSection(), responses=16), 50)
    assert (found["solvable"], found["zero_spread"]) == (1.0, 0.0)
    assert (found["reward_min"], found["reward_max"]) == (0.0, 1.0)
    assert preflight(config(BanditSection(), responses=1), 10)["zero_spread"] == 1.0


def test_preflight_notices_a_shared_level_and_unequal_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FrozenLake.reset
    monkeypatch.setattr(FrozenLake, "reset", lambda self, seed, dynamics=0: f"{real(self, 5)} {dynamics}")
    found = preflight(config(STILL, responses=3), 6)
    assert found["overlap"] == 6
    assert found["unequal_prompts"] == 6
    assert preflight(config(STILL, shared_dynamics=True), 6)["unequal_prompts"] == 0


def test_preflights_play_each_kind_once_and_tell_it_in_words() -> None:
    one = config(STILL, responses=2)
    found = preflights([one, one.with_overrides({"seed": 3, "optim.lr": 0.1}), config(BanditSection(), responses=2)], 8)
    assert [cfg.env.name for cfg, _ in found] == ["frozen_lake", "bandit"]
    text = preflight_sentence(*found[0])
    assert "8 prompts x 2 random responses: 100% solvable within 10 actions" in text
    assert "Fault" not in text
    assert "Fault: 3 training prompts are evaluation prompts too." in preflight_sentence(
        one, {**found[0][1], "overlap": 3}
    )


def test_random_success_counts_successes_and_not_ends() -> None:
    """Most random walks on a lake end in a hole."""
    env, cfg = make_env(STILL), config(STILL, responses=2)
    wins = ends = 0
    for seed in range(20):
        for member in range(2):
            env.reset(seed, member)
            rng = random.Random(f"preflight {seed} {member}")
            for _ in range(10):
                result = env.step(rng.choice(env.actions()))
                if result.done:
                    wins, ends = wins + result.success, ends + 1
                    break
    assert wins < ends
    assert preflight(cfg, 20)["random_success"] == wins / 40
