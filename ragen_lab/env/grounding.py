"""Whether a reasoning text is true of the board: read its statements, hold them against where things are.

Only statements that a board can decide are read; everything else a text says is passed over. A statement is
read within one clause (clauses end at punctuation and at words such as 'so', 'because', 'and'):

- ``the goal is down right (of me)``, ``to the left of the box is the target``, ``i am above the box``: a direction.
  True when it names the whole displacement, false when it names a wrong part of it, and neither (not counted)
  when it names only one of two right parts.
  So ``there is a hole to the right of me`` is said of any distance; ``the goal is not up`` is true where no part is up.
- ``the player is at row 2, column 3``, ``goal (3, 4)``, ``holes at (1, 3) and (4, 1)``, ``second row, third column``,
  ``in the top left corner`` (within a room's outer wall): a cell. Rows from the top, columns from the left, from 1.
- ``no hole down of me``, ``a wall immediately above me``, ``right is safe``, ``down avoids the holes``: the next tile;
  with a distance (``a hole two tiles to my right``) the tile that far away. Other distances are not read.
- ``heading down``, ``must go down right``, ``push the box left``, ``the box needs to go left``: the way to the aim (to
  the goal; from the box to its target). A bare direction of the target is seen from the box, as the aim is.
- In a clause with 'will' or behind 'after', the same is said of the *next* state: the one after the turn's actions.

What an action is going to be (``i go down``, ``first step right``, ``take left``) is a plan and no statement, and so is
where the player should stand (``i must get below the box``).

Scoring. A statement whose base rate is c (how often it is true on other levels, ``base_rates.py``) earns 1 - c when it
is true and loses c when it is false, so that speaking without looking earns nothing on average. What is next to never
true would so cost next to nothing: c is at least ``FLOOR``, for all statements alike. Each statement counts
once however often it is made, and statements that contradict each other all count nothing. A text that could earn or
lose more than 1 is scaled down by what it could: cutting its sum off would cap its losses and so pay blind lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

Cell = tuple[int, int]  # row, column, from 1
FLOOR = 0.1  # what a false statement costs at least; a true one earns at most 1 - FLOOR
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
    """``noun`` (seen from ``origin``) is at ``value``: a displacement's signs, a displacement, or a cell.

    ``kind``: 'way', 'tile' (the next one, or so far away), 'cell'.
    ``holds`` False: it is said not to be there. ``later``: of the next state.
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
    "found there there's just now currently here from with for where side tile tiles cell cells ice position placed "
    "shows see plan looking way positioned situated that this also towards toward still remains both i'm that's away"
)
_NEAR = _words("directly immediately immediate adjacent")
_TH = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_ORDINALS = {word: number for number, word in enumerate(_TH, 1)}
_TEN = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {word: number for number, word in enumerate(_TEN, 1)}
_NUMBER = rf"\d+|{'|'.join(_NUMBERS)}"
_NTH = rf"(\d+(?:st|nd|rd|th)|{'|'.join(_ORDINALS)}|last)"
_AND = r"\s*,?\s*(?:and\s+|of\s+)?(?:in\s+|at\s+)?(?:the\s+)?"
_BOARD = re.compile(
    rf"\(?\s*rows?\s*({_NUMBER})\b{_AND}col(?:umn)?s?\s*({_NUMBER})\b\s*\)?|\(\s*(\d+)\s*,\s*(\d+)\s*\)"
)
_BOARD_TURNED = re.compile(rf"\bcol(?:umn)?\s*({_NUMBER})\b{_AND}row\s*({_NUMBER})\b")
_BOARD_NTH = re.compile(rf"\b{_NTH}\s+row{_AND}{_NTH}\s+col(?:umn)?\b")
_CORNER = re.compile(r"\b(top|upper|bottom|lower)[\s-]+(left|right)(?:[\s-]+hand)?[\s-]+corner\b")
_COUNTS = re.compile(
    rf"\b({_NUMBER}|a few|few|several|some|many|a couple(?: of)?)\s+"
    r"(?:rows?|columns?|cols?|steps?|tiles?|cells?|spaces?|squares?)\b"
)
_GAP = re.compile(r"\s+")
_NEXT_TILE = re.compile(r"\bthe (?:tile|cell|square|space)\b")
_IDIOMS = re.compile(
    r"\b(?:right (?:now|away|answer|move|choice|way|path)|(?:all|that'?s) right|ends? up|(?:moves|actions|turns|steps|"
    r"attempts) left(?! of)|next to)\b"
)
_JOINED = re.compile(
    rf"\b({'|'.join(_DIRECTION)})[\s-]+and\s+(#\d+\s+)?(?:(?:to|on)\s+)?(?:the\s+)?({'|'.join(_DIRECTION)})\b"
)
_TOKEN = re.compile(r"@\d+x\d+|#\d+|[a-z']+|[.,;!?\n]")

Element = tuple[str, str]  # kind of element, its value


def statements(text: str, scene: Scene) -> list[Statement]:
    """What the text says about the board, in order, repetitions included."""
    found: list[Statement] = []
    for sentence in re.split(r"[.!?\n;]", _written(text, scene)):
        clause: list[Element] = []
        later, several = False, ""
        for word in [*_TOKEN.findall(sentence), ","]:
            if word in _BREAKS:
                said, several = _read(clause, scene, later, several)
                found += said
                later = later or ("later", "after") in clause  # 'after moving right, i am ...'
                clause = []
            elif (element := _element(word, scene)) is not None:
                clause.append(element)
                if word in _OWN_OF:
                    clause.append(("of?", ""))
    return found


def _written(text: str, scene: Scene) -> str:
    """The text with its cells as @row x column, its distances as #tiles (0: not told), and its idioms as breaks."""
    top, bottom, left, right = _inside(scene)

    def nth(word: str, last: int) -> int:
        return last if word == "last" else _ORDINALS.get(word) or int(word[:-2])

    def corner(match: re.Match[str]) -> str:
        return f" @{top if match[1] in ('top', 'upper') else bottom}x{left if match[2] == 'left' else right} "

    def distance(match: re.Match[str]) -> str:
        tiles = _number(match[1])
        return " immediately " if tiles == 1 else f" #{tiles} "

    text = _GAP.sub(lambda m: "\n" if "\n" in m[0] else " ", text.lower().replace("\u2019", "'"))
    text = _BOARD.sub(lambda m: f" @{_number(m[1] or m[3])}x{_number(m[2] or m[4])} ", text)
    text = _BOARD_TURNED.sub(lambda m: f" @{_number(m[2])}x{_number(m[1])} ", text)
    text = _BOARD_NTH.sub(lambda m: f" @{nth(m[1], scene.rows)}x{nth(m[2], scene.columns)} ", text)
    text = _NEXT_TILE.sub(" immediately ", _CORNER.sub(corner, text))
    return _JOINED.sub(r"\1 \2 \3", _IDIOMS.sub(" , ", _COUNTS.sub(distance, text)))


def _number(word: str) -> int:
    return int(word) if word.isdecimal() else _NUMBERS.get(word, 0)


def _inside(scene: Scene) -> tuple[int, int, int, int]:
    """First and last row, first and last column, without those at the edge that are obstacles from end to end."""
    taken = {cell for noun in scene.obstacles for cell in scene.things.get(noun, ())}
    rows = [r for r in range(1, scene.rows + 1) if any((r, c) not in taken for c in range(1, scene.columns + 1))]
    columns = [c for c in range(1, scene.columns + 1) if any((r, c) not in taken for r in range(1, scene.rows + 1))]
    return min(rows, default=1), max(rows, default=1), min(columns, default=1), max(columns, default=1)


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
    if word in _NEAR:
        return "near", ""
    if word[0] in "@#":
        return ("cell" if word[0] == "@" else "count"), word[1:]
    return None if word in _FILLERS else ("other", word)


def _read(clause: list[Element], scene: Scene, later: bool, several: str) -> tuple[list[Statement], str]:
    """The statements of one clause. Elements that no pattern takes up are passed over, left to right.

    ``several``: the noun of cells that may go on (``holes at (1, 3) and (4, 1)``); returned as it is after the clause.
    """
    later = later or any(kind == "later" for kind, _ in clause)
    near = any(kind == "near" for kind, _ in clause)
    parts = _ways([part for part in clause if part[0] not in ("later", "near")])
    found: list[Statement] = []
    at = 0
    while at < len(parts):
        if several and parts[at][0] == "cell" and (at + 1 == len(parts) or parts[at + 1][0] != "noun"):
            found.append(Statement(*_cell(several, parts[at][1]), later=later))
            at += 1
        else:
            taken, statement = _pattern(parts, at, scene, near)
            nouns = [part[1] for part in parts[at : at + taken] if part[0] == "noun"]
            if statement is not None and statement[0] == "cell" and statement[4]:
                several = statement[1] if len(scene.things.get(statement[1], ())) > 1 else ""
            elif nouns:
                several = ""
            if statement is not None:
                found.append(Statement(*statement, later=later))
            at += taken
    return found, several


def _ways(clause: list[Element]) -> list[tuple[str, str, Cell]]:
    """Runs of direction words joined into one displacement: (kind, value, displacement).

    The value of a way is '' without distances, 'far' with one for each direction, 'vague' with any other.
    """
    joined: list[tuple[str, str, Cell]] = []
    count: int | None = None
    for at, (kind, value) in enumerate(clause):
        if kind == "of?" and clause[at + 1 : at + 2] and clause[at + 1][0] in ("way", "count"):
            continue  # 'above and to the right of me'
        if kind == "count":
            begins = at + 1 < len(clause) and clause[at + 1][0] == "way"
            if joined and joined[-1][0] == "way" and not begins:
                joined[-1] = ("way", "vague", joined[-1][2])  # 'to the right two tiles away'
            count = int(value)
            continue
        if kind == "way":
            step = NEIGHBOURS[value]
            told = "" if count is None else "far" if count else "vague"
            step = (step[0] * count, step[1] * count) if count else step
            if joined and joined[-1][0] == "way":
                _, before, (rows, columns) = joined.pop()
                told = told if before == told else "vague"
                step = (rows + step[0], columns + step[1])
                step = step if told == "far" else (_sign(step[0]), _sign(step[1]))
            joined.append(("way", told, step))
        else:
            joined.append((kind, value, (0, 0)))
        count = None
    return joined


Said = tuple[str, str, str, Cell, bool]


def _pattern(parts: list[tuple[str, str, Cell]], at: int, scene: Scene, near: bool) -> tuple[int, Said | None]:
    """The pattern that begins at ``at``: how many elements it takes, and what it says (None: nothing).

    ``near``: the clause speaks of what is next to something.
    """
    kinds = [part[0] for part in parts[at : at + 5]] + [""] * 5
    values = [part[1] for part in parts[at : at + 5]] + [""] * 5
    aim, origin = scene.aim

    def seen(noun: str, way: int, seen_from: str, holds: bool = True) -> Said | None:
        """``noun`` lies in the way number ``way`` from here, seen from ``seen_from``."""
        told, step = values[way], parts[at + way][2]
        if noun in scene.obstacles and (near or told == "far" or not holds):
            return ("tile", noun, seen_from, step, holds) if _straight(step) and told != "vague" else None
        if noun == seen_from or step == (0, 0) or (noun in scene.obstacles and told):
            return None
        return ("way", noun, seen_from, (_sign(step[0]), _sign(step[1])), holds)

    def placed(noun: str, way: int, holds: bool = True) -> tuple[int, Said | None]:
        """``noun way [of seen_from]``, or that with a cell behind it, which then says it all."""
        taken, seen_from = way + 1, origin if noun == aim else "player"
        if kinds[taken : taken + 2] in (["of", "noun"], ["of?", "noun"]):
            seen_from, taken = values[taken + 1], taken + 2
        cell = taken + (kinds[taken] == "of?")
        if holds and kinds[cell] == "cell":
            return cell + 1, _cell(noun, values[cell])
        return taken, seen(noun, way, seen_from, holds)

    def aimed(way: int) -> tuple[int, Said | None]:
        """The way number ``way`` leads to the aim; with a noun behind it, it is a place to be and no statement."""
        if kinds[way + 1 : way + 3] in (["of", "noun"], ["of?", "noun"]):
            return way + 3, None
        step = parts[at + way][2]
        return way + 1, ("way", aim, origin, (_sign(step[0]), _sign(step[1])), True) if step != (0, 0) else None

    if kinds[:2] == ["noun", "cell"]:
        return 2, _cell(values[0], values[1])
    if kinds[:3] == ["noun", "not", "cell"]:
        return 3, _cell(values[0], values[2], False)
    if kinds[:2] == ["cell", "noun"]:
        return 2, _cell(values[1], values[0])
    if kinds[:3] == ["not", "noun", "way"]:
        return placed(values[1], 2, False)
    if kinds[:3] == ["noun", "not", "way"]:
        return placed(values[0], 2, False)
    if kinds[:2] == ["noun", "way"]:
        return placed(values[0], 1)
    if origin != "player":  # what the player pushes
        if kinds[:3] == ["verb", "noun", "way"] and values[1] == origin:
            return aimed(2)
        if kinds[0] == "noun" and values[0] == origin and kinds[1] == "verb":
            verbs = 2 if kinds[2] == "verb" else 1
            if kinds[1 + verbs] == "way":
                return aimed(1 + verbs)
            if kinds[1:4] == ["verb", "aim", "way"]:
                return aimed(3)
        if kinds[0] == "noun" and values[0] == origin and kinds[1:4] == ["aim", "verb", "way"]:
            return aimed(3)
    if kinds[0] == "aim":
        if kinds[1] == "way":
            return aimed(1)
        if values[0] == "must" and kinds[1:3] == ["verb", "way"]:
            return aimed(2)
        return 1, None
    if kinds[0] in ("verb", "other") and kinds[1] == "way":
        return 2, None  # a plan
    if kinds[0] == "safe" and kinds[1] == "way":
        return 2, _safe(parts[at + 1], scene, True)
    if kinds[0] == "way":
        if kinds[1] == "safe" or kinds[1] == "avoid":
            return 2, _safe(parts[at], scene, True)
        if kinds[1:3] == ["not", "safe"]:
            return 3, _safe(parts[at], scene, False)
        if kinds[1] in ("of", "of?") and kinds[2:4] == ["noun", "noun"]:
            return 4, seen(values[3], 0, values[2])
        if kinds[1] == "noun" and kinds[2] not in ("way", "cell"):
            return 2, seen(values[1], 0, origin if values[1] == aim else "player")
    return 1, None


def _cell(noun: str, value: str, holds: bool = True) -> Said:
    row, column = value.split("x")
    return ("cell", noun, "", (int(row), int(column)), holds)


def _safe(part: tuple[str, str, Cell], scene: Scene, safe: bool) -> Said | None:
    """A safe tile is one without the first obstacle: the one that ends or stops the player."""
    _, told, way = part
    if not scene.obstacles or not _straight(way) or told == "vague":
        return None
    return ("tile", scene.obstacles[0], "player", way, not safe)


def judge(text: str, before: Scene, after: Scene) -> Verdict:
    """Hold a reasoning text against the state that it was written about and the state that followed."""
    distinct = list(dict.fromkeys(statements(text, before)))
    signs: dict[Statement, set[bool]] = {}
    places: dict[Statement, set[Cell]] = {}
    for statement in distinct:
        signs.setdefault(replace(statement, holds=True), set()).add(statement.holds)
        if _alone(statement, before):
            places.setdefault(replace(statement, value=(0, 0)), set()).add(statement.value)

    def contradicted(statement: Statement) -> bool:
        """By its denial, or by another place of what can have one place only."""
        elsewhere = _alone(statement, before) and len(places[replace(statement, value=(0, 0))]) > 1
        return elsewhere or len(signs[replace(statement, holds=True)]) > 1

    counted = [s for s in distinct if not contradicted(s)]
    return Verdict(tuple((s, truth(s, after if s.later else before)) for s in counted))


def score(verdict: Verdict, rate: Callable[[Statement], float]) -> float:
    """What a text earns, within -1 and 1, given the base rates of its statements.

    The scale depends on what is said and not on what is true, so the mean of blind speech is never above zero.
    """
    rates = [max(FLOOR, rate(statement)) for statement, _ in verdict.held]
    scale = max(1.0, sum(rates), sum(1 - c for c in rates))
    earned = (0.0 if holds is None else holds - c for c, (_, holds) in zip(rates, verdict.held, strict=True))
    return sum(earned) / scale


def _alone(statement: Statement, scene: Scene) -> bool:
    """Whether it can be true of one value only: it says where a thing is of which there is one, seen from one."""
    several = max(len(scene.things.get(noun, ())) for noun in (statement.noun, statement.origin)) > 1
    return statement.holds and statement.kind != "tile" and not several


def truth(statement: Statement, scene: Scene) -> bool | None:
    """Whether it is true of a board; None where it is only part of the truth, or about nothing."""
    things = scene.things.get(statement.noun, ())
    if statement.kind == "cell":
        return (statement.value in things) == statement.holds
    origins = scene.things.get(statement.origin, ())
    if not origins or (statement.kind == "way" and not things):
        return None
    if statement.kind == "tile":
        there = any((row + statement.value[0], column + statement.value[1]) in things for row, column in origins)
        return there == statement.holds
    signs = {(_sign(t[0] - o[0]), _sign(t[1] - o[1])) for t in things for o in origins}
    wanted = statement.value
    part = any(all(w in (0, s) for w, s in zip(wanted, sign, strict=True)) for sign in signs)
    if not statement.holds:
        return not part
    return True if wanted in signs else None if part else False


def _straight(step: Cell) -> bool:
    return 0 in step and step != (0, 0)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
