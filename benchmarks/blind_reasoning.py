"""What the luckiest constant statement earns under ``reward.reasoning: grounded`` (docs/environments.md).

Every statement that the grammar can make of a board (ways, next tiles, cells, with their denials) is held against
states that its base rates were not counted on. Run: ``python benchmarks/blind_reasoning.py``.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ragen_lab.env.base_rates import KINDS, SCENES, base_rates, scene
from ragen_lab.env.grounding import NEIGHBOURS, Scene, Statement, Verdict, score, truth
from ragen_lab.sections import FrozenLakeSection, SokobanSection

STATES = 600
SECTIONS: dict[str, Any] = {
    "FrozenLake 4x4": FrozenLakeSection(slip=0.0),
    "FrozenLake 6x6": FrozenLakeSection(slip=0.0, size=6),
    "Sokoban": SokobanSection(),
    "LargeSokoban": SokobanSection(size=8, boxes=2),
}


def constant_statements(board: Scene) -> list[Statement]:
    """Every statement about a board of this kind."""
    nouns = list(board.things)
    pairs = [(noun, origin) for noun, origin in product(nouns, nouns) if noun != origin]
    ways = [way for way in product((-1, 0, 1), repeat=2) if way != (0, 0)]
    cells = list(product(range(1, board.rows + 1), range(1, board.columns + 1)))
    found = [Statement("way", *pair, way, holds) for pair in pairs for way in ways for holds in (True, False)]
    found += [
        Statement("tile", noun, origin, way, holds)
        for noun, origin in pairs
        if noun in board.obstacles
        for way in NEIGHBOURS.values()
        for holds in (True, False)
    ]
    return found + [
        Statement("cell", noun, "", cell, holds) for noun in nouns for cell in cells for holds in (True, False)
    ]


def luckiest(section: Any, kind: str) -> tuple[float, Statement]:
    """The highest mean score of a constant statement on states of one kind, and the statement."""
    rates = base_rates(section)
    boards = [scene(section, kind, SCENES + number) for number in range(STATES)]

    def mean(statement: Statement) -> float:
        return sum(score(Verdict(((statement, truth(statement, board)),)), rates) for board in boards) / STATES

    return max(((mean(s), s) for s in constant_statements(boards[0])), key=lambda pair: pair[0])


if __name__ == "__main__":
    for name, section in SECTIONS.items():
        for kind in KINDS:
            value, statement = luckiest(section, kind)
            print(f"{name}, {kind}: {value:.3f} {statement}", flush=True)
