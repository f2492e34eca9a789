"""The linter of designs: what may spoil the conclusions of a sweep, before it is run. Pure functions of the page.

Arms are compared along lines: the levels of one axis with every other axis held, and each named arm with the arms
that it stands beside. What else moves along a line is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ragen_lab.config import RunConfig, kept_bounds, steps_per_iteration
from ragen_lab.env.base import make_env
from ragen_lab.errors import ConfigError
from ragen_lab.inert import inert
from ragen_lab.reward import reasoning_of, refuse_silent
from ragen_lab.sections import ENV_SECTIONS
from ragen_lab.sweep.controls import missing_controls
from ragen_lab.sweep.rules import Note
from ragen_lab.sweep.spec import Arm, Sweep

ALPHA = 0.05
_TOLD_BY_THEMSELVES = ("algo.kl.", "algo.clip_", "algo.name", "optim.critic_lr")


@dataclass(frozen=True)
class Line:
    """Arms to be compared by ``paths``. ``levels``: the value, as a label, -> the config of an arm."""

    what: str
    paths: tuple[str, ...]
    levels: dict[str, RunConfig]


def lint(sweep: Sweep) -> list[Note]:
    """What may spoil the conclusions: one plain sentence each, by the rule that found it."""
    lines = _lines(sweep)
    notes = [
        *(Note("page", note) for note in sweep.notes),
        *_inert(sweep),
        *_unjudged(sweep),
        *(note for line in lines for note in _side_effects(sweep, line)),
        *_moving_together(sweep, lines),
        *_more_than_the_axis(sweep, lines),
        *_named_arms(sweep),
        *_power(sweep),
        *missing_controls(sweep),
    ]
    if sweep.minutes is not None and sweep.minutes < 1:
        notes.append(Note("budget", f"budget: {sweep.minutes:g} minutes are over before most trials have begun."))
    return notes


# --- lines -------------------------------------------------------------------------------------------


def _lines(sweep: Sweep) -> list[Line]:
    configs = {arm.name: sweep.cfg_of(arm.name) for arm in sweep.arms}
    lines = [line for group in sweep.groups if (line := _along(sweep, group, configs)) is not None]
    told = {path for line in lines for path in line.paths}
    named = [arm for arm in sweep.arms if not arm.grid]
    for path in dict.fromkeys(path for arm in named for path in arm.changes if path not in {*told, *sweep.tied}):
        if (beside := _beside(sweep, path, named, configs)) is not None:
            lines.append(beside)
    return lines


def _along(sweep: Sweep, group: tuple[str, ...], configs: dict[str, RunConfig]) -> Line | None:
    """The longest line of the group, the first of equals: arms that are equal in all other axes."""
    found: dict[str, dict[str, RunConfig]] = {}
    for arm in sweep.arms:
        if arm.grid:
            leaves = configs[arm.name].flat()
            others = repr([leaves.get(path) for path in sweep.axes if path not in group])
            label = "/".join(str(leaves.get(path)) for path in group)
            found.setdefault(others, {}).setdefault(label, configs[arm.name])
    longest = max(found.values(), key=len, default={})
    return Line(" + ".join(f"axes.{path}" for path in group), group, longest) if len(longest) > 1 else None


def _beside(sweep: Sweep, path: str, named: Sequence[Arm], configs: dict[str, RunConfig]) -> Line | None:
    """Named arms that set one knob differently, and arms that differ from a named one in this knob alone."""
    levels: dict[str, RunConfig] = {}
    setters = [arm for arm in named if path in arm.changes]
    names = [arm.name for arm in setters]
    for arm in setters:
        levels.setdefault(str(arm.changes[path]), configs[arm.name])
    leaves = {name: cfg.identity() for name, cfg in configs.items()}
    for other in sweep.arms:
        if any(_apart(leaves[other.name], leaves[arm.name]) == [path] for arm in setters if arm.name != other.name):
            levels.setdefault(str(configs[other.name].flat().get(path)), configs[other.name])
            names += [other.name] if other.name not in names else []
    return Line(f"{path} (arms {', '.join(names)})", (path,), levels) if len(levels) > 1 else None


def _apart(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """The knobs in which two runs differ, of those that can change their numbers (their identities)."""
    return sorted(path for path in {*mine, *theirs} if path != "seed" and mine.get(path) != theirs.get(path))


# --- what moves along a line ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _SideEffect:
    rule: str
    what: str
    measure: Callable[[RunConfig], float]
    remedy: str
    caused_by: tuple[str, ...] = ()  # axes that are about just this
    controls: tuple[str, ...] = ()  # knobs by which a named arm takes it out


def _sampled(cfg: RunConfig) -> int:
    return cfg.rollout.prompts * cfg.rollout.responses


def _per_update(cfg: RunConfig) -> float:
    """Trajectories that an optimizer step sees, at most."""
    kept = kept_bounds(cfg.filter, cfg.rollout.prompts)[1] * cfg.rollout.responses
    return kept * cfg.optim.epochs / steps_per_iteration(cfg)


def _actions(cfg: RunConfig) -> int:
    return min(cfg.rollout.max_actions, cfg.rollout.actions_per_turn * cfg.rollout.max_turns)


def _tokens(cfg: RunConfig) -> int:
    return min(cfg.rollout.max_context, cfg.rollout.max_new_tokens * cfg.rollout.max_turns)


_STEPS = _SideEffect(
    "optimizer_steps",
    "the optimizer steps per iteration",
    steps_per_iteration,
    "Its effect and theirs cannot be told apart; set optim.updates_per_rollout, or add an arm that does.",
    ("optim.minibatch", "optim.epochs", "optim.updates_per_rollout"),
    ("optim.updates_per_rollout",),
)
_SAMPLES = _SideEffect(
    "samples",
    "the trajectories sampled per iteration",
    _sampled,
    "Tie rollout.prompts and rollout.responses to keep their product, unless that is the question.",
)
_PER_UPDATE = _SideEffect(
    "samples_per_update",
    "the trajectories per optimizer step",
    _per_update,
    "A step from fewer trajectories has a noisier gradient: its effect and that of the axis cannot be told apart.",
    ("optim.minibatch", "optim.updates_per_rollout"),
)
_OTHERS = (
    _SideEffect(
        "action_budget",
        "the actions of an episode at most",
        _actions,
        "More actions solve more levels even at random, and their tokens cost more. Keep the budget equal in all arms "
        "(rollout.max_actions, or rollout.max_turns tied to rollout.actions_per_turn), or compare only the excess over "
        "the random line of each budget.",
        ("rollout.max_actions",),
    ),
    _SideEffect(
        "token_budget",
        "the tokens that an episode may sample at most",
        _tokens,
        "More tokens are more room to reason and cost more; tie rollout.max_new_tokens, or read the cost with it.",
        ("rollout.max_new_tokens", "rollout.max_context"),
    ),
)


def _side_effects(sweep: Sweep, line: Line) -> Iterator[Note]:
    steps = {label: steps_per_iteration(cfg) for label, cfg in line.levels.items()}
    effects = [_STEPS, _SAMPLES, *_OTHERS]
    if len(set(steps.values())) == 1 and len({_sampled(cfg) for cfg in line.levels.values()}) == 1:
        effects.append(_PER_UPDATE)  # else it is told by what causes it
    for effect in effects:
        amounts = {label: effect.measure(cfg) for label, cfg in line.levels.items()}
        if len(set(amounts.values())) > 1 and not set(line.paths) & set(effect.caused_by):
            told = ", ".join(f"{label}: {amount:g}" for label, amount in amounts.items())
            controls = [arm.name for arm in sweep.arms if not arm.grid and set(effect.controls) & set(arm.changes)]
            remedy = f"Its control: arm {', '.join(map(repr, controls))}." if controls else effect.remedy
            yield Note(effect.rule, f"{line.what} also changes {effect.what} ({told}). {remedy}")
    single = [label for label, count in steps.items() if count == 1]
    its_own = set(line.paths) & set(_STEPS.caused_by) and not line.what.startswith("axes.")  # a control of the updates
    if single and len(single) < len(steps) and not its_own:
        yield Note(
            "clip_inert",
            f"{line.what}: the clip range (algo.clip_low, algo.clip_high) acts in some arms only. With one on-policy "
            f"update per rollout, as at {', '.join(single)}, the ratio is 1 and the clip does nothing; give all arms "
            f"as many updates (optim.updates_per_rollout).",
        )
    yield from _starts(line)


def _starts(line: Line) -> Iterator[Note]:
    """Whether the arms of a line begin from the same weights: the tiny model is taught on its own environment."""
    if any(path.startswith("policy.") for path in line.paths):
        return
    tiny = [cfg for cfg in line.levels.values() if cfg.policy.model == "tiny"]
    starts = {repr((cfg.policy.tiny, cfg.policy.warm_start, _taught_on(cfg))) for cfg in tiny}
    if len(starts) > 1:
        yield Note(
            "warm_start",
            f"{line.what}: the arms start from {len(starts)} different warm starts, each taught on its own environment "
            f"or in its own way: a difference may be that of the starts. Compare each arm with its own row 0.",
        )


def _taught_on(cfg: RunConfig) -> dict[str, Any]:
    """What the synthetic play of a warm start depends on; where evaluation levels come from does not."""
    return {key: value for key, value in cfg.env.model_dump().items() if key != "eval_levels"}


def _moving_together(sweep: Sweep, lines: Sequence[Line]) -> Iterator[Note]:
    """Ties and zipped axes: an effect belongs to all that moves."""
    for line in lines:
        if len(line.paths) > 1:
            what = line.what.replace(" + ", " and ")
            yield Note("moves_together", f"{what} move together (zip): an effect belongs to all of them.")
        leaves = [cfg.flat() for cfg in line.levels.values()]
        moving = [f"ties.{path}" for path in sweep.tied if len({repr(each.get(path)) for each in leaves}) > 1]
        if moving:
            verb, whose = ("moves", "both") if len(moving) == 1 else ("move", "all of them")
            told = f"{', '.join(moving)} {verb} together with {line.what}: an effect belongs to {whose}."
            yield Note("moves_together", told)


def _more_than_the_axis(sweep: Sweep, lines: Sequence[Line]) -> Iterator[Note]:
    """Resolved configs along an axis that differ in more than the axis and its ties."""
    for line in lines:
        if not line.what.startswith("axes."):
            continue  # named arms are told one by one
        first, *others = [cfg.identity() for cfg in line.levels.values()]
        apart = {path for leaves in others for path in _apart(first, leaves)}
        more = sorted(
            path
            for path in apart - {*line.paths, *sweep.tied}
            if not (path.startswith("env.") and "env.name" in line.paths)  # an environment brings its own knobs along
        )
        if more:
            yield Note(
                "differs_in_more",
                f"{line.what}: its arms also differ in {', '.join(more)}: a difference cannot be put down to the axis.",
            )


def _named_arms(sweep: Sweep) -> Iterator[Note]:
    """A named arm, or a listed setting, that departs from every other arm in more than one knob has no one to be
    compared with."""
    named = [arm for arm in sweep.arms if sweep.listed or not arm.grid]
    leaves = {arm.name: sweep.cfg_of(arm.name).identity() for arm in sweep.arms if named}
    for arm in named:
        differences = {name: _apart(leaves[arm.name], theirs) for name, theirs in leaves.items() if name != arm.name}
        if not differences:
            continue
        nearest = min(differences, key=lambda name: len(differences[name]))
        apart = [path for path in differences[nearest] if path not in sweep.tied]  # these are told with their cause
        if len(apart) > 1:
            known = [path for path in apart if path.startswith(_TOLD_BY_THEMSELVES)]
            more = (
                f" {', '.join(known)}: KL, clip range and critic each move the peak and the collapse by themselves."
                if known
                else ""
            )
            yield Note(
                "differs_in_more",
                f"arm {arm.name!r} differs from its nearest arm {nearest!r} in {len(apart)} knobs ({', '.join(apart)}):"
                f" a difference cannot be put down to one of them.{more}",
            )


# --- knobs and seeds ------------------------------------------------------------------------------------


def _inert(sweep: Sweep) -> Iterator[Note]:
    """Knobs without effect, told once for all arms that share one.

    A knob of the base that acts in some arms and not in others (the critic's learning rate along algo.name) is no
    mistake; one that an arm sets itself, in vain, is.
    """
    where: dict[tuple[str, str], list[Arm]] = {}
    for arm in sweep.arms:
        for found in inert(sweep.cfg_of(arm.name)):
            where.setdefault(found, []).append(arm)
    idle: dict[str, set[str]] = {}  # knob -> arms where it does nothing, for whatever reason
    for (path, _), arms in where.items():
        idle.setdefault(path, set()).update(arm.name for arm in arms)
    for (path, note), arms in where.items():
        if len(arms) == len(sweep.arms):
            yield Note("inert", note)
        elif vain := [arm.name for arm in arms if path in arm.changes or len(idle[path]) == len(sweep.arms)]:
            yield Note("inert", f"{note} (arms: {', '.join(vain)})")


def _unjudged(sweep: Sweep) -> Iterator[Note]:
    """A reasoning reward that an environment from outside cannot judge; its trials would refuse to start."""
    where: dict[str, list[str]] = {}
    for arm in sweep.arms:
        cfg = sweep.cfg_of(arm.name)
        if cfg.reward.reasoning == "none" or cfg.env.name in ENV_SECTIONS:
            continue
        try:
            refuse_silent(make_env(cfg.env), cfg.reward)
            reasoning_of(cfg.reward.reasoning)
        except ConfigError as error:
            for fault in error.faults:
                where.setdefault(fault, []).append(arm.name)
    for fault, arms in where.items():
        yield Note("page", fault if len(arms) == len(sweep.arms) else f"{fault} (arms: {', '.join(arms)})")


def smallest_p(levels: int, seeds: int) -> float:
    """Smallest one-sided p of an exact test that permutes ``levels`` arms within each of ``seeds`` blocks."""
    return float(math.factorial(levels)) ** -seeds


def seeds_needed(levels: int, alpha: float) -> int:
    """Paired seeds from which ``smallest_p`` can reach ``alpha``."""
    return math.ceil(math.log(1 / alpha) / math.log(math.factorial(levels)))


def _power(sweep: Sweep) -> Iterator[Note]:
    """Whether the seeds can carry any verdict, whatever the runs show."""
    if len(sweep.arms) < 2:
        return
    alpha = ALPHA / max(1, len(sweep.findings))
    strict = f" ({ALPHA} shared by {len(sweep.findings)} findings)" if len(sweep.findings) > 1 else ""
    count = len(sweep.seeds)
    ordered = [len(values) for values in sweep.axes.values() if len(values) > 2 and all(map(_is_number, values))]
    best = max(ordered, default=2)
    reach = smallest_p(best, count)
    if reach > alpha:
        what = f"a trend over {best} levels" if best > 2 else "a comparison of two arms"
        yield Note(
            "seeds",
            f"seeds: with {count} the smallest p that {what} can reach is {reach:.2g}, above {alpha:.2g}{strict}: no "
            f"verdict is possible. At least {seeds_needed(best, alpha)} are needed.",
        )
    elif best > 2 and smallest_p(2, count) > alpha:
        yield Note(
            "seeds",
            f"seeds: {count} can carry a trend over {best} levels (p down to {reach:.2g}), but not a comparison of two "
            f"arms (p down to {smallest_p(2, count):.2g}); that takes {seeds_needed(2, alpha)}.",
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
