"""Ties are arithmetic and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_lab.sweep import ties

VALUES = {"rollout.responses": 16, "a.b": 3, "optim.lr": 0.5, "algo.name": "ppo", "prompt.think": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("128 // rollout.responses", 8),
        ("rollout.responses * a.b - 1", 47),
        ("2 * optim.lr", 1.0),
        ("min(rollout.responses, 4, a.b)", 3),
        ("max(rollout.responses, 4)", 16),
        ("-a.b + +a.b", 0),
        ("(1 + 2) * 3 ** 2 % 5", 2),  # 3 * 9 = 27, 27 % 5 = 2
        ("7 / 2", 3.5),
    ],
)
def test_worked_values(text: str, value: float) -> None:
    result = ties.compute(ties.parse(text), VALUES)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "open('x')",
        "a.b.__class__()",
        "a.b if 1 else 2",
        "[1, 2]",
        "'text'",
        "True",
        "lambda: 1",
        "a.b == 1",
        "min()",
        "min(a.b, key=1)",
        "min(*[1])",
        "a[0]",
        "(1).real",
        "1 +",
        "",
        "x := 1",
        "1j",
        "a & b",
        "foo(1)",
        "foo(a.b)",
        "a.b(1)",
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ties.TieError):
        ties.compute(ties.parse(text), VALUES)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("1 // (a.b - 3)", "divides by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("1e300 * 1e300", "no finite number"),
        ("(0 - 8) ** 0.5", "no finite number"),
        ("nothing.here", "not a knob"),
        ("algo.name + 1", "not a number"),
        ("prompt.think + 1", "not a number"),
    ],
)
def test_what_cannot_be_computed_says_why(text: str, word: str) -> None:
    with pytest.raises(ties.TieError, match=word):
        ties.compute(ties.parse(text), VALUES)


def test_paths_that_are_read() -> None:
    assert ties.paths(ties.parse("128 // rollout.responses + min(a.b, -c)")) == {"rollout.responses", "a.b", "c"}


NUMBERS = st.integers(-50, 50).map(lambda value: f"({value})")
EXPRESSIONS = st.recursive(
    NUMBERS | st.sampled_from(["x.a", "x.b"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "/"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        inner.map(lambda t: f"(-{t})"),
    ),
    max_leaves=12,
)


@given(EXPRESSIONS, st.integers(-9, 9), st.integers(-9, 9))
def test_agrees_with_python(text: str, a: int, b: int) -> None:
    """Property: whatever Python computes for such an expression, a tie computes too, and the reverse."""
    plain = text.replace("x.a", f"({a})").replace("x.b", f"({b})")
    try:
        expected = eval(plain, {"min": min, "max": max})
    except ZeroDivisionError:
        with pytest.raises(ties.TieError, match="zero"):
            ties.compute(ties.parse(text), {"x.a": a, "x.b": b})
        return
    assert ties.compute(ties.parse(text), {"x.a": a, "x.b": b}) == expected


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Property: no text whatever raises anything but TieError, or yields anything but a finite number."""
    try:
        result = ties.compute(ties.parse(text), VALUES)
    except ties.TieError:
        return
    assert isinstance(result, (int, float))


@pytest.mark.parametrize("text", ["foo(1)", "foo(a.b)"])
def test_another_function_is_named_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ties.TieError) as raised:
        ties.parse(text)
    assert str(raised.value).startswith(f"{text!r} is not allowed in a tie. Allowed: numbers,")
    assert "min(...), max(...)" in str(raised.value)


# --- conditions ---


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("rollout.responses * a.b == 48", True),
        ("rollout.responses == 16.0", True),
        ("0.1 * a.b == 0.3", True),  # 0.30000000000000004: equality as a reader means it
        ("0.1 * a.b > 0.3", False),
        ("0.1 * a.b >= 0.3", True),
        ("a.b != 3", False),
        ("1 < a.b < 3", False),
        ("1 < a.b <= 3", True),
        ("algo.name == 'ppo' and optim.lr < 1", True),
        ("algo.name == 'grpo' or not optim.lr < 1", False),
        ("algo.name in ['grpo', 'ppo']", True),
        ("a.b not in (1, 2)", True),
        ("prompt.think == true", True),
        ("prompt.think == True", True),
        ("prompt.think == 1", False),
        ("optim.updates == null", True),
        ("optim.updates != null", False),
        ("'ppo' == algo.name", True),
        ("0.00010005 < 1e-4", False),  # near is not equal: they lie half a thousandth apart
        ("1e-4 < 0.00010005", True),
        ("1000 * rollout.responses == 16008", False),
        ("1000 == 1000.5", False),
        ("optim.lr in [0.5005, 0.4995]", False),
    ],
)
def test_worked_conditions(text: str, truth: bool) -> None:
    node = ties.parse_condition(text)
    assert ties.holds(node, {**VALUES, "optim.updates": None}) is truth


@pytest.mark.parametrize(
    "text",
    ["a.b", "a.b + 1", "a.b == open('x')", "a.b is 3", "a.b in c", "a.b in []", "[a.b] == 3", "a.b == 1 == (2,)",
     "(x := 1) == 1", "a.b == 'x' + 'y'", "not a.b", "", "a.b == 1 and 2", "a.b == f'x'", "lambda: 1 == 1"],
)  # fmt: skip
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ties.TieError):
        ties.parse_condition(text)


@pytest.mark.parametrize(
    ("text", "word"),
    [("algo.name > 3", "has no order"), ("'x' < 3", "has no order"), ("nowhere == 3", "'nowhere' is not a knob"),
     ("optim.updates * 2 == 4", "not a number"), ("a.b / 0 == 1", "divides by zero")],
)  # fmt: skip
def test_conditions_that_cannot_be_judged(text: str, word: str) -> None:
    with pytest.raises(ties.TieError, match=word):
        ties.holds(ties.parse_condition(text), {**VALUES, "optim.updates": None})


def test_the_paths_of_a_condition() -> None:
    node = ties.parse_condition(
        "a.b * optim.lr == 3 or algo.name in ['x', 2] and prompt.think == true and c.d > min(e.f, 2)"
    )
    assert ties.paths(node) == {"a.b", "optim.lr", "algo.name", "prompt.think", "c.d", "e.f"}
