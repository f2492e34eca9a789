"""What Optuna is told and asked: directions, seeds, the random start, conditions, and what is read from the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from optuna.study import StudyDirection

from ragen_lab.sweep import search as room
from ragen_lab.sweep.design import Condition
from ragen_lab.sweep.search import Known, importances, pareto, propose
from ragen_lab.sweep.search_page import Range, SearchSection

UP, DOWN = StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE
SPACE = {"optim.lr": Range(low=1e-5, high=1e-1, log=True), "rollout.prompts": Range(low=2, high=32)}
RANDOM = SearchSection(kind="random", trials=20)


def learning(sampler: Any = "tpe", **more: Any) -> SearchSection:
    return SearchSection(kind="optuna", trials=20, sampler=sampler, **more)


def known(count: int, **more: Any) -> list[Known]:
    """Learning rates 1e-4 to 1e-2 in turn and as many prompts as the number says, the more the better."""
    params = [{"optim.lr": 10.0 ** (-4 + number % 3), "rollout.prompts": 2 + number} for number in range(count)]
    return [Known(number, each, "complete", (number / 10,), **more) for number, each in enumerate(params)]


def test_each_objective_is_made_larger_or_smaller_as_is_better() -> None:
    search = learning(objectives=["eval/success", "cost", "collapses", "seconds", "eval/format_error_rate"])
    assert room._study(SPACE, search, []).directions == [UP, DOWN, DOWN, DOWN, DOWN]
    assert room._study(SPACE, learning(objectives=["cost"]), []).directions == [DOWN]


@pytest.mark.parametrize("search", [RANDOM, learning(), learning("nsga2")], ids=lambda search: search.sampler)
def test_a_proposal_depends_on_the_seed_and_on_its_number(search: SearchSection) -> None:
    other = search.model_copy(update={"seed": 1})
    found = [propose(SPACE, each, known(count)).params for each in (search, other) for count in (0, 1)]
    assert len({str(params) for params in found}) == 4
    assert propose(SPACE, search, known(1)).params == found[1]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2"])
def test_the_first_proposals_are_random(sampler: str) -> None:
    """With six known: the seventh of a start of seven is that of a random search, and of a start of six it is not."""
    six = known(6, attrs={"NSGAIISampler:generation": 0})
    blind = propose(SPACE, RANDOM, six).params
    assert propose(SPACE, learning(sampler, startup=7), six).params == blind
    assert propose(SPACE, learning(sampler, startup=6), six).params != blind


@pytest.mark.parametrize(("kind", "applies"), [("std", True), ("random", False)])
def test_a_condition_on_a_knob_that_no_axis_changes_is_judged_by_the_base(kind: str, applies: bool) -> None:
    space, conditions = {"filter.keep_ratio": [0.5]}, [Condition("filter.keep_ratio", {"filter.kind": ("std",)})]
    params = propose(space, RANDOM, [], conditions, {"filter.kind": kind}).params
    assert params == ({"filter.keep_ratio": 0.5} if applies else {})


def test_an_axis_decides_over_the_base() -> None:
    space = {"filter.keep_ratio": [0.5], "filter.kind": ["random"]}
    conditions = [Condition("filter.keep_ratio", {"filter.kind": ("std",)})]
    assert propose(space, RANDOM, [], conditions, {"filter.kind": "std"}).params == {"filter.kind": "random"}


def test_proposals_are_told_by_their_numbers() -> None:
    turned = known(8)[::-1]
    study = room._study(SPACE, learning(), turned)
    assert [trial.params["rollout.prompts"] for trial in study.trials] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert propose(SPACE, learning(startup=3), turned) == propose(SPACE, learning(startup=3), known(8))


def of(*values: float, number: int = 0, state: Any = "complete", **excess: float) -> Known:
    return Known(number, {}, state, values, excess=excess)


BOTH = learning(objectives=["eval/success", "cost"])


@pytest.mark.parametrize(
    ("settings", "front"),
    [
        ([of(0.5, 3.0), of(0.4, 2.0), of(0.3, 2.5), of(0.5, 4.0)], [0, 1]),
        ([of(0.5, 3.0), of(0.5, 3.0)], [0, 1]),  # equal ones do not beat each other
        ([of(0.5, 3.0, a=0.01), of(0.4, 3.0, a=0.0), of(0.3, 3.0, a=-1.0)], [1]),  # just kept, and kept and worse
        ([of(0.5, 3.0, a=-1.0, b=0.5), of(0.4, 3.0, a=-1.0, b=-1.0)], [1]),  # each constraint counts
        ([of(0.5, 3.0, a=1.0), of(0.4, 2.0, a=1.0)], []),
        ([of(0.5, 3.0, state="pruned"), of(0.4, 3.0), Known(2, {}, "failed"), Known(3, {}, "running")], [1]),
        ([], []),
    ],
)
def test_the_front_holds_what_nothing_beats_and_what_keeps_the_constraints(
    settings: list[Known], front: list[int]
) -> None:
    numbered = [Known(n, {}, each.state, each.values, excess=each.excess) for n, each in enumerate(settings)]
    assert pareto(BOTH, numbered) == front


def test_importance_is_told_of_each_objective_that_varies() -> None:
    def shares(values: Callable[[int], tuple[float, float]]) -> dict[str, dict[str, float]]:
        found = [Known(each.number, each.params, "complete", values(each.number)) for each in known(9)]
        return importances(SPACE, BOTH, found)

    assert set(shares(lambda number: (0.5, float(number)))) == {"cost"}
    assert set(shares(lambda number: (float(number), 0.5))) == {"eval/success"}
    assert shares(lambda number: (0.5, 0.5)) == {}
    both = shares(lambda number: (number % 3 / 3, float(number)))
    assert both["eval/success"]["optim.lr"] > 0.5
    assert both["cost"]["rollout.prompts"] > 0.5


def test_importance_is_that_of_finished_settings() -> None:
    """Those that were ended early count neither as four that are enough, nor with their values."""
    ended = [Known(9 + n, {"optim.lr": 1e-3, "rollout.prompts": 2 + n}, "pruned", (-5.0 * n,), 1) for n in range(3)]
    assert importances(SPACE, learning(), [*known(3), *ended]) == {}
    assert importances(SPACE, learning(), [*known(9), *ended]) == importances(SPACE, learning(), known(9)) != {}
