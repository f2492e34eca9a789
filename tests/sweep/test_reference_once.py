"""Trials that start together need the same reference lines: one computes them, the others read."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.config import RunConfig
from ragen_lab.env import reference
from ragen_lab.evaluate import reference_of

CFG = RunConfig().with_overrides({"env.name": "bandit", "eval.prompts": 16})


def test_reference_lines_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, computed = reference.reference_lines, []

    def slow(*args: Any) -> Any:
        computed.append(args)
        time.sleep(0.3)
        return real(*args)

    monkeypatch.setattr(reference, "reference_lines", slow)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: reference_of(CFG.with_overrides({"seed": seed}), tmp_path), range(4)))
    assert len(computed) == 1
    assert all(lines == found[0] for lines in found)
    reference_of(CFG.with_overrides({"eval.prompts": 8}), tmp_path)  # other levels are other lines
    assert len(computed) == 2
