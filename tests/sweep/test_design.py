"""Designs, conditions, constraints, inherited and included pages: which arms a page asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_lab.errors import ConfigError
from ragen_lab.sweep.spec import Sweep, load_page, load_sweep
from tests.sweep.test_spec import Write, faults_of, has


def names_of(sweep: Sweep) -> list[str]:
    return [arm.name for arm in sweep.arms]


def test_one_at_a_time(write: Write) -> None:
    """The first value of every axis is the base arm; 1 + 2 + 1 arms instead of 3 x 2."""
    page = """
base: base.yaml
design: one_at_a_time
axes:
  optim.lr: [1e-3, 1e-4, 1e-2]
  filter.keep_ratio: [0.5, 1.0]
"""
    sweep = load_sweep(write(page))
    assert names_of(sweep) == ["base", "lr=0.0001", "lr=0.01", "keep_ratio=1.0"]
    settings = [(sweep.cfg_of(name).optim.lr, sweep.cfg_of(name).filter.keep_ratio) for name in names_of(sweep)]
    assert settings == [(1e-3, 0.5), (1e-4, 0.5), (1e-2, 0.5), (1e-3, 1.0)]
    assert len(load_sweep(write(page), {"design": "grid"}).arms) == 6


def test_a_list_of_settings(write: Write) -> None:
    page = """
base: base.yaml
design: list
settings:
  - {}
  - {filter.keep_ratio: 1, optim.lr: 1e-3}
  - {filter: {kind: random}}
arms: {named: {optim.lr: 0.5}}
"""
    sweep = load_sweep(write(page))
    assert names_of(sweep) == ["base", "keep_ratio=1.0, lr=0.001", "kind=random", "named"]
    assert [arm.grid for arm in sweep.arms] == [True, True, True, False]
    assert sweep.axes == {"filter.keep_ratio": (1.0,), "optim.lr": (1e-3,), "filter.kind": ("random",)}
    faults = faults_of(write("base: base.yaml\ndesign: list\naxes: {optim.lr: [1.0]}\n"))
    assert has(faults, "axes:", "design list takes its arms from settings")
    assert has(faults, "settings: missing")
    faults = faults_of(write("base: base.yaml\nsettings: [{optim.lr: 1.0}, {optim.lrr: 1}]\n"))
    assert has(faults, "settings:", "say design: list")
    assert has(faults, "settings.1.optim.lrr", "Did you mean")
    same = "base: base.yaml\ndesign: list\nsettings: [{optim.lr: 1}, {optim.lr: 1.0}]\n"
    assert has(faults_of(write(same)), "are the same run")
    assert has(faults_of(write(), {"design": "random"}), "design: got 'random'", "allowed: grid, one_at_a_time, list")


def test_zipped_axes(write: Write) -> None:
    page = """
base: base.yaml
axes:
  rollout.prompts: [8, 16, 32]
  optim.lr: [1e-3, 1e-4]
  rollout.responses: [16, 8, 4]
zip: [[rollout.prompts, rollout.responses]]
"""
    sweep = load_sweep(write(page))
    assert names_of(sweep)[:3] == [
        "prompts=8, responses=16, lr=0.001", "prompts=8, responses=16, lr=0.0001", "prompts=16, responses=8, lr=0.001",
    ]  # fmt: skip
    assert len(sweep.arms) == 6
    assert sweep.groups == (("rollout.prompts", "rollout.responses"), ("optim.lr",))
    one = load_sweep(write(page), {"design": "one_at_a_time"})
    assert names_of(one) == ["base", "prompts=16, responses=8", "prompts=32, responses=4", "lr=0.0001"]
    short = faults_of(write(page), {"axes.rollout.responses": [16, 8]})
    assert has(short, "zip.0", "as many values each", "rollout.prompts: 3, rollout.responses: 2")
    assert has(faults_of(write(page), {"zip": [["rollout.prompts", "optim.lrr"]]}), "zip.0", "optim.lrr is no axis")
    twice = [["rollout.prompts", "rollout.responses"], ["rollout.responses", "optim.lr"]]
    assert has(faults_of(write(page), {"zip": twice}), "zip.1", "rollout.responses is in two places")
    assert has(faults_of(write(page), {"zip": [["optim.lr"]]}), "zip.0", "at least two")
    staying = page.replace("[16, 8, 4]", "[16, 16, 4]")
    assert len(load_sweep(write(staying)).arms) == 6


def test_conditional_axes(write: Write) -> None:
    """keep_ratio says nothing to top_p: 2 kinds x 2 ratios and one arm of top_p."""
    page = """
base: base.yaml
axes:
  filter.kind: [std, random, top_p]
  filter.keep_ratio: [0.5, 1.0]
when:
  filter.keep_ratio: {filter.kind: [std, random]}
"""
    sweep = load_sweep(write(page))
    assert names_of(sweep) == [
        "kind=std, keep_ratio=0.5", "kind=std, keep_ratio=1.0", "kind=random, keep_ratio=0.5",
        "kind=random, keep_ratio=1.0", "kind=top_p",
    ]  # fmt: skip
    assert sweep.cfg_of("kind=top_p").filter.keep_ratio == 0.25  # the base's
    assert sweep.left_out == (
        "when: 1 of 6 combinations differ from another one only in an axis that does not apply to them; each is one "
        "arm with it.",
    )
    nested = {"when.filter.keep_ratio": {"filter": {"kind": "std"}}}
    assert len(load_sweep(write(page), nested).arms) == 4


def test_conditions_read_the_base_and_each_other(write: Write) -> None:
    page = """
base: base.yaml
axes:
  algo.kl.coef: [0.1, 0.2]
  algo.kl.place: [loss, reward]
  algo.name: [ppo, grpo]
when:
  algo.kl.coef: {algo.kl.place: loss}
  algo.kl.place: {algo.name: ppo, filter.kind: std}
"""
    # grpo: the place does not apply, so it is the base's 'off', and then the coefficient does not apply either
    assert names_of(load_sweep(write(page))) == [
        "coef=0.1, place=loss, name=ppo", "name=grpo", "place=reward, name=ppo", "coef=0.2, place=loss, name=ppo",
    ]  # fmt: skip
    assert names_of(load_sweep(write(page), {"filter.kind": "random"})) == ["name=ppo", "name=grpo"]
    for condition, words in (
        ({"optim.lr": {"algo.name": "ppo"}}, ["when.optim.lr", "is no axis"]),
        ({"algo.name": {"algo.nam": "ppo"}}, ["when.algo.name.algo.nam", "Did you mean 'algo.name'?"]),
        ({"algo.name": {"algo.kl.place": "off"}, "algo.kl.place": {"algo.name": "ppo"}}, ["when:", "circle"]),
        ({"algo.name": {"filter.kind": []}}, ["when.algo.name.filter.kind", "empty"]),
    ):
        assert has(faults_of(write(page), {"when": condition}), *words), words
    tied = {"ties": {"rollout.prompts": "rollout.responses"}, "when": {"algo.name": {"rollout.prompts": 8}}}
    assert has(faults_of(write(page), tied), "when.algo.name.rollout.prompts", "is a tie")


def test_a_condition_on_the_environment(write: Write) -> None:
    """Knobs of one environment are an axis beside ``env.name``; the other environment has its own defaults."""
    page = """
base: base.yaml
axes:
  env.name: [frozen_lake, bandit]
  env.slip: [0.0, 0.1]
when:
  env.slip: {env.name: frozen_lake}
"""
    sweep = load_sweep(write(page))
    assert names_of(sweep) == ["name=frozen_lake, slip=0.0", "name=frozen_lake, slip=0.1", "name=bandit"]
    assert sweep.cfg_of("name=bandit").env.model_dump() == {"name": "bandit", "low": 0.15, "high": 1.0, "chance": 0.25}


def test_constraints(write: Write) -> None:
    page = """
base: base.yaml
axes:
  rollout.prompts: [8, 16]
  rollout.responses: [1, 8, 16]
constraints:
  - rollout.prompts * rollout.responses == 128
  - {require: "rollout.prompts > 1 and filter.kind in ['std', 'random']", otherwise: fail}
"""
    sweep = load_sweep(write(page))  # responses 1 breaks a rule across knobs as well, but is not asked for
    assert names_of(sweep) == ["prompts=8, responses=16", "prompts=16, responses=8"]
    (told,) = sweep.left_out
    assert told.startswith(
        "constraints: rollout.prompts * rollout.responses == 128 leaves out 4 of 6 arms: prompts=8, "
    )
    faults = faults_of(write(page), {"filter.kind": "top_p"})
    assert has(faults, "filter.kind in ['std', 'random'] does not hold")
    named = {"arms": {"odd": {"rollout.responses": 4}}}
    assert has(faults_of(write(page), named), "arm 'odd'", "A named arm is not dropped")
    assert has(faults_of(write(page), {"constraints": ["optim.lr > 1"]}), "no arm is left")
    for text, words in (
        ("rollout.prompts * 8", ["constraints.0", "is not a comparison"]),
        ("rollout.promts == 8", ["constraints.0", "rollout.promts", "Did you mean 'rollout.prompts'?"]),
        ("algo.name > 3", ["constraints", "algo.name is 'ppo', which has no order"]),
        (7, ["constraints.0: got 7", "give a list of comparisons"]),
        ({"require": "seed == 1", "otherwise": "warn"}, ["constraints.0", "otherwise: drop or fail"]),
    ):
        assert has(faults_of(write(page), {"constraints": [text]}), *words), text
    assert len(load_sweep(write(page), {"constraints": [], "rollout.temperature": 1, "filter.keep_ratio": 1}).arms) == 6


def test_a_constraint_sees_ties(write: Write) -> None:
    page = """
base: base.yaml
axes: {rollout.responses: [8, 16]}
ties: {rollout.prompts: 128 // rollout.responses}
constraints: [rollout.prompts < 10]
"""
    assert names_of(load_sweep(write(page))) == ["responses=16"]


def test_numbers_have_one_spelling(write: Write) -> None:
    """1 and 1.0, 1e-4 and 0.0001 are one setting with one name."""
    first = load_sweep(write("base: base.yaml\naxes: {filter.keep_ratio: [1, 0.5], optim.lr: [1e-4]}\n"))
    second = load_sweep(write("base: base.yaml\naxes: {filter.keep_ratio: [1.0, 5e-1], optim.lr: [0.0001]}\n"))
    assert names_of(first) == names_of(second) == ["keep_ratio=1.0, lr=0.0001", "keep_ratio=0.5, lr=0.0001"]
    assert [trial.trial_id for trial in first.trials] == [trial.trial_id for trial in second.trials]


# --- inheritance and inclusion ---


def test_an_experiment_page_with_a_base(write: Write, tmp_path: Path) -> None:
    file = write("base: child.yaml\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "child.yaml").write_text("base: sub/middle.yaml\noptim: {lr: 0.5}\n")
    (tmp_path / "sub" / "middle.yaml").write_text("base: ../base.yaml\noptim: {lr: 0.25, minibatch: 8}\n")
    cfg = load_sweep(file).trials[0].cfg
    assert (cfg.optim.lr, cfg.optim.minibatch, cfg.train.iterations) == (0.5, 8, 8)
    assert load_page(tmp_path / "child.yaml").trials[0].cfg.optim.minibatch == 8  # it is no sweep page
    (tmp_path / "child.yaml").write_text("base: base.yaml\nenv: {name: bandit}\n")
    assert load_sweep(file).trials[0].cfg.env.name == "bandit"  # without the slip of the base's environment
    (tmp_path / "child.yaml").write_text("base: base.yaml\nenv: {size: 5}\n")
    assert load_sweep(file).trials[0].cfg.env.model_dump()["slip"] == 0.0


def test_faults_of_inherited_pages(write: Write, tmp_path: Path) -> None:
    file = write("base: a.yaml\nseeds: 0\n")
    (tmp_path / "a.yaml").write_text("base: b.yaml\noptim: {lr: 0.5}\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\noptim: {lr: 0.25}\n")
    faults = faults_of(file)
    assert has(faults, "base: a.yaml -> b.yaml -> a.yaml go round in a circle")
    assert has(faults, "seeds: got 0")
    (tmp_path / "b.yaml").unlink()
    assert has(faults_of(file), "base:", "b.yaml", "no such file")
    (tmp_path / "a.yaml").write_text("base: 3\noptim: {lr: fast}\n")
    faults = faults_of(file)
    assert has(faults, "base: got 3")
    assert has(faults, "optim.lr: got 'fast'")
    with pytest.raises(ConfigError, match=r"optim\.lr: got 'fast'"):
        load_page(tmp_path / "a.yaml")


def test_an_included_page(write: Write, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "first.yaml").write_text(
        "base: ../base.yaml\nseeds: 3\nfindings: [4]\naxes: {filter.keep_ratio: [1.0, 0.5]}\n"
        "arms: {drop: {filter.kind: random, filter.keep_ratio: 0.5}}\naccept: {seeds: a trial}\n"
    )
    page = "include: sub/first.yaml\naxes: {optim.lr: [1e-3, 1e-4]}\narms: {fast: {optim.lr: 1e-2}}\nseeds: 2\n"
    sweep = load_sweep(write(page))
    assert names_of(sweep)[:2] == ["keep_ratio=1.0, lr=0.001", "keep_ratio=1.0, lr=0.0001"]
    assert (names_of(sweep)[4:], sweep.seeds, sweep.findings) == (["drop", "fast"], (0, 1), (4,))
    assert (sweep.name, sweep.accept) == ("tested", {})
    assert len(load_sweep(write("base: base.yaml\n"), {"include": "sub/first.yaml"}).arms) == 3
    clash = page.replace("arms: {fast", "arms: {drop").replace("axes: {optim.lr", "axes: {filter.keep_ratio")
    faults = faults_of(write(clash))
    assert has(faults, "arms.drop: is on sub/first.yaml and on this page; rename or remove one")
    assert has(faults, "axes.filter.keep_ratio: is on sub/first.yaml and on this page")


def test_faults_of_included_pages(write: Write, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("include: two.yaml\nbase: base.yaml\narms: {x: {optim.lr: 0.5}}\nseeds: 3\n")
    (tmp_path / "two.yaml").write_text("include: [one.yaml]\nbase: base.yaml\n")
    assert has(
        faults_of(write("include: one.yaml\n")), "include: one.yaml -> two.yaml -> one.yaml go round in a circle"
    )
    (tmp_path / "two.yaml").write_text("base: base.yaml\narms: {x: {optim.lr: 0.25}}\nseeds: 5\n")
    (tmp_path / "one.yaml").write_text("base: base.yaml\narms: {x: {optim.lr: 0.5}}\nseeds: 3\n")
    faults = faults_of(write("include: [one.yaml, two.yaml, base.yaml, gone.yaml]\n"))
    assert has(faults, "arms.x: is on one.yaml and on two.yaml")
    assert has(faults, "seeds: one.yaml and two.yaml differ; say on this page which it is")
    assert has(faults, "include:", "base.yaml is an experiment page")
    assert has(faults, "include:", "gone.yaml: no such file")
    assert has(faults_of(write("include: 3\nbase: base.yaml\n")), "include: got 3", "path of a sweep page")


def test_accepted_rules_have_names_and_reasons(write: Write) -> None:
    faults = faults_of(write(), {"accept": {"seed": "few", "inert": " "}})
    assert has(faults, "accept.seed: no such rule. Did you mean 'seeds'? There are: inert, ")
    assert has(faults, "accept.inert: says no reason")
