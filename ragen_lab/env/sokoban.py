"""Sokoban: push every box onto a target.

Symbols, ``standard`` -> ``new``: wall ``#`` -> ``W``, floor ``_`` -> ``.``, target ``O`` -> ``G``, box ``X`` -> ``C``,
player ``P`` -> ``A``, box on target ``√`` -> ``B``, player on target ``S`` -> ``@``.
Cells of a row are separated by one space, so that every cell is one token.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from random import Random

from ragen_lab.env.base import Demonstration, StepResult
from ragen_lab.env.grounding import Scene
from ragen_lab.env.levels import (
    choose_set,
    direction_words,
    draw_level,
    length_stream,
    of_length,
    published,
    published_level,
)
from ragen_lab.errors import ConfigError, EnvError
from ragen_lab.sections import SokobanSection

ACTIONS = ("Up", "Down", "Left", "Right")
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
STANDARD = "#_OXP√S"
VOCABS = {"standard": STANDARD, "new": "W.GCAB@"}
STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0
DATA = "sokoban_levels.json"
SETS = {
    (6, 1, "standard"): "simple_6x6_1box",
    (6, 1, "new"): "newvocab_6x6_1box",
    (8, 2, "standard"): "larger_8x8_2box",
}
ALLOWED = "size 6 with 1 box (both vocabs), size 8 with 2 boxes (vocab standard)"
# The generator, tuned until its 6x6 levels with 1 box and its 8x8 levels with 2 boxes match the published ones in
# floor area, pushes, optimal moves and success of random play (tests/env/test_sokoban.py holds them to it).
FLOOR_SLOPE, FLOOR_OFFSET, FLOOR_SPREAD = 4.0, -5.6, 0.72  # floor cells by inner side: mean (linear), deviation
EXTRA_MOST, EXTRA_CHANCE = 4, 0.32  # pushes beyond one per box: binomial
# (backward moves at most, moves of the stroll at most) by number of boxes. A long walk lets the boxes end up far
# apart, which is what makes a level with two boxes hard.
WALKS = {1: (300, 8), 2: (50, 3)}
OTHER_WALK = (100, 3)
ROOMS = 100
# Positions that a plan may examine; a room with four boxes can hold millions.
PLAN_LIMIT = 200_000

State = tuple[int, tuple[int, ...]]  # player cell, sorted box cells


class Room:
    """One level: cells numbered in reading order on a board whose edge is wall."""

    def __init__(self, content: str):
        rows = content.split("/")
        self.size = len(rows)
        cells = "".join(rows)
        self.walls = frozenset(i for i, cell in enumerate(cells) if cell == "#")
        self.targets = frozenset(i for i, cell in enumerate(cells) if cell in "O√S")
        boxes = tuple(i for i, cell in enumerate(cells) if cell in "X√")
        player = next(i for i, cell in enumerate(cells) if cell in "PS")
        self.start: State = (player, boxes)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Change of the cell number by action."""
        return tuple(rows * self.size + columns for rows, columns in MOVES)

    def solved(self, boxes: tuple[int, ...]) -> bool:
        return self.targets.issuperset(boxes)

    def move(self, state: State, action: int) -> State:
        """The state after an action; the same state when a wall or a blocked box is in the way."""
        player, boxes = state
        step = self.steps[action]
        ahead = player + step
        if ahead in self.walls:
            return state
        if ahead in boxes:
            beyond = ahead + step
            if beyond in self.walls or beyond in boxes:
                return state
            boxes = tuple(sorted(beyond if box == ahead else box for box in boxes))
        return ahead, boxes

    def page(self, state: State, symbols: str) -> str:
        """The board as text: rows by newline, cells by one space."""
        wall, floor, target, box, player, box_on, player_on = tuple(symbols)
        cells = [wall if i in self.walls else floor for i in range(self.size * self.size)]
        for i in self.targets:
            cells[i] = target
        for i in state[1]:
            cells[i] = box_on if i in self.targets else box
        cells[state[0]] = player_on if state[0] in self.targets else player
        return "\n".join(" ".join(cells[row * self.size : (row + 1) * self.size]) for row in range(self.size))

    @cached_property
    def pushes(self) -> dict[int, int]:
        """Cell -> pushes that bring a lone box from there to the nearest target; dead cells are absent."""
        found = dict.fromkeys(self.targets, 0)
        queue = deque(self.targets)
        while queue:
            cell = queue.popleft()
            for step in self.steps:
                came_from, stood = cell - step, cell - 2 * step
                if came_from not in found and came_from not in self.walls and stood not in self.walls:
                    found[came_from] = found[cell] + 1
                    queue.append(came_from)
        return found

    def plan(self, state: State) -> list[State] | None:
        """The states of a shortest solution, ``state`` first; None when there is none or the limit is reached.

        A*: pushes still needed by the boxes, each alone in the room, never exceed the moves still needed.
        """
        if any(box not in self.pushes for box in state[1]):
            return None
        came: dict[State, State | None] = {state: None}
        moves = {state: 0}
        heap = [(sum(self.pushes[box] for box in state[1]), 0, state)]
        while heap and len(moves) < PLAN_LIMIT:
            _, minus_moves, now = heapq.heappop(heap)
            if moves[now] != -minus_moves:
                continue  # a shorter way was found after this entry
            if self.solved(now[1]):
                path: list[State] = []
                step: State | None = now
                while step is not None:
                    path.append(step)
                    step = came[step]
                return path[::-1]
            for action in range(4):
                after = self.move(now, action)
                cost = moves[now] + 1
                if cost < moves.get(after, cost + 1):
                    left = sum(self.pushes.get(box, PLAN_LIMIT) for box in after[1])
                    if left < PLAN_LIMIT:
                        moves[after], came[after] = cost, now
                        heapq.heappush(heap, (cost + left, -cost, after))
        return None


def carve(rng: Random, size: int, floors: int) -> set[int]:
    """A connected set of about ``floors`` inner cells: the track of a walker that likes to go straight."""
    inner = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    allowed, cell = set(inner), rng.choice(inner)
    floor, step = {cell}, rng.choice((1, -1, size, -size))
    while len(floor) < floors:
        if rng.random() < 0.4 or cell + step not in allowed:
            step = rng.choice((1, -1, size, -size))
        if cell + step in allowed:
            cell += step
            floor.add(cell)
            beside = cell + rng.choice((1, -1, size, -size))  # a second cell widens the corridor
            if beside in allowed and len(floor) < floors:
                floor.add(beside)
    return floor


def generate(rng: Random, size: int, boxes: int) -> str | None:
    """A random solvable level, or None when no room could be had in ROOMS draws.

    Boxes start on their targets and the player walks backwards, pulling a box where a coin says so, until the
    boxes are as far from home as this level wants; played forwards, the walk is a solution. The wanted distance
    and the floor area are drawn before the rooms, so that easy levels do not crowd out hard ones.
    """
    wanted = boxes + sum(rng.random() < EXTRA_CHANCE for _ in range(EXTRA_MOST))
    floors = round(rng.gauss(FLOOR_SLOPE * (size - 2) + FLOOR_OFFSET, FLOOR_SPREAD * (size - 2)))
    floors = min(max(floors, 2 * boxes + 2), (size - 2) ** 2)
    for _ in range(ROOMS):
        floor = carve(rng, size, floors)
        if len(floor) < 2 * boxes + 1:
            continue
        *targets, player = rng.sample(sorted(floor), boxes + 1)
        start = walk_backwards(rng, size, floor, targets, player, wanted)
        if start is not None:
            return _write(size, floor, targets, *start)
    return None


def walk_backwards(
    rng: Random, size: int, floor: set[int], targets: list[int], player: int, wanted: int
) -> tuple[int, list[int]] | None:
    """The player cell and box cells after a backward walk that took the boxes ``wanted`` cells from home."""
    steps = (1, -1, size, -size)
    moves, stroll = WALKS.get(len(targets), OTHER_WALK)
    boxes = list(targets)
    for _ in range(moves):
        bits = rng.getrandbits(3)  # direction and coin in one draw: this loop is the generator's whole cost
        step = steps[bits & 3]
        ahead = player + step
        if ahead not in floor or ahead in boxes:
            continue
        behind, player = player - step, ahead
        if bits > 3 and behind in boxes:
            boxes[boxes.index(behind)] = behind + step
            away = sum(_gap(size, box, target) for box, target in zip(boxes, targets, strict=True))
            if away >= wanted and not set(boxes) & set(targets):
                break
    else:
        return None
    for _ in range(rng.randrange(stroll + 1)):  # leave the box, or the first move would always be a push
        step = rng.choice(steps)
        if player + step in floor and player + step not in boxes:
            player += step
    return player, boxes


def _write(size: int, floor: set[int], targets: list[int], player: int, boxes: list[int]) -> str:
    page = ["_" if i in floor else "#" for i in range(size * size)]
    for target in targets:
        page[target] = "O"
    for box in boxes:
        page[box] = "X"
    page[player] = "S" if player in targets else "P"
    return "/".join("".join(page[row * size : (row + 1) * size]) for row in range(size))


def published_set(size: int, boxes: int, vocab: str, eval_levels: str) -> tuple[str, ...]:
    """The published evaluation levels in force, or (). Raises ConfigError when 'published' cannot be had."""
    setting = f"size {size} with boxes {boxes} and vocab {vocab}"
    return choose_set(eval_levels, DATA, SETS.get((size, boxes, vocab)), setting, ALLOWED)


@lru_cache(maxsize=8192)  # the members of a group start the same level
def level(
    size: int, boxes: int, vocab: str, eval_levels: str, seed: int, bounds: tuple[int | None, int | None] = (None, None)
) -> Room:
    """The room of a level seed. Source of the published levels: the RAGEN release (arXiv 2504.20073)."""
    content = published_level(seed, published_set(size, boxes, vocab, eval_levels))
    if content is None:

        def make(rng: Random) -> str | None:
            drawn = generate(rng, size, boxes)
            if drawn is None or bounds == (None, None):
                return drawn
            room = Room(drawn)
            plan = room.plan(room.start)
            return drawn if of_length(None if plan is None else len(plan) - 1, *bounds) else None

        stream = f"sokoban size {size} boxes {boxes}{length_stream(*bounds)}"
        content = draw_level(seed, stream, make, _published_contents())
    return Room(content)


@cache
def _published_contents() -> frozenset[str]:
    return frozenset(content for entry in published(DATA).values() for content in entry["levels"])


class Sokoban:
    """One episode at a time on the room of a level seed; nothing is left to chance."""

    def __init__(self, section: SokobanSection):
        self.section = section
        self.symbols = VOCABS[section.vocab]
        inner = (section.size - 2) ** 2
        if 2 * section.boxes + 2 > inner:
            most = (inner - 2) // 2
            fault = f"env.boxes: {section.boxes} do not fit size {section.size}; at most {most}, or a larger size."
            raise ConfigError("env", [fault])
        # an impossible wish for published levels fails here and not in the first evaluation
        published_set(section.size, section.boxes, section.vocab, section.eval_levels)
        self._room: Room | None = None
        self._state: State = (0, ())
        self._plans: dict[State, list[State] | None] = {}

    def level(self, seed: int) -> Room:
        section = self.section
        bounds = (section.min_moves, section.max_moves)
        return level(section.size, section.boxes, section.vocab, section.eval_levels, seed, bounds)

    def reset(self, seed: int, dynamics: int = 0) -> str:
        self._room = self.level(seed)
        self._state = self._room.start
        self._plans = {}
        return self._room.page(self._state, self.symbols)

    def step(self, action: str) -> StepResult:
        room = self._started()
        if room.solved(self._state[1]):
            raise EnvError("sokoban: step after the end of the episode; call reset first.")
        if action not in ACTIONS:
            raise EnvError(f"sokoban: unknown action {action!r}; allowed: {', '.join(ACTIONS)}.")
        before = len(room.targets.intersection(self._state[1]))
        self._state = room.move(self._state, ACTIONS.index(action))
        after = len(room.targets.intersection(self._state[1]))
        success = room.solved(self._state[1])
        reward = STEP_REWARD + BOX_REWARD * (after - before) + SOLVED_REWARD * success
        return StepResult(room.page(self._state, self.symbols), reward, success, success)

    def actions(self) -> tuple[str, ...]:
        return ACTIONS

    def rules(self) -> str:
        wall, floor, target, box, player, box_on, player_on = tuple(self.symbols)
        return (
            "You push boxes in a room. The map shows one symbol per cell, with a space between cells: "
            f"{wall} is a wall, {floor} is floor, {target} is a target, {box} is a box, {player} is you, "
            f"{box_on} is a box on a target, {player_on} is you on a target. "
            "Push every box onto a target. You push a box by walking into it; you cannot pull, and you cannot push "
            "a box into a wall or another box. Your actions are Up, Down, Left and Right. "
            "Each action costs 0.1, a box pushed onto a target pays 1, a box pushed off a target costs 1, "
            "and solving the puzzle pays 10."
        )

    def demonstrate(self) -> Demonstration:
        """A shortest solution from here.

        Facts: ``box`` (direction from the player to the nearest box that is off target), ``target`` (direction
        from that box to the target it ends on in the solution, or to the nearest free one), ``move`` (next action).
        Where no solution exists or none is found within the search limit: no actions and no ``move``.
        After the end: no actions, no facts.
        """
        room = self._started()
        if room.solved(self._state[1]):
            return Demonstration(())
        if self._state not in self._plans:
            found = room.plan(self._state)
            self._plans[self._state] = found
            for i, state in enumerate(found or ()):  # the rest of a shortest way is a shortest way
                self._plans[state] = found[i:] if found else None
        plan = self._plans[self._state]
        player, boxes = self._state
        box = min((b for b in boxes if b not in room.targets), key=lambda b: (_gap(room.size, player, b), b))
        target = min(room.targets.difference(boxes), key=lambda t: (_gap(room.size, box, t), t))
        actions: list[str] = []
        if plan is not None:
            end = box
            for now, after in pairwise(plan):
                actions.append(ACTIONS[room.steps.index(after[0] - now[0])])
                if after[0] == end:  # the player stands where the box was: it was pushed one further
                    end += after[0] - now[0]
            target = end
        facts = {"box": _direction(room.size, player, box), "target": _direction(room.size, box, target)}
        if actions:
            facts["move"] = actions[0].lower()
        return Demonstration(tuple(actions), facts)

    def scene(self) -> Scene:
        """Where player, boxes, targets and walls are; a text may say 'it' for the box."""
        room = self._started()

        def cells(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
            return tuple((index // room.size + 1, index % room.size + 1) for index in sorted(indices))

        player, boxes = self._state
        things = {
            "player": cells([player]),
            "box": cells(boxes),
            "target": cells(room.targets),
            "wall": cells(room.walls),
        }
        words = {"crate": "box", "it": "box", "goal": "target", "storage": "target"}
        return Scene(room.size, room.size, things, ("wall",), ("target", "box"), words)

    def _started(self) -> Room:
        if self._room is None:
            raise EnvError("sokoban: no episode yet; call reset first.")
        return self._room


def _gap(size: int, a: int, b: int) -> int:
    return abs(a // size - b // size) + abs(a % size - b % size)


def _direction(size: int, origin: int, goal: int) -> str:
    return direction_words(goal // size - origin // size, goal % size - origin % size)
