"""The write side: what a trial folder promises, and what its mirror in MLflow does."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_lab.config import RunConfig
from ragen_lab.errors import CheckpointError, ConfigError, HomeError, TrackingError, TrialLocked
from ragen_lab.locks import is_locked, locked
from ragen_lab.mirror import (
    MLflowMirror,
    default_uri,
    metric_name,
    mlflow_errors,
    open_mlflow,
    param_from_text,
    param_to_text,
    uri_fault,
)
from ragen_lab.mirror_pages import serve_ui, sweep_pages
from ragen_lab.runs import Run, from_mlflow
from ragen_lab.track import (
    FolderTracker,
    MemoryTracker,
    damaged_line,
    decode_row,
    encode_row,
    list_checkpoints,
    read_done,
    read_json,
    read_provenance,
    read_rows,
    write_done,
    write_provenance,
)

CFG = RunConfig().with_overrides({"train.keep_checkpoints": 2})


def tracker(folder: Path, cfg: RunConfig = CFG) -> FolderTracker:
    return FolderTracker(folder, cfg)


def fill(folder: Path, rows: int, every: int = 2) -> FolderTracker:
    made = tracker(folder)
    assert made.resume(load) is None
    for i in range(rows):
        made.log(i, {"eval/success": i / 10})
        made.trajectories(i, [{"reply": f"of {i}"}])
        made.groups(i, {"kept": [i]})
        if i % every == 0:
            made.checkpoint(i, lambda path, i=i: path.write_text(f"state {i}") and None)
    return made


def load(path: Path) -> str:
    return path.read_text()


# --- numbers --------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(min_size=1), st.floats() | st.integers(-(2**40), 2**40)))
def test_pitfall_22_rows_survive_json(row: dict[str, float]) -> None:
    """Pitfall 22: NaN and the infinities are recorded, and the file is JSON that any reader takes."""
    line = encode_row(row)
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    found = decode_row(line)
    assert {key: repr(value) for key, value in found.items()} == {key: repr(value) for key, value in row.items()}


@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text())
def test_params_survive_mlflow(value: Any) -> None:
    assert repr(param_from_text(param_to_text(value))) == repr(value)


def test_params_are_readable() -> None:
    found = [param_to_text(value) for value in ("std", 0.25, None, True, 8, "123", "cuda:0")]
    assert found == ["std", "0.25", "null", "true", "8", '"123"', "cuda:0"]


def test_metric_names() -> None:
    assert metric_name("eval/success") == "eval/success"
    assert metric_name("a(b)?ü") == "a_b___"


# --- the folder -----------------------------------------------------------------------------------


def test_rows_are_one_per_iteration(tmp_path: Path) -> None:
    for made in (tracker(tmp_path / "a"), MemoryTracker()):
        made.resume(load)
        made.log(0, {"x": math.nan})
        with pytest.raises(ValueError, match="one row per iteration"):
            made.log(0, {"x": 1.0})
        with pytest.raises(ValueError, match="one row per iteration"):
            made.log(2, {"x": 1.0})
        assert [row["iteration"] for row in made.rows] == [0]
    (row,) = read_rows(tmp_path / "a" / "metrics.jsonl")
    assert math.isnan(row["x"])
    assert row["timestamp"] == round(row["timestamp"], 3)


def test_resume_cuts_back_to_the_newest_checkpoint(tmp_path: Path) -> None:
    fill(tmp_path, 6)  # checkpoints at 0, 2, 4; rows 0..5
    again = tracker(tmp_path)
    assert len(again.rows) == 6
    assert again.resume(load) == "state 4"
    assert [row["iteration"] for row in again.rows] == [0, 1, 2, 3, 4]
    assert read_rows(tmp_path / "metrics.jsonl") == again.rows
    replies = [json.loads(line)["reply"] for line in (tmp_path / "trajectories.jsonl").read_text().splitlines()]
    assert replies == [f"of {i}" for i in range(5)]
    kept = [json.loads(line) for line in (tmp_path / "groups.jsonl").read_text().splitlines()]
    assert kept == [{"iteration": i, "kept": [i]} for i in range(5)]
    again.log(5, {"eval/success": 1.0})
    assert read_rows(tmp_path / "metrics.jsonl")[-1]["eval/success"] == 1.0


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    fill(tmp_path, 7)
    assert [iteration for iteration, _ in list_checkpoints(tmp_path)] == [4, 6]


@pytest.mark.parametrize("harm", ["truncate", "delete", "manifest", "flip"])
def test_a_damaged_checkpoint_is_skipped_and_told(tmp_path: Path, harm: str) -> None:
    fill(tmp_path, 5)
    newest = list_checkpoints(tmp_path)[-1][1]
    state = newest / "state"
    match harm:
        case "truncate":
            os.truncate(state, 3)
        case "delete":
            state.unlink()
        case "manifest":
            (newest / "MANIFEST.json").unlink()
        case "flip":
            state.write_text("state 9")
    again = tracker(tmp_path)
    assert again.resume(load) == "state 2"
    assert len(again.rows) == 3
    assert "iteration 4 cannot be used" in again.notes[0]
    assert "older one" in again.notes[0]


def test_a_checkpoint_that_its_reader_refuses_is_skipped(tmp_path: Path) -> None:
    fill(tmp_path, 5)

    def choosy(path: Path) -> str:
        if load(path) == "state 4":
            raise CheckpointError("made by another trainer")
        return load(path)

    again = tracker(tmp_path)
    assert again.resume(choosy) == "state 2"
    assert "another trainer" in again.notes[0]


def test_a_checkpoint_without_its_rows_is_not_used(tmp_path: Path) -> None:
    """A power cut may lose rows that were not yet on the disk: there must be no hole in the history."""
    fill(tmp_path, 5)
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:4]))
    again = tracker(tmp_path)
    assert again.resume(load) == "state 2"


def test_no_usable_checkpoint_means_from_the_start(tmp_path: Path) -> None:
    fill(tmp_path, 2, every=5)
    for _, folder in list_checkpoints(tmp_path):
        (folder / "state").unlink()
    again = tracker(tmp_path)
    assert again.resume(load) is None
    assert again.rows == []
    assert read_rows(tmp_path / "metrics.jsonl") == []


def test_torn_lines_end_the_history(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    file = tmp_path / "metrics.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"iteration": 3, "eval/su')
    assert len(read_rows(file)) == 3
    file.write_text(whole + '{"iteration": 4}\n')  # a hole
    assert len(read_rows(file)) == 3
    file.write_text(whole + '{"iteration": 3, "x": "maybe"}\n')
    assert len(read_rows(file)) == 3
    file.write_text(whole + '{"iteration": 3, "eval/su')
    again = tracker(tmp_path)
    again.log(3, {"x": 1.0})  # even without a resume, a torn line does not run into the next
    assert [row["iteration"] for row in read_rows(file)] == [0, 1, 2, 3]


def test_a_line_that_is_damaged_in_the_midst_is_told(tmp_path: Path) -> None:
    """A torn last line is what a kill leaves; lines after a damaged one are lost, and somebody must say so."""
    file = tmp_path / "metrics.jsonl"
    assert damaged_line(file) is None
    lines = [encode_row({"iteration": float(i), "timestamp": 1.0}) for i in range(4)]
    file.write_text("\n".join(lines) + "\n")
    assert damaged_line(file) is None
    file.write_text("\n".join([*lines[:3], lines[3][:9]]) + "\n")
    assert damaged_line(file) is None  # the last one alone
    file.write_text("\n".join([*lines, lines[3][:9]]))
    assert damaged_line(file) is None  # being written
    file.write_text("\n".join([lines[0], lines[1][:9], *lines[2:]]) + "\n")
    assert damaged_line(file) == (2, 4)
    file.write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    assert damaged_line(file) == (2, 3)  # a line is missing


def test_a_resume_tells_of_damage_and_where_it_begins(tmp_path: Path) -> None:
    fill(tmp_path, 5)  # checkpoints at 2 and 4; rows 0..4
    file = tmp_path / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:3], lines[3][:9] + "\n", *lines[4:]]))
    again = tracker(tmp_path)
    assert again.resume(load) == "state 2"
    assert len(again.rows) == 3
    damaged, older = again.notes
    assert damaged == "metrics.jsonl is damaged at line 4 of 5: what follows it is computed again."
    assert older.endswith("Going on from an older one.")
    (list_checkpoints(tmp_path)[-1][1] / "state").write_text("spoilt")
    last = tracker(tmp_path)
    assert last.resume(load) is None
    assert last.notes[-1].endswith("Going on from the start.")


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    made = fill(tmp_path, 1)

    def full(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        made.checkpoint(0, full)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000000"]
    assert tracker(tmp_path).resume(load) == "state 0"


def test_a_state_may_be_a_folder(tmp_path: Path) -> None:
    made = tracker(tmp_path)
    made.resume(load)
    made.log(0, {})

    def save(path: Path) -> None:
        path.mkdir()
        (path / "weights").write_text("w")

    made.checkpoint(0, save)
    assert tracker(tmp_path).resume(lambda path: (path / "weights").read_text()) == "w"


def test_pitfall_21_a_used_folder_never_continues_another_config(tmp_path: Path) -> None:
    """Pitfall 21: the config hash decides, whatever the folder is called."""
    fill(tmp_path, 2)
    tracker(tmp_path, CFG.with_overrides({"train.iterations": 400, "detect.on_collapse": "continue"}))
    with pytest.raises(CheckpointError, match="never continued under another config"):
        tracker(tmp_path, CFG.with_overrides({"optim.lr": 0.5}))


@pytest.mark.parametrize("torn", ["", '{"trial_id": "aaa', "[1]"])
def test_pitfall_21_a_torn_config_is_nobodys_to_overwrite(tmp_path: Path, torn: str) -> None:
    """Pitfall 21: unreadable is not absent."""
    fill(tmp_path, 2)
    (tmp_path / "config.json").write_text(torn)
    with pytest.raises(CheckpointError, match="Move the folder away"):
        tracker(tmp_path, CFG.with_overrides({"optim.lr": 0.5}))
    assert (tmp_path / "config.json").read_text() == torn


def test_what_cannot_be_read_is_the_homes_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for call in (
        lambda: read_json(tmp_path / "file" / "DONE.json"),
        lambda: read_rows(tmp_path / "file" / "metrics.jsonl"),
        lambda: read_rows(tmp_path / "binary"),
        lambda: locked(tmp_path / "file" / "lock").__enter__(),
    ):
        with pytest.raises(HomeError, match="repeat the command; or name another folder with --home"):
            call()


def test_done_and_provenance(tmp_path: Path) -> None:
    assert read_done(tmp_path) is None
    write_done(tmp_path, "collapsed", 7, "why", None)
    done = read_done(tmp_path)
    assert done is not None
    assert (done["status"], done["iteration"], done["reason"]) == ("collapsed", 7, "why")
    assert read_provenance(tmp_path) == {}
    write_provenance(tmp_path, 0)
    write_provenance(tmp_path, 3)
    found = read_provenance(tmp_path)
    assert (found["from_iteration"], found["sessions"], found["code_versions"]) == (3, 2, 1)
    assert {"ragen_lab", "torch", "commit", "python"} <= set(found)


def _hold(file: Path, ready: Any, release: Any) -> None:
    with locked(file):
        ready.set()
        release.wait(30)


def test_the_lock_is_exclusive_and_dies_with_its_holder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    file = tmp_path / "lock"
    holder = context.Process(target=_hold, args=(file, ready, release))
    assert not is_locked(file)
    holder.start()
    assert ready.wait(30)
    assert is_locked(file)
    with pytest.raises(TrialLocked, match=f"process {holder.pid}"), locked(file, wait=0.3):
        pass
    holder.kill()
    holder.join()
    with locked(file):
        pass


# --- the mirror -----------------------------------------------------------------------------------


def a_run(rows: int = 3, arm: str = "keep_ratio=0.5", seed: int = 0, status: str = "running", **knobs: Any) -> Run:
    cfg = CFG.with_overrides({"seed": seed, **knobs})
    made = tuple(
        {"iteration": i, "timestamp": 1.7e9 + i, "eval/success": i / 10, "bad": [math.nan, math.inf, -math.inf][i % 3]}
        for i in range(rows)
    )
    return Run(cfg.trial_id(), cfg.config_id(), "s", arm, seed, cfg.flat(), made, status, provenance={"commit": "abc"})


def points(uri: str, run_id: str, metric: str) -> list[tuple[int, str]]:
    client = open_mlflow(uri)
    return [(point.step, repr(point.value)) for point in client.get_metric_history(run_id, metric)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose database is migrated once."""
    home = tmp_path_factory.mktemp("mlflow-home")
    open_mlflow(default_uri(home))
    return home


def mirror(home: Path, sweep: str, home_id: str = "h") -> MLflowMirror:
    return MLflowMirror(default_uri(home), sweep, home, home_id, (4,))


def test_pitfall_22_the_mirror_writes_nothing_twice(server: Path) -> None:
    """Idempotence: another flush, another process's mirror, and a flush that goes on, all without duplicates.
    Pitfall 22: NaN and infinities arrive."""
    first = mirror(server, "twice")
    ids = first.flush([a_run(2)])
    assert first.flush([a_run(2)]) == ids
    assert mirror(server, "twice").flush([a_run(4, status="finished")]) == ids
    (run_id,) = ids.values()
    uri = default_uri(server)
    assert points(uri, run_id, "eval/success") == [(0, "0.0"), (1, "0.1"), (2, "0.2"), (3, "0.3")]
    assert points(uri, run_id, "bad")[0] == (0, "nan")
    (read,) = from_mlflow(uri, "twice").runs
    assert repr([row["bad"] for row in read.rows]) == "[nan, inf, -inf, nan]"
    assert read.params == a_run().params


def test_points_written_by_a_driver_that_died_before_its_note(server: Path) -> None:
    """The same key, step, value and time again is no second point, NaN included."""
    uri = default_uri(server)
    (run_id,) = mirror(server, "died").flush([a_run(3)]).values()
    open_mlflow(uri).set_tag(run_id, "mirrored_iteration", "0")
    mirror(server, "died").flush([a_run(3)])
    assert len(points(uri, run_id, "eval/success")) == 3
    assert len(points(uri, run_id, "bad")) == 3


def test_what_a_stranger_sees(server: Path) -> None:
    runs = [
        a_run(3, "keep_ratio=0.5", 0, "collapsed"),
        a_run(3, "random_drop", 1, "finished", **{"filter.kind": "random"}),
    ]
    first = mirror(server, "seen")
    ids = first.flush(runs)
    first.end("FINISHED")
    client = open_mlflow(default_uri(server))
    run = client.get_run(ids[runs[0].trial_id])
    assert run.info.run_name == "keep_ratio=0.5 · seed 0"
    assert run.info.status == "FINISHED"
    assert run.data.params["filter.keep_ratio"] == "0.25"
    tags = run.data.tags
    assert (tags["arm"], tags["seed"], tags["status"], tags["findings"]) == ("keep_ratio=0.5", "0", "collapsed", "4")
    assert (tags["trial_id"], tags["config_id"]) == (runs[0].trial_id, runs[0].config_id)
    parent = client.get_run(tags["mlflow.parentRunId"])
    assert (parent.info.run_name, parent.info.status) == ("seen", "FINISHED")


def test_another_view_of_a_trial_is_another_run(server: Path) -> None:
    """Parameters are immutable in MLflow: growing a sweep replaces its run, once the new one is written."""
    uri, client = default_uri(server), open_mlflow(default_uri(server))
    (old,) = mirror(server, "grown").flush([a_run(3)]).values()
    grown = a_run(5, **{"train.iterations": 400})
    killed = mirror(server, "grown").flush([grown])  # a driver that died before its end: nothing is deleted yet
    assert old not in killed.values()
    assert client.get_run(old).info.lifecycle_stage == "active"
    (read,) = from_mlflow(uri, "grown").runs
    assert (len(read.rows), read.params["train.iterations"]) == (5, 400)
    again = mirror(server, "grown")
    assert again.flush([grown]) == killed
    again.end("FINISHED")
    assert client.get_run(old).info.lifecycle_stage == "deleted"


def test_a_run_begins_with_its_first_row(server: Path) -> None:
    """MLflow cannot move a run's start: a trial that waits gets its run at the end, and a new one once it has rows."""
    uri, client = default_uri(server), open_mlflow(default_uri(server))
    waits, works = a_run(0, status="pending"), a_run(2, seed=1)
    first = mirror(server, "begins")
    warms_up = a_run(0, seed=2, status="running")
    assert set(first.flush([waits, works, warms_up])) == {works.trial_id}
    assert set(first.flush([waits, works])) == {works.trial_id}
    ids = first.end("KILLED")
    assert set(ids) == {waits.trial_id, works.trial_id}
    assert client.get_run(ids[works.trial_id]).info.start_time == 1.7e12
    assert [run.status for run in from_mlflow(uri, "begins")] == ["pending", "running"]
    again = mirror(server, "begins")
    again.flush([a_run(3, status="finished"), works])
    later = again.end("FINISHED")
    assert later[works.trial_id] == ids[works.trial_id]
    assert client.get_run(later[waits.trial_id]).info.start_time == 1.7e12
    assert client.get_run(later[waits.trial_id]).info.end_time == 1.7e12 + 2000  # and ends with its last
    assert client.get_run(ids[waits.trial_id]).info.lifecycle_stage == "deleted"


def test_a_trial_that_left_its_sweep_keeps_its_run(server: Path) -> None:
    uri, client = default_uri(server), open_mlflow(default_uri(server))
    stays, goes = a_run(3, status="finished"), a_run(3, seed=1, status="finished")
    ids = mirror(server, "left").flush([stays, goes])
    later = mirror(server, "left")
    later.flush([stays], left={goes.trial_id})
    later.end("FINISHED")
    run = client.get_run(ids[goes.trial_id])
    assert (run.info.lifecycle_stage, run.info.status) == ("active", "FINISHED")
    assert (run.data.tags["left_sweep"], run.data.tags["status"]) == ("true", "finished")
    assert [each.trial_id for each in from_mlflow(uri, "left")] == [stays.trial_id]
    assert ids[goes.trial_id] not in sweep_pages(uri)["left"].compare
    assert mirror(server, "left").flush([stays, goes]) == ids  # it is back
    assert [each.trial_id for each in from_mlflow(uri, "left")] == [stays.trial_id, goes.trial_id]


def test_part_of_a_sweep_touches_no_other_run(server: Path) -> None:
    first, second = a_run(3), a_run(4, seed=1)
    mirror(server, "part").flush([first])
    mirror(server, "part").flush([second], positions={first.trial_id: 0, second.trial_id: 1})
    assert [run.trial_id for run in from_mlflow(default_uri(server), "part")] == [first.trial_id, second.trial_id]


@pytest.mark.parametrize(
    ("uri", "word"),
    [
        ("foo://bar", "'foo', which MLflow does not know"),
        ("./mlruns", "is a folder"),
        ("file:///x", "is a folder"),
        ("http:/nope", "no host name"),
    ],
)
def test_an_address_that_can_never_be_one(uri: str, word: str) -> None:
    assert word in (uri_fault(uri) or "")
    with pytest.raises(ConfigError, match=r"track\.mlflow_uri"):
        open_mlflow(uri)


@pytest.mark.parametrize("uri", ["http://h:5", "https://h", "sqlite:////x.db", "postgresql+psycopg://u@h/d"])
def test_an_address_that_can_be_one(uri: str) -> None:
    assert uri_fault(uri) is None


def test_a_database_without_its_driver_is_told() -> None:
    with pytest.raises(TrackingError, match="No module named"):
        open_mlflow("postgresql://u@127.0.0.1:1/x")


def test_a_long_reason_is_cut_between_words() -> None:
    with pytest.raises(TrackingError) as raised, mlflow_errors("http://h"):
        raise OSError("word " * 100)
    assert str(raised.value).endswith("word ...")


def test_the_program_turns_telemetry_off_itself(tmp_path: Path) -> None:
    """Not only the tests do (tests/conftest.py)."""
    code = (
        f"from ragen_lab.mirror import open_mlflow; open_mlflow({default_uri(tmp_path)!r}); import os; "
        "from ragen_lab.sweep import tune; "
        "print(*(os.environ.get(k) for k in ('MLFLOW_DISABLE_TELEMETRY', 'DO_NOT_TRACK', 'RAY_USAGE_STATS_ENABLED')))"
    )
    unset = ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "RAY_USAGE_STATS_ENABLED")
    clean = {key: value for key, value in os.environ.items() if key not in unset}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean, check=True)
    assert done.stdout.split() == ["true", "true", "0"]


def test_the_pages_are_served_to_this_machine_only(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Server:
        pid = 2**22 + 1  # no process has this number

        def __init__(self, command: list[str], env: dict[str, str], stdout: Any, **more: Any) -> None:
            started.append((command, env))
            stdout.write(b"first\nlast words\n")

        def poll(self) -> int:
            return code

        wait = poll

    for key in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr("ragen_lab.mirror_pages.subprocess.Popen", Server)
    said: list[str] = []
    code = 0
    assert serve_ui(server, 5099, said.append) == 0
    ((command, environment),) = started
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert said[0].startswith("Starting MLflow at http://127.0.0.1:5099")
    assert said[1] == "MLflow: http://127.0.0.1:5099"
    code = 3
    with pytest.raises(HomeError, match="ended with exit code 3: last words"):
        serve_ui(server, 5099, said.append)


def test_a_port_that_is_in_use_is_told_before_anything_is_promised(server: Path) -> None:
    said: list[str] = []
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port} cannot be used: another program uses it"):
            serve_ui(server, port, said.append)
    assert said == []


def test_the_compare_page_names_every_run_of_a_sweep_and_not_the_sweep_itself(server: Path) -> None:
    ids = mirror(server, "compared").flush([a_run(3), a_run(3, seed=1)])
    page = unquote(sweep_pages(default_uri(server))["compared"].compare)
    assert page.startswith("#/compare-runs?runs=[")
    named = json.loads(page.split("runs=", 1)[1].split("&")[0])
    assert sorted(named) == sorted(ids.values())


def test_two_homes_on_one_server(server: Path) -> None:
    mirror(server, "shared", "one").flush([a_run(3), a_run(5, seed=1)])
    mirror(server, "shared", "two").flush([a_run(4)])
    assert sorted(len(run.rows) for run in from_mlflow(default_uri(server), "shared").runs) == [4, 5]
    mirror(server, "shared", "two").forget()
    assert sorted(len(run.rows) for run in from_mlflow(default_uri(server), "shared").runs) == [3, 5]


def test_a_database_that_goes_while_in_use_is_noticed(tmp_path: Path) -> None:
    """SQLite itself would silently write on into the deleted file."""
    kept = mirror(tmp_path, "gone")
    kept.flush([a_run(3)])
    for file in tmp_path.glob("mlflow.db*"):
        file.unlink()
    with pytest.raises(TrackingError, match="removed or replaced"):
        kept.flush([a_run(4)])


def test_what_mlflow_logs_beside_its_exceptions_is_not_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    open_mlflow(f"sqlite:///{tmp_path / 'mlflow.db'}")
    logging.getLogger("mlflow.store.db.utils").error("a traceback of twenty lines")
    assert "twenty lines" not in "".join(capfd.readouterr())


def test_an_unreachable_server_is_told_after_few_attempts() -> None:
    """MLflow's own default is eight, with pauses of minutes in all."""
    attempts: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with suppress(OSError):  # the server is closed
                while True:
                    connection, address = server.accept()
                    attempts.append(address)
                    connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(TrackingError, match=uri):
            MLflowMirror(uri, "s", Path("/nowhere"), "h").flush([a_run(2)])
    assert 1 <= len(attempts) <= 4


def test_first_start_of_several_at_once(tmp_path: Path) -> None:
    """Two first initialisations of one MLflow database fail with a duplicate column: ours take turns."""
    code = f"from ragen_lab.mirror import open_mlflow; open_mlflow({default_uri(tmp_path)!r}).search_experiments()"
    started = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
