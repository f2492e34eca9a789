"""What a trial records about where it came from, and that no secret is in it."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_lab import provenance
from ragen_lab.config import RunConfig
from ragen_lab.provenance import PATCH_BYTES, Source, lock, source_of
from ragen_lab.redaction import HIDDEN
from ragen_lab.runs import View, run_of
from ragen_lab.track import FolderTracker, read_provenance, write_done, write_provenance


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.py").write_text("one\ntwo\n")
    git(folder, "add", "a.py")
    git(folder, "commit", "-qm", "first")
    return folder


def test_a_clean_checkout_has_a_commit_and_no_patch(checkout: Path) -> None:
    found = source_of(checkout)
    assert (len(found.commit or ""), found.uncommitted_changes, found.patch) == (40, False, None)
    assert source_of(checkout.parent) == Source()


def test_the_patch_brings_the_commit_to_the_code_that_ran(checkout: Path) -> None:
    (checkout / "a.py").write_text("one\nthree\nPASSWORD = 'hunter2'\n")
    (checkout / "new.py").write_text("")
    found = source_of(checkout)
    assert found.uncommitted_changes
    patch = found.patch or ""
    assert "not in this patch: new.py" in patch
    assert "hunter2" not in patch
    git(checkout, "checkout", "-q", "--", "a.py")
    (checkout.parent / "x.patch").write_text(patch)
    git(checkout, "apply", "../x.patch")
    assert (checkout / "a.py").read_text() == f"one\nthree\nPASSWORD = '{HIDDEN}'\n"


def test_a_long_patch_is_cut_and_says_so(checkout: Path) -> None:
    (checkout / "a.py").write_text("".join(f"line {i:06}\n" for i in range(100_000)))
    patch = source_of(checkout).patch or ""
    assert len(patch.encode()) < PATCH_BYTES + 1000
    assert "CUT: the whole difference has " in patch
    assert re.fullmatch(r"\+line \d{6}", patch.rstrip("\n").rpartition("\n")[2])


def test_of_many_files_that_git_does_not_track_some_are_named(checkout: Path) -> None:
    for number in range(60):
        (checkout / f"new{number:02}.py").write_text("")
    patch = source_of(checkout).patch or ""
    assert patch.count("Not tracked by git, so not in this patch: new") == 50
    assert "... and 10 more files that git does not track" in patch


def test_what_git_cannot_read_is_no_checkout(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert source_of(tmp_path) == Source()


def test_every_session_names_code_packages_command_host_seed_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "source", lambda: Source("abc", True, "diff one\n"))
    write_provenance(tmp_path, 0, "ragen-lab run p.yaml --set track.mlflow_uri=http://me:hunter2@h", 3)
    before = read_provenance(tmp_path)
    assert before["ended"] is None  # a session that is killed has no end
    write_done(tmp_path, "failed", 4)
    monkeypatch.setattr(provenance, "source", lambda: Source("abc", True, "diff two\n"))
    write_provenance(tmp_path, 5, "ragen-lab run p.yaml", 3)
    write_done(tmp_path, "finished", 9)
    first, second = json.loads((tmp_path / "provenance.json").read_text())
    assert first["started"] <= first["ended"] <= second["started"] <= second["ended"]
    assert (first["seed"], first["commit"], second["from_iteration"]) == (3, "abc", 5)
    assert first["command"].startswith("ragen-lab run p.yaml --set track.mlflow_uri=http://me:")
    assert {"host", "python", "system", "torch"} <= set(first)
    assert [(tmp_path / each["patch"]).read_text() for each in (first, second)] == ["diff one\n", "diff two\n"]
    assert (tmp_path / first["packages"]).read_text() == lock()
    assert first["packages"] == second["packages"]  # written once
    assert read_provenance(tmp_path)["code_versions"] == 2
    assert "hunter2" not in "".join(file.read_text() for file in tmp_path.iterdir())


def test_the_lock_is_what_is_installed() -> None:
    lines = lock().splitlines()
    assert lines == sorted(lines, key=lambda line: line.split("==")[0])
    assert any(line.startswith("numpy==") for line in lines)
    assert len({line.split("==")[0] for line in lines}) == len(lines)


def test_of_two_installations_the_first_is_the_one_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is the same however it is written."""
    found = [("My_Package", "2"), ("my.package", "1"), ("another", "3")]
    several = [SimpleNamespace(metadata={"Name": name}, version=version) for name, version in found]
    monkeypatch.setattr(provenance.metadata, "distributions", lambda: several)
    lock.cache_clear()
    try:
        assert lock() == "another==3\nmy-package==2\n"
    finally:
        lock.cache_clear()


def test_what_costs_time_is_asked_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    def of(root: Path) -> Source:
        asked["source"] += 1
        return Source("abc", False)

    def distributions() -> list[Any]:
        asked["packages"] += 1
        return []

    monkeypatch.setattr(provenance, "source_of", of)
    monkeypatch.setattr(provenance.metadata, "distributions", distributions)
    kept = provenance.source, provenance.lock
    try:
        for cached in kept:
            cached.cache_clear()
        for iteration in range(3):
            write_provenance(tmp_path, iteration)
    finally:
        for cached in kept:
            cached.cache_clear()  # what was asked here is not true of this process
    assert asked == {"source": 1, "packages": 1}
    assert read_provenance(tmp_path)["sessions"] == 3


def test_the_password_of_an_address_stays_with_the_ledger(tmp_path: Path) -> None:
    cfg = RunConfig().with_overrides({"track.mlflow_uri": "http://me:hunter2@h:5000"})
    FolderTracker(tmp_path, cfg)
    assert "hunter2" not in (tmp_path / "config.json").read_text()
    assert cfg.track.mlflow_uri == "http://me:hunter2@h:5000"
    shown = run_of(View(False, "pending"), cfg, "s", "a", {})
    assert shown.params["track.mlflow_uri"] == f"http://me:{HIDDEN}@h:5000"
