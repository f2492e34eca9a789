"""What a report says of a search, before anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ragen_lab.findings.base import FindingResult, Verdict
from ragen_lab.report.render import report_html, spoken_to
from ragen_lab.report.searched import CHOSEN, Searched, Setting, answer
from ragen_lab.runs import RunTable

ONE = Searched("Optuna, TPE", 0, 4, (("eval/success", "up"),), (), False, (), {})


def setting(number: int, value: float | None, best: bool = False, seeds: int = 2) -> Setting:
    values = None if value is None else (value,)
    return Setting(
        number, f"#{number} lr={number}", {}, "running" if value is None else "complete", seeds, values, (), best
    )


def test_the_best_setting_with_its_value_and_seeds() -> None:
    search = replace(ONE, settings=(setting(0, 0.25), setting(1, 0.5, best=True), setting(2, None)))
    assert answer(search) == "Best of 2 settings with a result: #1 lr=1, eval/success 0.5 (the mean of 2 seeds)."
    one = replace(ONE, settings=(setting(0, 0.25, best=True, seeds=1),))
    assert answer(one) == "Best of 1 setting with a result: #0 lr=0, eval/success 0.25 (1 seed)."


def test_nothing_yet() -> None:
    assert answer(replace(ONE, settings=(setting(0, None),))) == "No setting has come to its end yet."
    kept = replace(ONE, constraints=("eval/format_error_rate <= 0.1",), settings=(setting(0, 0.5),))
    assert answer(kept) == "No setting that keeps every constraint has come to its end yet."


def test_a_front() -> None:
    two = (("eval/success", "up"), ("cost", "down"))
    on = [replace(setting(i, 0.0, best=i < 4), values=(i / 10, float(i))) for i in range(5)]
    search = replace(ONE, objectives=two, settings=tuple(on))
    assert answer(search) == (
        "Of 5 settings with a result, 4 are not beaten in eval/success and cost at once: #0 lr=0 (eval/success 0, cost "
        "0); #1 lr=1 (eval/success 0.1, cost 1); #2 lr=2 (eval/success 0.2, cost 2); and 1 more."
    )


def verdict(page: str) -> str:
    return page[page.index('<section id="verdict"') : page.index('<nav aria-label="Sections">')]


def test_the_search_comes_first(runs: RunTable, judge: Callable[[RunTable], list[FindingResult]]) -> None:
    search = replace(ONE, settings=(setting(0, 0.25, best=True),))
    first = verdict(report_html(runs, judge(runs), sweep="s", search=search))
    assert first.index(answer(search)) < first.index("Finding ")
    assert CHOSEN in first
    assert "Search</p>" not in verdict(report_html(runs, judge(runs), sweep="s"))
    empty = verdict(report_html(RunTable(()), [], sweep="s", search=replace(ONE, settings=())))
    assert "No setting has come to its end yet." in empty
    assert "not testable yet" not in empty


def test_a_search_that_names_no_finding_does_not_lead_with_one_that_cannot_be_tested(
    runs: RunTable, judge: Callable[[RunTable], list[FindingResult]]
) -> None:
    idle = replace(next(each for each in judge(runs) if each.tests), verdict=Verdict.NOT_TESTABLE)
    assert spoken_to([idle], None) == ([idle], [])
    assert spoken_to([idle], None, searched=True) == ([], [idle])
    assert spoken_to([idle], [idle.number], searched=True) == ([idle], [])
