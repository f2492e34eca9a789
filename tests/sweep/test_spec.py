"""The sweep page: what it means, and that every fault is told at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen_lab.errors import ConfigError
from ragen_lab.sweep.spec import env_section, load_page, load_sweep, one_run, parse_sets
from tests.sweep.conftest import BASE

Write = Callable[..., Path]


def faults_of(file: Path, overrides: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load_sweep(file, overrides)
    assert raised.value.where == str(file)
    return raised.value.faults


def has(faults: list[str], *words: str) -> bool:
    return any(all(word in fault for word in words) for fault in faults)


FULL = """
name: full
base: base.yaml
findings: [4]
axes:
  filter.keep_ratio: [1.0, 0.5]
  rollout.responses: [8, 16]
arms:
  random_drop: {filter.kind: random, filter.keep_ratio: 0.5}
  nested: {filter: {kind: random}, rollout: {responses: 32}}
ties:
  rollout.prompts: 128 // rollout.responses
seeds: [3, 5]
search: {kind: grid}
scheduler: {kind: fifo}
on_collapse: continue
resources: {cpus: 2, gpus: 0}
budget: {minutes: 30}
"""


def test_a_full_page(write: Write) -> None:
    sweep = load_sweep(write(FULL))
    assert [arm.name for arm in sweep.arms] == [
        "keep_ratio=1.0, responses=8",
        "keep_ratio=1.0, responses=16",
        "keep_ratio=0.5, responses=8",
        "keep_ratio=0.5, responses=16",
        "random_drop",
        "nested",
    ]
    assert (sweep.name, sweep.seeds, sweep.findings, sweep.cpus, sweep.minutes) == ("full", (3, 5), (4,), 2, 30)
    # All arms' first seed first; the seed knob is the replicate, and every arm has the same ones.
    assert [trial.seed for trial in sweep.trials] == [3] * 6 + [5] * 6
    assert all(trial.cfg.seed == trial.seed and trial.trial_id == trial.cfg.trial_id() for trial in sweep.trials)
    first = sweep.trials[0].cfg
    assert (first.rollout.responses, first.rollout.prompts, first.detect.on_collapse) == (8, 16, "continue")
    nested = sweep.cfg_of("nested")
    assert (nested.filter.kind, nested.rollout.responses, nested.rollout.prompts) == ("random", 32, 4)
    assert sweep.cfg_of("random_drop").rollout.prompts == 128 // 16  # named arms start from the base, not the grid


def test_labels_name_the_whole_path_where_the_last_part_is_ambiguous(write: Write) -> None:
    page = "base: base.yaml\naxes:\n  algo.kl.estimator: [k1]\n  algo.name: [ppo]\n  filter.kind: [std]\n"
    assert load_sweep(write(page)).arms[0].name == "estimator=k1, name=ppo, kind=std"
    page = "base: base.yaml\naxes:\n  optim.lr: [1e-3]\n  policy.warm_start.lr: [1e-3, 2e-3]\n"
    names = [arm.name for arm in load_sweep(write(page)).arms]
    assert names == ["optim.lr=0.001, policy.warm_start.lr=0.001", "optim.lr=0.001, policy.warm_start.lr=0.002"]


def test_no_axes_means_the_base_or_the_named_arms(write: Write) -> None:
    assert [arm.name for arm in load_sweep(write("base: base.yaml\n")).arms] == ["base"]
    page = "base: base.yaml\narms:\n  a: {}\n  b: {optim.lr: 0.5}\n"
    assert [arm.name for arm in load_sweep(write(page)).arms] == ["a", "b"]


def test_all_faults_at_once(write: Write) -> None:
    """Unknown key, wrong type, bounds, empty axis, unknown knob, bad tie, bad value in one arm: one error."""
    page = """
name: "two words"
base: base.yaml
finding: [4]
findings: [9]
axes:
  filter.keep_ratio: [2.0, 0.5]
  filter.kep_ratio: [1]
  optim.lr: []
arms:
  keep_ratio=0.5: {filter.kind: randm}
ties:
  rollout.prompts: 128 // rollout.respnses
  rollout.responses: __import__('os')
seeds: [1, 1]
search: {kind: optun}
scheduler: {kind: hyper, metric: eval/sucess}
on_collapse: rollback
budget: {trails: 3}
resources: {cpus: none}
"""
    faults = faults_of(write(page), {"seed": 3, "optm.lr": 1, "train.iterations": 0})
    assert has(faults, "name:", "two words")
    assert has(faults, "finding:", "unknown key", "Did you mean 'findings'?")
    assert has(faults, "findings.0", "got 9")
    assert has(faults, "arm 'keep_ratio=2.0'", "filter.keep_ratio", "less than or equal to 1")
    assert has(faults, "axes.filter.kep_ratio", "Did you mean 'filter.keep_ratio'?")
    assert has(faults, "axes.optim.lr", "empty")
    assert has(faults, "arms.keep_ratio=0.5", "has this name already")
    assert has(faults, "arm 'keep_ratio=0.5'", "filter.kind", "'randm'")
    assert has(faults, "ties.rollout.prompts", "rollout.respnses", "Did you mean 'rollout.responses'?")
    assert has(faults, "ties.rollout.responses", "not allowed")
    assert has(faults, "seeds: 1 is there twice")
    assert has(faults, "search.kind", "'optun'", "grid, random, optuna")
    assert has(faults, "scheduler.kind", "'hyper'", "fifo, asha, median")
    assert has(faults, "scheduler.metric", "Did you mean 'eval/success'?")
    assert has(faults, "on_collapse", "'rollback' is not built in this version; allowed: stop, continue")
    assert has(faults, "budget.trails", "Did you mean 'trials'?")
    assert has(faults, "resources.cpus", "'none'")
    assert has(faults, "--set seed", "seeds=")
    assert has(faults, "--set optm.lr", "Did you mean 'optim.lr'?")
    assert has(faults, "train.iterations", "got 0", "in every arm")
    assert len([fault for fault in faults if "train.iterations" in fault]) == 1
    assert len(faults) == len(set(faults))


def test_a_fault_of_some_arms_names_them_once(write: Write) -> None:
    page = "base: base.yaml\naxes:\n  filter.keep_ratio: [1.0, 0.5]\n  rollout.responses: [1, 2]\n"
    base = BASE + "algo: {name: ppo}\n"
    faults = faults_of(write(page, base))
    assert len(faults) == 1
    assert has(faults, "arm 'keep_ratio=0.5, responses=1'", "rollout.responses: 1 with filter.kind std")


def test_the_base_page(write: Write) -> None:
    assert has(faults_of(write("seeds: 2\n")), "base: missing")
    file = write("base: gone.yaml\naxes: {filter.keep_rato: [1.0]}\n")
    faults = faults_of(file)
    assert has(faults, "base:", "gone.yaml", "no such file")
    assert has(faults, "axes.filter.keep_rato")  # told although the base is missing
    assert has(faults_of(write("base: tested.yaml\n")), "itself a sweep page")
    assert has(faults_of(write("base: base.yaml\n", "optim: {lr: fast}\n")), "optim.lr", "'fast'", "base.yaml")


def test_arms_that_are_the_same_run(write: Write) -> None:
    page = "base: base.yaml\narms:\n  a: {}\n  b: {}\n  c: {train.iterations: 20}\n"
    faults = faults_of(write(page))
    assert has(faults, "'a' and 'b' are the same run", "equal in every knob)")
    assert has(faults, "'a' and 'c' are the same run", "that can change their numbers")
    assert has(
        faults_of(write("base: base.yaml\naxes: {optim.lr: [0.1, 0.1]}\n")), "axes.optim.lr", "0.1 is there twice"
    )


def test_an_arm_named_twice(write: Write) -> None:
    """The other faults of the page are told in the same message."""
    faults = faults_of(write("base: base.yaml\nseeds: 0\narms:\n  drop: {optim.lr: fast}\n  drop: {}\n"))
    assert faults[0] == (
        "line 5: 'drop' is there twice. Arms, axes and keys need names of their own: rename or remove one."
    )
    assert has(faults, "seeds: got 0")
    assert has(faults, "optim.lr: got 'fast'")


@pytest.mark.parametrize("seeds", ["0", "[]", "[-1]", "[1.5]", "many", "true"])
def test_bad_seeds(write: Write, seeds: str) -> None:
    faults = faults_of(write(f"base: base.yaml\nseeds: {seeds}\n"))
    assert has(faults, "seeds:")
    assert len(faults) == 1


def test_ties(write: Write) -> None:
    page = "base: base.yaml\nties:\n  rollout.prompts: 2 * optim.minibatch\n  optim.minibatch: rollout.responses // 2\n"
    cfg = load_sweep(write(page)).trials[0].cfg  # a tie may read another one, in any order
    assert (cfg.optim.minibatch, cfg.rollout.prompts) == (8, 16)
    circle = "base: base.yaml\nties:\n  rollout.prompts: optim.minibatch\n  optim.minibatch: rollout.prompts\n"
    assert has(faults_of(write(circle)), "circle")
    both = "base: base.yaml\naxes: {rollout.prompts: [1, 2]}\nties: {rollout.prompts: 3}\n"
    assert has(faults_of(write(both)), "ties.rollout.prompts", "also set by axes.rollout.prompts")
    half = "base: base.yaml\nties: {rollout.prompts: rollout.responses / 3}\n"
    assert has(faults_of(write(half)), "rollout.prompts", "5.33")


def test_set_reaches_page_keys_and_knobs(write: Write) -> None:
    file = write(FULL)
    overrides = parse_sets(["seeds=2", "on_collapse=stop", "train.iterations=4", "budget.minutes=1", "name=other"])
    sweep = load_sweep(file, overrides)
    assert (sweep.seeds, sweep.minutes, sweep.name) == ((0, 1), 1, "other")
    assert all(t.cfg.detect.on_collapse == "stop" and t.cfg.train.iterations == 4 for t in sweep.trials)
    fewer = load_sweep(file, {"axes.filter.keep_ratio": [0.5], "arms.random_drop.filter.keep_ratio": 0.25})
    assert len(fewer.arms) == 4
    assert fewer.cfg_of("random_drop").filter.keep_ratio == 0.25


def test_set_never_silently_loses(write: Write) -> None:
    file = write(FULL)
    assert has(faults_of(file, {"filter.keep_ratio": 0.3}), "is an axis of this page", "axes.filter.keep_ratio=")
    assert has(faults_of(file, {"rollout.prompts": 3}), "ties.rollout.prompts", "--set rollout.prompts")
    assert has(faults_of(file, {"detect.on_collapse": "stop"}), "use --set on_collapse=")
    notes = load_sweep(file, {"filter.kind": "random", "axes.filter.keep_ratio": [0.75], "arms.nested": {}}).notes
    assert notes == ("--set filter.kind does not reach random_drop, which set it themselves.",)


def test_parse_sets() -> None:
    """YAML 1.2: 1e-4 is a number, `on` and `no` are words."""
    assert parse_sets(["a.b=1e-4", "c=on", "d=[1, 2]", "e=null", "f=no", "g=x=y"]) == {
        "a.b": 1e-4, "c": "on", "d": [1, 2], "e": None, "f": "no", "g": "x=y",
    }  # fmt: skip
    with pytest.raises(ConfigError) as raised:
        parse_sets(["lonely", "=3", "a=1", "a=2", "b=[1"])
    assert len(raised.value.faults) == 4


def test_gpus_that_are_not_given(write: Write) -> None:
    faults = faults_of(write("base: base.yaml\n"), {"policy.device": "cuda"})
    assert has(faults, "resources.gpus: 0", "policy.device")


def test_a_single_run(write: Write, tmp_path: Path) -> None:
    file = write()
    sweep = one_run(tmp_path / "base.yaml", {"seed": 7})
    assert (sweep.name, [t.seed for t in sweep.trials], sweep.arms[0].name) == ("base", [7], "run")
    assert load_page(file).name == "tested"
    assert load_page(tmp_path / "base.yaml").name == "base"
    with pytest.raises(ConfigError, match="ragen-lab sweep"):
        one_run(file)


def test_env_section() -> None:
    assert env_section("frozen_lake", {"env.slip": 0.0}).model_dump()["slip"] == 0.0
    with pytest.raises(ConfigError, match="unknown environment 'frozen_lak'"):
        env_section("frozen_lak", {})
    with pytest.raises(ConfigError, match="only knobs of the environment"):
        env_section("bandit", {"optim.lr": 1.0})


def test_the_seed_of_the_base_page_is_not_used_and_told(write: Write) -> None:
    sweep = load_sweep(write(base=BASE + "seed: 7\n"))
    assert sweep.notes == ("seed: 7 of the base page is not used: the sweep's seeds are.",)
    assert sweep.seeds == (0, 1)


def test_names_have_a_length(write: Write) -> None:
    assert load_sweep(write(), {"name": "n" * 100}).name == "n" * 100
    assert has(faults_of(write(), {"name": "n" * 101}), "name:")
    assert has(faults_of(write(), {"arms": {"a" * 101: {"optim.lr": 0.5}}}), "1 to 100 characters")
    assert has(faults_of(write(), {"arms": {" ": {"optim.lr": 0.5}}}), "1 to 100 characters")


def test_findings_are_a_set(write: Write) -> None:
    assert load_sweep(write(), {"findings": [4, 1, 4]}).findings == (1, 4)


@pytest.mark.parametrize(("stem", "name"), [("my page (2)", "my_page__2_"), ("-._", "run"), ("été", "t_")])
def test_an_odd_file_name_makes_a_good_sweep_name(write: Write, tmp_path: Path, stem: str, name: str) -> None:
    file = tmp_path / f"{stem}.yaml"
    file.write_text(BASE)
    assert one_run(file).name == name


def test_what_makes_another_run_names_its_arm(write: Write, tmp_path: Path) -> None:
    write()
    page = tmp_path / "base.yaml"
    assert one_run(page, {"seed": 3, "train.iterations": 99, "track.mlflow": False}).arms[0].name == "run"
    assert one_run(page, {"optim.lr": 0.5, "filter.keep_ratio": 1.0}).arms[0].name == "lr=0.5, keep_ratio=1.0"
    assert one_run(page, {"name": "other"}).name == "other"
    with pytest.raises(ConfigError, match="name: got 'a b'"):
        one_run(page, {"name": "a b"})


def test_too_many_seeds_are_refused_at_once(write: Write) -> None:
    faults = faults_of(write(), {"seeds": 100_000})
    assert has(faults, "seeds: got 100000; at most 1000")
    assert len(load_sweep(write(), {"seeds": 1000}).trials) == 2000


def test_a_range_of_a_fractional_knob_is_no_choice_of_whole_numbers(write: Write) -> None:
    """low: 0, high: 1 of a fraction is everything between, as 0.0 and 1.0 are."""
    page = "base: base.yaml\nsearch: {kind: random, trials: 5}\naxes: {optim.weight_decay: {low: 0, high: 1}}\n"
    space = load_sweep(write(page)).space["optim.weight_decay"]
    assert not space.whole
    assert (
        space == load_sweep(write(page.replace("low: 0, high: 1", "low: 0.0, high: 1.0"))).space["optim.weight_decay"]
    )
    whole = page.replace("optim.weight_decay: {low: 0, high: 1}", "rollout.prompts: {low: 2, high: 8, step: 2}")
    assert load_sweep(write(whole)).space["rollout.prompts"].whole
    for wrong in ("{low: 2.0, high: 8}", "{low: 2, high: 8.5}", "{low: 2, high: 8, step: 0.5}"):
        with pytest.raises(ConfigError, match=r"axes\.rollout\.prompts: takes whole numbers"):
            load_sweep(write(whole.replace("{low: 2, high: 8, step: 2}", wrong)))
