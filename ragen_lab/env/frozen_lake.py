"""FrozenLake: cross a slippery lake to the goal; a hole ends the episode.

Symbols: ``P`` player, ``_`` frozen, ``O`` hole, ``G`` goal, ``X`` player in a hole, ``√`` player on the goal.
Cells of a row are separated by one space, so that every cell is one token.
"""

from __future__ import annotations

from collections import deque
from functools import cache, cached_property, lru_cache
from random import Random

import numpy as np
from numpy.typing import NDArray

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
from ragen_lab.errors import EnvError
from ragen_lab.sections import FrozenLakeSection

ACTIONS = ("Left", "Down", "Right", "Up")  # neighbours in this circle are perpendicular
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
DATA = "frozen_lake_levels.json"
SETS = {(4, 0.8): "4x4_frozen_0.8", (4, 0.9): "4x4_frozen_0.9"}
# A little impatience makes the slippery planner prefer the faster of two equally safe ways.
PLAN_DISCOUNT = 0.99

Bounds = tuple[int | None, int | None]  # moves of the shortest way: at least, at most


class Lake:
    """One map: cells numbered in reading order, and where each action means to go from each cell."""

    def __init__(self, content: str):
        rows = content.split("/")
        self.size = len(rows)
        self.cells = "".join(rows)
        self.start = self.cells.index("P")
        self.goal = self.cells.index("G")
        self.holes = frozenset(i for i, cell in enumerate(self.cells) if cell == "O")

    @cached_property
    def next_cell(self) -> tuple[tuple[int, ...], ...]:
        """[action][cell] -> the cell that the intended move reaches; a move into the edge stays."""
        table = []
        for rows, columns in MOVES:
            reached = []
            for cell in range(self.size * self.size):
                row, column = divmod(cell, self.size)
                row, column = row + rows, column + columns
                inside = 0 <= row < self.size and 0 <= column < self.size
                reached.append(row * self.size + column if inside else cell)
            table.append(tuple(reached))
        return tuple(table)

    @cached_property
    def distance(self) -> dict[int, int]:
        """Cell -> moves of the shortest way to the goal around the holes, where there is one."""
        found = {self.goal: 0}
        queue = deque([self.goal])
        while queue:
            cell = queue.popleft()
            for reached in self.next_cell:  # moves are symmetric: predecessors are neighbours
                if reached[cell] not in found and reached[cell] not in self.holes:
                    found[reached[cell]] = found[cell] + 1
                    queue.append(reached[cell])
        return found

    def shortest_policy(self) -> dict[int, int]:
        """Cell -> the first action (in the order of ACTIONS) on a shortest way to the goal."""
        policy = {}
        for cell, steps in self.distance.items():
            if steps:
                choices = (a for a in range(4) if self.distance.get(self.next_cell[a][cell]) == steps - 1)
                policy[cell] = next(choices)
        return policy

    def slippery_policy(self, slip: float) -> dict[int, int]:
        """Cell -> the action of the optimal policy without a time limit (policy iteration)."""
        count = self.size * self.size
        ends = np.array([cell == self.goal or cell in self.holes for cell in range(count)])
        moves = np.zeros((4, count, count))
        cells = np.arange(count)
        for action in range(4):
            for offset, chance in ((0, 1 - 2 * slip), (1, slip), (-1, slip)):
                np.add.at(moves[action], (cells, np.array(self.next_cell[(action + offset) % 4])), chance)
        moves[:, ends] = 0.0
        prize = (cells == self.goal).astype(float)
        policy = np.zeros(count, dtype=int)
        shortest = self.shortest_policy()
        for cell, action in shortest.items():
            policy[cell] = action
        while True:
            value = np.linalg.solve(np.eye(count) - PLAN_DISCOUNT * moves[policy, cells], prize)
            gain: NDArray[np.float64] = moves @ value
            better = gain.max(axis=0) > gain[policy, cells] + 1e-12
            if not better.any():  # every round strictly improves, and policies are finitely many
                return {cell: int(policy[cell]) for cell in shortest}
            policy = np.where(better, gain.argmax(axis=0), policy)


def generate(rng: Random, size: int, frozen: float) -> str | None:
    """A random map, or None when no way leads from its start to its goal."""
    tiles = ["_" if rng.random() < frozen else "O" for _ in range(size * size)]
    start, goal = rng.sample(range(size * size), 2)
    tiles[start], tiles[goal] = "P", "G"
    content = "/".join("".join(tiles[row * size : (row + 1) * size]) for row in range(size))
    return content if start in Lake(content).distance else None


def published_set(size: int, frozen: float, eval_levels: str) -> tuple[str, ...]:
    """The published evaluation maps in force, or (). Raises ConfigError when 'published' cannot be had."""
    setting, allowed = f"size {size} with frozen {frozen}", "size 4 with frozen 0.8 or 0.9"
    return choose_set(eval_levels, DATA, SETS.get((size, frozen)), setting, allowed)


@lru_cache(maxsize=8192)  # the members of a group start the same level
def level(size: int, frozen: float, eval_levels: str, seed: int, bounds: Bounds = (None, None)) -> Lake:
    """The map of a level seed. Source of the published maps: the RAGEN release (arXiv 2504.20073)."""
    content = published_level(seed, published_set(size, frozen, eval_levels))
    if content is None:

        def make(rng: Random) -> str | None:
            drawn = generate(rng, size, frozen)
            if drawn is None or bounds == (None, None):
                return drawn
            lake = Lake(drawn)
            return drawn if of_length(lake.distance[lake.start], *bounds) else None

        stream = f"frozen_lake size {size} frozen {frozen!r}{length_stream(*bounds)}"
        content = draw_level(seed, stream, make, _published_contents())
    return Lake(content)


@cache
def _published_contents() -> frozenset[str]:
    return frozenset(content for entry in published(DATA).values() for content in entry["levels"])


class FrozenLake:
    """One episode at a time on the map of a level seed; the dynamics seed decides the slips."""

    def __init__(self, section: FrozenLakeSection):
        self.section = section
        published_set(section.size, section.frozen, section.eval_levels)  # an impossible wish fails at once
        self._lake: Lake | None = None
        self._cell = 0
        self._chance = Random(0)
        self._policy: dict[int, int] | None = None

    def level(self, seed: int) -> Lake:
        section = self.section
        bounds = (section.min_moves, section.max_moves)
        return level(section.size, section.frozen, section.eval_levels, seed, bounds)

    def reset(self, seed: int, dynamics: int = 0) -> str:
        self._lake = self.level(seed)
        self._cell = self._lake.start
        self._chance = Random(f"frozen_lake dynamics {seed} {dynamics}")
        self._policy = None
        return self._page(self._lake)

    def step(self, action: str) -> StepResult:
        lake = self._started()
        if self._cell == lake.goal or self._cell in lake.holes:
            raise EnvError("frozen_lake: step after the end of the episode; call reset first.")
        if action not in ACTIONS:
            raise EnvError(f"frozen_lake: unknown action {action!r}; allowed: {', '.join(ACTIONS)}.")
        draw, slip = self._chance.random(), self.section.slip  # one draw per step, slippery or not
        offset = 1 if draw < slip else -1 if draw < 2 * slip else 0
        self._cell = lake.next_cell[(ACTIONS.index(action) + offset) % 4][self._cell]
        success = self._cell == lake.goal
        return StepResult(self._page(lake), float(success), success or self._cell in lake.holes, success)

    def actions(self) -> tuple[str, ...]:
        return ACTIONS

    def rules(self) -> str:
        seen = (
            "You see the places of the player, the goal and the holes; rows are counted from the top and columns "
            "from the left, from 1. "
            if self.section.view == "coordinates"
            else "The map shows one symbol per tile, with a space between tiles: "
            "P is you, _ is safe ice, O is a hole, G is the goal, X is you in a hole, √ is you on the goal. "
        )
        text = (
            f"You walk over a frozen lake. {seen}"
            "Reach the goal without falling into a hole; a hole ends the game. "
            "Your actions are Left, Down, Right and Up; a move off the map leaves you where you are. "
        )
        if self.section.slip == 0:
            return text + "You always move where you intend. Reaching the goal pays 1, anything else pays 0."
        return text + (
            f"The ice is slippery: with probability {self.section.slip:.3g} each you slide to the left or to the "
            "right of the direction you chose instead. Reaching the goal pays 1, anything else pays 0."
        )

    def demonstrate(self) -> Demonstration:
        """Without slip a shortest way around the holes; with slip the optimal policy's way if no slide happened.

        The slippery way stops where it would walk in a circle: the policy then waits for a slide.
        Facts: ``goal`` (direction in words), ``move`` (next action), ``steps`` (moves of the shortest way).
        After the end: no actions, no facts.
        """
        lake = self._started()
        if self._cell == lake.goal or self._cell in lake.holes:
            return Demonstration(())
        if self._policy is None:
            slip = self.section.slip
            self._policy = lake.slippery_policy(slip) if slip else lake.shortest_policy()
        cell, seen, plan = self._cell, set[int](), list[str]()
        while cell in self._policy and cell not in seen:
            seen.add(cell)
            plan.append(ACTIONS[self._policy[cell]])
            cell = lake.next_cell[self._policy[cell]][cell]
        (row, column), (goal_row, goal_column) = divmod(self._cell, lake.size), divmod(lake.goal, lake.size)
        facts = {
            "goal": direction_words(goal_row - row, goal_column - column),
            "move": plan[0].lower(),
            "steps": str(lake.distance[self._cell]),
        }
        return Demonstration(tuple(plan), facts)

    def scene(self) -> Scene:
        """Where player, goal and holes are; a reasoning text may call the goal a target."""
        lake = self._started()

        def cell(index: int) -> tuple[int, int]:
            return index // lake.size + 1, index % lake.size + 1

        things = {
            "player": (cell(self._cell),),
            "goal": (cell(lake.goal),),
            "hole": tuple(cell(hole) for hole in sorted(lake.holes)),
        }
        words = {"target": "goal", "destination": "goal"}
        return Scene(lake.size, lake.size, things, ("hole",), ("goal", "player"), words)

    def _started(self) -> Lake:
        if self._lake is None:
            raise EnvError("frozen_lake: no episode yet; call reset first.")
        return self._lake

    def _page(self, lake: Lake) -> str:
        if self.section.view == "coordinates":
            return self._coordinates(lake)
        cells = list(lake.cells.replace("P", "_"))
        cells[self._cell] = {"O": "X", "G": "√"}.get(cells[self._cell], "P")
        return "\n".join(" ".join(cells[row * lake.size : (row + 1) * lake.size]) for row in range(lake.size))

    def _coordinates(self, lake: Lake) -> str:
        """The same in words: the size, then who is where, rows from the top and columns from the left, from 1."""

        def place(cell: int) -> str:
            return f"row {cell // lake.size + 1} column {cell % lake.size + 1}"

        holes = " , ".join(place(hole) for hole in sorted(lake.holes)) or "none"
        end = " in a hole" if self._cell in lake.holes else " on the goal" if self._cell == lake.goal else ""
        lines = (f"size {lake.size}", f"player {place(self._cell)}{end}", f"goal {place(lake.goal)}", f"holes {holes}")
        return "\n".join(lines)
