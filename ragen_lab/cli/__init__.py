"""The command line: parse, call, print. Exit codes: 0 fine, 1 failed trials, 2 the user's input, 130 interrupted."""

from ragen_lab.cli.app import app, main

__all__ = ["app", "main"]
