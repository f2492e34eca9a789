"""What a report is told of a search: states of settings, and which are the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ragen_lab.report.searched import Searched
from ragen_lab.runs import RunTable, from_home
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.searched import summary
from ragen_lab.sweep.spec import Sweep

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]
SEARCH = """
base: base.yaml
axes:
  filter.keep_ratio: {low: 0.3, high: 1.0}
seeds: 2
search: {kind: random, trials: 3}
"""


def told(home: Path, runs: RunTable | None = None) -> Searched:
    found = summary(home, "tested", runs or from_home(home, "tested"))
    assert found is not None
    return found


def test_the_best_setting_of_one_objective_is_the_one_of_highest_value(
    sweep_of: Make, drive: Drive, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    drive(sweep_of(SEARCH), home)
    search = told(home)
    assert search.objectives == (("eval/success", "up"),)
    values = {each.arm: each.values[0] for each in search.settings if each.values}
    assert len(set(values.values())) == 3
    assert [each.arm for each in search.settings if each.best] == [max(values, key=lambda arm: values[arm])]


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        (("finished", "finished"), "complete"),
        (("finished", "collapsed"), "complete"),
        (("finished", "pruned"), "pruned"),
        (("finished", "stopped"), "running"),
        (("failed", "failed"), "failed"),
    ],
)
def test_a_setting_is_complete_when_each_of_its_trials_is(
    sweep_of: Make, drive: Drive, tmp_path: Path, statuses: tuple[str, str], state: str
) -> None:
    home = tmp_path / "home"
    drive(sweep_of(SEARCH, train__iterations=2), home)
    runs = from_home(home, "tested")
    arm = told(home).settings[0].arm
    changed = [replace(run, status=statuses[run.seed]) if run.arm == arm else run for run in runs]
    states = {each.arm: each.state for each in told(home, RunTable(tuple(changed))).settings}
    assert states.pop(arm) == state
    assert set(states.values()) == {"complete"}
