"""Ties: values of a page that follow from others, as safe arithmetic over dotted config paths.

The expression is parsed by Python's own parser and walked node by node: numbers, paths, ``+ - * // / % **``,
``min`` and ``max`` are all there is. Nothing is ever evaluated as code.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

Number = int | float

_OPERATORS: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Div: ("/", operator.truediv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
}
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max}
_ALLOWED = "Allowed: numbers, dotted paths of knobs, + - * // / % **, min(...), max(...) and parentheses"
_BIGGEST_POWER = 64


class TieError(ValueError):
    """A tie that cannot be read or computed; the message is one sentence."""


def parse(text: str) -> ast.expr:
    """The expression, checked to hold nothing but arithmetic. Raises TieError."""
    try:
        expression = ast.parse(text.strip(), mode="eval").body
        _check(expression)
    except (SyntaxError, ValueError, RecursionError) as error:
        if isinstance(error, TieError):
            raise
        raise TieError(f"{text!r} is not arithmetic. {_ALLOWED}.") from None
    return expression


def _check(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=bool()):
            raise TieError(f"{ast.unparse(node)} is not a number. {_ALLOWED}.")
        case ast.Constant(value=int() | float()):
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _check(left)
            _check(right)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            _check(operand)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and args:
            for arg in args:
                _check(arg)
        case ast.Name() | ast.Attribute():
            path_of(node)
        case _:
            raise TieError(f"{ast.unparse(node)!r} is not allowed in a tie. {_ALLOWED}.")


def path_of(node: ast.expr) -> str:
    """``rollout.responses`` from its nodes. Raises TieError for any other use of a dot."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{path_of(value)}.{name}"
    raise TieError(f"{ast.unparse(node)!r} is not a dotted path. {_ALLOWED}.")


def paths(node: ast.expr) -> set[str]:
    """The dotted paths that an expression reads."""
    match node:
        case ast.Name() | ast.Attribute():
            return {path_of(node)}
        case ast.BinOp(left=left, right=right):
            return paths(left) | paths(right)
        case ast.UnaryOp(operand=operand):
            return paths(operand)
        case ast.Call(args=args):
            return set().union(*(paths(arg) for arg in args))
    return set()


def compute(node: ast.expr, values: Mapping[str, Any]) -> Number:
    """The value of a parsed expression. Raises TieError: an unknown path, no number, no finite result."""
    try:
        result: Number = _compute(node, values)
    except ZeroDivisionError:
        raise TieError(f"{ast.unparse(node)!r} divides by zero.") from None
    except OverflowError:
        raise TieError(f"{ast.unparse(node)!r} is too large.") from None
    if isinstance(result, complex) or not math.isfinite(result):
        raise TieError(f"{ast.unparse(node)!r} gives {result}, which is no finite number.")
    return result


def _compute(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            first, second = _compute(left, values), _compute(right, values)
            if isinstance(op, ast.Pow) and abs(second) > _BIGGEST_POWER:  # 9 ** 9 ** 9 would hang
                raise OverflowError
            return _OPERATORS[type(op)][1](first, second)
        case ast.UnaryOp(op=op, operand=operand):
            value = _compute(operand, values)
            return -value if isinstance(op, ast.USub) else value
        case ast.Call(func=ast.Name(id=name), args=args):
            return _CALLS[name](*(_compute(arg, values) for arg in args))
    path = path_of(node)
    if path not in values:
        raise TieError(f"{path!r} is not a knob.")
    value = values[path]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TieError(f"{path} is {value!r}, not a number.")
    return value
