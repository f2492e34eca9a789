"""Findings 1, 2, 3, 5, 6, the tables, and judging all of them at once."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from ragen_lab.findings import finding_1_single_turn as f1
from ragen_lab.findings import finding_2_echo_trap as f2
from ragen_lab.findings import finding_3_early_signs as f3
from ragen_lab.findings import finding_5_rollouts as f5
from ragen_lab.findings import finding_6_reward_design as f6
from ragen_lab.findings import registry
from ragen_lab.findings.base import FindingResult, Verdict
from ragen_lab.findings.registry import FINDINGS, evaluate_all
from ragen_lab.findings.tables import gain_over_start, outcomes_of, standard_tables

GRPO, PPO = {"algo.name": "grpo"}, {"algo.name": "ppo"}
ONE_TURN = {"rollout.max_turns": 1}


def recipe_runs(make, seeds: int, ppo_at=(30, 40), grpo_at=(10, 15), single=True):
    runs = []
    for seed in range(seeds):
        runs.append(make(seed, GRPO, collapse_at=grpo_at[seed % 2]))
        runs.append(make(seed, PPO, collapse_at=ppo_at[seed % 2]))
        if single:
            runs += [make(seed, {**GRPO, **ONE_TURN}), make(seed, {**PPO, **ONE_TURN})]
    return runs


def test_finding_1_supported(make, table) -> None:
    result = f1.evaluate(table(recipe_runs(make, 5)))
    assert result.verdict is Verdict.SUPPORTED, result.headline
    critic = next(t for t in result.tests if t.name == f1.CRITIC)
    assert critic.effect > 6
    assert critic.p == pytest.approx(2**-5)
    turns = next(t for t in result.tests if t.name == f1.MULTI_TURN and t.environment == "pooled")
    assert turns.p == pytest.approx(2**-10)  # two algorithms x five seeds


def test_finding_1_contradicted_when_the_critic_hastens(make, table) -> None:
    result = f1.evaluate(table(recipe_runs(make, 5, ppo_at=(10, 15), grpo_at=(30, 40))))
    assert result.verdict is Verdict.CONTRADICTED


def test_finding_1_says_what_is_missing(make, table) -> None:
    result = f1.evaluate(table(recipe_runs(make, 3, single=False)))
    assert result.verdict is Verdict.NOT_TESTABLE
    assert any("single-turn control" in need for need in result.needs)
    assert any("5 seeds" in need for need in result.needs)
    only_grpo = f1.evaluate(table([make(s, GRPO, collapse_at=10) for s in range(5)]))
    assert any("ppo and grpo" in need for need in only_grpo.needs)
    nothing = f1.evaluate(table([make(0, {"filter.keep_ratio": 0.25})]))
    assert nothing.verdict is Verdict.NOT_TESTABLE
    assert "keep every group" in nothing.needs[0]


def test_finding_1_does_not_count_filtered_runs_or_bandits(make, table) -> None:
    runs = [make(s, {**GRPO, "filter.keep_ratio": 0.5}, collapse_at=10) for s in range(5)]
    runs += [make(s, {**GRPO, "env.name": "bandit"}, collapse_at=10) for s in range(5)]
    assert f1.evaluate(table(runs)).tests == ()


def shadow_runs(make, collapses, spread_lead: int | None, spike: bool = True, healthy: int = 6):
    """Runs with spread and entropy that fall ``spread_lead`` iterations before the collapse begins."""
    runs = []
    for seed, at in enumerate([*collapses, *([None] * healthy)]):
        run = make(seed, {"filter.keep_ratio": 1.0}, collapse_at=at, iterations=120, random_line=None, noise=0.005)
        rng = np.random.default_rng(seed)
        rows = []
        for row in run.rows:
            i = row["iteration"]
            signs = {
                "rollout/reward_std_in_group": 0.4 + 0.01 * rng.normal(),
                "rollout/entropy": 1.0 + 0.01 * rng.normal(),
                "train/grad_norm": float(np.exp(0.1 * rng.normal())),
            }
            if at is not None and spread_lead is not None and i >= at - spread_lead:
                signs |= {"rollout/reward_std_in_group": 0.01, "rollout/entropy": 0.01}
            if at is not None and spike and at - 2 <= i <= at + 1:
                signs["train/grad_norm"] = 30.0
            rows.append({**row, **{k: float(v) for k, v in signs.items()}} if i else row)
        runs.append(replace(run, rows=tuple(rows)))
    return runs


COLLAPSES = (50, 60, 70, 80, 90, 100)


def test_finding_3_supported_when_the_signs_lead(make, table) -> None:
    result = f3.evaluate(table(shadow_runs(make, COLLAPSES, spread_lead=25)))
    assert result.verdict is Verdict.SUPPORTED, result.headline + str(result.tests)
    lead = next(t for t in result.tests if t.name == f3.SPREAD)
    assert lead.effect > 15
    assert "0 of 6 healthy" in lead.note
    assert {row["seed"] for row in result.tables["Lead times"]} == set(range(12))


def test_finding_3_contradicted_when_the_signs_come_after(make, table) -> None:
    result = f3.evaluate(table(shadow_runs(make, COLLAPSES, spread_lead=-3)))
    assert next(t for t in result.tests if t.name == f3.SPREAD).verdict is Verdict.CONTRADICTED
    assert result.verdict is Verdict.CONTRADICTED


def test_finding_3_placebo_sees_alarms_that_only_tell_the_time(make, table) -> None:
    """All spreads vanish at 30, whenever the collapse comes: a lead, but not of this collapse."""
    runs = shadow_runs(make, COLLAPSES, spread_lead=None)
    early = {"rollout/reward_std_in_group": 0.01, "rollout/entropy": 0.01}
    for i, run in enumerate(runs[:6]):
        rows = [row | early if row["iteration"] >= 30 + i % 2 else row for row in run.rows]
        runs[i] = replace(run, rows=tuple(rows))
    result = f3.evaluate(table(runs))
    assert next(t for t in result.tests if t.name == f3.SPREAD).verdict is Verdict.SUPPORTED
    placebo = next(t for t in result.tests if t.name == f3.PLACEBO)
    assert placebo.verdict is not Verdict.SUPPORTED
    assert placebo.p > 0.2
    assert result.verdict is placebo.verdict


def test_finding_3_needs_shadow_runs_of_both_kinds(make, table) -> None:
    result = f3.evaluate(table([make(0), make(1, status="collapsed", stop_at=20)]))
    assert result.verdict is Verdict.NOT_TESTABLE
    assert any("5 collapsed shadow runs" in need and "now 0" in need for need in result.needs)
    assert any("left out" in warning for warning in result.warnings)


def test_finding_3_leaves_out_runs_that_the_detectors_stopped(make, table) -> None:
    """A run that the alarm itself ended would prove the alarm right."""
    runs = shadow_runs(make, COLLAPSES, spread_lead=25)
    stopped = [replace(run, status="collapsed") if run.seed < 2 else run for run in runs]
    result = f3.evaluate(table(stopped))
    assert result.verdict is Verdict.NOT_TESTABLE
    assert "now 4" in result.needs[0]


def test_finding_2_counts_thinking_runs(make, table) -> None:
    result = f2.evaluate(table([make(s) for s in range(3)]))
    assert result.verdict is Verdict.NOT_TESTABLE
    assert any("at least 5 seeds (now 0)" in need for need in result.needs)

    def told(run):
        rows = tuple({**row, "rollout/template_share": 0.5, "rollout/distinct_4": 0.5} for row in run.rows)
        return replace(run, rows=rows)

    enough = f2.evaluate(table([told(make(s)) for s in range(5)]))
    assert enough.verdict is Verdict.NOT_TESTABLE
    assert enough.needs == ()
    assert "this version does not evaluate" in enough.headline


def test_finding_5_counts_levels_of_each_part(make, table) -> None:
    result = f5.evaluate(table([make(s) for s in range(3)]))
    assert [need[:2] for need in result.needs] == ["5a", "5b", "5c"]
    shapes = [(32, 4), (16, 8), (8, 16)]
    batches = [make(s, {"rollout.prompts": p, "rollout.responses": r}) for p, r in shapes for s in range(2)]
    assert [need[:2] for need in f5.evaluate(table(batches)).needs] == ["5b", "5c"]
    fixed = [make(r.seed, {k: r.params[k] for k in f5.BATCH} | {f5.UPDATES: 4}) for r in batches]
    assert [need[:2] for need in f5.evaluate(table(fixed)).needs] == ["5b", "5c"]  # one value of updates is no ladder
    uneven = [make(s, {"rollout.prompts": p}) for p in (4, 8, 16) for s in range(2)]
    assert f5.evaluate(table(uneven)).needs[0].startswith("5a")  # the batch grows: not the claim's design
    budgets = [make(s, {"rollout.actions_per_turn": k, "rollout.max_actions": 50}) for k in (1, 5, 7) for s in range(2)]
    result = f5.evaluate(table(budgets))
    assert any(need.startswith("5b") for need in result.needs)
    assert any("budget of actions differs" in warning for warning in result.warnings)
    fair = [make(s, {"rollout.actions_per_turn": k, "rollout.max_actions": 5}) for k in (1, 5, 7) for s in range(2)]
    assert not any(need.startswith("5b") for need in f5.evaluate(table(fair)).needs)


def test_finding_6_counts_think_and_reward_arms(make, table) -> None:
    result = f6.evaluate(table([make(s) for s in range(5)]))
    assert any("no-think" in need for need in result.needs)
    assert any("reasoning-aware reward" in need for need in result.needs)
    both = [make(s, {"prompt.think": think}) for think in (True, False) for s in range(5)]
    assert not any("no-think" in need for need in f6.evaluate(table(both)).needs)
    rewarded = [make(s, {"reward.reasoning": kind}) for kind in ("none", "grounded") for s in range(5)]
    assert not any("reasoning-aware reward" in need for need in f6.evaluate(table(rewarded)).needs)


def test_every_finding_answers_for_any_runs(make, table) -> None:
    for runs in ([], [make(0)], [make(0, status="failed")], [replace(make(0), params={}), replace(make(1), rows=())]):
        results = evaluate_all(table(runs))
        assert [result.number for result in results] == [1, 2, 3, 4, 5, 6]
        for result in results:
            assert result.verdict is Verdict.NOT_TESTABLE
            assert result.needs
            assert result.title == FINDINGS[result.number].title
            assert result.claim == FINDINGS[result.number].claim


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_no_sentence_tells_a_number_that_there_is_not(make, table, seeds: int) -> None:
    """One seed has no interval, and 'nan to nan' is no answer."""
    ladder = [
        make(s, {**GRPO, "filter.keep_ratio": k}, collapse_at=10 + 40 * (k < 1))
        for k in (1.0, 0.25)
        for s in range(seeds)
    ]
    results = evaluate_all(table([*recipe_runs(make, seeds), *ladder]))
    said = [
        text for each in results for text in (each.headline, *each.needs, *each.warnings, *(t.note for t in each.tests))
    ]
    assert any("moves the mean time to collapse" in text for text in said)
    assert [text for text in said if re.search(r"\b(nan|inf|None)\b", text)] == []
    assert any("too few seeds for an interval" in text for text in said) is (seeds == 1)


def test_holm_counts_the_findings_tested(make, table, monkeypatch) -> None:
    """Two tested findings: 0.03 alone becomes 0.06 and is no longer enough; 0.01 becomes 0.02 and is."""
    first = f1.evaluate(table(recipe_runs(make, 5)))

    def with_p(number: int, p: float) -> FindingResult:
        tests = tuple(replace(t, p=p, name=FINDINGS[number].decisive[0]) for t in first.tests[:1])
        return replace(first, number=number, tests=tests, verdict=Verdict.SUPPORTED, headline="Yes.")

    def judge(p1: float, p4: float) -> list[Verdict]:
        monkeypatch.setattr(f1, "evaluate", lambda runs: with_p(1, p1))
        monkeypatch.setattr(registry.finding_4_filtering, "evaluate", lambda runs: with_p(4, p4))
        results = {result.number: result for result in evaluate_all(table([]))}
        assert "Holm" in results[1].headline
        return [results[1].verdict, results[4].verdict]

    assert judge(0.03, 0.03) == [Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE]
    assert judge(0.03, 0.01) == [Verdict.SUPPORTED, Verdict.SUPPORTED]
    assert judge(0.05, 0.01) == [Verdict.SUPPORTED, Verdict.SUPPORTED]


def test_gain_over_the_start_is_paired_within_runs(make, table) -> None:
    runs = [make(s, {"optim.lr": 1e-3}, final=0.6, start=0.3 + 0.05 * s) for s in range(3)]
    runs += [make(s, {"optim.lr": 1e-2}, final=0.41, start=0.4, noise=0.05) for s in range(3)]
    rows = {row["arm"]: row for row in gain_over_start(table(runs))}
    stable = rows["optim.lr=0.001"]
    # gains about 0.3, 0.25, 0.2 less what the last three evaluations lack of the line's end (5 of 60)
    assert stable["gain"] == pytest.approx(0.25 * 55 / 60, abs=0.02)
    assert stable["clear"]
    assert 0 < stable["gain_low"] < stable["gain"] < stable["gain_high"]
    assert (stable["seeds"], stable["p"], stable["smallest_p"]) == (3, 0.125, 0.125)
    assert not rows["optim.lr=0.01"]["clear"]
    alone = gain_over_start(table([make(0)]))[0]
    assert (alone["gain_low"], alone["clear"]) == (None, False)


def test_survival_table_lists_the_numbers_at_risk(make, table) -> None:
    runs = [make(0, {}, collapse_at=10), make(1, {}), make(2, {})]
    rows = standard_tables(outcomes_of(table(runs)))["Survival"]
    assert [row["at_risk"] for row in rows] == [3, 3, 2]
    assert [row["survival"] for row in rows] == pytest.approx([1, 2 / 3, 2 / 3])
