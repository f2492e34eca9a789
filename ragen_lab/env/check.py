"""The contract of an environment as a test, and a preflight that plays a config's environment before training.

``check_env`` is for the author of an environment, ``preflight`` for the author of an experiment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from ragen_lab.config import RunConfig, eval_sets
from ragen_lab.env.base import Env, StepResult, eval_seeds, general_seeds, has_expert, is_eval_seed, make_env
from ragen_lab.env.reference import build_model, success_within
from ragen_lab.errors import EnvError

STEPS = 50  # random actions per played episode
# What a faulty environment may plausibly raise instead of EnvError; anything else is a crash and shall be seen.
WRONG_ERRORS = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError, RuntimeError)


def check_env(section: Any, seeds: Sequence[int] = range(8), make: Callable[[Any], Env] = make_env) -> list[str]:
    """Faults against the contract of ``Env``, one sentence each, the first seed that shows it; empty = passes.

    ``seeds``: training level seeds to try (as many evaluation seeds are tried beside them).
    """
    faults: dict[str, str] = {}  # kind of fault -> the first occurrence, so that one mistake is told once

    def fault(kind: str, text: str) -> None:
        faults.setdefault(kind, text)

    wrong = [seed for seed in seeds if is_eval_seed(seed) or seed < 0]
    if wrong:
        fault("seeds", f"seeds {wrong} are not training seeds; use numbers from 0 below EVAL_SEED_BASE.")
    env, other = make(section), make(section)
    first_pages: dict[int, str] = {}
    chancy = ended = False
    for seed in [*seeds, *eval_seeds(len(seeds))]:
        page = env.reset(seed, 0)
        first_pages[seed] = page
        if not isinstance(page, str) or not page.strip():
            fault("empty page", f"seed {seed}: reset gave {page!r}; the observation must be a non-empty text.")
        names = env.actions()
        if not names or len(set(names)) != len(names) or not all(isinstance(n, str) and n.strip() for n in names):
            fault("actions", f"seed {seed}: actions() gave {names!r}; it must give distinct non-empty words.")
            continue
        if env.actions() != names:
            fault("unstable actions", f"seed {seed}: actions() gave {names!r}, then {env.actions()!r} without a step.")
        if env.reset(seed, 1) != page or other.reset(seed, 0) != page:
            fault("first page", f"seed {seed}: the first observation differs between resets of the same level seed.")
        if env.actions() != names:
            fault("actions per level", f"seed {seed}: actions() differs between dynamics seeds of the same level seed.")
        _check_refusal(env, "no such action", f"seed {seed}: an unknown action", fault)

        plays = []
        for dynamics in (0, 1, 2):
            played = _play(env, seed, dynamics, seed)
            _check_results(played, f"seed {seed}", fault)
            _play(other, seed + 1, dynamics + 1, seed)  # an episode in between must leave no trace
            if _play(other, seed, dynamics, seed) != played:
                fault("determinism", f"seed {seed}: the same level, dynamics seed and actions gave different episodes.")
            if played and played[-1].done:
                ended = True
                _check_refusal(env, names[0], f"seed {seed}: a step after the end", fault)
            plays.append(played)
        shows = []
        for dynamics in (0, 1, 2):
            shown, solved = _follow(env, seed, dynamics)
            shows.append(shown)
            _check_results(shown, f"seed {seed}", fault)
            if shown and shown[-1].done:
                ended = True
                _check_refusal(env, names[0], f"seed {seed}: a step after the end", fault)
            if not solved and has_expert(env):
                fault("demonstration", f"seed {seed}: the {len(shown)} actions of demonstrate() do not reach success.")
        chancy = chancy or any(_course(played) != _course(plays[0]) for played in plays)
        chancy = chancy or any(_course(shown) != _course(shows[0]) for shown in shows)
    if chancy and "demonstration" in faults:
        # rewards may be left to chance while success is not; where moves are, a plan promises nothing
        del faults["demonstration"]
    if not ended:
        fault("no end", f"no episode ended, neither by {STEPS} random actions nor by demonstrate().")
    shared = {first_pages[s] for s in first_pages if is_eval_seed(s)} & {
        first_pages[s] for s in first_pages if not is_eval_seed(s)
    }
    if shared:
        fault("overlap", f"{len(shared)} level(s) serve both training and evaluation seeds, such as:\n{min(shared)}")
    return list(faults.values())


def _course(results: list[StepResult]) -> list[tuple[bool, bool]]:
    """How an episode went, without its rewards."""
    return [(result.done, result.success) for result in results]


def _play(env: Env, seed: int, dynamics: int, choices: int) -> list[StepResult]:
    """Random actions (drawn from ``choices``) until the end or STEPS of them."""
    env.reset(seed, dynamics)
    rng, results = Random(f"check {choices}"), list[StepResult]()
    for _ in range(STEPS):
        results.append(env.step(rng.choice(env.actions())))
        if results[-1].done:
            break
    return results


def _follow(env: Env, seed: int, dynamics: int) -> tuple[list[StepResult], bool]:
    """The demonstrated actions from the start, until the end, and whether they succeeded."""
    env.reset(seed, dynamics)
    results = list[StepResult]()
    for action in env.demonstrate().actions:
        results.append(env.step(action))
        if results[-1].done:
            break
    return results, bool(results) and results[-1].success


def _check_results(results: list[StepResult], where: str, fault: Callable[[str, str], None]) -> None:
    for result in results:
        if not math.isfinite(result.reward):
            fault("reward", f"{where}: a step paid {result.reward!r}; rewards must be finite.")
        if result.success and not result.done:
            fault("success without end", f"{where}: a step reported success without done; success ends the episode.")
        if not isinstance(result.observation, str) or not result.observation.strip():
            fault("empty page", f"{where}: a step showed {result.observation!r}; observations must be non-empty texts.")


def _check_refusal(env: Env, action: str, what: str, fault: Callable[[str, str], None]) -> None:
    kind = what.split(": ", 1)[1]
    try:
        env.step(action)
    except EnvError:
        return
    except WRONG_ERRORS as error:
        fault(kind, f"{what} raised {type(error).__name__}; it must raise EnvError.")
        return
    fault(kind, f"{what} was accepted; it must raise EnvError.")


def preflight(cfg: RunConfig, sample: int = 64) -> dict[str, float]:
    """Play the config's environment at random on ``sample`` training levels, as groups of ``rollout.responses``.

    ``solvable``: share of prompts that can succeed within the action budget (without an exact model: that an expert
    or chance did solve, a lower bound). ``zero_spread``: share of groups whose
    returns are all equal, which teach a group baseline nothing. ``random_success``: share of episodes.
    ``overlap``, ``sets_overlap``: training prompts that are prompts of the evaluation, or of a generalisation set, too.
    ``unequal_prompts``: groups whose members saw
    different prompts. ``reward_min``, ``reward_max``: range of episode returns (random play and demonstrations).
    Format penalties are not part of it.
    """
    budget = min(cfg.rollout.max_actions, cfg.rollout.max_turns * cfg.rollout.actions_per_turn)
    env, responses = make_env(cfg.env), cfg.rollout.responses
    flat_groups = wins = unequal = demonstrated = 0
    prompts: list[str] = []
    returns: list[float] = []
    for seed in range(sample):
        pages, group, lucky = set[str](), list[float](), False
        for member in range(responses):
            pages.add(env.reset(seed, 0 if cfg.rollout.shared_dynamics else member))
            rng, total = Random(f"preflight {seed} {member}"), 0.0
            for _ in range(budget):
                result = env.step(rng.choice(env.actions()))
                total += result.reward
                if result.done:
                    wins += result.success
                    lucky = lucky or result.success
                    break
            group.append(total)
        unequal += len(pages) > 1
        flat_groups += _spread(group) < 1e-6 * max(1.0, *map(abs, group))
        prompts.append(env.reset(seed))
        shown, solved = _follow(env, seed, 0)
        demonstrated += lucky or (solved and len(shown) <= budget)
        returns += group if not shown else [*group, sum(result.reward for result in shown)]
    model = build_model(cfg.env, range(sample), budget)
    solvable = demonstrated / sample if model is None else float((success_within(model, best=True)[-1] > 0).mean())
    evaluation = {env.reset(seed) for seed in eval_seeds(cfg.eval.prompts)}
    general = set[str]()
    for section in eval_sets(cfg).values():
        there = make_env(section)
        general |= {there.reset(seed) for seed in general_seeds(cfg.eval.prompts)}
    return {
        "prompts": sample,
        "solvable": solvable,
        "zero_spread": flat_groups / sample,
        "random_success": wins / (sample * responses),
        "overlap": sum(prompt in evaluation for prompt in prompts),
        "sets_overlap": sum(prompt in general for prompt in prompts),
        "unequal_prompts": unequal,
        "reward_min": min(returns),
        "reward_max": max(returns),
    }


def preflights(configs: Sequence[RunConfig], sample: int = 64) -> list[tuple[RunConfig, dict[str, float]]]:
    """``preflight`` of each kind of play among ``configs``: runs that play alike are played once."""
    kinds: dict[str, RunConfig] = {}
    for cfg in configs:
        played = (cfg.env, cfg.rollout, cfg.eval.prompts, cfg.eval.sets)
        kinds.setdefault(repr(played), cfg)
    return [(cfg, preflight(cfg, sample)) for cfg in kinds.values()]


def preflight_sentence(cfg: RunConfig, found: dict[str, float]) -> str:
    """The figures of a preflight for people, the worrying ones said to be so."""
    budget = min(cfg.rollout.max_actions, cfg.rollout.max_turns * cfg.rollout.actions_per_turn)
    text = (
        f"{cfg.env.name}, {found['prompts']:.0f} prompts x {cfg.rollout.responses} random responses: "
        f"{found['solvable']:.0%} solvable within {budget} actions, random play succeeds in "
        f"{found['random_success']:.1%}, {found['zero_spread']:.0%} of the groups have equal returns, returns from "
        f"{found['reward_min']:g} to {found['reward_max']:g}."
    )
    worries = {
        "overlap": "training prompts are evaluation prompts too",
        "sets_overlap": "training prompts are prompts of a generalisation set too",
        "unequal_prompts": "groups have members with different prompts",
    }
    return " ".join([text, *(f"Fault: {found[key]:.0f} {words}." for key, words in worries.items() if found[key])])


def _spread(values: list[float]) -> float:
    """Population standard deviation."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
