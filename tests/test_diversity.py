"""Text statistics of the Echo Trap."""

from __future__ import annotations

import pytest

from ragen_lab.diversity import distinct_n, template, template_share


def test_templates_mask_what_the_state_decides():
    assert template("the goal is down right so i go down") == "the goal is * so i go *"
    assert template("the goal is up so i go left") == "the goal is * so i go *"
    assert template("Plan 12 : step 3") == "plan * : step *"
    assert template("trust gambler more", frozenset({"gambler"})) == "trust * more"


def test_the_share_of_the_most_common_template():
    texts = ["go up", "go down", "try it", "", "go left"]
    assert template_share(texts) == pytest.approx(3 / 4)  # empty thoughts have no template
    assert template_share(["", ""]) is None
    assert template_share([]) is None


def test_distinct_4_worked_by_hand():
    # "a b c d e" has abcd, bcde; "a b c d" has abcd: two distinct of three
    assert distinct_n(["a b c d e", "a b c d"]) == pytest.approx(2 / 3)
    assert distinct_n(["a b c"]) is None
    assert distinct_n(["a a a a a"]) == pytest.approx(1 / 2)
    assert distinct_n(["A b C d", "a B c D"], n=4) == pytest.approx(1 / 2)
