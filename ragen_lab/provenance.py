"""Where a number comes from: code, packages, command, host. Secrets are taken out before anything is written.

Everything that costs time is asked once per process (a worker is kept for many trials, and runs the code
that was there when it began). Values of environment variables are never recorded.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
import socket
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ragen_lab import __version__
from ragen_lab.redaction import redact
from ragen_lab.sections import SCHEMA_VERSION

PATCH_BYTES = 500_000  # of uncommitted changes, at most
_NAMED = ("torch", "transformers", "numpy", "ray", "mlflow")  # shown with the run; the lock holds all
_UNTRACKED = 50  # names at most


@dataclass(frozen=True)
class Source:
    """The checkout that the code was loaded from; all None where it is an installed package."""

    commit: str | None = None
    uncommitted_changes: bool | None = None
    patch: str | None = None  # the uncommitted changes, redacted; None where there are none


@functools.cache
def source() -> Source:
    """What git says of this package's own checkout, once per process."""
    return source_of(Path(__file__).resolve().parent.parent)


def source_of(root: Path) -> Source:
    """Commit and uncommitted changes of the checkout ``root``, which need not be one."""
    if not (root / ".git").exists():
        return Source()
    commit = _git(root, "rev-parse", "HEAD")
    difference = _git(root, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
    if commit is None or difference is None:  # no git here, or a repository of another owner
        return Source(commit)
    listed = _git(root, "ls-files", "--others", "--exclude-standard", "--", "*.py", "*.yaml", "*.toml") or ""
    untracked = listed.splitlines()
    if not difference.strip() and not untracked:
        return Source(commit, False)
    return Source(commit, True, _patch(difference, untracked))


def _patch(difference: str, untracked: list[str]) -> str:
    """The difference with a head in words (which ``git apply`` skips), cut at a line's end where it is long."""
    head = ["Uncommitted changes of the checkout. Secrets are replaced; such lines do not apply as they stand."]
    head += [f"Not tracked by git, so not in this patch: {name}" for name in untracked[:_UNTRACKED]]
    if len(untracked) > _UNTRACKED:
        head.append(f"... and {len(untracked) - _UNTRACKED} more files that git does not track")
    whole = len(difference.encode())
    if whole > PATCH_BYTES:
        difference = difference.encode()[:PATCH_BYTES].decode(errors="ignore").rpartition("\n")[0]
        head.append(
            f"CUT: the whole difference has {whole} bytes, of which the first {len(difference.encode())} follow."
        )
    body = redact(difference)
    return "\n".join([*head, "", body.rstrip("\n"), ""])


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


@functools.cache
def lock() -> str:
    """Every installed package as ``name==version``, sorted, one a line."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():  # the first one of a name on the path is the one imported
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))


def code_version() -> dict[str, Any]:
    """Which code ran: our version, the commit of the checkout it lies in (if any), and the libraries."""
    versions = dict(line.split("==", 1) for line in lock().splitlines())
    return {
        "ragen_lab": __version__,
        "schema": SCHEMA_VERSION,
        "commit": source().commit,
        "uncommitted_changes": source().uncommitted_changes,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "host": socket.gethostname(),
        **{name: versions[name] for name in _NAMED if name in versions},
    }


def named_by_content(stem: str, text: str, ending: str) -> str:
    """A file name that changes with the text, so that a file that is there need not be written again."""
    return f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:10]}{ending}"
