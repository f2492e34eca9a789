"""What the terminal is told when a driver dies without a word: killed by force, or ended by a library of it.

Ray ends the driver's process when its own daemons are killed, and nothing in Python can answer ``kill -9``. So a
small shell waits at the other end of a pipe; the system closes the driver's end however it dies.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

_SCRIPT = 'trap "" INT TERM HUP; read -r farewell || printf "%s\\n" "$1" >&2'


@contextmanager
def last_words(text: str, stderr: int | None = None) -> Iterator[None]:
    """Print ``text`` on ``stderr`` (a descriptor; default: this process's) if this process dies inside the block."""
    shell = shutil.which("sh")
    if shell is None:  # nobody to tell it then; the sweep itself is none the worse
        yield
        return
    reader, writer = os.pipe()
    watcher = subprocess.Popen(
        [shell, "-c", _SCRIPT, "ragen-lab", text],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=sys.stderr.fileno() if stderr is None else stderr,
    )
    os.close(reader)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # it is gone already, and so is what it would have said
            os.write(writer, b"all is well\n")
        os.close(writer)
        watcher.wait()


def leave(work: Callable[[], Any]) -> NoReturn:
    """Do the work of a process and end it with the exit code that ``work`` returns or raises as SystemExit.

    Where Ray was loaded, the interpreter's own end is left out: amid it Ray's core may abort the process, after a
    Ctrl-C above all, and give it another exit code. What matters is on disk by then, and the mirrors are closed.
    """
    try:
        code = work()
    except SystemExit as end:
        code = end.code
    if "ray" not in sys.modules or not (code is None or isinstance(code, int)):
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader is gone, or it was closed
            stream.flush()
    os._exit(code or 0)
