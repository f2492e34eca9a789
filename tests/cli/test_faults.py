"""What a command is told that cannot do what it is asked: for people on stderr, for a script as JSON on stdout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab import mirror_folders
from tests.cli.test_app import Write, cli  # noqa: F401 - fixture

Cli = Callable[..., Any]


@pytest.fixture
def no_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_folders, "find_spec", lambda library: None)


@pytest.mark.parametrize(
    "uri",
    ["http://[x]/", "http://[redacted]@host", "http://host:port", "https://host:99999", "sqlite://[x"],
)
def test_an_address_that_cannot_be_read_is_a_fault(write: Write, cli: Cli, uri: str) -> None:  # noqa: F811
    for args in (["check", str(write())], ["sweep", str(write()), "--workers", "0"], ["run", "base.yaml"]):
        code, _, err = cli(*args, "--set", f"track.mlflow_uri={uri}")
        assert (code, "Traceback" in err) == (2, False), err
        assert "track.mlflow_uri:" in err
        assert "cannot be read as an address" in err
        assert "for example http://localhost:5000" in err


def test_json_tells_faults_on_stdout_too(write: Write, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    page, bad = str(write()), ["--set", "seeds=0", "--set", "optim.lr=fast"]
    for args in (["check", page, *bad], ["sweep", page, "--plan", *bad], ["sweep", page, *bad]):
        code, out, err = cli(*args, "--json")
        faults = json.loads(out)["faults"]
        assert (code, len(faults)) == (2, 2)
        assert faults[0].startswith("seeds: got 0;")
        assert faults[1].startswith("--set optim.lr: got 'fast';")
        assert all(fault in err for fault in faults)
    for args in (["sweep", "--status", "nope"], ["report", "nope"], ["show", "nope"], ["list", "nope"]):
        code, out, err = cli(*args, "--json")
        (fault,) = json.loads(out)["faults"]
        assert (code, fault in err, cli(*args)[1]) == (2, True, "")
    (tmp_path / "home").write_text("")  # a home that cannot be used
    code, out, err = cli("sweep", "--status", "nope", "--json")
    assert (code, json.loads(out)["faults"]) == (2, [err.strip()])


def test_json_ends_with_the_faults_of_a_sweep_that_cannot_begin(write: Write, cli: Cli) -> None:  # noqa: F811
    code, out, _ = cli("sweep", str(write()), "--workers", "0", "--json", "--set", "resources.cpus=4096")
    assert code == 2
    assert "resources.cpus: 4096 per trial" in json.loads(out.splitlines()[-1])["faults"][0]


def test_options_that_do_not_go_together(write: Write, cli: Cli) -> None:  # noqa: F811
    """Told before anything is looked at, so also where the sweep is done."""
    page, off = str(write()), ("--set", "track.mlflow=false")
    assert cli("sweep", page, "--workers", "0", *off)[0] == 0
    for args, words in (
        (["--plan", "--rerun", ""], "--rerun sets results aside, and --plan changes nothing"),
        (["--plan", "--rerun", "failed"], "--rerun sets results aside"),
        (["--rerun", ""], "no arm ''. Allowed: failed, collapsed, keep_ratio=1.0"),
        (["--local", "--address", "auto"], "joins a Ray cluster, and --local runs without Ray"),
        (["--workers", "1", "--address", "auto"], "joins a Ray cluster, and --workers runs without Ray"),
    ):
        code, _, err = cli("sweep", page, *off, *args)
        assert (code, "Traceback" in err) == (2, False), (args, err)
        assert words in " ".join(err.split())
    assert "implies --local." in " ".join(cli("sweep", "--help")[1].replace("│", " ").split())


def test_one_run_is_one_run(write: Write, cli: Cli) -> None:  # noqa: F811
    write()
    assert cli("run", "base.yaml")[0] == 0
    code, out, _ = cli("sync", "base")
    assert (code, out.startswith("1 run of base written to ")) == (0, True)


def test_a_mirror_that_is_not_installed_is_told_beforehand(write: Write, cli: Cli, no_wandb: None) -> None:  # noqa: F811
    page, asked = str(write()), ("--set", "track.wandb=true")
    told = "track.wandb: needs wandb, which is not installed. Install ragen-lab[wandb]"
    assert told in cli("sweep", page, "--workers", "0", *asked)[2]
    for args in (["check", page], ["sweep", page, "--plan"], ["check", "base.yaml"]):
        code, out, _ = cli(*args, *asked)
        assert (code, f"Note: {told}" in out) == (0, True)
        assert any(told in warning for warning in json.loads(cli(*args, *asked, "--json")[1])["warnings"])
    code, out, _ = cli("check", page, "--set", "track.mlflow_uri=http:///path")
    assert "Note: track.mlflow_uri: 'http:///path' has no host name" in out


def test_dashboard_looks_at_the_name_first(
    write: Write,
    cli: Cli,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    cli("sweep", str(write()), "--workers", "0", "--set", "track.mlflow=false")
    for name, words in (("nope", "no sweep named 'nope'"), ("tested", "tested is no search")):
        code, _, err = cli("dashboard", name)
        assert (code, words in err, "installed" in err) == (2, True, False), err
    page = write("base: base.yaml\naxes: {optim.lr: [0.1, 0.2]}\nsearch: {kind: random, trials: 1}\n", name="searched")
    cli("sweep", str(page), "--workers", "0", "--set", "track.mlflow=false")
    assert "optuna-dashboard is not installed" in cli("dashboard", "searched")[2]


def test_a_setting_of_a_search_is_rerun_by_its_number(write: Write, cli: Cli) -> None:  # noqa: F811
    page = write("base: base.yaml\naxes: {optim.lr: [0.1, 0.2]}\nsearch: {kind: random, trials: 2}\n")
    off = ("--set", "track.mlflow=false")
    cli("sweep", str(page), "--workers", "0", *off)
    code, _, err = cli("sweep", str(page), "--workers", "0", *off, "--rerun", "#1")
    assert (code, "1 trial will be computed anew" in err) == (0, True), err
    assert "no arm '#9'" in cli("sweep", str(page), "--workers", "0", *off, "--rerun", "#9")[2]


def test_one_trial_is_not_on_the_page(write: Write, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    page = "base: base.yaml\naxes: {optim.lr: [0.1, 0.2]}\nname: shared\n"
    off = ("--workers", "0", "--set", "track.mlflow=false")
    assert cli("sweep", str(write(page)), *off)[0] == 0
    for levels, told in (("[0.1]", "1 of its trials is not on this one"), ("[0.3]", "2 of its trials are not on this")):
        other = write(page.replace("[0.1, 0.2]", levels), name="other")
        assert told in " ".join(cli("sweep", str(other), *off)[2].split())


def test_the_seeds_of_a_search_in_the_plan(write: Write, cli: Cli) -> None:  # noqa: F811
    search = "search: {kind: random, trials: 2, first_seeds: 2}\n"
    page = str(write(f"base: base.yaml\naxes: {{optim.lr: [0.1, 0.2]}}\n{search}"))
    assert "2 to 3 seeds each" in cli("sweep", page, "--plan", "--set", "seeds=3")[1]
    assert "proposed so far, 2 seeds each" in cli("sweep", page, "--plan", "--set", "seeds=2")[1]


def test_what_is_told_holds_no_password(write: Write, cli: Cli) -> None:  # noqa: F811
    for uri in ("foo://me:hunter2@host", "http://me:hunter2@[host"):
        code, out, err = cli("check", str(write()), "--json", "--set", f"track.mlflow_uri={uri}")
        assert (code, "hunter2" in out + err) == (2, False), out


@pytest.mark.parametrize("uri", ["http://[x]/", "http://[redacted]@host", "http://host:port"])
def test_an_address_to_report_from_that_cannot_be_read(write: Write, cli: Cli, uri: str) -> None:  # noqa: F811
    code, out, err = cli("report", "tested", "--mlflow", uri)
    assert (code, out, "Traceback" in err) == (2, "", False)
    assert "--mlflow: 1 fault" in err
    assert "cannot be read as an address" in err
