"""The tables of a search: which setting comes first, and what is said of each."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from ragen_lab.report.searched import Searched, Setting, importance_rows, lead, setting_rows

Ways = dict[str, Literal["up", "down"]]


def one(arm: str, values: tuple[float, ...] | None, **more: Any) -> Setting:
    return Setting(**{"number": 0, "arm": arm, "params": {}, "state": "complete", "seeds": 2, "values": values, **more})


def search_of(*settings: Setting, ways: Ways | None = None, **more: Any) -> Searched:
    shape: dict[str, Any] = {"how": "random search", "seed": 0, "asked": 3, "constraints": (), "raced": False}
    objectives = tuple((ways or {"eval/success": "up"}).items())
    return Searched(**{**shape, "objectives": objectives, "settings": settings, "importances": {}, **more})


def arms(search: Searched) -> list[object]:
    return [row["arm"] for row in setting_rows(search)]


@pytest.mark.parametrize(("way", "order"), [("up", ["c", "a", "b"]), ("down", ["b", "a", "c"])])
def test_the_best_by_the_first_objective_comes_first(way: Literal["up", "down"], order: list[str]) -> None:
    settings = one("a", (2.0, 7.0)), one("b", (1.0, 8.0)), one("c", (3.0, 9.0))
    assert arms(search_of(*settings, ways={"cost": way, "seconds": "down"})) == order


def test_what_misses_a_constraint_comes_after_what_keeps_it_and_what_has_no_value_last() -> None:
    settings = (
        one("none", None, state="failed"),
        one("best, but too dear", (0.9,), missed=("cost <= 10",)),
        one("worst, but cheap", (0.1,)),
    )
    search = search_of(*settings, constraints=("cost <= 10",))
    assert arms(search) == ["worst, but cheap", "best, but too dear", "none"]
    assert [row["misses"] for row in setting_rows(search)] == ["-", "cost <= 10", "-"]
    assert "misses" not in setting_rows(search_of(*settings))[0]  # the page has none


def test_the_front_is_told_where_there_are_several_objectives() -> None:
    settings = one("a", (0.5, 3.0), best=True), one("b", (0.4, 4.0))
    rows = setting_rows(search_of(*settings, ways={"eval/success": "up", "cost": "down"}))
    assert [(row["arm"], row["on the front"], row["cost"]) for row in rows] == [("a", "yes", 3.0), ("b", "no", 4.0)]
    assert "on the front" not in setting_rows(search_of(one("a", (0.5,), best=True)))[0]


def test_a_setting_that_was_proposed_twice_counts_once() -> None:
    """One that became no arm is told by its number, and each of these is another one."""
    twice = one("a", (0.5,)), one("a", (0.5,), number=1)
    faulty = one("", None, number=2, state="failed"), one("", None, number=3, state="failed")
    assert "; 1 to its end, 2 failed." in lead(search_of(*twice, *faulty))


def test_a_fault_has_its_column_where_there_is_one() -> None:
    rows = setting_rows(search_of(one("a", (0.5,)), one("", None, number=3, state="failed", fault="not allowed")))
    assert [(row["arm"], row["fault"]) for row in rows] == [("a", "-"), ("#3", "not allowed")]
    assert "fault" not in setting_rows(search_of(one("a", (0.5,))))[0]


def test_the_knob_that_matters_most_comes_first() -> None:
    shares = {"eval/success": {"optim.lr": 0.3, "filter.keep_ratio": 0.1}, "cost": {"filter.keep_ratio": 0.9}}
    assert importance_rows(search_of(importances=shares)) == [
        {"knob": "filter.keep_ratio", "eval/success": 0.1, "cost": 0.9},
        {"knob": "optim.lr", "eval/success": 0.3, "cost": None},
    ]
