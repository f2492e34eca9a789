"""Searches and schedulers end to end with the fake trainer: what is proposed, how far it comes, what a restart does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.errors import ConfigError
from ragen_lab.runs import from_home
from ragen_lab.sweep.compete import with_proposals
from ragen_lab.sweep.design import Condition
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.plan import make_plan
from ragen_lab.sweep.plan_text import describe
from ragen_lab.sweep.search import Known, importances, pareto, propose
from ragen_lab.sweep.search_page import Range, SchedulerSection, SearchSection, parse_constraint, rungs
from ragen_lab.sweep.spec import Sweep
from tests.sweep.conftest import calls, numbers

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]

SEARCH = """
base: base.yaml
axes:
  filter.keep_ratio: {low: 0.3, high: 1.0}
  optim.lr: {low: 1e-5, high: 1e-2, log: true}
seeds: 2
search: {kind: optuna, trials: 6, startup: 3}
"""
HALVING = """
base: base.yaml
axes:
  filter.keep_ratio: [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
seeds: 1
scheduler: {kind: asha, first: 2, factor: 2}
"""
PAGES = {
    "search": SEARCH,
    "racing": SEARCH.replace("startup: 3", "startup: 3, first_seeds: 1, margin: 0.02"),
    "asha": HALVING,
    "median": HALVING.replace("kind: asha, first: 2, factor: 2", "kind: median, first: 2, least: 2"),
    "search with asha": SEARCH + "scheduler: {kind: asha, first: 2, factor: 2}\n",
}


def told(home: Path, finished: Finished) -> list[Any]:
    """Everything that a reader of the sweep sees, times apart."""
    runs = {run.trial_id: (run.arm, run.seed, run.status, run.stop_iteration, run.stop_reason, numbers(run.rows))
            for run in from_home(home, "tested")}  # fmt: skip
    return [(trial["trial_id"], trial["status"], runs[trial["trial_id"]]) for trial in finished.result["trials"]]


@pytest.mark.parametrize("kind", PAGES)
def test_a_restart_at_every_step_equals_an_undisturbed_sweep(
    kind: str, sweep_of: Make, drive: Drive, tmp_path: Path
) -> None:
    """With one worker. Each call may begin one trial; then a last call without a bound. Nothing is computed twice,
    and the finished sweep, asked for again, computes nothing."""
    sweep = sweep_of(PAGES[kind])
    whole, _ = drive(sweep, tmp_path / "whole")
    expected = told(tmp_path / "whole", whole)
    statuses = {status for _, status, _ in expected}
    assert "pending" not in statuses
    assert ("pruned" in statuses) == ("asha" in kind or kind == "median")
    assert set(calls(tmp_path / "whole").values()) == {1}
    home = tmp_path / "parts"
    bounded = sweep_of(PAGES[kind], budget__trials=1)
    for _ in range(3):
        drive(bounded, home)
    finished, _ = drive(sweep, home)
    assert told(home, finished) == expected
    assert calls(home) == calls(tmp_path / "whole")
    again, _ = drive(sweep, home)
    assert told(home, again) == expected
    assert calls(home) == calls(tmp_path / "whole")
    assert all(trial["reused"] for trial in again.result["trials"])


def test_a_search_grows_and_a_changed_one_begins_anew(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of(SEARCH), home)
    first = {run.trial_id for run in from_home(home, "tested")}
    assert len(first) == (1 + 6) * 2  # the base is there to be compared with
    drive(sweep_of(SEARCH.replace("trials: 6", "trials: 8")), home)
    grown = {run.trial_id for run in from_home(home, "tested")}
    assert first < grown
    assert len(grown) == (1 + 8) * 2
    drive(sweep_of(SEARCH.replace("low: 0.3", "low: 0.4")), home)
    other = {run.trial_id for run in from_home(home, "tested")}
    assert len(other) == (1 + 6) * 2
    assert len(other & grown) == 2  # only the base
    drive(sweep_of(SEARCH.replace("trials: 6", "trials: 8")), home)  # back: everything is there already
    assert {run.trial_id for run in from_home(home, "tested")} == grown
    assert set(calls(home).values()) == {1}


def test_seeds_added_to_a_search(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """The settings stay, each gets the new seed; what is proposed afterwards may know more."""
    home = tmp_path / "home"
    drive(sweep_of(SEARCH), home)
    drive(sweep_of(SEARCH.replace("seeds: 2", "seeds: 3")), home)
    runs = from_home(home, "tested")
    assert len(runs) == (1 + 6) * 3
    assert {run.status for run in runs} <= {"finished", "collapsed"}
    assert set(calls(home).values()) == {1}


def test_a_space_that_is_used_up(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    page = SEARCH.replace("{low: 0.3, high: 1.0}", "[1.0, 0.5]").replace("{low: 1e-5, high: 1e-2, log: true}", "[1e-4]")
    finished, text = drive(sweep_of(page))
    arms = {trial["arm"] for trial in finished.result["trials"]}
    assert len(arms) <= 3
    assert "The search ends early" in text
    proposals = len(_proposals(tmp_path / "home"))
    _, text = drive(sweep_of(page))
    assert len(_proposals(tmp_path / "home")) == proposals  # and does not try for ever at each call


def test_a_proposal_of_the_base_leaves_it_a_control(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """The base's setting is one of the four; when it is proposed, it still runs to its end, also after a restart."""
    page = """
base: base.yaml
axes: {filter.keep_ratio: [0.25, 0.9], optim.lr: [1.0e-6, 1.0e-5]}
search: {kind: random, trials: 4}
scheduler: {kind: asha, first: 2, factor: 2}
"""
    for _ in range(2):
        finished, _text = drive(sweep_of(page))
        status = {trial["arm"]: trial["status"] for trial in finished.result["trials"]}
        assert status["base"] in ("finished", "collapsed")
    rows = _proposals(tmp_path / "home")
    assert any(row["arm"] == "base" for row in rows)
    assert len(status) == 1 + 3


def _proposals(home: Path) -> list[Any]:
    ledger = Ledger(home)
    found = ledger._read("SELECT * FROM proposals").fetchall()
    ledger.close()
    return found


def test_a_setting_that_no_run_may_have(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """GRPO compares responses: 1 of them is a fault of the combination, found only when it is proposed. It is told to
    the search as failed, and does not count."""
    page = """
base: base.yaml
axes:
  rollout.responses: {low: 1, high: 4}
  algo.name: [ppo, grpo]
search: {kind: random, trials: 5}
"""
    finished, _ = drive(sweep_of(page, filter__kind="random"))
    assert {trial["status"] for trial in finished.result["trials"]} <= {"finished", "collapsed"}
    assert len({trial["arm"] for trial in finished.result["trials"]} - {"base"}) == 5  # of the 6 that are new
    faults = [row["fault"] for row in _proposals(tmp_path / "home") if row["fault"]]
    assert faults
    assert all("1 with algo.name grpo has no group baseline" in fault for fault in faults)


def test_faults_of_a_search_page(sweep_of: Make) -> None:
    def faults(page: str) -> str:
        with pytest.raises(ConfigError) as caught:
            sweep_of(page)
        return str(caught.value)

    assert "axes.filter.keep_ratio: a grid needs a list of values" in faults(SEARCH.replace("kind: optuna, ", ""))
    assert "trials: missing" in faults(SEARCH.replace("trials: 6, ", ""))
    assert "low 2 must be below high 1" in faults(SEARCH.replace("low: 0.3", "low: 2"))
    told = faults(SEARCH.replace("high: 1.0", "high: 3.0"))
    assert "axes.filter.keep_ratio" in told
    assert "less than or equal to 1" in told
    assert "Did you mean 'eval/success'?" in faults(SEARCH.replace("startup: 3", "objectives: [eval/sucess]"))
    assert "neither more nor less" in faults(SEARCH.replace("startup: 3", "objectives: [rollout/entropy]"))
    assert "write METRIC <= NUMBER" in faults(SEARCH.replace("startup: 3", "constraints: [eval/success < 1]"))
    assert "leaves no comparison" in faults(HALVING.replace("first: 2", "first: 8"))
    assert "same train.iterations" in faults(HALVING.replace("seeds: 1", "arms: {long: {train.iterations: 20}}"))


def test_rungs_lie_on_evaluations() -> None:
    """60 iterations, evaluated every 5: 8 (an eighth) becomes 10, then x3 = 30; median: 10, 20, ..."""
    assert rungs(SchedulerSection(kind="asha"), 60, 5) == (10, 30, 60)
    assert rungs(SchedulerSection(kind="asha", first=1, factor=2), 9, 1) == (1, 2, 4, 8, 9)
    assert rungs(SchedulerSection(kind="median", first=10, every=20), 60, 5) == (10, 30, 50, 60)
    assert rungs(SchedulerSection(), 60, 5) == (60,)


SPACE = {"optim.lr": Range(low=1e-5, high=1e-1, log=True), "rollout.prompts": Range(low=2, high=32),
         "filter.kind": ["std", "random"], "filter.keep_ratio": Range(low=0.1, high=1.0)}  # fmt: skip


def hill(params: dict[str, Any]) -> float:
    return -((math.log10(params["optim.lr"]) + 3) ** 2) - (params["filter.kind"] == "random")


def search_over(search: SearchSection, count: int = 30) -> list[Known]:
    known: list[Known] = []
    conditions = [Condition("filter.keep_ratio", {"filter.kind": ("std",)})]
    for number in range(count):
        proposal = propose(SPACE, search, known, conditions)
        values = tuple(hill(proposal.params) if place == 0 else proposal.params["rollout.prompts"] / 32
                       for place in range(len(search.objectives)))  # fmt: skip
        known.append(Known(number, proposal.params, "complete", values, attrs=proposal.attrs))
    return known


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_samplers_learn_from_what_is_told_anew(sampler: Any) -> None:
    """The study is made anew for every proposal; a sampler that lost its memory would go on at random."""
    search = SearchSection(kind="optuna", sampler=sampler, trials=30, startup=6)
    blind = search_over(SearchSection(kind="random", trials=30))
    clever = search_over(search)
    late = [each.values[0] for each in clever[-10:] if each.values]
    assert sum(late) / 10 > sum(each.values[0] for each in blind if each.values) / len(blind) + 0.5
    assert search_over(search)[-1] == clever[-1]
    assert all(("filter.keep_ratio" in each.params) == (each.params["filter.kind"] == "std") for each in clever)
    assert all(isinstance(each.params["rollout.prompts"], int) for each in clever)


def test_constraints_are_heeded() -> None:
    """The higher the better, but above 1e-3 is not allowed: late proposals keep away."""
    search = SearchSection(kind="optuna", trials=40, startup=8, constraints=["eval/format_error_rate <= 0.1"])
    space = {"optim.lr": SPACE["optim.lr"]}

    def late(constrained: bool) -> list[float]:
        known: list[Known] = []
        for number in range(40):
            proposal = propose(space, search, known)
            rate = proposal.params["optim.lr"]
            excess = {"eval/format_error_rate <= 0.1": math.log10(rate) + 3} if constrained else {}
            known.append(Known(number, proposal.params, "complete", (math.log10(rate),), excess=excess))
        return [each.params["optim.lr"] for each in known[-15:]]

    assert sum(rate <= 1e-3 for rate in late(True)) >= sum(rate <= 1e-3 for rate in late(False)) + 4


def test_pareto_and_importance() -> None:
    search = SearchSection(kind="random", trials=30, objectives=["eval/success", "cost"])
    known = search_over(search)
    front = pareto(search, known)
    best = max(known, key=lambda each: each.values[0] if each.values else -math.inf)
    assert best.number in front
    for one in front:
        for other in known:
            mine, theirs = known[one].values, other.values
            assert mine is not None
            assert theirs is not None
            assert not (theirs[0] > mine[0] and theirs[1] < mine[1])
    shares = importances(SPACE, search, known)
    assert shares["eval/success"]["optim.lr"] > 0.4
    assert max(shares["cost"], key=lambda path: shares["cost"][path]) == "rollout.prompts"
    assert importances(SPACE, search, known[:3]) == {}


def test_a_constraint_in_words() -> None:
    assert parse_constraint(" eval/format_error_rate<=1e-1 ") == ("eval/format_error_rate", "<=", 0.1)
    with pytest.raises(ValueError, match="Did you mean"):
        parse_constraint("eval/format_error_rat <= 0.1")


def test_the_plan_of_a_search_says_what_it_does_not_count(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    told = describe(make_plan(sweep_of(SEARCH), home))
    assert "Not counted here: the 6 settings still to be proposed, up to 12 trials more." in told
    drive(sweep_of(SEARCH), home)
    assert "Not counted here" not in describe(make_plan(with_proposals(sweep_of(SEARCH), home), home))


def test_the_journal_is_the_search_as_optuna_knows_it(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What optuna-dashboard would show: every proposal with its values, written anew and not added to."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    from ragen_lab.sweep import searched

    home = tmp_path / "home"
    drive(sweep_of(SEARCH), home)
    monkeypatch.setattr(searched.shutil, "which", lambda name: f"/somewhere/{name}")
    for _ in range(2):
        command = searched.dashboard(home, "tested", 8081)
    assert command[0] == "/somewhere/optuna-dashboard"
    assert command[2:] == ["--host", "127.0.0.1", "--port", "8081"]
    study = optuna.load_study(study_name="tested", storage=JournalStorage(JournalFileBackend(command[1])))
    assert study.metric_names == ["eval/success"]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 6
    means: dict[str, list[float]] = {}
    for run in from_home(home, "tested"):
        last = [row["eval/success"] for row in run.rows if row["iteration"] > 0][-3:]
        means.setdefault(run.arm, []).append(sum(last) / 3 if run.status == "finished" else 0.0)
    assert [round(trial.value or -1, 9) for trial in study.trials] == [
        round(sum(means[trial.user_attrs["arm"]]) / 2, 9) for trial in study.trials
    ]


def test_a_dashboard_that_cannot_be_had(sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: Any) -> None:
    from ragen_lab.sweep import searched

    home = tmp_path / "home"
    drive(sweep_of(seeds=1, train__iterations=2), home)
    monkeypatch.setattr(searched.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="is no search"):  # to install it would not help
        searched.dashboard(home, "tested", 8081)


def test_the_report_of_a_search(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Every setting, its state and value, and the base that it is to be compared with."""
    out = tmp_path / "report.html"
    drive(sweep_of(PAGES["search with asha"]), report=True, out=out)
    page = out.read_text()
    part = page[page.index('<section id="search">') : page.index('<section id="tests">')]
    assert "6 settings asked for" in part
    assert "ended by the scheduler" in part
    for run in from_home(tmp_path / "home", "tested"):
        assert run.arm in page
        assert run.arm in part or run.arm == "base"
    assert part.count("ended by the scheduler") >= 2
    drive(sweep_of(HALVING), tmp_path / "other", report=True, out=out)
    assert '<section id="search">' not in out.read_text()  # a grid is no search
