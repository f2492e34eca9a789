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

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ragen_lab.sweep.desk import Job
from ragen_lab.sweep.spec import Trial

Rule = Literal["fifo", "asha", "median"]


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

    def level(self, trial: Trial, until: int) -> float | None:
        """The compared metric around iteration ``until``, larger is better; None without a finite value."""

    def history(self, trial: Trial, until: int) -> list[float]:
        """The compared metric at every evaluation up to ``until``, larger is better, finite ones only."""


@dataclass
class Rounds:
    """A source of jobs. ``propose`` gives a new candidate or None when there will be no more; ``record`` is told of
    every candidate before it is given more to do; ``over`` of one that has come to its end."""

    candidates: list[Candidate]
    rungs: tuple[int, ...]  # the last one is the whole run
    results: Results
    record: Callable[[Candidate], None]
    propose: Callable[[], Candidate | None] = lambda: None
    rule: Rule = "fifo"
    factor: int = 3
    least: int = 3
    first_seeds: int | None = None
    margin: float = 0.0
    adaptive: bool = True
    _running: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)  # in this call: the next one tries again
    _no_more: bool = False

    def take(self) -> Job | None:
        while True:
            if (job := self._open_job()) is not None:
                self._running.add(job.trial.trial_id)
                return job
            if not (self._promote() or self._another_seed() or self._begin()):
                return None

    def ended(self, trial_id: str, failed: bool) -> None:
        self._running.discard(trial_id)
        if failed:
            self._failed.add(trial_id)

    def resting(self) -> list[tuple[Candidate, int]]:
        """Candidates that came to rest below the last rung, with the iteration at which they did."""
        last = len(self.rungs) - 1
        return [(c, self.rungs[c.rung]) for c in self.candidates if 0 <= c.rung < last and self._complete(c)]

    def state(self, candidate: Candidate) -> Literal["running", "complete", "pruned"]:
        """How a setting stands: under way, seen to its end, or at rest below it."""
        if candidate.rung < 0 or not self._complete(candidate):
            return "running"
        if candidate.rung < len(self.rungs) - 1:
            return "pruned"
        return "complete"

    # --- one step each; True where there may be a job now ---

    def _open_job(self) -> Job | None:
        for candidate in self.candidates:
            if candidate.rung < 0:
                continue
            whole = candidate.rung == len(self.rungs) - 1
            for trial in candidate.trials[: candidate.seeds]:
                if self._open(trial, self.rungs[candidate.rung]):
                    return Job(trial, None if whole else self.rungs[candidate.rung])
        return None

    def _open(self, trial: Trial, until: int) -> bool:
        busy = trial.trial_id in self._running or trial.trial_id in self._failed
        return not busy and not self.results.reached(trial, until)

    def _complete(self, candidate: Candidate) -> bool:
        until = self.rungs[candidate.rung]
        return (
            candidate.rung >= 0
            and all(
                trial.trial_id in self._failed or self.results.reached(trial, until)
                for trial in candidate.trials[: candidate.seeds]
            )
            and not any(trial.trial_id in self._running for trial in candidate.trials)
        )

    def _promote(self) -> bool:
        if self.rule == "fifo":
            return False
        for rung in reversed(range(len(self.rungs) - 1)):
            waiting = [c for c in self.candidates if c.rung == rung and c.ended is None and self._complete(c)]
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
        ranked = sorted(came, key=lambda c: (-self._level(c, rung), self.candidates.index(c)))[:allowed]
        return next((c for c in ranked if c in waiting and self._has_level(c, rung)), None)

    def _not_below_median(self, rung: int, waiting: Sequence[Candidate]) -> Candidate | None:
        for candidate in waiting:
            others = [c for c in self.candidates if c is not candidate and (c.rung > rung or self._rests_at(c, rung))]
            averages = [mean for c in others if (mean := self._average(c, rung)) is not None]
            best = self._best_so_far(candidate, rung)
            if len(averages) >= self.least and (best is None or best < statistics.median(averages)):
                candidate.ended = f"below the median of {len(averages)} other settings at iteration {self.rungs[rung]}"
                self.record(candidate)
                continue
            return candidate
        return None

    def _rests_at(self, candidate: Candidate, rung: int) -> bool:
        return candidate.rung == rung and self._complete(candidate)

    def _another_seed(self) -> bool:
        """A setting that can still compete gets its next seed: ``margin`` below the best on the same seeds will do."""
        last = len(self.rungs) - 1
        whole = [c for c in self.candidates if c.rung == last and self._complete(c)]
        for candidate in whole:
            if candidate.fixed or candidate.ended is not None or candidate.seeds == len(candidate.trials):
                continue
            mine = self._level(candidate, last)
            rivals = [c for c in whole if c is not candidate and c.seeds >= candidate.seeds and not c.fixed]
            best = max((self._mean(c, last, candidate.seeds) for c in rivals), default=mine)
            if mine >= best - self.margin and self._has_level(candidate, last):
                candidate.seeds += 1
                self.record(candidate)
                return True
            candidate.ended = (
                f"more than {self.margin:g} below the best setting after {candidate.seeds} of "
                f"{len(candidate.trials)} seeds"
            )
            self.record(candidate)
        return False

    def _begin(self) -> bool:
        fresh = next((c for c in self.candidates if c.rung < 0 and c.ended is None), None)
        if fresh is None and not self._no_more:
            fresh = self.propose()
            if fresh is None:
                self._no_more = True
                return self._closed() and self._promote()
            if fresh not in self.candidates:
                self.candidates.append(fresh)
        if fresh is None:
            return False
        self._ask(fresh, len(self.rungs) - 1 if fresh.fixed else 0)
        return True

    def _ask(self, candidate: Candidate, rung: int) -> None:
        candidate.rung = rung
        self.record(candidate)

    def _closed(self) -> bool:
        """Whether no new setting will come and none is under way."""
        begun = all(c.rung >= 0 for c in self.candidates)
        return self._no_more and not self._running and begun

    # --- what is compared ---

    def _mean(self, candidate: Candidate, rung: int, seeds: int) -> float:
        """Mean level over the first seeds; -inf where one of them has none."""
        levels = [self.results.level(trial, self.rungs[rung]) for trial in candidate.trials[:seeds]]
        known = [level for level in levels if level is not None]
        return statistics.fmean(known) if known and len(known) == len(levels) else float("-inf")

    def _level(self, candidate: Candidate, rung: int) -> float:
        return self._mean(candidate, rung, candidate.seeds)

    def _has_level(self, candidate: Candidate, rung: int) -> bool:
        return self._level(candidate, rung) > float("-inf")

    def _curve(self, candidate: Candidate, rung: int) -> list[float]:
        """Mean over the seeds at each evaluation that all of them have."""
        histories = [self.results.history(t, self.rungs[rung]) for t in candidate.trials[: candidate.seeds]]
        return [statistics.fmean(values) for values in zip(*histories, strict=False)]

    def _average(self, candidate: Candidate, rung: int) -> float | None:
        curve = self._curve(candidate, rung)
        return statistics.fmean(curve) if curve else None

    def _best_so_far(self, candidate: Candidate, rung: int) -> float | None:
        return max(self._curve(candidate, rung), default=None)
