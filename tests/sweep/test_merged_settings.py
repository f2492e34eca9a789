"""Settings that have become equal by losing an axis that does not apply to them are one arm, and no others are."""

from __future__ import annotations

import pytest

from ragen_lab.errors import ConfigError
from ragen_lab.sweep.design import Condition, applicable, merged
from ragen_lab.sweep.spec import load_sweep
from tests.sweep.test_design import names_of
from tests.sweep.test_spec import Write

LR, KIND, KEEP = "optim.lr", "filter.kind", "filter.keep_ratio"


def test_settings_that_have_become_equal_are_one() -> None:
    before = [{KIND: "top_p", KEEP: 0.5}, {KIND: "top_p", KEEP: 1.0}, {KIND: "std", KEEP: 0.5}]
    after = [{KIND: "top_p"}, {KIND: "top_p"}, {KIND: "std", KEEP: 0.5}]
    assert merged(after, before) == [{KIND: "top_p"}, {KIND: "std", KEEP: 0.5}]


def test_one_that_lost_an_axis_swallows_its_equal_that_never_had_it() -> None:
    """In either order. Two that never lost one are both left, so that the page's double is told as a fault."""
    whole, lost = {KIND: "top_p"}, {KIND: "top_p", KEEP: 0.5}
    assert merged([whole, whole], [lost, whole]) == [whole]
    assert merged([whole, whole], [whole, lost]) == [whole]
    assert merged([whole, whole], [whole, whole]) == [whole, whole]


def test_the_order_in_which_a_setting_names_its_knobs_does_not_matter() -> None:
    after = [{KIND: "top_p", LR: 0.1}, {LR: 0.1, KIND: "top_p"}]
    assert merged(after, [{**each, KEEP: 0.5} for each in after]) == after[:1]


def test_a_condition_on_a_switch_is_not_met_by_a_number() -> None:
    """True is no 1: a page that asks for think 1 asks for what no run has."""
    changes = {KEEP: 0.5}
    for wanted, kept in ((True, changes), (1, {}), (1.0, {}), (False, {})):
        assert applicable(changes, [Condition(KEEP, {"prompt.think": (wanted,)})], {"prompt.think": True}) == kept
    epochs = [Condition(KEEP, {"optim.epochs": (True,)})]
    assert applicable(changes, epochs, {"optim.epochs": 1}) == {}


def test_a_page_whose_condition_is_no_value_of_its_knob_is_refused(write: Write) -> None:
    page = "base: base.yaml\naxes: {filter.keep_ratio: [1.0, 0.5]}\nwhen: {filter.keep_ratio: {prompt.think: %s}}\n"
    assert names_of(load_sweep(write(page % "true"))) == ["keep_ratio=1.0", "keep_ratio=0.5"]
    with pytest.raises(ConfigError, match=r"when\.filter\.keep_ratio\.prompt\.think: got 1"):
        load_sweep(write(page % "1"))
