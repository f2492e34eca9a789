"""Every random draw of a run is a function of (seed, purpose, index), so that resumed and paired runs agree."""

from __future__ import annotations

import hashlib


def derive(seed: int, purpose: str, *index: int) -> int:
    """A 31-bit seed for one purpose; independent of everything but its arguments."""
    text = ":".join([str(seed), purpose, *map(str, index)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
