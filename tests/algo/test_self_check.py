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
from ragen_lab.errors import SelfCheckError
from ragen_lab.trajectory import TrajectoryGroup
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
