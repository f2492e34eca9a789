"""The source of jobs of a sweep: its trials in order, or settings that compete, fed from ledger and folders."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_lab.errors import ConfigError
from ragen_lab.runs import LEDGER_FILE, View, ended_at, reading_ledger
from ragen_lab.sections import SCHEMA_VERSION
from ragen_lab.sweep import design
from ragen_lab.sweep.desk import Job
from ragen_lab.sweep.ledger import Ledger, proposals_of
from ragen_lab.sweep.rounds import BELOW_MEDIAN, Candidate, Rounds, State
from ragen_lab.sweep.search_page import DERIVED, Range, SearchSection, better, parse_constraint, rungs
from ragen_lab.sweep.spec import Arm, Sweep, Trial, trial_of
from ragen_lab.sweep.ties import TieError

if TYPE_CHECKING:  # optuna takes half a second to import, and most sweeps need none
    from ragen_lab.sweep.search import Known

LAST = 3  # evaluations behind a level, as behind the final success of a report
SUCCESS, RANDOM = "eval/success", "eval/random"
MOST_MISSES = 20  # proposals in a row that are known already or not allowed: the space is used up


def level_of(view: View, metric: str, until: int) -> float | None:
    """The mean of the last values of a metric up to iteration ``until``; None without a finite one.

    The start counts only where nothing came after it. A run that was stopped as collapsed has the success of random
    play from there on: what it had before is not where it would have been.
    """
    if metric == SUCCESS and view.status == "collapsed" and view.iteration <= until:
        floor = next((row[RANDOM] for row in reversed(view.rows) if RANDOM in row), 0.0)
        return floor if math.isfinite(floor) else 0.0
    values = [row[metric] for row in view.rows[: until + 1] if metric in row and row["iteration"] > 0]
    values = values or [row[metric] for row in view.rows[:1] if metric in row]
    finite = [value for value in values[-LAST:] if math.isfinite(value)]
    return statistics.fmean(finite) if finite else None


@dataclass(frozen=True)
class FolderResults:
    """What competes, read from the views that the driver keeps up to date."""

    view: Callable[[str], View]
    metric: str

    @property
    def sign(self) -> float:
        return 1.0 if better(self.metric) == "up" else -1.0

    def reached(self, trial: Trial, until: int) -> bool:
        iteration = self.view(trial.trial_id).iteration
        return iteration >= min(until, trial.cfg.train.iterations) or self.collapsed(trial, until)

    def collapsed(self, trial: Trial, until: int) -> bool:
        view = self.view(trial.trial_id)
        return view.status == "collapsed" and view.iteration <= until

    def level(self, trial: Trial, until: int) -> float | None:
        level = level_of(self.view(trial.trial_id), self.metric, until)
        return None if level is None else self.sign * level

    def history(self, trial: Trial, until: int) -> dict[int, float]:
        view = self.view(trial.trial_id)
        found = {
            int(row["iteration"]): self.sign * row[self.metric]
            for row in view.rows[: until + 1]
            if self.metric in row and math.isfinite(row[self.metric])
        }
        if view.status == "collapsed" and (level := self.level(trial, until)) is not None:
            every = trial.cfg.eval.every if self.metric.startswith("eval/") else 1
            found |= {at: level for at in range(0, until + 1, every) if at > view.iteration}  # it stays where it fell
        return found


def objective_values(results: Sequence[Result], names: Sequence[str]) -> tuple[float, ...] | None:
    """The objectives of a setting, the mean over its seeds each; None where one cannot be had."""
    found = []
    for name in names:
        each = [_objective(result, name) for result in results]
        if not each or any(value is None for value in each):
            return None
        found.append(statistics.fmean(value for value in each if value is not None))
    return tuple(found)


@dataclass(frozen=True)
class Result:
    """One trial of a setting as far as it counts. ``batch``: trajectories per iteration; ``iterations``: of a whole
    run."""

    view: View
    batch: int
    iterations: int


def _objective(result: Result, name: str) -> float | None:
    view = result.view
    if name == "collapses":
        return float(view.status == "collapsed" or any(row.get("detect/stop") == 1.0 for row in view.rows))
    if name == "cost":  # of a whole run: to have been ended early makes no setting cheap
        return result.iterations * result.batch / 1000
    if name == "seconds":
        spent = math.fsum(row.get("time/rollout_seconds", 0) + row.get("time/update_seconds", 0) for row in view.rows)
        return spent * result.iterations / max(1, view.iteration)
    return level_of(view, name, view.iteration)


def as_known(row: Mapping[str, Any], search: SearchSection, state: State, results: Sequence[Result]) -> Known:
    """A proposal of the ledger with what became of it, as the search is told of it."""
    from ragen_lab.sweep.search import Known

    found = Known(
        row["number"], json.loads(row["params"]), state, attrs=json.loads(row["attrs"]), name=row["arm"] or ""
    )
    values = objective_values(results, search.objectives) if state in ("complete", "pruned") else None
    if values is None:
        return replace(found, state="running" if state == "running" else "failed")
    step = max(result.view.iteration for result in results) if state == "pruned" else None
    excess = {text: _excess(text, results) for text in search.constraints}
    return replace(found, values=values, step=step, excess=excess)


def _excess(constraint: str, results: Sequence[Result]) -> float:
    """By how much a setting misses a constraint; a number that cannot be had counts as missed by 1."""
    name, sign, bound = parse_constraint(constraint)
    values = objective_values(results, [name])
    if values is None:
        return 1.0
    return values[0] - bound if sign == "<=" else bound - values[0]


def search_record(sweep: Sweep) -> dict[str, Any] | None:
    """What a reader of the ledger needs of a search; None for a sweep without one."""
    if sweep.search.kind == "grid":
        return None
    return {"key": search_key(sweep), "search": sweep.search.model_dump(), "space": _plain_space(sweep)}


def _plain_space(sweep: Sweep) -> dict[str, Any]:
    """The axes of a search as plain data."""
    return {path: axis.model_dump() if isinstance(axis, Range) else axis for path, axis in sweep.space.items()}


def search_key(sweep: Sweep) -> str:
    """Names what proposals depend on, so that a changed page begins a new search; more trials do not change it."""
    assert sweep.template is not None
    search = sweep.search.model_dump(exclude={"trials", "first_seeds", "margin"})
    base = sweep.trials[0].cfg.identity()
    rules = [sweep.template.ties, sweep.template.constraints, [repr(each) for each in sweep.template.conditions]]
    told = [SCHEMA_VERSION, search, _plain_space(sweep), rules, {k: v for k, v in base.items() if k != "seed"}]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


def with_proposals(sweep: Sweep, home: Path) -> Sweep:
    """The sweep with the settings that its search has proposed so far in a home, which need not exist."""
    if sweep.search.kind == "grid" or not (home / LEDGER_FILE).is_file():
        return sweep
    with reading_ledger(home) as ledger:
        if ledger.execute("SELECT 1 FROM sqlite_master WHERE name = 'proposals'").fetchone() is None:
            return sweep  # a ledger of an older version, which only the next sweep brings up to date
        rows = proposals_of(ledger, sweep.name, search_key(sweep))
        query = "SELECT trial_id FROM sweep_trials WHERE sweep = ? AND until IS NOT NULL"
        asked = {row["trial_id"] for row in ledger.execute(query, (sweep.name,))}
    arms, trials = list(sweep.arms), list(sweep.trials)
    known = {arm.name for arm in arms}
    for row in rows:
        if row["arm"] is None or row["arm"] in known:
            continue
        known.add(row["arm"])
        arm, added = _arm(sweep, row["arm"], json.loads(row["params"]))
        arms.append(arm)
        trials += [trial for place, trial in enumerate(added) if place < _first(sweep) or trial.trial_id in asked]
    return replace(sweep, arms=tuple(arms), trials=tuple(trials))


def _is_its_own(row: Mapping[str, Any]) -> bool:
    """Whether a proposal became a setting of its own, rather than one that was there already."""
    return str(row["arm"]).startswith(f"#{row['number']} ")


def _first(sweep: Sweep) -> int:
    """Seeds that every setting of a search gets."""
    return min(len(sweep.seeds), sweep.search.first_seeds or len(sweep.seeds))


def _arm(sweep: Sweep, name: str, params: Mapping[str, Any]) -> tuple[Arm, list[Trial]]:
    """A setting and its trials, one per seed. Raises ConfigError and TieError."""
    assert sweep.template is not None
    changes, cfg = sweep.template.resolve(dict(params), name)
    return Arm(name, changes, True), [trial_of(name, seed, cfg) for seed in sweep.seeds]


@dataclass
class Competition:
    """A source: rounds over the arms of a sweep and, for a search, its proposals."""

    sweep: Sweep
    ledger: Ledger
    view: Callable[[str], View]
    joined: Callable[[Arm | None, list[Trial]], None]  # trials have come into the sweep, with their arm if it is new
    warn: Callable[[str], None]
    adaptive: bool = True
    _first: Job | None = None

    def __post_init__(self) -> None:
        sweep = self.sweep
        cfg = sweep.trials[0].cfg
        asked = self.ledger.asked(sweep.name)
        self.ends = self.ledger.pruned(sweep.name)
        self.own = {arm.name for arm in sweep.arms}  # not proposed: controls under a search
        self.searches = sweep.search.kind != "grid"
        self.key = search_key(sweep) if self.searches else ""
        self.rows = self.ledger.proposals(sweep.name, self.key) if self.searches else []
        self.own -= {row["arm"] for row in self.rows if _is_its_own(row)}
        self.rungs = rungs(sweep.scheduler, cfg.train.iterations, cfg.eval.every)
        metric = sweep.scheduler.metric
        if sweep.scheduler.kind == "fifo" and self.searches and sweep.search.objectives[0] not in DERIVED:
            metric = sweep.search.objectives[0]
        arms: dict[str, list[Trial]] = {}
        for trial in sweep.trials:
            arms.setdefault(trial.arm, []).append(trial)
        for row in self.rows:
            if row["arm"] is not None and row["arm"] not in self.own:  # with the seeds that it may yet get
                arms[row["arm"]] = _arm(sweep, row["arm"], json.loads(row["params"]))[1]
        self.rounds = Rounds(
            [self._candidate(name, trials, asked) for name, trials in arms.items()],
            self.rungs,
            FolderResults(self.view, metric),
            record=self._record,
            propose=self._propose if self.searches else lambda: None,
            exhausted=self._exhausted if self.searches else lambda: True,
            rule=sweep.scheduler.kind,
            factor=sweep.scheduler.factor,
            least=sweep.scheduler.least,
            margin=sweep.search.margin,
        )

    def prime(self) -> bool:
        """Whether there is anything to do, as far as the folders tell."""
        self._first = self.rounds.take()
        return self._first is not None

    def take(self) -> Job | None:
        job, self._first = self._first, None
        return job or self.rounds.take()

    def ended(self, trial_id: str, failed: bool) -> None:
        self.rounds.ended(trial_id, failed)

    def _candidate(self, name: str, trials: Sequence[Trial], asked: Mapping[str, int]) -> Candidate:
        fixed = self.searches and name in self.own
        reached = [asked[trial.trial_id] for trial in trials if trial.trial_id in asked]
        first = len(trials) if fixed or not self.searches else _first(self.sweep)
        candidate = Candidate(name, tuple(trials), max(len(reached), first), fixed=fixed)
        if reached:
            candidate.rung = max((i for i, at in enumerate(self.rungs) if at <= max(reached)), default=0)
        if self.sweep.scheduler.kind == "median" and candidate.rung >= 0:  # final, unlike a promotion not yet earned
            told = [self.ends[trial.trial_id] for trial in trials if trial.trial_id in self.ends]
            at = self.rungs[candidate.rung]
            candidate.ended = next((why for end, why in told if end == at and why.startswith(BELOW_MEDIAN)), None)
        return candidate

    def _record(self, candidate: Candidate) -> None:
        until = self.rungs[candidate.rung]
        there = {trial.trial_id for trial in self.sweep.trials}
        if fresh := [trial for trial in candidate.trials[: candidate.seeds] if trial.trial_id not in there]:
            self.ledger.join(self.sweep, fresh)
            self._join(None, fresh)
        given = [trial.trial_id for trial in candidate.trials[: candidate.seeds]]
        if candidate.ended is not None and candidate.rung < len(self.rungs) - 1:
            self.ledger.end(self.sweep.name, given, until, candidate.ended)  # now: later there is more to compare with
        else:
            self.ledger.ask(self.sweep.name, given, until)

    def pruned(self, final: bool) -> dict[str, tuple[int, str]]:
        """Trial id -> (iteration, why) of what the scheduler has ended; ``final``: nothing more is going to run."""
        found: dict[str, tuple[int, str]] = {}
        for candidate, at in self.rounds.resting():
            if candidate.ended is None and not final:
                continue
            why = candidate.ended or f"not among the best at iteration {at}"
            found |= {trial.trial_id: (at, why) for trial in candidate.trials[: candidate.seeds]}
        return found

    # --- the search ---

    def _propose(self) -> Candidate | None:
        from ragen_lab.sweep.search import propose

        sweep, tried = self.sweep, False
        while not self._exhausted():
            number, tried = len(self.rows), True
            template = sweep.template
            assert template is not None
            proposal = propose(sweep.space, sweep.search, self.known(), template.conditions, template.plain())
            name = f"#{number} {label(proposal.params)}"[:100]
            row: dict[str, Any] = {
                "number": number,
                "search": self.key,
                "arm": None,
                "params": json.dumps(proposal.params),
                "attrs": json.dumps(proposal.attrs),
                "fault": None,
            }
            try:
                arm, trials = _arm(sweep, name, proposal.params)
            except (ConfigError, TieError) as error:
                faults = error.faults if isinstance(error, ConfigError) else [str(error)]
                row["fault"] = " ".join(faults)
                trials = []
            same = next((t.arm for t in self.sweep.trials for each in trials if t.trial_id == each.trial_id), None)
            self.rows.append({**row, "arm": same or (name if trials else None)})
            given = trials[: _first(sweep)]
            self.ledger.join(sweep, [] if same else given, self.rows[-1])
            if same or not trials:
                continue
            self._join(arm, given)
            return self._candidate(name, trials, {})
        if tried and self._misses_in_a_row() >= MOST_MISSES:
            told = next((row["fault"] for row in reversed(self.rows) if row["fault"]), None)
            why = f"the last one was not allowed: {told}" if told else "all were settings that are there already"
            self.warn(f"The search ends early: {MOST_MISSES} proposals in a row led to nothing new ({why}).")
        return None

    def _join(self, arm: Arm | None, trials: list[Trial]) -> None:
        arms = self.sweep.arms if arm is None else (*self.sweep.arms, arm)
        self.sweep = replace(self.sweep, arms=arms, trials=(*self.sweep.trials, *trials))
        self.joined(arm, trials)

    def _exhausted(self) -> bool:
        """Whether no other proposal will be made: a function of those that were."""
        assert self.sweep.search.trials is not None
        made = len(self.rows) - self._missed()
        return made >= self.sweep.search.trials or self._misses_in_a_row() >= MOST_MISSES

    def _misses_in_a_row(self) -> int:
        seen: set[str] = set(self.own)
        count = 0
        for row in self.rows:
            count = count + 1 if row["arm"] is None or row["arm"] in seen else 0
            seen.add(row["arm"])
        return count

    def _missed(self) -> int:
        """Proposals that became no setting of their own; they do not count."""
        names = [row["arm"] for row in self.rows]
        return len(names) - len({name for name in names if name is not None and name not in self.own})

    def known(self) -> list[Known]:
        """Every proposal and what has become of it."""
        candidates = {candidate.arm: candidate for candidate in self.rounds.candidates}
        return [self._known(row, candidates.get(row["arm"])) for row in self.rows]

    def _known(self, row: Mapping[str, Any], candidate: Candidate | None) -> Known:
        if candidate is None:
            return as_known(row, self.sweep.search, "failed", [])
        state = self.rounds.state(candidate)
        results = []
        for trial in candidate.trials[: candidate.seeds]:
            view = self.view(trial.trial_id)
            if state == "pruned":  # the folders may hold more, for another sweep
                view = ended_at(view, self.rungs[candidate.rung], "")
            batch = trial.cfg.rollout.prompts * trial.cfg.rollout.responses
            results.append(Result(view, batch, trial.cfg.train.iterations))
        return as_known(row, self.sweep.search, state, results)


def label(params: Mapping[str, Any]) -> str:
    """'lr=0.00123, keep_ratio=0.5': fractions to three digits, the number before them tells settings apart."""
    return design.label({path: float(f"{v:.3g}") if isinstance(v, float) else v for path, v in params.items()})
