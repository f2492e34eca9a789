"""The catalogue of metrics: name, one sentence, unit, and which way is better.

Slashes are metrics, dots are parameters. ``rollout/`` is measured on every sampled trajectory before
filtering (so that arms can be compared), ``train/`` on the kept ones, ``eval/`` on the fixed levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    name: str
    sentence: str
    unit: str
    better: Literal["up", "down", "neither"]


def _catalogue(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def _probe(kind: str, sentence: str) -> tuple[Metric, ...]:
    name = f"eval/success_{kind}"
    return (
        Metric(name, sentence, "fraction", "neither"),
        Metric(f"{name}_low", f"Lower end of the 95 % Wilson interval of {name}.", "fraction", "neither"),
        Metric(f"{name}_high", f"Upper end of the 95 % Wilson interval of {name}.", "fraction", "neither"),
    )


METRICS: dict[str, Metric] = _catalogue(
    Metric("eval/success", "Share of the fixed evaluation levels solved.", "fraction", "up"),
    Metric("eval/success_low", "Lower end of the 95 % Wilson interval of eval/success.", "fraction", "up"),
    Metric("eval/success_high", "Upper end of the 95 % Wilson interval of eval/success.", "fraction", "up"),
    Metric("eval/reward", "Mean trajectory reward in evaluation, penalties included.", "reward", "up"),
    Metric(
        "eval/format_error_rate", "Share of evaluation turns with no valid or any invalid action.", "fraction", "down"
    ),
    Metric("eval/response_tokens", "Mean model tokens per evaluation turn.", "tokens", "neither"),
    Metric("eval/think_tokens", "Mean tokens inside <think> per evaluation turn.", "tokens", "neither"),
    Metric("eval/template_share", "Share of the most common masked think template in evaluation.", "fraction", "down"),
    Metric("eval/distinct_4", "Distinct 4-grams over all 4-grams of the think texts in evaluation.", "fraction", "up"),
    Metric(
        "eval/grounded_share", "Share of the statements about the board that are true, in evaluation.", "fraction", "up"
    ),
    Metric("eval/statements", "Mean statements about the board per evaluation turn.", "statements", "neither"),
    Metric(
        "eval/shaping", "Mean reward of think texts and cost of length per trajectory in evaluation.", "reward", "up"
    ),
    *_probe("no_think", "Success where no reasoning is asked for (probe)."),
    *_probe("empty_think", "Success where the think block is forced to be empty (probe)."),
    *_probe("shuffled_think", "Success where replies begin with another prompt's thought (probe)."),
    Metric(
        "eval/mutual_information",
        "What thoughts tell of their prompts, I(X; Z); at most ln of the prompts.",
        "nats",
        "up",
    ),
    Metric("eval/retrieval_accuracy", "Share of thoughts that their own prompt makes likeliest.", "fraction", "up"),
    Metric("eval/random", "Success of uniform random valid actions, same levels and budget.", "fraction", "neither"),
    Metric(
        "eval/fixed_string",
        "Success of the best action string that never looks, same levels and budget.",
        "fraction",
        "neither",
    ),
    Metric("eval/optimal", "Success of optimal play, same levels and budget.", "fraction", "neither"),
    Metric("rollout/reward_mean", "Mean trajectory reward, penalties included.", "reward", "up"),
    Metric("rollout/env_return", "Mean sum of environment rewards, without penalties.", "reward", "up"),
    Metric(
        "rollout/reward_std_in_group",
        "Mean over groups of the in-group standard deviation of the reward.",
        "reward",
        "neither",
    ),
    Metric("rollout/zero_std_share", "Share of groups whose rewards are all equal.", "fraction", "down"),
    Metric("rollout/success", "Share of sampled trajectories that succeed.", "fraction", "up"),
    Metric("rollout/entropy", "Mean entropy of the sampling distribution over model tokens.", "nats", "neither"),
    Metric("rollout/response_tokens", "Mean model tokens per turn.", "tokens", "neither"),
    Metric("rollout/think_tokens", "Mean tokens inside <think> per turn.", "tokens", "neither"),
    Metric("rollout/turns", "Mean turns per trajectory.", "turns", "neither"),
    Metric("rollout/actions", "Mean executed actions per trajectory.", "actions", "neither"),
    Metric("rollout/format_error_rate", "Share of turns with no valid or any invalid action.", "fraction", "down"),
    Metric("rollout/truncated_share", "Share of replies cut at the token limit.", "fraction", "down"),
    Metric("rollout/error_share", "Share of trajectories ended by an error of the environment.", "fraction", "down"),
    Metric("rollout/template_share", "Share of the most common masked think template.", "fraction", "down"),
    Metric("rollout/template_share_success", "The same within successful trajectories.", "fraction", "down"),
    Metric("rollout/distinct_4", "Distinct 4-grams over all 4-grams of the think texts.", "fraction", "up"),
    Metric("rollout/grounded_share", "Share of the statements about the board that are true.", "fraction", "up"),
    Metric("rollout/statements", "Mean statements about the board per turn.", "statements", "neither"),
    Metric("rollout/shaping", "Mean reward of think texts and cost of length per trajectory.", "reward", "up"),
    Metric("filter/kept_groups", "Prompt groups kept for the update.", "groups", "neither"),
    Metric("filter/kept_share", "Share of prompt groups kept for the update.", "fraction", "neither"),
    Metric("filter/kept_std", "Mean in-group spread of the filter's score in the kept groups.", "reward", "neither"),
    Metric(
        "filter/all_equal", "1 if every group had the same spread, so that the filter could not choose.", "flag", "down"
    ),
    Metric("filter/kept_std_min", "Lowest spread that was kept: where the filter cut.", "reward", "neither"),
    Metric("filter/dropped_std_max", "Highest spread that was dropped (when any was).", "reward", "neither"),
    Metric("filter/kept_spread_share", "Share of the summed spread that the kept groups hold.", "fraction", "neither"),
    Metric("filter/kept_zero", "Kept groups without any spread.", "groups", "down"),
    Metric("filter/extra_rollouts", "Further rollouts taken to find groups with spread.", "rollouts", "down"),
    Metric("filter/sampled_groups", "Prompt groups sampled, further rollouts included.", "groups", "neither"),
    Metric("filter/full", "1 if as many groups had spread as the filter keeps at most.", "flag", "up"),
    Metric("check/faults", "Promises that the first update broke (train.check); the log names them.", "faults", "down"),
    Metric("train/updates", "Optimizer steps of the policy in this iteration.", "steps", "neither"),
    Metric("train/lr", "Learning rate of the policy.", "1/step", "neither"),
    Metric("train/policy_loss", "Clipped policy loss per token, before the entropy and KL terms.", "nats", "neither"),
    Metric("train/value_loss", "Clipped value loss per token (ppo).", "reward^2", "down"),
    Metric("train/entropy", "Mean entropy over the kept model tokens during the update.", "nats", "neither"),
    Metric("train/grad_norm", "L2 norm of the policy gradient before clipping, mean over steps.", "l2", "neither"),
    Metric("train/grad_norm_max", "Largest policy gradient norm of the iteration.", "l2", "neither"),
    Metric(
        "train/critic_grad_norm",
        "L2 norm of the critic gradient before clipping, mean over steps (ppo).",
        "l2",
        "neither",
    ),
    Metric("train/clip_fraction", "Share of tokens whose ratio lies outside the clip range.", "fraction", "neither"),
    Metric("train/log_ratio_abs", "Mean |log ratio| to the sampling policy: measured staleness.", "nats", "neither"),
    Metric("train/steps_old", "Mean optimizer steps between sampling a token and training on it.", "steps", "neither"),
    Metric("train/max_ratio", "Largest probability ratio that the loss used.", "ratio", "neither"),
    Metric("train/entropy_coef", "Weight of the entropy bonus in this iteration.", "1", "neither"),
    Metric("train/importance_mean", "Mean weight of the sampler correction (algo.importance_cap).", "ratio", "neither"),
    Metric("train/importance_capped", "Share of tokens whose sampler correction hit its cap.", "fraction", "down"),
    Metric("train/kl_old", "KL (k3) from the rollout policy to the updated one.", "nats", "neither"),
    Metric("train/kl_ref", "KL (k3) from the policy to the start policy (when KL is on).", "nats", "neither"),
    Metric(
        "train/explained_variance", "1 - Var(return - value) / Var(return) over model tokens (ppo).", "fraction", "up"
    ),
    Metric(
        "train/sampler_gap",
        "Mean |log-prob of the sampler - log-prob of the trainer| before the first step.",
        "nats",
        "down",
    ),
    Metric("time/rollout_seconds", "Seconds of the rollout phase.", "s", "down"),
    Metric("time/update_seconds", "Seconds of the update phase.", "s", "down"),
    Metric(
        "time/cpu_seconds",
        "CPU seconds of the process over all its threads: rollout, update and evaluation of the iteration.",
        "s",
        "down",
    ),
    Metric("time/eval_seconds", "Seconds of the evaluation.", "s", "down"),
    Metric("time/eval_tokens_per_second", "Sampled tokens per second of evaluation.", "tokens/s", "up"),
    Metric("time/probe_seconds", "Seconds of the reasoning probes.", "s", "down"),
    Metric("time/mutual_information_seconds", "Seconds of the mutual-information estimate.", "s", "down"),
    Metric("time/sets_seconds", "Seconds of the generalisation sets.", "s", "down"),
    Metric("time/rollout_tokens_per_second", "Sampled tokens per second of rollout.", "tokens/s", "up"),
    Metric(
        "time/update_tokens_per_second", "Trained tokens (context included) per second of update.", "tokens/s", "up"
    ),
    Metric("detect/level", "1 while the performance level has collapsed.", "flag", "down"),
    Metric(
        "detect/reward_std", "1 while the slow-reference alarm on the in-group reward spread is on.", "flag", "down"
    ),
    Metric("detect/grad_norm", "1 while the gradient-norm spike alarm is on.", "flag", "down"),
    Metric("detect/entropy", "1 while the entropy is outside its band.", "flag", "down"),
    Metric("detect/non_finite", "1 when a loss, gradient or reward is NaN or infinite.", "flag", "down"),
    Metric("detect/stop", "1 from the iteration at which the vote calls the run collapsed.", "flag", "down"),
)

# Measured on every generalisation set too, as ``eval/success/<set>`` and so on.
ON_SETS: tuple[str, ...] = (
    "eval/success",
    "eval/success_low",
    "eval/success_high",
    "eval/reward",
    "eval/random",
    "eval/fixed_string",
    "eval/optimal",
)


def describe(name: str) -> Metric | None:
    """The catalogue's entry of a metric; of a generalisation set's metric, its sentence with the set named."""
    base, _, which = name.rpartition("/")
    if base in ON_SETS:
        metric = METRICS[base]
        return Metric(name, f"{metric.sentence[:-1]}, on the generalisation set '{which}'.", metric.unit, metric.better)
    return METRICS.get(name)
