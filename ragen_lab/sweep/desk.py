"""Between the driver and the engines: which request is next, and what becomes of one that failed.

An engine only takes requests, runs them and hands back results. What there is to run is decided by a
``Source`` of the sweep's kind; that a failed trial is tried again, and when, is decided here, alike for
every engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ragen_lab.sweep.retry import Retries
from ragen_lab.sweep.spec import Trial
from ragen_lab.sweep.worker import TrialRequest, TrialResult


@dataclass(frozen=True)
class Job:
    """A trial to bring to iteration ``until``; None = to its end."""

    trial: Trial
    until: int | None = None


class Source(Protocol):
    """What a sweep wants next. It may depend on every result so far."""

    adaptive: bool  # the next job depends on results, so none may be taken before a worker is free

    def take(self) -> Job | None:
        """The next job; None while there is none."""

    def ended(self, trial_id: str, failed: bool) -> None:
        """The trial has come to rest: done, paused, or not to be brought further in this call; its view is up to
        date."""


class InOrder:
    """Every trial of a list to its end, in its order."""

    adaptive = False

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left = list(reversed(trials))

    def take(self) -> Job | None:
        return Job(self._left.pop()) if self._left else None

    def ended(self, trial_id: str, failed: bool) -> None:
        return None


@dataclass(frozen=True)
class Event:
    """What happened to a request: an attempt has started, has failed and will be repeated, or has ended."""

    kind: Literal["started", "retried", "ended"]
    request: TrialRequest
    pid: int | None = None
    result: TrialResult | None = None  # of retried and ended


@dataclass
class Desk:
    """Requests out, results in. Used by one thread.

    ``most``: trials that may be started in this call, whatever becomes of them; None = no bound. ``resting``: whether
    nothing more is to be begun, because the sweep is being paused. ``check`` raises KeyboardInterrupt where the user's
    came to nothing.
    """

    source: Source
    request_of: Callable[[Job], TrialRequest]
    on_event: Callable[[Event], None]
    most: int | None = None
    resting: Callable[[], bool] = lambda: False
    check: Callable[[], None] = lambda: None
    _retries: dict[str, Retries] = field(default_factory=dict)
    _again: list[tuple[float, TrialRequest]] = field(default_factory=list)
    _begun: set[str] = field(default_factory=set)
    _spent: bool = False

    @property
    def adaptive(self) -> bool:
        return self.source.adaptive

    def take(self, free: int) -> TrialRequest | None:
        """The next request to run now; None while there is none.

        ``free``: workers without a trial, the one that asks among them. A failed trial that waits for its next attempt
        keeps one of them where choices depend on results: one made before its result is in would be another one.
        """
        self.check()
        if self.resting():
            return None
        for place, (due, request) in enumerate(self._again):
            if due <= time.monotonic():
                del self._again[place]
                return request
        if self._spent or (self.adaptive and len(self._again) >= free):
            return None
        job = self.source.take()
        if job is None:
            return None
        if self.most is not None and job.trial.trial_id not in self._begun and len(self._begun) >= self.most:
            self._spent = True  # what the source has handed out stays undone until the next call
            return None
        self.check()  # the choice of it may have been long, and the work of libraries
        self._begun.add(job.trial.trial_id)
        return self.request_of(job)

    @property
    def spent(self) -> bool:
        """Whether the number of trials of this call was what ended it."""
        return self._spent

    def waits(self) -> bool:
        """Whether a failed trial waits for its next attempt."""
        return bool(self._again) and not self.resting()

    def started(self, request: TrialRequest, pid: int | None = None) -> None:
        self.on_event(Event("started", request, pid))

    def ended(self, request: TrialRequest, result: TrialResult) -> None:
        """Take a result; a failure that another attempt may mend goes back into the line."""
        wait = None
        if result.status == "failed":
            wait = self._retries.setdefault(request.trial_id, Retries()).wait_after(result)
        again = wait is not None
        if wait is not None:
            self._again.append((time.monotonic() + wait, request))
        else:
            self._retries.pop(request.trial_id, None)
        self.on_event(Event("retried" if again else "ended", request, result.pid or None, result))
        if not again:
            self.source.ended(request.trial_id, result.status in ("failed", "pending"))
