"""The loop around the iterations: a collapse stops it, and a checkpoint is this trial's or it is refused."""

from __future__ import annotations

import math

import pytest
import torch

from ragen_lab.errors import CheckpointError
from ragen_lab.track import FolderTracker, list_checkpoints
from ragen_lab.train import Learner, train
from tests.test_train import config, fresh_learner, parameters

SEVERAL = {"algo__name": "grpo", "train__checkpoint_every": 4}


def breaks_at(monkeypatch, iteration):
    """Updates whose loss is NaN from this iteration on."""
    update = Learner.update

    def broken(self, groups, i):
        metrics = update(self, groups, i)
        return metrics | ({"train/policy_loss": math.nan} if i >= iteration else {})

    monkeypatch.setattr(Learner, "update", broken)


def test_pitfall_22_a_collapse_stops_the_real_trainer_and_is_kept(shared_home, tmp_path, monkeypatch):
    """Pitfall 22: the row with the NaN is written, a checkpoint is taken there and then, and nothing follows."""
    cfg = config(**SEVERAL)
    breaks_at(monkeypatch, 2)
    tracker = FolderTracker(tmp_path, cfg)
    outcome = train(cfg, tracker, shared_home)
    assert (outcome.status, outcome.iteration) == ("collapsed", 2)
    assert outcome.reason
    assert [row["iteration"] for row in tracker.rows] == [0, 1, 2]
    assert math.isnan(tracker.rows[2]["train/policy_loss"])
    assert [row["detect/stop"] for row in tracker.rows] == [0.0, 0.0, 1.0]
    assert [i for i, _ in list_checkpoints(tmp_path)] == [0, 2]

    again = FolderTracker(tmp_path, cfg)  # a stopped run stays stopped, with the same words
    assert train(cfg, again, shared_home) == outcome
    assert len(again.rows) == 3


def test_a_collapse_is_only_told_under_continue(shared_home, tmp_path, monkeypatch):
    cfg = config(**SEVERAL, detect__on_collapse="continue")
    breaks_at(monkeypatch, 2)
    tracker = FolderTracker(tmp_path, cfg)
    outcome = train(cfg, tracker, shared_home)
    assert (outcome.status, outcome.iteration, outcome.reason) == ("finished", 4, None)
    assert [row["iteration"] for row in tracker.rows] == [0, 1, 2, 3, 4]
    assert tracker.rows[2]["detect/stop"] == 1.0
    assert [i for i, _ in list_checkpoints(tmp_path)] == [0, 4]


def test_rows_and_checkpoints_come_when_they_are_due(shared_home, tmp_path):
    """Row 0 and every ``eval.every``-th are evaluated; the last iteration is always kept."""
    cfg = config(algo__name="grpo", train__iterations=4, train__checkpoint_every=3, train__keep_checkpoints=9)
    tracker = FolderTracker(tmp_path, cfg)
    assert train(cfg, tracker, shared_home).status == "finished"
    assert [i for i, _ in list_checkpoints(tmp_path)] == [0, 3, 4]
    assert [row["iteration"] for row in tracker.rows if "eval/success" in row] == [0, 2, 4]
    assert [row["iteration"] for row in tracker.rows if "train/policy_loss" in row] == [1, 2, 3, 4]


def test_pitfall_20_a_checkpoint_holds_all_that_training_changes(shared_home, tmp_path):
    """Pitfall 20: policy, critic and both optimizers; what is loaded goes on exactly as what was saved."""
    learner = fresh_learner(shared_home, algo__name="ppo", optim__critic_lr=1e-2)
    groups = learner.roll_out(1).groups
    learner.update(groups, 1)
    learner.save(tmp_path / "state", 1)
    saved = parameters(learner).clone()
    other = fresh_learner(shared_home, algo__name="ppo", optim__critic_lr=1e-2)
    assert not torch.equal(parameters(other), saved)
    assert other.load(tmp_path / "state") == 1
    assert torch.equal(parameters(other), saved)
    left, right = (
        {k: v for k, v in agent.update(groups, 2).items() if not k.startswith("time/")} for agent in (learner, other)
    )
    assert left == right
    assert torch.equal(parameters(other), parameters(learner)), "moments of both optimizers included"


def test_pitfall_21_another_trial_s_checkpoint_is_refused(shared_home, tmp_path):
    """Pitfall 21: the trial id decides, and the message names both; nothing has been loaded."""
    first, other = fresh_learner(shared_home, algo__name="grpo"), fresh_learner(shared_home, algo__name="grpo", seed=1)
    first.update(first.roll_out(1).groups, 1)
    first.save(tmp_path / "state", 1)
    before = parameters(other).clone()
    with pytest.raises(CheckpointError, match="belongs to") as caught:
        other.load(tmp_path / "state")
    assert first.cfg.trial_id() in str(caught.value)
    assert other.cfg.trial_id() in str(caught.value)
    assert torch.equal(parameters(other), before)


@pytest.mark.parametrize("what", ["empty", "text", "pickle", "half", "last byte", "missing", "folder"])
def test_a_damaged_checkpoint_cannot_be_read(shared_home, tmp_path, what):
    """Cut short at any place, foreign, or not there: one error that names the file."""
    learner = fresh_learner(shared_home, algo__name="grpo")
    file = tmp_path / "state"
    learner.save(file, 1)
    whole = file.read_bytes()
    contents = {
        "empty": b"",
        "text": b"not a checkpoint",
        "pickle": b"\x80\x02cos\nsystem\nq\x00.",
        "half": whole[: len(whole) // 2],
        "last byte": whole[:-1],
    }
    file.unlink()
    if what in contents:
        file.write_bytes(contents[what])
    elif what == "folder":
        file.mkdir()
    with pytest.raises(CheckpointError, match=r"state cannot be read"):
        learner.load(file)


@pytest.mark.parametrize("content", [{"x": 1}, [1, 2], {"trial_id": None, "iteration": 1, "state": {}}])
def test_pitfall_20_a_readable_file_that_is_no_checkpoint_is_refused(shared_home, tmp_path, content):
    """Pitfall 20: the tracker then goes on from an older one."""
    learner = fresh_learner(shared_home, algo__name="grpo")
    if isinstance(content, dict) and "trial_id" in content:
        content["trial_id"] = learner.cfg.trial_id()
    torch.save(content, tmp_path / "state")
    with pytest.raises(CheckpointError, match=r"not a checkpoint|lacks optimizer, policy"):
        learner.load(tmp_path / "state")
