"""Which changes of a page begin a new search, and by which metric a sweep compares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.runs import View
from ragen_lab.sweep import compete
from ragen_lab.sweep.compete import Competition, FolderResults, search_key
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.spec import Sweep

Make = Callable[..., Sweep]
KEEP, RATE = "  filter.keep_ratio: {low: 0.3, high: 1.0}\n", "  optim.lr: {low: 1e-5, high: 1e-2, log: true}\n"
PAGE = f"""
base: base.yaml
axes:
{KEEP}{RATE}seeds: 2
search: {{kind: optuna, trials: 6, startup: 3, objectives: [eval/success, cost]}}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("trials: 6", "trials: 9"),
        ("startup: 3", "startup: 3, first_seeds: 1"),
        ("startup: 3", "startup: 3, margin: 0.2"),
        ("seeds: 2", "seeds: [7, 8, 9]"),
        ("seeds: 2", "seeds: 2\nscheduler: {kind: asha, first: 2}"),
        ("seeds: 2", "seeds: 2\nbudget: {trials: 3}"),
        (KEEP + RATE, RATE + KEEP),
    ],
)
def test_a_search_goes_on_where_proposals_do_not_depend_on_the_change(old: str, new: str, sweep_of: Make) -> None:
    assert old in PAGE
    assert search_key(sweep_of(PAGE.replace(old, new))) == search_key(sweep_of(PAGE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("startup: 3", "startup: 4"),
        ("startup: 3", "startup: 3, seed: 1"),
        ("startup: 3", "startup: 3, sampler: nsga2"),
        ("startup: 3", "startup: 3, constraints: [cost <= 1]"),
        ("kind: optuna", "kind: random"),
        ("[eval/success, cost]", "[cost, eval/success]"),
        ("[eval/success, cost]", "[eval/success]"),
        ("low: 0.3", "low: 0.4"),
        (RATE, "  optim.lr: [1e-5, 1e-2]\n"),
        (RATE, ""),
        ("seeds: 2", "seeds: 2\nties: {optim.minibatch: 2 * rollout.responses}"),
        ("seeds: 2", "seeds: 2\nconstraints: [optim.lr < 1e-3]"),
        ("seeds: 2", "seeds: 2\nwhen: {filter.keep_ratio: {filter.kind: [std]}}"),
    ],
)
def test_a_search_begins_anew_where_proposals_depend_on_the_change(old: str, new: str, sweep_of: Make) -> None:
    assert old in PAGE
    assert search_key(sweep_of(PAGE.replace(old, new))) != search_key(sweep_of(PAGE))


@pytest.mark.parametrize(
    ("knob", "value", "anew"),
    [("optim__epochs", 2, True), ("eval__prompts", 64, True), ("train__iterations", 9, False)],  # longer: it grows
)
def test_a_search_begins_anew_on_a_base_of_other_numbers(knob: str, value: int, anew: bool, sweep_of: Make) -> None:
    assert (search_key(sweep_of(PAGE, **{knob: value})) != search_key(sweep_of(PAGE))) == anew


def test_a_search_begins_anew_where_the_numbers_of_every_run_have_changed(sweep_of: Make, monkeypatch: Any) -> None:
    before = search_key(sweep_of(PAGE))
    monkeypatch.setattr(compete, "SCHEMA_VERSION", compete.SCHEMA_VERSION + 1)
    assert search_key(sweep_of(PAGE)) != before


@pytest.mark.parametrize(
    ("objectives", "scheduler", "metric"),
    [
        ("rollout/reward_mean, eval/success", "kind: fifo", "rollout/reward_mean"),
        ("cost, rollout/reward_mean", "kind: fifo", "eval/success"),  # no metric of a row
        ("rollout/reward_mean", "kind: asha, first: 2", "eval/success"),
        ("rollout/reward_mean", "kind: asha, first: 2, metric: rollout/success", "rollout/success"),
    ],
)
def test_a_race_is_about_the_first_objective_and_rungs_about_the_schedulers_metric(
    objectives: str, scheduler: str, metric: str, sweep_of: Make, tmp_path: Path
) -> None:
    page = PAGE.replace("eval/success, cost", objectives) + f"scheduler: {{{scheduler}}}\n"
    ledger = Ledger(tmp_path / "home")
    made = Competition(sweep_of(page), ledger, lambda name: View(False, "pending"), lambda *_: None, lambda _: None)
    ledger.close()
    assert isinstance(made.rounds.results, FolderResults)
    assert made.rounds.results.metric == metric
