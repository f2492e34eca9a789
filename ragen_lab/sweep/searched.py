"""What a search has found, read from the home: for the report, and as a journal for optuna-dashboard."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen_lab.errors import ConfigError
from ragen_lab.report.searched import Searched, Setting
from ragen_lab.runs import Run, RunTable, View, from_home, reading_ledger, sweep_record
from ragen_lab.sweep.compete import Result, as_known
from ragen_lab.sweep.ledger import proposals_of
from ragen_lab.sweep.rounds import Stage, State, state_of
from ragen_lab.sweep.search import Known, importances, pareto, write_journal
from ragen_lab.sweep.search_page import Range, SearchSection, better


@dataclass(frozen=True)
class Found:
    """A search and its proposals."""

    search: SearchSection
    space: dict[str, Any]
    known: list[Known]
    seeds: dict[str, int]  # setting -> trials that it was given
    faults: dict[int, str]  # proposal -> why no run may have it


def found_in(home: Path, sweep: str, runs: RunTable) -> Found | None:
    """What the ledger and the runs of a sweep say of its search; None for a sweep that is none."""
    record = sweep_record(home, sweep)
    if not record.get("search"):
        return None
    stored = json.loads(record["search"])
    search = SearchSection.model_validate(stored["search"])
    space = {path: Range(**axis) if isinstance(axis, dict) else axis for path, axis in stored["space"].items()}
    with reading_ledger(home) as ledger:
        rows = proposals_of(ledger, sweep, stored["key"])
    of_arm: dict[str, list[Run]] = {}
    for run in runs:
        of_arm.setdefault(run.arm, []).append(run)
    known = []
    for row in rows:
        mine = of_arm.get(row["arm"] or "", [])
        known.append(as_known(row, search, _state(mine), [_result(run) for run in mine]))
    seeds = {arm: len(each) for arm, each in of_arm.items()}
    return Found(search, space, known, seeds, {row["number"]: row["fault"] for row in rows if row["fault"]})


_STAGES: dict[str, Stage] = {"finished": "ended", "collapsed": "ended", "pruned": "rests", "failed": "failed"}


def _state(runs: list[Run]) -> State:
    if not runs:  # no run may have this setting
        return "failed"
    return state_of({_STAGES.get(run.status, "open") for run in runs})


def _result(run: Run) -> Result:
    view = View(run.status in ("finished", "collapsed", "pruned"), run.status, run.rows, run.stop_iteration)
    batch = run.params["rollout.prompts"] * run.params["rollout.responses"]
    return Result(view, batch, run.params["train.iterations"])


def summary(home: Path, sweep: str, runs: RunTable) -> Searched | None:
    """The search for the report."""
    found = found_in(home, sweep, runs)
    if found is None:
        return None
    search = found.search
    front = set(pareto(search, found.known))
    settings = tuple(
        Setting(
            number=each.number,
            arm=each.name,
            params=each.params,
            state=each.state,
            seeds=found.seeds.get(each.name, 0),
            values=each.values,
            missed=tuple(text for text, excess in each.excess.items() if excess > 0),
            best=each.number in front,
            fault=found.faults.get(each.number),
        )
        for each in found.known
    )
    how = {"random": "random search", "optuna": f"Optuna, {search.sampler.upper().replace('NSGA2', 'NSGA-II')}"}
    return Searched(
        how=how[search.kind],
        seed=search.seed,
        asked=search.trials or 0,
        objectives=tuple((name, better(name)) for name in search.objectives),
        constraints=tuple(search.constraints),
        raced=search.first_seeds is not None,
        settings=settings,
        importances=importances(found.space, search, found.known),
    )


def dashboard(home: Path, sweep: str, port: int) -> list[str]:
    """Write the journal of a search anew; the command that shows it. Raises ConfigError."""
    found = found_in(home, sweep, from_home(home, sweep))
    if found is None:
        raise ConfigError(
            "dashboard", [f"{sweep} is no search, so there is nothing of Optuna's to show. See its report."]
        )
    program = shutil.which("optuna-dashboard")
    if program is None:
        raise ConfigError(
            "dashboard", ["optuna-dashboard is not installed; install it with: pip install optuna-dashboard"]
        )
    file = home / "optuna" / f"{sweep}.journal"
    write_journal(file, sweep, found.space, found.search, found.known)
    return [program, os.fspath(file.absolute()), "--host", "127.0.0.1", "--port", str(port)]
