"""The report: one self-contained HTML file, verdict first, every number traceable to its runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import jinja2

import ragen_lab
from ragen_lab.errors import HomeError
from ragen_lab.findings.base import FindingResult, Verdict
from ragen_lab.findings.tables import outcomes_of, standard_tables, survival_table
from ragen_lab.metrics import METRICS
from ragen_lab.report import data, figure_style, panels, searched, tables, words
from ragen_lab.report.parts import TEMPLATE, page_parts
from ragen_lab.report.searched import Searched
from ragen_lab.runs import RunTable


def write_report(
    runs: RunTable,
    results: Sequence[FindingResult],
    out: Path,
    *,
    sweep: str,
    warnings: Sequence[str] = (),
    command: str = "",
    generated: str | None = None,
    findings: Sequence[int] | None = None,
    search: Searched | None = None,
    inputs: str = "",
) -> Path:
    """Write the report of ``sweep`` to the file ``out`` and return its path.

    ``findings``: numbers that the sweep's page names; they are judged first even where they cannot be tested yet.
    ``search``: what a search of settings has found, where the sweep was one.
    ``command``: what made the runs, to be repeated by the reader. ``generated``: a time stamp, for reproducible files.
    ``inputs``: the fingerprint of what it was written from (report/inputs.py), to know later whether it still stands.
    Raises HomeError if the file cannot be written or the templates are missing.
    """
    text = report_html(
        runs,
        results,
        sweep=sweep,
        warnings=warnings,
        command=command,
        generated=generated,
        findings=findings,
        search=search,
        inputs=inputs,
    )
    out = Path(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its place and renamed, so that a reader never opens half a report.
        handle, draft = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(draft, 0o644)
            os.replace(draft, out)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise HomeError(
            f"the report could not be written to {out}: {error}. The runs are unharmed; "
            "free space, or pass another path."
        ) from error
    return out


def report_html(
    runs: RunTable,
    results: Sequence[FindingResult],
    *,
    sweep: str,
    warnings: Sequence[str] = (),
    command: str = "",
    generated: str | None = None,
    findings: Sequence[int] | None = None,
    search: Searched | None = None,
    inputs: str = "",
) -> str:
    """The whole page as text."""
    parts = page_parts()
    arms = data.arms_of(runs)
    colors = [figure_style.arm_color(i) for i in range(len(arms))]
    main, others = spoken_to(results, findings, search is not None)
    page = jinja2.Environment(
        loader=jinja2.DictLoader(parts), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    success = data.curves(runs, "eval/success")
    shown = [
        name for name in ("eval/success", *data.SIGNALS, *data.PHASES, "time/eval_seconds") if data.curves(runs, name)
    ]
    alarms, cut = words.alarm_rows(runs)
    judged = outcomes_of(runs)
    standard = standard_tables(judged)
    strict = survival_table([outcome.read("collapsed") for outcome in judged])
    means = tables.final_means(standard["Arms"])
    palette = dict(zip(arms, colors, strict=True))
    every_panel = {
        "curves": panels.curve_panels(runs, arms, colors),
        "final": panels.final_panels(runs, means, arms, colors),
        "survival": panels.survival_panels(standard["Survival"], strict, arms, colors),
        "signals": panels.signal_panels(runs, arms, colors),
        "cost": panels.cost_panels(runs, arms, colors),
        "search": panels.search_panels(search),
    }
    return page.get_template(TEMPLATE).render(
        sweep=sweep,
        generated=generated or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=ragen_lab.__version__,
        inputs=inputs,
        style=parts["style.css"],
        scheme=parts["scheme.js"],
        plotly=figure_style.plotly_javascript() if any(every_panel.values()) else "",
        runs=runs,
        counts=words.status_counts(runs),
        main=main,
        others=others,
        meanings=words.MEANINGS,
        symbols=words.SYMBOLS,
        facts=facts(runs, standard["Arms"]),
        legend=list(zip(arms, colors, strict=True)),
        arms_table=tables.knob_table(runs, arms, colors),
        budget=tables.budget(runs),
        statuses={
            status: text for status, text in words.STATUSES.items() if any(r.status == status for r in runs.runs)
        },
        panels=every_panel,
        signs={
            "called": any(curve.called_at is not None for curve in success),
            "alarms": {
                name: sentence
                for name, sentence in data.DETECTORS.items()
                if any(alarm.detector == name for curve in success for alarm in curve.alarms)
            },
            "non_finite": any(curve.non_finite for curve in success),
        },
        curves_caption=words.curves_caption(
            {arm: [curve for curve in success if curve.arm == arm] for arm in arms}, data.references(runs.runs)
        ),
        tests=tables.tests_table([result for result in results if result.tests]),
        alarms=tables.table("First alarm of each detector", alarms) if len(runs) else None,
        cut=cut,
        arm_results=tables.arms_table(standard["Arms"], palette),
        tables=tables.result_tables(results, standard, palette),
        survival_table=tables.table("Survival", standard["Survival"], palette),
        runs_table=tables.runs_table(runs, arms, colors),
        warnings=[*warnings, *tables.notices(runs)],
        provenance=tables.provenance(runs),
        config=tables.config_table(runs),
        thresholds=tables.thresholds(runs),
        sesoi=tables.table(
            "Smallest effects of interest",
            [
                {
                    "finding": result.number,
                    "test": test.name,
                    "smallest effect of interest": test.sesoi,
                    "unit": test.unit,
                }
                for result in results
                for test in result.tests
            ],
        ),
        command=command,
        search=search,
        search_answer=searched.answer(search) if search else "",
        search_caution=searched.CHOSEN,
        search_lead=searched.lead(search) if search else "",
        search_tables=search_tables(search, palette),
        seeds=sorted({run.seed for run in runs.runs}),
        glossary=[METRICS[name] for name in shown if name in METRICS],
    )


def search_tables(search: Searched | None, palette: Mapping[str, str]) -> list[tables.Table]:
    """The settings of a search, and what mattered among them."""
    if search is None:
        return []
    found = [
        tables.table("Settings, the best first", searched.setting_rows(search), palette),
        tables.table("Share of the variance that each knob explains", searched.importance_rows(search)),
    ]
    return [each for each in found if each is not None]


def spoken_to(
    results: Sequence[FindingResult], findings: Sequence[int] | None, searched: bool = False
) -> tuple[list[FindingResult], list[FindingResult]]:
    """The findings that these runs speak to, and the rest.

    They are those that the sweep's page names, and any other that could be judged all the same; where a page names
    none, those that could nearly be, unless its question was a search's.
    """

    def speaks(result: FindingResult) -> bool:
        if findings and result.number in findings:
            return True
        return result.verdict is not Verdict.NOT_TESTABLE or (not findings and not searched and bool(result.tests))

    return [r for r in results if speaks(r)], [r for r in results if not speaks(r)]


def facts(runs: RunTable, rows: tables.Rows) -> list[tuple[str, str, str]]:
    """The few numbers that a reader wants beside the verdict: (name, number, explanation)."""
    if not len(runs):
        return []
    arms, seeds = data.arms_of(runs), sorted({run.seed for run in runs.runs})
    counted = f"{words.plural(len(arms), 'arm')}, {words.plural(len(seeds), 'seed')}; {words.status_counts(runs)}"
    found = [("runs", str(len(runs)), counted)]
    ranked = sorted((row for row in rows if row["final_success"] is not None), key=lambda row: -row["final_success"])
    for name, row in zip(("highest final success", "lowest final success"), ranked[:1] + ranked[1:][-1:], strict=False):
        detail = f"{row['arm']}, mean of {words.plural(row['seeds_ended'], 'seed')}"
        if row["gain"] is not None:
            detail += f"; {words.signed(row['gain'])} over its own iteration 0"
        if row["gain_low"] is not None and row["gain_high"] is not None:
            detail += f" [{words.signed(row['gain_low'])}, {words.signed(row['gain_high'])}]"
        if row["stopped"]:  # its last evaluations lie before the stop, and flatter it
            detail += f"; {row['stopped']} of {row['runs']} stopped by the detectors"
        found.append((name, f"{row['final_success']:.2f}", detail))
    lines = data.references(runs.runs)
    values = " / ".join(f"{line.value:.2f}" for line in lines) or words.NOT_EVALUABLE
    found.append(("reference lines", values, " / ".join(line.name for line in lines) or "no run logged them"))
    called = sum(data.vote_of(run) is not None for run in runs.runs)
    found.append(("called collapsed", f"{called} of {len(runs)}", "runs, by the vote of the detectors"))
    return found
