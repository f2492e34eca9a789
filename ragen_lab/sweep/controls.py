"""The arms that each finding needs before it can be judged, and which of them a sweep lacks.

What is asked for is what ``ragen_lab/findings`` reads from the runs, and the controls without which the paper's own
protocol cannot tell one cause from another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ragen_lab.config import RunConfig, keeps_all, steps_per_iteration
from ragen_lab.sweep.rules import Note
from ragen_lab.sweep.spec import Sweep

_SURVIVAL = (1, 3, 4)  # findings that are about collapses
_LEVELS = 3  # of an ordered trend
_ONE_TURN = ("bandit", "bandit_rev", "countdown")  # these end after the first turn, whatever is allowed


def missing_controls(sweep: Sweep) -> Iterator[Note]:
    """One sentence for everything that the findings named on the page lack."""
    configs = [sweep.cfg_of(arm.name) for arm in sweep.arms]
    for number in sweep.findings:
        yield from _NEEDS[number](configs)
    if collapses := [number for number in sweep.findings if number in _SURVIVAL]:
        yield from _observable(configs, f"finding{'s' if len(collapses) > 1 else ''} {', '.join(map(str, collapses))}")


def _observable(configs: Sequence[RunConfig], findings: str) -> Iterator[Note]:
    """Whether collapses can be seen at all."""
    if any(cfg.detect.on_collapse == "stop" for cfg in configs):
        yield Note(
            "stopped_runs",
            f"{findings}: on_collapse: stop ends runs by our own detector, and survival tests must then be given both "
            "ways; on_collapse: continue lets the runs show whether they would have recovered.",
        )
    for cfg in configs:
        seen, asked = cfg.train.iterations // cfg.eval.every, cfg.detect.level.evaluations
        if seen < asked:
            yield Note(
                "few_evaluations",
                f"{findings}: {seen} evaluations after the start (train.iterations {cfg.train.iterations}, eval.every "
                f"{cfg.eval.every}) cannot show a collapse, which takes {asked} in a row; evaluate more often.",
            )
            return


def _finding_1(configs: Sequence[RunConfig]) -> Iterator[Note]:
    vanilla = [cfg for cfg in configs if keeps_all(cfg) and cfg.env.name not in _ONE_TURN]
    if not vanilla:
        yield Note(
            "finding_1_unfiltered",
            "finding 1 is about plain recipes in several turns: no arm keeps every group (filter.keep_ratio: 1) in an "
            "environment of several turns.",
        )
        return
    lacking = {"ppo", "grpo"} - {cfg.algo.name for cfg in vanilla if cfg.rollout.max_turns > 1}
    if lacking:
        yield Note(
            "finding_1_algorithms",
            f"finding 1 compares ppo with grpo, otherwise equal: there is no {' and no '.join(sorted(lacking))} arm of "
            f"several turns that keeps every group; for example axes: {{algo.name: [ppo, grpo]}}.",
        )
    if not any(cfg.rollout.max_turns == 1 for cfg in vanilla):
        yield Note(
            "finding_1_single_turn",
            "finding 1 has no single-turn control (rollout.max_turns: 1, otherwise equal): whether several turns are "
            "the cause of a collapse cannot be told.",
        )


def _finding_2(configs: Sequence[RunConfig]) -> Iterator[Note]:
    if not any(cfg.prompt.think and cfg.track.trajectories > 0 for cfg in configs):
        yield Note(
            "finding_2_think",
            "finding 2 reads think texts early and late: it needs prompt.think: true and track.trajectories above 0.",
        )


def _finding_3(configs: Sequence[RunConfig]) -> Iterator[Note]:
    if len(configs) < 2:
        yield Note(
            "finding_3_healthy",
            "finding 3 compares runs that collapse with runs that do not, and this sweep has one arm: add a steady "
            "one, for example arms: {steady: {optim.lr: an eighth}}.",
        )


def _finding_4(configs: Sequence[RunConfig]) -> Iterator[Note]:
    """Filtering: does the variance matter, or only that fewer groups and updates are left?"""
    ladder = [cfg for cfg in configs if cfg.filter.kind == "std"]
    ratios = {cfg.filter.keep_ratio for cfg in ladder}
    if len(ratios) < 2:
        yield Note(
            "finding_4_levels",
            "finding 4 needs at least two keep ratios, for example axes: {filter.keep_ratio: [1.0, 0.5, 0.25]}.",
        )
        return
    least = min(ratios)
    if not any(cfg.filter.kind == "random" and cfg.filter.keep_ratio in ratios for cfg in configs):
        yield Note(
            "finding_4_random",
            "finding 4 has no random-drop control (filter.kind: random at one of the keep ratios): whether the choice "
            "of groups matters, or only that there are fewer, cannot be told.",
        )
    steps = {steps_per_iteration(cfg) for cfg in ladder if cfg.filter.keep_ratio == max(ratios)}
    if not any(cfg.filter.keep_ratio == least and steps_per_iteration(cfg) in steps for cfg in ladder):
        yield Note(
            "finding_4_updates",
            f"finding 4 has no control with as many updates as the unfiltered arm (keep ratio {least:g} with "
            f"optim.updates_per_rollout: {max(steps)}): filtering also means fewer optimizer steps.",
        )
    if not any(cfg.filter.kind == "zero_only" for cfg in configs):
        yield Note(
            "finding_4_zero_only",
            "finding 4 has no arm that drops only the groups without any spread (filter.kind: zero_only): whether low "
            "spread does harm, or only no spread at all, cannot be told.",
        )
    if not any(cfg.filter.kind == "smallest" for cfg in configs):
        yield Note(
            "finding_4_smallest",
            f"finding 4 has no arm that keeps the groups of lowest spread (filter.kind: smallest, keep ratio "
            f"{least:g}), which should do worst if the claim holds.",
        )


def _finding_5(configs: Sequence[RunConfig]) -> Iterator[Note]:
    by_size: dict[int, set[tuple[int, int]]] = {}
    for cfg in configs:
        split = (cfg.rollout.prompts, cfg.rollout.responses)
        by_size.setdefault(split[0] * split[1], set()).add(split)
    splits = max(len(found) for found in by_size.values())
    by_budget: dict[int, set[int]] = {}
    for cfg in configs:
        rollout = cfg.rollout
        budget = min(rollout.max_actions, rollout.actions_per_turn * rollout.max_turns)
        by_budget.setdefault(budget, set()).add(rollout.actions_per_turn)
    passes = {cfg.optim.epochs for cfg in configs}
    larger = {
        (cfg.optim.updates_per_rollout, cfg.rollout.prompts)
        for cfg in configs
        if cfg.optim.updates_per_rollout and cfg.optim.epochs == 1
    }
    actions = {cfg.rollout.actions_per_turn for cfg in configs}
    if splits < 2 and len(actions) < 2 and len(passes) < 2 and len(larger) < 2:
        yield Note(
            "finding_5_part",
            "finding 5 is about rollouts, and no arm varies them: rollout.prompts and rollout.responses at one product "
            "(5a), rollout.actions_per_turn at one budget (5b), or optim.epochs and optim.updates_per_rollout (5c).",
        )
    if splits > 1:
        yield from _finding_5a(configs, splits)
    if len(actions) > 1 and (most := max(map(len, by_budget.values()))) < _LEVELS:
        yield Note(
            "finding_5b_levels",
            f"finding 5b needs at least {_LEVELS} values of rollout.actions_per_turn at one total budget of actions "
            f"(found {most} of {len(actions)}): tie rollout.max_turns, or lower rollout.max_actions to what all reach.",
        )
    if len(passes) > 1 or len(larger) > 1:
        readings = {
            "a larger rollout split into more updates": len(larger),
            "more passes over one (optim.epochs)": len(passes),
        }
        for reading, count in readings.items():
            if count < _LEVELS:
                yield Note(
                    "finding_5c_readings",
                    f"finding 5c can be read in two ways, and {reading} has {count} of the {_LEVELS} levels that a "
                    f"trend needs.",
                )


def _finding_5a(configs: Sequence[RunConfig], splits: int) -> Iterator[Note]:
    if splits < _LEVELS:
        yield Note(
            "finding_5a_levels",
            f"finding 5a needs at least {_LEVELS} splits of one batch into rollout.prompts and rollout.responses "
            f"(found {splits}).",
        )
    if min(len(cfg.eval.sets) for cfg in configs) < 2:
        yield Note(
            "finding_5a_sets",
            "finding 5a is about generalisation: evaluate on at least two other sets (eval.sets) in every arm.",
        )


def _finding_6(configs: Sequence[RunConfig]) -> Iterator[Note]:
    thinking = [cfg for cfg in configs if cfg.prompt.think]
    if len({cfg.prompt.think for cfg in configs}) < 2:
        yield Note(
            "finding_6_think",
            "finding 6 compares think and no-think as trained arms: add prompt.think: "
            f"{'false' if thinking else 'true'}, otherwise equal (policy.warm_start.think_share: 0.5 teaches both).",
        )
    rewards = {cfg.reward.reasoning for cfg in configs}
    if not {"none", "grounded"} <= rewards:
        yield Note(
            "finding_6_reward",
            "finding 6 needs arms with and without a reward that is aware of the reasoning: reward.reasoning none and "
            "grounded.",
        )
    if len({cfg.reward.format_penalty for cfg in configs}) < 2:
        yield Note(
            "finding_6_format",
            "finding 6 claims that a format penalty alone is not enough: add an arm with another "
            "reward.format_penalty.",
        )
    if not any({"empty_think", "shuffled_think"} <= set(cfg.eval.probes) for cfg in thinking):
        yield Note(
            "finding_6_probes",
            "finding 6 asks whether the actions depend on the reasoning: set eval.probes to [empty_think, "
            "shuffled_think] in an arm that thinks.",
        )


_NEEDS: dict[int, Callable[[Sequence[RunConfig]], Iterator[Note]]] = {
    1: _finding_1,
    2: _finding_2,
    3: _finding_3,
    4: _finding_4,
    5: _finding_5,
    6: _finding_6,
}
