"""The budget of one call of a sweep: when it is spent, the sweep is told to stop; the next call goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from ragen_lab.sweep.search_page import BudgetSection


class Budget:
    """Watches wall clock and GPU hours from a thread of its own, and calls ``end`` from there once.

    ``spent``: the sentence that says which is over.
    """

    def __init__(self, budget: BudgetSection, gpus: float, running: Callable[[], int], end: Callable[[], None]) -> None:
        self.budget, self.gpus, self.running, self.end = budget, gpus, running, end
        self.spent: str | None = None
        self.gpu_seconds = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="budget")

    def __enter__(self) -> Budget:
        if self.budget.minutes is not None or self.budget.gpu_hours is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        began = before = time.monotonic()
        while not self._end.wait(0.2):
            now = time.monotonic()
            self.gpu_seconds += (now - before) * self.gpus * self.running()
            before = now
            self.spent = self._over(now - began)
            if self.spent is not None:
                self.end()
                return

    def _over(self, seconds: float) -> str | None:
        minutes, hours = self.budget.minutes, self.budget.gpu_hours
        if minutes is not None and seconds >= minutes * 60:
            return f"The budget of {minutes:g} minutes is over."
        if hours is not None and self.gpu_seconds >= hours * 3600:
            return f"The budget of {hours:g} GPU hours is over."
        return None
