"""A driver that dies without a word still leaves one on the terminal; one that ends by itself does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sweep.conftest import ROOT, calls, start_driver

SCRIPT = """
import os, signal, sys
from ragen_lab.sweep.last_words import last_words
with last_words("it was killed"):
    {what}
"""


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", True),
        ("os.abort()", True),
        ("os._exit(0)", True),
        ("pass", False),
        ("raise KeyboardInterrupt", False),
    ],
)
def test_only_a_sudden_end_is_told(what: str, told: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(what=what)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ("it was killed" in done.stderr) == told


ENDING = """
import atexit, os, sys, types
from ragen_lab.sweep.last_words import leave
atexit.register(os.abort)
sys.modules.update(dict.fromkeys({modules}, types.ModuleType("a module")))
def work():
    print("said")
    {what}
leave(work)
"""


@pytest.mark.parametrize(
    ("what", "code"), [("return 130", 130), ("sys.exit(2)", 2), ("sys.exit()", 0), ("return None", 0)]
)
def test_a_library_that_aborts_as_the_interpreter_ends_changes_no_exit_code(what: str, code: int) -> None:
    """Where that library is Ray; otherwise nothing of the interpreter's end is left out."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for modules, expected in ((["ray"], code), ([], -signal.SIGABRT)):
        command = [sys.executable, "-c", ENDING.format(what=what, modules=modules)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == expected
        assert done.stdout == "said\n"


def test_a_killed_driver_says_how_to_go_on(write: Callable[..., Path], tmp_path: Path) -> None:
    home, file = tmp_path / "home", write()
    driver = start_driver(tmp_path, file, home, sleep=0.3)
    deadline = time.monotonic() + 120
    while sum(calls(home).values()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    driver.kill()
    _, errors = driver.communicate(timeout=60)
    assert "the driver of tested was killed" in errors
    assert "repeat the same command: ragen-lab again" in errors
