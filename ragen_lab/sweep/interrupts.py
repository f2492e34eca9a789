"""Ctrl-C and SIGTERM, which end a sweep alike, and can neither be lost nor come where they would do harm."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Whether the user has asked for an end that nobody has seen to.

    The KeyboardInterrupt of a signal can come to nothing: a library's bare ``except`` takes it, or Python drops it
    (``terminable``). So who works on with one behind it calls ``check`` at moments of its own, and who catches one
    calls ``heard``.
    """

    def __init__(self) -> None:
        self._asked = False

    def ask(self, number: int = 0, frame: FrameType | None = None) -> None:
        """The handler of the signals. Raises KeyboardInterrupt."""
        self._asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt where one came to nothing."""
        if self._asked:
            raise KeyboardInterrupt

    def again(self) -> None:
        """The same from another thread."""
        if self._asked:
            _thread.interrupt_main(signal.SIGTERM)

    def heard(self) -> None:
        self._asked = False


@contextmanager
def terminable() -> Iterator[Interrupts]:
    """SIGTERM ends a sweep as Ctrl-C does; only the main thread may say so. Ctrl-C stays ignored where it is, as in the
    background of a shell.

    Python drops an exception that is raised in a destructor or a callback of a weak reference, an interrupt too, which
    may come at any moment: it is sent once more then, unless somebody has asked for it meanwhile.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):  # a moment later: what is raised in here is dropped as well
            threading.Timer(0.05, interrupts.again).start()
        else:
            hook(what)

    before, hook = {number: signal.getsignal(number) for number in _ASKS}, sys.unraisablehook
    for number, handler in before.items():
        if number == signal.SIGTERM or handler != signal.SIG_IGN:
            signal.signal(number, interrupts.ask)
    sys.unraisablehook = dropped
    try:
        yield interrupts
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held(*more: signal.Signals) -> Iterator[None]:
    """Ctrl-C, SIGTERM and ``more`` wait until the block is over: raised in code that is not Python, they can abort the
    process, leave daemons behind, or come to nothing. Who interrupts twice need not wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {number: signal.getsignal(number) for number in (*_ASKS, *more)}

    def hold(number: int, frame: FrameType | None) -> None:
        waiting.append(number)
        handler = before[signal.Signals(number)]
        if len(waiting) > 1 and callable(handler):
            handler(number, frame)

    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if waiting:
        signal.raise_signal(waiting[0])
