"""The contract of the command line: exit codes, JSON on the last line, plain messages, and nothing heavy loaded."""

from __future__ import annotations

import functools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ragen_lab.algo.advantages import ALGORITHMS
from ragen_lab.cli import app, main
from ragen_lab.filter import FILTERS
from ragen_lab.sweep import drive as driving
from tests.sweep.conftest import FAKE, ROOT, calls

Write = Callable[..., Path]
HEAVY = ("torch", "ray", "mlflow", "transformers")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """Run a command in this process with the fake trainer; (exit code, stdout, stderr)."""
    monkeypatch.setattr(driving, "Options", functools.partial(driving.Options, trainer=FAKE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGEN_LAB_HOME", str(tmp_path / "home"))

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ragen-lab", *args])
        with pytest.raises(SystemExit) as ended:
            main(list(args))
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def fresh(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, which tells at the end what it has loaded."""
    code = (
        "import atexit, sys; atexit.register(lambda: print('LOADED', *sorted("
        f"set(sys.modules) & set({HEAVY!r})), file=sys.stderr)); from ragen_lab.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, env={**os.environ, **environment}
    )


def cpu_seconds(*args: str) -> float:
    """CPU time of a command, which a busy machine does not distort as it does the wall clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "cli.py", *args], capture_output=True, timeout=120, cwd=ROOT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def test_help_is_instant_and_check_is_quick(write: Write) -> None:
    assert min(cpu_seconds("--help") for _ in range(3)) < 0.5
    assert min(cpu_seconds("check", str(write())) for _ in range(3)) < 1.5


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["list", "envs"], ["list", "detectors"], ["list", "knobs"]]
)
def test_nothing_heavy_is_loaded(args: list[str]) -> None:
    done = fresh(*args)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "LOADED"


def test_check_plan_and_report_load_nothing_heavy(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    page = str(write())
    assert cli("sweep", page, "--workers", "0", "--set", "track.mlflow=false")[0] == 0
    out = str(tmp_path / "out.html")
    for args in (["check", page], ["sweep", page, "--plan"], ["report", "tested", "--out", out]):
        done = fresh(*args)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-1] == "LOADED", args
    assert "<html" in Path(out).read_text()


def test_every_command_has_help_with_an_example() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert {"sweep", "run", "check", "report", "list", "eval", "ui", "sync", "show", "doctor"} == set(commands)
    for name, command in commands.items():
        assert "ragen-lab " + name in (command.help or ""), name


def test_sweep_json(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    page = str(write())
    code, out, err = cli("sweep", page, "--workers", "2", "--json")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert len(out.splitlines()) == 1  # all words for people are on stderr
    assert result["sweep"] == "tested"
    assert len(result["trials"]) == 4
    assert all(trial["mlflow_run_id"] for trial in result["trials"])
    assert Path(result["report"]) == tmp_path / "reports" / "out" / "tested.html"
    assert Path(result["report"]).is_file()
    assert "Sweep tested: 2 arms x 2 seeds" in err
    assert "MLflow: ragen-lab ui --home" in err
    for line in (tmp_path / "home").glob("trials/*/metrics.jsonl"):
        assert "iteration" in json.loads(line.read_text().splitlines()[0])
    again = json.loads(cli("sweep", page, "--workers", "2", "--json")[1])
    assert all(trial["reused"] for trial in again["trials"])
    assert set(calls(tmp_path / "home").values()) == {1}


def test_report_sync_and_list_of_what_was_run(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    cli("sweep", str(write()), "--workers", "0")
    code, out, _ = cli("report", "tested", "--json", "--out", "mine.html")
    assert (code, json.loads(out)) == (0, {"sweep": "tested", "report": str(tmp_path / "mine.html")})
    uri = f"sqlite:///{tmp_path / 'home' / 'mlflow.db'}"
    assert cli("report", "tested", "--mlflow", uri)[0] == 0
    code, out, _ = cli("sync", "tested")
    assert (code, out) == (0, f"4 runs of tested written to {uri}\n")
    assert "tested  4 trials" in cli("list", "sweeps")[1]
    code, _, err = cli("report", "other")
    assert code == 2
    assert "There are: tested." in err


def test_run(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    write()
    code, out, _ = cli("run", "base.yaml", "--set", "seed=3", "--set", "filter.keep_ratio=1", "--json")
    result = json.loads(out.splitlines()[-1])
    assert (code, result["sweep"], len(result["trials"])) == (0, "base", 1)
    assert (result["trials"][0]["seed"], result["trials"][0]["status"]) == (3, "finished")


def test_check(write: Write, cli: Callable[..., Any]) -> None:
    page = str(write())
    code, out, _ = cli("check", page)
    assert code == 0
    assert "no faults" in out
    assert "optimizer steps per iteration" in out
    assert "keep_ratio" in cli("sweep", page, "--plan")[1]
    plan = json.loads(cli("sweep", page, "--plan", "--json")[1])
    assert [trial["status"] for trial in plan["trials"]] == ["pending"] * 4
    assert json.loads(cli("check", "base.yaml", "--json")[1])["ok"] is True
    played = json.loads(cli("check", "base.yaml", "--preflight", "--json")[1])["preflight"]
    assert [entry["overlap"] for entry in played] == [0]
    assert "solvable within" in cli("check", "base.yaml", "--preflight")[1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["check", "none.yaml"], ["none.yaml", "no such file"]),
        (["sweep", "tested.yaml", "--set", "optm.lr=1"], ["tested.yaml", "optm.lr", "Did you mean"]),
        (["sweep", "tested.yaml", "--set", "seeds"], ["'seeds'", "PATH=VALUE"]),
        (["run", "tested.yaml"], ["sweep page", "ragen-lab sweep"]),
        (["run", "base.yaml", "--set", "filter.keep_ratio=7"], ["base.yaml", "filter.keep_ratio", "7"]),
        (["list", "metric"], ["Did you mean 'metrics'?"]),
        (["eval", "--env", "sokobann", "--reference", "--actions", "5"], ["Did you mean 'sokoban'?"]),
        (["eval", "--env", "bandit", "--actions", "5"], ["not built in this version", "--reference"]),
        (["report", "tested"], ["holds no sweeps yet"]),
        (["ui"], ["no MLflow database"]),
        (["sweep"], ["Missing argument"]),
        (["swep"], ["No such command"]),
    ],
)
def test_bad_input_is_exit_code_2_without_a_traceback(
    args: list[str],
    words: list[str],
    write: Write,
    cli: Callable[..., Any],
) -> None:
    write()
    code, out, err = cli(*args)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_failed_trials_are_exit_code_1(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    from ragen_lab.sweep.spec import load_sweep

    page = write()
    (tmp_path / "home").mkdir()
    overrides = {"track.mlflow": False}
    (tmp_path / "home" / f"fail-{load_sweep(page, overrides).trials[0].trial_id}").write_text("9")
    code, out, err = cli("sweep", str(page), "--workers", "0", "--json", "--set", "track.mlflow=false")
    assert code == 1
    assert json.loads(out.splitlines()[-1])["trials"][0]["status"] == "failed"
    assert "made to fail" in err


def test_eval_reference(cli: Callable[..., Any]) -> None:
    code, out, _ = cli(
        "eval",
        "--env",
        "frozen_lake",
        "--reference",
        "--actions",
        "5",
        "--set",
        "env.slip=0",
        "--levels",
        "16",
        "--json",
    )
    found = json.loads(out)
    assert code == 0
    assert list(found) == ["env", "actions", "levels", "random", "fixed_string", "optimal"]
    assert (found["env"], found["actions"], found["levels"]) == ("frozen_lake", 5, 16)
    assert 0 <= found["random"] <= found["fixed_string"] <= found["optimal"] <= 1


@pytest.mark.parametrize("what", ["envs", "detectors", "metrics", "algorithms", "filters", "knobs"])
def test_list(what: str, cli: Callable[..., Any]) -> None:
    found = json.loads(cli("list", what, "--json")[1])
    assert len(found) > 1
    assert all(entry["name"] and entry["about"] for entry in found)


def test_list_says_what_the_choices_are(cli: Callable[..., Any]) -> None:
    algorithms = {name: algorithm.sentence for name, algorithm in ALGORITHMS.items()}
    for what, table in (("algorithms", algorithms), ("filters", {name: about for name, (about, _) in FILTERS.items()})):
        listed = json.loads(cli("list", what, "--json")[1])
        assert {entry["name"]: entry["about"] for entry in listed} == table


def test_doctor(cli: Callable[..., Any]) -> None:
    code, out, _ = cli("doctor", "--json")
    assert code == 0
    assert {"python", "torch", "device", "home"} <= {entry["name"] for entry in json.loads(out)}


def test_the_checkout_runs_uninstalled(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "cli.py"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True)
    assert done.stdout.strip()
