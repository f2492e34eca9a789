"""When a failed trial is tried again: from its checkpoint, after 0.5 s, then after 1 s, and not for ever."""

from __future__ import annotations

from dataclasses import dataclass

from ragen_lab.sweep.worker import RETRIES, TrialResult

HANGS = 1  # retries of a trial that hangs at the same iteration: each costs the whole of resources.hang_minutes
MOST = 20  # attempts in one call, whatever progress they make
FIRST_WAIT = 0.5  # seconds; it doubles, and with RETRIES in a row the longest is one second


@dataclass
class Retries:
    """Of one trial in one call of the sweep.

    What counts is failures in a row without a new iteration: a trial that gets further each time (a leak, a machine
    that comes and goes) is helped on, one that fails at the same place is not.
    """

    reached: int = -2
    in_row: int = 0
    attempts: int = 0

    def wait_after(self, result: TrialResult) -> float | None:
        """Seconds until the next attempt after this failure, or None where there is to be none."""
        self.attempts += 1
        self.in_row = 1 if result.iteration > self.reached else self.in_row + 1
        self.reached = max(self.reached, result.iteration)
        allowed = HANGS if result.cause == "hung" else RETRIES
        if result.permanent or self.in_row > allowed or self.attempts >= MOST:
            return None
        return FIRST_WAIT * 2.0 ** (self.in_row - 1)
