"""FrozenLake: worked maps, slips, levels and plans."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from ragen_lab.config import RunConfig
from ragen_lab.env.base import EVAL_SEED_BASE, eval_seeds
from ragen_lab.env.frozen_lake import ACTIONS, DATA, FrozenLake, Lake, generate
from ragen_lab.env.levels import on_evaluation_side, published
from ragen_lab.errors import ConfigError, EnvError
from ragen_lab.sections import FrozenLakeSection

STILL = FrozenLakeSection(slip=0.0)


def placed(content: str, section: FrozenLakeSection = STILL, dynamics: int = 0) -> FrozenLake:
    """An environment at the start of a hand-made map."""
    env = FrozenLake(section)
    env.reset(0, dynamics)
    env._lake, env._policy = Lake(content), None
    env._cell = env._lake.start
    return env


def test_walk_of_a_hand_made_map() -> None:
    env = placed("P_O/___/O_G")
    result = env.step("Up")  # into the edge: stays
    assert (result.observation, result.reward, result.done) == ("P _ O\n_ _ _\nO _ G", 0.0, False)
    assert env.step("Down").observation == "_ _ O\nP _ _\nO _ G"
    assert env.step("Right").observation == "_ _ O\n_ P _\nO _ G"
    assert env.step("Right").observation == "_ _ O\n_ _ P\nO _ G"
    result = env.step("Down")
    assert (result.observation, result.reward, result.done, result.success) == ("_ _ O\n_ _ _\nO _ √", 1.0, True, True)
    with pytest.raises(EnvError, match="after the end"):
        env.step("Up")


def test_a_hole_ends_the_episode_without_success() -> None:
    env = placed("P_O/___/O_G")
    env.step("Right")
    result = env.step("Right")
    assert (result.observation, result.reward, result.done, result.success) == ("_ _ X\n_ _ _\nO _ G", 0.0, True, False)
    assert env.demonstrate().actions == ()


def test_slip_goes_to_each_perpendicular_side_with_its_probability() -> None:
    section = FrozenLakeSection(slip=0.1)
    reached = Counter(placed("___/_P_/__G", section, dynamics).step("Right").observation for dynamics in range(4000))
    shares = {page: count / 4000 for page, count in reached.items()}
    # intended 0.8; up and down 0.1 each; never left. Four standard errors: 0.025 and 0.019
    assert shares.pop("_ _ _\n_ _ P\n_ _ G") == pytest.approx(0.8, abs=0.025)
    assert shares.pop("_ P _\n_ _ _\n_ _ G") == pytest.approx(0.1, abs=0.019)
    assert shares.pop("_ _ _\n_ _ _\n_ P G") == pytest.approx(0.1, abs=0.019)
    assert not shares


def test_a_slip_of_one_half_never_goes_where_intended() -> None:
    section = FrozenLakeSection(slip=0.5)
    for dynamics in range(50):
        assert placed("___/_P_/__G", section, dynamics).step("Right").observation != "_ _ _\n_ _ P\n_ _ G"


def test_dynamics_seed_decides_the_slips_and_nothing_else() -> None:
    env = FrozenLake(FrozenLakeSection())

    def play(seed: int, dynamics: int) -> tuple[str, ...]:
        pages = [env.reset(seed, dynamics)]
        while len(pages) < 6:
            result = env.step("Left")
            pages.append(result.observation)
            if result.done:
                break
        return tuple(pages)

    for seed in range(5):
        courses = {play(seed, dynamics) for dynamics in range(20)}
        assert len({course[0] for course in courses}) == 1
        assert len(courses) > 1
        assert play(seed, 3) == play(seed, 3)


@pytest.mark.parametrize("frozen", [0.8, 0.9])
def test_published_levels_serve_the_evaluation_seeds_in_order(frozen: float) -> None:
    levels = published(DATA)[f"4x4_frozen_{frozen}"]["levels"]
    assert len(levels) == 256
    for eval_levels in ("auto", "published"):
        env = FrozenLake(FrozenLakeSection(frozen=frozen, eval_levels=eval_levels))
        for seed, content in zip(eval_seeds(256), levels, strict=True):
            assert env.reset(seed) == "\n".join(" ".join(row) for row in content.split("/"))
    ours = FrozenLake(FrozenLakeSection(frozen=frozen, eval_levels="generated"))
    assert [ours.level(seed).cells for seed in eval_seeds(50)] != [c.replace("/", "") for c in levels[:50]]
    beyond = FrozenLake(FrozenLakeSection(frozen=frozen))
    assert beyond.reset(EVAL_SEED_BASE + 256) == ours.reset(EVAL_SEED_BASE + 256)


@pytest.mark.parametrize("section", [{"size": 5}, {"frozen": 0.85}])
def test_published_levels_of_another_setting_are_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"size 4 with frozen 0\.8 or 0\.9"):
        FrozenLake(FrozenLakeSection(**section, eval_levels="published"))
    FrozenLake(FrozenLakeSection(**section)).reset(EVAL_SEED_BASE)  # auto generates


@pytest.mark.parametrize("frozen", [0.8, 0.9])
def test_no_training_level_is_an_evaluation_level(frozen: float) -> None:
    evaluation = set()
    for eval_levels in ("published", "generated"):
        env = FrozenLake(FrozenLakeSection(frozen=frozen, eval_levels=eval_levels))
        evaluation |= {env.level(seed).cells for seed in eval_seeds(1500)}
    train = [env.level(seed).cells for seed in range(3000)]
    assert not evaluation & {*train}
    assert len({*train}) > 1500  # the rule leaves plenty


def test_the_two_sides_do_not_distort_the_levels() -> None:
    """Mean holes and mean distance of both sides against the bare generator, within four standard errors."""

    def figures(lakes: list[Lake]) -> tuple[float, float]:
        holes = sum(len(lake.holes) for lake in lakes) / len(lakes)
        return holes, sum(lake.distance[lake.start] for lake in lakes) / len(lakes)

    rng, bare = Random(0), list[Lake]()
    while len(bare) < 3000:
        content = generate(rng, 5, 0.8)
        if content:
            bare.append(Lake(content))
    env = FrozenLake(FrozenLakeSection(size=5))
    for seeds in (range(3000), eval_seeds(3000)):
        # standard deviations: about 1.9 holes and 1.6 moves, so four errors of a difference: 0.2 and 0.17
        assert figures([env.level(s) for s in seeds]) == pytest.approx(figures(bare), abs=0.2)
    assert sum(on_evaluation_side(str(i)) for i in range(4000)) == pytest.approx(2000, abs=130)


def test_generated_levels_resemble_the_published_ones() -> None:
    section = FrozenLakeSection()
    lakes = {
        kind: [FrozenLake(section).level(seed) for seed in seeds]
        for kind, seeds in {"published": eval_seeds(256), "training": range(2000)}.items()
    }
    mean = {k: sum(lake.distance[lake.start] for lake in v) / len(v) for k, v in lakes.items()}
    holes = {k: sum(len(lake.holes) for lake in v) / len(v) for k, v in lakes.items()}
    # four standard errors of the 256: 1.4 * 4 / 16 = 0.35 moves, 1.7 * 4 / 16 = 0.42 holes
    assert mean["training"] == pytest.approx(mean["published"], abs=0.35)
    assert holes["training"] == pytest.approx(holes["published"], abs=0.42)


def test_extreme_settings_still_have_levels_on_both_sides() -> None:
    for size, frozen in ((2, 0.0), (2, 1.0), (10, 0.0), (10, 0.3)):
        env = FrozenLake(FrozenLakeSection(size=size, frozen=frozen))
        assert not {env.reset(seed) for seed in range(10)} & {env.reset(seed) for seed in eval_seeds(10)}


def test_levels_are_pinned() -> None:
    """A change of the generator changes every stored result: this must be noticed, and VERSION raised."""
    env = FrozenLake(FrozenLakeSection())
    assert [env.level(seed).cells for seed in range(3)] == PINNED


PINNED = ["P____G______O___", "___OG__O_P______", "O_G___PO_____O__"]


def test_demonstration_without_slip_is_a_shortest_way_around_the_holes() -> None:
    env = placed("PO_/_O_/__G")
    plan = env.demonstrate()
    assert plan.actions == ("Down", "Down", "Right", "Right")
    assert plan.facts == {"goal": "down right", "move": "down", "steps": "4"}
    env.step("Down")
    assert env.demonstrate().actions == ("Down", "Right", "Right")
    assert placed("G__/___/P__").demonstrate().facts == {"goal": "up", "move": "up", "steps": "2"}


def test_demonstrations_solve_every_published_level_in_the_stated_steps() -> None:
    env = FrozenLake(STILL)
    for seed in eval_seeds(256):
        env.reset(seed)
        plan = env.demonstrate()
        assert plan.facts["steps"] == str(len(plan.actions))
        assert plan.facts["move"] == plan.actions[0].lower()
        results = [env.step(action) for action in plan.actions]
        assert results[-1].success
        assert not any(result.done for result in results[:-1])


def test_slippery_plan_turns_away_from_the_hole() -> None:
    # Right of P lies the goal, below it a hole. Moving Right slips into the hole with 1/3; Up slips only left
    # (the edge) or right (the goal), and never down: the patient way is safe.
    env = placed("PG/O_", FrozenLakeSection(slip=1 / 3))
    assert env.demonstrate().actions == ("Up",)  # intended move stays: the plan waits for a slide
    assert env.demonstrate().facts == {"goal": "right", "move": "up", "steps": "1"}
    # with a slip of 0.001 waiting for the slide takes far too long, and the hole is next to no risk
    assert placed("PG/O_", FrozenLakeSection(slip=0.001)).demonstrate().actions == ("Right",)


def test_unknown_actions_and_missing_reset() -> None:
    env = FrozenLake(STILL)
    with pytest.raises(EnvError, match="reset"):
        env.step("Left")
    with pytest.raises(EnvError, match="reset"):
        env.demonstrate()
    page = env.reset(1)
    for word in ("left", "", "Jump"):
        with pytest.raises(EnvError, match="Left, Down, Right, Up"):
            env.step(word)
    assert env.reset(1) == page
    assert env.actions() == ACTIONS


def test_rules_tell_the_slip() -> None:
    assert "slippery" not in FrozenLake(STILL).rules()
    assert "0.333" in FrozenLake(FrozenLakeSection()).rules()


def test_the_view_in_coordinates_says_what_the_map_shows() -> None:
    grid, words = FrozenLake(FrozenLakeSection(slip=0.0)), FrozenLake(FrozenLakeSection(slip=0.0, view="coordinates"))
    for seed in range(50):
        rows = grid.reset(seed).split("\n")
        where: dict[str, list[str]] = {"P": [], "G": [], "O": []}
        for r, row in enumerate(rows):
            for c, cell in enumerate(row.split()):
                if cell in where:
                    where[cell].append(f"row {r + 1} column {c + 1}")
        holes = " , ".join(where["O"]) or "none"
        assert words.reset(seed) == f"size 4\nplayer {where['P'][0]}\ngoal {where['G'][0]}\nholes {holes}"
        assert grid.demonstrate() == words.demonstrate()
    assert "counted from the top" in words.rules()
    while not (last := words.step(words.demonstrate().actions[0])).done:
        pass
    assert "on the goal" in last.observation


def test_levels_of_bounded_length() -> None:
    """Training and generated evaluation levels keep the bounds; without bounds every level is what it was."""
    from ragen_lab.env.base import eval_seeds, general_seeds

    lake = FrozenLake(FrozenLakeSection(min_moves=3, max_moves=4, eval_levels="generated"))
    for seed in (*range(60), *eval_seeds(20), *general_seeds(20)):
        level = lake.level(seed)
        assert level.distance[level.start] in (3, 4)
    free, other = FrozenLake(FrozenLakeSection(size=5)), FrozenLake(FrozenLakeSection(size=5, max_moves=8))
    assert any(free.level(seed).cells != other.level(seed).cells for seed in range(20))
    published = FrozenLake(FrozenLakeSection(min_moves=3, max_moves=4))
    lengths = {m.distance[m.start] for m in (published.level(seed) for seed in eval_seeds(64))}
    assert not lengths <= {3, 4}, "published levels stay as they are"


def test_bounds_that_no_level_keeps_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"moves 30 to None gave no training level.*wider bounds"):
        FrozenLake(FrozenLakeSection(min_moves=30)).reset(0)
    with pytest.raises(ConfigError, match=r"env.min_moves: 5 is above env.max_moves 4"):
        RunConfig().with_overrides({"env.min_moves": 5, "env.max_moves": 4})
