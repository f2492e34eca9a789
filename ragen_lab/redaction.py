"""Secrets are taken out of all that is written or shown: passwords in addresses, tokens, keys, and what is named so."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

HIDDEN = "[redacted]"
REFUSED = (  # of a page: such a leaf could not be told truly in config.json
    "looks like a secret, and a page is copied into trial folders, reports and mirrors. Leave it out and let the "
    "environment's own code read an environment variable: their values are recorded nowhere."
)

# --- in texts ---

_START = r"(?<![a-z0-9])"  # my_api_key is an api_key, a mytoken no token
_IS = r"(?:\\?['\"]?\]?\s*[:=]\s*)"
_QUOTED = r"(?P<quote>\\?['\"])(?!\[redacted\])(?:(?!(?P=quote)).)+(?=(?P=quote))"
_OPTION = r"(?<!\S)--(?:[a-z0-9]+[_\-])*"
_NEW = r"(?!\[redacted\])"
_CODE = r"(?![a-z_][\w.]*[(\[]|(?:self|cfg|config|settings|args|os|tokenizer)\.|(?:password|secret|api_key|token)\b)"
_NOTHING = r"(?!['\"$]|(?:None|null|str|true|false)\b)"
_PASSES = "db|user|smtp|mail|mysql|pg|redis|ftp|proxy|admin|root|login|auth"
_STRONG = (  # names whose values are secrets whatever they look like
    r"(?:(?:api|access|secret|private|account|encryption|signing|auth|shared[_\-]?access)[_\-]?key|client[_\-]?secret"
    rf"|secret|pass[_\-]?phrase|passwo?r?d|(?:{_PASSES})_?pass|(?<=[_;])pwd)"
)
_HOLDERS = "hf|auth|access|bearer|refresh|github|gh|gitlab|slack|bot|api|session|hub|huggingface|wandb|openai"
# In this code base "token" is mostly a word of a language, and a key what something is sorted by.
_LANGUAGE = (
    "eos bos pad unk sep cls mask max min num per each new first last start end stop think newline special image "
    "sort group order cache primary foreign"
)
_NO_LANGUAGE = "".join(rf"(?<!{word}_)(?<!{word}-)" for word in _LANGUAGE.split())

# Each pattern keeps what tells a reader that there was a secret, and hides the secret.
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), kept)
    for pattern, kept in (
        # scheme://user:password@host, where the password may hold '@', and one with a '/' (a port is no password).
        (rf"(?i)\b([a-z][a-z0-9+.\-]*://)([^\s/'\"<>:@]*):{_NEW}[^\s/'\"<>]+@", rf"\1\2:{HIDDEN}@"),
        (
            rf"(?i)\b([a-z][a-z0-9+.\-]*://)([^\s/'\"<>:@\[]*):{_NEW}(?!\d{{1,5}}[/?#])[^\s'\"<>@]{{0,99}}/[^\s'\"<>]{{0,99}}@",
            rf"\1\2:{HIDDEN}@",
        ),
        # scheme://token@host; the name before the host of a repository's address is mostly that of a user.
        (r"(?i)(?<![a-z0-9+.\-])(https?://)[^\s/'\"<>:@\[\]]+@", rf"\1{HIDDEN}@"),
        (r"(?i)\b(https?://)[^\s/'\"<>:@\[\]]{16,}@", rf"\1{HIDDEN}@"),
        # Authorization: Bearer ..., and the scheme with a credential on its own.
        (rf"(?i)\b(authorization{_IS}['\"]?(?:bearer|basic|token)?\s*)[^\s'\",;]{{4,}}", rf"\1{HIDDEN}"),
        (r"(?i)\b(bearer\s+)[a-z0-9._~+/\-]{12,}=*", rf"\1{HIDDEN}"),
        # Well-known shapes of keys: GitHub, GitLab, Hugging Face, OpenAI and others, Slack, AWS, Google, JWT, W&B.
        (r"\b(gh[pousr]_|github_pat_|glpat-|sk-|xox[abeoprs]-)[A-Za-z0-9_\-]{16,}", rf"\1{HIDDEN}"),
        (r"\b(hf_)[A-Za-z0-9]{16,}", rf"\1{HIDDEN}"),
        (r"\b(AKIA|ASIA)[A-Z0-9]{16}\b", rf"\1{HIDDEN}"),
        (r"\b(AIza)[A-Za-z0-9_\-]{35}\b", rf"\1{HIDDEN}"),
        (r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*", HIDDEN),
        (r"(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", rf"\1{HIDDEN}\2"),
        (r"(\bwandb\s+login\s+)[A-Za-z0-9_\-]{20,}", rf"\1{HIDDEN}"),
        # name = value, "name": "value" and --name value, where the name says that it is one.
        (rf"(?i)({_START}{_STRONG}{_IS}){_QUOTED}", rf"\1\g<quote>{HIDDEN}"),
        (rf"(?i)({_OPTION}{_STRONG}\s+){_QUOTED}", rf"\1\g<quote>{HIDDEN}"),
        (rf"(?i)({_OPTION}{_STRONG}\s+){_NEW}(?!['\"$\-])[^\s'\",;)\]}}]{{4,}}", rf"\1{HIDDEN}"),
        (rf"(?i)({_START}{_STRONG}{_IS}){_NEW}{_NOTHING}{_CODE}[^\s'\",;)\]}}]{{4,}}", rf"\1{HIDDEN}"),
        (rf"(?i)({_START}{_STRONG}['\"]?=){_NEW}{_NOTHING}{_CODE}[^\s'\",;)\]}}]+", rf"\1{HIDDEN}"),
        # Of tokens and keys only what looks like one: quoted or with a digit, or with the name of who gave it.
        (
            rf"(?i)({_START}{_NO_LANGUAGE}(?:token|credentials?)(?:{_IS}|(?<=--token)\s+))"
            r"(?:(['\"])[a-z0-9_\-.+/~]{8,}(?=['\"])|(?=[a-z_\-.+/~]*\d)[a-z0-9_\-.+/~]{8,}(?![\w(\[.]))",
            rf"\1\2{HIDDEN}",
        ),
        (
            rf"(?i)({_START}(?:{_HOLDERS})[_\-]?token(?:{_IS}|\s+)['\"]?){_CODE}[a-z0-9_\-.+/~]{{8,}}(?![\w(\[.])",
            rf"\1{HIDDEN}",
        ),
        (rf"((?<=[A-Z0-9]_)(?i:{_NO_LANGUAGE})(?:TOKEN|KEY)=)[A-Za-z0-9_\-.+/~]{{8,}}", rf"\1{HIDDEN}"),
        (rf"((?<=[A-Z0-9]_)PASS=){_NEW}{_NOTHING}[^\s'\",;)\]}}]+", rf"\1{HIDDEN}"),
        (
            r"(?i)(?<![\w\-])(key['\"]?\s*[:=]\s*['\"])(?=[^'\"\n]*\d)(?=[^'\"\n]*[a-z])[a-z0-9_\-+/=.]{20,}(?=['\"])",
            rf"\1{HIDDEN}",
        ),
    )
)


def redact(text: str) -> str:
    """``text`` without passwords in addresses, tokens and keys of known shapes, and values of names like api_key."""
    for pattern, kept in _SECRETS:
        text = pattern.sub(kept, text)
    return text


# --- in configs ---

# As in texts, of a name in lower case with "_" between its words.
_SECRET_NAME = re.compile(rf"(?:^|_)(?:{_STRONG}s?|apikey|credentials?)$")
_TOKEN_NAME = re.compile(rf"(?:^|_)(?:(?P<holder>{_HOLDERS})_)?{_NO_LANGUAGE}tokens?$")
_KEY_NAME = re.compile(rf"(?:^|_){_NO_LANGUAGE}keys?$")


def without_secrets(value: Any, name: str = "") -> Any:
    """A copy of a nested value, fit to be shown. ``name``: the key that it stands under.

    A text is hidden where its key says that it is a secret, and redacted else; numbers and the name of an environment
    variable (``$NAME``) stay.
    """
    if isinstance(value, dict):
        inherits = _SECRET_NAME.search(_plain(name))  # secrets: {hub: ...}
        return {key: without_secrets(each, name if inherits else str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(each, name) for each in value]
    return _shown(name, value) if isinstance(value, str) else value


@lru_cache(maxsize=4096)  # the trials of a sweep have most of their texts in common
def _shown(name: str, value: str) -> str:
    return HIDDEN if _is_secret(_plain(name), value) else redact(value)


def _plain(name: str) -> str:
    """'hub.apiKey' -> 'hub_api_key'."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def _is_secret(name: str, value: str) -> bool:
    if not value or value.startswith("$"):
        return False
    if _SECRET_NAME.search(name):
        return True
    mixed = re.fullmatch(r"(?=.*\d)(?=.*[A-Za-z])[\w\-.+/~=]+", value) is not None
    if token := _TOKEN_NAME.search(name):
        return len(value) >= 8 and (mixed or (token["holder"] is not None and " " not in value))
    return mixed and len(value) >= 20 and bool(_KEY_NAME.search(name))
