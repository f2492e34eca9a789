"""File locks between processes, also of several machines: one worker per trial, one driver per sweep.

A lock is held by an open file and dies with its holder; the file says who that is.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO
from weakref import WeakSet

from ragen_lab.errors import HomeError, TrialLocked

_A_LOOK = 2.0  # seconds: far longer than anyone who only looks (is_locked) keeps a lock
_open: WeakSet[TextIO] = WeakSet()  # the files of this process's locks


def _forget() -> None:
    """A forked child shares its parent's open files, and would keep the locks of a parent that was killed.

    Not by closing them, which waits for a thread that was writing to one, and which is not in the child.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in list(_open):
        if not handle.closed:
            os.dup2(nowhere, handle.fileno(), inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_forget)


@contextmanager
def locked(file: Path, wait: float = 0.0, what: str = "trial") -> Iterator[None]:
    """Hold an exclusive lock on ``file``; the system frees it even after a ``kill -9``.

    Waits up to ``wait`` seconds, and a moment for those who only look. Raises TrialLocked that names the holder,
    HomeError where no lock can be made.
    """
    began = time.monotonic()
    handle = _open_lock(file)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(handle, file):
                    break
                handle.close()  # while we waited the folder was moved aside: that lock is no longer this one
                handle = _open_lock(file)
            except BlockingIOError:
                read = _only_read(handle)
                if time.monotonic() - began >= (max(wait, _A_LOOK) if read else wait):
                    handle.seek(0)
                    holder = "a process that copies it" if read else handle.read().strip() or "another process"
                    raise TrialLocked(
                        f"this {what} is being worked on by {holder} ({file}). Wait for it, or stop it, and "
                        f"run the same command again: nothing is lost."
                    ) from None
                time.sleep(0.005 if read else 0.1)
        handle.seek(0)
        handle.truncate()
        handle.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        handle.flush()
        yield
    finally:
        handle.close()


def _only_read(handle: TextIO) -> bool:
    """Whether those who keep us from a lock share it: who works there never does."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(handle, fcntl.LOCK_UN)
    return True


def _open_lock(file: Path) -> TextIO:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = file.open("a+", encoding="utf-8")
    except OSError as error:
        raise HomeError(
            f"the lock {file} cannot be made: {error}. Make the folder writable, or move away what stands in its "
            f"place, and repeat the command; or name another folder with --home."
        ) from error
    _open.add(handle)
    return handle


def _is_at(handle: TextIO, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), file.stat())
    except FileNotFoundError:
        return False


def is_locked(file: Path) -> bool:
    """Whether another process holds the lock on ``file`` now."""
    try:
        with file.open("r", encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
