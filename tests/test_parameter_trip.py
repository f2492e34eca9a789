"""The trip of one parameter: YAML -> RunConfig -> config.json -> MLflow -> RunTable, for every leaf there is.

A parameter has one name, its dotted path, and is never copied.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from ruamel.yaml import YAML

from ragen_lab.config import GROUNDED, RunConfig, build, load
from ragen_lab.mirror import default_uri
from ragen_lab.runs import from_home, from_mlflow
from ragen_lab.sections import ENV_SECTIONS, Section
from ragen_lab.sweep.spec import load_sweep
from tests.sweep.conftest import drive, importable, sweep_of, write  # noqa: F401 - fixtures

# A base in which every knob may be moved on its own: the other side of each rule across fields.
BASE: dict[str, Any] = {
    "policy.model": "tiny",
    "policy.warm_start.think_share": 0.5,
    "prompt.style": "compact",
    "rollout.max_new_tokens": 24,
    "rollout.max_context": 512,
    "train.iterations": 8,
    "eval.every": 1,
    "detect.on_collapse": "continue",
    "track.mlflow": True,
}
# Values that a rule across fields or a pattern asks for.
CHOSEN: dict[str, Any] = {
    "policy.device": "cpu",
    "policy.model": "some/model",
    "policy.tiny.hidden": 128,
    "policy.tiny.heads": 8,
    "policy.tiny.kv_heads": 2,
    "eval.every": 2,
    "train.iterations": 9,
    "train.keep_also": ["best"],
    "optim.updates_per_rollout": 2,
    "algo.aggregation": "sequence_mean",
    "algo.importance_cap": 2.0,
    "env.eval_levels": "generated",  # a changed size has no published ones
    "env.min_moves": 2,
    "env.max_moves": 9,
    "eval.sets": [{"again": {}}],
    "eval.probes": ["empty_think"],
    "eval.mutual_information_every": 2,
    "detect.reward_std.span": 7,
    "detect.reward_std.lag": 2,
    "track.mlflow": True,  # the mirror is part of the trip
    "track.mlflow_uri": None,
    "rollout.engine": "native",  # the only one built
    "prompt.style": "compact",  # the only one for the tiny model
}
FIXED = {
    "track.tensorboard",
    "track.wandb",
    "track.mlflow",
    "track.mlflow_uri",
    "rollout.engine",
    "prompt.style",
    "env.name",
}


def leaves(section: Section, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        path = f"{prefix}{name}"
        found.update(leaves(value, f"{path}.") if isinstance(value, Section) else {path: value})
    return found


def field_of(cfg: RunConfig, path: str) -> Any:
    node: Any = cfg
    *parents, leaf = path.split(".")
    for parent in parents:
        node = getattr(node, parent)
    return type(node).model_fields[leaf]


def another(cfg: RunConfig, path: str, value: Any) -> Any:
    """A valid value that differs from ``value``."""
    if path in CHOSEN:
        return CHOSEN[path]
    if path == "reward.reasoning":  # open to names from outside, fixed where an environment cannot be judged
        return "grounded"
    words = [word for word in get_args(field_of(cfg, path).annotation) if isinstance(word, str) and word != value]
    if words:
        return words[0]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 0.5 if value == 0 else round(value * 0.9, 12) if value <= 1 else value + 0.5
    raise AssertionError(f"{path}: give CHOSEN a value")


def dump(path: Path, flat: dict[str, Any]) -> Path:
    tree: dict[str, Any] = {}
    for dotted, value in flat.items():
        node = tree
        *parents, leaf = dotted.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    with path.open("w") as file:
        YAML(typ="safe", pure=True).dump(tree, file)
    return path


@pytest.mark.parametrize("env", list(ENV_SECTIONS))
def test_every_leaf_from_yaml_to_the_table(
    env: str,
    tmp_path: Path,
    drive: Callable[..., Any],  # noqa: F811
) -> None:
    start = RunConfig().with_overrides({"env.name": env, **BASE})
    before = leaves(start)
    changed: dict[str, Any] = {}
    fixed = FIXED if env in GROUNDED else FIXED | {"reward.reasoning"}
    for path, value in before.items():
        new = value if path in fixed and path not in CHOSEN else another(start, path, value)
        if path not in fixed:
            assert new != value, path
            # alone: the page's key reaches the leaf of that name, and no other leaf moves
            one = load(dump(tmp_path / "one.yaml", {"env.name": env, **BASE, **companions(path), path: new}))
            expected = {**before, **companions(path), path: new}
            assert one.flat() == build_flat(expected), path
        changed[path] = new
    changed |= {"policy.model": "tiny", "train.iterations": 8, "prompt.think": True}

    page = tmp_path / "trip.yaml"
    dump(tmp_path / "base.yaml", {path: value for path, value in changed.items() if path != "seed"})
    page.write_text(f"base: base.yaml\non_collapse: {changed['detect.on_collapse']}\nseeds: [{changed['seed']}]\n")
    sweep = load_sweep(page)
    home = tmp_path / "home"
    drive(sweep, home)
    expected = build_flat(changed)
    assert sweep.trials[0].cfg.flat() == expected
    stored = json.loads((home / "trials" / sweep.trials[0].trial_id / "config.json").read_text())
    assert build(stored["config"], "config.json").flat() == expected
    for table in (from_home(home, sweep.name), from_mlflow(default_uri(home), sweep.name)):
        assert [run.params for run in table.runs] == [expected]


def companions(path: str) -> dict[str, Any]:
    """What must move along for a knob to be valid alone."""
    return {"eval.every": {"train.iterations": 8}, "train.iterations": {"eval.every": 1}}.get(path, {})


def build_flat(flat: dict[str, Any]) -> dict[str, Any]:
    return RunConfig().with_overrides({"env.name": flat["env.name"], **flat}).flat()
