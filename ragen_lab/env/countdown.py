"""Countdown: make the target out of the numbers with + - * / and parentheses, each number used at most once.

The action is an equation in free text; one answer ends the episode. Correct 1, only numbers of the level (each at most
once) but another value 0.1, anything else 0 (the later RAGEN's reward).
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import lru_cache
from random import Random

from ragen_lab.env.arithmetic import Equation, read_equation
from ragen_lab.env.base import Demonstration, StepResult
from ragen_lab.env.levels import draw_level
from ragen_lab.errors import EnvError
from ragen_lab.sections import CountdownSection

CORRECT, NUMBERS_ONLY = 1.0, 0.1
SIGNS = "+-*/"
SAMPLE = 64  # random equations that actions() gives as examples

Term = tuple[Fraction, str, bool]  # value, its text, whether it is a sum or difference or product (needs parentheses)


def combine(a: Term, b: Term, sign: str) -> Term | None:
    """``a sign b`` as one term; None for a division by zero."""
    if sign == "/" and b[0] == 0:
        return None
    value = {"+": a[0] + b[0], "-": a[0] - b[0], "*": a[0] * b[0]}.get(sign)
    if value is None:
        value = a[0] / b[0]
    left, right = (f"( {term[1]} )" if term[2] else term[1] for term in (a, b))
    return value, f"{left} {sign} {right}", True


def random_equation(rng: Random, numbers: tuple[int, ...]) -> Term | None:
    """All numbers in a random order, joined pair by pair with random signs; None for a division by zero."""
    terms: list[Term] = [(Fraction(number), str(number), False) for number in numbers]
    while len(terms) > 1:
        first, second = rng.sample(range(len(terms)), 2)
        joined = combine(terms[first], terms[second], rng.choice(SIGNS))
        if joined is None:
            return None
        terms = [term for i, term in enumerate(terms) if i not in (first, second)] + [joined]
    return terms[0]


@lru_cache(maxsize=4096)
def solve(numbers: tuple[int, ...], target: int) -> str | None:
    """An equation with the value ``target``, by exhaustive search over pairs; None when there is none.

    Fewer numbers are tried first, in that a term may answer before all are used up.
    """
    start: tuple[Term, ...] = tuple((Fraction(number), str(number), False) for number in numbers)
    seen: set[tuple[Fraction, ...]] = set()
    stack = [start]
    while stack:
        terms = stack.pop()
        for term in terms:
            if term[0] == target:
                return term[1]
        key = tuple(sorted(term[0] for term in terms))
        if key in seen or len(terms) == 1:
            continue
        seen.add(key)
        for i, first in enumerate(terms):
            for j, second in enumerate(terms):
                if i == j:
                    continue
                rest = tuple(term for k, term in enumerate(terms) if k not in (i, j))
                for sign in SIGNS if i < j else "-/":  # + and * do not mind the order
                    joined = combine(first, second, sign)
                    if joined is not None:
                        stack.append((*rest, joined))
    return None


def generate(rng: Random, count: int, largest: int) -> str | None:
    """``numbers:target`` with a solution that uses all of them, or None when the drawn equation has no fit value."""
    numbers = tuple(rng.randint(1, largest) for _ in range(count))
    found = random_equation(rng, numbers)
    if found is None or found[0].denominator != 1 or not 1 <= found[0] <= largest or found[0] in numbers:
        return None
    return f"{','.join(str(number) for number in numbers)}:{found[0]}"


@lru_cache(maxsize=8192)  # the members of a group start the same level
def level(count: int, largest: int, seed: int) -> tuple[tuple[int, ...], int]:
    """The numbers and the target of a level seed."""

    def make(rng: Random) -> str | None:
        content = generate(rng, count, largest)
        if content is None:
            return None
        numbers, _, target = content.partition(":")  # sides are decided by what the level is, not by its order
        return f"{','.join(sorted(numbers.split(','), key=int))}:{target}"

    content = draw_level(seed, f"countdown numbers {count} largest {largest}", make, frozenset())
    numbers, _, target = content.partition(":")
    shuffled = [int(number) for number in numbers.split(",")]
    Random(f"countdown order {seed}").shuffle(shuffled)
    return tuple(shuffled), int(target)


class Countdown:
    """One answer, then the episode ends. Nothing is left to chance."""

    def __init__(self, section: CountdownSection):
        self.section = section
        self._numbers: tuple[int, ...] = ()
        self._target = 0
        self._examples: tuple[str, ...] = ()
        self._done = True

    def level(self, seed: int) -> tuple[tuple[int, ...], int]:
        return level(self.section.numbers, self.section.largest, seed)

    def reset(self, seed: int, dynamics: int = 0) -> str:
        self._numbers, self._target = self.level(seed)
        self._done = False
        self._examples = ()
        return f"Numbers : {' '.join(map(str, self._numbers))}\nTarget : {self._target}"

    def step(self, action: str) -> StepResult:
        self._started()
        if self._done:
            raise EnvError("countdown: step after the end of the episode; call reset first.")
        equation = read_equation(action)
        if equation is None:
            raise EnvError(f"countdown: {action[:80]!r} is no equation of whole numbers, + - * / and parentheses.")
        self._done = True
        reward = self.score(equation)
        shown = "nothing" if equation.value is None else str(equation.value)
        return StepResult(f"{equation.text} makes {shown}", reward, True, reward == CORRECT)

    def score(self, equation: Equation) -> float:
        """1 correct, 0.1 for numbers of the level only (each at most once), else 0."""
        if Counter(equation.numbers) - Counter(self._numbers):
            return 0.0
        return CORRECT if equation.value == self._target else NUMBERS_ONLY

    def parse(self, text: str) -> str | None:
        """The equation as it is executed, or None for a text that is none."""
        equation = read_equation(text)
        return None if equation is None else equation.text

    def actions(self) -> tuple[str, ...]:
        """Random equations over all numbers: what random play draws from. Any other equation is valid too."""
        self._started()
        if not self._examples:
            rng = Random(f"countdown actions {self._numbers} {self._target}")
            found = dict.fromkeys(t[1] for t in (random_equation(rng, self._numbers) for _ in range(SAMPLE)) if t)
            self._examples = tuple(found)
        return self._examples

    def rules(self) -> str:
        return (
            "You are given some numbers and a target. Write one equation that makes the target: use each number at "
            "most once, with +, -, *, / and parentheses. Your action is the equation, for example ( 3 + 4 ) * 5. "
            "You answer once. A correct equation pays 1, an equation that uses only the given numbers but has "
            "another value pays 0.1, anything else pays 0."
        )

    def demonstrate(self) -> Demonstration:
        """A solution found by search. Facts: ``target``, ``plan`` (the equation). After the end: nothing."""
        self._started()
        found = None if self._done else solve(self._numbers, self._target)
        if found is None:
            return Demonstration(())
        return Demonstration((found,), {"target": str(self._target), "plan": found})

    def _started(self) -> None:
        if not self._numbers:
            raise EnvError("countdown: no episode yet; call reset first.")
