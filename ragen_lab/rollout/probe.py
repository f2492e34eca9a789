"""Does the action depend on the reasoning? Probes that take the reasoning away, and what thoughts tell of prompts.

The probes play the evaluation again: without asking for reasoning (``no_think``), with the think block forced to be
empty (``empty_think``), or with each reply forced to begin with the think block of another prompt's reply of the
same evaluation and turn (``shuffled_think``). Forced tokens are context: they are fed as they were sampled.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ragen_lab.config import RunConfig
from ragen_lab.policy.model import Policy, make_batch, token_logprobs
from ragen_lab.prompt import END_THINK, THINK, ChatWriter
from ragen_lab.rollout.collect import Force, Rollout, collect
from ragen_lab.trajectory import CONTEXT, MODEL, StopReason, Trajectory

ROWS = 64  # sequences per forward pass of the estimate


def play_probe(
    kind: str,
    policy: Policy,
    writer: ChatWriter,
    cfg: RunConfig,
    levels: list[int],
    dynamics: list[list[int]],
    seed: int,
    normal: list[Trajectory],
) -> Rollout:
    """Play the evaluation once more under probe ``kind``; ``normal``: the evaluation's trajectories, in row order."""
    force: Force | None = None
    if kind == "no_think":
        cfg = cfg.model_copy(update={"prompt": cfg.prompt.model_copy(update={"think": False})})
        writer = ChatWriter(writer.tokenizer, cfg.prompt, cfg.rollout)
    elif kind == "empty_think":
        empty = writer.tokenizer(f"{THINK}{END_THINK}", add_special_tokens=False)["input_ids"]
        force = lambda turn, row: list(empty)  # noqa: E731
    else:
        force = shuffled_thoughts(normal, writer, np.random.default_rng(seed))
    return collect(policy, writer, cfg, levels, dynamics, cfg.eval.temperature, seed, force)


def shuffled_thoughts(normal: list[Trajectory], writer: ChatWriter, rng: np.random.Generator) -> Force:
    """Each row's reply of each turn begins with the thought that another row had in that turn.

    Where too few rows thought in a turn (or fewer than two did), the thoughts of the last turn that has them serve.
    Without any complete thought in the evaluation nothing is forced.
    """
    turns = max(len(t.turns) for t in normal)
    thoughts: list[dict[int, list[int]]] = []
    for turn in range(turns):
        found = {row: thought_ids(t, turn, writer) for row, t in enumerate(normal) if turn < len(t.turns)}
        held = {row: ids for row, ids in found.items() if ids}
        thoughts.append(held if len(held) > 1 or not thoughts else thoughts[-1])
    places = [rng.permutation(sorted(held)).tolist() for held in thoughts]

    def force(turn: int, row: int) -> list[int]:
        turn = min(turn, turns - 1)
        ring = places[turn]
        # the next one in a random circle: for rows in the circle a permutation without fixed points
        at = ring.index(row) + 1 if row in ring else row
        donors = [donor for donor in (ring[(at + i) % len(ring)] for i in range(min(2, len(ring)))) if donor != row]
        return thoughts[turn][donors[0]] if donors else []

    return force


def thought_ids(trajectory: Trajectory, turn: int, writer: ChatWriter) -> list[int]:
    """The ids of a turn's reply up to the end of its think block, as sampled; empty without a complete block."""
    said: list[int] = trajectory.ids_T[(trajectory.turns_T == turn) & (trajectory.roles_T == MODEL)].tolist()
    if END_THINK not in writer.decode([said])[0]:
        return []
    low, high = 1, len(said)  # the shortest beginning whose text has the closing tag: texts only grow
    while low < high:
        middle = (low + high) // 2
        if END_THINK in writer.decode([said[:middle]])[0]:
            high = middle
        else:
            low = middle + 1
    return said[:low]


def first_thoughts(normal: list[Trajectory], writer: ChatWriter, limit: int) -> tuple[list[list[int]], list[list[int]]]:
    """(prompts, thoughts) of the first turns, of different prompts, ``limit`` at most."""
    prompts: list[list[int]] = []
    thoughts: list[list[int]] = []
    for trajectory in normal:
        prompt = trajectory.ids_T[: int(np.argmax(trajectory.roles_T == MODEL))].tolist()
        if trajectory.turns and prompt not in prompts and (thought := thought_ids(trajectory, 0, writer)):
            prompts.append(prompt)
            thoughts.append(thought)
        if len(prompts) == limit:
            break
    return prompts, thoughts


@torch.no_grad()
def thought_logprobs(
    policy: Policy, prompts: list[list[int]], thoughts: list[list[int]], temperature: float
) -> npt.NDArray[np.float64]:
    """L[i, j] = log p(thought i | prompt j) by teacher forcing, nats, at the temperature they were sampled with."""
    pairs = [(i, j) for i in range(len(thoughts)) for j in range(len(prompts))]
    pairs.sort(key=lambda pair: len(thoughts[pair[0]]) + len(prompts[pair[1]]))
    matrix = np.zeros((len(thoughts), len(prompts)))
    for begin in range(0, len(pairs), ROWS):
        part = pairs[begin : begin + ROWS]
        batch = make_batch([_as_trajectory(prompts[j], thoughts[i]) for i, j in part], policy.device)
        logprobs_N, _ = token_logprobs(policy.model, batch, temperature)
        sums = torch.zeros(len(part), dtype=torch.float64, device=policy.device)
        sums.index_add_(0, batch.row_N, logprobs_N.double())
        for (i, j), total in zip(part, sums.tolist(), strict=True):
            matrix[i, j] = total
    return matrix


def _as_trajectory(prompt: list[int], thought: list[int]) -> Trajectory:
    ids = np.array([*prompt, *thought], dtype=np.int64)
    roles = np.array([CONTEXT] * len(prompt) + [MODEL] * len(thought), dtype=np.int8)
    nothing = np.full(len(ids), np.nan, dtype=np.float32)
    return Trajectory(ids, roles, np.zeros(len(ids), dtype=np.int16), nothing, (), StopReason.TURNS, 0, 0)
