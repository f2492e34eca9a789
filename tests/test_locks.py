"""Locks: looking at one disturbs nobody, and who refuses names a holder that is there."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from ragen_lab import locks
from ragen_lab.errors import TrialLocked
from ragen_lab.locks import is_locked, locked


@contextmanager
def looked_at(file: Path, probers: int) -> Iterator[list[bool]]:
    """Others ask all the time whether the lock is held; the answers."""
    over, answers = threading.Event(), []

    def look() -> None:
        while not over.is_set():
            answers.append(is_locked(file))

    threads = [threading.Thread(target=look) for _ in range(probers)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_looking_disturbs_no_one_who_takes_the_lock(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with locked(file):
        pass
    with looked_at(file, 2) as answers:
        deadline, taken = time.monotonic() + 5, 0
        while time.monotonic() < deadline and taken < 3000:
            with locked(file):
                taken += 1
    assert taken > 50
    assert answers


def test_a_holder_is_seen_by_all_who_look(tmp_path: Path) -> None:
    """Two who look at once do not take each other for a holder, and do not overlook one."""
    file = tmp_path / "lock"
    with locked(file), looked_at(file, 2) as answers:
        time.sleep(0.3)
    assert answers
    assert all(answers)
    with looked_at(file, 2) as answers:
        time.sleep(0.3)
    assert answers
    assert not any(answers)


def test_two_takers_under_a_look_never_hold_it_both(tmp_path: Path) -> None:
    file, inside, most, faults = tmp_path / "lock", [], [], []

    def take() -> None:
        for _ in range(50):
            try:
                with locked(file, wait=20):
                    inside.append(1)
                    most.append(len(inside))
                    time.sleep(0.001)
                    inside.pop()
            except TrialLocked as error:
                faults.append(error)

    with looked_at(file, 1):
        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(most) == 1
    assert not faults


def test_a_held_lock_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pause: nobody is waited for who was not asked for."""
    file = tmp_path / "lock"
    pauses: list[float] = []
    monkeypatch.setattr("ragen_lab.locks.time.sleep", pauses.append)
    with locked(file), pytest.raises(TrialLocked, match="is being worked on by process"), locked(file):
        pass
    assert pauses == []


def test_a_long_reader_is_no_holder_by_name(tmp_path: Path) -> None:
    """An import keeps workers out of the folder that it copies; the name in the file is that of somebody gone."""
    file = tmp_path / "lock"
    with locked(file):
        pass
    with file.open("r") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        with pytest.raises(TrialLocked, match="worked on by a process that copies it") as caught, locked(file):
            pass
    assert f"process {os.getpid()}" not in str(caught.value)


def test_a_lock_dies_with_its_holder_whatever_that_has_forked(tmp_path: Path) -> None:
    """The loader of a trial's data, say, which a killed worker leaves behind."""
    file = tmp_path / "lock"
    script = """if True:
        import multiprocessing, os, sys, time
        from pathlib import Path
        from ragen_lab.locks import locked
        def load():
            print(os.getpid(), flush=True)
            time.sleep(120)
        with locked(Path(sys.argv[1])):
            multiprocessing.get_context("fork").Process(target=load).start()
            time.sleep(120)
    """
    with subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            assert is_locked(file)
            holder.kill()
            holder.wait()
            assert not is_locked(file)
            with locked(file):
                assert is_locked(file)
        finally:
            os.kill(child, signal.SIGKILL)


def in_a_process_of_its_own(script: str, *words: str) -> int:
    """Its exit code. A fork of the tests' own process would take along whatever threads other tests have left."""
    return subprocess.run([sys.executable, "-c", script, *words], timeout=120).returncode


def test_a_fork_does_not_free_the_lock_of_its_parent(tmp_path: Path) -> None:
    script = """if True:
        import os, sys
        from pathlib import Path
        from ragen_lab.locks import is_locked, locked
        file = Path(sys.argv[1])
        with locked(file):
            child = os.fork()
            if child == 0:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert is_locked(file)
    """
    assert in_a_process_of_its_own(script, str(tmp_path / "lock")) == 0


def test_a_fork_does_not_wait_for_a_thread_that_writes_its_name_into_a_lock() -> None:
    """In the child that thread is not, and would never have written it."""
    script = """if True:
        import os, signal, threading, time
        from ragen_lab import locks
        read, write = os.pipe()
        file = open(write, "w")
        locks._open.add(file)
        threading.Thread(target=lambda: file.write("x" * 2**20) and file.flush(), daemon=True).start()
        os.read(read, 1)
        time.sleep(0.2)  # until the pipe is full
        child = os.fork()
        if child == 0:
            os._exit(7)
        for _ in range(1200):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                os._exit(os.waitstatus_to_exitcode(status) != 7)
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        os._exit(1)
    """
    assert in_a_process_of_its_own(script) == 0


def test_who_waits_behind_a_reader_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two who wait would keep each other out once the reader has gone."""
    file, pauses = tmp_path / "lock", []
    file.touch()
    with file.open("r") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            fcntl.flock(reader, fcntl.LOCK_UN)
            with file.open("r") as another:
                fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)

        monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
        with locked(file):
            pass
    assert len(pauses) == 1


@pytest.mark.parametrize(("wait", "comes"), [(60.0, True), (30.0, False), (0.0, False)])
def test_a_reader_is_waited_for_as_long_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: float, comes: bool
) -> None:
    """A large trial takes its time to be copied."""
    file, now, taken = tmp_path / "lock", [0.0], []
    file.touch()
    with file.open("r") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)

        def pause(seconds: float) -> None:
            now[0] += 1
            if now[0] == 45:
                fcntl.flock(reader, fcntl.LOCK_UN)

        monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pause))
        with suppress(TrialLocked), locked(file, wait=wait):
            taken.append(now[0])
    assert taken == ([45] if comes else [])


def test_a_lock_names_its_last_holder_only(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.write_text("process 1 on a machine with a name that is longer than this one's is likely to be\n")
    with locked(file):
        assert file.read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
