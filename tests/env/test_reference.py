"""Reference lines: worked numbers, the published figures, brute force, and the cache."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_lab.env import frozen_lake, reference, sokoban
from ragen_lab.env.base import GENERAL_SEED_BASE, eval_seeds, make_env
from ragen_lab.env.levels import published
from ragen_lab.env.reference import (
    best_string,
    build_model,
    cached_reference_lines,
    lake_model,
    reference_lines,
    room_model,
    string_success,
    success_within,
)
from ragen_lab.sections import BanditRevSection, BanditSection, FrozenLakeSection, SokobanSection

LAKE_FIGURES = [
    (float(name.rsplit("_", 1)[1]), entry)
    for name, group in published(frozen_lake.DATA).items()
    for entry in group["reference"]
]


def played(section: Any, string: tuple[str, ...], levels: int) -> float:
    """Share of evaluation levels that a string solves in the environment itself."""
    env, wins = make_env(section), 0
    for seed in eval_seeds(levels):
        env.reset(seed)
        for action in string:
            result = env.step(action)
            if result.done:
                wins += result.success
                break
    return wins / levels


def test_there_are_figures_for_both_published_lake_sets() -> None:
    assert len(LAKE_FIGURES) == 18


@pytest.mark.parametrize(("frozen", "figures"), LAKE_FIGURES)
def test_lake_lines_equal_the_published_ones(frozen: float, figures: dict[str, float]) -> None:
    section = FrozenLakeSection(frozen=frozen, slip=figures["slip"])
    model = lake_model(section, eval_seeds(256), int(figures["actions"]))
    assert round(float(success_within(model, best=True)[-1].mean()), 4) == figures["optimal"]
    assert round(float(success_within(model, best=False)[-1].mean()), 4) == figures["random"]


def one_lake(monkeypatch: pytest.MonkeyPatch, content: str, slip: float, budget: int) -> reference.Model:
    monkeypatch.setattr(frozen_lake.FrozenLake, "level", lambda self, seed: frozen_lake.Lake(content))
    return lake_model(FrozenLakeSection(size=2, slip=slip), eval_seeds(1), budget)


def test_worked_numbers_of_a_two_by_two_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    model = one_lake(monkeypatch, "PG/O_", 1 / 3, 2)
    # Up: a third slides left (stays), a third right (goal), a third stays. Twice: 1/3 + 2/3 * 1/3 = 5/9.
    # Right first would be 1/3 + 1/3 * 1/3 = 4/9, for a third of it slides into the hole.
    assert success_within(model, best=True)[:, 0] == pytest.approx([0, 1 / 3, 5 / 9])
    # random: goal 1/4, hole 1/4, stay 1/2; twice: 1/4 + 1/2 * 1/4
    assert success_within(model, best=False)[:, 0] == pytest.approx([0, 1 / 4, 3 / 8])
    assert string_success(model, (3, 3)) == pytest.approx(5 / 9)
    assert string_success(model, (2, 3)) == pytest.approx(4 / 9)
    assert string_success(model, best_string(model)[0]) == pytest.approx(5 / 9)


def test_worked_numbers_of_a_room(monkeypatch: pytest.MonkeyPatch) -> None:
    room = sokoban.Room("#####/#PXO#/#___#/#___#/#####")
    monkeypatch.setattr(sokoban.Sokoban, "level", lambda self, seed: room)
    model = room_model(SokobanSection(size=5), eval_seeds(1), 3)
    assert model is not None
    # Right wins at once: 1/4. Up and Left stay (2/4), Down leaves and comes back with Up (1/4 of the time).
    # Two actions: 1/4 + 2/4 * 1/4 = 3/8. Three: staying twice or coming back, then Right: + (4/16 + 1/16) * 1/4.
    assert success_within(model, best=False)[:, 0] == pytest.approx([0, 1 / 4, 3 / 8, 3 / 8 + 5 / 64])
    assert success_within(model, best=True)[:, 0] == pytest.approx([0, 1, 1, 1])
    # 9 cells inside; within one action: start, below, solved; the states are listed in that order
    assert model.reach[:2] == (1, 3)


@pytest.mark.parametrize(
    "section",
    [SokobanSection(), SokobanSection(size=8, boxes=2), FrozenLakeSection(slip=0.0), FrozenLakeSection(slip=0.2)],
)
@pytest.mark.parametrize("budget", [1, 4, 5])
def test_best_string_equals_brute_force(section: Any, budget: int) -> None:
    model = build_model(section, eval_seeds(24), budget)
    assert model is not None
    brute = max(string_success(model, string) for string in product(range(4), repeat=budget))
    string, certain = best_string(model)
    assert certain
    assert len(string) == budget
    assert string_success(model, string) == pytest.approx(brute, abs=1e-6)


@pytest.mark.parametrize("section", [SokobanSection(), SokobanSection(size=8, boxes=2), FrozenLakeSection(slip=0.0)])
def test_strings_do_in_the_environment_what_the_line_says(section: Any) -> None:
    lines = reference_lines(section, 10, 256)
    assert lines.string is not None
    assert len(lines.string) == 10
    assert lines.fixed_string == pytest.approx(played(section, lines.string, 256), abs=1e-12)
    assert lines.how["fixed_string"].startswith("exact")


def test_sokoban_strings_against_the_published_one() -> None:
    section, known = SokobanSection(), published(sokoban.DATA)["simple_6x6_1box"]["fixed_string"]
    model = build_model(section, eval_seeds(256), 10)
    assert model is not None
    letters = {action[0]: number for number, action in enumerate(sokoban.ACTIONS)}
    theirs = string_success(model, tuple(letters[letter] for letter in known["actions"]))
    assert round(theirs, 4) == known["success"] == 0.3047
    ours = reference_lines(section, 10, 256).fixed_string
    assert ours is not None
    assert ours >= theirs
    assert ours == pytest.approx(94 / 256)  # the best of all 4 ** 10


def test_a_slippery_string_does_in_the_environment_what_the_line_says() -> None:
    section = FrozenLakeSection(slip=0.2)
    lines = reference_lines(section, 6, 16)
    assert lines.string is not None
    assert lines.fixed_string is not None
    env, wins = make_env(section), 0
    for seed in eval_seeds(16):
        for dynamics in range(250):
            env.reset(seed, dynamics)
            for action in lines.string:
                result = env.step(action)
                if result.done:
                    wins += result.success
                    break
    # 4000 plays, standard error below 0.008
    assert wins / 4000 == pytest.approx(lines.fixed_string, abs=0.03)


def test_beam_search_is_a_lower_bound_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for section in (SokobanSection(), FrozenLakeSection()):
        exact = reference_lines(section, 7, 64)
        with monkeypatch.context() as patch:
            patch.setattr(reference, "EXACT_WORK", 0.0)
            beam = reference_lines(section, 7, 64)
        assert "lower bound" in beam.how["fixed_string"]
        assert "lower bound" not in exact.how["fixed_string"]
        assert exact.fixed_string is not None
        assert beam.fixed_string is not None
        assert exact.fixed_string * 0.8 < beam.fixed_string <= exact.fixed_string + 1e-9
        assert (beam.random, beam.optimal) == (exact.random, exact.optimal)


def test_lines_are_ordered() -> None:
    for section in (SokobanSection(), SokobanSection(size=8, boxes=2), FrozenLakeSection(), FrozenLakeSection(size=6)):
        lines = reference_lines(section, 8, 40)
        assert lines.random is not None
        assert lines.fixed_string is not None
        assert lines.optimal is not None
        assert 0 < lines.random < lines.fixed_string < lines.optimal <= 1


@pytest.mark.parametrize("section", [BanditSection(), BanditRevSection()])
def test_bandit_has_no_blind_string(section: Any) -> None:
    lines = reference_lines(section, 10, 256)
    assert (lines.random, lines.optimal) == (0.5, 1.0)
    assert lines.fixed_string is None
    assert lines.string is None
    assert "action words differ" in lines.how["fixed_string"]


def test_too_many_states_fall_back_to_seeded_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = reference_lines(SokobanSection(), 10, 128)
    monkeypatch.setattr(reference, "MODEL_STATES", 100)
    sampled = reference_lines(SokobanSection(), 10, 128)
    assert exact.random is not None
    assert sampled.random == pytest.approx(exact.random, abs=0.025)  # 5120 plays: four standard errors of 0.0055
    assert sampled.random != exact.random
    assert "40 plays" in sampled.how["random"]
    assert sampled.optimal == exact.optimal == 1.0
    assert sampled.fixed_string is None
    assert "too many states" in sampled.how["fixed_string"]
    assert sampled == reference_lines(SokobanSection(), 10, 128)


def test_cache_computes_once_per_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, calls = tmp_path / "lines", []

    def counted(section: Any, actions: int, levels: int, first: int) -> reference.ReferenceLines:
        calls.append((section, actions, levels, first))
        return reference_lines(section, actions, levels, first)

    monkeypatch.setattr(reference, "reference_lines", counted)
    section = FrozenLakeSection()
    first = cached_reference_lines(section, 4, 8, folder)
    assert cached_reference_lines(section, 4, 8, folder) == first == reference_lines(section, 4, 8)
    assert len(calls) == 1
    cached_reference_lines(section, 5, 8, folder)
    cached_reference_lines(section, 4, 9, folder)
    cached_reference_lines(FrozenLakeSection(slip=0.1), 4, 8, folder)
    cached_reference_lines(BanditSection(), 4, 8, folder)
    assert cached_reference_lines(BanditSection(), 4, 8, folder).string is None
    assert len(calls) == 5
    apart = cached_reference_lines(FrozenLakeSection(eval_levels="generated"), 4, 8, folder, GENERAL_SEED_BASE)
    assert apart != cached_reference_lines(FrozenLakeSection(eval_levels="generated"), 4, 8, folder)
    assert len(calls) == 7, "a generalisation set has levels, and lines, of its own"
    monkeypatch.setattr(reference, "VERSION", reference.VERSION + 1)
    cached_reference_lines(section, 4, 8, folder)
    assert len(calls) == 8
    assert all(file.suffix == ".json" for file in folder.iterdir())  # no half-written file is left behind


def test_a_torn_cache_file_is_computed_anew(tmp_path: Path) -> None:
    first = cached_reference_lines(FrozenLakeSection(), 3, 4, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text()[:20])
    assert cached_reference_lines(FrozenLakeSection(), 3, 4, tmp_path) == first
    assert cached_reference_lines(FrozenLakeSection(), 3, 4, tmp_path) == replace(first)


def test_the_model_moves_like_the_environment() -> None:
    """Random walks through ``room_model`` and through the environment meet the same successes."""
    section, budget = SokobanSection(size=8, boxes=2), 12
    model = room_model(section, eval_seeds(40), budget)
    assert model is not None
    rng = np.random.default_rng(0)
    for _ in range(30):
        string = tuple(int(action) for action in rng.integers(0, 4, budget))
        names = tuple(sokoban.ACTIONS[action] for action in string)
        assert string_success(model, string) == pytest.approx(played(section, names, 40), abs=1e-12)
