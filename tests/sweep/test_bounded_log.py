"""The log keeps its beginning and its end, counts what lay between, and outlives the process whose words it holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_lab.sweep import bounded_log
from ragen_lab.sweep.bounded_log import HEAD, TAIL, BoundedLog


def expected(stream: bytes, head: int, tail: int) -> bytes:
    left_out = len(stream) - head - tail
    if left_out <= 0:
        return stream
    return stream[:head] + b"\n[... %d bytes left out here ...]\n" % left_out + stream[-tail:]


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.tuples(st.binary(max_size=30), st.booleans(), st.booleans()), max_size=12))
def test_beginning_and_end_are_kept(pieces: list[tuple[bytes, bool, bool]], tmp_path_factory) -> None:
    """However the bytes come in, are flushed, or are divided between attempts: head 20, a count, tail 10."""
    file = tmp_path_factory.mktemp("log") / "log.txt"
    log, stream = BoundedLog(file, 20, 10), b""
    for data, flushed, new_attempt in pieces:
        log.write(data)
        stream += data
        if flushed or new_attempt:
            log.flush()
            assert file.read_bytes() == expected(stream, 20, 10)
        if new_attempt:
            log = BoundedLog(file, 20, 10)
    log.flush()
    assert file.read_bytes() == expected(stream, 20, 10)


def test_a_full_disk_loses_nothing_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BoundedLog(tmp_path / "log.txt", 20, 10)
    log.write(b"first ")
    log.file = tmp_path / "no" / "such" / "folder"
    with pytest.raises(OSError, match="No such file"):
        log.flush()
    log.write(b"second")
    assert log.dirty
    log.file = tmp_path / "log.txt"
    log.flush()
    assert log.file.read_bytes() == b"first second"


def test_the_writer_outlives_its_worker(tmp_path: Path) -> None:
    """8 MB from Python and a last word from C before a kill -9: the file is small, the last word is there."""
    script = tmp_path / "loud.py"
    script.write_text(
        "import os, signal, sys\nfrom pathlib import Path\nfrom ragen_lab.sweep.worker import _output_to\n"
        "with _output_to(Path(sys.argv[1])):\n"
        "    print('the first word')\n"
        "    for number in range(8000):\n"
        "        print('x' * 1000)\n"
        "    os.write(2, b'the last word of C')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    file = tmp_path / "log.txt"
    done = subprocess.run([sys.executable, str(script), str(file)], env=os.environ, capture_output=True, check=False)
    assert done.returncode == -9
    assert done.stdout == b""
    deadline = 100
    while not file.exists() or not file.read_bytes().endswith(b"the last word of C"):
        deadline -= 1
        assert deadline, file.read_bytes()[-200:]
        subprocess.run(["sleep", "0.05"], check=True)
    text = file.read_bytes()
    assert text.startswith(b"the first word\n")
    assert len(text) < HEAD + TAIL + 100
    (count,) = re.findall(rb"\[\.\.\. (\d+) bytes left out here \.\.\.\]", text)
    assert int(count) == len(b"the first word\n") + 8000 * 1001 + len(b"the last word of C") - HEAD - TAIL


def test_the_writer_needs_no_package() -> None:
    """It starts for every trial, so it may not load what a trial loads."""
    code = f"import sys, runpy; runpy.run_path({bounded_log.__file__!r}); print(len(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100
