"""What a faulty page is told: every fault that is there, none that only follows from another, in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_lab.errors import ConfigError
from ragen_lab.sweep.spec import load_page, load_sweep
from tests.sweep.conftest import BASE
from tests.sweep.test_spec import Write, faults_of, has

SEARCH = """
base: base.yaml
axes:
  optim.lr: {low: 1e-4, high: 1e-2, log: true}
  filter.keep_ratio: [1.0, 0.5]
seeds: 2
search: {kind: optuna, trials: 12}
"""


# --- a page that asks for too much ---


def test_a_huge_grid_is_refused_at_once(write: Write) -> None:
    """5 axes of 40 values: 40^5 = 102400000 combinations, with 3 seeds each; nothing of that is built."""
    paths = ("optim.lr", "optim.critic_lr", "rollout.temperature", "algo.clip_high", "algo.entropy_coef")
    axes = {path: [0.01 + 0.01 * level for level in range(40)] for path in paths}
    faults = faults_of(write(), {"axes": axes, "seeds": 3})
    (fault,) = faults
    assert fault.startswith("axes: 40 x 40 x 40 x 40 x 40 values with 3 seeds make 307200000 trials; at most 10000")
    assert "search: {kind: optuna, trials: 20}" in fault
    faults = faults_of(write(), {"axes": {**axes, "algo.clip_high": [-1.0, *axes["algo.clip_high"]]}})
    assert has(faults, "axes: 40 x 40 x 40 x 41 x 40 values with 2 seeds make", "at most 10000")
    assert has(faults, "algo.clip_high: got -1.0")  # the other faults are told too


def test_what_is_zipped_or_one_at_a_time_is_no_huge_grid(write: Write) -> None:
    axes = {path: [0.001 * (level + 1) for level in range(200)] for path in ("optim.lr", "optim.critic_lr")}
    assert has(faults_of(write(), {"axes": axes}), "axes: 200 x 200 values with 2 seeds make 80000 trials")
    assert len(load_sweep(write(), {"axes": axes, "zip": [list(axes)]}).arms) == 200
    assert len(load_sweep(write(), {"axes": axes, "design": "one_at_a_time"}).arms) == 399
    assert has(
        faults_of(write(), {"axes": axes, "zip": [list(axes)], "seeds": 100}),
        "axes: 200 values with 100 seeds make 20000 trials",
    )


# --- faults that only follow from another one ---


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("sampler", "foo", "search.sampler: got 'foo'; allowed: tpe, gp, nsga2"),
        ("kind", "optun", "search.kind: got 'optun'; allowed: grid, random, optuna"),
        ("trials", "many", "search.trials: got 'many'"),
        ("objectives", ["eval/sucess"], "Did you mean 'eval/success'?"),
        ("margin", -1, "search.margin: got -1"),
        ("foo", 1, "search.foo: unknown key"),
    ],
)
def test_a_fault_of_the_search_is_the_only_one(write: Write, key: str, value: object, word: str) -> None:
    (fault,) = faults_of(write(SEARCH), {f"search.{key}": value})
    assert word in fault


def test_a_search_that_is_no_section_or_lacks_a_key(write: Write) -> None:
    (fault,) = faults_of(write(SEARCH), {"search": 3})
    assert fault.startswith("search: got 3;")
    (fault,) = faults_of(write(SEARCH), {"search": {"kind": "random"}})
    assert fault.startswith("search.trials: missing; say how many settings to propose")


def test_a_bad_axis_is_the_only_fault(write: Write) -> None:
    only = SEARCH.replace("  filter.keep_ratio: [1.0, 0.5]\n", "")
    (fault,) = faults_of(write(only.replace("high: 1e-2", "high: 1e-5")))
    assert (
        fault == "axes.optim.lr: got {'low': 0.0001, 'high': 1e-05, 'log': True}; low 0.0001 must be below high 1e-05."
    )
    page = """
base: base.yaml
axes:
  optim.lr: 3
  filter.keep_ratio: [1.0, 0.5]
  filter.kind: [std, top_p]
zip: [[optim.lr, filter.keep_ratio]]
when:
  optim.lr: {filter.kind: std}
"""
    (fault,) = faults_of(write(page))
    assert fault.startswith("axes.optim.lr: got 3;")
    (fault,) = faults_of(write(page), {"axes.optim.lr": [1e-3, 1e-4], "axes.filter.kind": "std"})
    assert fault.startswith("axes.filter.kind: got 'std';")


def test_one_bad_axis_hides_no_other_fault(write: Write) -> None:
    faults = faults_of(write(), {"axes": {"filter.keep_ration": [1.0], "optim.lr": 3, "env.name": ["foo"]}})
    assert len(faults) == 3
    assert has(faults, "axes.filter.keep_ration: no such knob. Did you mean 'filter.keep_ratio'?")
    assert has(faults, "axes.optim.lr: got 3")
    assert has(faults, "env.name: unknown environment 'foo'")


def test_a_wrong_key_of_a_range_is_told_what_a_range_has(write: Write) -> None:
    faults = faults_of(write(SEARCH.replace("high:", "hgh:")))
    assert has(faults, "axes.optim.lr.hgh: unknown key. Did you mean 'high'? Allowed here: low, high, log, step.")
    assert has(faults, "axes.optim.lr.high", "Its meaning: Largest value.")
    assert len(faults) == 2


def test_a_bad_design_or_include_is_the_only_fault(write: Write, tmp_path: Path) -> None:
    page = "base: base.yaml\ndesign: lst\nsettings: [{optim.lr: 0.5}, {optim.lr: 0.25}]\n"
    (fault,) = faults_of(write(page))
    assert fault.startswith("design: got 'lst'")
    (fault,) = faults_of(write("include: gone.yaml\nwhen: {optim.lr: {filter.kind: std}}\n"))
    assert "gone.yaml: no such file" in fault
    (fault,) = faults_of(write(), {"resources.gpus": "one", "budget.gpu_hours": 3})
    assert fault.startswith("resources.gpus: got 'one'")


def test_every_bad_tie_and_constraint_is_told(write: Write) -> None:
    page = """
base: base.yaml
ties:
  rollout.prompts: 9**9**9
  optim.minibatch: 5 / 0
  rollout.responses: 2 * rollout.prompts
constraints:
  - algo.name > 3
  - filter.kind < 'std'
  - {require: optim.lr > 1, otherwise: fail}
  - 3
  - rollout.responss == 1
"""
    faults = faults_of(write(page))
    assert has(faults, "ties.rollout.prompts: '9 ** 9 ** 9' is too large")
    assert has(faults, "ties.optim.minibatch: '5 / 0' divides by zero")
    assert has(faults, "constraints.3: got 3")
    assert has(faults, "constraints.4: reads 'rollout.responss'")
    assert has(faults, "constraints: algo.name > 3: algo.name is 'ppo', which has no order")
    assert has(faults, "constraints: filter.kind < 'std': filter.kind is 'std', which has no order")
    assert has(faults, "constraints: optim.lr > 1 does not hold")
    assert len(faults) == 7  # the third tie, and what follows from it, cannot be judged


def test_what_reads_an_axis_that_cannot_be_read_is_not_blamed(write: Write) -> None:
    page = """
base: base.yaml
axes: {optim.lr: 3}
ties: {rollout.prompts: 24 * optim.lr}
constraints: [{require: optim.lr > 1, otherwise: fail}, {require: rollout.prompts > 99, otherwise: fail}]
"""
    (fault,) = faults_of(write(page))
    assert fault.startswith("axes.optim.lr: got 3;")
    (fault,) = faults_of(write(page), {"axes.optim.lr": [2.0, 3.0], "ties": 3})
    assert fault.startswith("ties: got 3;")


def test_a_base_that_is_at_fault_does_not_hide_a_bad_end_of_a_range(write: Write) -> None:
    faults = faults_of(
        write(SEARCH.replace("low: 1e-4, high: 1e-2, log: true", "low: -1, high: 1")), {"optim.epochs": 0}
    )
    assert has(faults, "optim.epochs: got 0")
    assert has(faults, "axes.optim.lr", "got -1")


# --- more seeds first than there are ---


def test_first_seeds_are_seeds_of_the_page(write: Write) -> None:
    (fault,) = faults_of(write(SEARCH), {"search.first_seeds": 5})
    assert fault == "search.first_seeds: got 5, but the page has 2 seeds; give at most 2, or more seeds."
    assert load_sweep(write(SEARCH), {"search.first_seeds": 2}).search.first_seeds == 2


# --- conditions that no arm can meet ---

WHEN = """
base: base.yaml
axes:
  filter.kind: [std, top_p]
  filter.keep_ratio: [1.0, 0.5]
when:
  filter.keep_ratio: {filter.kind: [std]}
"""


def test_a_condition_names_values_that_its_knob_may_have(write: Write) -> None:
    for page in (WHEN, WHEN + "search: {kind: random, trials: 3}\n"):
        (fault,) = faults_of(write(page.replace("[std]", "[std, nonsense]")))
        assert fault.startswith("when.filter.keep_ratio.filter.kind: got 'nonsense'; should be 'std', 'top_p'")


def test_a_condition_names_values_that_some_arm_has(write: Write) -> None:
    for page in (WHEN, WHEN + "search: {kind: random, trials: 3}\n"):
        (fault,) = faults_of(write(page.replace("[std]", "[min_p, random]")))
        assert fault == (
            "when.filter.keep_ratio.filter.kind: no arm has min_p, random, so that filter.keep_ratio never applies; "
            "the arms have std, top_p."
        )
    sweep = load_sweep(write(WHEN.replace("[std]", "[std, random]")))  # it says more than this page needs
    assert (len(sweep.arms), sweep.notes) == (3, ("when.filter.keep_ratio.filter.kind: no arm has random.",))
    # who narrows a page by --set has no fault of the page's
    sweep = load_sweep(write(WHEN), {"axes.filter.kind": ["top_p"]})
    assert [arm.name for arm in sweep.arms] == ["kind=top_p"]
    assert sweep.notes[0].startswith("when.filter.keep_ratio.filter.kind: no arm has std, so that")
    between = SEARCH + "when: {filter.keep_ratio: {optim.lr: 0.001}}\n"
    assert load_sweep(write(between)).notes == ()  # a range has everything between its ends


# --- where a fault is ---


def test_a_value_of_an_axis_is_not_blamed_on_the_base(write: Write) -> None:
    (fault,) = faults_of(write("base: base.yaml\naxes: {filter.kind: [2026-01-02]}\n"))
    assert fault.startswith("axes.filter.kind: got '2026-01-02'; should be 'std'")
    assert "base" not in fault
    (fault,) = faults_of(write("base: base.yaml\narms: {a: {optim.lr: -1}, b: {optim.lr: -1}}\n"))
    assert fault.startswith("arms 'a', 'b': optim.lr: got -1")
    (fault,) = faults_of(write(), {"optim.epochs": 0})
    assert fault.startswith("--set optim.epochs: got 0")
    (fault,) = faults_of(write(base=BASE + "optim: {lr: fast}\n"))
    assert fault.endswith(f"(in every arm; base page {write().parent / 'base.yaml'})")


@pytest.mark.parametrize("text", ["", "# only words\n", "{}\n", "---\n"])
def test_an_empty_page_is_one_fault_with_the_next_step(write: Write, text: str) -> None:
    file = write(text)
    for load in (load_page, load_sweep):
        with pytest.raises(ConfigError) as raised:
            load(file)
        (fault,) = raised.value.faults
        assert fault.startswith("the page is empty")
        assert "experiments/" in fault


def test_a_bad_name_is_told_the_characters(write: Write) -> None:
    (fault,) = faults_of(write(), {"name": "a b"})
    assert fault == "name: got 'a b'; letters, digits, '_', '-' and '.', a letter or digit first, 100 at most."


def test_a_fault_of_a_range_is_told_once(write: Write) -> None:
    (fault,) = faults_of(write(SEARCH.replace("low: 1e-4", "low: few")))
    assert fault == "axes.optim.lr.low: got 'few'; give a number. Its meaning: Smallest value."
    (fault,) = faults_of(write(SEARCH.replace("optim.lr:", "optim.lrr:")))
    assert fault.startswith("axes.optim.lrr: no such knob. Did you mean 'optim.lr'?")
    (fault,) = faults_of(write(SEARCH.replace("1.0, 0.5", "2.0, 0.5")))
    assert fault.startswith("axes.filter.keep_ratio: got 2.0; should be less than or equal to 1")


def test_what_is_no_section_is_told_its_keys(write: Write) -> None:
    (fault,) = faults_of(write(SEARCH), {"search": 3})
    assert fault == (
        "search: got 3; it is a section and holds keys: kind, sampler, trials, objectives, "
        "constraints, seed, startup, first_seeds, margin."
    )
    (fault,) = faults_of(write(), {"budget": 3})
    assert fault == "budget: got 3; it is a section and holds keys: minutes, trials, gpu_hours."


@pytest.mark.parametrize("key", ["seeds", "include", "findings", "zip", "constraints", "settings", "search", "accept"])
@pytest.mark.parametrize("value", ["{}", "{x: 1}", "[{x: {}}]", "null", "[[[]]]"])
def test_whatever_a_key_holds_it_is_read_or_told(write: Write, key: str, value: str) -> None:
    """To leave out what is at fault comes to an end, for a mapping in place of a number or a list too."""
    faults: list[str] = []
    try:
        load_sweep(write(f"base: base.yaml\n{key}: {value}\n"))
    except ConfigError as error:
        faults = error.faults
    assert all(fault.startswith(key) for fault in faults), faults


def test_one_value_under_two_keys(write: Write) -> None:
    """What is put in the place of one is not put in the place of the other."""
    shared = [None]
    faults = faults_of(write(), {"constraints": shared, "settings": shared})
    assert has(faults, "constraints.0: got None")
    assert has(faults, "settings.0: got None")


def test_both_ends_of_a_range_have_one_fault(write: Write) -> None:
    (fault,) = faults_of(write(SEARCH.replace("filter.keep_ratio: [1.0, 0.5]", "env.name: {low: 1, high: 2}")))
    assert fault.startswith("axes.env.name: ")
