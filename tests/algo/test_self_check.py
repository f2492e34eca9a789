"""The self-check of the first update: each promise, broken on purpose, is named; a sound update passes."""

from __future__ import annotations

import logging
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from ragen_lab import train as trainer
from ragen_lab.algo.advantages import ALGORITHMS
from ragen_lab.algo.self_check import self_check
from ragen_lab.algo.totals import Totals
from ragen_lab.errors import SelfCheckError
from ragen_lab.rollout.engine import LOGPROB_TOLERANCE
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason, Trajectory, TrajectoryGroup
from tests.algo.tabular import OBSERVATIONS, config, group, learner, sample
from tests.algo.test_oracle import shifted

OBSERVE = OBSERVATIONS["talking"]


def prepared(check, name="grpo", **knobs):
    cfg = config(algo__name=name, rollout__responses=8, train__check=check, optim__updates_per_rollout=2, **knobs)
    agent = learner(cfg, OBSERVE)
    drawn = sample(agent.policy.model, 32, OBSERVE, np.random.default_rng(3))
    return agent, [group(agent.policy.model, drawn[i : i + 8], OBSERVE) for i in range(0, 32, 8)]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_pitfall_15_a_sound_first_update_passes(name):
    """Pitfall 15: ratio 1, KL below 1e-6, entropy within [0, ln V], the sampler's log-probs."""
    agent, groups = prepared("strict", name)
    assert agent.update(groups, 1)["check/faults"] == 0.0


def noisy(compute):
    """Log-probs as with dropout on: no two forwards agree."""

    def wrapped(*args):
        logprob_N, entropy_N = compute(*args)
        return logprob_N + 0.1 * torch.randn_like(logprob_N), entropy_N

    return wrapped


def break_it(what, groups, monkeypatch):
    """(groups as a faulty rollout would give them, names of the promises that are broken)."""
    members = [g.trajectories for g in groups]
    compute = trainer.token_logprobs
    if what == "dropout":
        torch.manual_seed(0)
        monkeypatch.setattr(trainer, "token_logprobs", noisy(compute))
        return groups, {"ratio", "kl", "sampler"}
    if what == "temperature in training only":
        monkeypatch.setattr(trainer, "token_logprobs", lambda model, batch, t: compute(model, batch, 0.7))
        return groups, {"sampler"}
    if what == "mask shifted by one":
        monkeypatch.setattr(trainer, "make_batch", shifted)
        return groups, {"sampler"}
    if what == "entropy shifted":
        monkeypatch.setattr(trainer, "token_logprobs", lambda *a: (compute(*a)[0], compute(*a)[1] + 1.2))
        return groups, {"entropy"}
    if what == "entropy not a number":
        monkeypatch.setattr(trainer, "token_logprobs", lambda *a: (compute(*a)[0], compute(*a)[1] * math.nan))
        return groups, {"entropy"}
    if what == "copies":
        return [TrajectoryGroup(0, (m[0],) * 8) for m in members], {"members"}
    if what == "another level":
        return [TrajectoryGroup(0, (replace(m[0], level_seed=7), *m[1:])) for m in members], {"prompts"}
    assert what == "another prompt"
    other = members[0][0].ids_T.copy()
    other[0] = 1
    return [TrajectoryGroup(0, (replace(members[0][0], ids_T=other), *members[0][1:])), *groups[1:]], {
        "prompts",
        "sampler",
    }


WHAT = [
    "dropout",
    "temperature in training only",
    "mask shifted by one",
    "entropy shifted",
    "entropy not a number",
    "copies",
    "another level",
    "another prompt",
]


@pytest.mark.parametrize("what", WHAT)
def test_what_is_broken_is_named(what, monkeypatch, caplog):
    """strict stops with the names; warn says the same, counts it, and goes on."""
    agent, groups = prepared("strict")
    broken, names = break_it(what, groups, monkeypatch)
    with pytest.raises(SelfCheckError) as caught:
        agent.update(broken, 1)
    told = str(caught.value).splitlines()[1:]
    assert {line.split(":")[0] for line in told} == names
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    agent, _ = prepared("warn")
    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING):
        metrics = agent.update(broken, 1)
    assert metrics["check/faults"] == len(names)
    assert all(any(f": {name}: " in line for line in caplog.messages) for name in names)


def test_only_the_first_update_is_checked(monkeypatch):
    agent, groups = prepared("strict")
    broken, _ = break_it("copies", groups, monkeypatch)
    assert "check/faults" not in agent.update(broken, 2)


def test_the_check_changes_no_number():
    found = {}
    for check in ("strict", "warn", "off"):
        agent, groups = prepared(check)
        metrics = agent.update(groups, 1)
        assert ("check/faults" in metrics) == (check != "off")
        metrics.pop("check/faults", None)
        found[check] = (metrics, agent.policy.model.table.detach().clone())
    for check in ("warn", "off"):
        assert found[check][0] == found["strict"][0]
        assert torch.equal(found[check][1], found["strict"][1])


def first_step(**numbers):
    """Totals of a first step of one token in which all is well, but for ``numbers``."""
    totals = Totals()
    totals.tokens, totals.entropy_range = 1, numbers.get("entropy_range", (0.0, 1.0))
    totals.drift_max = numbers.get("drift", 0.0)
    totals.sums["kl"] = numbers.get("kl", 0.0)
    return totals


@pytest.mark.parametrize(
    ("dtype", "numbers", "gap", "names"),
    [
        ("float32", {"drift": 9e-4, "kl": 9e-7}, (9e-5, 9e-4), []),
        ("float32", {"drift": 2e-3}, (0, 0), ["ratio"]),
        ("float32", {"kl": 2e-6}, (0, 0), ["kl"]),
        ("float32", {}, (2e-4, 2e-4), ["sampler"]),
        ("float32", {}, (5e-5, 5e-2), ["sampler"]),  # one token far off hides in a mean
        ("float32", {}, (math.nan, math.nan), ["sampler"]),
        ("bfloat16", {"drift": 0.4, "kl": 9e-3}, (2e-2, 0.4), []),
        ("bfloat16", {"drift": 0.6}, (0, 0), ["ratio"]),
        ("bfloat16", {"kl": 2e-2}, (0, 0), ["kl"]),
        ("bfloat16", {}, (2e-2, 0.6), ["sampler"]),
        ("float32", {"entropy_range": (-0.01, 1.0)}, (0, 0), ["entropy"]),
        ("float32", {"entropy_range": (0.0, 1.2)}, (0, 0), ["entropy"]),  # ln 3 = 1.0986
    ],
)
def test_pitfall_15_17_each_bound_of_each_number_format(dtype, numbers, gap, names):
    """Pitfalls 15, 17."""
    faults = self_check([], first_step(**numbers), gap, LOGPROB_TOLERANCE[dtype], 3, dtype)
    assert [fault.split(":")[0] for fault in faults] == names


def copies(probability, responses, level):
    """A group whose members all say the same two tokens, of ``probability`` together."""
    one = Trajectory(
        np.array([0, 1, 2]), np.array([CONTEXT, MODEL, MODEL], dtype=np.int8), np.zeros(3, dtype=np.int16),
        np.array([np.nan, math.log(probability) / 2, math.log(probability) / 2], dtype=np.float32),
        (), StopReason.TURNS, level, 0,
    )  # fmt: skip
    return TrajectoryGroup(level, (one,) * responses)


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        ([copies(0.9, 8, 0), copies(0.9, 8, 1)], False),  # 0.9^14 = 0.23: a sure policy says the same
        ([copies(0.9, 200, 0)], True),  # 0.9^199 = 8e-10
        ([copies(0.1, 5, 0)], False),  # 1e-4
        ([copies(0.1, 8, 0)], True),  # 1e-7
        ([copies(0.1, 4, 0), copies(0.1, 5, 1)], True),  # 1e-3 x 1e-4: rare together
        ([copies(0.1, 1, 0), copies(0.001, 1, 1)], False),  # groups of one have nobody to equal
    ],
)
def test_pitfall_19_equal_members_are_a_fault_where_chance_does_not_make_them(groups, fault):
    """Pitfall 19: n equal responses of probability p come by chance with p^(n - 1)."""
    faults = self_check(groups, first_step(), (0.0, 0.0), 1e-4, 3, "float32")
    assert [f.split(":")[0] for f in faults] == (["members"] if fault else [])


def test_pitfall_19_one_group_of_copies_among_sound_ones_is_seen():
    """Pitfall 19: one of four; that any of the four could be it makes the chance four times as large."""
    _, groups = prepared("strict")
    for copied, faults in ((copies(0.5, 22, 9), 0), (copies(0.5, 23, 9), 1)):  # 4 x 2^-21 = 1.9e-6;  4 x 2^-22 = 9.5e-7
        found = self_check([*groups[:3], copied], first_step(), (0.0, 0.0), 1e-4, 3, "float32")
        assert len(found) == faults
        assert all(fault.startswith("members: in 1 of 4 groups") for fault in found)
