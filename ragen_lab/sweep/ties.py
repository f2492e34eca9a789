"""Ties and constraints: safe arithmetic, and comparisons, over dotted config paths.

The text is parsed by Python's own parser and walked node by node. A tie knows numbers, paths, ``+ - * // / % **``,
``min`` and ``max``; a constraint also knows comparisons, words, lists, ``and``, ``or`` and ``not``. Nothing is ever
evaluated as code.
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
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
_WORDS = {"true": True, "false": False, "null": None}  # as YAML writes them
_CONDITION = (
    "Allowed: comparisons (== != < <= > >=, in [...], not in [...]) of arithmetic over knobs, of 'words' in quotes, "
    "true, false and null, joined by and, or, not; for example rollout.prompts * rollout.responses == 128"
)


class TieError(ValueError):
    """A tie or a constraint that cannot be read or computed; the message is one sentence."""


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


def parse_condition(text: str) -> ast.expr:
    """The comparison, checked to hold nothing else. Raises TieError."""
    try:
        condition = ast.parse(text.strip(), mode="eval").body
        _check_condition(condition)
    except (SyntaxError, ValueError, RecursionError) as error:
        if isinstance(error, TieError):
            raise
        raise TieError(f"{text!r} is not a comparison. {_CONDITION}.") from None
    return condition


def _check_condition(node: ast.expr) -> None:
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                _check_condition(part)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _check_condition(operand)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
            if not _is_word(left):
                _check(left)
            for op, other in zip(ops, others, strict=True):
                if isinstance(op, (ast.In, ast.NotIn)):
                    _check_list(other)
                elif not _is_word(other):
                    _check(other)
        case _:
            raise TieError(f"{ast.unparse(node)!r} is not a comparison. {_CONDITION}.")


def _check_list(node: ast.expr) -> None:
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items) if items:
            for item in items:
                if not _is_word(item):
                    _check(item)
        case _:
            raise TieError(f"{ast.unparse(node)!r} is not a list of values. {_CONDITION}.")


def _is_word(node: ast.expr) -> bool:
    """A text in quotes, or true, false, null (also as Python writes them)."""
    match node:
        case ast.Constant(value=str() | bool() | None):
            return True
        case ast.Name(id=name):
            return name in _WORDS
    return False


def paths(node: ast.expr) -> set[str]:
    """The dotted paths that an expression or a condition reads."""
    match node:
        case ast.Name(id=name) if name in _WORDS:
            return set()
        case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
            return set().union(*(paths(part) for part in parts))
        case ast.Compare(left=left, comparators=others):
            return paths(left).union(*(paths(other) for other in others))
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
        raise TieError(f"{path!r} is not a knob of this run.")
    value = values[path]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TieError(f"{path} is {value!r}, not a number.")
    return value


def holds(node: ast.expr, values: Mapping[str, Any]) -> bool:
    """Whether a parsed condition is true of the values. Raises TieError where it cannot be judged."""
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(holds(part, values) for part in parts)
        case ast.BoolOp(values=parts):
            return any(holds(part, values) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not holds(operand, values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [left, *others]
            return all(
                _compare(op, first, second, values)
                for op, first, second in zip(ops, sides[:-1], sides[1:], strict=True)
            )
    raise TieError(f"{ast.unparse(node)!r} is not a comparison. {_CONDITION}.")


def _compare(op: ast.cmpop, left: ast.expr, right: ast.expr, values: Mapping[str, Any]) -> bool:
    first = _operand(left, values)
    if isinstance(op, (ast.In, ast.NotIn)):
        items: list[ast.expr] = getattr(right, "elts", [])
        found = any(_equal(first, _operand(item, values)) for item in items)
        return found == isinstance(op, ast.In)
    second = _operand(right, values)
    if isinstance(op, (ast.Eq, ast.NotEq)):
        return _equal(first, second) == isinstance(op, ast.Eq)
    for node, value in ((left, first), (right, second)):
        if not _is_number(value):
            raise TieError(f"{ast.unparse(node)} is {value!r}, which has no order; compare it with == or !=.")
    if _equal(first, second):
        return isinstance(op, (ast.LtE, ast.GtE))
    return bool(first < second) == isinstance(op, (ast.Lt, ast.LtE))


def _operand(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """A word as it is, a path's own value, else the number that the arithmetic gives."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, (ast.Name, ast.Attribute)):
        if (path := path_of(node)) not in values:
            raise TieError(f"{path!r} is not a knob of this run.")
        return values[path]
    return compute(node, values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _equal(first: Any, second: Any) -> bool:
    """Equality as a reader means it: 0.1 * 3 is 0.3, and true is not 1."""
    if _is_number(first) and _is_number(second):
        return math.isclose(first, second, rel_tol=1e-9)
    return type(first) is type(second) and bool(first == second)
