"""No secret is shown: what is taken out of texts and configs, and what stays because it only looks like one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.config import RunConfig, load
from ragen_lab.errors import ConfigError
from ragen_lab.redaction import HIDDEN, redact
from ragen_lab.runs import View, run_of
from ragen_lab.track import FolderTracker

HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "secret", "kept"),
    [
        ("sweep p.yaml --set track.mlflow_uri=http://me:hunter2@h:5000", "hunter2", "http://me:"),
        ("postgresql+psycopg2://me:p@ss@db.host/runs", "p@ss", "@db.host/runs"),
        ("postgresql://:pw@host/runs", "pw", "@host/runs"),
        ("http://me:pa/ss@host:5000", "pa/ss", "@host:5000"),
        ("http://me:a/b/c@d@host/x", "a/b/c", "http://me:"),
        ("+ url: https://0123456789abcdef0123@host/x", "0123456789abcdef0123", "@host/x"),
        ("https://short@host/x", "short", "@host/x"),
        ("git+https://0123456789abcdef0123@host/x", "0123456789abcdef0123", "git+https://"),
        ("Authorization: Bearer abcdef.ghi", "abcdef.ghi", "Authorization: Bearer"),
        ("curl -H 'bearer abcdefghijklmnop'", "abcdefghijklmnop", "curl"),
        ("+api_key = 'abcd'", "abcd", "api_key = '"),
        ("apiKey: 'abcd'", "abcd", "apiKey: '"),
        ("client_secret=abc", "=abc", "client_secret="),
        ("clientSecret: 'abc'", "'abc'", "clientSecret: '"),
        ("AccountKey=abcdef==;Endpoint=x", "abcdef", ";Endpoint=x"),
        ("SharedAccessKey=abcdef=", "abcdef", "SharedAccessKey="),
        ("WANDB_API_KEY=0123abcd ragen-lab run", "0123abcd", " ragen-lab run"),
        (f'wandb.login(key="{HEX}")', HEX, 'wandb.login(key="'),
        (f"wandb login {HEX}", HEX, "wandb login "),
        (f"{{'key': '{HEX}'}}", HEX, "'key': '"),
        ('{"password": "correct horse"}', "correct horse", '"password": "'),
        ('password = "abc"', "abc", 'password = "'),
        ("password='a'", "'a'", "password='"),
        ("password=abc", "=abc", "password="),
        ("passphrase=open", "open", "passphrase="),
        ("pass_phrase: 'open sesame'", "sesame", "pass_phrase"),
        ("DB_PASSWORD=hunter2;", "hunter2", "DB_PASSWORD="),
        ("DB_PASS=hunter2 run", "hunter2", "DB_PASS="),
        ("db_pass: hunter2", "hunter2", "db_pass: "),
        ("MYSQL_PWD=abc run", "abc", "MYSQL_PWD="),
        ("Server=h;Uid=me;Pwd=abc;", "abc", "Server=h;Uid=me;Pwd="),
        ("--password hunter", "hunter", "--password "),
        ("--db-password hunter", "hunter", "--db-password "),
        ("--passphrase 'open sesame'", "sesame", "--passphrase '"),
        ("--token abc12345", "abc12345", "--token "),
        ("--hf-token abcdefgh", "abcdefgh", "--hf-token "),
        ("hf_token: 'abcdefgh'", "abcdefgh", "hf_token"),
        ("HF_TOKEN=abcdefghijkl ragen-lab run", "abcdefghijkl", " ragen-lab run"),
        ("export GITHUB_TOKEN=abcdefgh", "abcdefgh", "GITHUB_TOKEN="),
        ("access_token=abcdefgh&x=1", "abcdefgh", "&x=1"),
        ("AWS_SECRET_ACCESS_KEY=abcdefgh", "abcdefgh", "AWS_SECRET_ACCESS_KEY="),
        ("ENCRYPTION_KEY=abcdefgh", "abcdefgh", "ENCRYPTION_KEY="),
        ("x = 'ghp_abcdefghijklmnopqrst'", "abcdefghijklmnopqrst", "ghp_"),
        ("sk-proj-abcdefghijklmnop", "abcdefghijklmnop", "sk-"),
        ("hf_abcdefghijklmnopqrstu", "abcdefghijklmnopqrstu", "hf_"),
        ("AKIAABCDEFGHIJKLMNOP", "ABCDEFGHIJKLMNOP", "AKIA"),
        ("AIza" + "b" * 35, "b" * 35, "AIza"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.sig", "eyJzdWIiOiIx", ""),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\ndef", "abc", "-----BEGIN RSA PRIVATE KEY-----"),
    ],
)
def test_secrets_are_taken_out(text: str, secret: str, kept: str) -> None:
    cleaned = redact(text)
    assert secret not in cleaned
    assert HIDDEN in cleaned
    assert kept in cleaned
    assert redact(cleaned) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "num_tokens = 12345678",
        "max_new_tokens=24",
        "tokens: 12345678 of 23456789",
        "eos_token_id=12345678",
        "EOS_TOKEN=endoftext",
        "PAD_TOKEN = '<pad>'",
        "MAX_TOKEN=12345678",
        "pad_token = tokenizer.pad_token",
        "hf_token = read_token(file)",
        "access_token: str | None = None",
        "token=ids[33333333]",
        "    password: str",
        "password = getpass(prompt)",
        "api_key = os.environ['KEY']",
        "api_key=cfg.api_key",
        'password = ""',
        "key: value, and more prose",
        "sorted(rows, key=lambda row: row[0])",
        'sort(key="eval/success")',
        f'cache_key = "{HEX}"',
        f'monkey="{HEX}"',
        f"commit {HEX}",
        f'"commit": "{HEX}", "packages": "packages-0123456789.txt"',
        "PWD=/home/me/project OLDPWD=/home/me",
        "forward_pass=True, second_pass = 3",
        "bypass=yes; compass: north",
        "http://127.0.0.1:5000/#/experiments",
        "http://127.0.0.1:5000/x@y",
        "sqlite:////folder/mlflow.db",
        "git+https://user@host/repository",
        "mail a@b.c, see http://h/a@b",
        "--set filter.keep_ratio=0.5 --set rollout.max_new_tokens=400",
        "the secret of the keys: none",
        "http://[::1]:5000/x@y",
        "hf_deepspeed_config = None",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("piece", ["http://a:b/", "key='", "--password ", "a.b-c/", "x_token=", "password='a"])
def test_a_long_text_takes_no_long_time(piece: str) -> None:
    """A patch may have half a million characters, all of them in one line."""
    began = time.process_time()
    redact(piece * (500_000 // len(piece)))
    assert time.process_time() - began < 5


def page(tmp_path: Path, options: Any) -> Path:
    file = tmp_path / "page.yaml"
    file.write_text(json.dumps({"env": {"name": "package:Dungeon", "options": options}}))
    return file


@pytest.mark.parametrize(
    ("options", "path", "secret"),
    [
        ({"api_key": "sk-abc"}, "env.options.api_key", "sk-abc"),
        ({"password": "zq"}, "env.options.password", "zq"),
        ({"dbPass": "abcd"}, "env.options.dbPass", "abcd"),
        ({"hub": {"passphrase": "open it"}}, "env.options.hub.passphrase", "open it"),
        ({"secrets": {"hub": "open"}}, "env.options.secrets.hub", "open"),
        ({"hf_token": "abcdefghij"}, "env.options.hf_token", "abcdefghij"),
        ({"myApiKey": "zzzz"}, "env.options.myApiKey", "zzzz"),
        ({"credential": "abc"}, "env.options.credential", "abc"),
        ({"token": "abcdefgh1"}, "env.options.token", "abcdefgh1"),
        ({"key": HEX}, "env.options.key", HEX),
        ({"hosts": ["a", "http://me:hunter2@h"]}, "env.options.hosts", "hunter2"),
        ({"hubs": [{"secret": "open"}]}, "env.options.hubs", "open"),
        ({"say": f"Authorization: Bearer {HEX}"}, "env.options.say", HEX),
        ({"x-api-key": ["zzzz"]}, "env.options.x-api-key", "zzzz"),
    ],
)
def test_a_page_with_a_secret_is_refused(tmp_path: Path, options: Any, path: str, secret: str) -> None:
    """Hidden in config.json, it would be another config; shown, it would be in every report."""
    with pytest.raises(ConfigError, match="environment variable") as raised:
        load(page(tmp_path, options))
    assert [fault.partition(":")[0] for fault in raised.value.faults] == [path]
    assert secret not in str(raised.value)


def test_every_fault_of_secrets_is_told_at_once(tmp_path: Path) -> None:
    sets = {"eval.sets": [{"other": {"env.options": {"api_key": "sk-abc"}}}], "policy.model": "https://u:pw12@h/x"}
    with pytest.raises(ConfigError) as raised:
        load(page(tmp_path, {"api_key": "sk-abc"}), sets)
    assert {fault.partition(":")[0] for fault in raised.value.faults} >= {
        "env.options.api_key",
        "eval.sets",
        "policy.model",
    }
    assert "pw12" not in str(raised.value)
    assert "sk-abc" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"token": "P1", "key": "red-door-2", "tokens": 12345678, "max_tokens": 24, "eos_token": "</s>", "passes": 3},
        {"api_key": None, "password": "", "secret": 7, "token": True},
        {"api_key_variable": "OPENAI_API_KEY", "api_key": "$OPENAI_API_KEY", "key_file": "/home/me/key"},
        {"rules": "Find the key: it opens the door.", "commit": HEX, "keys": ["red", "blue"], "key": "red-door"},
        {"id": "my_package:Dungeon-v0", "actions": ["north", "south"], "host": "http://127.0.0.1:5000"},
    ],
)
def test_a_page_with_harmless_options_is_as_it_was(tmp_path: Path, options: Any) -> None:
    cfg = load(page(tmp_path, options))
    FolderTracker(tmp_path / "trial", cfg)
    stored = json.loads((tmp_path / "trial" / "config.json").read_text())
    assert stored["config"] == cfg.model_dump()
    assert RunConfig.model_validate(stored["config"]).trial_id() == stored["trial_id"]
    assert run_of(View(False, "pending"), cfg, "s", "a", {}).params == cfg.flat()


def test_a_config_that_came_past_the_check_shows_no_secret(tmp_path: Path) -> None:
    """One of an older home's ledger, or made by hand."""
    options = {"api_key": "sk-abc", "hosts": ["http://me:hunter2@h"], "hub": {"token": "abcdefgh1"}, "size": 3}
    cfg = RunConfig.model_validate({"env": {"name": "package:Dungeon", "options": options}})
    shown = run_of(View(False, "failed", (), 1, "no way to http://me:hunter2@h"), cfg, "s", "a", {})
    FolderTracker(tmp_path, cfg)
    for text in (repr(shown), (tmp_path / "config.json").read_text()):
        assert not [secret for secret in ("sk-abc", "hunter2", "abcdefgh1") if secret in text]
    assert shown.params["env.options.size"] == 3
    assert shown.params["env.options.api_key"] == HIDDEN
    assert cfg.env.options == options


def test_an_address_that_is_refused_is_told_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        RunConfig().with_overrides({"track.mlflow_uri": "ftp://me:hunter2@h"})
    assert "hunter2" not in str(raised.value)
