"""How varied the reasoning texts of a batch are: the measures behind the Echo Trap (finding 2)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# Words that carry the state and not the phrasing: masked before templates are compared.
_STATE_WORDS = frozenset({"up", "down", "left", "right", "here", "north", "south", "east", "west"})
_NUMBER = re.compile(r"\d+")


def template(text: str, names: frozenset[str] = frozenset()) -> str:
    """The text with directions, numbers and ``names`` masked and runs of masks joined."""
    words: list[str] = []
    for word in _NUMBER.sub("0", text.lower()).split():
        masked = "*" if word in _STATE_WORDS or word in names or word == "0" else word
        if not (masked == "*" and words and words[-1] == "*"):
            words.append(masked)
    return " ".join(words)


def template_share(texts: Sequence[str], names: frozenset[str] = frozenset()) -> float | None:
    """Share of the most common template among the texts that are not empty; None without any."""
    counts = Counter(template(text, names) for text in texts if text)
    return max(counts.values()) / counts.total() if counts else None


def distinct_n(texts: Sequence[str], n: int = 4) -> float | None:
    """Distinct n-grams of words over all n-grams of the texts; None where no text has ``n`` words."""
    grams: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        words = text.lower().split()
        grams.update(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    return len(grams) / grams.total() if grams else None


def mutual_information(logprobs: npt.NDArray[np.float64]) -> tuple[float, float]:
    """(I(X; Z) in nats, retrieval accuracy) of thoughts Z and prompts X, from ``L[i, j] = log p(Z_i | X_j)``, square.

    ``mean_i(L_ii - (logsumexp_j L_ij - log N))``, and the share of thoughts whose own prompt makes them likeliest
    (equals share the point). At most log N can be seen with N prompts. Source: RAGEN-2.
    """
    count = len(logprobs)
    own = np.diagonal(logprobs)
    highest = logprobs.max(axis=1)
    marginal = highest + np.log(np.exp(logprobs - highest[:, None]).sum(axis=1)) - np.log(count)
    ties = (logprobs == highest[:, None]).sum(axis=1)
    return float((own - marginal).mean()), float(((own == highest) / ties).mean())
