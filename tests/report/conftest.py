"""Made-up runs with the shapes of real ones, for the tests of the report; numbers are drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ragen_lab.config import RunConfig
from ragen_lab.detect import replay
from ragen_lab.findings.base import FindingResult, Test, Verdict
from ragen_lab.findings.tables import outcomes_of, standard_tables
from ragen_lab.report.data import wilson
from ragen_lab.runs import Row, Run, RunTable

# start -> end of the level, iteration at which it falls or None, per arm and seed
LEVELS: dict[float, tuple[tuple[float, int | None], ...]] = {
    1.0: ((0.60, None), (0.50, 34), (0.52, None)),
    0.5: ((0.61, None), (0.56, None), (0.58, None)),
    0.25: ((0.46, 22), (0.50, 15), (0.55, 38)),
}
PROVENANCE = {
    "ragen_lab": "0.1.0",
    "commit": "0d1ad65f00d",
    "uncommitted_changes": False,
    "host": "lab-7",
    "python": "3.11.7",
    "torch": "2.13.0",
    "sessions": 1,
    "code_versions": 1,
}


def rows_of(
    rng: np.random.Generator, keep: float, end: float, falls: int | None, horizon: int = 60, every: int = 5
) -> list[Row]:
    """Rows of one run: learning from 0.44, a fall to 0.12 where ``falls`` says so."""
    rows = []
    for i in range(horizon + 1):
        level = 0.44 + (end - 0.44) * (1 - math.exp(-i / 12))
        sunk = 0.0 if falls is None or i < falls else 1 - math.exp(-(i - falls) / 3)
        level = level * (1 - sunk) + 0.12 * sunk
        row: Row = {"iteration": float(i), "timestamp": 1.7e9 + i}
        if i:
            row |= {
                "rollout/reward_mean": level - 0.05 + rng.normal(0, 0.02),
                "rollout/success": float(np.clip(level - 0.08 + rng.normal(0, 0.03), 0, 1)),
                "rollout/reward_std_in_group": float(
                    max(0.38 * (1 - 0.93 * sunk) * (1 - 0.002 * i) + rng.normal(0, 0.015), 0.0)
                ),
                "rollout/zero_std_share": float(np.clip(0.2 + 0.7 * sunk + rng.normal(0, 0.05), 0, 1)),
                "rollout/entropy": 0.5 * math.exp(-i / 60) * (1 - 0.9 * sunk) + abs(rng.normal(0, 0.01)),
                "train/grad_norm": float(np.exp(rng.normal(-0.7 + 2.2 * (0 < sunk < 0.95), 0.25))),
                "rollout/template_share": float(
                    np.clip(0.15 + 0.75 * (1 - math.exp(-i / 15)) + rng.normal(0, 0.02), 0, 1)
                ),
                "rollout/think_tokens": 12 - 6 * (1 - math.exp(-i / 20)) + rng.normal(0, 0.3),
                "time/rollout_seconds": 0.45 + abs(rng.normal(0, 0.03)),
                "time/update_seconds": 0.75 * keep + 0.06 + abs(rng.normal(0, 0.02)),
            }
        if i % every == 0:
            success = rng.binomial(256, level) / 256
            low, high = wilson(success, 256)
            row |= {
                "eval/success": success,
                "eval/success_low": low,
                "eval/success_high": high,
                "eval/random": 0.2121,
                "eval/fixed_string": 0.3281,
                "eval/optimal": 1.0,
                "time/eval_seconds": 1.1,
            }
        rows.append(row)
    return rows


def run_of(keep: float, seed: int, arm: str, end: float, falls: int | None, stop: bool) -> Run:
    """One run of the sweep; with ``stop`` it ends where the vote says so."""
    cfg = RunConfig().with_overrides(
        {
            "env.name": "frozen_lake",
            "env.slip": 0.0,
            "policy.model": "tiny",
            "prompt.style": "compact",
            "algo.name": "grpo",
            "filter.keep_ratio": keep,
            "optim.lr": 2e-3,
            "train.iterations": 60,
            "eval.every": 5,
            "seed": seed,
        }
    )
    rows = rows_of(np.random.default_rng([seed, int(keep * 100)]), keep, end, falls)
    verdicts = replay(rows, cfg.detect, cfg.train.iterations)
    rows = [row | flags for row, flags in zip(rows, verdicts.flags, strict=True)]
    stopped = verdicts.stop if stop else None
    if stopped:
        rows = [row for row in rows if row["iteration"] <= stopped.iteration]
    return Run(
        trial_id=cfg.trial_id(),
        config_id=cfg.config_id(),
        sweep="filter_ratio",
        arm=arm,
        seed=seed,
        params=cfg.flat(),
        rows=tuple(rows),
        status="collapsed" if stopped else "finished",
        stop_iteration=stopped.iteration if stopped else None,
        stop_reason=stopped.reason if stopped else None,
        provenance=PROVENANCE,
    )


def table(arms: Sequence[str] = ("keep_ratio=1.0", "keep_ratio=0.5", "keep_ratio=0.25"), stop: bool = True) -> RunTable:
    """3 arms x 3 seeds."""
    return RunTable(
        tuple(
            run_of(keep, seed, arm, end, falls, stop)
            for arm, (keep, seeds) in zip(arms, LEVELS.items(), strict=True)
            for seed, (end, falls) in enumerate(seeds)
        )
    )


def results(runs: RunTable) -> list[FindingResult]:
    """A judgement with the shapes of finding 4's, and one that cannot be made."""
    tests = (
        Test(
            name="trend log-rank over keep ratios, permuted within seed",
            question="Do runs that keep fewer groups collapse later?",
            environment="frozen_lake",
            n="3 arms x 3 seeds",
            effect=-14.271828,
            low=-31.5,
            high=3.125,
            unit="iterations of restricted mean survival time",
            p=0.9136,
            smallest_p=0.0046296,
            sesoi=6.0,
            verdict=Verdict.CONTRADICTED,
            note="Three stops by the detectors count as collapses; without them the verdict is the same.",
        ),
        Test(
            name="Page trend over keep ratios",
            question="Does final success rise as fewer groups are kept?",
            environment="frozen_lake",
            n="3 arms x 3 seeds",
            effect=-0.2113,
            low=math.nan,
            high=math.nan,
            unit="success",
            p=math.nan,
            smallest_p=0.0046296,
            sesoi=0.05,
            verdict=Verdict.INCONCLUSIVE,
        ),
    )
    return [
        FindingResult(
            number=4,
            title="Filtering low-variance groups",
            claim="Keeping only the prompt groups with a high spread of reward makes training more stable.",
            verdict=Verdict.INCONCLUSIVE,
            headline="Keeping half of the groups was steadiest (0 of 3 runs collapsed, final success 0.57), keeping a "
            "quarter the least (3 of 3, 0.13): not a trend, but an optimum in between, which 3 seeds "
            "cannot tell from chance.",
            tests=tests,
            warnings=(
                "The keep ratio also sets the number of updates per iteration (4, 2, 1): arms differ in two things.",
                "Three runs were stopped by the detectors; as collapses or as censored, the verdict holds.",
            ),
            tables=standard_tables(outcomes_of(runs)),
        ),
        FindingResult(
            number=3,
            title="Early signs of collapse",
            claim="Reward spread and entropy move before the mean reward does.",
            verdict=Verdict.NOT_TESTABLE,
            headline="Not testable yet.",
            needs=("runs that go on after an alarm (on_collapse: continue)", "at least 5 collapsed runs (3 there)"),
        ),
    ]


HOSTILE = "<script>alert(1)</script> & \"x\" 'y' </table>"


def hostile_table() -> RunTable:
    """An arm of hostile name, NaN values, a failed run, one that never began, and metrics that are missing."""
    runs = list(table(arms=(HOSTILE, "keep_ratio=0.5", "<b>bold</b>")).runs)
    broken = [dict(row) for row in runs[3].rows]
    broken[20]["train/grad_norm"] = math.nan
    broken[20]["eval/success"] = math.nan
    broken[21]["rollout/entropy"] = math.inf
    runs[3] = replace(runs[3], rows=tuple(broken))
    runs[4] = replace(runs[4], status="failed", rows=runs[4].rows[:7], stop_reason="</script><img src=http://x.test/a>")
    runs[5] = replace(runs[5], status="pending", rows=())
    runs[6] = replace(
        runs[6],
        rows=tuple({k: v for k, v in row.items() if not k.startswith(("detect/", "time/"))} for row in runs[6].rows),
    )
    return RunTable(tuple(runs))


@pytest.fixture(scope="session")
def runs() -> RunTable:
    """3 arms x 3 seeds, four of them stopped."""
    return table()


@pytest.fixture(scope="session")
def shadow_runs() -> RunTable:
    """The same in shadow mode: alarms are logged, all runs go on."""
    return table(stop=False)


@pytest.fixture(scope="session")
def hostile() -> RunTable:
    return hostile_table()


@pytest.fixture(scope="session")
def judge() -> Callable[[RunTable], list[FindingResult]]:
    return results
