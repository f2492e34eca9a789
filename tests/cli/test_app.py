"""The contract of the command line: exit codes, JSON on the last line, plain messages, and nothing heavy loaded."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
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
application = importlib.import_module("ragen_lab.cli.app")  # the name `app` is the object there
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
    known = "sweep run check report list eval ui sync show dashboard doctor import prune"
    assert set(known.split()) == set(commands)
    for name, command in commands.items():
        assert "ragen-lab " + name in (command.help or ""), name


def test_sweep_json(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    page = str(write())
    code, out, err = cli("sweep", page, "--workers", "2", "--json")
    assert code == 0
    *events, result = [json.loads(line) for line in out.splitlines()]  # all words for people are on stderr
    assert list(result) == ["sweep", "trials", "report"]
    assert all("event" in event and "time" in event for event in events)
    assert result["sweep"] == "tested"
    assert len(result["trials"]) == 4
    assert all(trial["mlflow_run_id"] for trial in result["trials"])
    assert Path(result["report"]) == tmp_path / "reports" / "out" / "tested.html"
    assert Path(result["report"]).is_file()
    assert "Sweep tested: 2 arms x 2 seeds" in err
    assert "MLflow: ragen-lab ui --home" in err
    for line in (tmp_path / "home").glob("trials/*/metrics.jsonl"):
        assert "iteration" in json.loads(line.read_text().splitlines()[0])
    *events, again = map(json.loads, cli("sweep", page, "--workers", "2", "--json")[1].splitlines())
    assert [event["event"] for event in events] == ["planned", "report", "summary"]
    assert all(trial["reused"] for trial in again["trials"])
    assert set(calls(tmp_path / "home").values()) == {1}


def test_steering_by_name(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    """--status, --stop and --pause take a name instead of a page; mistakes are exit code 2 without a traceback."""
    page, off = str(write()), ("--set", "track.mlflow=false")
    cli("sweep", page, "--workers", "0", *off)
    code, out, _ = cli("sweep", "--status", "tested")
    assert (code, out.splitlines()[0]) == (0, "tested: done, 4 of 4 trials done.")
    status = json.loads(cli("sweep", "--status", "tested", "--json")[1])
    assert (status["state"], len(status["trials"])) == ("done", 4)
    code, out, err = cli("sweep", "--stop", "tested", "--json")
    assert (code, json.loads(out)["was_running"]) == (0, False)
    assert "does not run, so there is nothing to stop" in err
    for args, words in (
        (["sweep"], "name a sweep page"),
        (["sweep", "--status", "teste"], "no sweep named 'teste'"),
        (["sweep", page, "--pause", "tested"], "leave out"),
        (["sweep", "--pause", "tested", "--local"], "--local is for running a page"),
        (["sweep", page, "--rerun", "arm", *off], "no arm 'arm'. Allowed: failed, collapsed, keep_ratio=1.0"),
        (["sweep", page, "--rerun", "failed", "--workers", "0", *off], "no trial of tested has failed"),
    ):
        code, _, err = cli(*args)
        assert (code, words in err, "Traceback" in err) == (2, True, False), (args, err)


def test_a_rerun_is_not_part_of_the_command_that_goes_on(
    write: Write, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To repeat --rerun after an interruption would set aside what has just been computed."""
    for words in (["--rerun", "failed"], ["--rerun=failed"]):
        monkeypatch.setattr(sys, "argv", ["ragen-lab", "sweep", "a.yaml", *words, "--local"])
        assert application._typed("failed") == "ragen-lab sweep a.yaml --local"


def test_import_and_prune(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    page, off = str(write()), ("--set", "track.mlflow=false")
    cli("sweep", page, "--workers", "0", *off)
    there, here = str(tmp_path / "home"), ("--home", str(tmp_path / "second"))
    code, out, _ = cli("import", there, "--dry-run", *here)
    assert (code, "To import: 4 trials" in out) == (0, True)
    assert not (tmp_path / "second").exists()
    code, out, err = cli("import", there, "--json", *here)
    plain = json.loads(out)
    assert (code, plain["done"], plain["sweeps"]) == (0, True, {"tested": 4})
    assert "To import: 4 trials" in err  # told before
    assert "4 trials, done, last started 20" in cli("list", "sweeps", *here)[1]
    rows = next((tmp_path / "second").glob("trials/*/metrics.jsonl"))
    rows.write_text(rows.read_text().replace('"train/noise": 0.', '"train/noise": 0.1', 1))
    code, out, _ = cli("import", there, *here)
    assert (code, "1 refused" in out, "differ at iteration 0 in train/noise" in out) == (1, True, True)
    code, out, _ = cli("prune", "--keep", "last", *here)
    assert (code, "Would delete" in out, "--yes" in out) == (0, True, True)
    code, out, _ = cli("prune", "tested", "--keep", "last", "--yes", "--json", *here)
    assert (code, json.loads(out)["deleted"], json.loads(out)["bytes"] > 0) == (0, True, True)
    for args, words in (
        (["prune", "tested", "--keep", "first"], "Allowed: last, best, before-alarm"),
        (["prune"], "say what to keep"),
        (["prune", "other", "--keep", "last"], "no sweep named 'other'"),
        (["import", there], "is this home itself"),
        (["import", str(tmp_path / "none")], "holds no sweeps yet"),
    ):
        code, _, err = cli(*args)
        assert (code, words in err, "Traceback" in err) == (2, True, False), (args, err)


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
    assert {note["rule"] for note in plan["notes"]} >= {"optimizer_steps", "seeds"}
    code, _, err = cli("sweep", page, "--probe")
    assert (code, "add --plan" in err) == (2, True)
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
        (["sweep"], ["name a sweep page", "--status"]),
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


def test_doctor_names_a_trial_whose_metrics_are_damaged(cli: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "home" / "trials" / "0123456789ab"
    folder.mkdir(parents=True)
    rows = [f'{{"iteration": {i}, "timestamp": 1.0}}\n' for i in range(4)]
    (folder / "metrics.jsonl").write_text("".join(rows))
    assert cli("doctor", "--home", str(tmp_path / "home"))[0] == 0
    (folder / "metrics.jsonl").write_text("".join([rows[0], "{\n", *rows[2:]]))
    code, out, _ = cli("doctor", "--home", str(tmp_path / "home"))
    assert code == 1
    assert "FAIL  trial 0123456789ab" in out
    assert "damaged at line 2 of 4" in out


def test_the_checkout_runs_uninstalled(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "cli.py"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True)
    assert done.stdout.strip()


# --- what is wrong with the machine, the home or the address ---


def test_resources_that_are_not_there(write: Write, cli: Callable[..., Any]) -> None:
    """Refused at once, with exit code 2, under Ray too; `check` and `--plan` say so beforehand."""
    page, asked = str(write()), ("--set", "resources.cpus=4096", "--set", "track.mlflow=false")
    for engine in ([], ["--local"], ["--workers", "0"]):
        code, _, err = cli("sweep", page, *asked, *engine)
        assert code == 2
        assert "resources.cpus: 4096 per trial, but this machine has" in err
    for args in (["check", page, *asked], ["sweep", page, "--plan", *asked]):
        code, out, _ = cli(*args)
        assert (code, "Note: resources.cpus: 4096" in out) == (0, True)


def test_a_home_that_ails(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "ledger.sqlite").write_text("garbage " * 1000)
    page = str(write())
    for args in (["list", "sweeps"], ["show", "tested"], ["report", "tested"], ["sync", "tested"],
                 ["sweep", page, "--workers", "0"]):  # fmt: skip
        code, out, err = cli(*args)
        assert (code, out, "Traceback" in err) == (2, "", False), args
        assert "is damaged" in err
        assert "move this file" in err
    code, out, _ = cli("doctor")
    assert code == 1
    assert re.search(r"FAIL  home +.*is damaged.*move this file", out)
    (home / "ledger.sqlite").unlink()
    (home / "trials").rmdir()
    (home / "trials").write_text("")
    code, _, err = cli("sweep", page, "--workers", "0")
    assert (code, "Traceback" in err) == (2, False)
    assert str(home / "trials") in err
    assert "--home" in err


def test_addresses_of_mlflow_that_do_not_work(write: Write, cli: Callable[..., Any]) -> None:
    """Every message names the next step."""
    page = str(write())
    cli("sweep", page, "--workers", "0", "--set", "track.mlflow_uri=http://127.0.0.1:9")
    code, _, err = cli("sync", "tested")
    assert code == 1
    assert "Start the server or mend the database, then repeat this command" in err
    for uri, expected, word in (
        ("http://127.0.0.1:9", 1, "leave out --mlflow to read the home"),
        ("sqlite:////nowhere/mlflow.db", 1, "leave out --mlflow to read the home"),
        ("foo://bar", 2, "--mlflow: 1 fault"),
        ("./mlruns", 2, "is a folder"),
    ):
        code, _, err = cli("report", "tested", "--mlflow", uri)
        assert (code, "Traceback" in err) == (expected, False), uri
        assert word in err


def test_config_errors_of_trials_are_exit_code_2(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    from ragen_lab.sweep.spec import one_run

    write()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / f"wrong-{one_run(tmp_path / 'base.yaml').trials[0].trial_id}").write_text("")
    code, _, err = cli("run", "base.yaml", "--set", "track.mlflow=false")
    assert code == 2
    assert "policy.model: no such model; name another." in err
    assert "Trying again from" not in err


def test_runs_of_a_page_share_a_report(write: Write, cli: Callable[..., Any]) -> None:
    write()
    for seed in (0, 1):
        code, out, err = cli("run", "base.yaml", "--set", f"seed={seed}", "--json", "--set", "track.mlflow=false")
        assert code == 0
        assert "left this sweep" not in err
        assert [trial["seed"] for trial in json.loads(out.splitlines()[-1])["trials"]] == [seed]
    assert "base  2 trials, done, last started 20" in cli("list", "sweeps")[1]
    assert "2 runs, 2 collapsed" in Path(cli("report", "base")[1].strip()).read_text()


@pytest.mark.parametrize(
    ("called", "program"),
    [
        ("ragen-lab", "ragen-lab"),
        (".venv/bin/ragen-lab", ".venv/bin/ragen-lab"),
        ("{cwd}/.venv/bin/ragen-lab", ".venv/bin/ragen-lab"),
        ("/opt/my lab/ragen-lab", "'/opt/my lab/ragen-lab'"),
        ("{cwd}/on path/ragen-lab", "ragen-lab"),
        ("cli.py", f"{sys.executable} cli.py"),
        ("/x/ragen_lab/__main__.py", f"{sys.executable} -m ragen_lab"),
        ("-c", "ragen-lab"),
    ],
)
def test_the_next_command_is_one_that_works(
    called: str, program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After `make quickstart` ragen-lab is not on the PATH: what is printed is how it was called."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "on path").mkdir()
    (tmp_path / "on path" / "ragen-lab").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "on path"))
    monkeypatch.setattr(sys, "argv", [called.format(cwd=tmp_path), "sweep", "a b.yaml"])
    assert application._program() == program
    assert application._typed() == f"{program} sweep 'a b.yaml'"


def test_the_next_command_after_a_sweep(write: Write, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "_program", lambda: ".venv/bin/ragen-lab")
    assert "MLflow: .venv/bin/ragen-lab ui --home" in cli("sweep", str(write()), "--workers", "0")[2]


@pytest.mark.parametrize("limits", [["--actions", "1001"], ["--actions", "5", "--levels", "4097"]])
def test_eval_has_limits(cli: Callable[..., Any], limits: list[str]) -> None:
    code, out, err = cli("eval", "--env", "bandit", "--reference", *limits)
    assert (code, out) == (2, "")
    assert f"less than or equal to {int(limits[-1]) - 1}" in " ".join(err.split())


def test_absurdly_many_seeds_are_told_at_once(write: Write, cli: Callable[..., Any]) -> None:
    code, _, err = cli("check", str(write()), "--set", "seeds=100000")
    assert code == 2
    assert "seeds: got 100000; at most 1000" in err
    assert cpu_seconds("check", str(write()), "--set", "seeds=1000") < 10


def test_show_says_what_is_stored(write: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    from ragen_lab.sweep.spec import load_sweep

    page = write()
    cli("sweep", str(page), "--workers", "0", "--set", "track.mlflow=false")
    assert "no trajectories are stored for this choice" in cli("show", "tested")[2]
    folder = tmp_path / "home" / "trials" / load_sweep(page, {"track.mlflow": False}).trials[0].trial_id
    entry = {"reward": 1.0, "stop": "done", "turns": []}
    lines = [json.dumps({"iteration": i, **entry}) for i in (0, 4, 8)]
    (folder / "trajectories.jsonl").write_text("".join(line + "\n" for line in lines))
    code, _, err = cli("show", "tested", "--iteration", "99")
    assert code == 2
    assert "--iteration: nothing is stored of 99. Stored iterations: 0, 4, 8." in err
    assert "iteration 8" in cli("show", "tested")[1]


def test_doctor_names_every_package_in_columns(cli: Callable[..., Any]) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[^A-Za-z0-9_.-]", each)[0] for each in project["dependencies"]}
    out = cli("doctor")[1]
    assert needed <= {line.split()[1] for line in out.splitlines()}
    starts = {re.match(r"(ok  |FAIL)  \S+ +", line).end() for line in out.splitlines()}  # type: ignore[union-attr]
    assert len(starts) == 1
