"""What a mock engine makes of a prompt: the same vector on every engine, of numbers that every float holds exactly."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


def embedding(prompt: Sequence[int], size: int) -> list[float]:
    """Numbers from -1 to 1 in steps of a 128th, none of them 0."""
    seed = hashlib.shake_128(array("I", prompt).tobytes()).digest(size)
    return [(byte - 128) / 128 if byte < 128 else (byte - 127) / 128 for byte in seed]
