"""The errors a user can meet: small, picklable, each also a class of the standard library.

Every message says what came, what is allowed and what to do next. Errors cross process borders
(worker -> driver), so each is rebuilt from its ``args`` alone.
"""

from __future__ import annotations


class RagenLabError(Exception):
    """Base of all errors raised on purpose by ragen-lab."""


class ConfigError(RagenLabError, ValueError):
    """The user's input is wrong: one message that lists every fault found.

    ``faults`` holds one line per fault, each beginning with its dotted path.
    """

    def __init__(self, where: str, faults: list[str]):
        super().__init__(where, faults)
        self.where = where
        self.faults = list(faults)

    def __str__(self) -> str:
        count = len(self.faults)
        head = f"{self.where}: {count} fault{'s' if count != 1 else ''}"
        return "\n".join([head, *(f"  - {fault}" for fault in self.faults)])


class EnvError(RagenLabError, ValueError):
    """An environment was used against its contract (an unknown action, a step after the end)."""


class CheckpointError(RagenLabError, OSError):
    """A checkpoint is missing, cut short, or belongs to another configuration."""


class SelfCheckError(RagenLabError, AssertionError):
    """The first update broke a promise that every trainer must keep (``train.check`` strict)."""


class TrialLocked(RagenLabError, BlockingIOError):
    """Another process is working in this trial folder right now."""


class HomeError(RagenLabError, OSError):
    """The home folder cannot be used (read-only, disk full, ledger of a newer version)."""


class TrackingError(RagenLabError, ConnectionError):
    """The MLflow server or database cannot be reached; the trial folders are unharmed."""


class NotBuilt(RagenLabError, NotImplementedError):
    """The user asked for a part of the design that this version does not contain."""
