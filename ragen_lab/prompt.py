"""Between observations and tokens: the chat that the model sees, and what its replies mean.

Token in, token out: a chat grows by appending ids. The reply of a turn stays exactly as it was sampled;
only the text *between* two replies (end of turn, next observation, start of the next reply) is rendered
by the chat template and tokenised, on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ragen_lab.sections import PromptSection, RolloutSection

THINK, END_THINK, ANSWER, END_ANSWER = "<think>", "</think>", "<answer>", "</answer>"
_TAGS = (THINK, END_THINK, ANSWER, END_ANSWER)
SEPARATOR = "||"
_PROBE = "ragen-lab-reply"  # stands in for a reply when the template's text around replies is worked out


@dataclass(frozen=True)
class Parsed:
    """What a reply means. ``actions`` are to be executed in order; ``format_ok`` False earns the penalty."""

    think: str
    actions: tuple[str, ...]
    format_ok: bool


def parse_reply(
    text: str,
    valid: tuple[str, ...],
    limit: int,
    think: bool,
    truncated: bool = False,
    read: Callable[[str], str | None] | None = None,
) -> Parsed:
    """Read one reply. Every text has a defined meaning; none raises.

    Well-formed: ``<think>T</think><answer>a || b</answer>`` (without the think block where none is asked
    for), white space allowed around the parts, no tag inside a part, nothing else. Action words are
    compared without regard to case. Of a well-formed answer the actions up to the first invalid one are
    executed, at most ``limit``; an invalid, missing or surplus action costs the format. Anything else
    executes nothing. A truncated reply executes what it says but costs the format.
    ``read`` says what an action's text means where actions are not words of ``valid``.
    """
    rest = text.strip()
    thought = ""
    if rest.startswith(THINK):
        thought, closed, rest = rest[len(THINK) :].partition(END_THINK)
        if not closed:
            return Parsed(_clean(thought), (), False)
        rest = rest.strip()
        has_think = True
    else:
        has_think = False
    if has_think != think or any(tag in thought for tag in _TAGS):
        return Parsed(_clean(thought), (), False)
    if not (rest.startswith(ANSWER) and rest.endswith(END_ANSWER)):
        return Parsed(_clean(thought), (), False)
    answer = rest[len(ANSWER) : -len(END_ANSWER)] if len(rest) >= len(ANSWER) + len(END_ANSWER) else ""
    if any(tag in answer for tag in _TAGS):
        return Parsed(_clean(thought), (), False)
    canonical = {word.lower(): word for word in valid}
    words = [part.strip() for part in answer.split(SEPARATOR)]
    actions: list[str] = []
    for word in words:
        if len(actions) == limit or (action := read(word) if read else canonical.get(word.lower())) is None:
            break
        actions.append(action)
    format_ok = bool(actions) and len(actions) == len(words) and not truncated
    return Parsed(_clean(thought), tuple(actions), format_ok)


def _clean(text: str) -> str:
    for tag in _TAGS:
        text = text.replace(tag, " ")
    return " ".join(text.split())


def reply_text(think: str | None, actions: tuple[str, ...]) -> str:
    """The well-formed reply that says this; ``think`` None leaves the block out."""
    block = "" if think is None else f"{THINK} {think} {END_THINK} "
    return f"{block}{ANSWER} {f' {SEPARATOR} '.join(actions)} {END_ANSWER}"


class ChatWriter:
    """Renders chats with a tokenizer's own template, piece by piece.

    ``tokenizer`` is a transformers tokenizer with a chat template. Raises ValueError when the template
    does not keep replies verbatim (then token-in, token-out could not hold).
    """

    def __init__(self, tokenizer: Any, prompt: PromptSection, rollout: RolloutSection):
        self.tokenizer = tokenizer
        self.prompt = prompt
        self.rollout = rollout
        self.eos_ids = _eos_ids(tokenizer)
        self._eos_text = str(tokenizer.eos_token)
        self._cache: dict[str, tuple[int, ...]] = {}
        self._between = self._text_between()

    def system(self, rules: str) -> str:
        """The system message: the rules and the reply format, for a model that reads English."""
        shape = f"{ANSWER}action {SEPARATOR} action{END_ANSWER}"
        if self.prompt.think:
            shape = f"{THINK}your reasoning{END_THINK}{shape}"
        return (
            f"You are playing a game. {rules}\n"
            f"Reply with exactly {shape} and nothing else. Give at most {self.rollout.actions_per_turn} actions per "
            f"reply, separated by {SEPARATOR}. You have {self.rollout.max_turns} replies and "
            f"{self.rollout.max_actions} actions in all."
        )

    def user(self, observation: str, actions_left: int) -> str:
        """The user message of one turn."""
        if self.prompt.style == "compact":
            return f"{'think' if self.prompt.think else 'answer'}\n{observation}"
        return f"State:\n{observation}\nActions left: {actions_left}"

    def first(self, rules: str, observation: str, actions_left: int) -> list[int]:
        """Ids of the whole chat up to where the first reply begins."""
        messages = [{"role": "user", "content": self.user(observation, actions_left)}]
        if self.prompt.style == "full":
            messages.insert(0, {"role": "system", "content": self.system(rules)})
        return self._encode(self._render(messages))

    def following(self, observation: str, actions_left: int, ended: bool) -> list[int]:
        """Ids between a reply and the next one. ``ended``: the reply closed with its own end-of-turn token."""
        before, after = self._between
        content = self.user(observation, actions_left)
        if ended and before.lstrip().startswith(self._eos_text):
            # The reply said this marker itself. White space that the template puts before it is nobody's.
            before = before.lstrip()[len(self._eos_text) :]
        return self._encode(f"{before}{content}{after}")

    def decode(self, replies: list[list[int]]) -> list[str]:
        """Texts of replies, their closing end-of-turn token left out; special tokens stay visible."""
        bare = [ids[:-1] if ids and ids[-1] in self.eos_ids else ids for ids in replies]
        texts: list[str] = self.tokenizer.batch_decode(bare, skip_special_tokens=False)
        return texts

    def count_tokens(self, texts: list[str]) -> list[int]:
        """Tokens of each text, for statistics."""
        if not texts:
            return []
        return [len(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def _render(self, messages: list[dict[str, str]]) -> str:
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text

    def _encode(self, text: str) -> list[int]:
        if text not in self._cache:
            if len(self._cache) > 4096:  # levels repeat within a group and over an evaluation, not for ever
                self._cache.clear()
            self._cache[text] = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self._cache[text])

    def _text_between(self) -> tuple[str, str]:
        """What the template writes after a reply and before the next one, around the user's content."""
        content = "ragen-lab-observation"
        text = self._render(
            [
                {"role": "user", "content": "ragen-lab-start"},
                {"role": "assistant", "content": _PROBE},
                {"role": "user", "content": content},
            ]
        )
        _, found, rest = text.partition(_PROBE)
        before, found_content, after = rest.partition(content)
        if not (found and found_content):
            raise ValueError("the model's chat template does not keep replies verbatim; use a tokenizer whose does")
        return before, after


def _eos_ids(tokenizer: Any) -> frozenset[int]:
    """Every id that closes a reply: the tokenizer's own and the template's end-of-turn marker."""
    ids = {int(tokenizer.eos_token_id)}
    for marker in ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>"):
        found = tokenizer.convert_tokens_to_ids(marker)
        if isinstance(found, int) and found >= 0 and found != tokenizer.unk_token_id:
            ids.add(found)
    return frozenset(ids)
