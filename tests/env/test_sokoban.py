"""Sokoban: worked rooms, published levels, plans, and the generator held to the published difficulty."""

from __future__ import annotations

from random import Random

import pytest

from ragen_lab.env.base import EVAL_SEED_BASE, eval_seeds
from ragen_lab.env.levels import published
from ragen_lab.env.reference import room_model, success_within
from ragen_lab.env.sokoban import ACTIONS, DATA, VOCABS, Room, Sokoban
from ragen_lab.errors import ConfigError, EnvError
from ragen_lab.sections import SokobanSection

SETTINGS = {
    "simple_6x6_1box": SokobanSection(),
    "newvocab_6x6_1box": SokobanSection(vocab="new"),
    "larger_8x8_2box": SokobanSection(size=8, boxes=2),
}


def placed(content: str, vocab: str = "standard") -> Sokoban:
    """An environment at the start of a hand-made room."""
    env = Sokoban(SokobanSection(vocab=vocab))  # type: ignore[arg-type]
    env.reset(0)
    env._room, env._plans = Room(content), {}
    env._state = env._room.start
    return env


def test_rewards_of_a_hand_made_room() -> None:
    env = placed("#######/#P____#/#_X_O_#/#_____#/#__X_O#/#_____#/#######")
    assert env.step("Up").reward == -0.1  # a wall: costs the step, changes nothing
    assert env.step("Down").observation.splitlines()[2] == "# P X _ O _ #"
    assert env.step("Right").reward == -0.1  # a push on plain floor
    result = env.step("Right")
    assert result.reward == pytest.approx(-0.1 + 1.0)
    assert not result.done
    assert result.observation.splitlines()[2] == "# _ _ P √ _ #"
    result = env.step("Right")  # off again; the player stands on the target
    assert result.reward == pytest.approx(-0.1 - 1.0)
    assert result.observation.splitlines()[2] == "# _ _ _ S X #"
    result = env.step("Right")  # the box is against the wall: blocked
    assert result.reward == -0.1
    assert result.observation.splitlines()[2] == "# _ _ _ S X #"


def test_two_boxes_in_line_do_not_move() -> None:
    env = placed("#######/#PXX_O#/#____O#/#_____#/#_____#/#_____#/#######")
    result = env.step("Right")
    assert result.reward == -0.1
    assert result.observation.splitlines()[1] == "# P X X _ O #"


def test_n_moves_solve_for_eleven_minus_a_tenth_each() -> None:
    env = placed("######/#P___#/#_X__#/#__O_#/#____#/######")
    plan = env.demonstrate().actions
    results = [env.step(action) for action in plan]
    assert plan == ("Down", "Right", "Up", "Right", "Down")  # a push right, then around the box for a push down
    assert sum(result.reward for result in results) == pytest.approx(11 - 0.1 * len(plan))
    assert results[-1].success
    assert results[-1].done
    assert results[-1].reward == pytest.approx(10.9)
    with pytest.raises(EnvError, match="after the end"):
        env.step("Up")
    assert env.demonstrate().actions == ()


def test_symbols_of_both_vocabularies() -> None:
    content = "######/#P___#/#_X__#/#__O_#/#√___#/######"
    assert placed(content).step("Right").observation == (
        "# # # # # #\n# _ P _ _ #\n# _ X _ _ #\n# _ _ O _ #\n# √ _ _ _ #\n# # # # # #"
    )
    assert placed(content, "new").step("Right").observation == (
        "W W W W W W\nW . A . . W\nW . C . . W\nW . . G . W\nW B . . . W\nW W W W W W"
    )
    on_target = placed("######/#S_X_#/#____#/#____#/#____#/######", "new")
    assert on_target._room is not None
    assert on_target._room.page(on_target._state, VOCABS["new"]).splitlines()[1] == "W @ . C . W"


@pytest.mark.parametrize("name", SETTINGS)
def test_published_levels_serve_the_evaluation_seeds_in_order(name: str) -> None:
    levels, section = published(DATA)[name]["levels"], SETTINGS[name]
    table = str.maketrans(VOCABS["standard"], VOCABS[section.vocab])
    env = Sokoban(section)
    assert len(levels) == 256
    for seed, content in zip(eval_seeds(256), levels, strict=True):
        assert env.reset(seed) == "\n".join(" ".join(row) for row in content.translate(table).split("/"))


def test_published_levels_of_another_setting_are_refused() -> None:
    for wish in ({"size": 7}, {"boxes": 2}, {"size": 8, "boxes": 2, "vocab": "new"}):
        with pytest.raises(ConfigError, match="size 6 with 1 box"):
            Sokoban(SokobanSection(**wish, eval_levels="published"))
        Sokoban(SokobanSection(**wish)).reset(EVAL_SEED_BASE)


def test_more_boxes_than_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 3"):
        Sokoban(SokobanSection(size=5, boxes=4))
    Sokoban(SokobanSection(size=5, boxes=3)).reset(0)


@pytest.mark.parametrize("name", SETTINGS)
def test_plans_are_as_short_as_the_published_optimum_and_solve(name: str) -> None:
    env = Sokoban(SETTINGS[name])
    for seed, moves in zip(eval_seeds(256), published(DATA)[name]["optimal_moves"], strict=True):
        env.reset(seed)
        plan = env.demonstrate()
        assert len(plan.actions) == moves
        results = [env.step(action) for action in plan.actions]
        assert results[-1].success
        assert not any(result.done for result in results[:-1])


@pytest.mark.parametrize("name", SETTINGS)
def test_breadth_first_optimum_equals_the_published_one(name: str) -> None:
    """An implementation of the rules apart from ``Room.move``, so that each checks the other."""
    moves = published(DATA)[name]["optimal_moves"]
    model = room_model(SETTINGS[name], eval_seeds(256), max(moves))
    assert model is not None
    unsolved_after = success_within(model, best=True) == 0
    assert unsolved_after.sum(axis=0).tolist() == moves


@pytest.mark.parametrize("name", SETTINGS)
def test_random_play_reaches_the_published_rates(name: str) -> None:
    rates = published(DATA)[name]["random"]
    model = room_model(SETTINGS[name], eval_seeds(256), 35)
    assert model is not None
    curve = success_within(model, best=False).mean(axis=1)
    assert len(rates) == 7
    for budget, rate in rates.items():
        assert curve[int(budget)] == pytest.approx(rate, abs=0.015)


@pytest.mark.parametrize(
    ("name", "moves_gap", "random_gap"), [("simple_6x6_1box", 0.25, 0.015), ("larger_8x8_2box", 0.25, 0.01)]
)
def test_generated_levels_are_as_hard_as_the_published_ones(name: str, moves_gap: float, random_gap: float) -> None:
    section = SETTINGS[name]
    theirs, ours = room_model(section, eval_seeds(256), 14), room_model(section, range(600), 14)
    assert theirs is not None
    assert ours is not None
    moves = [float((success_within(model, best=True) == 0).sum(axis=0).mean()) for model in (theirs, ours)]
    rates = [float(success_within(model, best=False)[10].mean()) for model in (theirs, ours)]
    assert moves[1] == pytest.approx(moves[0], abs=moves_gap)
    assert rates[1] == pytest.approx(rates[0], abs=random_gap)


@pytest.mark.parametrize(("size", "boxes"), [(5, 1), (6, 1), (6, 2), (8, 2), (9, 3)])
def test_generated_levels_are_well_formed_and_solvable(size: int, boxes: int) -> None:
    env = Sokoban(SokobanSection(size=size, boxes=boxes, eval_levels="generated"))
    for seed in [*range(40), *eval_seeds(40)]:
        rows = [row.split(" ") for row in env.reset(seed).splitlines()]
        cells = [cell for row in rows for cell in row]
        assert len(rows) == size
        assert all(len(row) == size for row in rows)
        assert {*rows[0], *rows[-1], *(row[0] for row in rows), *(row[-1] for row in rows)} == {"#"}
        assert cells.count("X") == boxes
        assert cells.count("O") + cells.count("S") == boxes
        assert cells.count("P") + cells.count("S") == 1
        env_plan = env.demonstrate().actions
        assert env_plan
        assert [env.step(action) for action in env_plan][-1].success


def test_no_training_level_is_an_evaluation_level() -> None:
    evaluation = {level for entry in published(DATA).values() for level in entry["levels"]}
    env = Sokoban(SokobanSection(eval_levels="generated"))

    def content(seed: int) -> str:
        return env.reset(seed).replace(" ", "").replace("\n", "/")

    evaluation |= {content(seed) for seed in eval_seeds(300)}
    train = [content(seed) for seed in range(800)]
    assert not evaluation & {*train}
    assert len({*train}) > 700


def test_levels_do_not_depend_on_vocab_or_order_of_asking() -> None:
    standard, new = Sokoban(SokobanSection()), Sokoban(SokobanSection(vocab="new"))
    table = str.maketrans(VOCABS["standard"], VOCABS["new"])
    pages = [standard.reset(seed) for seed in range(20)]
    assert [new.reset(seed) for seed in reversed(range(20))][::-1] == [page.translate(table) for page in pages]


def test_levels_are_pinned() -> None:
    """A change of the generator changes every stored result: this must be noticed, and VERSION raised."""
    one, two = Sokoban(SETTINGS["simple_6x6_1box"]), Sokoban(SETTINGS["larger_8x8_2box"])
    pages = [one.reset(0), one.reset(1), two.reset(0)]
    assert [page.replace(" ", "").replace("\n", "/") for page in pages] == PINNED


PINNED = [
    "######/#__#_#/#__#_#/#P_#_#/#_XO_#/######",
    "######/#P#__#/#_X__#/#_#__#/####O#/######",
    "########/########/#_######/#_######/#_#__###/#__OX_##/#__OXP_#/########",
]


def test_facts_point_to_the_box_and_on_to_its_target() -> None:
    plan = placed("######/#P___#/#_X__#/#__O_#/#____#/######").demonstrate()
    assert plan.facts == {"box": "down right", "target": "down right", "move": plan.actions[0].lower()}
    # the box beside the player lies along the wall and cannot go up to the nearest target
    plan = placed("######/#____#/#_X__#/#_O__#/#PX_O#/######").demonstrate()
    assert plan.facts["box"] == "right"
    assert plan.facts["target"] == "right"


def test_a_box_in_a_corner_has_no_plan_and_no_move() -> None:
    plan = placed("######/#X_P_#/#____#/#__O_#/#____#/######").demonstrate()
    assert plan.actions == ()
    assert plan.facts == {"box": "left", "target": "down right"}


def test_later_demonstrations_are_the_rest_of_the_first() -> None:
    env, rng = Sokoban(SETTINGS["larger_8x8_2box"]), Random(0)
    for seed in range(30):
        env.reset(seed)
        plan = env.demonstrate().actions
        for i, action in enumerate(plan[:-1]):
            env.step(action)
            assert env.demonstrate().actions == plan[i + 1 :]
        env.reset(seed)
        for _ in range(5):  # off the plan: an action saves one move at most
            before = len(env.demonstrate().actions)
            if env.step(rng.choice(ACTIONS)).done:
                break
            after = env.demonstrate().actions
            if not after:
                break  # a deadlock
            assert len(after) >= before - 1


def test_unknown_actions_and_missing_reset() -> None:
    env = Sokoban(SokobanSection())
    with pytest.raises(EnvError, match="reset"):
        env.step("Up")
    env.reset(1)
    for word in ("up", "", "Push"):
        with pytest.raises(EnvError, match="Up, Down, Left, Right"):
            env.step(word)


def test_rules_name_the_symbols_in_use() -> None:
    assert "√ is a box on a target" in Sokoban(SokobanSection()).rules()
    assert "B is a box on a target" in Sokoban(SokobanSection(vocab="new")).rules()


def test_levels_of_bounded_length() -> None:
    """Difficulty by optimal length: the shortest solution of every generated level keeps the bounds."""
    env = Sokoban(SokobanSection(min_moves=4, max_moves=6, eval_levels="generated"))
    for seed in (*range(30), *eval_seeds(10)):
        env.reset(seed)
        assert 4 <= len(env.demonstrate().actions) <= 6
