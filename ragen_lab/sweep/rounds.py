"""Settings that compete: which goes on, which gets another seed, which new one is tried.

A setting (an arm) is compared as a whole, by the mean over its seeds, so that no setting keeps fewer seeds
than another at the same rung and pairs stay pairs. Nobody is stopped in the middle: a trial is asked to come
as far as its rung and rests there, with a checkpoint; to go on is to ask for more of it. So all of this is a
function of how far each trial was asked to come, which the ledger holds, and of the rows in the folders: with
one worker a restarted sweep decides as an undisturbed one; with several, the order of completion decides.

asha: Li et al. 2020 (arXiv 1810.05934), whole rungs of promotion. median: the median stopping rule of Google
Vizier (Golovin et al. 2017).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ragen_lab.sweep.desk import Job
from ragen_lab.sweep.spec import Trial

Rule = Literal["fifo", "asha", "median"]
Stage = Literal["open", "failed", "rests", "ended"]  # of a trial: rests = came to its rung, ended = to its own end
State = Literal["running", "complete", "pruned", "failed"]  # of a setting
BELOW_MEDIAN = "below the median"  # how a reason of the median rule begins


def state_of(stages: Collection[Stage]) -> State:
    """How a setting stands, by how the trials that it was given do; the driver and the report both ask here.

    One failed trial is enough: a mean over fewer seeds, or over rows before a failure, is no result.
    """
    if "failed" in stages:
        return "failed"
    if not stages or "open" in stages:
        return "running"
    return "pruned" if "rests" in stages else "complete"


def below(value: float, bound: float) -> bool:
    """Whether a value lies below a bound by more than rounding: the mean of five times 0.2 need not be 0.2."""
    return value < bound and not math.isclose(value, bound, rel_tol=1e-9, abs_tol=1e-12)


@dataclass
class Candidate:
    """One setting. ``rung``: the index of the rung that it was asked to reach, -1 before its first."""

    arm: str
    trials: tuple[Trial, ...]  # one per seed
    seeds: int  # of them, how many it has been given
    rung: int = -1
    fixed: bool = False  # a control: never ended, never raced
    ended: str | None = None  # why it does not go on, once that is final


class Results(Protocol):
    """What the folders hold of the trials, as far as this sweep asked for them."""

    def reached(self, trial: Trial, until: int) -> bool:
        """Whether nothing is left to compute up to ``until``: it came as far, or collapsed before."""

    def collapsed(self, trial: Trial, until: int) -> bool:
        """Whether it had collapsed by then, so that there is nothing more of it."""

    def level(self, trial: Trial, until: int) -> float | None:
        """The compared metric around iteration ``until``, larger is better; None without a finite value."""

    def history(self, trial: Trial, until: int) -> dict[int, float]:
        """Iteration -> the compared metric, up to ``until``; larger is better, finite ones only."""


@dataclass
class Rounds:
    """A source of jobs.

    ``propose`` gives a new candidate or None when there will be no more, and ``exhausted`` says whether that is so
    already; ``record`` is told of every candidate before it is given more to do, and when it is ended.
    """

    candidates: list[Candidate]
    rungs: tuple[int, ...]  # the last one is the whole run
    results: Results
    record: Callable[[Candidate], None]
    propose: Callable[[], Candidate | None] = lambda: None
    exhausted: Callable[[], bool] = lambda: True
    rule: Rule = "fifo"
    factor: int = 3
    least: int = 3
    margin: float = 0.0
    adaptive: bool = True
    _running: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)  # in this call: the next one tries again

    def take(self) -> Job | None:
        while True:
            found = self._open_job()
            if found is None:
                if not (self._promote() or self._another_seed() or self._begin()):
                    return None
                continue
            rung, place, job = found
            # Before a second seed comes the first one of every other setting that is to come to this rung.
            if place > 0 and (self._promote(below=rung) or self._begin_given()):
                continue
            self._running.add(job.trial.trial_id)
            return job

    def ended(self, trial_id: str, failed: bool) -> None:
        self._running.discard(trial_id)
        if failed:
            self._failed.add(trial_id)

    def resting(self) -> list[tuple[Candidate, int]]:
        """Candidates that came to rest below the last rung, with the iteration at which they did."""
        last = len(self.rungs) - 1
        return [(c, self.rungs[c.rung]) for c in self.candidates if c.rung < last and self._rests(c)]

    def state(self, candidate: Candidate) -> State:
        """How a setting stands: under way, seen to its end, at rest below it, or failed."""
        if candidate.rung < 0:
            return "running"
        return state_of({self._stage(candidate, trial) for trial in candidate.trials[: candidate.seeds]})

    # --- one step each; True where there may be a job now ---

    def _open_job(self) -> tuple[int, int, Job] | None:
        """(rung, place of the seed, job): the lowest rung first, in it the first seed of every setting."""
        found: tuple[int, int, Job] | None = None
        for candidate in self.candidates:
            for place, trial in enumerate(candidate.trials[: candidate.seeds]):
                if candidate.rung < 0 or trial.trial_id in self._running or self._stage(candidate, trial) != "open":
                    continue
                if found is None or (candidate.rung, place) < found[:2]:
                    whole = candidate.rung == len(self.rungs) - 1
                    found = candidate.rung, place, Job(trial, None if whole else self.rungs[candidate.rung])
        return found

    def _stage(self, candidate: Candidate, trial: Trial) -> Stage:
        until = self.rungs[candidate.rung]
        if trial.trial_id in self._running:
            return "open"
        if not self.results.reached(trial, until):
            return "failed" if trial.trial_id in self._failed else "open"
        whole = candidate.rung == len(self.rungs) - 1
        return "ended" if whole or self.results.collapsed(trial, until) else "rests"

    def _rests(self, candidate: Candidate) -> bool:
        """Whether all of its trials have truly come to its rung."""
        return candidate.rung >= 0 and self.state(candidate) in ("pruned", "complete")

    def _promote(self, below: int | None = None) -> bool:
        """Let one go on from a rung, from those below ``below`` only."""
        if self.rule == "fifo":
            return False
        for rung in reversed(range(len(self.rungs) - 1 if below is None else below)):
            waiting = [c for c in self.candidates if c.rung == rung and c.ended is None and self._rests(c)]
            chosen = self._best(rung, waiting) if self.rule == "asha" else self._not_below_median(rung, waiting)
            if chosen is not None:
                self._ask(chosen, rung + 1)
                return True
        return False

    def _best(self, rung: int, waiting: Sequence[Candidate]) -> Candidate | None:
        """The best of those that wait at a rung, if it is among the best part of all that came as far."""
        came = [c for c in self.candidates if not c.fixed and (c.rung > rung or c in waiting)]
        allowed = len(came) // self.factor
        if self._closed() and not any(c.rung > rung for c in came):
            allowed = max(allowed, 1)  # in a small sweep too, one setting is seen to its end
        seeds = min((c.seeds for c in came), default=0)  # on the same ones, whoever has got more since

        def level(candidate: Candidate) -> float:
            return self._mean(candidate, rung, seeds)

        ranked = sorted(came, key=lambda c: (-level(c), self.candidates.index(c)))[:allowed]
        return next((c for c in ranked if c in waiting and level(c) > float("-inf")), None)

    def _not_below_median(self, rung: int, waiting: Sequence[Candidate]) -> Candidate | None:
        for candidate in waiting:
            others = [c for c in self.candidates if c is not candidate and c.rung >= rung]
            curves = [curve for c in others if (curve := self._curve(c, rung, candidate.seeds))]
            best = max(self._curve(candidate, rung, candidate.seeds), default=None)
            middle = statistics.median(map(statistics.fmean, curves)) if curves else 0.0
            if len(curves) >= self.least and (best is None or below(best, middle)):
                candidate.ended = f"{BELOW_MEDIAN} of {len(curves)} other settings at iteration {self.rungs[rung]}"
                self.record(candidate)
                continue
            return candidate
        return None

    def _another_seed(self) -> bool:
        """A setting that can still compete gets its next seed: ``margin`` below the best on the same seeds will do."""
        last = len(self.rungs) - 1
        racing = [c for c in self.candidates if c.rung == last and not c.fixed]
        for candidate in racing:
            if candidate.ended is not None or candidate.seeds == len(candidate.trials) or not self._rests(candidate):
                continue
            mine = self._mean(candidate, last, candidate.seeds)
            rivals = [c for c in racing if c is not candidate and c.seeds >= candidate.seeds]
            best = max((self._mean(c, last, candidate.seeds) for c in rivals), default=mine)
            if mine > float("-inf") and not below(mine, best - self.margin):
                candidate.seeds += 1
                self.record(candidate)
                return True
            candidate.ended = (
                f"more than {self.margin:g} below the best setting after {candidate.seeds} of "
                f"{len(candidate.trials)} seeds"
            )
            self.record(candidate)
        return False

    def _begin_given(self) -> bool:
        """Begin the next setting that is there already."""
        fresh = next((c for c in self.candidates if c.rung < 0), None)
        if fresh is None:
            return False
        self._ask(fresh, len(self.rungs) - 1 if fresh.fixed else 0)
        return True

    def _begin(self) -> bool:
        if self._begin_given():
            return True
        fresh = self.propose()
        if fresh is None:
            return self._promote()  # only now it may be known that no other one comes
        self.candidates.append(fresh)
        return self._begin_given()

    def _ask(self, candidate: Candidate, rung: int) -> None:
        candidate.rung = rung
        self.record(candidate)

    def _closed(self) -> bool:
        """Whether no new setting will come and none is under way."""
        return self.exhausted() and all(self.state(c) != "running" for c in self.candidates)

    # --- what is compared ---

    def _came(self, candidate: Candidate, rung: int, seeds: int) -> bool:
        """Whether the first seeds have truly come to a rung."""
        return all(self.results.reached(trial, self.rungs[rung]) for trial in candidate.trials[:seeds])

    def _mean(self, candidate: Candidate, rung: int, seeds: int) -> float:
        """Mean level over the first seeds; -inf where one of them has none, or has not come as far."""
        if not self._came(candidate, rung, seeds):
            return float("-inf")
        levels = [self.results.level(trial, self.rungs[rung]) for trial in candidate.trials[:seeds]]
        known = [level for level in levels if level is not None]
        return statistics.fmean(known) if known and len(known) == len(levels) else float("-inf")

    def _curve(self, candidate: Candidate, rung: int, seeds: int) -> list[float]:
        """Mean over the first seeds, as many as it has, at each evaluation that all of them have; [] as above."""
        seeds = min(seeds, candidate.seeds)
        if not self._came(candidate, rung, seeds):
            return []
        histories = [self.results.history(trial, self.rungs[rung]) for trial in candidate.trials[:seeds]]
        shared = sorted(set.intersection(*map(set, histories)))
        return [statistics.fmean(history[at] for history in histories) for at in shared]
