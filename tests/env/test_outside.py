"""Environments of other packages: by class, by entry point, and Gymnasium ones through the adapter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ragen_lab.config import RunConfig
from ragen_lab.env.base import Env, has_expert, make_env
from ragen_lab.env.check import check_env, preflight
from ragen_lab.env.gym import TextGym
from ragen_lab.env.reference import reference_lines
from ragen_lab.errors import ConfigError, EnvError
from ragen_lab.reward import REASONING, reasoning_of, refuse_silent
from ragen_lab.sections import ENV_SECTIONS, REASONING_NAMES, OutsideSection, RewardSection
from tests.env.outside import Corridor, Discrete, Numbers, Vault
from tests.rollout.test_play import careful

CORRIDOR = "tests.env.outside:Corridor"
GYM = "ragen_lab.env.gym:TextGym"
VAULT = {"make": "tests.env.outside:Vault", "kwargs": {"tells": True}, "actions": ["zero", "one", "two"]}


def config(name: str, options: dict[str, object], **more: object) -> RunConfig:
    return RunConfig().with_overrides({"env.name": name, "env.options": options, **more})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package on the path that brings the environment 'corridor' by entry point."""
    info = tmp_path / "corridors-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: corridors\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ragen_lab.environments]\ncorridor = {CORRIDOR}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(tmp_path) in sys.path


def test_an_environment_by_its_class() -> None:
    cfg = config(CORRIDOR, {"length": 3})
    assert isinstance(cfg.env, OutsideSection)
    env = make_env(cfg.env)
    assert isinstance(env, Env)
    assert isinstance(env, Corridor)
    assert env.length == 3
    assert check_env(cfg.env) == []
    assert cfg.flat()["env.options.length"] == 3
    assert cfg.trial_id() != config(CORRIDOR, {"length": 2}).trial_id()
    assert config(CORRIDOR, {}, **{"env.options.length": 3}).trial_id() == cfg.trial_id()


def test_an_environment_by_entry_point(installed: None) -> None:
    cfg = config("corridor", {"length": 2})
    assert check_env(cfg.env) == []
    with pytest.raises(ConfigError, match=r"unknown environment .coridor.. Did you mean .corridor."):
        config("coridor", {})


def test_unknown_names_and_options_are_told_well() -> None:
    for name, options, part in (
        ("sokobann", {}, "Did you mean 'sokoban'.* Allowed: bandit, .*'module:Class'"),
        ("no_such_package:Thing", {}, "cannot import"),
        ("tests.env.outside:Nothing", {}, "cannot import"),
        (CORRIDOR, {"width": 3}, "does not take them"),
        ("tests.env.outside:NotAnEnv", {}, "it lacks step, actions, rules, demonstrate"),
    ):
        with pytest.raises(ConfigError, match=part):
            make_env(config(name, options).env)
    with pytest.raises(ConfigError, match=r"env\.size: unknown key"):
        RunConfig().with_overrides({"env.name": CORRIDOR, "env.size": 3})
    assert "outside" not in ENV_SECTIONS


def test_lines_and_preflight_of_an_outside_environment() -> None:
    """No model: the random line is sampled, the others say why they are not there; the expert counts for preflight."""
    cfg = config(CORRIDOR, {"length": 1})
    lines = reference_lines(cfg.env, 10, 32)
    assert lines.random == pytest.approx(0.5, abs=0.05)
    assert (lines.fixed_string, lines.optimal) == (None, None)
    assert "sampled" in lines.how["random"]
    assert "outside" in lines.how["optimal"]
    found = preflight(config(CORRIDOR, {"length": 2}, **{"rollout.responses": 2}), 20)
    assert found["solvable"] == 1.0
    assert found["overlap"] == 0


# -- Gymnasium's face -------------------------------------------------------------------------------


def test_a_gymnasium_environment_keeps_the_contract() -> None:
    cfg = config(GYM, VAULT)
    env = make_env(cfg.env)
    assert isinstance(env, Env)
    assert not has_expert(env)
    assert env.actions() == ("zero", "one", "two")
    assert check_env(cfg.env) == []
    found = preflight(config(GYM, VAULT, **{"rollout.responses": 8}), 20)
    assert 0.5 < found["solvable"] <= 1.0, "what chance solved: a lower bound without an expert"


@pytest.mark.parametrize("tells", [True, False])
def test_what_counts_as_success(tells: bool) -> None:
    env = TextGym(Vault(tells=tells))
    page = env.reset(5)
    code = page.split()[-1]
    wrong = next(word for word in env.actions() if word != code)
    assert not env.step(code).done
    last = env.step(code)
    assert (last.done, last.success, last.reward) == (True, True, 1.0)
    with pytest.raises(EnvError, match="after the end"):
        env.step(code)
    env.reset(5)
    lost = [env.step(wrong) for _ in range(4)][-1]
    assert (lost.done, lost.success) == (True, False), "a truncation is no success"


def test_action_words() -> None:
    assert TextGym(Vault(4)).actions() == ("0", "1", "2", "3")
    assert TextGym(Vault(2, Discrete(2, start=5))).actions() == ("5", "6")
    shifted = TextGym(Vault(2, Discrete(2, start=5)), actions=["a", "b"])
    code = int(shifted.reset(3).split()[-1])
    assert shifted.step("ab"[code]).observation == "1 of 2"
    named = Vault(2)
    named.get_action_meanings = lambda: ["NOOP", "FIRE"]  # type: ignore[attr-defined]
    assert TextGym(named).actions() == ("NOOP", "FIRE")
    spoken: list[object] = []
    free = Vault(2, object())
    free.step = lambda action: (spoken.append(action) or "x", 0.0, False, False, {})  # type: ignore[method-assign, func-returns-value]
    env = TextGym(free, actions=["look", "take lamp"])
    env.reset(0)
    env.step("take lamp")
    assert spoken == ["take lamp"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "exactly one"),
        ({"env": Vault(), "make": "x:y"}, "exactly one"),
        ({"make": "tests.env.outside:Gone"}, "cannot build"),
        ({"env": Vault(2, object())}, "not Discrete"),
        ({"env": Vault(3), "actions": ["a"]}, "1 words for an action space of 3"),
        ({"env": Vault(2), "actions": ["a", "A"]}, "distinct"),
    ],
)
def test_what_is_wrong_with_the_options_is_said(arguments: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        TextGym(**arguments)  # type: ignore[arg-type]


def test_an_observation_that_is_no_text_is_refused() -> None:
    with pytest.raises(EnvError, match="list, not text"):
        TextGym(Numbers()).reset(0)


def test_a_real_gymnasium_environment() -> None:
    """The real package, where it is installed: an observation wrapper that writes, around Taxi."""
    gymnasium = pytest.importorskip("gymnasium")

    class Written(gymnasium.ObservationWrapper):  # type: ignore[misc, name-defined]
        def observation(self, observation: object) -> str:
            return f"Taxi state {observation}"

    env = TextGym(Written(gymnasium.make("Taxi")), actions=["south", "north", "east", "west", "pickup", "dropoff"])
    page = env.reset(2**40 + 3)
    assert page == env.reset(2**40 + 3)
    assert env.step("south").reward == -1.0


def test_a_gymnasium_environment_by_its_id() -> None:
    """``options.id`` builds it by name through the package itself, wrappers and all, where the package is installed."""
    pytest.importorskip("gymnasium")
    options = {"id": "tests.env.outside_gym:Dungeon-v0", "actions": ["back", "on"], "kwargs": {"rooms": 4}}
    cfg = config(GYM, options)
    assert check_env(cfg.env) == []
    env = make_env(cfg.env)
    page = env.reset(2**40 + 3)
    assert page == env.reset(2**40 + 3)
    assert {env.reset(seed).partition(": ")[2] for seed in range(20)} == {f"room {room} of 4" for room in range(3)}
    env.reset(2**40 + 3)
    steps = [env.step("on") for _ in range(3 - int(page.split()[3]))]
    assert [step.success for step in steps] == [False] * (len(steps) - 1) + [True]
    assert steps[-1].observation.endswith(": room 3 of 4")
    with pytest.raises(ConfigError, match=r"cannot make 'Nowhere-v0'.*Nowhere"):
        TextGym(id="Nowhere-v0", actions=["on"])
    with pytest.raises(ConfigError, match=r"cannot make 'tests\.env\.outside_gym:Dungeon-v0'.*doors"):
        TextGym(id="tests.env.outside_gym:Dungeon-v0", actions=["back", "on"], kwargs={"doors": 1})


@pytest.mark.parametrize(
    ("name", "options"), [(CORRIDOR, {"length": 2}), (GYM, VAULT)], ids=["with an expert", "without one"]
)
def test_the_tiny_model_trains_on_it(name: str, options: dict[str, object], tmp_path: Path) -> None:
    """Warm start, rollout, update, evaluation: an outside environment is an environment."""
    from ragen_lab.track import MemoryTracker
    from ragen_lab.train import train
    from tests.conftest import SMALL

    little = {key: value for key, value in SMALL.items() if not key.startswith("env.")}
    little |= {"policy.warm_start.episodes": 300, "policy.warm_start.batch": 8, "train.iterations": 2}
    cfg = config(name, options, **little)
    tracker = MemoryTracker()
    assert train(cfg, tracker, tmp_path).status == "finished"
    last = tracker.rows[-1]
    assert last["rollout/actions"] > 0
    assert 0 < last["eval/random"] < 1
    assert "eval/optimal" not in last


def test_a_truncation_that_pays_is_no_success() -> None:
    class Generous(Vault):
        def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, object]]:
            return "time is up", 1.0, False, True, {}

    env = TextGym(Generous())
    env.reset(0)
    last = env.step("1")
    assert (last.done, last.success, last.reward) == (True, False, 1.0)


def test_pitfall_18_a_reasoning_reward_that_nobody_can_judge_is_refused() -> None:
    """Pitfall 18: Corridor has no ``scene()``: the reward would be 0 throughout; a missing function is refused too."""
    section = RewardSection(reasoning="grounded")
    with pytest.raises(ConfigError, match=r"no scene\(\)"):
        refuse_silent(make_env(config(CORRIDOR, {}).env), section)
    refuse_silent(make_env(config(CORRIDOR, {}).env), RewardSection())
    refuse_silent(make_env(RunConfig().env), section)
    assert reasoning_of("tests.rollout.test_play:careful") is careful
    for name in ("tests.rollout.test_play:nothing", "nowhere:at_all", "tests.rollout.test_play:LAKE"):
        with pytest.raises(ConfigError, match=r"reward\.reasoning"):
            reasoning_of(name)
    assert set(REASONING) == set(REASONING_NAMES)
