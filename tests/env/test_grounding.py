"""What a reasoning text states about the board, in the tiny model's words and in plain English, and what it earns."""

from __future__ import annotations

from typing import Any

import pytest

from ragen_lab.config import GROUNDED
from ragen_lab.env.base import make_env
from ragen_lab.env.base_rates import KINDS, SCENES, BaseRates, base_rates, scene
from ragen_lab.env.frozen_lake import FrozenLake, Lake
from ragen_lab.env.grounding import Grounded, Scene, Statement, Verdict, judge, score, statements
from ragen_lab.env.sokoban import Room, Sokoban
from ragen_lab.phrases import EXPERT, NOVICE
from ragen_lab.sections import ENV_SECTIONS, FrozenLakeSection, SokobanSection

# P _ O _      player row 1 column 1, goal row 3 column 4,
# _ _ _ _      holes row 1 column 3 and row 4 column 1
# _ _ _ G
# O _ _ _
LAKE = "P_O_/____/___G/O___"
# # # # # # #
# # _ _ _ _ #  target row 2 column 5, box row 4 column 3, player row 4 column 4
# ...
ROOM = "######/#___O#/#____#/#_XP_#/#____#/######"


def lake(cell: int = 0) -> Scene:
    env = FrozenLake(FrozenLakeSection(slip=0.0))
    env._lake, env._cell = Lake(LAKE), cell
    return env.scene()


def room() -> Scene:
    env = Sokoban(SokobanSection())
    env._room = Room(ROOM)
    env._state = env._room.start
    return env.scene()


LAKE_TEXTS = [
    # (text, true, false) on the lake above
    ("the goal is down right so i go right", 1, 0),
    ("goal lies down right , first step right", 1, 0),
    ("the goal is up left so i go up", 0, 1),
    ("the goal is down", 0, 0),  # half the truth is neither
    ("The goal is two rows down and three columns to the right.", 1, 0),
    ("My goal is to the lower right, so I should move right.", 1, 0),
    ("The goal is located below and to the right of me.", 1, 0),
    ("The goal is above me.", 0, 1),
    ("I am at row 1, column 1. The goal is at row 3, column 4.", 2, 0),
    ("I am at (1, 1) and the goal is at (4, 3).", 1, 1),
    ("Player is at (row 1, column 1)", 1, 0),
    ("There is a hole at (1, 3), so down is safe.", 2, 0),
    ("no hole right of me and the goal is down right", 2, 0),
    ("right is safe , down avoids the holes", 2, 0),
    ("There is a hole to the right of me.", 1, 0),  # two columns away, which is to the right
    ("To the right of me is a hole.", 1, 0),
    ("There is a hole above me.", 0, 1),
    ("There is a hole to my lower right.", 0, 1),  # one right, one down, none both
    # what is next to something, or at a distance, is said of that tile
    ("There is a hole immediately to the right of me.", 0, 1),
    ("The tile to my right is a hole.", 0, 1),
    ("one step below me is a hole", 0, 1),
    ("There is a hole two columns to the right of me", 1, 0),
    ("hole two tiles to my right", 1, 0),
    ("There's a hole 3 steps below me", 1, 0),
    ("there is a hole two steps below me", 0, 1),
    ("two tiles to the right of me is a hole", 1, 0),
    ("a hole to the right two tiles away", 0, 0),  # not read
    ("a few tiles to the right is a hole", 0, 0),
    ("I need to avoid the hole below at (4,1)", 1, 0),
    ("no hole within, the hole below me is at (3, 1)", 0, 1),
    # cells in words, and several of them
    ("The goal is in the third row, fourth column, and I am in the first row and first column.", 2, 0),
    ("I am in the top left corner. The goal is in the bottom right corner.", 1, 1),
    ("The hole is at row one, column three", 1, 0),
    ("column 4, row 3 is the goal", 1, 0),
    ("holes are at (1,3) and (4,1)", 2, 0),
    ("There are holes at (1, 3), (4, 1), and (2, 2); the goal is at (3, 4).", 3, 1),
    ("I am at (1, 1) and (3, 4) is the goal", 2, 0),
    ("I am at (1, 1), (2, 2)", 1, 0),  # only what there are several of goes on
    # denials
    ("the goal is not up", 1, 0),
    ("the goal is not down", 0, 1),
    ("the goal is not up , it is down right of me", 1, 0),
    ("the goal is not at (3, 4)", 0, 1),
    # a place to be is a plan
    ("i must get to the right of the goal", 0, 0),
    ("there is no hole below me", 1, 0),
    ("right is not safe", 0, 1),
    ("The player is up left of the goal", 1, 0),
    ("heading down right , start with right", 1, 0),
    ("i must go up , therefore up", 0, 1),
    ("the target is down right", 1, 0),  # a lake's goal may be called a target
    # nothing that a board decides
    ("I go down, then right, and hope. Moves left: 5. That's right!", 0, 0),
    ("i feel lucky today", 0, 0),
    ("", 0, 0),
    ("goal goal goal right left @ ((( , , of of of the", 0, 0),
    ("火 ünï ✓ " * 50, 0, 0),
]


@pytest.mark.parametrize(("text", "true", "false"), LAKE_TEXTS)
def test_statements_about_a_lake(text: str, true: int, false: int) -> None:
    verdict = judge(text, lake(), lake())
    assert (verdict.true, verdict.false) == (true, false), statements(text, lake())


ROOM_TEXTS = [
    ("the box is left and the target up right of it , go right", 2, 0),
    ("box left , target up right , so right", 2, 0),
    ("push the box up right , first down", 1, 0),
    ("the box must go left", 0, 1),
    ("The box is directly to my left. The target is above and to the right of the box.", 2, 0),
    ("The target is up right of me.", 1, 0),
    ("The box is at row 4, column 3 and I am at row 4, column 4.", 2, 0),
    ("The crate is at (2, 2).", 0, 1),
    ("There is no wall above me; there is a wall below me.", 2, 0),
    ("There is a wall directly below me.", 0, 1),
    ("wall two cells below me", 1, 0),
    ("I must stand below the box", 0, 0),
    ("I must be left of the box. Push the box to the left of the target.", 0, 0),
    ("The box is in the top left corner.", 0, 1),
    ("The target is in the top right corner.", 1, 0),  # of the room within its wall
    ("There is a wall directly above the box.", 0, 1),
    ("The walls at (1,1) and (1,2) are far away.", 2, 0),
    ("I am to the right of the box, so I push it left.", 1, 1),  # pushing left is not the way to the target
    ("I move left and then up.", 0, 0),
]


@pytest.mark.parametrize(("text", "true", "false"), ROOM_TEXTS)
def test_statements_about_a_room(text: str, true: int, false: int) -> None:
    verdict = judge(text, room(), room())
    assert (verdict.true, verdict.false) == (true, false), statements(text, room())


def worth(text: str, scene: Scene, rate: float) -> float:
    """The score where every statement has the same base rate."""
    return score(judge(text, scene, scene), lambda statement: rate)


def test_a_worked_score() -> None:
    """A fact of base rate c earns 1 - c, a falsehood loses c; half a truth is neither."""
    assert worth("the goal is down right", lake(), 0.3) == pytest.approx(0.7)
    assert worth("the goal is up", lake(), 0.3) == pytest.approx(-0.3)
    assert worth("the goal is down", lake(), 0.3) == 0.0
    for never in ("the goal is up", "i am at (9, 9)"):
        assert worth(never, lake(), 0.0) == -0.1, "what is next to never true has a price too: FLOOR"
    assert worth("the goal is down right", lake(), 0.0) == 0.9, "the floor is of the rate, so that no guess gains by it"
    # three truths, 3 x 0.6 = 1.8 scaled by 1.8; three lies, -3 x 0.4 = -1.2 scaled by the same 1.8
    assert worth("the goal is down right , goal (3, 4) . i am at (1, 1)", lake(), 0.4) == pytest.approx(1.0)
    assert worth("the goal is up left , goal (1, 4) . i am at (2, 1)", lake(), 0.4) == pytest.approx(-2 / 3)


def test_the_scale_depends_on_what_is_said_and_not_on_what_is_true() -> None:
    """A list of near-certain claims: four at c = 0.8 scale by 3.2. Cut off at -1 instead, lists would pay: where half
    the boards make two of four false and half none, their mean would be (0.8 - 1) / 2 and not (0.8 - 1.2) / 2."""
    claims = "up is safe , down is safe , left is safe , right is safe"
    said = [statement for statement, _ in judge(claims, lake(), lake()).held]
    assert len(said) == 4
    for true in range(5):
        verdict = Verdict(tuple((statement, number < true) for number, statement in enumerate(said)))
        assert score(verdict, lambda statement: 0.8) == pytest.approx((true - 4 * 0.8) / 3.2)


def test_base_rates_are_counted_on_the_scenes_that_decide() -> None:
    """From cells 0 and 1 of the lake above the goal lies down right (true twice of two); from (2, 1) it does too; from
    (3, 1) it lies right, which 'down right' says wrong; 'right' is half a truth for the first three and true here."""
    rates = BaseRates([(lake(0), lake(1), lake(4), lake(8))])
    (down_right,) = statements("the goal is down right", lake())
    (right,) = statements("the goal is right", lake())
    assert rates(down_right) == 3 / 4
    assert rates(right) == 1.0, "one scene decides it, and there it is true"
    (later,) = statements("the goal will be down right", lake())
    assert later.later
    assert rates(later) == 3 / 4
    several = BaseRates([(lake(0), lake(8)), (lake(0), lake(1), lake(8)), (lake(8),)])
    assert several(down_right) == 2 / 3, "the highest of the kinds of scenes: 1/2, 2/3, 0"


def test_reference_scenes_are_training_levels_at_every_depth_of_play() -> None:
    section = SokobanSection()
    env = make_env(section)
    moved = dict.fromkeys(KINDS, 0)
    for number in range(40):
        env.reset(2**34 + number)
        start = env.scene()
        for kind in KINDS:
            found = scene(section, kind, number)
            assert found == scene(section, kind, number)
            assert found.things["target"] == start.things["target"]
            moved[kind] += found.things["player"] != start.things["player"]
    assert moved["start"] == 0
    assert min(moved["random"], moved["well"]) >= 20
    boxes = {kind: [scene(section, kind, n).things["box"] for n in range(40)] for kind in KINDS}
    pushed = {kind: sum(a != b for a, b in zip(boxes[kind], boxes["start"], strict=True)) for kind in KINDS}
    assert pushed["well"] > 1.5 * pushed["random"], pushed


def test_the_next_state_is_the_one_after_the_actions() -> None:
    """'will' and 'after' speak of the board after the turn."""
    before, after = lake(0), lake(1)
    for text in (
        "After moving right, I will be at (1, 2).",
        "i will be at row 1 column 2",
        "after right , i am at (1, 2)",
    ):
        assert judge(text, before, after).true == 1, text
        assert judge(text, before, before).false == 1, text
    assert judge("I am at (1, 1). After one move I am at (1, 2).", before, after).true == 2, "no contradiction"
    assert judge("After moving I am at (1, 2). The goal is down right.", before, after).true == 2


def test_repeating_a_fact_earns_nothing_more() -> None:
    once = judge("the goal is down right", lake(), lake())
    assert judge("the goal is down right , " * 40, lake(), lake()) == once
    assert judge("the goal is down right . goal lies right down ; aim down right", lake(), lake()) == once


@pytest.mark.parametrize(
    "text",
    [
        "the goal is down right , the goal is up left",
        " , ".join(f"the goal is {v} {h}" for v in ("up", "down") for h in ("left", "right")),
        "down is safe , there is a hole immediately down of me",
        "the goal is not up , the goal is up",
        "the goal is at (3, 4) . the goal is not at (3, 4)",
        "i am at (1, 1) . i am at (2, 2) . i am at (3, 3)",
    ],
)
def test_contradictions_cancel(text: str) -> None:
    """Naming every possibility pays nothing, whichever is true."""
    assert judge(text, lake(), lake()) == judge("", lake(), lake())


WAYS = ("up", "down", "left", "right")
EDGE = [f"wall at ({row}, {column})" for row in range(1, 7) for column in (1, 6)]
BLIND = (
    "the goal is down right",
    "the goal is down left",
    "up is safe , down is safe , left is safe , right is safe",
    "the goal is up",
    "the goal is not up",
    "i am at (1, 1)",
    "i am at (2, 2)",
    "i am in the top left corner , the goal is in the bottom right corner",
    "hole (2, 3)",
    "the hole is two tiles to my right",
    "the goal is not at (3, 3)",
    "the player is down of the hole",
    "the box is left",
    "the box is up left",
    "the box is at (3, 3)",
    "the box is left and the target is right of it",
    "the target is up of the box",
    "the target is down right of the wall",
    "wall (1, 1)",
    "wall at (1,1), wall at (6,6)",
    " . ".join(EDGE),
    *(
        " , ".join(sentence.format(way) for way in WAYS)
        for sentence in (
            "no wall {} of the box",
            "no wall {} of me",
            "no wall {} of the target",
            "there is a wall {} of the target",
            "there is a wall directly {} of the target",
            "there is a wall directly {} of me",
            "no hole {} of me",
            "there is no hole {} of the goal",
            "there is a hole {} of me",
        )
    ),
)
SECTIONS = [
    FrozenLakeSection(slip=0.0),
    FrozenLakeSection(slip=0.0, size=6),
    SokobanSection(),
    SokobanSection(vocab="new"),
    SokobanSection(size=8, boxes=2),
]


def test_every_environment_of_ours_that_can_say_where_things_are_is_here() -> None:
    assert {section.name for section in SECTIONS} == set(GROUNDED)
    assert {name for name, section in ENV_SECTIONS.items() if isinstance(make_env(section()), Grounded)} == set(
        GROUNDED
    )


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: f"{s.name}-{s.size}-{getattr(s, 'vocab', '')}")
def test_speaking_without_looking_earns_nothing_on_average(section: Any) -> None:
    """Fixed texts over 256 other states of each kind. Two standard errors of the sample and of the reference are 0.08
    at most. A place drawn evenly from the board as the base rate paid up to 1.0 (the edge of a room is always wall)."""
    rates = base_rates(section)
    for kind in KINDS:
        scenes = [scene(section, kind, SCENES + number) for number in range(256)]
        for text in BLIND:
            mean = sum(score(judge(text, s, s), rates) for s in scenes) / len(scenes)
            assert mean < 0.08, (kind, text, mean)


@pytest.mark.parametrize("section", [FrozenLakeSection(slip=0.0), SokobanSection()], ids=lambda s: s.name)
def test_looking_pays(section: Any) -> None:
    env, rates, earned = make_env(section), base_rates(section), []
    aim = section.name == "frozen_lake"
    for seed in range(200):
        env.reset(seed)
        facts = env.demonstrate().facts
        text = f"the goal is {facts['goal']}" if aim else f"the box is {facts['box']} , the target is {facts['target']}"
        earned.append(score(judge(text, env.scene(), env.scene()), rates))
    assert min(earned) > 0
    assert sum(earned) / len(earned) > 0.6


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("frozen_lake", FrozenLakeSection(slip=0.0)),
        ("sokoban", SokobanSection()),
        ("sokoban", SokobanSection(vocab="new")),
        ("sokoban", SokobanSection(size=8, boxes=2)),
    ],
    ids=str,
)
def test_every_sentence_of_the_expert_is_true_and_none_of_the_novice_says_anything(name: str, section: object) -> None:
    env = make_env(section)
    assert isinstance(env, Grounded)
    for seed in range(40):
        env.reset(seed)
        scene, facts = env.scene(), env.demonstrate().facts
        for sentence in EXPERT[name]:
            verdict = judge(sentence.format_map(facts), scene, scene)
            assert verdict.true, (sentence, facts)
            assert not verdict.false, (sentence, facts)
        assert not any(statements(sentence, scene) for sentence in NOVICE)


def test_a_lie_of_the_expert_s_words_is_seen() -> None:
    """The expert's sentences with the opposite directions lose."""
    opposite = {"up": "down", "down": "up", "left": "right", "right": "left", "here": "here"}
    env = make_env(FrozenLakeSection(slip=0.0))
    for seed in range(40):
        env.reset(seed)
        scene, facts = env.scene(), env.demonstrate().facts
        wrong = " ".join(opposite[word] for word in facts["goal"].split())
        for sentence in EXPERT["frozen_lake"]:
            said = sentence.format_map({**facts, "goal": wrong})
            assert any(s.kind == "way" for s in statements(said, scene)), said
            assert judge(said, scene, scene).false, said


def test_cells_are_counted_from_one_at_the_top_left() -> None:
    assert lake().things == {"player": ((1, 1),), "goal": ((3, 4),), "hole": ((1, 3), (4, 1))}
    assert room().things["box"] == ((4, 3),)
    assert room().things["target"] == ((2, 5),)
    assert statements("goal row 3 column 4", lake()) == [Statement("cell", "goal", "", (3, 4))]


def test_a_very_long_text_is_read_in_linear_time() -> None:
    assert judge("the goal is down right and " * 20_000, lake(), lake()).true == 1
    assert judge("down " * 50_000 + "(" * 50_000 + "row " * 20_000, lake(), lake()).true == 0
