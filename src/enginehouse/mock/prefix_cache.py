"""Which blocks of tokens one rank still holds: bounded, least recently used out first, true about hits."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Change(NamedTuple):
    """What holding a chain did to a cache."""

    first: int
    """Position in the chain of the first block that was not held before."""
    end: int
    """Position after the last block of the chain that is held now; equal to `first`: nothing came in."""
    removed: list[bytes]
    """Keys of other blocks that made room."""


class PrefixCache:
    """Full blocks, each known by a hash of itself and all before it.

    Every touch moves a chain's blocks to the young end from its tail to its head, so a block is never younger than the
    one before it and the oldest block is always the end of a chain: evicting it leaves no gap.
    """

    def __init__(self, block_size: int, capacity: int, seed: str = "") -> None:
        """seed: engines of different seeds know the same tokens by different keys."""
        self.block_size = block_size
        self.capacity = capacity
        self._seed = seed
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._blocks)

    def chain(self, tokens: Sequence[int], namespace: str = "") -> list[bytes]:
        """Keys of the full blocks of a token sequence, first to last."""
        data, width = array("I", tokens).tobytes(), 4 * self.block_size
        key = (self._seed + namespace).encode()
        chain = []
        for start in range(0, len(data) - width + 1, width):
            key = _key(key, data[start : start + width])
            chain.append(key)
        return chain

    def extend(self, chain: list[bytes], block: Sequence[int], namespace: str = "") -> None:
        """Add the key of one more block of tokens to a chain."""
        before = chain[-1] if chain else (self._seed + namespace).encode()
        chain.append(_key(before, array("I", block).tobytes()))

    def match(self, chain: Sequence[bytes], prompt_length: int) -> int:
        """Tokens at the head of a prompt that are held. The last prompt token is always computed anew."""
        most = (prompt_length - 1) // self.block_size
        held = self._held(chain[:most])
        self._touch(chain[:held])
        return held * self.block_size

    def store(self, chain: Sequence[bytes]) -> Change:
        """Hold a chain; what does not fit goes, oldest first, the chain's own tail included."""
        first = self._held(chain)
        for key in chain[first:]:
            self._blocks[key] = None
        self._touch(chain)
        over = max(0, len(self._blocks) - self.capacity)
        gone = [self._blocks.popitem(last=False)[0] for _ in range(over)]
        # Other blocks are all older than the chain's, and its end is older than its head.
        end = min(len(chain), self.capacity)
        return Change(first, max(first, end), gone[: over - (len(chain) - end)])

    def clear(self) -> None:
        """Hold nothing."""
        self._blocks.clear()

    def _held(self, chain: Sequence[bytes]) -> int:
        """Blocks at the head of a chain that are held; none is without the one before it."""
        for position, key in enumerate(chain):
            if key not in self._blocks:
                return position
        return len(chain)

    def _touch(self, chain: Sequence[bytes]) -> None:
        for key in reversed(chain):
            self._blocks.move_to_end(key)


def _key(before: bytes, block: bytes) -> bytes:
    return hashlib.blake2b(before + block, digest_size=16).digest()
