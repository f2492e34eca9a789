"""Arithmetic that a policy wrote, read safely: + - * / and parentheses over whole numbers, exact rationals.

A recursive-descent parser of its own: nothing is ever handed to ``eval``, there are no names, no powers and no
negative signs, and length and depth are bounded, so that no text can be slow, large or deep.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST, DEEPEST, DIGITS = 200, 20, 6  # characters of an equation, nested parentheses, digits of a number
_TOKEN = re.compile(r"\s*(?:(\d+)|([-+*/()=]))", re.ASCII)
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})


@dataclass(frozen=True)
class Equation:
    """``value`` of the left side (None: a division by zero), its ``numbers`` in order, and its plain ``text``."""

    value: Fraction | None
    numbers: tuple[int, ...]
    text: str


def read_equation(text: str) -> Equation | None:
    """``3 * (4 + 5)``, or the same with ``= number`` behind it (which is not believed). None for anything else."""
    if len(text) > LONGEST:
        return None
    tokens = _tokens(text.translate(_SIGNS))
    if tokens is None:
        return None
    if "=" in tokens:
        at = tokens.index("=")
        if len(tokens) != at + 2 or not tokens[at + 1].isdigit():
            return None
        tokens = tokens[:at]
    reader = _Reader(tokens)
    found = reader.sum(0)
    if found is None or reader.at != len(tokens):
        return None
    value = None if reader.by_zero else found
    return Equation(value, tuple(int(token) for token in tokens if token.isdigit()), " ".join(tokens))


def _tokens(text: str) -> list[str] | None:
    tokens, at, end = list[str](), 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or (match[1] and len(match[1]) > DIGITS):
            return None
        tokens.append(match[1] or match[2])
        at = match.end()
    return tokens


class _Reader:
    """sum = product {(+|-) product}; product = atom {(*|/) atom}; atom = number | ( sum ). None: not of this form."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0
        self.by_zero = False

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def sum(self, depth: int) -> Fraction | None:
        total = self.product(depth)
        while total is not None and (sign := self._next()) in ("+", "-"):
            self.at += 1
            other = self.product(depth)
            total = None if other is None else total + other if sign == "+" else total - other
        return total

    def product(self, depth: int) -> Fraction | None:
        total = self.atom(depth)
        while total is not None and (sign := self._next()) in ("*", "/"):
            self.at += 1
            other = self.atom(depth)
            if other is None:
                return None
            if sign == "/" and other == 0:
                self.by_zero, other = True, Fraction(1)  # the form is fine; the value is not there
            total = total * other if sign == "*" else total / other
        return total

    def atom(self, depth: int) -> Fraction | None:
        token = self._next()
        self.at += 1
        if token.isdigit():
            return Fraction(int(token))
        if token != "(" or depth == DEEPEST:
            return None
        inside = self.sum(depth + 1)
        if inside is None or self._next() != ")":
            return None
        self.at += 1
        return inside
