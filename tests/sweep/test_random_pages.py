"""Random sweep pages against a brute-force reading of them: the trials, their ids, and that no two runs share one."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragen_lab.config import RunConfig, load
from ragen_lab.sections import SCHEMA_VERSION
from ragen_lab.sweep.spec import load_sweep
from tests.sweep.conftest import BASE

# Values that are valid in every combination, so that the product is all there is.
POOL: dict[str, st.SearchStrategy[Any]] = {
    "optim.lr": st.sampled_from([1e-4, 3e-4, 1e-3, 0.5, 1.0, 2.0]),
    "rollout.temperature": st.sampled_from([0.5, 1.0, 2.0, 1e-1]),
    "filter.keep_ratio": st.sampled_from([1.0, 0.5, 0.25]),
    "algo.clip_high": st.sampled_from([0.0, 0.2, 0.28, 1.0]),
    "rollout.responses": st.integers(2, 6),
    "optim.epochs": st.integers(1, 3),
    "filter.kind": st.sampled_from(["std", "random", "smallest", "zero_only"]),
    "algo.name": st.sampled_from(["ppo", "grpo", "rloo"]),
    "algo.std_normalize": st.booleans(),
    "optim.critic_lr": st.sampled_from([1e-4, 1e-3, 1.0]),
}
WITH_RATIO = ("std", "random", "smallest")


@st.composite
def pages(draw: st.DrawFn) -> dict[str, Any]:
    """The tree of a sweep page: up to four axes, some zipped or conditional, a constraint, named arms, seeds."""
    paths = draw(st.lists(st.sampled_from(list(POOL)), unique=True, max_size=4))
    axes = {path: draw(st.lists(POOL[path], min_size=1, max_size=3, unique=True)) for path in paths}
    page: dict[str, Any] = {"base": "base.yaml", "axes": axes}
    page["design"] = draw(st.sampled_from(["grid", "one_at_a_time"]))
    if len(paths) >= 2 and draw(st.booleans()):
        first, second = paths[0], paths[-1]
        length = min(len(axes[first]), len(axes[second]))
        axes[first], axes[second] = axes[first][:length], axes[second][:length]
        page["zip"] = [[first, second]]
    if "filter.keep_ratio" in axes and draw(st.booleans()):
        page["when"] = {"filter.keep_ratio": {"filter.kind": list(WITH_RATIO)}}
    if draw(st.booleans()):
        page["constraints"] = [f"rollout.responses * optim.epochs <= {draw(st.integers(16, 64))}"]
    page["arms"] = {"named": {"optim.beta1": 0.5}} if draw(st.booleans()) else {}
    page["seeds"] = draw(st.one_of(st.integers(1, 3), st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)))
    return page


def brute_force(page: dict[str, Any], base: RunConfig) -> set[str]:
    """The ids that a page asks for, read off its words by loops that share nothing with the resolver."""
    axes = page["axes"]
    together = page.get("zip", [[]])[0]
    indices = []
    for path, values in axes.items():
        if path not in together[1:]:
            indices.append([(path, place) for place in range(len(values))])
    if page["design"] == "grid":
        chosen = list(itertools.product(*indices))
    else:
        start = [options[0] for options in indices]
        chosen = [tuple(start)]
        for place, options in enumerate(indices):
            chosen += [(*start[:place], option, *start[place + 1 :]) for option in options[1:]]
    settings_of = []
    for picks in chosen:
        changes = {}
        for path, place in picks:
            for each in together if path in together else [path]:
                changes[each] = axes[each][place]
        if "when" in page and changes.get("filter.kind", base.filter.kind) not in WITH_RATIO:
            del changes["filter.keep_ratio"]
        settings_of.append(changes)
    if not axes and page["arms"]:
        settings_of = []
    settings_of += list(page["arms"].values())
    seeds = range(page["seeds"]) if isinstance(page["seeds"], int) else page["seeds"]
    found = set()
    for changes in settings_of:
        cfg = base.with_overrides(changes)
        most = int(page["constraints"][0].split()[-1]) if "constraints" in page else math.inf
        if cfg.rollout.responses * cfg.optim.epochs <= most:
            found |= {cfg.model_copy(update={"seed": seed}).trial_id() for seed in seeds}
    return found


def spelled(value: Any, rng: random.Random) -> str:
    """YAML of a value, numbers in one of their spellings."""
    if isinstance(value, dict):
        items = list(value.items())
        return "{" + ", ".join(f"{json.dumps(key)}: {spelled(each, rng)}" for key, each in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(spelled(each, rng) for each in value) + "]"
    if isinstance(value, float):
        forms = [repr(value), f"{value:.6e}", f"{value:.3E}", f"{value:.8f}"]
        return rng.choice([*forms, str(int(value))] if value.is_integer() else forms)
    return json.dumps(value)


def shuffled(page: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The same page with its keys in another order, axes among them (not where the order is part of the design)."""
    page = {key: dict(value) if isinstance(value, dict) else value for key, value in page.items()}
    for key in ("axes", "arms", "when"):
        if isinstance(page.get(key), dict):
            entries = list(page[key].items())
            rng.shuffle(entries)
            page[key] = dict(entries)
    keys = list(page)
    rng.shuffle(keys)
    return {key: page[key] for key in keys}


SEEN: dict[str, str] = {}  # trial id -> what it stands for, over all examples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pages")
    (made / "base.yaml").write_text(BASE)
    return made


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(page=pages(), order=st.integers(0, 2**16))
def test_planned_trials_are_the_brute_force_product(folder: Path, page: dict[str, Any], order: int) -> None:
    base = load(folder / "base.yaml")
    expected = brute_force(page, base)
    rng = random.Random(order)
    texts = ["\n".join(f"{key}: {spelled(value, rng)}" for key, value in shuffled(page, rng).items()) for _ in range(2)]
    found = []
    for number, text in enumerate(texts):
        file = folder / f"page_{number}.yaml"
        file.write_text(text + "\n")
        trials = load_sweep(file).trials if expected else ()
        found.append({trial.trial_id for trial in trials})
        assert len(trials) == len(found[-1])  # each once
        for trial in trials:
            assert trial.cfg.seed == trial.seed
            meaning = json.dumps([trial.cfg.identity(), trial.cfg.seed, SCHEMA_VERSION], sort_keys=True)
            assert SEEN.setdefault(trial.trial_id, meaning) == meaning
    assert found[0] == found[1] == expected


NUMBERS = st.floats(1e-12, 1e6, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(first=NUMBERS, second=NUMBERS)
def test_two_numbers_share_an_id_only_where_they_are_equal(first: float, second: float) -> None:
    ids = [RunConfig().with_overrides({"optim.lr": value}).trial_id() for value in (first, second)]
    assert (ids[0] == ids[1]) == (first == second)


@pytest.mark.parametrize(
    ("path", "forms"),
    [("optim.lr", [1e-4, 0.0001, 10e-5]), ("rollout.temperature", [2, 2.0]), ("optim.weight_decay", [0, 0.0, -0.0])],
)
def test_a_number_has_one_id(path: str, forms: list[float]) -> None:
    assert len({RunConfig().with_overrides({path: form}).trial_id() for form in forms}) == 1
