"""What MLflow holds after trouble: rows taken back or computed again, runs that are there twice, long texts."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_lab.errors import TrackingError
from ragen_lab.mirror import (
    MLflowMirror,
    default_uri,
    mlflow_errors,
    open_mlflow,
    param_from_text,
    param_to_text,
)
from ragen_lab.mirror_traces import _held, _write
from ragen_lab.runs import Run, from_mlflow
from ragen_lab.track import TRAJECTORIES_FILE, encode_row, trial_folder
from tests.sweep.talking import trajectory
from tests.test_track import a_run, mirror, points, server  # noqa: F401 - a fixture among them


def again_from(run: Run, iteration: int) -> Run:
    """The same trial after its newest checkpoint was found damaged: these rows were computed once more, later."""
    rows = tuple(
        {**row, "timestamp": row["timestamp"] + 1000} if row["iteration"] >= iteration else row for row in run.rows
    )
    return replace(run, rows=rows)


def held(home: Path, sweep: str) -> list[Run]:
    return list(from_mlflow(default_uri(home), sweep).runs)


def test_rows_that_a_sweep_takes_back_are_gone(server: Path) -> None:  # noqa: F811
    """A trial that another sweep took to its end, and that the scheduler of this one then ends earlier."""
    shown = mirror(server, "taken back")
    (old,) = shown.flush([a_run(6, status="finished")]).values()
    pruned = replace(a_run(3, status="pruned"), stop_iteration=2, stop_reason="the lowest of its rung")
    (new,) = shown.flush([pruned]).values()
    (read,) = held(server, "taken back")
    assert (read.status, len(read.rows), read.mlflow_run_id) == ("pruned", 3, new)
    assert len(points(default_uri(server), new, "eval/success")) == 3
    shown.end("FINISHED")
    client = open_mlflow(default_uri(server))
    assert [client.get_run(each).info.lifecycle_stage for each in (old, new)] == ["deleted", "active"]
    assert mirror(server, "taken back").flush([pruned]) == {pruned.trial_id: new}


@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize(("first", "then"), [(6, 6), (6, 9), (9, 6)])
def test_rows_that_were_computed_again_have_their_new_times(
    server: Path,  # noqa: F811
    sessions: int,
    first: int,
    then: int,
) -> None:
    sweep = f"again {sessions} {first} {then}"
    shown = mirror(server, sweep)
    (old,) = shown.flush([a_run(first)]).values()
    later = again_from(a_run(then), 2)
    shown = shown if sessions == 1 else mirror(server, sweep)
    (new,) = shown.flush([later]).values()
    assert new != old
    (read,) = held(server, sweep)
    assert [row["timestamp"] for row in read.rows] == [row["timestamp"] for row in later.rows]
    assert len(points(default_uri(server), new, "eval/success")) == then


def test_rows_computed_again_after_a_driver_that_died_before_its_note(server: Path) -> None:  # noqa: F811
    """Points that no note counts yet are known all the same: theirs is written before them."""
    first = mirror(server, "died again")
    first.flush([a_run(2)])
    first.flush([a_run(6)])
    (child,) = first._children.values()
    open_mlflow(default_uri(server)).set_tag(child.run_id, "mirrored_iteration", "1")
    (new,) = mirror(server, "died again").flush([again_from(a_run(6), 4)]).values()
    assert new != child.run_id
    assert len(points(default_uri(server), new, "eval/success")) == 6


def test_growth_alone_replaces_nothing(server: Path) -> None:  # noqa: F811
    shown = mirror(server, "grows")
    ids = [shown.flush([a_run(rows)]) for rows in (1, 2, 2, 7)]
    ids += [mirror(server, "grows").flush([a_run(rows, status="finished")]) for rows in (7, 9)]
    assert ids == ids[:1] * 6


def twin(client: Any, run_id: str, **tags: str) -> str:
    """What a request leaves that was sent twice: another run with the same first tags."""
    run = client.get_run(run_id)
    later = ("mirrored_iteration", "status", "position", "provenance", "mirrored_rows")
    first = {key: value for key, value in run.data.tags.items() if key not in later}
    name = run.info.run_name
    made = client.create_run(run.info.experiment_id, start_time=1, run_name=name, tags={**first, **tags})
    return str(made.info.run_id)


@pytest.mark.parametrize("further", ["-1", "9"])
def test_a_trial_that_is_there_twice_is_there_once_again(server: Path, further: str) -> None:  # noqa: F811
    """The one that is furthest along stays, unless it is no copy of these rows; whatever comes first in a search."""
    client, sweep = open_mlflow(default_uri(server)), f"twice there {further}"
    other = a_run(3, seed=1)
    ids = mirror(server, sweep).flush([a_run(3), other])
    twins = [twin(client, ids[other.trial_id], mirrored_iteration=further) for _ in range(2)]
    shown = mirror(server, sweep)
    later = shown.flush([a_run(4), a_run(4, seed=1)])
    assert [len(run.rows) for run in held(server, sweep)] == [4, 4]
    assert not set(later.values()) & set(twins)
    assert further == "9" or later == ids
    shown.end("FINISHED")
    assert [client.get_run(each).info.lifecycle_stage for each in twins] == ["deleted"] * 2
    assert [client.get_run(each).info.lifecycle_stage for each in later.values()] == ["active"] * 2


def test_a_twin_made_while_the_sweep_runs_is_gone_at_its_end(server: Path) -> None:  # noqa: F811
    client = open_mlflow(default_uri(server))
    shown = mirror(server, "late twin")
    ids = shown.flush([a_run(3)])
    (run_id,) = ids.values()
    late = twin(client, run_id)
    assert shown.end("FINISHED") == ids
    assert client.get_run(late).info.lifecycle_stage == "deleted"
    assert client.get_run(run_id).info.lifecycle_stage == "active"


def test_of_two_runs_without_rows_the_one_with_parameters_stays(server: Path) -> None:  # noqa: F811
    """The empty one is the older: the first answer was lost, and what followed went to the second."""
    client = open_mlflow(default_uri(server))
    waits = a_run(0, status="pending")
    first = mirror(server, "waiting twin")
    first.flush([waits])
    ids = first.end("KILLED")
    empty = twin(client, ids[waits.trial_id])
    again = mirror(server, "waiting twin")
    again.flush([waits])
    assert again.end("KILLED") == ids
    assert client.get_run(empty).info.lifecycle_stage == "deleted"


def test_after_trouble_the_next_flush_starts_afresh(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """What it knew may be gone: here the run was deleted while the server was away."""
    shown = mirror(server, "afresh")
    (old,) = shown.flush([a_run(3)]).values()

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionRefusedError("no server")

    with monkeypatch.context() as trouble:
        trouble.setattr(shown._client, "log_batch", away)
        with pytest.raises(TrackingError, match="no server"):
            shown.flush([a_run(4)])
    open_mlflow(default_uri(server)).delete_run(old)
    (new,) = shown.flush([a_run(4)]).values()
    assert new != old
    assert [len(run.rows) for run in held(server, "afresh")] == [4]


def test_a_removed_database_is_told_at_every_flush(tmp_path: Path) -> None:
    """MLflow would go on writing into the file that is gone, from any client of this process."""
    shown = mirror(tmp_path, "removed")
    shown.flush([a_run(3)])
    for file in tmp_path.glob("mlflow.db*"):
        file.unlink()
    for _ in range(2):
        with pytest.raises(TrackingError, match="removed or replaced"):
            shown.flush([a_run(4)])


def test_a_deleted_experiment_comes_back(server: Path) -> None:  # noqa: F811
    client = open_mlflow(default_uri(server))
    ids = mirror(server, "restored").flush([a_run(3)])
    client.delete_experiment(client.get_experiment_by_name("restored").experiment_id)
    mirror(server, "restored").flush([a_run(4)])
    assert client.get_experiment_by_name("restored").lifecycle_stage == "active"
    assert [len(run.rows) for run in held(server, "restored")] == [4]
    assert len(ids) == 1


def test_what_was_replaced_is_forgotten_too(server: Path) -> None:  # noqa: F811
    """A driver that was killed left a run that is replaced and not yet deleted."""
    client = open_mlflow(default_uri(server))
    shown = mirror(server, "forgotten")
    old = shown.flush([a_run(6)]) | shown.flush([a_run(3)])
    shown = mirror(server, "forgotten")
    shown.flush([a_run(3)])
    replaced = list(shown._replaced)
    assert len(replaced) == 1
    mirror(server, "forgotten").forget()
    assert [client.get_run(each).info.lifecycle_stage for each in (*replaced, *old.values())] == ["deleted"] * 2


def test_system_metrics_stop_where_the_view_does(server: Path) -> None:  # noqa: F811
    run = a_run(3, **{"track.system_metrics": True})
    folder = trial_folder(server, run.trial_id)
    folder.mkdir(parents=True)
    lines = [{"iteration": i, "timestamp": 1.7e9 + i, "system/cpu_percent": 1.0} for i in range(6)]
    (folder / "system.jsonl").write_text("".join(f"{encode_row(line)}\n" for line in lines))
    (run_id,) = mirror(server, "system").flush([run]).values()
    assert [step for step, _ in points(default_uri(server), run_id, "system/cpu_percent")] == [0, 1, 2]


def test_a_sweep_that_is_there_twice_is_there_once_again(server: Path) -> None:  # noqa: F811
    """The one with the trials stays; a trial under the other comes to it."""
    client = open_mlflow(default_uri(server))
    first = mirror(server, "two parents")
    ids = first.flush([a_run(3), a_run(3, seed=1)])
    parent, stray = first._parent, ids[a_run(3).trial_id]
    extra = twin(client, parent)
    for seed in (2, 3):  # a new sweep run is what a search names first
        later = mirror(server, "two parents")
        later.flush([a_run(3), a_run(3, seed=1), a_run(3, seed=seed)])
        assert later._parent == parent
    client.set_tag(stray, "mlflow.parentRunId", extra)
    last = mirror(server, "two parents")
    assert last.flush([a_run(3), a_run(3, seed=1)]).items() >= ids.items()
    last.end("FINISHED")
    assert client.get_run(stray).data.tags["mlflow.parentRunId"] == parent
    assert [client.get_run(each).info.lifecycle_stage for each in (parent, extra)] == ["active", "deleted"]
    assert client.get_run(parent).info.status == "FINISHED"


def test_two_homes_are_no_twins(server: Path) -> None:  # noqa: F811
    one, two = mirror(server, "neighbours", "one"), mirror(server, "neighbours", "two")
    ids = [shown.flush([a_run(3)]) for shown in (one, two)]
    assert [shown.end("FINISHED") for shown in (one, two)] == ids
    client = open_mlflow(default_uri(server))
    for found in ids:
        assert {client.get_run(each).info.lifecycle_stage for each in found.values()} == {"active"}


LONG = "x" * 7000


def test_a_long_parameter_is_no_new_view_at_every_start(server: Path) -> None:  # noqa: F811
    """MLflow keeps 6000 characters; values that differ only after that are two values."""
    options = {"env.name": "module:Class", "env.options": {"rules": LONG}}
    run, other = a_run(3, **options), a_run(3, **{**options, "env.options": {"rules": f"{LONG[:-1]}y"}})
    moved = replace(other, trial_id=run.trial_id)
    ids = mirror(server, "long").flush([run])
    assert mirror(server, "long").flush([run]) == ids
    assert mirror(server, "long").flush([moved]) != ids


@pytest.mark.parametrize("value", [LONG, [LONG, 1], {"a": LONG}])
def test_a_long_parameter_says_that_it_was_cut(value: Any) -> None:
    text = param_to_text(value)
    assert len(text) <= 6000
    assert "cut; the whole has " in text
    assert param_from_text(text) == text
    assert param_to_text("x" * 6000) == "x" * 6000


def test_a_long_command_reads_back(server: Path) -> None:  # noqa: F811
    """A tag is cut at 8000 characters, which would leave half a JSON text."""
    run = replace(a_run(3), provenance={"commit": "abc", "command": "ü" * 14000}, stop_reason="why " * 3000)
    ids = mirror(server, "wordy").flush([run])
    (read,) = held(server, "wordy")
    assert read.provenance["commit"] == "abc"
    assert "cut; the whole has 14000 characters" in read.provenance["command"]
    assert "cut; the whole has 12000 characters" in (read.stop_reason or "")
    shown = mirror(server, "wordy")
    shown.flush([run])
    (child,) = shown._children.values()
    assert json.loads(child.tags["provenance"])["commit"] == "abc"
    assert {run.trial_id: child.run_id} == ids


def test_a_sweep_that_goes_on_is_shown_as_running(server: Path) -> None:  # noqa: F811
    client, first = open_mlflow(default_uri(server)), mirror(server, "goes on")
    first.flush([a_run(3)])
    first.end("KILLED")
    again = mirror(server, "goes on")
    again.flush([a_run(4)])
    assert again._parent == first._parent
    assert client.get_run(first._parent).info.status == "RUNNING"


def test_what_mlflow_may_store_lies_in_the_home(server: Path) -> None:  # noqa: F811
    """Not in a folder of the working directory, whatever that is."""
    mirror(server, "placed").flush([a_run(3)])
    experiment = open_mlflow(default_uri(server)).get_experiment_by_name("placed")
    assert experiment.artifact_location == (server / "mlflow-artifacts" / "placed").as_uri()


def test_more_points_than_mlflow_takes_at_once(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("ragen_lab.mirror._BATCH", 5)
    (run_id,) = mirror(server, "many").flush([a_run(8)]).values()
    for name in ("eval/success", "bad"):
        assert [step for step, _ in points(default_uri(server), run_id, name)] == list(range(8))


class Page(list[Any]):
    token: str | None = None


class Pages:
    """Answers a search for runs or traces in pages of two."""

    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def search_runs(self, *_: Any, page_token: str | None, **__: Any) -> Page:
        end = int(page_token or 0) + 2
        page = Page(self.found[end - 2 : end])
        page.token = str(end) if end < len(self.found) else None
        return page

    search_traces = search_runs


def test_more_runs_and_traces_than_mlflow_tells_at_once(server: Path) -> None:  # noqa: F811
    """A run that is overlooked would be written a second time."""
    shown = mirror(server, "pages")
    shown._client = Pages(list("abcde"))
    assert shown._search("") == list("abcde")
    traces = [SimpleNamespace(info=SimpleNamespace(trace_id=each)) for each in "abcde"]
    assert _held(Pages(traces), "1", "run") == set("abcde")  # type: ignore[arg-type]


def test_secrets_of_an_address_are_not_told() -> None:
    """Neither where it is named as a place, nor in what goes wrong there."""
    uri = "postgresql://me:hunter2@h/runs"
    with pytest.raises(TrackingError, match=r"redacted.*no answer from") as caught, mlflow_errors(uri):
        raise OSError(f"no answer from {uri}")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in MLflowMirror(uri, "s", Path("/nowhere"), "h").place


def test_traces_are_of_the_view_of_the_sweep_and_not_of_a_trial_under_way(server: Path) -> None:  # noqa: F811
    """Its sample would be another one at every flush; and what another sweep went on to is not this one's."""
    from mlflow.tracing.client import TracingClient

    folder = trial_folder(server, a_run(seed=7).trial_id)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"iteration": i, **trajectory(i, 0)} for i in range(6)]
    (folder / TRAJECTORIES_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shown, client, seen = mirror(server, "traced"), TracingClient(default_uri(server)), []
    for status in ("running", "stopped"):
        (run_id,) = shown.flush([a_run(4, seed=7, status=status)]).values()
        found = client.search_traces(locations=[shown._experiment], run_id=run_id, include_spans=False)
        seen.append(sorted(trace.info.tags["iteration"] for trace in found))
    assert seen == [[], ["0", "3"]]


def test_a_trace_can_be_found_once_it_is_whole() -> None:
    """A driver that is killed in between leaves spans that nobody sees; the next one writes them again."""
    told: list[str] = []
    client = SimpleNamespace(
        log_spans=lambda *_: told.append("its spans"), start_trace=lambda *_: told.append("its head")
    )
    _write(client, "1", "run", f"tr-{'0' * 32}", {"iteration": 0, **trajectory(0, 0)}, 0)  # type: ignore[arg-type]
    assert told == ["its spans", "its head"]


def test_the_tenth_trial_comes_after_the_second(server: Path) -> None:  # noqa: F811
    """Where people sort by the place in the sweep: MLflow's tags are texts."""
    second, tenth = a_run(1), a_run(1, seed=1)
    shown = mirror(server, "sorted")
    ids = shown.flush([tenth, second], positions={second.trial_id: 2, tenth.trial_id: 10})
    client = open_mlflow(default_uri(server))
    found = client.search_runs([shown._experiment], "tags.arm != ''", order_by=["tags.position ASC"])
    assert [run.info.run_id for run in found] == [ids[second.trial_id], ids[tenth.trial_id]]


def test_who_reads_the_database_does_not_keep_the_sweep_from_writing(server: Path) -> None:  # noqa: F811
    with closing(sqlite3.connect(server / "mlflow.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
