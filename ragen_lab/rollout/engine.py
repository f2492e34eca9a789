"""The native engine: batched decoding in torch with one KV cache kept across all turns of an episode.

Rows whose reply has ended leave the batch at once. Active rows are kept in front of the cache by
swapping rows, so that every step works on a view and copies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ragen_lab.errors import ConfigError
from ragen_lab.policy.model import Policy, cache_keyword, last_logits

# Mean |log-prob of this engine - log-prob of the training forward| over tokens that dtype can explain.
LOGPROB_TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Reply:
    """One sampled reply: ids with the end-of-turn token if it came, natural-log probs under the sampling
    distribution (temperature applied), and that distribution's entropy at each token."""

    ids: list[int]
    logprobs: list[float]
    entropies: list[float]
    truncated: bool


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values of all rows, written at explicit positions: [rows, heads, positions, width] per layer."""

    def __init__(self, layers: int):
        self.layers: list[object] = []  # the base class's own storage stays empty; every mask is ours
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self.rows = 0
        self.positions_AQ: Tensor = torch.empty(0)
        self.length = 0  # positions in use by the longest active row

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store the new positions of the first ``A`` rows; return all positions of these rows."""
        active = key_states.shape[0]
        out = []
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            held = self._grown(store[layer_idx], new)
            store[layer_idx] = held
            if self.positions_AQ.shape[1] == 1:
                held[torch.arange(active, device=new.device), :, self.positions_AQ[:, 0]] = new[:, :, 0]
            else:
                row_A1 = torch.arange(active, device=new.device)[:, None]
                held[row_A1, :, self.positions_AQ] = new.transpose(1, 2)
            out.append(held[:active, :, : self.length])
        return out[0], out[1]

    def _grown(self, held: Tensor | None, new: Tensor) -> Tensor:
        """The store, large enough for all rows and positions (grown by doubling)."""
        _, heads, _, width = new.shape
        if held is not None and held.shape[0] >= self.rows and held.shape[2] >= self.length:
            return held
        capacity = max(64, self.length, 2 * held.shape[2] if held is not None and held.shape[2] < self.length else 0)
        if held is not None:
            capacity = max(capacity, held.shape[2])
        grown = new.new_zeros(self.rows, heads, capacity, width)
        if held is not None:
            grown[: held.shape[0], :, : held.shape[2]] = held
        return grown

    def spread(self, source: Tensor) -> None:
        """Replace row i by the present row ``source[i]`` (a group's members share their prompt)."""
        self.rows = len(source)
        for store in (self.keys, self.values):
            for layer, held in enumerate(store):
                assert held is not None
                store[layer] = held[source].clone()

    def swap(self, first: Tensor, second: Tensor) -> None:
        """Exchange rows pairwise, whole: what lies beyond a row's own tokens stays with that row."""
        both, crossed = torch.cat([first, second]), torch.cat([second, first])
        for store in (self.keys, self.values):
            for held in store:
                assert held is not None
                held[both] = held[crossed]


def refuse_unsupported(policy: Policy, max_context: int) -> None:
    """Raise ConfigError for a model whose attention the native engine cannot reproduce exactly."""
    config = policy.model.config
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    slides = "sliding_attention" in kinds and window is not None and window < max_context
    other = sorted(kinds - {"full_attention", "sliding_attention"})
    if slides or other:
        what = f"attention of kind {', '.join(other)}" if other else f"a sliding window of {window} tokens"
        raise ConfigError(
            "policy.model",
            [
                f"policy.model: this model has {what}, which the native engine does not decode. Use a model with full "
                f"attention{'' if other else f', or rollout.max_context of at most {window}'}."
            ],
        )


class NativeSession:
    """Episodes under way. Rows are numbered 0..rows-1 by the caller, for the whole session."""

    def __init__(
        self, policy: Policy, rows: int, temperature: float, max_new_tokens: int, eos_ids: frozenset[int], seed: int
    ):
        self.policy = policy
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.eos = torch.tensor(sorted(eos_ids), device=policy.device)
        self.generator = torch.Generator(policy.device).manual_seed(seed)
        self.cache = SlotCache(policy.model.config.num_hidden_layers)
        self.slot = list(range(rows))  # row -> slot in the cache
        self.row_at = list(range(rows))  # slot -> row
        self.lengths = [0] * rows  # tokens in the cache, by row
        self.pending: list[list[int]] = [[] for _ in range(rows)]  # sampled but not yet fed
        self._keyword = cache_keyword(policy.model)

    @torch.inference_mode()
    def start(self, prompts: list[list[int]], members: int) -> None:
        """Feed each prompt once and share it among ``members`` rows (row = prompt * members + member).

        All of a prompt but its last token goes into the cache; the last one waits for ``reply``.
        """
        self.cache.rows = len(prompts)
        if max(len(prompt) for prompt in prompts) > 1:
            chunks = [prompt[:-1] for prompt in prompts]
            self._feed(chunks, [0] * len(prompts))
            source = torch.arange(len(prompts), device=self.policy.device).repeat_interleave(members)
            self.cache.spread(source)
        self.cache.rows = len(self.slot)
        for row in range(len(self.slot)):
            self.lengths[row] = len(prompts[row // members]) - 1
            self.pending[row] = [prompts[row // members][-1]]

    def reply(self, rows: list[int], contexts: list[list[int]]) -> list[Reply]:
        """Append a context to each of ``rows`` and sample its reply. Same order out as in."""
        for row, context in zip(rows, contexts, strict=True):
            self.pending[row] = self.pending[row] + context
        with torch.inference_mode():
            return self._decode(rows)

    def _decode(self, rows: list[int]) -> list[Reply]:
        device = self.policy.device
        self._bring_to_front(rows)
        active = self.row_at[: len(rows)]
        chunks = [self.pending[row] for row in active]
        logits_AV = self._feed(chunks, [self.lengths[row] for row in active])
        for row, chunk in zip(active, chunks, strict=True):
            self.lengths[row] += len(chunk)
            self.pending[row] = []
        ids: dict[int, list[int]] = {row: [] for row in rows}
        steps: list[tuple[list[int], Tensor, Tensor, Tensor]] = []
        truncated = set(rows)
        position_A = torch.tensor([self.lengths[row] for row in active], device=device)
        for step in range(self.max_new_tokens):
            logprobs_AV = torch.log_softmax(logits_AV.float() / self.temperature, dim=-1)
            probs_AV = logprobs_AV.exp()
            race_AV = torch.empty_like(probs_AV).exponential_(generator=self.generator)
            token_A = (probs_AV / race_AV).argmax(dim=-1)  # exponential race: a draw from probs
            steps.append(
                (active, token_A, logprobs_AV.gather(1, token_A[:, None]).squeeze(1), -(probs_AV * logprobs_AV).sum(-1))
            )
            ended = torch.isin(token_A, self.eos).tolist()
            sampled = token_A.tolist()
            for row, token in zip(active, sampled, strict=True):
                ids[row].append(token)
            if any(ended):
                truncated.difference_update(row for row, end in zip(active, ended, strict=True) if end)
                stay = [i for i, end in enumerate(ended) if not end]
                token_A, position_A = self._drop(ended, stay, token_A, position_A)
                active = self.row_at[: len(stay)]
            if not active or step == self.max_new_tokens - 1:
                break
            self.cache.positions_AQ = position_A[:, None]
            self.cache.length = max(self.lengths[row] + len(ids[row]) for row in active)
            logits_AV = self._forward(token_A[:, None], position_A[:, None])
            position_A = position_A + 1
        for row in rows:  # the last sampled token of a row has not been fed yet
            self.lengths[row] += len(ids[row]) - 1
            self.pending[row] = ids[row][-1:]
        return self._collect(rows, ids, steps, truncated)

    def _drop(self, ended: list[bool], stay: list[int], token_A: Tensor, position_A: Tensor) -> tuple[Tensor, Tensor]:
        """Move the rows that go on to the front; return their tokens and positions in the new order."""
        count = len(stay)
        holes = [i for i in range(count) if ended[i]]
        fillers = [i for i in stay if i >= count]
        order = list(range(count))
        for hole, filler in zip(holes, fillers, strict=True):
            order[hole] = filler
            self._swap_slots(hole, filler)
        if holes:
            device = self.policy.device
            self.cache.swap(torch.tensor(holes, device=device), torch.tensor(fillers, device=device))
        index = torch.tensor(order, device=self.policy.device, dtype=torch.long)
        return token_A[index], position_A[index]

    def _bring_to_front(self, rows: list[int]) -> None:
        """Give ``rows`` the first slots, in any order."""
        count = len(rows)
        wanted = set(rows)
        holes = [slot for slot in range(count) if self.row_at[slot] not in wanted]
        fillers = [self.slot[row] for row in rows if self.slot[row] >= count]
        for hole, filler in zip(holes, fillers, strict=True):
            self._swap_slots(hole, filler)
        if holes and self.cache.keys[0] is not None:
            device = self.policy.device
            self.cache.swap(torch.tensor(holes, device=device), torch.tensor(fillers, device=device))

    def _swap_slots(self, a: int, b: int) -> None:
        self.row_at[a], self.row_at[b] = self.row_at[b], self.row_at[a]
        self.slot[self.row_at[a]], self.slot[self.row_at[b]] = a, b

    def _feed(self, chunks: list[list[int]], starts: list[int]) -> Tensor:
        """Feed a chunk to each of the first rows; logits after its last token, [A, V].

        Chunks are padded on the right. A pad writes beyond its row's end, at positions that the row's
        later tokens overwrite before anything can look at them.
        """
        device = self.policy.device
        width = max(len(chunk) for chunk in chunks)
        ids_AQ = torch.tensor([chunk + [0] * (width - len(chunk)) for chunk in chunks], device=device)
        position_AQ = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        self.cache.positions_AQ = position_AQ
        self.cache.length = max(starts) + width
        last_A = torch.tensor([len(chunk) - 1 for chunk in chunks], device=device)
        return self._forward(ids_AQ, position_AQ, last_A)

    def _forward(self, ids_AQ: Tensor, position_AQ: Tensor, last_A: Tensor | None = None) -> Tensor:
        """Logits [A, V] at index ``last_A`` of each row (default: its only position)."""
        key_position = torch.arange(self.cache.length, device=self.policy.device)
        allowed = key_position[None, None, None, :] <= position_AQ[:, None, :, None]
        inputs = {
            "input_ids": ids_AQ,
            "position_ids": position_AQ,
            "attention_mask": allowed,
            "use_cache": True,
            self._keyword: self.cache,
        }
        return last_logits(self.policy.model, inputs, last_A)

    @staticmethod
    def _collect(
        rows: list[int],
        ids: dict[int, list[int]],
        steps: list[tuple[list[int], Tensor, Tensor, Tensor]],
        truncated: set[int],
    ) -> list[Reply]:
        """Log-probs and entropies step by step -> by row (one transfer per step, after the last one)."""
        logprobs: dict[int, list[float]] = {row: [] for row in rows}
        entropies: dict[int, list[float]] = {row: [] for row in rows}
        for active, _, logprob_A, entropy_A in steps:
            for row, logprob, entropy in zip(active, logprob_A.tolist(), entropy_A.tolist(), strict=True):
                logprobs[row].append(logprob)
                entropies[row].append(entropy)
        return [Reply(ids[row], logprobs[row], entropies[row], row in truncated) for row in rows]
