"""Replies and chats: what a text means, and which ids stand between two replies."""

from __future__ import annotations

import pytest

from ragen_lab.config import RunConfig
from ragen_lab.policy.tiny import build_tokenizer
from ragen_lab.prompt import ChatWriter, parse_reply, reply_text
from ragen_lab.sections import PromptSection, RolloutSection

VALID = ("Left", "Down", "Right", "Up")


def parse(text, think=True, truncated=False, limit=5):
    parsed = parse_reply(text, VALID, limit, think, truncated)
    return parsed.think, parsed.actions, parsed.format_ok


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>go</think><answer>Up</answer>", ("go", ("Up",), True)),
        (" <think> go  on </think>\n<answer> up || DOWN </answer> ", ("go on", ("Up", "Down"), True)),
        ("<think></think><answer>Up</answer>", ("", ("Up",), True)),
        ("", ("", (), False)),
        ("Up", ("", (), False)),
        ("<answer>Up</answer>", ("", (), False)),  # a think block was asked for
        ("<think>go<answer>Up</answer>", ("go Up", (), False)),  # never closed
        ("<think>a</think><think>b</think><answer>Up</answer>", ("a", (), False)),
        ("<think>a <answer>Down</answer> b</think><answer>Up</answer>", ("a Down b", (), False)),  # nested
        ("<think>a</think><answer>Up</answer><answer>Down</answer>", ("a", (), False)),  # two answers
        ("<think>a</think><answer>Up</answer> done", ("a", (), False)),
        ("<think>a</think><answer></answer>", ("a", (), False)),
        ("<think>a</think><answer>", ("a", (), False)),
        ("<think>a</think></answer>", ("a", (), False)),
        ("<think>a</think><answer>Up || fly || Down</answer>", ("a", ("Up",), False)),  # up to the invalid one
        ("<think>a</think><answer>Up ||</answer>", ("a", ("Up",), False)),
        ("<think>ünï ✓ 火</think><answer>Ｕｐ</answer>", ("ünï ✓ 火", (), False)),
        ("<think>a</think><answer>Up||Up||Up||Up||Up||Up</answer>", ("a", ("Up",) * 5, False)),  # six of five
    ],
)
def test_pitfall_08_every_reply_has_a_defined_meaning(text, expected):
    """Pitfall 8."""
    assert parse(text) == expected


def test_pitfall_08_a_very_long_answer_is_read_in_linear_time():
    """Pitfall 8: ten thousand actions, and ten thousand opening tags."""
    think, actions, ok = parse("<think>a</think><answer>" + "Up||" * 10_000 + "Up</answer>")
    assert (think, actions, ok) == ("a", ("Up",) * 5, False)
    assert parse("<think>" * 10_000)[1:] == ((), False)


def test_without_think_blocks_they_are_a_format_error():
    assert parse("<answer>Up</answer>", think=False) == ("", ("Up",), True)
    assert parse("<think>a</think><answer>Up</answer>", think=False) == ("a", (), False)


def test_a_truncated_reply_costs_the_format_but_is_executed():
    assert parse("<think>a</think><answer>Up</answer>", truncated=True) == ("a", ("Up",), False)


@pytest.mark.parametrize("think", ["go up", None])
def test_what_is_written_is_read_back(think):
    text = reply_text(think, ("Up", "Down"))
    assert parse(text, think=think is not None) == (think or "", ("Up", "Down"), True)


class ChatML:
    """A byte-level tokenizer with a ChatML template: enough of the transformers face for ChatWriter."""

    eos_token, eos_token_id, unk_token_id = "<|im_end|>", 1000, None

    def __init__(self, drops_replies: bool = False):
        self.drops_replies = drops_replies

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        shown = [{**m, "content": "..."} if self.drops_replies and m["role"] == "assistant" else m for m in messages]
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in shown)
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    def convert_tokens_to_ids(self, token):
        return 1000 if token == "<|im_end|>" else None

    def __call__(self, text, add_special_tokens):
        if isinstance(text, list):
            return {"input_ids": [self(t, add_special_tokens=False)["input_ids"] for t in text]}
        parts = text.split("<|im_end|>")
        ids = list(parts[0].encode())
        for part in parts[1:]:
            ids += [1000, *part.encode()]
        return {"input_ids": ids}

    def batch_decode(self, replies, skip_special_tokens):
        return ["".join("<|im_end|>" if i == 1000 else chr(i) for i in ids) for ids in replies]


def test_pitfall_01_growing_a_chat_by_ids_equals_rendering_it_whole():
    """Pitfall 1: contexts appended turn by turn give the ids of the whole chat rendered at once."""
    tokenizer = ChatML()
    writer = ChatWriter(tokenizer, PromptSection(), RolloutSection())
    reply = [*b"<think>a</think><answer>Up</answer>", 1000]
    ids = writer.first("Rules.", "P _", 10) + reply + writer.following("_ P", 9, ended=True)
    whole = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": writer.system("Rules.")},
            {"role": "user", "content": writer.user("P _", 10)},
            {"role": "assistant", "content": "<think>a</think><answer>Up</answer>"},
            {"role": "user", "content": writer.user("_ P", 9)},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert ids == tokenizer(whole, add_special_tokens=False)["input_ids"]


def test_a_truncated_reply_is_closed_by_the_context():
    """Without its own end-of-turn token the template's one is added, as a context token."""
    writer = ChatWriter(ChatML(), PromptSection(), RolloutSection())
    closed, open_ = writer.following("x", 9, ended=True), writer.following("x", 9, ended=False)
    assert open_ == [1000, *closed]


def test_pitfall_02_a_literal_role_marker_in_a_reply_changes_nothing():
    """Pitfall 2: contexts do not depend on what the reply says."""
    writer = ChatWriter(ChatML(), PromptSection(), RolloutSection())
    before = writer.following("x", 9, ended=True)
    assert writer.decode([[*b"<|im_start|>user", 1000]]) == ["<|im_start|>user"]
    assert writer.following("x", 9, ended=True) == before


def test_a_template_that_rewrites_replies_is_refused():
    with pytest.raises(ValueError, match="verbatim"):
        ChatWriter(ChatML(drops_replies=True), PromptSection(), RolloutSection())


def test_the_system_message_states_the_limits_and_the_format():
    cfg = RunConfig().with_overrides({"rollout.actions_per_turn": 3, "rollout.max_actions": 7, "rollout.max_turns": 4})
    text = ChatWriter(ChatML(), cfg.prompt, cfg.rollout).system("The rules.")
    for part in ("The rules.", "<think>", "<answer>", "at most 3 actions", "7 actions in all", "4 replies"):
        assert part in text


def test_the_tiny_tokenizer_keeps_lines_and_tags_apart():
    tokenizer = build_tokenizer(["P", "_", "Up"])
    ids = tokenizer("P _\n_ P <think> Up</think><answer>Up</answer>", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == [
        "P",
        "_",
        "\n",
        "_",
        "P",
        "<think>",
        "Up",
        "</think>",
        "<answer>",
        "Up",
        "</answer>",
    ]
    assert tokenizer.convert_ids_to_tokens(tokenizer("never", add_special_tokens=False)["input_ids"]) == ["<unk>"]
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_the_messages_of_a_reader_of_english():
    """Word for word: what is seen, what is left, and the shape of a reply with and without a think block."""
    rollout = RolloutSection(actions_per_turn=3, max_actions=7, max_turns=4)
    writer = ChatWriter(ChatML(), PromptSection(), rollout)
    assert writer.user("P _", 7) == "State:\nP _\nActions left: 7"
    assert writer.system("Rules.") == (
        "You are playing a game. Rules.\n"
        "Reply with exactly <think>your reasoning</think><answer>action || action</answer> and nothing else. "
        "Give at most 3 actions per reply, separated by ||. You have 4 replies and 7 actions in all."
    )
    silent = ChatWriter(ChatML(), PromptSection(think=False), rollout)
    assert "Reply with exactly <answer>action || action</answer> and nothing else." in silent.system("Rules.")


def test_the_messages_of_the_tiny_model():
    """No system message and no numbers: the word for the kind of reply, then the observation."""
    for think, word in ((True, "think"), (False, "answer")):
        writer = ChatWriter(ChatML(), PromptSection(style="compact", think=think), RolloutSection())
        assert writer.user("P _", 7) == f"{word}\nP _"
        text = writer.decode([writer.first("Rules.", "P _", 7)])[0]
        assert text == f"<|im_start|>user\n{word}\nP _<|im_end|>\n<|im_start|>assistant\n"


def test_the_first_message_of_a_reader_of_english_is_the_system_s():
    writer = ChatWriter(ChatML(), PromptSection(), RolloutSection())
    text = writer.decode([writer.first("Rules.", "P _", 7)])[0]
    assert text.startswith("<|im_start|>system\nYou are playing a game. Rules.\n")
    assert text.endswith("<|im_start|>user\nState:\nP _\nActions left: 7<|im_end|>\n<|im_start|>assistant\n")
    assert "Actions left: 6" in writer.decode([writer.following("_ P", 6, ended=True)])[0]


class LosesUsers(ChatML):
    """A template that shows nothing of a user's message behind a reply."""

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        shown = [{**m, "content": "..."} if i and m["role"] == "user" else m for i, m in enumerate(messages)]
        return super().apply_chat_template(shown, tokenize, add_generation_prompt)


def test_pitfall_01_a_template_that_loses_the_observation_is_refused():
    """Pitfall 1: a chat that cannot be continued with what the model should see is no chat."""
    with pytest.raises(ValueError, match="chat template"):
        ChatWriter(LosesUsers(), PromptSection(), RolloutSection())


class SeveralEnds(ChatML):
    """The tokenizer's own end is another id than the template's end-of-turn markers; one of them is unknown."""

    eos_token, eos_token_id, unk_token_id = "<|endoftext|>", 999, 5

    def convert_tokens_to_ids(self, token):
        return {"<|im_end|>": 1000, "<|eot_id|>": 5, "<end_of_turn>": 0}.get(token)


def test_pitfall_03_every_id_that_closes_a_reply_is_known():
    """Pitfall 3: the tokenizer's own, and the template's markers that it has (0 is an id; unknown is none)."""
    writer = ChatWriter(SeveralEnds(), PromptSection(), RolloutSection())
    assert writer.eos_ids == {999, 1000, 0}
    assert writer.decode([[97, 1000], [97, 98], [], [1000]]) == ["a", "ab", "", ""]


def test_contexts_are_remembered_but_not_shared():
    """A context that a caller changes is not the one that the next caller gets; many of them are no matter."""
    writer = ChatWriter(ChatML(), PromptSection(), RolloutSection())
    first = writer.following("x", 9, ended=True)
    whole = list(first)
    first.append(7)
    assert writer.following("x", 9, ended=True) == whole
    for i in range(5000):
        writer.following(str(i), 9, ended=True)
    assert len(writer._cache) <= 4097
    assert writer.following("x", 9, ended=True) == whole


def test_pitfall_01_growing_a_chat_of_the_tiny_model_equals_rendering_it_whole():
    """Pitfall 1: one end-of-turn token closes a reply, whoever wrote it."""
    tokenizer = build_tokenizer(["P", "_", "Up", "think", "a"])
    writer = ChatWriter(tokenizer, PromptSection(style="compact"), RolloutSection())
    text = "<think> a </think> <answer> Up </answer>"
    said = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    ids = writer.first("", "P _", 10) + said + writer.following("_ P", 9, ended=True)
    whole = tokenizer.apply_chat_template(
        [
            {"role": "user", "content": writer.user("P _", 10)},
            {"role": "assistant", "content": text},
            {"role": "user", "content": writer.user("_ P", 9)},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert ids == tokenizer(whole, add_special_tokens=False)["input_ids"]
