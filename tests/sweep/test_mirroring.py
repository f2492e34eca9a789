"""The mirrors of a sweep: nothing twice, nothing lost, and the same again when they are rebuilt."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_lab.config import RunConfig
from ragen_lab.errors import TrackingError, TrialLocked
from ragen_lab.locks import locked
from ragen_lab.mirror import MLFLOW_QUIET, MLflowMirror, default_uri, open_mlflow
from ragen_lab.mirror_traces import sample, write_traces
from ragen_lab.runs import from_home, from_mlflow
from ragen_lab.sweep import mirroring
from ragen_lab.sweep.drive import Finished
from ragen_lab.sweep.mirroring import Mirroring, sync
from ragen_lab.sweep.spec import Sweep
from ragen_lab.track import Outcome, Tracker, read_system
from tests.sweep import fake
from tests.sweep.conftest import PAGE, numbers
from tests.sweep.talking import trajectory
from tests.sweep.test_search import HALVING
from tests.test_track import a_run

Make = Callable[..., Sweep]
Drive = Callable[..., tuple[Finished, str]]
TALKING = "tests.sweep.talking:train"
TWELVE = "base: base.yaml\nfindings: [4]\naxes: {filter.keep_ratio: [1.0, 0.5, 0.25, 0.75]}\nseeds: 3\n"


def content(uri: str, sweep: str) -> dict[str, Any]:
    """All that MLflow holds of a sweep, without the ids that MLflow itself draws."""
    from mlflow.tracing.client import TracingClient

    client, traces = open_mlflow(uri), TracingClient(uri)
    experiment = client.get_experiment_by_name(sweep)
    found = {}
    for run in client.search_runs([experiment.experiment_id], max_results=1000):
        points = {
            name: [(p.step, p.timestamp, repr(p.value)) for p in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        tags = {key: value for key, value in run.data.tags.items() if key != "mlflow.parentRunId"}
        held = traces.search_traces(locations=[experiment.experiment_id], run_id=run.info.run_id)
        spans = [
            [(span.name, span.inputs, span.outputs, span.start_time_ns) for span in trace.data.spans] for trace in held
        ]
        infos = [(trace.info.request_time, trace.info.tags["mlflow.traceName"], trace.info.state) for trace in held]
        key = tags.get("trial_id", "the sweep")
        times = (run.info.start_time, run.info.end_time) if key != "the sweep" else None
        said = sorted(json.dumps([spans[k], infos[k]], default=str) for k in range(len(held)))
        found[key] = (run.info.run_name, run.info.status, times, run.data.params, tags, points, said)
    return found


def test_a_deleted_database_comes_back_the_same(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Twelve trials: runs, names, states, times, parameters, tags, every point of every metric, and the traces."""
    home = tmp_path / "home"
    drive(sweep_of(TWELVE, mlflow=True, track__system_metrics=True), trainer=TALKING)
    uri = default_uri(home)
    before = content(uri, "tested")
    assert len(before) == 13
    assert all(len(said) == 2 for key, (*_, said) in before.items() if key != "the sweep")
    from mlflow.tracing.client import TracingClient

    for file in home.glob("mlflow.db*"):
        file.unlink()
    # In processes of their own, and read under another name: MLflow keeps its connection to the file that is gone.
    for which in ("first", "second"):  # the second over what is there: nothing is left of it, traces included
        command = [sys.executable, "-m", "ragen_lab", "sync", "tested", "--home", str(home)]
        subprocess.run(command, check=True, capture_output=True)
        copy = tmp_path / f"{which}.db"
        shutil.copyfile(home / "mlflow.db", copy)
        assert content(f"sqlite:///{copy}", "tested") == before
        traces = TracingClient(f"sqlite:///{copy}").search_traces(locations=["1"], max_results=500, include_spans=False)
        assert len(traces) == 24
    assert sync(home, "tested") == (12, (uri,))


def test_a_trace_tells_one_trajectory(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """The first and the last that are stored: a span per turn below one for the whole, linked to the run."""
    from mlflow.tracing.client import TracingClient

    home = tmp_path / "home"
    finished, _ = drive(sweep_of(seeds=1, mlflow=True), trainer=TALKING)
    for trial in finished.result["trials"]:
        run_id = trial["mlflow_run_id"]
        held = TracingClient(default_uri(home)).search_traces(locations=["1"], run_id=run_id)
        assert [trace.info.trace_metadata["mlflow.sourceRun"] for trace in held] == [run_id] * 2
        last = trial["stop_iteration"] or 8
        assert sorted(trace.info.tags["iteration"] for trace in held) == ["0", str(last)]
        for trace in held:
            root, *turns = trace.data.spans
            assert (root.name, root.parent_id, [turn.name for turn in turns]) == (
                "trajectory",
                None,
                ["turn 1", "turn 2"],
            )
            assert {turn.parent_id for turn in turns} == {root.span_id}
            assert turns[1].inputs == {"observation": "P . G, turn 1"}
            assert turns[1].outputs["reply"] == "<answer>go 1</answer>"
            assert root.outputs["stop"] == "success"


def test_the_number_of_traces_is_a_knob(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    from mlflow.tracing.client import TracingClient

    def held() -> int:
        client = TracingClient(default_uri(tmp_path / "home"))
        return len(client.search_traces(locations=["1"], include_spans=False))

    for count in (3, 0):  # another view of the trials: their old runs go, with their traces
        drive(sweep_of(seeds=1, mlflow=True, track__traces=count), trainer=TALKING)
        assert held() == 2 * count


def test_a_trace_of_an_episode_that_went_wrong_says_so(tmp_path: Path) -> None:
    from mlflow.entities import TraceState
    from mlflow.tracing.client import TracingClient

    uri = default_uri(tmp_path)
    experiment = open_mlflow(uri).create_experiment("wrong", artifact_location=tmp_path.as_uri())
    run_id = open_mlflow(uri).create_run(experiment).info.run_id
    entries = [{"iteration": k, **trajectory(k, k)} for k in range(3)]
    entries[1]["error"] = "the environment refused"
    entries[2]["turns"] = []  # it ended before the first one
    write_traces(uri, experiment, run_id, entries, [1.0, 2.0, 3.0], 3)
    held = TracingClient(uri).search_traces(locations=[experiment], run_id=run_id)
    good, bad, empty = sorted(held, key=lambda trace: trace.info.request_time)
    assert (good.info.state, bad.info.state) == (TraceState.OK, TraceState.ERROR)
    assert [trace.info.request_time for trace in (good, bad, empty)] == [1000, 2000, 3000]
    assert [len(trace.data.spans) for trace in (good, bad, empty)] == [3, 3, 1]
    assert good.data.spans[0].status.description == ""
    assert bad.data.spans[0].status.description == "the environment refused"
    assert bad.data.spans[0].status.status_code == "ERROR"
    assert good.info.response_preview == "success, reward 0: right right"


@pytest.mark.parametrize(("count", "places"), [(0, []), (1, [8]), (2, [0, 8]), (3, [0, 4, 8]), (50, list(range(9)))])
def test_the_sample_is_spread_over_the_run(count: int, places: list[int]) -> None:
    assert [place for place, _ in sample([{"at": k} for k in range(9)], count)] == places


def test_system_metrics_stay_out_of_the_rows(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """They depend on the machine; runs are compared by their rows."""
    home = tmp_path / "home"
    drive(sweep_of(seeds=1, mlflow=True, track__system_metrics=True))
    runs = from_home(home, "tested")
    uri = default_uri(home)
    assert [numbers(run.rows) for run in from_mlflow(uri, "tested")] == [numbers(run.rows) for run in runs]
    client = open_mlflow(uri)
    for run in runs:
        system = read_system(home, run.trial_id)
        assert [row["iteration"] for row in system] == list(range(len(run.rows)))
        assert all(row["system/peak_rss_megabytes"] > 10 and row["system/cpu_percent"] >= 0 for row in system)
        points = client.get_metric_history(run.mlflow_run_id, "system/peak_rss_megabytes")
        assert [point.step for point in points] == list(range(len(run.rows)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mirror_that_broke_is_not_taken_for_complete(
    sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours in its thread, after it had been up to date: told, and the next call writes what is missing."""
    monkeypatch.setattr(MLflowMirror, "end", lambda mirror, status: 1 / 0)
    _, text = drive(sweep_of(mlflow=True, seeds=1))
    assert "MLflow at" in text
    assert "lacks the newest results" in text
    monkeypatch.undo()
    again, text = drive(sweep_of(mlflow=True, seeds=1))
    assert "lacks" not in text
    assert all(trial["mlflow_run_id"] for trial in again.result["trials"])


# --- a server that goes and comes back ---


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path, port: int) -> Iterator[Callable[[], Callable[[], None]]]:
    """Starts a real MLflow server on a database of its own; what it returns kills it."""
    running: list[subprocess.Popen[bytes]] = []

    def kill() -> None:
        while running:
            process = running.pop()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start() -> Callable[[], None]:
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{tmp_path}/server.db",
                   "--default-artifact-root", (tmp_path / "artifacts").as_uri(), "--host", "127.0.0.1", "--port",
                   str(port), "--workers", "1"]  # fmt: skip
        quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        running.append(
            subprocess.Popen(
                command, env=quiet, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
        deadline = time.monotonic() + 180
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1):
                    return kill
            except OSError:
                assert time.monotonic() < deadline, "the MLflow server did not start"
                time.sleep(0.3)

    yield start
    kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_killed_and_restarted_lacks_nothing_and_holds_nothing_twice(
    sweep_of: Make,
    drive: Drive,
    tmp_path: Path,
    server: Callable[[], Callable[[], None]],
    port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri, home = f"http://127.0.0.1:{port}", tmp_path / "home"
    home.mkdir()
    gates = [home / "gate-7", home / "gate-15"]
    for gate in gates:
        gate.write_text("")
    monkeypatch.setattr(mirroring, "FLUSH_SECONDS", 0.5)
    kill = server()
    events: list[dict[str, Any]] = []

    def states() -> list[str]:
        return [event["state"] for event in events if event["event"] == "mirror"]

    def fault() -> None:
        """Kill the server once it holds something, let trials go on without it, start it again, let them end."""
        for state, then, gate in zip(("current", "behind"), (kill, server), gates, strict=True):
            while state not in states():
                time.sleep(0.1)
            then()
            gate.unlink()

    trouble = threading.Thread(target=fault, daemon=True)
    trouble.start()
    sweep = sweep_of(mlflow=True, **{"track.mlflow_uri": uri, "train.iterations": 24, "on_collapse": "continue"})
    finished, text = drive(sweep, workers=2, trainer=TALKING, events=lambda line: events.append(json.loads(line)))
    trouble.join(timeout=200)
    assert finished.exit_code == 0
    assert states() == ["current", "behind", "current"]
    assert text.count("cannot be used") == 1
    assert "MLflow can be reached again and has caught up." in text
    held = from_mlflow(uri, "tested")
    assert [numbers(run.rows) for run in held] == [numbers(run.rows) for run in from_home(home, "tested")]
    client = open_mlflow(uri)
    for run in held:
        points = client.get_metric_history(run.mlflow_run_id, "eval/success")
        assert [point.step for point in points] == list(range(25))
    everything = content(uri, "tested")
    assert all(len(said) == 2 for key, (*_, said) in everything.items() if key != "the sweep")


def test_places_are_read_when_they_are_needed(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """A trial that joins a running sweep gets its own position, although the mirror began before it."""
    from rich.console import Console

    from ragen_lab.runs import View
    from ragen_lab.sweep.board import Board
    from ragen_lab.sweep.ledger import Ledger
    from ragen_lab.sweep.plan import make_plan

    home = tmp_path / "home"
    small, large = sweep_of(seeds=1, mlflow=True), sweep_of(seeds=2, mlflow=True)
    ledger = Ledger(home)
    ledger.record_sweep(small, [], "")
    board = Board(make_plan(small, home), home)
    with mirroring.Mirroring(board, small, home, ledger, Console(quiet=True)) as running:
        ledger.record_sweep(large, [], "")
        for trial in large.trials:
            board.add(trial, View(False, "pending"))
    ledger.close()
    assert [run.trial_id for run in from_mlflow(default_uri(home), "tested")] == [t.trial_id for t in large.trials]
    assert set(running.run_ids) == {trial.trial_id for trial in large.trials}


def test_a_mirror_that_fails_does_not_stop_the_others(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        name, place = "Broken", "nowhere"

        def flush(self, *_: Any) -> dict[str, str]:
            raise TrackingError("Broken cannot be used.")

    real = mirroring._mirrors
    monkeypatch.setattr(mirroring, "_mirrors", lambda *args: [Broken(), *real(*args), Noting(tmp_path)])
    finished, text = drive(sweep_of(seeds=1, mlflow=True))
    assert text.count("Broken cannot be used.") == 1
    assert "Broken at nowhere lacks the newest results." in text
    assert all(trial["mlflow_run_id"] for trial in finished.result["trials"])
    assert len(from_mlflow(default_uri(tmp_path / "home"), "tested")) == 2


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ("finished collapsed pruned", "FINISHED"),
        ("finished failed pruned", "FAILED"),
        ("failed stopped pending", "FAILED"),
        ("finished stopped", "KILLED"),
        ("finished pending", "KILLED"),
        ("finished running", "KILLED"),
    ],
)
def test_the_state_of_a_sweep_is_that_of_its_trials(states: str, status: str) -> None:
    assert mirroring._parent_status([a_run(3, status=each) for each in states.split()]) == status


def test_trials_computed_again_elsewhere_are_mirrored_again(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Another sweep of the home shares them and computes them anew: same trials, states and rows, other times."""
    home = tmp_path / "home"
    drive(sweep_of(seeds=1, mlflow=True))
    trials = home / "trials"
    trials.rename(home / "away")
    drive(sweep_of(PAGE.replace("findings", "name: second\nfindings"), seeds=1))
    drive(sweep_of(seeds=1, mlflow=True))
    for run, shown in zip(from_home(home, "tested"), from_mlflow(default_uri(home), "tested"), strict=True):
        assert [row["timestamp"] for row in shown.rows] == [row["timestamp"] for row in run.rows]


def test_trials_that_are_pruned_after_they_were_mirrored_whole(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """First without a scheduler, then with one that ends some earlier: MLflow holds what a rebuilding would give."""
    home, uri = tmp_path / "home", default_uri(tmp_path / "home")
    drive(sweep_of(HALVING.partition("scheduler")[0], mlflow=True))
    drive(sweep_of(HALVING, mlflow=True))
    runs = from_home(home, "tested")
    assert {run.status for run in runs} == {"finished", "pruned"}
    assert [len(run.rows) for run in from_mlflow(uri, "tested")] == [len(run.rows) for run in runs]
    before = content(uri, "tested")
    assert before["the sweep"][1] == "FINISHED"
    sync(home, "tested")
    assert content(uri, "tested") == before


def test_a_sweep_without_mlflow_can_be_shown_there(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    home = tmp_path / "home"
    drive(sweep_of(seeds=1))
    assert not (home / "mlflow.db").exists()
    assert sync(home, "tested") == (2, (default_uri(home),))
    assert len(from_mlflow(default_uri(home), "tested")) == 2


def ended(*_: Any, **__: Any) -> None:
    """What a kill at that moment leaves behind."""
    raise KeyboardInterrupt


def test_a_rebuilding_that_was_killed_is_not_taken_for_complete(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the deletion and the writing: the next call of the sweep finds that nothing is there."""
    drive(sweep_of(seeds=1, mlflow=True))
    monkeypatch.setattr(MLflowMirror, "flush", ended)
    with pytest.raises(KeyboardInterrupt):
        sync(tmp_path / "home", "tested")
    monkeypatch.undo()
    drive(sweep_of(seeds=1, mlflow=True))
    assert len(from_mlflow(default_uri(tmp_path / "home"), "tested")) == 2


def test_what_a_killed_driver_has_changed_is_changed_back(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials leave, their runs are marked, the driver is killed before it writes that down, and the trials return."""
    drive(sweep_of(mlflow=True))
    monkeypatch.setattr(Mirroring, "_close", ended)
    drive(sweep_of(mlflow=True, seeds=1))
    monkeypatch.undo()
    assert len(from_mlflow(default_uri(tmp_path / "home"), "tested")) == 2
    drive(sweep_of(mlflow=True))
    assert len(from_mlflow(default_uri(tmp_path / "home"), "tested")) == 4


def test_an_interrupt_as_the_mirrors_begin_ends_those_that_have(
    sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "mirror-MLflow":
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    assert drive(sweep_of(seeds=1, mlflow=True))[0].exit_code == 130
    left = [thread for thread in threading.enumerate() if thread.name == "mirror-MLflow"]
    for thread in left:
        thread.join(timeout=60)
    assert [thread for thread in left if thread.is_alive()] == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ["broke", "left"])
def test_the_last_word_on_a_mirror_that_lacks_something_is_that_it_is_behind(
    sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its thread broke, or nobody waited for it; then what it goes on to do is no news after the summary."""
    lines: list[str] = []
    flushed, told, go, ended = threading.Event(), threading.Event(), threading.Event(), threading.Event()

    def flush(*_: Any, **__: Any) -> dict[str, str]:
        if not flushed.is_set():
            flushed.set()
            return {}
        if how == "broke":
            raise ValueError("broken")
        go.wait(60)
        return {}

    def end(*_: Any) -> dict[str, str]:
        ended.set()
        return {}

    def hear(line: str) -> None:
        lines.append(line)
        if '"mirror"' in line:
            told.set()

    def left(thread: threading.Thread, timeout: float | None = None) -> None:
        assert told.wait(60)
        if how == "left" and thread.name == "mirror-MLflow":
            raise KeyboardInterrupt
        join(thread, timeout)

    join = threading.Thread.join
    monkeypatch.setattr(MLflowMirror, "flush", flush)
    monkeypatch.setattr(MLflowMirror, "end", end)
    monkeypatch.setattr(threading.Thread, "join", left)
    _, text = drive(sweep_of(seeds=1, mlflow=True), events=hear)
    assert "lacks the newest results" in text
    go.set()
    assert how == "broke" or ended.wait(60)
    for thread in threading.enumerate():
        if thread.name == "mirror-MLflow":
            join(thread, 60)
    events = [json.loads(line) for line in lines]
    assert [event["state"] for event in events if event["event"] == "mirror"] == ["current", "behind"]
    assert events[-1]["event"] == "summary"


def test_the_last_word_on_a_mirror_waits_for_the_one_before() -> None:
    """Its thread has just been about to tell that it is up to date."""
    told: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def tell(event: str, state: str, **_: Any) -> None:
        if state == "current":
            begun.set()
            assert go.wait(60)
        told.append(state)

    hand = mirroring._Hand(Noting(Path("there")), SimpleNamespace(tell=tell))  # type: ignore[arg-type]
    thread, driver = (
        threading.Thread(target=hand._stream, args=(True,)),
        threading.Thread(target=hand.leave, args=("no answer",)),
    )
    thread.start()
    assert begun.wait(60)
    driver.start()
    time.sleep(0.2)
    go.set()
    for each in (thread, driver):
        each.join(timeout=60)
    assert told == ["current", "behind"]


def opened_meanwhile(cfg: RunConfig, tracker: Tracker, home: Path, progress: Any = None, until: Any = None) -> Outcome:
    """A trial in the driver's own process, in the midst of which the mirror's thread begins."""
    BEGUN.set()
    assert OPENED.wait(60)
    return fake.train(cfg, tracker, home, progress, until)


BEGUN, OPENED = threading.Event(), threading.Event()


def test_a_trial_that_ends_takes_no_setting_of_mlflow_along(
    sweep_of: Make, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves in the environment is put back; without ours, a server that is gone is waited for for minutes."""
    for key in MLFLOW_QUIET:
        monkeypatch.delenv(key, raising=False)
    flush, end = MLflowMirror.flush, MLflowMirror.end
    found: dict[str, str | None] = {}

    def flushing(*given: Any) -> dict[str, str]:
        assert BEGUN.wait(60)
        try:
            return flush(*given)
        finally:
            OPENED.set()

    def ending(*given: Any) -> dict[str, str]:
        found.update({key: os.environ.get(key) for key in MLFLOW_QUIET})
        return end(*given)

    monkeypatch.setattr(MLflowMirror, "flush", flushing)
    monkeypatch.setattr(MLflowMirror, "end", ending)
    drive(sweep_of(seeds=1, mlflow=True), trainer="tests.sweep.test_mirroring:opened_meanwhile")
    assert found == MLFLOW_QUIET


def test_a_sweep_that_runs_is_not_rebuilt(sweep_of: Make, drive: Drive, tmp_path: Path) -> None:
    """Two would write the same runs, and one delete what the other has just written."""
    home = tmp_path / "home"
    drive(sweep_of(seeds=1))
    with locked(home / "locks" / "tested.lock"), pytest.raises(TrialLocked, match="this sweep is being worked on"):
        sync(home, "tested")
    assert not (home / "mlflow.db").exists()


class Noting:
    """A mirror that counts how often it was written."""

    name = "Noting"

    def __init__(self, place: Path) -> None:
        self.place, self.flushes = str(place), 0

    def flush(self, *_: Any) -> dict[str, str]:
        self.flushes += 1
        return {}

    def end(self, status: str) -> dict[str, str]:
        return {}


def test_a_finished_sweep_is_written_once_to_every_place(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated call need not write again; one that names another place, which others use already, must."""
    here, there = Noting(tmp_path), Noting(tmp_path.parent)
    written = []
    for mirror in (here, here, there):
        monkeypatch.setattr(mirroring, "_mirrors", lambda *_, mirror=mirror: [mirror])
        drive(sweep_of(seeds=1))
        written.append((here.flushes > 0, there.flushes > 0))
        here.flushes = 0
    assert written == [(True, False), (False, False), (False, True)]


def test_what_goes_on_is_mirrored_although_all_before_was(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start of the second call the mirror holds all there is, and more is to come."""
    mirror, sweep = Noting(tmp_path), sweep_of(seeds=1)
    monkeypatch.setattr(mirroring, "_mirrors", lambda *_: [mirror])
    monkeypatch.setattr("ragen_lab.sweep.retry.FIRST_WAIT", 0.01)
    (tmp_path / "home").mkdir()
    trouble = tmp_path / "home" / f"fail-{sweep.trials[0].trial_id}"
    trouble.write_text("9")
    drive(sweep)
    trouble.unlink()
    mirror.flushes = 0
    drive(sweep)
    assert mirror.flushes > 0


def test_what_went_wrong_at_its_end_is_written_by_the_next_call(
    sweep_of: Make, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending(Noting):
        def end(self, status: str) -> dict[str, str]:
            raise TrackingError("no answer")

    for mirror in (Ending(tmp_path), Noting(tmp_path)):
        monkeypatch.setattr(mirroring, "_mirrors", lambda *_, mirror=mirror: [mirror])
        drive(sweep_of(seeds=1))
        assert mirror.flushes > 0


def test_the_state_of_a_mirror_is_told_when_it_changes() -> None:
    """Not at every flush: a stream is read by programs that act on what they hear, and a terminal by people."""
    faults = [False, False, True, True, False, False]

    class Shaky(Noting):
        def flush(self, *_: Any) -> dict[str, str]:
            if faults[self.flushes]:
                self.flushes += 1
                raise TrackingError("no answer")
            return super().flush()

    told: list[str] = []
    said: list[str] = []
    of = SimpleNamespace(
        sweep="tested", home=Path("home"), program="ragen-lab", board=SimpleNamespace(runs=list),
        places=mirroring._Places, say=said.append, tell=lambda event, state, **_: told.append(state),
    )  # fmt: skip
    hand = mirroring._Hand(Shaky(Path("there")), of)  # type: ignore[arg-type]
    for number in range(len(faults)):
        hand._flush(number == len(faults) - 1)
    assert told == ["current", "behind", "current"]
    assert [text.partition("\n")[0] for text in said] == ["no answer", "Noting can be reached again and has caught up."]
    assert hand.complete
