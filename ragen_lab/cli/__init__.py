"""The command line: parse, call, print. Exit codes: 0 fine, 1 failed trials, 2 the user's input, 130 interrupted."""

from typing import NoReturn

from ragen_lab.cli.app import app, main
from ragen_lab.sweep.last_words import leave

__all__ = ["app", "main", "program"]


def program() -> NoReturn:
    """``main`` as a process of its own."""
    leave(main)
