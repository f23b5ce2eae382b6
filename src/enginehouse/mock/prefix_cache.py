"""Which blocks of prompt tokens one rank still holds: bounded, least recently used out first, true about hits."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Full blocks, each known by a hash of itself and all before it.

    Every touch moves a chain's blocks to the young end from its tail to its head, so a block is never younger than the
    one before it and the oldest block is always the end of a chain: evicting it leaves no gap.
    """

    def __init__(self, block_size: int, capacity: int) -> None:
        self.block_size = block_size
        self.capacity = capacity
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def chain(self, tokens: Sequence[int], namespace: str = "") -> list[bytes]:
        """Keys of the full blocks of a token sequence, first to last."""
        data = array("I", tokens).tobytes()
        width = 4 * self.block_size
        key = namespace.encode()
        keys = []
        for start in range(0, len(data) - width + 1, width):
            key = hashlib.blake2b(key + data[start : start + width], digest_size=16).digest()
            keys.append(key)
        return keys

    def match(self, chain: Sequence[bytes], prompt_length: int) -> int:
        """Tokens at the head of a prompt that are held. The last prompt token is always computed anew."""
        most = (prompt_length - 1) // self.block_size
        held = 0
        for key in chain[:most]:
            if key not in self._blocks:
                break
            held += 1
        self._touch(chain[:held])
        return held * self.block_size

    def store(self, chain: Sequence[bytes]) -> None:
        """Hold a chain; what does not fit goes, oldest first, the chain's own tail included."""
        for key in chain:
            self._blocks.setdefault(key)
        self._touch(chain)
        while len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Hold nothing."""
        self._blocks.clear()

    def _touch(self, chain: Sequence[bytes]) -> None:
        for key in reversed(chain):
            self._blocks.move_to_end(key)
