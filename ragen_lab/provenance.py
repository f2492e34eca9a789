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
from ragen_lab.sections import SCHEMA_VERSION

HIDDEN = "[redacted]"
PATCH_BYTES = 500_000  # of uncommitted changes, at most
_NAMED = ("torch", "transformers", "numpy", "ray", "mlflow")  # shown with the run; the lock holds all
_UNTRACKED = 50  # names at most

_START = r"(?<![a-z0-9])"  # my_api_key is an api_key, a mytoken no token
_OPTION = "|".join(rf"(?<={name})\s+" for name in ("--api-key", "--password", "--token", "--secret"))
_IS = rf"(?:['\"]?\s*[:=]\s*|{_OPTION})"
# Each pattern keeps what tells a reader that there was a secret, and hides the secret.
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), kept)
    for pattern, kept in (
        # scheme://user:password@host, and scheme://token@host. The part before '@' may hold '@' itself.
        (r"(?i)\b([a-z][a-z0-9+.\-]*://)([^\s/'\"<>:@]+):[^\s/'\"<>]+@", rf"\1\2:{HIDDEN}@"),
        (r"(?i)\b(https?://)[^\s/'\"<>:@\[\]]{16,}@", rf"\1{HIDDEN}@"),
        # Authorization: Bearer ..., and the scheme with a credential on its own.
        (r"(?i)\b(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)?\s*)[^\s'\",;]{4,}", rf"\1{HIDDEN}"),
        (r"(?i)\b(bearer\s+)[a-z0-9._~+/\-]{12,}=*", rf"\1{HIDDEN}"),
        # Well-known shapes of keys: GitHub, GitLab, Hugging Face, OpenAI and others, Slack, AWS, Google, JWT.
        (r"\b(gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abeoprs]-)[A-Za-z0-9_\-]{16,}", rf"\1{HIDDEN}"),
        (r"\b(AKIA|ASIA)[A-Z0-9]{16}\b", rf"\1{HIDDEN}"),
        (r"\b(AIza)[A-Za-z0-9_\-]{35}\b", rf"\1{HIDDEN}"),
        (r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*", HIDDEN),
        (r"(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", rf"\1{HIDDEN}\2"),
        # name = value, "name": "value" and --name value, where the name says that it is one.
        (
            rf"(?i)({_START}(?:api[_\-]?key|access[_\-]?key|secret[_\-]?key|private[_\-]?key|passwo?r?d|secret){_IS})"
            r"(?:(['\"])(?!\[redacted\])[^'\"\n]{4,}(?=['\"])"
            r"|(?!\[redacted\]|['\"]|None\b|null\b|os\.|str\b|\$)[^\s'\",;)\]}]{4,})",
            rf"\1\2{HIDDEN}",
        ),
        # In this code base "token" is mostly a word of a language: only a quoted or number-bearing value is a secret.
        (
            rf"(?i)({_START}(?:token|credentials?){_IS})(?:(['\"])[a-z0-9_\-.+/~]{{8,}}(?=['\"])"
            r"|(?=[a-z_\-.+/~]*\d)[a-z0-9_\-.+/~]{8,}(?![\w(\[.]))",
            rf"\1\2{HIDDEN}",
        ),
    )
)


def redact(text: str) -> str:
    """``text`` without passwords in addresses, tokens and keys of known shapes, and values of names like api_key."""
    for pattern, kept in _SECRETS:
        text = pattern.sub(kept, text)
    return text


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
