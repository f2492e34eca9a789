"""The native engine beside transformers' generate on the same model and prompts: `python benchmarks/decode.py`.

Both sample one reply at temperature 1 for 128 rows (8 prompts x 16 responses) with the shipped tiny model. The
peer stops when its last row has ended; the native engine lets ended rows leave and shares a group's prompt.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ragen_lab import warm_start
from ragen_lab.config import load
from ragen_lab.env.base import make_env
from ragen_lab.policy.model import load_policy
from ragen_lab.prompt import ChatWriter
from ragen_lab.rollout.engine import NativeSession

PAGE = Path(__file__).parent.parent / "experiments" / "frozen_lake_grpo.yaml"


def rates(work: Callable[[int], int], repeats: int = 9) -> list[float]:
    """Sampled tokens per second of each repeat, after one warm-up."""
    work(0)
    found = []
    for seed in range(1, repeats + 1):
        began = time.perf_counter()
        tokens = work(seed)
        found.append(tokens / (time.perf_counter() - began))
    return found


def main() -> None:
    torch.set_num_threads(1)
    cfg = load(PAGE)
    policy = load_policy(warm_start.prepare(cfg, Path(tempfile.gettempdir())), cfg.policy)
    writer = ChatWriter(policy.tokenizer, cfg.prompt, cfg.rollout)
    env = make_env(cfg.env)
    prompts = [writer.first(env.rules(), env.reset(seed), 10) for seed in range(cfg.rollout.prompts)]
    members, limit = cfg.rollout.responses, cfg.rollout.max_new_tokens

    def native(seed: int) -> int:
        session = NativeSession(policy, len(prompts) * members, 1.0, limit, writer.eos_ids, seed)
        session.start(prompts, members)
        rows = list(range(len(prompts) * members))
        return sum(len(reply.ids) for reply in session.reply(rows, [[] for _ in rows]))

    ids = torch.tensor([prompt for prompt in prompts for _ in range(members)])
    eos = policy.tokenizer.eos_token_id

    def peer(seed: int) -> int:
        torch.manual_seed(seed)
        with torch.inference_mode():
            out = policy.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=limit,
                eos_token_id=eos,
                pad_token_id=policy.tokenizer.pad_token_id,
            )
        replies = out[:, ids.shape[1] :]
        ended = (replies == eos).int().cumsum(1)
        return int((ended - (replies == eos).int() == 0).sum())

    ours, theirs = rates(native), rates(peer)
    for name, found in (("native engine", ours), ("transformers generate", theirs)):
        print(f"{name:22} median {statistics.median(found):7.0f} tokens/s ({min(found):.0f} to {max(found):.0f})")
    print(f"ratio {statistics.median(ours) / statistics.median(theirs):.2f}, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
