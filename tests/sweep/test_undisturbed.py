"""With one worker, settings that compete come out the same whatever happens on the way: kills, Ctrl-C, a retry."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.runs import from_home
from ragen_lab.sweep import compete
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.ledger import Ledger
from ragen_lab.sweep.search import Known
from ragen_lab.sweep.searched import found_in
from ragen_lab.sweep.spec import Sweep, load_sweep
from tests.sweep import fake
from tests.sweep.test_search import told

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]

GRID = """
base: base.yaml
axes:
  filter.keep_ratio: [0.7, 0.35, 0.8, 1.0]
seeds: 2
"""
SEARCH = """
base: base.yaml
axes:
  filter.keep_ratio: {low: 0.3, high: 1.0}
  optim.lr: {low: 1e-5, high: 1e-2, log: true}
seeds: 2
search: {kind: optuna, trials: 3, startup: 2}
"""
ASHA = "scheduler: {kind: asha, first: 1, factor: 2}\n"
MEDIAN = "scheduler: {kind: median, first: 1, least: 2}\n"
PAGES = {
    "asha": GRID + ASHA,
    "median": GRID.replace("0.7, 0.35, 0.8, 1.0", "0.7, 0.35, 0.8") + MEDIAN,
    # The third is ended when two better ones are there; beside the worse ones that come later it would not be.
    "median, one seed": GRID.replace("seeds: 2", "seeds: 1").replace("1.0]", "1.0, 0.6, 0.4]") + MEDIAN,
    "optuna": SEARCH,
    "racing": SEARCH.replace("startup: 2", "startup: 2, first_seeds: 1, margin: 0.02"),
    "optuna with asha": SEARCH + ASHA,
    "optuna with median": SEARCH + MEDIAN.replace("least: 2", "least: 1"),
    "two objectives": SEARCH.replace("startup: 2", "startup: 2, objectives: [eval/success, cost]") + ASHA,
}


def small(sweep_of: Make, kind: str) -> Sweep:
    return sweep_of(PAGES[kind], train__iterations=3)


def attempted(home: Path) -> list[str]:
    """Arm and seed of every attempt, in the order in which they began."""
    ledger = Ledger(home)
    rows = ledger._read(
        "SELECT arm, seed FROM attempts JOIN sweep_trials USING (sweep, trial_id) ORDER BY attempts.id"
    ).fetchall()
    ledger.close()
    return [f"{row['arm'].partition(' ')[0]} {row['seed']}" for row in rows]


@contextmanager
def copied(home: Path, copies: Path) -> Iterator[list[Path]]:
    """Copies of the home as a driver that is killed would leave it: before every change of the ledger that matters."""
    made: list[Path] = []

    def copying(change: Callable[..., Any]) -> Callable[..., Any]:
        def copied_before(self: Ledger, *more: Any) -> Any:
            if self.home == home:
                made.append(shutil.copytree(home, copies / str(len(made))))
            return change(self, *more)

        return copied_before

    with pytest.MonkeyPatch.context() as patch:
        for name in ("join", "ask", "end", "prune", "attempt_ended"):  # a start changes nothing that decides
            patch.setattr(Ledger, name, copying(getattr(Ledger, name)))
        yield made


@contextmanager
def interrupted_at(step: int) -> Iterator[list[bool]]:
    """Ctrl-C at the ``step``-th iteration that is computed."""
    died: list[bool] = []
    count = iter(range(10**6))

    def trouble(home: Path, name: str, iteration: int) -> None:
        if next(count) == step:
            died.append(True)
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake, "_trouble", trouble)
        yield died


@pytest.mark.parametrize("kind", PAGES)
def test_killed_at_any_moment(kind: str, sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Every state in which a driver can leave the ledger, and from there to the end."""
    sweep = small(sweep_of, kind)
    with copied(tmp_path / "whole", tmp_path / "copies") as copies:
        whole, _ = drive(sweep, tmp_path / "whole")
    expected = told(tmp_path / "whole", whole)
    assert len(copies) > 10
    for home in copies:
        finished, _ = drive(sweep, home)
        assert told(home, finished) == expected, f"killed at moment {home.name}"


@pytest.mark.parametrize("kind", PAGES)
def test_interrupted_again_and_again(kind: str, sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Ctrl-C in the middle of every third trial or so, until nothing is left to do."""
    sweep = small(sweep_of, kind)
    whole, _ = drive(sweep, tmp_path / "whole")
    home = tmp_path / "parts"
    for each in range(200):
        with interrupted_at(4 + each % 3) as died:
            finished, _ = drive(sweep, home)
        if not died:
            break
        assert finished.exit_code == 130
    assert each > 2
    assert told(home, finished) == told(tmp_path / "whole", whole)


@pytest.mark.parametrize(("kind", "workers"), [("optuna", 0), ("optuna with asha", 0), ("optuna with asha", 1)])
def test_a_retry_changes_nothing(kind: str, workers: int, sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """While a failed trial waits for its next attempt, nothing is proposed without its result."""
    sweep = sweep_of(PAGES[kind], train__iterations=4)
    whole, _ = drive(sweep, tmp_path / "whole")
    home = tmp_path / "home"
    home.mkdir()
    for trial in whole.result["trials"]:
        if trial["arm"].startswith("#"):
            (home / f"fail-{trial['trial_id']}").write_text("1")
    finished, text = drive(sweep, home, workers=workers)
    assert "Trying again" in text
    assert told(home, finished) == told(tmp_path / "whole", whole)


@pytest.mark.parametrize("kind", ["asha", "median"])
def test_the_first_seed_of_every_setting_comes_first(kind: str, sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Of a grid: within each rung, so that early results are of every setting."""
    sweep = small(sweep_of, kind)
    drive(sweep, tmp_path / "home")
    order = attempted(tmp_path / "home")
    count = len(sweep.arms)
    assert order[: 2 * count] == [f"{arm.name} {seed}" for seed in (0, 1) for arm in sweep.arms]
    rest = order[2 * count :]
    assert rest[0].split()[1] == rest[1].split()[1] == "0"  # two settings that go on, the first seed of each


# --- what a failed setting is told as ---


def told_at_the_end(sweep: Sweep, home: Path, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> list[Known]:
    """What the driver would tell Optuna after the sweep; the report must say the same."""
    seen: list[compete.Competition] = []
    before = compete.Competition.__post_init__
    monkeypatch.setattr(compete.Competition, "__post_init__", lambda self: (before(self), seen.append(self))[0])
    drive(sweep, home)
    known = seen[-1].known()
    found = found_in(home, "tested", from_home(home, "tested"))
    assert found is not None
    assert [(each.number, each.state, each.values) for each in found.known] == [
        (each.number, each.state, each.values) for each in known
    ]
    return known


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make trials fail at an iteration: those whose learning rate and seed ``when`` says, each time."""

    def make(when: Callable[[float, int], bool], at: int = 1) -> None:
        before = fake.train

        def train(cfg: Any, tracker: Any, *more: Any) -> Any:
            def log(iteration: int, metrics: Any) -> None:
                if iteration == at and when(cfg.optim.lr, cfg.seed):
                    raise ValueError("made to break")
                wrote(iteration, metrics)

            wrote, tracker.log = tracker.log, log
            return before(cfg, tracker, *more)

        monkeypatch.setattr(fake, "train", train)
        monkeypatch.setattr("ragen_lab.sweep.retry.FIRST_WAIT", 0.01)

    return make


LEVELS = SEARCH.replace("{low: 1e-5, high: 1e-2, log: true}", "[1e-4, 3e-3]")


@pytest.mark.parametrize("scheduler", ["", ASHA, MEDIAN])
@pytest.mark.parametrize("which", ["every seed", "one seed"])
def test_a_failed_setting_is_told_as_failed(
    which: str, scheduler: str, sweep_of: Make, drive: Drive, breaking: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Its rows before the failure (the warm start's success among them) are no result, and one seed is no mean."""
    breaking(lambda lr, seed: lr == 3e-3 and (which == "every seed" or seed == 1))
    known = told_at_the_end(sweep_of(LEVELS + scheduler, train__iterations=4), tmp_path / "home", drive, monkeypatch)
    states: dict[float, set[str]] = {each.params["optim.lr"]: set() for each in known}
    for each in known:
        states[each.params["optim.lr"]].add(each.state)
        assert (each.values is None) == (each.state == "failed")
    assert states[3e-3] == {"failed"}
    assert states[1e-4] <= {"complete", "pruned"}
    for run in from_home(tmp_path / "home", "tested"):
        if run.params["optim.lr"] == 3e-3:
            assert run.status in ("failed", "stopped", "finished")  # never ended by the scheduler, never promoted
            assert len(run.rows) <= (5 if not scheduler else 2)


def test_a_setting_that_fails_at_its_extra_seed(
    sweep_of: Make, drive: Drive, breaking: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Racing: its first seed still counts for the others, but the setting is told as failed."""
    breaking(lambda lr, seed: seed == 1)
    page = SEARCH.replace("startup: 2", "startup: 2, first_seeds: 1, margin: 1")
    known = told_at_the_end(sweep_of(page, train__iterations=3), tmp_path / "home", drive, monkeypatch)
    assert [each.state for each in known] == ["failed"] * 3


def test_what_another_sweep_has_computed_is_not_told(
    sweep_of: Make, write: Callable[..., Path], drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders hold every setting to its end; one that rests at the first rung is worth what it was there."""
    page = """
base: base.yaml
axes: {filter.keep_ratio: {low: 0.3, high: 1.0}}
search: {kind: random, trials: 3}
"""
    drive(load_sweep(write(page, name="other"), {"track.mlflow": False, "train.iterations": 3}), tmp_path / "home")
    heard: dict[str, list[Known]] = {"alone": [], "home": []}
    before = compete.Competition.known
    for home, each in heard.items():

        def known(self: compete.Competition, each: list[Known] = each) -> list[Known]:
            each += before(self)
            return before(self)

        monkeypatch.setattr(compete.Competition, "known", known)
        drive(sweep_of(page + ASHA, train__iterations=3), tmp_path / home)
    assert heard["home"] == heard["alone"]
    assert ("pruned", 1) in [(each.state, each.step) for each in heard["home"]]


# --- several objectives ---


def test_a_pruned_setting_is_no_result_of_several_objectives(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Optuna is told that it was pruned, and no values: what it had cost by then would make it look cheap."""
    import optuna

    from ragen_lab.sweep import search, searched

    home = tmp_path / "home"
    drive(small(sweep_of, "two objectives"), home)
    found = searched.found_in(home, "tested", from_home(home, "tested"))
    assert found is not None
    assert {each.state for each in found.known} == {"complete", "pruned"}
    study = search._study(found.space, found.search, found.known)
    for each, trial in zip(found.known, study.trials, strict=True):
        pruned = each.state == "pruned"
        assert trial.state == (optuna.trial.TrialState.PRUNED if pruned else optuna.trial.TrialState.COMPLETE)
        assert (trial.values is None) == pruned
        assert trial.intermediate_values == {}
    assert all(
        each.number not in search.pareto(found.search, found.known) for each in found.known if each.state == "pruned"
    )


@pytest.mark.parametrize("kind", ["optuna", "two objectives"])
def test_the_cost_of_a_setting_is_that_of_a_whole_run(
    kind: str, sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: Any
) -> None:
    """4 iterations of a batch each, whether it came to its end, collapsed on the way or was pruned."""
    page = PAGES[kind].replace("low: 0.3", "low: 0.25").replace("{low: 0.25, high: 1.0}", "[0.25, 1.0, 0.9]")
    page = page.replace("startup: 2", "startup: 2, constraints: [cost <= 0.1]")
    if "cost]" not in page:
        page = page.replace("startup: 2", "startup: 2, objectives: [eval/success, cost]")
    sweep = sweep_of(page, train__iterations=8)
    known = told_at_the_end(sweep, tmp_path / "home", drive, monkeypatch)
    cfg = sweep.trials[0].cfg
    whole = 8 * cfg.rollout.prompts * cfg.rollout.responses / 1000
    assert {each.values[1] for each in known if each.values} == {whole}
    assert {each.excess["cost <= 0.1"] for each in known if each.values} == {whole - 0.1}
    statuses = {run.status for run in from_home(tmp_path / "home", "tested")}
    assert "collapsed" in statuses
