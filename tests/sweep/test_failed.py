"""A trial that fails is told as failed, whatever its folder could still take."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.sweep import worker
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.spec import Sweep
from tests.sweep import fake

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]


@pytest.mark.parametrize("place", ["write_done", "_held"])
def test_a_failure_that_the_folder_cannot_hold_is_one(
    place: str, sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes neither the trial's rows nor the word that it failed; the call must say so all the same."""
    bad = sweep_of().trials[0].trial_id
    before, wait = getattr(worker, place), "ragen_lab.sweep.retry.FIRST_WAIT"

    def full(folder: Path, *more: Any, **named: Any) -> Any:
        if bad in str(folder):
            raise OSError(errno.ENOSPC, "No space left on device")
        return before(folder, *more, **named)

    def break_off(home: Path, name: str, iteration: int) -> None:
        if name == bad and iteration == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(wait, 0.01)
    monkeypatch.setattr(worker, place, full)
    monkeypatch.setattr(fake, "_trouble", break_off)
    lines: list[str] = []
    finished, text = drive(sweep_of(), events=lines.append)
    assert finished.exit_code == 1
    first = finished.result["trials"][0]
    assert first["status"] == "failed"
    assert "the disk is full" in first["stop_reason"]
    assert "Failed: keep_ratio=1.0 seed 0: the disk is full" in text
    assert "3 of 4 trials done" in text
    assert "1 failed" in text
    assert "status=failed exit_code=1 trials=4 done=3" in text
    assert "tries the failed trials again" in text
    ended = [event for line in lines if (event := json.loads(line))["event"] == "ended" and event["trial_id"] == bad]
    assert [event["status"] for event in ended] == ["failed"]
    monkeypatch.undo()
    again, _ = drive(sweep_of())
    assert again.exit_code == 0


def test_interrupted_while_it_is_tried_again_is_not_failed(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure was of an earlier attempt; this one was well under way."""
    first = sweep_of().trials[0].trial_id
    breaks: list[type[BaseException]] = [KeyboardInterrupt, ValueError]

    def break_off(home: Path, name: str, iteration: int) -> None:
        if name == first and iteration == 3 and breaks:
            raise breaks.pop()

    monkeypatch.setattr("ragen_lab.sweep.retry.FIRST_WAIT", 0.01)
    monkeypatch.setattr(fake, "_trouble", break_off)
    finished, text = drive(sweep_of())
    assert finished.exit_code == 130
    assert finished.result["trials"][0]["status"] == "stopped"
    assert "Failed:" not in text
