"""The rules of the design check, by the stable names that ``accept:`` on a page uses."""

from __future__ import annotations

from dataclasses import dataclass

RULES: dict[str, str] = {
    "inert": "A knob is set that cannot change anything in this run.",
    "optimizer_steps": "An axis also changes the optimizer steps per iteration.",
    "clip_inert": "The clip range acts in some arms only: with one on-policy update per rollout it does nothing.",
    "samples": "An axis also changes the trajectories sampled per iteration.",
    "samples_per_update": "An axis also changes the trajectories per optimizer step.",
    "action_budget": "An axis also changes the actions of an episode, and so what random play and any play can reach.",
    "token_budget": "An axis also changes the tokens that a trajectory may hold.",
    "moves_together": "A tie or a zip moves one knob with another.",
    "differs_in_more": "Arms differ in more knobs than the one that they are compared by.",
    "warm_start": "Arms start from different warm starts, or in different environments.",
    "seeds": "Too few seeds for any verdict, or for one between two arms.",
    "stopped_runs": "Runs that our own detector stops are no observed collapses.",
    "few_evaluations": "Too few evaluations to see a collapse.",
    "budget": "The budget is over before most trials have begun.",
    "page": "Something on the page or on the command line does not reach what it seems to.",
    "finding_1_algorithms": "Finding 1 compares ppo with grpo.",
    "finding_1_single_turn": "Finding 1 needs a control with one turn per trajectory.",
    "finding_1_unfiltered": "Finding 1 is about runs that keep every group.",
    "finding_2_think": "Finding 2 needs runs that think, and their stored texts.",
    "finding_3_healthy": "Finding 3 needs runs that collapse and runs that do not.",
    "finding_4_levels": "Finding 4 needs at least two keep ratios.",
    "finding_4_random": "Finding 4 needs a random-drop control at one of its keep ratios.",
    "finding_4_updates": "Finding 4 needs a control with as many optimizer steps as the unfiltered arm.",
    "finding_4_zero_only": "Finding 4 is clearer beside an arm that drops only the groups without spread.",
    "finding_4_smallest": "Finding 4 is clearer beside an arm that keeps the groups of lowest spread.",
    "finding_5_part": "Finding 5 needs arms that vary prompts and responses, actions per turn, or freshness.",
    "finding_5a_levels": "Finding 5a needs at least three splits of one batch into prompts and responses.",
    "finding_5a_sets": "Finding 5a is about generalisation, which needs several sets.",
    "finding_5b_levels": "Finding 5b needs at least three numbers of actions per turn at one total budget.",
    "finding_5c_readings": "Finding 5c has two readings: a larger rollout in more updates, and more passes over one.",
    "finding_6_think": "Finding 6 needs trained arms with and without think text.",
    "finding_6_reward": "Finding 6 needs arms with and without a reasoning-aware reward.",
    "finding_6_format": "Finding 6 needs two format penalties.",
    "finding_6_probes": "Finding 6 needs evaluations that take the reasoning away.",
}


@dataclass(frozen=True)
class Note:
    """One thing that a rule found. ``accepted``: why the page says that it does not matter, where it does."""

    rule: str
    text: str
    accepted: str | None = None

    def __str__(self) -> str:
        return self.text if self.accepted is None else f"Accepted ({self.rule}): {self.text} Why: {self.accepted}"
