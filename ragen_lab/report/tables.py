"""The tables of the page, and where their numbers come from: plain cells, rounded for reading, unrounded beside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragen_lab.config import RunConfig, knobs
from ragen_lab.findings.base import FindingResult, Test, Verdict
from ragen_lab.findings.outcomes import rebuilt
from ragen_lab.report import data, words
from ragen_lab.runs import Run, RunTable

Rows = Sequence[Mapping[str, Any]]
Means = dict[tuple[str, str], tuple[float, float, float]]

HEADINGS: dict[str, str] = {
    "seeds_ended": "seeds with a final success",
    "final_success_iqm": "IQM of final success",
    "gain": "gain over iteration 0",
    "stopped": "stopped by detectors",
    "rmst_iterations": "RMST (iterations)",
    "area": "mean success over the run",
}


@dataclass(frozen=True)
class Cell:
    text: str
    kind: str = ""  # "num", "code", "missing", "verdict ..."
    value: str | None = None  # the unrounded number
    swatch: str | None = None


@dataclass(frozen=True)
class Table:
    label: str
    columns: list[str]
    rows: list[list[Cell]]


def final_means(arms: Rows) -> Means:
    """(environment, arm) -> (mean, low, high) of final success, from the findings' table of arms."""
    return {
        (str(row["environment"]), str(row["arm"])): (
            _float(row["final_success"]),
            _float(row["final_success_low"]),
            _float(row["final_success_high"]),
        )
        for row in arms
    }


def _float(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def table(label: str, rows: Sequence[Mapping[str, object]], colors: Mapping[str, str] | None = None) -> Table | None:
    """Rows of plain values as a table; ``x``, ``x_low`` and ``x_high`` (or effect, low, high) become one column."""
    if not rows:
        return None
    keys = list(dict.fromkeys(key for row in rows for key in row))
    ends = {key: (f"{key}_low", f"{key}_high") for key in keys} | {"effect": ("low", "high")}
    joined = {key: pair for key, pair in ends.items() if key in keys and set(pair) <= set(keys)}
    hidden = {end for pair in joined.values() for end in pair}
    columns = [key for key in keys if key not in hidden]
    body = []
    for row in rows:
        cells = []
        for key in columns:
            one = as_cell(row.get(key), key)
            if key in joined and one.kind == "num":
                low, high = (_float(row.get(end)) for end in joined[key])
                if math.isfinite(low) and math.isfinite(high):
                    one = Cell(f"{one.text} [{words.number(low)}, {words.number(high)}]", "num", one.value)
            if key == "arm" and colors and one.text in colors:
                one = Cell(one.text, "name", None, colors[one.text])
            cells.append(one)
        body.append(cells)
    return Table(label, [HEADINGS.get(column, column.replace("_", " ")) for column in columns], body)


def as_cell(value: object, key: str = "") -> Cell:
    if isinstance(value, Verdict):
        return Cell(f"{words.SYMBOLS[value]} {value.value}", f"verdict {css_name(value)}")
    text = words.cell(value)
    if isinstance(value, float):
        return Cell(text, "missing" if math.isnan(value) else "num", repr(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Cell(text, "num", repr(value))
    if value is None:
        return Cell(text, "missing")
    return Cell(text, "code" if key.endswith("_id") else "name" if key == "arm" else "")


def p_cell(value: float) -> Cell:
    return Cell(words.probability(value), "missing" if math.isnan(value) else "num", repr(value))


def css_name(verdict: Verdict) -> str:
    return verdict.value.replace(" ", "-")


def knob_table(runs: RunTable, arms: Sequence[str], colors: Sequence[str]) -> Table | None:
    """Arms with their seeds, statuses and the knobs in which they differ."""
    varied = varied_knobs(runs)
    rows = []
    for arm in arms:
        mine = [run for run in runs.runs if run.arm == arm]
        row: dict[str, object] = {
            "arm": arm,
            "seeds": ", ".join(str(run.seed) for run in mine),
            "status": words.status_counts(RunTable(tuple(mine))),
        }
        for knob in varied:
            row[knob] = " or ".join(
                dict.fromkeys(words.setting(run.params[knob]) if knob in run.params else "–" for run in mine)
            )
        rows.append(row)
    built = table("Arms", rows, dict(zip(arms, colors, strict=True)))
    return built and Table(built.label, ["arm", "seeds", "status", *varied], built.rows)  # a knob keeps its exact path


def varied_knobs(runs: RunTable) -> list[str]:
    """Paths, the seed's aside, that do not have one value in all runs."""
    paths = dict.fromkeys(path for run in runs.runs for path in run.params)
    return [
        path for path in paths if path != "seed" and len({words.setting(run.params.get(path)) for run in runs.runs}) > 1
    ]


def budget(runs: RunTable) -> list[tuple[str, str]]:
    """What each run was given: (knob or knobs, value)."""
    asked = (
        ("env.name", "environment"),
        ("policy.model", "model"),
        ("algo.name", "algorithm"),
        ("train.iterations", "iterations"),
        ("rollout.prompts", "prompt groups per iteration"),
        ("rollout.responses", "trajectories per group"),
        ("rollout.max_actions", "actions per trajectory, at most"),
        ("rollout.max_turns", "turns per trajectory, at most"),
        ("eval.every", "iterations between evaluations"),
        ("eval.prompts", "evaluation levels"),
        ("detect.on_collapse", "on collapse"),
    )
    found = []
    for path, name in asked:
        values = dict.fromkeys(words.setting(run.params[path]) for run in runs.runs if path in run.params)
        if values:
            found.append((f"{name} ({path})", ", ".join(values)))
    return found


def tests_table(results: Sequence[FindingResult]) -> list[tuple[FindingResult, Test, dict[str, Cell]]]:
    """One row per test, with its numbers as cells."""
    found = []
    for result in results:
        for test in result.tests:
            effect = as_cell(test.effect)
            if not math.isnan(test.effect):
                known = math.isfinite(test.low) and math.isfinite(test.high)
                ends = f"{words.number(test.low)}, {words.number(test.high)}" if known else "no interval"
                effect = Cell(f"{effect.text} [{ends}]", effect.kind, effect.value)
            cells = {
                "effect": effect,
                "p": p_cell(test.p),
                "smallest_p": p_cell(test.smallest_p),
                "sesoi": as_cell(test.sesoi),
                "verdict": as_cell(test.verdict),
            }
            found.append((result, test, cells))
    return found


def arms_table(rows: Rows, colors: Mapping[str, str]) -> Table | None:
    """The findings' table of arms, with the collapses as a count and the interval of their share."""
    hidden = {"runs", "collapsed_low", "collapsed_high"}
    if len({row["environment"] for row in rows}) < 2:
        hidden.add("environment")
    shown = []
    for row in rows:
        low, high = (words.number(_float(row[f"collapsed_{end}"]), 2) for end in ("low", "high"))
        counted = f"{row['collapsed']} of {row['runs']}, share [{low}, {high}]"
        shown.append({k: counted if k == "collapsed" else v for k, v in row.items() if k not in hidden})
    return table("Arms", shown, colors)


def result_tables(
    results: Sequence[FindingResult], standard: Mapping[str, Rows], colors: Mapping[str, str]
) -> list[Table]:
    """The tables of the findings, without those that repeat rows of ``standard``."""
    found = []
    for result in results:
        for title, rows in result.tables.items():
            known = standard.get(title, ())
            if not all(row in known for row in rows) and (
                built := table(f"Finding {result.number}: {title}", rows, colors)
            ):
                found.append(built)
    return found


def runs_table(runs: RunTable, arms: Sequence[str], colors: Sequence[str]) -> Table | None:
    """Every run, with the id that leads to its folder."""
    rows = []
    for run, judged in zip(runs.runs, data.outcomes(runs), strict=True):
        final = data.final_success(judged)
        low, high = data.wilson(final, data.levels_of(run))
        rows.append(
            {
                "arm": run.arm,
                "environment": data.environment_of(run),
                "seed": run.seed,
                "trial_id": run.trial_id,
                "status": run.status,
                "iterations": max((int(row["iteration"]) for row in run.rows), default=None),
                "called collapsed at": data.vote_of(run),
                "collapsed at": judged.level.time,
                "level": "stopped before it was known" if judged.ambiguous else judged.level.status.replace("_", " "),
                "start success": math.nan if judged.start is None else judged.start,
                "final success": final,
                "final success_low": low,
                "final success_high": high,
                "area": judged.area,
                "seconds_per_iteration": judged.seconds,
                "reason": run.stop_reason,
                "mlflow_run_id": run.mlflow_run_id,
            }
        )
    drop = {"mlflow_run_id"} if all(row["mlflow_run_id"] is None for row in rows) else set()
    if len(data.environments_of(runs)) < 2:
        drop.add("environment")
    rows = [{key: value for key, value in row.items() if key not in drop} for row in rows]
    return table("Every run", rows, dict(zip(arms, colors, strict=True)))


def named(runs: Iterable[Run]) -> str:
    return ", ".join(f"{run.arm} seed {run.seed}" for run in runs)


def notices(runs: RunTable) -> list[str]:
    """What the runs themselves say against trusting the numbers too far."""
    found = []
    for status in ("failed", "stopped", "pending"):
        mine = [run for run in runs.runs if run.status == status]
        if mine:
            count = words.plural(len(mine), "run")
            found.append(f"{count} {status} ({named(mine)}): left out of the mean curves.")
    cut = [run for run in runs.runs if run.status == "collapsed"]
    if cut:
        found.append(
            f"{words.plural(len(cut), 'run')} ended where the detectors called a collapse: the final success shown is "
            "that of the last evaluations before the stop, which may lie before the fall."
        )
    seeds = {arm: frozenset(run.seed for run in runs.runs if run.arm == arm) for arm in data.arms_of(runs)}
    if len(set(seeds.values())) > 1:
        found.append(
            "The arms do not have the same seeds, so that not every comparison is paired: "
            + "; ".join(f"{arm}: {', '.join(map(str, sorted(s)))}" for arm, s in seeds.items())
            + "."
        )
    silent = [run for run in runs.runs if not len(run.series("eval/success")[0])]
    if silent:
        found.append(f"eval/success is missing in {words.plural(len(silent), 'run')} ({named(silent)}): not evaluable.")
    broken: dict[str, set[str]] = {}
    for run in runs.runs:
        for row in run.rows:
            for name, value in row.items():
                if name not in ("iteration", "timestamp") and not math.isfinite(value):
                    broken.setdefault(name, set()).add(f"{run.arm} seed {run.seed}")
    for name, names in sorted(broken.items()):
        found.append(f"{name} holds NaN or infinite values in {', '.join(sorted(names))}.")
    if len(runs) and not any(data.references((run,)) for run in runs.runs):
        found.append(
            "No run logged the random, fixed-string and optimal lines, without which a success rate means little."
        )
    return found + code_notices(runs)


def code_notices(runs: RunTable) -> list[str]:
    """Doubts about which code made the runs."""
    found = []
    recorded = {field: [kind for kind, _ in kinds] for field, kinds in provenance(runs).items()}
    for field in ("ragen_lab", "commit"):
        kinds = recorded.get(field, [])
        if len(kinds) > 1:
            found.append(f"The runs were made with {len(kinds)} versions of the code ({field}: {', '.join(kinds)}).")
    if "yes" in recorded.get("uncommitted_changes", []):
        found.append(
            "Some runs come from a checkout with uncommitted changes: their commit is not the whole code. The "
            "patch is in their trial folders."
        )
    if any(kind not in ("1", "–") for kind in recorded.get("code_versions", [])):
        found.append("Some runs were begun by one version of the code and continued by another.")
    return found


_FIRST_AND_LAST = {"started": min, "ended": max}  # fields with a value of its own in every run
_SHOWN_ELSEWHERE = {"seed", "patch", "packages"}  # the seed with each run; the names of files in its folder


def provenance(runs: RunTable) -> dict[str, list[tuple[str, int]]]:
    """Recorded field -> (value, number of runs with it), most frequent first; the first start and the last end."""
    counts: dict[str, dict[str, int]] = {}
    for run in runs.runs:
        for field, value in _leaves(run.provenance):
            if field in _SHOWN_ELSEWHERE or (field in _FIRST_AND_LAST and value is None):
                continue
            mine = counts.setdefault(field, {})
            mine[words.cell(value)] = mine.get(words.cell(value), 0) + 1
    for field, choose in _FIRST_AND_LAST.items():
        if field in counts:
            counts[field] = {choose(counts[field]): sum(counts[field].values())}
    return {field: sorted(values.items(), key=lambda item: (-item[1], item[0])) for field, values in counts.items()}


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def config_table(runs: RunTable) -> list[tuple[str, str, str | None, str]]:
    """(path, value, default where it differs, sentence) of the knobs that all runs share."""
    if not len(runs):
        return []
    meaning, defaults = knobs(rebuilt(runs.runs[0].params)), RunConfig().flat()
    varied = {*varied_knobs(runs), "seed"}
    found = []
    for path, value in runs.runs[0].params.items():
        if path in varied:
            continue
        text = words.setting(value)
        default = words.setting(defaults[path]) if path in defaults else None
        found.append((path, text, default if default is not None and default != text else None, meaning.get(path, "")))
    return found


def thresholds(runs: RunTable) -> list[str]:
    """The definition of collapse with the numbers that these runs used; more than one if they differ."""
    names = ("ema", "peak", "fall", "recovered", "evaluations", "iterations")
    found = dict.fromkeys(
        tuple(words.setting(run.params.get(f"detect.level.{name}")) for name in names)
        for run in runs.runs
        if "detect.level.fall" in run.params
    )
    return [
        f"y = EMA({ema}) of evaluation success minus the random line; peak = running maximum of y, the start included. "
        f"Something to lose: peak ≥ {peak}. Collapsed at T: the first step from which y < {fall} × peak for "
        f"{evaluations} evaluations (or {iterations} iterations of a rollout metric) and never again ≥ "
        f"{recovered} × peak."
        for ema, peak, fall, recovered, evaluations, iterations in found
    ]
