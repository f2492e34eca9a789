"""How this program was called, and how the user can call it again."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def typed(rerun: str | None = None) -> str:
    """The command as it was typed, for messages, the ledger and the report: without the password of an address, and
    without --rerun, because to repeat that would begin all over again."""
    from ragen_lab.redaction import redact

    words = sys.argv[1:]
    if rerun is not None:
        given = [i for i, word in enumerate(words) if word == "--rerun"]
        words = [word for i, word in enumerate(words) if not ({i, i - 1} & set(given) or word.startswith("--rerun="))]
    return redact(f"{program()} {shlex.join(words)}")


def program() -> str:
    """How the user can call this program again: as it was called, where its bare name would not find it."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(_short(Path(sys.executable)))} -m ragen_lab"
    if called.suffix == ".py":
        return f"{shlex.quote(_short(Path(sys.executable)))} {shlex.quote(_short(called))}"
    if called.name == "-c":
        return "ragen-lab"
    found = shutil.which(called.name)
    if len(called.parts) < 2 or (found and Path(found).absolute() == called.absolute()):
        return called.name
    return shlex.quote(_short(called))


def _short(path: Path) -> str:
    """Relative to the working directory where it lies below it."""
    here = Path.cwd()
    whole = path if path.is_absolute() else here / path
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(path)
