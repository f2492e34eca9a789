"""A log that cannot fill the disk: its beginning and its end are kept, what lay between is counted.

It is written by a process of its own at the other end of a pipe, so that nothing is lost with a worker that is
killed or aborts, and a trial that holds the interpreter's lock cannot block on a full pipe. That process runs this
file as a script without the package: it imports the standard library only.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time
from pathlib import Path

HEAD = TAIL = 2**19  # bytes kept of the beginning and of the end
_EVERY = 0.5  # seconds between two writes of the end, once the log is longer than what is kept
_MARK = re.compile(rb"\n\[\.\.\. (\d+) bytes left out here \.\.\.\]\n")


class BoundedLog:
    """Appends to ``file``, of which at most ``head + tail`` bytes and one line that counts the rest are kept."""

    def __init__(self, file: Path, head: int = HEAD, tail: int = TAIL) -> None:
        self.file, self.head, self.tail = file, head, tail
        self.dropped = 0
        before = file.read_bytes() if file.exists() else b""  # of an earlier attempt: gone on with
        rest = before[head:]
        if mark := _MARK.match(rest):
            self.dropped, rest = int(mark[1]), rest[mark.end() :]
        self._begin, self._end = bytearray(before[:head]), bytearray(rest)
        self._stored = len(before)  # bytes that are in the file for good, while none are left out
        self.dirty = False  # whether something has not reached the file yet

    def write(self, data: bytes) -> None:
        """Take bytes in; ``flush`` brings them into the file."""
        room = self.head - len(self._begin)
        self._begin += data[:room]
        self._end += data[room:]
        extra = max(0, len(self._end) - self.tail)
        del self._end[:extra]
        self.dropped += extra
        self.dirty = True

    def flush(self) -> None:
        """Bring the file up to date. Raises OSError; what could not be written is tried again next time."""
        with open(self.file, "r+b" if self.file.exists() else "w+b") as handle:
            if not self.dropped:
                whole = self._begin + self._end
                handle.seek(self._stored)
                handle.write(whole[self._stored :])
            else:
                self._stored = min(self._stored, len(self._begin))
                handle.seek(self._stored)
                mark = b"\n[... %d bytes left out here ...]\n" % self.dropped
                handle.write(self._begin[self._stored :] + mark + self._end)
                handle.truncate()  # after the write: a process killed in between leaves too much, not too little
        self._stored = len(self._begin) + (0 if self.dropped else len(self._end))
        self.dirty = False


def main(file: str) -> None:
    """Copy standard input into a bounded log until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the worker whose words it keeps, not before
    log = BoundedLog(Path(file))
    due = 0.0
    while True:
        ready = select.select([0], [], [], _EVERY if log.dirty else None)[0]
        if ready:
            data = os.read(0, 2**16)
            if not data:
                break
            log.write(data)
        if log.dirty and (not ready or not log.dropped or time.monotonic() >= due):
            _flush(log)
            due = time.monotonic() + _EVERY
    if log.dirty:
        _flush(log)


def _flush(log: BoundedLog) -> None:
    try:
        log.flush()
    except OSError as error:  # a full disk must not stop the trial whose words these are
        sys.stderr.write(f"{log.file} cannot be written: {error}\n")


if __name__ == "__main__":
    main(sys.argv[1])
