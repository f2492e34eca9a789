"""Whether a reasoning text is true of the board: read its statements, hold them against where things are.

Only statements that a board can decide are read; everything else a text says is passed over. A statement is
read within one clause (clauses end at punctuation and at words such as 'so', 'because', 'and'):

- ``the goal is down right (of me)``, ``to the left of the box is the target``, ``i am above the box``: a direction.
  True when it names the whole displacement, false when it names a wrong part of it, and neither (not counted)
  when it names only one of two right parts.
- ``the player is at row 2, column 3`` or ``goal (3, 4)``: a cell. Rows from the top, columns from the left, from 1.
- ``no hole down of me``, ``there is a wall above me``, ``right is safe``, ``down avoids the holes``: the next tile.
- ``heading down``, ``must go down right``, ``push the box left``, ``the box needs to go left``: the way to the aim (to
  the goal; from the box to its target). A bare direction of the target is seen from the box, as the aim is.
- In a clause with 'will' or behind 'after', the same is said of the *next* state: the one after the turn's actions.

What an action is going to be (``i go down``, ``first step right``, ``take left``) is a plan and no statement.

Scoring. A statement whose base rate is c (how often it is true on other levels, ``base_rates.py``) earns 1 - c when it
is true and loses c when it is false, so that speaking without looking earns nothing on average. Each statement counts
once however often it is made, and statements that contradict each other all count nothing. A text that could earn or
lose more than 1 is scaled down by what it could: cutting its sum off would cap its losses and so pay blind lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

Cell = tuple[int, int]  # row, column, from 1
NEIGHBOURS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


@dataclass(frozen=True)
class Scene:
    """Where things are on a board of ``rows`` x ``columns``, by noun; 'player' is one of the nouns.

    ``obstacles``: nouns of which the text says in which neighbouring tile they are. ``aim``: the noun that ways lead
    to, and the noun that they lead from. ``words``: further words for the nouns.
    """

    rows: int
    columns: int
    things: Mapping[str, tuple[Cell, ...]]
    obstacles: tuple[str, ...]
    aim: tuple[str, str]
    words: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Grounded(Protocol):
    """An environment that can say where things are."""

    def scene(self) -> Scene:
        """The present state."""


@dataclass(frozen=True)
class Statement:
    """``noun`` (seen from ``origin``) is at ``value``: a displacement's signs, a neighbour, or a cell.

    ``kind``: 'way', 'next tile' or 'cell'. ``holds`` False: it is said not to be there. ``later``: of the next state.
    """

    kind: str
    noun: str
    origin: str
    value: Cell
    holds: bool = True
    later: bool = False


@dataclass(frozen=True)
class Verdict:
    """The statements that count, each with whether it holds (None: only part of the truth, or about nothing)."""

    held: tuple[tuple[Statement, bool | None], ...]

    @property
    def true(self) -> int:
        return sum(holds is True for _, holds in self.held)

    @property
    def false(self) -> int:
        return sum(holds is False for _, holds in self.held)


_DIRECTIONS = {
    "up": ("up", "above", "north", "upward", "upwards", "upper", "top"),
    "down": ("down", "below", "south", "downward", "downwards", "lower", "bottom", "under", "beneath", "underneath"),
    "left": ("left", "west", "leftward", "leftwards"),
    "right": ("right", "east", "rightward", "rightwards"),
}
_DIRECTION = {word: name for name, words in _DIRECTIONS.items() for word in words}
_OWN_OF = frozenset({"above", "below", "under", "beneath", "underneath"})  # 'above me' needs no 'of'
_PLAYER = frozenset(["i", "me", "we", "us", "you", "player", "agent", "myself", "avatar"])
_BREAKS = frozenset([",", ";", "so", "because", "since", "therefore", "but", "then", "while", "thus", "hence", "and"])
_BREAKS |= {"which", "if", "or", "unless", "until"}
_LATER = frozenset(["will", "would"])


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VERBS = _words(
    "go goes going move moves moving walk walks walking step steps start starts begin begins take choose push pushes "
    "pushing slide slides bring brings press try first next best use via need needs has have turn run"
)
_AIMS = _words("heading aim aiming leads lead travel traveling travelling route get must")
_SAFE, _AVOID = _words("safe free clear"), _words("avoid avoids avoiding")
_NOT = _words("no not without never isn't aren't")
_FILLERS = _words(
    "the a an my our is are am be being was lies lie sits sit waits stands stand located at in on to direction can "
    "found there just directly now currently here from with for where side tile tiles cell cells ice position placed "
    "immediately shows see plan looking way positioned situated that this also towards toward still remains both "
    "adjacent i'm immediate"
)
_BOARD = re.compile(r"\(?\s*rows?\s*(\d+)\s*,?\s*(?:and\s+)?col(?:umn)?s?\s*(\d+)\s*\)?|\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_COUNTS = re.compile(
    r"\b(?:\d+|one|two|three|four|five|six|seven|eight|nine|ten)\s+(?:rows?|columns?|cols?|steps?|tiles?|cells?|"
    r"spaces?|squares?)\b"
)
_IDIOMS = re.compile(
    r"\b(?:right (?:now|away|answer|move|choice|way|path)|(?:all|that'?s) right|ends? up|(?:moves|actions|turns|steps|"
    r"attempts) left(?! of)|next to)\b"
)
_JOINED = re.compile(rf"\b({'|'.join(_DIRECTION)})[\s-]+and\s+(?:(?:to|on)\s+)?(?:the\s+)?({'|'.join(_DIRECTION)})\b")
_TOKEN = re.compile(r"@\d+x\d+|[a-z']+|[.,;!?\n]")

Element = tuple[str, str]  # kind of element, its value


def statements(text: str, scene: Scene) -> list[Statement]:
    """What the text says about the board, in order, repetitions included."""
    text = _BOARD.sub(lambda m: f" @{m[1] or m[3]}x{m[2] or m[4]} ", text.lower().replace("’", "'"))
    text = _JOINED.sub(r"\1 \2", _IDIOMS.sub(" , ", _COUNTS.sub(" ", text)))
    found: list[Statement] = []
    for sentence in re.split(r"[.!?\n;]", text):
        clause: list[Element] = []
        later = False
        for word in [*_TOKEN.findall(sentence), ","]:
            if word in _BREAKS:
                found += _read(clause, scene, later)
                later = later or ("later", "after") in clause  # 'after moving right, i am ...'
                clause = []
            elif (element := _element(word, scene)) is not None:
                clause.append(element)
                if word in _OWN_OF:
                    clause.append(("of?", ""))
    return found


def _element(word: str, scene: Scene) -> Element | None:
    """The meaning of a word; None for a word that only fills."""
    if word in scene.words or word in scene.things:
        return "noun", scene.words.get(word, word)
    singular = word.removesuffix("es") if word == "boxes" else word.removesuffix("s")
    if singular in scene.things or singular in scene.words:
        return "noun", scene.words.get(singular, singular)
    for kind, words in (("verb", _VERBS), ("aim", _AIMS), ("safe", _SAFE), ("avoid", _AVOID), ("not", _NOT)):
        if word in words:
            return kind, word
    if word in _PLAYER:
        return "noun", "player"
    if word in _DIRECTION:
        return "way", _DIRECTION[word]
    if word in _LATER:
        return "later", "will"
    if word in ("after", "afterwards", "once"):
        return "later", "after"
    if word == "of":
        return "of", ""
    if word.startswith("@"):
        return "cell", word[1:]
    return None if word in _FILLERS else ("other", word)


def _read(clause: list[Element], scene: Scene, later: bool) -> list[Statement]:
    """The statements of one clause. Elements that no pattern takes up are passed over, left to right."""
    later = later or any(kind == "later" for kind, _ in clause)
    parts = [part for part in _ways(clause) if part[0] != "later"]
    found: list[Statement] = []
    at = 0
    while at < len(parts):
        taken, statement = _pattern(parts, at, scene)
        if statement is not None:
            found.append(Statement(*statement, later=later))
        at += taken
    return found


def _ways(clause: list[Element]) -> list[tuple[str, str, Cell]]:
    """Runs of direction words joined into one displacement: (kind, value, displacement)."""
    joined: list[tuple[str, str, Cell]] = []
    for at, (kind, value) in enumerate(clause):
        if kind == "of?" and clause[at + 1 : at + 2] and clause[at + 1][0] == "way":
            continue  # 'above and to the right of me'
        step = NEIGHBOURS.get(value, (0, 0)) if kind == "way" else (0, 0)
        if kind == "way" and joined and joined[-1][0] == "way":
            _, _, (rows, columns) = joined[-1]
            joined[-1] = ("way", "", (_sign(rows + step[0]), _sign(columns + step[1])))
        else:
            joined.append((kind, value, step))
    return joined


Said = tuple[str, str, str, Cell, bool]


def _pattern(parts: list[tuple[str, str, Cell]], at: int, scene: Scene) -> tuple[int, Said | None]:
    """The pattern that begins at ``at``: how many elements it takes, and what it says (None: nothing)."""
    kinds = [part[0] for part in parts[at : at + 4]] + [""] * 4
    values = [part[1] for part in parts[at : at + 4]] + [""] * 4
    ways = [part[2] for part in parts[at : at + 4]] + [(0, 0)] * 4
    aim, origin = scene.aim

    def way_of(noun: str, way: Cell, rest: int, holds: bool = True) -> tuple[int, Said | None]:
        """``noun way [of seen_from]``; ``rest`` elements lie before the optional part."""
        seen_from = origin if noun == aim else "player"
        taken = rest
        if kinds[rest : rest + 2] in (["of", "noun"], ["of?", "noun"]):
            seen_from, taken = values[rest + 1], rest + 2
        if noun in scene.obstacles:
            single = 0 in way and way != (0, 0)
            return taken, ("next tile", noun, seen_from, way, holds) if single else None
        if not holds or noun == seen_from or way == (0, 0):
            return taken, None
        return taken, ("way", noun, seen_from, way, True)

    if kinds[0] == "noun" and kinds[1] == "cell":
        return 2, _cell(values[0], values[1])
    if kinds[0] == "cell" and kinds[1] == "noun":
        return 2, _cell(values[1], values[0])
    if kinds[:3] == ["not", "noun", "way"]:
        at_3 = kinds[3] in ("of", "of?") and at + 4 < len(parts) and parts[at + 4][0] == "noun"
        seen_from = parts[at + 4][1] if at_3 else "player"
        single = values[1] in scene.obstacles and 0 in ways[2] and ways[2] != (0, 0)
        return (5 if at_3 else 3), ("next tile", values[1], seen_from, ways[2], False) if single else None
    if kinds[0] == "noun" and kinds[1] == "way":
        return way_of(values[0], ways[1], 2)
    if origin != "player":  # what the player pushes
        if kinds[:3] == ["verb", "noun", "way"] and values[1] == origin:
            return 3, ("way", aim, origin, ways[2], True)
        if kinds[0] == "noun" and values[0] == origin and kinds[1] == "verb":
            verbs = 2 if kinds[2] == "verb" else 1
            if (kinds[1 + verbs], values[1]) == ("way", values[1]):
                return 2 + verbs, ("way", aim, origin, ways[1 + verbs], True)
            if kinds[1:3] == ["verb", "aim"] and kinds[3] == "way":
                return 4, ("way", aim, origin, ways[3], True)
        if kinds[0] == "noun" and values[0] == origin and kinds[1:4] == ["aim", "verb", "way"]:
            return 4, ("way", aim, origin, ways[3], True)
    if kinds[0] == "aim":
        if kinds[1] == "way":
            return 2, ("way", aim, origin, ways[1], True)
        if values[0] == "must" and kinds[1:3] == ["verb", "way"]:
            return 3, ("way", aim, origin, ways[2], True)
        return 1, None
    if kinds[0] in ("verb", "other") and kinds[1] == "way":
        return 2, None  # a plan
    if kinds[0] == "safe" and kinds[1] == "way":
        return 2, _safe(ways[1], scene, True)
    if kinds[0] == "way":
        if kinds[1] == "safe":
            return 2, _safe(ways[0], scene, True)
        if kinds[1:3] == ["not", "safe"]:
            return 3, _safe(ways[0], scene, False)
        if kinds[1] == "avoid":
            return 2, _safe(ways[0], scene, True)
        if kinds[1] in ("of", "of?") and kinds[2:4] == ["noun", "noun"]:
            noun, seen_from = values[3], values[2]
            if noun in scene.obstacles:
                return 4, ("next tile", noun, seen_from, ways[0], True) if 0 in ways[0] else None
            return 4, ("way", noun, seen_from, ways[0], True) if noun != seen_from else None
        if kinds[1] == "noun" and kinds[2] not in ("way", "cell"):
            seen = origin if values[1] == aim else "player"
            if values[1] in scene.obstacles:
                return 2, ("next tile", values[1], "player", ways[0], True) if 0 in ways[0] else None
            return 2, ("way", values[1], seen, ways[0], True) if values[1] != seen else None
    return 1, None


def _cell(noun: str, value: str) -> Said:
    row, column = value.split("x")
    return ("cell", noun, "", (int(row), int(column)), True)


def _safe(way: Cell, scene: Scene, safe: bool) -> Said | None:
    """A safe tile is one without the first obstacle: the one that ends or stops the player."""
    if not scene.obstacles or 0 not in way or way == (0, 0):
        return None
    return ("next tile", scene.obstacles[0], "player", way, not safe)


def judge(text: str, before: Scene, after: Scene) -> Verdict:
    """Hold a reasoning text against the state that it was written about and the state that followed."""
    distinct = list(dict.fromkeys(statements(text, before)))
    answers: dict[tuple[object, ...], set[tuple[Cell, bool]]] = {}
    for statement in distinct:
        answers.setdefault(_question(statement, before), set()).add((statement.value, statement.holds))
    counted = [s for s in distinct if len(answers[_question(s, before)]) == 1]  # no other contradicts it
    return Verdict(tuple((s, truth(s, after if s.later else before)) for s in counted))


def score(verdict: Verdict, rate: Callable[[Statement], float]) -> float:
    """What a text earns, within -1 and 1, given the base rates of its statements.

    The scale depends on what is said and not on what is true, so the mean of blind speech stays zero.
    """
    rates = [rate(statement) for statement, _ in verdict.held]
    scale = max(1.0, sum(rates), sum(1 - c for c in rates))
    earned = (0.0 if holds is None else holds - c for c, (_, holds) in zip(rates, verdict.held, strict=True))
    return sum(earned) / scale


def _question(statement: Statement, scene: Scene) -> tuple[object, ...]:
    """What can have one answer only: statements with equal questions and different answers contradict each other."""
    several = max(len(scene.things.get(noun, ())) for noun in (statement.noun, statement.origin)) > 1
    value = statement.value if several or statement.kind == "next tile" else None
    return statement.kind, statement.noun, statement.origin, statement.later, value


def truth(statement: Statement, scene: Scene) -> bool | None:
    """Whether it is true of a board; None where it is only part of the truth, or about nothing."""
    things = scene.things.get(statement.noun, ())
    if statement.kind == "cell":
        return statement.value in things
    origins = scene.things.get(statement.origin, ())
    if not origins or (statement.kind == "way" and not things):
        return None
    if statement.kind == "next tile":
        there = any((row + statement.value[0], column + statement.value[1]) in things for row, column in origins)
        return there == statement.holds
    signs = {(_sign(t[0] - o[0]), _sign(t[1] - o[1])) for t in things for o in origins}
    wanted = statement.value
    if wanted in signs:
        return True
    part = any(all(w in (0, s) for w, s in zip(wanted, sign, strict=True)) for sign in signs)
    return None if part else False


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
