"""The policy and the critic: loading, token log-probs, entropies and values.

Shape suffixes: ``_BT`` padded batch of token ids, ``_N`` the model tokens of the batch, concatenated in
row order. Rows are padded on the right, behind their last token, where causal attention cannot see it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from ragen_lab.errors import ConfigError
from ragen_lab.sections import PolicySection
from ragen_lab.trajectory import MODEL, Trajectory

transformers_logging.disable_progress_bar()  # the terminal is the driver's; a trial's noise goes to its log


def choose_device(name: str) -> torch.device:
    """'auto' is the first GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "policy.device", [f"policy.device: {name!r}, but this machine has no usable GPU; use 'auto' or 'cpu'."]
        )
    return torch.device(name)


Model = Any  # a transformers PreTrainedModel, whose own annotations do not describe its parts


@dataclass(frozen=True)
class Policy:
    """A causal LM and its tokenizer on a device. Dropout is off in every forward."""

    model: Model
    tokenizer: Any
    device: torch.device

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[0])


def load_policy(source: str | Path, section: PolicySection) -> Policy:
    """Load a model folder or hub name. Raises ConfigError when it cannot be had."""
    device = choose_device(section.device)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source))
        model = AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32, attn_implementation="sdpa")
    except OSError as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            "policy.model",
            [
                f"policy.model: cannot load {str(source)!r}: {first} Give a folder with a transformers model, a hub "
                "name that this machine can reach, or 'tiny'."
            ],
        ) from None
    if tokenizer.chat_template is None:
        raise ConfigError(
            "policy.model", [f"policy.model: {str(source)!r} has no chat template; use an instruct model."]
        )
    # The weights stay float32 whatever the activations are: at a learning rate of 1e-6 an update is smaller than
    # the spacing of bfloat16 numbers, and most weights would never move.
    model._ragen_lab_activations = getattr(torch, section.dtype)
    return Policy(model.to(device).eval(), tokenizer, device)


def frozen_copy(policy: Policy) -> Policy:
    """The start policy, kept for the KL."""
    model = copy.deepcopy(policy.model).eval()
    model.requires_grad_(False)
    return Policy(model, policy.tokenizer, policy.device)


def precision(model: Model) -> torch.autocast:
    """The context of every forward: activations in ``policy.dtype``, weights as they are."""
    dtype = getattr(model, "_ragen_lab_activations", torch.float32)
    kind = next(model.parameters()).device.type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=dtype is torch.bfloat16)


class Critic(nn.Module):
    """The policy's backbone (its own copy) with a linear value head that starts at zero."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.backbone = copy.deepcopy(backbone(policy.model))
        self._ragen_lab_activations = getattr(policy.model, "_ragen_lab_activations", torch.float32)
        width = policy.model.get_output_embeddings().weight.shape[1]
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.to(policy.device).eval()

    def forward(self, batch: Batch) -> Tensor:
        """Value of the state before each model token, shape [N], float32."""
        with precision(self):
            hidden_BTD = self.backbone(input_ids=batch.ids_BT, position_ids=batch.positions_BT, use_cache=False)[0]
        return self.head(hidden_BTD[batch.before].float()).squeeze(-1)  # type: ignore[no-any-return]


def backbone(model: Model) -> nn.Module:
    """The transformer below the LM head."""
    inner = getattr(model, model.base_model_prefix)
    assert isinstance(inner, nn.Module)
    return inner


@dataclass(frozen=True)
class Batch:
    """Trajectories as padded tensors.

    ``before``: index pair (row, position - 1) of each model token: where its distribution is read.
    ``targets_N``: the sampled ids; ``row_N``: row of each model token; ``tokens``: real tokens, context included.
    """

    ids_BT: Tensor
    positions_BT: Tensor
    before: tuple[Tensor, Tensor]
    targets_N: Tensor
    row_N: Tensor
    tokens: int


def make_batch(trajectories: Sequence[Trajectory], device: torch.device) -> Batch:
    """Pad on the right and index the model tokens by role, never by token id."""
    lengths = [len(t.ids_T) for t in trajectories]
    ids_BT = torch.zeros(len(trajectories), max(lengths), dtype=torch.long)
    model_BT = torch.zeros(len(trajectories), max(lengths), dtype=torch.bool)
    for row, trajectory in enumerate(trajectories):
        ids_BT[row, : lengths[row]] = torch.from_numpy(trajectory.ids_T)
        model_BT[row, : lengths[row]] = torch.from_numpy(trajectory.roles_T == MODEL)
    row_N, position_N = model_BT.nonzero(as_tuple=True)
    targets_N = ids_BT[row_N, position_N]
    positions_BT = torch.arange(ids_BT.shape[1]).expand_as(ids_BT)
    return Batch(
        ids_BT.to(device),
        positions_BT.to(device),
        (row_N.to(device), (position_N - 1).to(device)),
        targets_N.to(device),
        row_N.to(device),
        sum(lengths),
    )


def _plain_head(model: Model) -> bool:
    """Whether logits are simply the output embedding applied to the last hidden state.

    Some architectures scale or cap their logits; for them the whole forward is used.
    """
    known = getattr(model, "_ragen_lab_plain_head", None)
    if known is None:
        device = next(model.parameters()).device
        with torch.no_grad():
            ids = torch.arange(8, device=device).unsqueeze(0)
            hidden = backbone(model)(input_ids=ids, use_cache=False)[0]
            full = model(input_ids=ids, use_cache=False).logits
            known = bool(torch.allclose(model.get_output_embeddings()(hidden), full, atol=1e-4))
        model._ragen_lab_plain_head = known
    return bool(known)


def token_logits(model: Model, batch: Batch, temperature: float) -> Tensor:
    """Logits / temperature at each model token, shape [N, V], float32."""
    inputs = {"input_ids": batch.ids_BT, "position_ids": batch.positions_BT, "use_cache": False}
    plain = _plain_head(model)
    with precision(model):
        if plain:  # the head is applied to the model tokens only
            logits_NV = model.get_output_embeddings()(backbone(model)(**inputs)[0][batch.before])
        else:
            logits_NV = model(**inputs).logits[batch.before]
    scaled_NV: Tensor = logits_NV.float() / temperature
    return scaled_NV


def last_logits(model: Model, inputs: dict[str, Any], last_B: Tensor | None) -> Tensor:
    """Logits [B, V] at position ``last_B`` of each row (None: the rows are one token long)."""

    def pick(states_BTX: Tensor) -> Tensor:
        if last_B is None:
            return states_BTX[:, -1]
        return states_BTX[torch.arange(len(last_B), device=last_B.device), last_B]

    plain = _plain_head(model)
    with precision(model):
        if plain:
            return model.get_output_embeddings()(pick(backbone(model)(**inputs)[0]))  # type: ignore[no-any-return]
        return pick(model(**inputs).logits)


def token_logprobs(model: Model, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """(log-prob of the sampled token, entropy of its distribution), each [N], at the sampling temperature."""
    logprobs_NV = F.log_softmax(token_logits(model, batch, temperature), dim=-1)
    taken_N = logprobs_NV.gather(1, batch.targets_N[:, None]).squeeze(1)
    entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return taken_N, entropy_N


def cache_keyword(model: Model) -> str:
    """transformers renamed ``past_key_values`` to ``cache``; this says which one the model takes."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
