"""Where levels come from: the published sets, and a rule that keeps training and evaluation apart.

A level is known by its content, one string of standard symbols with rows joined by ``/``. One bit of a
hash of the content says which side a generated level may serve on: training or evaluation. The bit has
nothing to do with what the level looks like, so both sides keep the generator's distribution. Training
levels are, besides, never one of the published levels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any

from ragen_lab.env.base import EVAL_SEED_BASE, GENERAL_SEED_BASE, is_eval_seed
from ragen_lab.errors import ConfigError

MAX_DRAWS = 2_000


@cache
def published(file: str) -> dict[str, dict[str, Any]]:
    """The sets in ``ragen_lab/data/<file>``: name -> levels and the figures published with them."""
    text = files("ragen_lab").joinpath("data", file).read_text(encoding="utf-8")
    sets: dict[str, dict[str, Any]] = json.loads(text)["sets"]
    return sets


def choose_set(eval_levels: str, file: str, name: str | None, setting: str, allowed: str) -> tuple[str, ...]:
    """The published evaluation levels in force; empty where levels are generated.

    ``name`` is the set that fits the section, or None. Raises ConfigError when 'published' is asked for
    a setting (described by ``setting``) without a set; ``allowed`` tells which settings have one.
    """
    if eval_levels == "generated" or (eval_levels == "auto" and name is None):
        return ()
    if name is None:
        fault = (
            f"env.eval_levels: 'published' has no set for {setting}. Sets exist for: {allowed}. "
            "Use one of these settings, or 'auto' or 'generated'."
        )
        raise ConfigError("env", [fault])
    return tuple(published(file)[name]["levels"])


def published_level(seed: int, levels: tuple[str, ...]) -> str | None:
    """The level that evaluation (or generalisation) seed number i takes from a published set, or None."""
    index = seed - (GENERAL_SEED_BASE if seed >= GENERAL_SEED_BASE else EVAL_SEED_BASE)
    return levels[index] if 0 <= index < len(levels) else None


def on_evaluation_side(content: str) -> bool:
    """The bit that decides for a generated level. blake2b, because ``hash()`` differs per process."""
    return bool(hashlib.blake2b(content.encode(), digest_size=1).digest()[0] & 1)


def draw_level(seed: int, stream: str, make: Callable[[Random], str | None], taken: frozenset[str]) -> str:
    """Draw with ``make`` until the level belongs to the seed's side (and, for training, is not ``taken``).

    ``make`` may answer None for a failed draw. ``stream`` separates the random streams of settings.
    Raises ConfigError when the setting holds no such level.
    """
    rng = Random(f"{stream} level {seed}")
    evaluation = is_eval_seed(seed)
    for _ in range(MAX_DRAWS):
        content = make(rng)
        if content is None or on_evaluation_side(content) != evaluation:
            continue
        if evaluation or content not in taken:
            return content
    side = "evaluation" if evaluation else "training"
    fault = (
        f"env: {stream} gave no {side} level in {MAX_DRAWS} draws; choose a larger size, fewer boxes or wider bounds."
    )
    raise ConfigError("env", [fault])


def of_length(moves: int | None, least: int | None, most: int | None) -> bool:
    """Whether a shortest solution of ``moves`` (None: there is none) keeps the bounds of ``env.min/max_moves``."""
    return moves is not None and (least is None or moves >= least) and (most is None or moves <= most)


def length_stream(least: int | None, most: int | None) -> str:
    """What bounds add to the name of a setting; nothing without bounds, so that levels stay what they were."""
    return "" if least is None and most is None else f" moves {least} to {most}"


def direction_words(rows: int, columns: int) -> str:
    """A displacement in words, vertical part first: (1, 2) -> 'down right'; (0, 0) -> 'here'."""
    words = ["down" if rows > 0 else "up"] if rows else []
    if columns:
        words.append("right" if columns > 0 else "left")
    return " ".join(words) or "here"
