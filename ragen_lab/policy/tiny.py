"""The tiny policy: a real transformers causal LM (Llama architecture) with a word-level tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ragen_lab.prompt import ANSWER, END_ANSWER, END_THINK, SEPARATOR, THINK
from ragen_lab.sections import TinySection

PAD, UNKNOWN, USER, ASSISTANT, END = "<pad>", "<unk>", "<user>", "<assistant>", "<end>"
_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<' + message['role'] + '> ' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ ' <end> ' }}{% else %}{{ ' ' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def build_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are whole words, the newline, and the reply tags."""
    special = [PAD, UNKNOWN, USER, ASSISTANT, END, THINK, END_THINK, ANSWER, END_ANSWER]
    vocabulary = [*special, "\n", SEPARATOR, *sorted(set(words) - {*special, "\n", SEPARATOR})]
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = Sequence([Split(Regex(" +"), "removed"), Split("\n", "isolated")])
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(section: TinySection, vocabulary: int, context: int, seed: int) -> LlamaForCausalLM:
    """Random weights of the given shape; the caller's global random state is left as it was."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=section.hidden,
        intermediate_size=section.intermediate,
        num_hidden_layers=section.layers,
        num_attention_heads=section.heads,
        num_key_value_heads=section.kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=4,  # the place of END in build_tokenizer
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
