"""Reference lines: what random play, the best fixed action string and optimal play reach on the evaluation levels.

All levels are stacked into one Markov model with a shared clock (the action budget), so that every line is a
handful of array operations. A state that ends an episode leads to itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragen_lab.env import bandit, countdown, frozen_lake, sokoban
from ragen_lab.env.arithmetic import read_equation
from ragen_lab.env.base import EVAL_SEED_BASE, make_env
from ragen_lab.sections import BanditSection, CountdownSection

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Part of the cache key: raise it whenever a level or a line of any environment can come out differently.
VERSION = 1
MODEL_STATES = 3_000_000  # beyond this the model would not fit a laptop's memory
EXACT_WORK = 2e11  # multiplications that an exact string search may cost (a few seconds)
EXACT_CELLS = 5e7  # numbers held at once by it
BEAM = 256
PLAYS = 40  # plays per level where the random line must be sampled


@dataclass(frozen=True)
class ReferenceLines:
    """Success rates as fractions, over the evaluation levels, within the action budget.

    ``how`` says for each line how it was found, or why it is None. ``string``: the best fixed string.
    """

    random: float | None
    fixed_string: float | None
    optimal: float | None
    how: dict[str, str]
    string: tuple[str, ...] | None


@dataclass(frozen=True)
class Model:
    """Levels stacked into one Markov model; S states ordered by the depth at which they are first reached.

    ``start`` [levels]; ``success`` [S]; ``outcomes``: probability and next state [actions, S], one pair per kind
    of outcome; ``reach[d]``: number of states within d actions. Rows beyond ``reach[budget - 1]`` are not expanded.
    """

    actions: tuple[str, ...]
    start: Ints
    success: NDArray[np.bool_]
    outcomes: tuple[tuple[float, Ints], ...]
    reach: tuple[int, ...]

    @property
    def budget(self) -> int:
        return len(self.reach) - 1


def lake_model(section: Any, seeds: range, budget: int) -> Model:
    """FrozenLake: state = level x cell."""
    lakes = [frozen_lake.FrozenLake(section).level(seed) for seed in seeds]
    cells = section.size**2
    meant = np.zeros((4, len(lakes) * cells), dtype=np.int64)
    success = np.zeros(len(lakes) * cells, dtype=bool)
    for number, lake in enumerate(lakes):
        here = slice(number * cells, (number + 1) * cells)
        meant[:, here] = np.array(lake.next_cell) + number * cells
        ends = [*lake.holes, lake.goal]
        meant[:, np.array(ends) + number * cells] = np.array(ends) + number * cells
        success[number * cells + lake.goal] = True
    start = np.array([number * cells + lake.start for number, lake in enumerate(lakes)])
    slip = section.slip
    slides = ((1 - 2 * slip, meant), (slip, np.roll(meant, 1, axis=0)), (slip, np.roll(meant, -1, axis=0)))
    outcomes = tuple((chance, reached) for chance, reached in slides if chance > 0)
    return Model(frozen_lake.ACTIONS, start, success, outcomes, (len(success),) * (budget + 1))


def room_model(section: Any, seeds: range, budget: int) -> Model | None:
    """Sokoban: the states within ``budget`` actions, found breadth first over all levels at once.

    None when there are more than MODEL_STATES of them.
    """
    rooms = [sokoban.Sokoban(section).level(seed) for seed in seeds]
    area = section.size**2
    wall, target = np.zeros((2, len(rooms), area), dtype=bool)
    for number, room in enumerate(rooms):
        wall[number, list(room.walls)] = True
        target[number, list(room.targets)] = True
    places = area ** np.arange(section.boxes + 1, dtype=np.int64)  # a state in one number: level, player, boxes

    def solved(states: Ints) -> NDArray[np.bool_]:
        done: NDArray[np.bool_] = target[states[:, :1], states[:, 2:]].all(axis=1)
        return done

    def keys(states: Ints) -> Ints:
        key: Ints = states[:, 0] * area ** (section.boxes + 1) + states[:, 1:] @ places
        return key

    first = np.array([[number, room.start[0], *room.start[1]] for number, room in enumerate(rooms)], dtype=np.int64)
    layers, reach, reached_keys = [first], [len(first)], []
    known = np.sort(keys(first))
    for _ in range(budget):
        now = layers[-1]
        ended = solved(now)
        candidates = []
        for rows, columns in sokoban.MOVES:
            after = _move(now, rows * section.size + columns, wall)
            after[ended] = now[ended]
            candidates.append(after)
        found = np.concatenate(candidates)
        found_keys = keys(found)
        reached_keys.append(found_keys.reshape(4, -1))
        fresh_keys, where = np.unique(found_keys, return_index=True)
        fresh = known[np.minimum(np.searchsorted(known, fresh_keys), len(known) - 1)] != fresh_keys
        layers.append(found[where[fresh]])
        known = np.sort(np.concatenate([known, fresh_keys[fresh]]))
        reach.append(len(known))
        if len(known) > MODEL_STATES:
            return None
    states = np.concatenate(layers)
    order = np.argsort(keys(states))
    expanded = np.concatenate(reached_keys, axis=1) if reached_keys else np.zeros((4, 0), dtype=np.int64)
    following = order[np.searchsorted(known, expanded)]
    return Model(sokoban.ACTIONS, np.arange(len(rooms)), solved(states), ((1.0, following),), tuple(reach))


def _move(states: Ints, step: int, wall: NDArray[np.bool_]) -> Ints:
    """Sokoban's rule for many states [N, level + player + boxes] at once."""
    level, ahead, boxes = states[:, 0], states[:, 1] + step, states[:, 2:]
    hit = boxes == ahead[:, None]
    pushes = hit.any(axis=1)
    beyond = np.where(pushes, ahead + step, ahead)
    blocked = wall[level, ahead] | wall[level, beyond] | (pushes & (boxes == beyond[:, None]).any(axis=1))
    after = states.copy()
    after[~blocked, 1] = ahead[~blocked]
    moved = pushes & ~blocked
    after[moved, 2:] = np.sort(boxes[moved] + step * hit[moved], axis=1)
    return after


def success_within(model: Model, best: bool) -> Floats:
    """[budget + 1, levels]: probability of success within 0, 1, ... actions, by finite-horizon dynamic programming.

    ``best``: under optimal play for exactly that horizon; otherwise under uniformly random actions.
    """
    value = model.success.astype(np.float64)
    curve = [value[model.start]]
    for left in range(1, model.budget + 1):
        rows = model.reach[model.budget - left]
        gain = sum(chance * value[reached[:, :rows]] for chance, reached in model.outcomes)
        value = np.max(gain, axis=0) if best else np.mean(gain, axis=0)
        curve.append(value[model.start])
    return np.array(curve)


def string_success(model: Model, string: tuple[int, ...]) -> float:
    """Success rate of one action string (action numbers, at most ``budget`` of them), played blindly on every level."""
    value = model.success.astype(np.float64)
    for played in range(len(string), 0, -1):
        rows = model.reach[played - 1]
        action = string[played - 1]
        value = np.add.reduce([chance * value[reached[action, :rows]] for chance, reached in model.outcomes])
    return float(value[model.start].mean())


def best_string(model: Model) -> tuple[tuple[int, ...], bool]:
    """The string of ``budget`` actions that succeeds most often, and whether that is certain.

    Exact by meeting in the middle: every first half gives beliefs over states, every second half a value for
    each state, and one product scores all pairs. Where that costs too much: beam search.
    """
    first = model.budget - model.budget // 2
    rows = model.reach[first]
    halves = 4**first
    work = 4**model.budget * (len(model.start) if len(model.outcomes) == 1 else rows)
    if work > EXACT_WORK or halves * rows > EXACT_CELLS:
        return _beam_search(model), False
    beliefs, strings = _start_beliefs(model)
    for _ in range(first):
        beliefs, strings = _extend(model, beliefs, strings)
    values = model.success[: model.reach[model.budget], None].astype(np.float32)
    for left in range(1, model.budget - first + 1):
        rows = model.reach[model.budget - left]
        by_action = []
        for action in range(4):
            kinds = [np.float32(chance) * values[reached[action, :rows]] for chance, reached in model.outcomes]
            by_action.append(np.add.reduce(kinds))
        values = np.concatenate(by_action, axis=1)
    scores = _scores(beliefs, values)
    prefix, suffix = np.unravel_index(int(scores.argmax()), scores.shape)
    tail = tuple(int(suffix) // 4**place % 4 for place in range(model.budget - first - 1, -1, -1))
    return strings[int(prefix)] + tail, True


def _beam_search(model: Model) -> tuple[int, ...]:
    """Keep the BEAM best prefixes, judged by random play of the actions that are left."""
    after_random = [model.success.astype(np.float64)]
    for left in range(1, model.budget + 1):
        rows = model.reach[model.budget - left]
        gain = sum(chance * after_random[-1][reached[:, :rows]] for chance, reached in model.outcomes)
        after_random.append(np.mean(gain, axis=0))
    beliefs, strings = _start_beliefs(model)
    for left in range(model.budget - 1, -1, -1):
        beliefs, strings = _extend(model, beliefs, strings)
        scores = _scores(beliefs, after_random[left][:, None])[:, 0]
        keep = np.argsort(-scores, kind="stable")[:BEAM]
        beliefs, strings = beliefs[keep], [strings[i] for i in keep]
    return strings[0]


# Beliefs about the state of every level after a prefix. Without chance: the state itself, ints [prefixes, levels].
# With chance: probabilities, floats [prefixes, S].


Prefixes = tuple[NDArray[Any], list[tuple[int, ...]]]


def _start_beliefs(model: Model) -> Prefixes:
    if len(model.outcomes) == 1:
        return model.start[None, :], [()]
    beliefs = np.zeros((1, len(model.success)), dtype=np.float32)
    beliefs[0, model.start] = 1.0
    return beliefs, [()]


def _extend(model: Model, beliefs: NDArray[Any], strings: list[tuple[int, ...]]) -> Prefixes:
    """Every prefix followed by every action; prefixes that lead to the same beliefs are merged (without chance)."""
    longer = [(*string, action) for action in range(4) for string in strings]
    if len(model.outcomes) == 1:
        after = np.concatenate([model.outcomes[0][1][action][beliefs] for action in range(4)])
        # the first of equal rows in a fixed order, so that the answer does not depend on the library's sort
        _, kept = np.unique(after, axis=0, return_index=True)
        kept.sort()
        return after[kept], [longer[i] for i in kept]
    parts = []
    for action in range(4):
        part = np.zeros_like(beliefs)
        for chance, reached in model.outcomes:
            order = np.argsort(reached[action], kind="stable")
            goals, bounds = np.unique(reached[action][order], return_index=True)
            part[:, goals] += np.float32(chance) * np.add.reduceat(beliefs[:, order], bounds, axis=1)
        parts.append(part)
    return np.concatenate(parts), longer


def _scores(beliefs: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """[prefixes, columns of values]: expected number of levels solved."""
    if beliefs.dtype.kind == "f":
        return np.asarray(beliefs[:, : len(values)] @ values)
    return np.array([values[row].sum(axis=0) for row in beliefs])


def build_model(section: Any, seeds: range, budget: int) -> Model | None:
    """The stacked model of a grid environment; None for other environments and for too many states."""
    if section.name == "frozen_lake":
        return lake_model(section, seeds, budget)
    if section.name == "sokoban":
        return room_model(section, seeds, budget)
    return None


def reference_lines(section: Any, actions: int, levels: int, first: int = EVAL_SEED_BASE) -> ReferenceLines:
    """The lines of ``cfg.env`` for a budget of ``actions`` actions on ``levels`` evaluation seeds from ``first``."""
    seeds = range(first, first + levels)
    if isinstance(section, BanditSection):
        return _bandit_lines(section, seeds)
    if isinstance(section, CountdownSection):
        return _countdown_lines(section, seeds)
    model = build_model(section, seeds, actions)
    if model is None:
        return _played_lines(section, actions, seeds)
    string, certain = best_string(model)
    exact = "exact (finite-horizon dynamic programming)"
    searched = "exact (all strings compared)" if certain else f"beam search of width {BEAM} (a lower bound)"
    return ReferenceLines(
        random=float(success_within(model, best=False)[-1].mean()),
        fixed_string=string_success(model, string),
        optimal=float(success_within(model, best=True)[-1].mean()),
        how={
            "random": exact,
            "fixed_string": searched,
            "optimal": f"{exact}, seeing the state before every action",
        },
        string=tuple(model.actions[action] for action in string),
    )


def _bandit_lines(section: BanditSection, seeds: range) -> ReferenceLines:
    env = bandit.Bandit(section)
    drawn = [env.level(seed) for seed in seeds]
    first = sum(arms[0] == high for arms, high in drawn) / len(drawn)
    reason = (
        "none: the action words differ from level to level, so no string can be played without looking; "
        f"always the arm named first succeeds on {first:.4f} of the levels, always the second on {1 - first:.4f}"
    )
    how = {"random": "exact (one of two arms)", "fixed_string": reason, "optimal": "exact (the high arm)"}
    return ReferenceLines(random=0.5, fixed_string=None, optimal=1.0, how=how, string=None)


def _countdown_lines(section: CountdownSection, seeds: range) -> ReferenceLines:
    """One answer per level: random play draws one of the random equations, optimal play searches."""
    env = countdown.Countdown(section)
    lucky, solved = 0.0, 0
    for seed in seeds:
        env.reset(seed)
        equations = [read_equation(action) for action in env.actions()]
        lucky += sum(e is not None and env.score(e) == countdown.CORRECT for e in equations) / len(equations)
        solved += bool(env.demonstrate().actions)
    how = {
        "random": f"a random equation over all numbers (the mean over up to {countdown.SAMPLE} of them per level)",
        "fixed_string": "none: equations differ from level to level, so no string can be played without looking",
        "optimal": "exact (exhaustive search over equations)",
    }
    return ReferenceLines(
        random=lucky / len(seeds), fixed_string=None, optimal=solved / len(seeds), how=how, string=None
    )


def _played_lines(section: Any, actions: int, seeds: range) -> ReferenceLines:
    """Lines of an environment without a model: random by seeded plays, optimal by its own demonstrations."""
    env, wins, solved, deterministic = make_env(section), 0, 0, section.name == "sokoban"
    without = (
        "none: too many states to compare strings" if deterministic else "none: no model of an outside environment"
    )
    for seed in seeds:
        for play in range(PLAYS):
            env.reset(seed, play)
            rng = Random(f"reference {seed} {play}")
            for _ in range(actions):
                result = env.step(rng.choice(env.actions()))
                if result.done:
                    wins += result.success
                    break
        if deterministic:
            env.reset(seed)
            solved += 0 < len(env.demonstrate().actions) <= actions
    return ReferenceLines(
        random=wins / (PLAYS * len(seeds)),
        fixed_string=None,
        optimal=solved / len(seeds) if deterministic else None,
        how={
            "random": f"sampled ({PLAYS} plays per level)",
            "fixed_string": without,
            "optimal": "best plan of a bounded search (a lower bound)" if deterministic else without,
        },
        string=None,
    )


def cached_reference_lines(
    section: Any, actions: int, levels: int, folder: Path, first: int = EVAL_SEED_BASE
) -> ReferenceLines:
    """``reference_lines`` kept as JSON in ``folder``; safe when several processes ask at once."""
    asked = {"section": section.model_dump(), "actions": actions, "levels": levels, "version": VERSION}
    if first != EVAL_SEED_BASE:
        asked["first"] = first
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    file = folder / f"{digest}.json"
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        string = kept["string"]
        return ReferenceLines(**{**kept, "string": None if string is None else tuple(string)})
    except (FileNotFoundError, json.JSONDecodeError):
        pass  # nothing usable is kept: compute and (over)write
    lines = reference_lines(section, actions, levels, first)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", encoding="utf-8", delete=False) as part:
        json.dump(asdict(lines), part)
    os.replace(part.name, file)  # readers see the whole file or none
    return lines
