"""Promises of the written report: one file, no requests, verdict first, nothing unescaped, nothing left out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ragen_lab.errors import HomeError
from ragen_lab.findings import finding_4_filtering
from ragen_lab.findings.base import FindingResult, Verdict
from ragen_lab.findings.tables import outcomes_of, standard_tables
from ragen_lab.report import data, figure_style, parts, render, tables, words
from ragen_lab.report.tables import provenance
from ragen_lab.runs import RunTable

Judge = Callable[[RunTable], list[FindingResult]]


class Page(HTMLParser):
    """Elements, text outside scripts and styles, and scripts of a page."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = tag
            if tag == "script":
                self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_data(self, text: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += text
        elif self._inside is None:
            self.words.append(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(runs: RunTable, results: list[FindingResult], **more: object) -> tuple[str, Page]:
    html = render.report_html(runs, results, sweep="filter_ratio", generated="2026-01-01", **more)  # type: ignore[arg-type]
    return html, Page(html)


@pytest.fixture(scope="module")
def whole(runs: RunTable, judge: Judge) -> tuple[str, Page]:
    return page(runs, judge(runs), command="ragen-lab sweep sweeps/filter_ratio.yaml", warnings=["a <plan> warning"])


def test_asks_the_network_for_nothing(whole: tuple[str, Page]) -> None:
    html, parsed = whole
    for tag, attributes in parsed.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
    own = html.replace(figure_style.plotly_javascript(), "")
    assert not re.search(r"(https?:)?//[a-z]|@import|url\(", own.replace("// Draws", "").replace("// plotly", ""))
    policy = next(a["content"] for t, a in parsed.elements if t == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none';")  # the browser itself refuses what plotly might ask for
    assert "http" not in policy


def test_plotly_is_inlined_exactly_once(whole: tuple[str, Page]) -> None:
    html, _ = whole
    assert html.count(figure_style.plotly_javascript()) == 1
    assert html.count("* plotly.js v") == 1
    assert "cdn" not in html.replace(figure_style.plotly_javascript(), "").lower()


def test_verdict_comes_before_anything_else(whole: tuple[str, Page]) -> None:
    _, parsed = whole
    sections = [a.get("id") for t, a in parsed.elements if t == "section"]
    assert sections[0] == "verdict"
    text = parsed.text
    assert text.index("inconclusive", len("filter_ratio: finding 4 inconclusive")) < text.index("What was run")
    assert sections == [
        "verdict", "what", "curves", "final", "tests", "survival", "signals", "cost", "tables", "warnings", "others",
        "provenance", "thresholds", "reproduce", "glossary",
    ]  # fmt: skip


def test_every_trial_id_is_present(whole: tuple[str, Page], runs: RunTable) -> None:
    _, parsed = whole
    for run in runs.runs:
        assert run.trial_id in parsed.text


def test_numbers_equal_those_of_the_results(whole: tuple[str, Page], runs: RunTable, judge: Judge) -> None:
    """The unrounded numbers are in the page as data-value, and the rounded ones as text."""
    _, parsed = whole
    values = {a["data-value"] for _, a in parsed.elements if a.get("data-value")}
    result = judge(runs)[0]
    for test in result.tests:
        assert {repr(test.effect), repr(test.p), repr(test.smallest_p), repr(test.sesoi)} <= values
        assert test.question in parsed.text
    assert "−14.3 [−31.5, 3.12]" in parsed.text
    assert "−0.211 [no interval]" in parsed.text
    for row in result.tables["Arms"]:
        assert {repr(row["final_success"]), repr(row["gain"]), repr(row["start_success"])} <= values
        assert (
            f"{row['final_success']:.3f} [{row['final_success_low']:.3f}, {row['final_success_high']:.3f}]"
            in parsed.text
        )
    for outcome in data.outcomes(runs):
        assert repr(outcome.final) in values
    assert result.headline in parsed.text
    for warning in result.warnings:
        assert warning in parsed.text


def test_findings_that_cannot_be_tested_say_what_they_need(whole: tuple[str, Page]) -> None:
    _, parsed = whole
    rest = parsed.text[parsed.text.index("Findings that these runs cannot speak to") :]
    assert "not testable yet" in rest
    assert "at least 5 collapsed runs (3 there)" in rest


def test_a_finding_named_by_the_sweep_is_judged_first_even_untestable(runs: RunTable, judge: Judge) -> None:
    _, parsed = page(runs, judge(runs)[1:], findings=[3])
    verdict = parsed.text[: parsed.text.index("What was run")]
    assert "not testable yet" in verdict
    assert "To be judged, it needs: runs that go on after an alarm" in verdict


def test_hostile_names_are_text_everywhere(hostile: RunTable, judge: Judge) -> None:
    html, parsed = page(hostile, judge(hostile), command="ragen-lab sweep '<script>'", warnings=["<img src=x>"])
    # data blocks, plotly, scheme: an arm's name opened no further one
    kinds = [a.get("type") for t, a in parsed.elements if t == "script"]
    assert kinds.count(None) == 2
    assert all(kind == "application/json" for kind in kinds if kind)
    assert "alert(1)" in parsed.text
    assert not any("alert" in script for script in parsed.scripts if script.lstrip().startswith(("/**", "//")))
    assert not any(t in ("b", "img") and "bold" in str(a) for t, a in parsed.elements)
    assert not any(t == "img" for t, _ in parsed.elements)
    for tag, attributes in parsed.elements:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    for block in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.S):
        assert not re.search("[<>]", block)
        figure = json.loads(block)  # plotly reads a subset of HTML: what it gets must be escaped once more
        assert "<script" not in json.dumps(figure)
        assert "<b>bold" not in json.dumps(figure)


def test_what_is_missing_is_called_so(hostile: RunTable, judge: Judge) -> None:
    _, parsed = page(hostile, judge(hostile))
    assert words.NOT_EVALUABLE in parsed.text
    assert "eval/success is missing in 1 run (keep_ratio=0.5 seed 2): not evaluable." in parsed.text
    assert "1 run failed (keep_ratio=0.5 seed 1)" in parsed.text
    assert "1 run pending (keep_ratio=0.5 seed 2)" in parsed.text
    assert "rollout/entropy holds NaN or infinite values in keep_ratio=0.5 seed 0." in parsed.text
    assert not re.search(r"\bnan\b", parsed.text)
    finals = [row for row in render_rows(hostile) if row[1].text == "2" and row[0].text == "keep_ratio=0.5"]
    assert [cell.text for cell in finals[0]].count(words.NOT_EVALUABLE) == 3  # level, start and final success


def render_rows(runs: RunTable) -> list[list[tables.Cell]]:
    built = tables.runs_table(
        runs, data.arms_of(runs), [figure_style.arm_color(i) for i in range(9)][: len(data.arms_of(runs))]
    )
    assert built is not None
    return built.rows


def test_runs_without_any_metric_are_not_called_healthy(runs: RunTable) -> None:
    bare = RunTable(tuple(replace(run, rows=({"iteration": 0.0, "timestamp": 0.0},)) for run in runs.runs))
    _, parsed = page(bare, [])
    assert "No run has logged eval/success: not evaluable." in parsed.text
    assert "No run has logged its seconds: not evaluable." in parsed.text
    assert "No run logged the random, fixed-string and optimal lines" in parsed.text


def test_an_empty_table_says_so() -> None:
    html, parsed = page(RunTable(()), [])
    assert "This sweep has no runs yet, so there is nothing to judge." in parsed.text
    assert "not testable yet" in parsed.text
    assert "Plotly.newPlot" not in html
    assert len(html) < 60_000  # without figures the page does not carry plotly


def test_statuses_and_captions_come_from_the_runs(whole: tuple[str, Page], shadow_runs: RunTable, judge: Judge) -> None:
    _, parsed = whole
    assert "9 runs, 5 finished, 4 collapsed" in parsed.text
    assert "none of 9 runs has collapsed by the definition. 4 runs were stopped by the detectors" in parsed.text
    _, shadow = page(shadow_runs, judge(shadow_runs))
    assert "4 of 9 runs collapsed (keep_ratio=1.0 1 of 3; keep_ratio=0.5 0 of 3; keep_ratio=0.25 3 of 3)" in shadow.text
    assert "The performance level has lost more than half" in shadow.text


def test_the_real_finding_is_shown_whole(shadow_runs: RunTable) -> None:
    result = finding_4_filtering.evaluate(shadow_runs)
    html, parsed = page(shadow_runs, [result], findings=[4])
    verdict = parsed.text[: parsed.text.index("What was run")]
    assert result.verdict.value in verdict
    assert result.headline in verdict
    for test in result.tests:
        assert test.question in parsed.text
        assert f'data-value="{test.p!r}"' in html
    for word in (*result.needs, *result.warnings):
        assert word in parsed.text
    assert "Finding 4: Arms" not in parsed.text  # shown once, as the report's own table


def test_every_figure_is_described_and_drawn_once(whole: tuple[str, Page]) -> None:
    html, parsed = whole
    plots = [a for t, a in parsed.elements if a.get("class") == "plot"]
    assert len(plots) == 3 + 1 + 1 + 5 + 1  # curves per arm, final, survival, signals logged, cost
    for plot in plots:
        assert plot["role"] == "img"
        assert len(plot["aria-label"] or "") > 30
        assert html.count(f'data-for="{plot["id"]}"') == 1


def test_tables_are_marked_up(whole: tuple[str, Page]) -> None:
    html, parsed = whole
    assert all(a.get("scope") in ("col", "row") for t, a in parsed.elements if t == "th")
    assert html.count("<table") == html.count("<caption>") == html.count('class="scroll"')


def test_written_whole_or_not_at_all(runs: RunTable, judge: Judge, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report.html"
    assert render.write_report(runs, judge(runs), out, sweep="s", generated="t") == out
    first = out.read_bytes()
    render.write_report(runs, judge(runs), out, sweep="s", generated="t")
    assert out.read_bytes() == first  # equal runs, equal file
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]
    with pytest.raises(HomeError, match="could not be written"):
        render.write_report(runs, [], out / "below" / "a-file.html", sweep="s")


def test_a_missing_template_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PARTS", ("absent.html.j2",))
    with pytest.raises(HomeError, match=r"absent\.html\.j2"):
        parts.page_parts()


def test_differing_code_versions_are_a_warning(runs: RunTable, judge: Judge) -> None:
    changed = replace(runs.runs[0], provenance={**runs.runs[0].provenance, "commit": "feedface"})
    _, parsed = page(RunTable((changed, *runs.runs[1:])), judge(runs))
    assert "The runs were made with 2 versions of the code (commit: 0d1ad65f00d, feedface)." in parsed.text


def test_of_the_times_the_first_start_and_the_last_end_are_shown(runs: RunTable) -> None:
    times = [
        ("2026-01-02T10:00", "2026-01-02T11:00"),
        ("2026-01-01T10:00", None),
        ("2026-01-03T10:00", "2026-01-03T11:00"),
    ]
    timed = tuple(
        replace(
            run, provenance={**run.provenance, "started": start, "ended": end, "seed": run.seed, "patch": "x.patch"}
        )
        for run, (start, end) in zip(runs.runs, times, strict=False)
    )
    shown = provenance(RunTable(timed))
    assert shown["started"] == [("2026-01-01T10:00", 3)]
    assert shown["ended"] == [("2026-01-03T11:00", 2)]
    assert not {"seed", "patch"} & set(shown)


def test_imports_neither_torch_nor_ray_nor_mlflow() -> None:
    code = "import sys, ragen_lab.report.render; print([m for m in ('torch', 'ray', 'mlflow') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "not evaluable"),
        (float("inf"), "∞"),
        (0.0, "0.000"),
        (-0.25, "−0.250"),
        (0.58333, "0.583"),
        (6.0, "6.00"),
        (51.52, "51.5"),
        (0.00012, "1.2e-04"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_for_reading(value: float, text: str) -> None:
    assert words.number(value) == text


def test_every_verdict_has_its_words_and_colour() -> None:
    style = parts.page_parts()["style.css"]
    for verdict in Verdict:
        assert words.MEANINGS[verdict]
        assert words.SYMBOLS[verdict]
        assert f".{tables.css_name(verdict)} {{ --tone" in style


def test_a_mean_tells_how_many_seeds_are_behind_it(shadow_runs: RunTable) -> None:
    """A run that was interrupted has no final success, so it is not among them."""
    arm = shadow_runs.runs[0].arm
    seeds = len({run.seed for run in shadow_runs.runs if run.arm == arm})
    for cut in (0, 1):
        mine = [run for run in shadow_runs.runs if run.arm == arm]
        mine[:cut] = [replace(run, status="stopped", rows=run.rows[:20]) for run in mine[:cut]]
        table = RunTable(tuple(mine))
        found = {name: detail for name, _, detail in render.facts(table, standard_tables(outcomes_of(table))["Arms"])}
        assert found["highest final success"].startswith(f"{arm}, mean of {words.plural(seeds - cut, 'seed')}")
