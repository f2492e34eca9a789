"""RunConfig: bounds, messages, identity."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_lab.cli.listing import entries
from ragen_lab.config import (
    EVAL_SETS,
    RunConfig,
    build,
    eval_sets,
    flatten,
    knobs,
    load,
    steps_per_iteration,
    steps_vary,
)
from ragen_lab.errors import ConfigError
from ragen_lab.inert import inert_knobs
from ragen_lab.report.tables import config_table
from ragen_lab.runs import Run, RunTable
from ragen_lab.sections import ENV_SECTIONS, SCHEMA_VERSION, FrozenLakeSection

TINY = {"policy.model": "tiny", "prompt.style": "compact"}


def faults(overrides):
    with pytest.raises(ConfigError) as caught:
        RunConfig().with_overrides(overrides)
    return caught.value.faults


def test_the_paper_defaults():
    """paper.md, "Defaults": StarPO-S as the paper trains it."""
    cfg = RunConfig()
    expected = {
        "policy.model": "Qwen/Qwen2.5-0.5B-Instruct",
        "train.iterations": 200,
        "rollout.prompts": 8,
        "rollout.responses": 16,
        "optim.minibatch": 32,
        "optim.epochs": 1,
        "rollout.max_turns": 5,
        "rollout.actions_per_turn": 5,
        "rollout.max_actions": 10,
        "rollout.max_new_tokens": 400,
        "rollout.max_context": 3600,
        "rollout.temperature": 1.0,
        "eval.temperature": 0.5,
        "eval.prompts": 256,
        "eval.every": 10,
        "optim.beta1": 0.9,
        "optim.beta2": 0.999,
        "optim.weight_decay": 0.01,
        "optim.lr": 1e-6,
        "optim.critic_lr": 1e-5,
        "optim.grad_clip": 1.0,
        "algo.dual_clip": 3.0,
        "algo.value_clip": 0.5,
        "algo.entropy_coef": 0.001,
        "reward.format_penalty": 0.1,
        "algo.name": "ppo",
        "algo.gamma": 1.0,
        "algo.lam": 1.0,
        "filter.keep_ratio": 0.25,
        "algo.kl.place": "off",
        "algo.kl.coef": 0.001,
        "algo.clip_low": 0.2,
        "algo.clip_high": 0.28,
    }
    assert {path: cfg.flat()[path] for path in expected} == expected


def test_a_changed_default_must_raise_the_schema_version():
    """Identities leave out defaults: this pins every default to the version (docs: raise both together)."""
    import hashlib

    leaves = {name: flatten(section().model_dump()) for name, section in ENV_SECTIONS.items()}
    text = json.dumps([RunConfig().flat(), leaves], sort_keys=True)
    assert (SCHEMA_VERSION, hashlib.sha256(text.encode()).hexdigest()[:12]) == (1, "7b9b3085b5f5")


def test_ids_ignore_what_cannot_change_the_numbers():
    base = RunConfig()
    for override in (
        {"train.iterations": 300},
        {"detect.on_collapse": "continue"},
        {"detect.level.fall": 0.4},
        {"track.mlflow": False},
        {"train.checkpoint_every": 5},
        {"filter.keep_ratio": 0.25},
        {"optim.lr": 0.000001},
        {"train.check": "strict"},
    ):
        assert base.with_overrides(override).trial_id() == base.trial_id(), override
    for override in (
        {"seed": 1},
        {"filter.keep_ratio": 0.5},
        {"env.slip": 0.1},
        {"env.name": "sokoban"},
        {"train.threads": 2},
    ):
        assert base.with_overrides(override).trial_id() != base.trial_id(), override
    assert base.with_overrides({"seed": 1}).config_id() == base.config_id()


def test_the_horizon_is_part_of_the_identity_only_under_a_schedule():
    linear = RunConfig().with_overrides({"optim.schedule": "linear"})
    assert linear.with_overrides({"train.iterations": 300}).trial_id() != linear.trial_id()


@given(
    st.dictionaries(
        st.sampled_from(["filter.keep_ratio", "algo.gamma", "optim.lr", "eval.temperature"]),
        st.floats(0.01, 1.0),
        min_size=1,
    )
)
def test_ids_do_not_depend_on_the_order_of_keys_and_differ_with_values(overrides):
    one = RunConfig().with_overrides(overrides)
    other = RunConfig().with_overrides(dict(reversed(overrides.items())))
    assert one.trial_id() == other.trial_id()
    assert build(json.loads(json.dumps(one.model_dump())), "x").trial_id() == one.trial_id()
    changed = RunConfig().with_overrides({**overrides, "algo.lam": 0.5})
    assert changed.trial_id() != one.trial_id()


def test_whole_numbers_and_floats_are_one_value():
    assert RunConfig().with_overrides({"filter.keep_ratio": 1}).trial_id() == (
        RunConfig().with_overrides({"filter.keep_ratio": 1.0}).trial_id()
    )


def test_numbers_in_generalisation_sets_are_read_as_those_of_knobs():
    def identity(*values: float) -> list[str]:
        sets = [[{"other": {"env.slip": value, "env.size": 5}}] for value in values]
        return [RunConfig().with_overrides({"eval.sets": entry}).trial_id() for entry in sets]

    assert len(set(identity(0, 0.0, -0.0))) == 1
    assert len(set(identity(0, 0.25, 0.5))) == 3
    # The class of an outside environment may tell them apart, so they are two trials.
    outside = RunConfig().with_overrides({"env.name": "tests.env.outside:Corridor"})
    each = [[{"longer": {"env.options": {"length": length}}}] for length in (6, 6.0)]
    assert len({outside.with_overrides({"eval.sets": sets}).trial_id() for sets in each}) == 2


def test_all_faults_of_a_page_at_once_each_with_its_path():
    found = faults(
        {"filter.keep_rato": 0.5, "optim.lr": "fast", "env.slip": 2, "rollout.responses": 1, "algo.name": "gpro"}
    )
    text = "\n".join(found)
    assert len(found) == 5
    for part in (
        "Did you mean 'filter.keep_ratio'?",
        "optim.lr: got 'fast'",
        "env.slip: got 2",
        "rollout.responses: 1",
        "'ppo', 'bi_level_gae', 'grpo'",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        ({"env.name": "frozenlake"}, "unknown environment 'frozenlake'. Did you mean 'frozen_lake'?"),
        ({"env.name": "sokoban", "env.slip": 0.1}, "env.slip: unknown key."),
        ({"filter": 3}, "is a section"),
        ({"seed.x": 1}, "is a value, not a section"),
        ({"filter.keep_ratio": 0}, "greater than 0"),
        ({"filter.keep_ratio": "0.5"}, "valid number"),
        ({"rollout.prompts": 2.5}, "valid integer"),
        ({"rollout.prompts": True}, "valid integer"),
        ({"prompt.think": "no"}, "valid boolean"),
        ({"optim.lr": float("nan")}, "finite"),
        ({"rollout.responses": 1, "algo.name": "grpo"}, "no group baseline"),
        ({"rollout.responses": 1}, "no in-group spread"),
        ({"rollout.responses": 1, "algo.name": "rloo"}, "algo.name rloo has no group baseline"),
        ({"rollout.responses": 1, "filter.kind": "zero_only"}, "filter.kind zero_only has no in-group spread"),
        ({"filter.kind": "random", "filter.resample": 2}, "the control that does not"),
        ({"filter.kind": "top_p", "optim.updates_per_rollout": 17}, "at most 16"),  # one group of 16 may be left
        ({"filter.top_p": 0.0}, "greater than 0"),
        ({"filter.min_p": 1.5}, "less than or equal to 1"),
        ({"filter.top_k": 0}, "greater than or equal to 1"),
        ({"filter.resample": -1}, "greater than or equal to 0"),
        ({"algo.importance_cap": 0.5}, "greater than or equal to 1"),
        ({"algo.gamma_turn": 1.5}, "less than or equal to 1"),
        ({"train.iterations": 65}, "use 60"),
        ({"optim.updates_per_rollout": 100}, "at most 32"),
        ({"optim.updates_per_rollout": 3, "optim.epochs": 2}, "multiple of optim.epochs 2"),
        ({"rollout.max_context": 300}, "leaves no room"),
        ({"policy.model": "tiny"}, "reads no English"),
        ({**TINY, "prompt.think": False}, "without a think block"),
        ({**TINY, "policy.tiny.heads": 3}, "even whole number"),
        ({**TINY, "policy.tiny.kv_heads": 3}, "does not divide"),
        ({"policy.device": "tpu"}, "pattern"),
        ({"env.name": "bandit", "reward.reasoning": "grounded"}, "bandit cannot"),
        ({"reward.reasoning": "groundet"}, "Did you mean 'grounded'"),
        ({"env.name": "countdown", "reward.reasoning": "my.package:mine"}, "countdown cannot"),
        ({"eval.probes": ["no_think", "no_think"]}, "there twice"),
        ({"eval.probes": ["none"]}, "'no_think', 'empty_think' or 'shuffled_think'"),
        ({"eval.probes": ["no_think"], "prompt.think": False}, "no reasoning to take away"),
        ({"eval.probes": ["shuffled_think"], "eval.prompts": 1}, "at least 2"),
        ({"eval.mutual_information_every": 15}, "use 20"),
        ({"eval.mutual_information_every": 10, "prompt.think": False}, "no thoughts"),
        ({"eval.sets": ["slipery"]}, "Did you mean 'slippery'?"),
        ({"eval.sets": [{"x": {"optim.lr": 0.1}}]}, "only env.* can differ"),
        ({"eval.sets": [{"x": {"env.slip": 2}}]}, "env.slip: got 2"),
        ({"eval.sets": [{"a/b": {"env.slip": 0.1}}]}, "lowercase letters"),
        ({"eval.sets": ["slippery", {"slippery": {"env.slip": 0.2}}]}, "slippery is there twice"),
        ({"detect.level.recovered": 0.4}, "below detect.level.fall"),
    ],
)
def test_what_is_wrong_is_said(overrides, part):
    assert any(part in fault for fault in faults(overrides)), faults(overrides)


def test_responses_of_one_are_fine_without_filter_and_with_a_critic():
    assert RunConfig().with_overrides({"rollout.responses": 1, "filter.keep_ratio": 1.0}).rollout.responses == 1


def test_yaml_pages(tmp_path: Path):
    page = tmp_path / "run.yaml"
    page.write_text("policy: {model: on}\noptim:\n  lr: 1e-4\nfilter: {keep_ratio: 1}\n")
    cfg = load(page)
    assert cfg.policy.model == "on"
    assert cfg.optim.lr == 1e-4
    assert cfg.filter.keep_ratio == 1.0
    page.write_text("optim:\n  lr: 1e-4\n  lr: 1e-3\n")
    with pytest.raises(ConfigError, match="line 3: 'lr' is there twice"):
        load(page)
    page.write_text("optim: {lr: fast, beta1: 2}\nseed: 1\nseed: 2\n")
    with pytest.raises(ConfigError) as caught:
        load(page)
    assert len(caught.value.faults) == 3, "all at once"
    page.write_text("optim: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load(page)
    page.write_text("- 1")
    with pytest.raises(ConfigError, match="must be a mapping"):
        load(page)
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "nowhere.yaml")


def test_changing_the_environment_drops_the_other_one_s_keys():
    lake = RunConfig().with_overrides({"env.slip": 0.1})
    assert lake.with_overrides({"env.name": "bandit"}).flat()["env.chance"] == 0.25
    assert lake.with_overrides({"env.name": "frozen_lake"}).flat()["env.slip"] == 0.1


def test_pitfall_18_inert_knobs_are_named():
    """Pitfall 18."""

    def names(overrides):
        return [note.split(" = ")[0] for note in inert_knobs(RunConfig().with_overrides(overrides))]

    assert names({}) == []
    assert names({"filter.keep_ratio": 1.0, "filter.kind": "random"}) == ["filter.kind"]
    assert names({"algo.kl.coef": 0.1}) == ["algo.kl.coef"]
    assert names({"algo.clip_high": 0.4}) == ["algo.clip_high"]  # 25 % of 8 x 16 = 32 rows: one update
    assert names({"algo.clip_high": 0.4, "filter.keep_ratio": 1.0}) == []
    assert names({"algo.name": "grpo", "algo.lam": 0.9}) == ["algo.lam"]
    assert names({"filter.kind": "top_p", "filter.keep_ratio": 0.5}) == ["filter.keep_ratio"]
    assert names({"filter.top_k": 3}) == ["filter.top_k"]
    assert names({"filter.kind": "top_k", "filter.top_k": 8}) == ["filter.kind"]
    assert names({"filter.kind": "top_k", "filter.top_k": 8, "filter.resample": 1}) == []
    assert names({"algo.gamma_turn": 0.9}) == ["algo.gamma_turn"]
    assert names({"algo.name": "bi_level_gae", "algo.credit": "turn"}) == ["algo.credit"]
    assert names({"algo.credit": "turn", "rollout.max_turns": 1}) == ["algo.credit"]
    assert names({"algo.credit": "turn"}) == []
    assert names({"algo.aggregation": "token_mean"}) == ["algo.aggregation"]
    assert names({"algo.name": "dr_grpo", "algo.std_normalize": False}) == ["algo.std_normalize"]
    assert names({"algo.name": "reinforce_pp", "algo.gamma": 0.9, "algo.lam": 0.9}) == ["algo.lam"]
    assert names({"algo.loss": "cispo", "algo.ratio": "sequence"}) == ["algo.ratio", "algo.loss"]
    assert names({"algo.loss": "cispo", "algo.dual_clip": 4.0, "filter.keep_ratio": 1.0}) == ["algo.dual_clip"]
    assert names({"algo.entropy_schedule": "linear", "algo.entropy_coef": 0.0}) == ["algo.entropy_schedule"]
    assert names({"policy.warm_start.lr": 0.1}) == ["policy.warm_start.lr"]
    assert names({"reward.reasoning_weight": 0.5}) == ["reward.reasoning_weight"]
    assert names({"reward.reasoning": "grounded", "prompt.think": False}) == ["reward.reasoning"]
    assert names({"reward.length_free": 5}) == ["reward.length_free"]
    assert names({"eval.mutual_information_prompts": 5}) == ["eval.mutual_information_prompts"]


def test_steps_per_iteration():
    def steps(**o):
        return steps_per_iteration(RunConfig().with_overrides({k.replace("__", "."): v for k, v in o.items()}))

    assert steps() == 1  # 2 of 8 groups x 16 = 32 rows / 32
    assert steps(filter__keep_ratio=1.0) == 4
    assert steps(filter__keep_ratio=1.0, optim__epochs=2) == 8
    assert steps(optim__updates_per_rollout=4) == 4
    assert steps(filter__kind="top_k", filter__top_k=4) == 2  # 64 rows / 32
    assert steps(filter__kind="smallest", filter__keep_ratio=0.5) == 2
    assert steps(filter__kind="zero_only") == 4  # at most: all 128 rows


def test_steps_that_depend_on_the_rewards_are_told():
    def vary(**o):
        return steps_vary(RunConfig().with_overrides({k.replace("__", "."): v for k, v in o.items()}))

    assert vary(filter__kind="zero_only")
    assert vary(filter__kind="top_p")
    assert not vary()
    assert not vary(filter__kind="top_k")
    assert not vary(filter__kind="zero_only", optim__updates_per_rollout=4)
    assert not vary(filter__kind="zero_only", optim__minibatch=128)


def test_every_knob_has_its_sentence():
    assert all(len(sentence) > 10 for sentence in knobs().values())
    assert set(RunConfig().flat()) <= set(knobs())


def test_a_name_that_environments_share_has_the_sentence_of_the_right_one():
    sokoban = RunConfig().with_overrides({"env.name": "sokoban"})
    assert knobs()["env.size"] == knobs(RunConfig())["env.size"] != knobs(sokoban)["env.size"]
    (size,) = [entry for entry in entries("knobs", Path()) if entry["name"] == "env.size"]
    assert size["default"] == RunConfig().env.size
    (line,) = [line for line in config_table(RunTable((run_of(sokoban),))) if line[0] == "env.size"]
    assert line[3] == knobs(sokoban)["env.size"]


def run_of(cfg: RunConfig) -> Run:
    return Run(cfg.trial_id(), cfg.config_id(), "s", "an arm", 0, cfg.flat(), (), "pending", None)


def test_the_config_imports_no_torch():
    heavy = ("torch", "ray", "mlflow", "transformers")
    code = f"import sys, ragen_lab.config; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_every_algorithm_and_filter_of_the_config_is_built():
    from typing import get_args

    from ragen_lab.algo.advantages import ALGORITHMS
    from ragen_lab.filter import FILTERS
    from ragen_lab.sections import AlgoSection, FilterSection

    assert set(get_args(AlgoSection.model_fields["name"].annotation)) == set(ALGORITHMS)
    assert set(get_args(FilterSection.model_fields["kind"].annotation)) == set(FILTERS)


def test_generalisation_sets_are_env_sections():
    cfg = RunConfig().with_overrides(
        {
            "env.name": "sokoban",
            "eval.sets": ["new_vocab", "large", {"lake": {"env.name": "frozen_lake", "env.slip": 0.0}}],
        }
    )
    found = eval_sets(cfg)
    assert (found["new_vocab"].vocab, found["new_vocab"].size) == ("new", 6)
    assert (found["large"].size, found["large"].boxes) == (8, 2)
    assert found["lake"] == FrozenLakeSection(slip=0.0)
    assert cfg.trial_id() != RunConfig().with_overrides({"env.name": "sokoban"}).trial_id()
    for name, sets in EVAL_SETS.items():
        assert list(eval_sets(RunConfig().with_overrides({"env.name": name, "eval.sets": [*sets]}))) == [*sets]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("seed: 2020-01-01\n", ["seed: got '2020-01-01'; should be a valid integer"]),  # a date is a word
        ("seed: !!binary aGk=\n", ["line 1: not valid YAML: the type 'binary' has no place here"]),
        ("env: !!set {a, b}\n", ["the type 'set' has no place here"]),
        ("x: !!python/object:os.system {}\n", ["not valid YAML"]),
        ("a: &a [*a]\n", ["a value that contains itself"]),
        ("a: " + "[" * 3000 + "]" * 3000, ["nested too deeply"]),
        ("? [a, b]\n: 1\n", ["a key must be a word"]),
        ("1: 2\ntrue: 3\nfoo: 4\n", ["line 1: the key 1 is not a word", "line 2: the key true", "foo: unknown key"]),
        ("filter:\n", ["filter: got None; it is a section and holds keys, for example filter.kind"]),
    ],
)
def test_odd_pages_are_faults_and_never_tracebacks(tmp_path, text, parts):
    page = tmp_path / "odd.yaml"
    page.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(page)
    for part in parts:
        assert part in str(caught.value)


def test_messages_speak_of_the_environment_at_hand():
    found = faults({"env.name": "frozen_lake", "env.size": 4.5, "env.boxes": 2})
    assert any("Side of the square map" in fault for fault in found)
    (boxes,) = [fault for fault in found if fault.startswith("env.boxes")]
    assert "Did you mean" not in boxes
    assert "Allowed here: eval_levels, frozen," in boxes


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        ({"env.name": "sokoban", "env.size": 5, "env.boxes": 4}, "at most 3"),
        ({"env.name": "sokoban", "env.size": 7, "env.eval_levels": "published"}, "no published levels"),
        ({"env.size": 5, "env.eval_levels": "published"}, "size 4, frozen 0.8"),
        ({"track.mlflow_uri": "ftp://x"}, "begins with one of http"),
        ({"track.mlflow_uri": "x"}, "no address that MLflow knows"),
    ],
)
def test_what_could_not_run_is_refused_before_it_starts(overrides, part):
    assert any(part in fault for fault in faults(overrides))


def test_the_published_settings_are_those_that_the_package_holds():
    from ragen_lab.env import frozen_lake, sokoban
    from ragen_lab.sections import PUBLISHED

    assert {(s["size"], s["frozen"]) for s in PUBLISHED["frozen_lake"]} == set(frozen_lake.SETS)
    assert {(s["size"], s["boxes"], s["vocab"]) for s in PUBLISHED["sokoban"]} == set(sokoban.SETS)
    for uri in ("http://h:1", "sqlite:////tmp/x.db", "postgresql+psycopg2://h/d", "databricks"):
        if uri != "databricks":
            RunConfig().with_overrides({"track.mlflow_uri": uri})


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        ({**TINY, "policy.tiny.hidden": 60}, "hidden 60 / heads 4 must be an even whole number"),  # 15: odd
        ({**TINY, "policy.warm_start.think_share": 0.0}, "never shows the model a reply with a think block"),
        ({"rollout.max_new_tokens": 3600}, "leaves no room for a prompt"),  # as many as the whole context
        ({"seed": 2**31}, "less than 2147483648"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"algo.dual_clip": 1.0}, "greater than 1"),
        ({"train.iterations": 100, "eval.every": 300}, "use 300"),  # never 0
        ({"train.iterations": 15}, "use 20"),  # half way rounds to even: 1.5 -> 2
        ({"eval.mutual_information_every": 4}, "use 10"),
        ({"optim.updates_per_rollout": 33}, "at most 32"),  # 2 of 8 groups x 16
        ({"optim.updates_per_rollout": 65, "optim.epochs": 1, "filter.keep_ratio": 0.5}, "at most 64"),
        ({"optim.updates_per_rollout": 66, "optim.epochs": 2}, "at most 64"),  # 32 rows, twice
        ({"detect.level.recovered": 0.49}, "below detect.level.fall"),
        ({"env.min_moves": 5, "env.max_moves": 4}, "env.min_moves: 5 is above env.max_moves 4"),
        ({"rollout.responses": 1, "algo.name": "grpo", "filter.keep_ratio": 1.0}, "has no group baseline"),
        ({"rollout.responses": 1, "filter.keep_ratio": 1.0, "filter.resample": 1}, "no in-group spread"),
        ({"filter.kind": "smallest", "filter.resample": 1}, "the control that does not"),
    ],
)
def test_pitfall_11_18_one_step_beyond_a_bound_is_refused(overrides, part):
    """Pitfalls 11, 18: the smallest value that is wrong, and what to use instead."""
    assert any(part in fault for fault in faults(overrides)), faults(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {**TINY, "policy.tiny.hidden": 56},  # 14 per head
        {**TINY, "policy.warm_start.think_share": 0.01},
        {**TINY, "policy.warm_start.think_share": 0.0, "policy.warm_start.episodes": 0},
        {**TINY, "policy.warm_start.think_share": 0.0, "prompt.think": False},
        {"policy.warm_start.think_share": 0.0},  # not the tiny model
        {"rollout.max_new_tokens": 3599},
        {"seed": 2**31 - 1},
        {"algo.dual_clip": 1.001},
        {"train.iterations": 300, "eval.every": 300},
        {"optim.updates_per_rollout": 32},  # one trajectory per step
        {"optim.updates_per_rollout": 64, "optim.epochs": 2},
        {"detect.level.recovered": 0.5},  # as high as detect.level.fall
        {"env.min_moves": 4, "env.max_moves": 4},
        {"eval.probes": ["shuffled_think"], "eval.prompts": 2},
        {"eval.probes": ["no_think"], "eval.prompts": 1},
        {"rollout.responses": 1, "filter.kind": "random"},
        {"rollout.responses": 1, "algo.name": "reinforce_pp", "filter.keep_ratio": 1.0},
        {"rollout.responses": 2, "algo.name": "grpo"},
        {"filter.kind": "min_p", "filter.min_p": 0.0, "rollout.responses": 1},
        {"reward.reasoning": "grounded", "env.name": "sokoban"},
    ],
)
def test_the_last_value_within_a_bound_is_accepted(overrides):
    cfg = RunConfig().with_overrides(overrides)
    assert {path: cfg.flat()[path] for path in overrides} == overrides


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ({"policy.tiny.hidden": 128}, "policy.tiny.hidden"),
        ({"policy.warm_start.episodes": 5}, "policy.warm_start.episodes"),
        ({"filter.keep_ratio": 1.0, "filter.score": "env_return"}, "filter.score"),
        ({"filter.kind": "random", "filter.score": "env_return"}, "filter.score"),
        ({"filter.top_p": 0.5}, "filter.top_p"),
        ({"filter.min_p": 0.5}, "filter.min_p"),
        ({"filter.kind": "top_k", "filter.min_p": 0.5}, "filter.min_p"),
        ({"filter.kind": "min_p", "filter.min_p": 0.0}, "filter.kind"),
        ({"algo.kl.estimator": "k3"}, "algo.kl.estimator"),
        ({"algo.std_normalize": False}, "algo.std_normalize"),
        ({"algo.clip_low": 0.1}, "algo.clip_low"),
        ({"algo.dual_clip": 4.0}, "algo.dual_clip"),
        ({"algo.ratio": "sequence"}, "algo.ratio"),
        ({"algo.loss": "cispo"}, "algo.loss"),
        ({"optim.updates_per_rollout": 2, "optim.minibatch": 8}, "optim.minibatch"),
        ({"algo.name": "dr_grpo", "algo.aggregation": "fixed_length"}, "algo.aggregation"),
        ({"algo.name": "rloo", "algo.whiten": False}, "algo.whiten"),
        ({"algo.name": "reinforce_pp", "algo.value_clip": 0.1}, "algo.value_clip"),
        ({"algo.value_clip": 0.1}, "algo.value_clip"),  # one update per rollout: V is V_old
        ({"algo.name": "bi_level_gae", "algo.value_clip": 0.1}, "algo.value_clip"),
        ({"algo.name": "bi_level_gae", "algo.gamma_turn": 0.9, "rollout.max_turns": 1}, "algo.gamma_turn"),
        ({"algo.importance_cap": 2.0}, "algo.importance_cap"),
        ({"rollout.shared_dynamics": True, "env.slip": 0.0}, "rollout.shared_dynamics"),
        ({"rollout.shared_dynamics": True, "env.name": "sokoban"}, "rollout.shared_dynamics"),
        ({"rollout.shared_dynamics": True, "env.name": "countdown"}, "rollout.shared_dynamics"),
        ({"rollout.shared_dynamics": True, "env.name": "bandit", "env.chance": 1.0}, "rollout.shared_dynamics"),
        ({"rollout.shared_dynamics": True, "env.name": "ragen_lab.env.gym:TextGym"}, "rollout.shared_dynamics"),
        ({"reward.reasoning": "grounded", "reward.reasoning_weight": 0.0}, "reward.reasoning"),
        *(
            ({"algo.name": "grpo", "filter.keep_ratio": 1.0, path: value}, path)
            for path, value in {
                "algo.gamma": 0.9,
                "algo.lam": 0.9,
                "algo.whiten": False,
                "algo.value_clip": 0.1,
                "optim.critic_lr": 1e-3,
            }.items()
        ),
    ],
)
def test_pitfall_18_each_inert_knob_is_named(overrides, path):
    """Pitfall 18, one row per rule."""
    assert path in [note.split(" = ")[0] for note in inert_knobs(RunConfig().with_overrides(overrides))]


@pytest.mark.parametrize(
    "overrides",
    [
        {**TINY, "policy.tiny.hidden": 128, "policy.warm_start.lr": 0.1},
        {"filter.score": "env_return"},
        {"filter.kind": "smallest", "filter.score": "env_return"},
        {"filter.kind": "random", "filter.keep_ratio": 0.5},
        {"filter.kind": "smallest", "filter.keep_ratio": 0.5},
        {"filter.kind": "top_p", "filter.top_p": 0.5},
        {"filter.kind": "top_k", "filter.top_k": 7},  # of 8
        {"filter.kind": "min_p", "filter.min_p": 0.01},
        {"filter.kind": "min_p", "filter.score": "env_return"},
        {"algo.kl.place": "loss", "algo.kl.coef": 0.1, "algo.kl.estimator": "k3"},
        {"algo.kl.place": "reward", "algo.kl.coef": 0.1, "algo.kl.estimator": "k3"},
        {"algo.name": "grpo", "algo.std_normalize": False},
        {"algo.gamma": 0.9, "algo.lam": 0.9, "algo.whiten": False, "optim.critic_lr": 1e-3},
        {"algo.value_clip": 0.1, "optim.epochs": 2},
        {"algo.name": "bi_level_gae", "algo.value_clip": 0.1, "filter.keep_ratio": 1.0},
        {"algo.name": "bi_level_gae", "algo.gamma_turn": 0.9, "algo.lam": 0.9, "rollout.max_turns": 2},
        {"algo.importance_cap": 2.0, "policy.dtype": "bfloat16"},
        {"rollout.shared_dynamics": True},  # a slippery lake
        {"rollout.shared_dynamics": True, "env.name": "bandit"},
        {"rollout.shared_dynamics": True, "env.name": "some.package:Game"},  # nobody knows
        {"algo.name": "reinforce_pp", "algo.gamma": 0.9, "algo.whiten": False},
        {"algo.name": "reinforce_pp_baseline", "algo.whiten": False},
        {"optim.updates_per_rollout": 2, "algo.clip_low": 0.1, "algo.dual_clip": 4.0, "algo.ratio": "sequence"},
        {"optim.epochs": 2, "algo.loss": "cispo", "algo.clip_high": 0.1},
        {"optim.minibatch": 16, "algo.clip_low": 0.1},  # two updates of 16
        {"algo.aggregation": "sequence_mean"},
        {"algo.name": "dr_grpo", "algo.aggregation": "token_mean"},
        {"algo.entropy_schedule": "linear"},
        {"rollout.max_turns": 2, "algo.credit": "turn"},
        {"reward.reasoning": "grounded", "reward.reasoning_weight": 0.5},
        {"reward.length_penalty": 0.1, "reward.length_free": 5},
        {"eval.mutual_information_every": 10, "eval.mutual_information_prompts": 5},
    ],
)
def test_pitfall_18_a_knob_that_has_an_effect_is_not_called_inert(overrides):
    """Pitfall 18, the other way round: each rule's condition, not met."""
    assert inert_knobs(RunConfig().with_overrides(overrides)) == []
