"""The mirrors in folders: TensorBoard and W&B."""

from __future__ import annotations

import importlib.util
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen_lab import mirror_folders
from ragen_lab.errors import ConfigError, TrackingError
from ragen_lab.mirror import STATUS_IN_MLFLOW
from ragen_lab.runs import from_home
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.mirroring import sync
from ragen_lab.sweep.spec import Sweep
from tests.test_track import a_run

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]
TENSORBOARD = pytest.mark.skipif(importlib.util.find_spec("tensorboardX") is None, reason="extra: tensorboard")
WANDB = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="extra: wandb")


def scalars(home: Path, trial_id: str) -> Counter[tuple[str, int, str]]:
    """(metric, step, value) -> how often the event files of a trial hold it."""
    from tensorboardX.proto.event_pb2 import Event

    found: Counter[tuple[str, int, str]] = Counter()
    for file in home.glob(f"tensorboard/tested/*.{trial_id}/events*"):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    found[value.tag, event.step, f"{value.simple_value:.6g}"] += 1
    return found


def wanted(run: Any) -> set[tuple[str, int, str]]:
    return {
        (name, int(row["iteration"]), f"{struct.unpack('f', struct.pack('f', value))[0]:.6g}")
        for row in run.rows
        for name, value in row.items()
        if name not in ("iteration", "timestamp")
    }


@TENSORBOARD
def test_tensorboard_holds_every_point_once(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """After a failure and a resume, a grown sweep, and a repeated one."""
    home = tmp_path / "home"
    home.mkdir()
    sweep = sweep_of(seeds=1, track__tensorboard=True)
    (home / f"fail-{sweep.trials[0].trial_id}").write_text("9")
    drive(sweep)
    (home / f"fail-{sweep.trials[0].trial_id}").unlink()
    for iterations in (8, 12, 12):
        drive(sweep_of(seeds=1, track__tensorboard=True, train__iterations=iterations))
        for run in from_home(home, "tested"):
            held = scalars(home, run.trial_id)
            assert set(held.values()) == {1}
            assert set(held) == wanted(run)
    files = sorted(home.glob("tensorboard/tested/*/events*"))
    stamps = [file.stat().st_mtime_ns for file in files]
    sync(home, "tested")
    assert set(scalars(home, sweep.trials[0].trial_id).values()) == {1}
    assert [file.stat().st_mtime_ns for file in sorted(home.glob("tensorboard/tested/*/events*"))] != stamps


@TENSORBOARD
def test_a_driver_that_was_killed_left_no_stamp(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    _, text = drive(sweep_of(seeds=1, track__tensorboard=True))
    assert f"TensorBoard: {tmp_path / 'home' / 'tensorboard' / 'tested'}" in text
    run = from_home(home, "tested").runs[0]
    (folder,) = home.glob(f"tensorboard/tested/*.{run.trial_id}")
    (folder / "ragen-lab.json").unlink()
    half = next(folder.glob("events*"))
    half.write_bytes(half.read_bytes()[:-40])
    mirror = mirror_folders.TensorBoardMirror(home, "tested")
    mirror.flush(from_home(home, "tested").runs)
    assert set(scalars(home, run.trial_id)) == wanted(run)
    mirror.flush((), left=[run.trial_id])
    assert not list(home.glob(f"tensorboard/tested/*.{run.trial_id}"))


@TENSORBOARD
def test_a_folder_that_cannot_be_written_is_told(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "tensorboard").write_text("")
    finished, text = drive(sweep_of(seeds=1, track__tensorboard=True))
    assert finished.exit_code == 0
    assert text.count("TensorBoard files in") == 1
    assert "ragen-lab sync tested" in text


@WANDB
def test_wandb_holds_one_offline_run_per_trial(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for _ in range(2):
        drive(sweep_of(seeds=1, track__wandb=True))
    runs = from_home(home, "tested").runs
    first = {run.trial_id: list(home.glob(f"wandb/tested/*.{run.trial_id}/wandb/offline-run-*")) for run in runs}
    assert all(len(held) == 1 for held in first.values())
    drive(sweep_of(seeds=1, track__wandb=True, train__iterations=12))  # the view has changed: written anew
    for run in runs:
        (again,) = home.glob(f"wandb/tested/*.{run.trial_id}/wandb/offline-run-*")
        (file,) = again.glob("*.wandb")
        data = file.read_bytes()
        assert run.trial_id.encode() in data
        assert b"eval/success" in data
        assert again != first[run.trial_id][0]


@pytest.mark.parametrize("knob", ["tensorboard", "wandb"])
def test_a_mirror_whose_library_is_missing(
    sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch, knob: str
) -> None:
    """Told before anything runs, with what to install."""
    monkeypatch.setattr(mirror_folders, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"track.{knob}: needs .* Install ragen-lab\[{knob}\]"):
        drive(sweep_of(**{f"track__{knob}": True}))


@TENSORBOARD
def test_tensorboard_rows_computed_again_between_two_flushes(tmp_path: Path) -> None:
    from tests.test_mirror import again_from

    def times() -> list[float]:
        from tensorboardX.proto.event_pb2 import Event

        found = []
        for file in tmp_path.glob("tensorboard/tested/*/events*"):
            data = file.read_bytes()
            while data:
                (length,) = struct.unpack("<Q", data[:8])
                event = Event.FromString(data[12 : 12 + length])
                data = data[16 + length :]
                found += [event.wall_time] * any(value.tag == "eval/success" for value in event.summary.value)
        return found

    shown = mirror_folders.TensorBoardMirror(tmp_path, "tested")
    shown.flush([a_run(4)])
    later = again_from(a_run(6), 2)
    shown.flush([later])
    assert times() == [row["timestamp"] for row in later.rows]
    shown.flush([replace(later, status="finished")])
    assert times() == [row["timestamp"] for row in later.rows]


@TENSORBOARD
@pytest.mark.parametrize("change", ["nothing", "params", "times", "reason"])
def test_a_folder_with_another_stamp_is_written_anew(tmp_path: Path, change: str) -> None:
    from tests.test_mirror import again_from

    run = a_run(4, status="finished")
    mirror_folders.TensorBoardMirror(tmp_path, "tested").flush([run])
    (before,) = tmp_path.glob("tensorboard/tested/*/events*")
    assert b'"random_drop"' not in before.read_bytes()
    assert f'arm: "{run.arm}"'.encode() in before.read_bytes()  # the words are there, beside the numbers
    assert b"filter.keep_ratio: 0.25" in before.read_bytes()
    later = {
        "nothing": run,
        "params": replace(run, params={**run.params, "train.iterations": 400}),
        "times": again_from(run, 2),
        "reason": replace(run, stop_reason="why"),
    }[change]
    kept = before.stat().st_ino, before.stat().st_mtime_ns
    mirror_folders.TensorBoardMirror(tmp_path, "tested").flush([later])
    (after,) = tmp_path.glob("tensorboard/tested/*/events*")
    assert ((after.stat().st_ino, after.stat().st_mtime_ns) == kept) == (change == "nothing")


@TENSORBOARD
def test_tensorboard_after_a_disk_that_was_full_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It broke off in the midst of the new rows: which of them are there nobody knows, so all are written anew."""
    shown = mirror_folders.TensorBoardMirror(tmp_path, "tested")
    run = a_run(6)
    shown.flush([a_run(2)])
    writer = shown._open[run.trial_id].writer
    write, room = writer.write_event, [1]

    def until_it_is_full(event: Any) -> None:
        if not room:
            raise OSError(28, "No space left on device")
        room.pop()
        write(event)

    with monkeypatch.context() as trouble:
        trouble.setattr(writer, "write_event", until_it_is_full)
        with pytest.raises(TrackingError, match=r"TensorBoard files in .* cannot be written: .*No space left"):
            shown.flush([run])
        writer.flush()
    shown.flush([run])
    assert set(scalars(tmp_path, run.trial_id).values()) == {1}
    assert {step for _, step, _ in scalars(tmp_path, run.trial_id)} == set(range(6))


@TENSORBOARD
def test_a_folder_of_an_arm_with_a_very_long_name(tmp_path: Path) -> None:
    """File systems take 255 bytes; two arms that are the same so far stay two folders."""
    runs = [a_run(3, arm="x" * 300, seed=0), a_run(4, arm="x" * 299 + "y", **{"optim.lr": 0.5})]
    mirror_folders.TensorBoardMirror(tmp_path, "tested").flush(runs)
    for run in runs:
        assert set(scalars(tmp_path, run.trial_id)) == wanted(run)


@TENSORBOARD
def test_a_trial_that_nobody_computes_is_written_to_its_end(tmp_path: Path) -> None:
    """However it ended; one that is under way has no last words yet."""
    for status in STATUS_IN_MLFLOW:
        mirror_folders.TensorBoardMirror(tmp_path, status).flush([a_run(4, status=status)])
        (file,) = tmp_path.glob(f"tensorboard/{status}/*/events*")
        said = f'status: "{status}"'.encode() in file.read_bytes()
        assert said == (status not in ("running", "pending")), status


@TENSORBOARD
def test_a_trial_that_comes_back_is_written_anew(tmp_path: Path) -> None:
    shown, run = mirror_folders.TensorBoardMirror(tmp_path, "tested"), a_run(4)
    shown.flush([a_run(2)])
    shown.flush([], left=[run.trial_id])
    assert not list(tmp_path.glob("tensorboard/tested/*"))
    shown.flush([run])
    assert set(scalars(tmp_path, run.trial_id)) == wanted(run)


@pytest.mark.parametrize("kind", [mirror_folders.TensorBoardMirror, mirror_folders.WandbMirror])
def test_a_folder_that_was_never_there_is_forgotten(tmp_path: Path, kind: Any) -> None:
    """The first ``sync`` of a sweep, or one after its folder was deleted by hand."""
    kind(tmp_path, "tested").forget()
    assert not list(tmp_path.iterdir())


def test_a_library_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep may be rebuilt on another machine than the one it ran on."""
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(TrackingError, match=r"TensorBoard files in .* cannot be written: .*tensorboardX"):
        mirror_folders.TensorBoardMirror(tmp_path, "tested").flush([a_run(2)])
