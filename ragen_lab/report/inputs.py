"""Whether a report still says what the home holds: a repeated sweep leaves one that does alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from ragen_lab.report.parts import page_parts
from ragen_lab.runs import all_proposals, reading_ledger
from ragen_lab.track import DONE_FILE, METRICS_FILE, PROVENANCE_FILE, trial_folder

_OF_TRIAL = (METRICS_FILE, DONE_FILE, PROVENANCE_FILE)
_OF_SWEEP = ("name", "file", "findings", "warnings", "command", "search")  # not: when it was last run, or mirrored
_PACKAGE = Path(__file__).resolve().parents[1]
_MARK = re.compile(rb'<meta name="ragen-lab-inputs" content="([0-9a-f]{64})">')
_HEAD = 4096  # bytes of a report in which its mark lies


def fingerprint(home: Path, sweep: str, command: str = "") -> str:
    """64 hex digits that change whenever a report of ``sweep``, whose trials are all done, could come out otherwise:
    with this program's code, with the ledger, with any trial's files (size and time of change). Raises HomeError."""
    found = hashlib.sha256()
    for part in _parts(home, sweep):
        found.update(f"{len(part)}:".encode() + part)
    found.update(command.encode())
    return found.hexdigest()


def _parts(home: Path, sweep: str) -> Iterator[bytes]:
    for file in sorted(_PACKAGE.rglob("*.py")):
        yield str(file.relative_to(_PACKAGE)).encode()
        yield file.read_bytes()
    yield from (text.encode() for text in page_parts().values())
    with reading_ledger(home) as ledger:
        asked = ledger.execute("SELECT * FROM runs WHERE sweep = ? ORDER BY position", (sweep,)).fetchall()
        of_sweep = ledger.execute("SELECT * FROM sweeps WHERE name = ?", (sweep,)).fetchone()
        known = dict(of_sweep) if of_sweep else {}
        yield _text({key: known.get(key) for key in _OF_SWEEP})
        yield _text([dict(row) for row in asked])
        yield _text(all_proposals(ledger, sweep))
    for row in asked:
        folder = trial_folder(home, row["trial_id"])
        for name in _OF_TRIAL:
            try:
                status = (folder / name).stat()
                yield f"{status.st_size} {status.st_mtime_ns} {status.st_ino}".encode()
            except FileNotFoundError:
                yield b"none"


def _text(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def stands(report: Path, inputs: str) -> bool:
    """Whether ``report`` is there and was written from these ``inputs``."""
    try:
        with report.open("rb") as file:
            found = _MARK.search(file.read(_HEAD))
    except OSError:  # none, or not to be read: it is written, and that fails with a message if it must
        return False
    return found is not None and found.group(1).decode() == inputs
