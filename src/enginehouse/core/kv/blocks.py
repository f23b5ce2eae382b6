"""Keys of token blocks: what makes two cached blocks the same, whatever the engine calls them.

A block's key is chained: it covers its namespace, its block size and every token from the start of the prompt to its
own end, so one equal key proves an equal prefix. Keys are Python's own 64-bit hash of (key of the block before, bytes
of the block). The hash of bytes is SipHash under a secret of this process, so nobody outside can make two prompts
collide, and no key means anything to another process.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

BYTES_PER_TOKEN = 4


class Scheme(NamedTuple):
    """How an engine cuts prompts into blocks. Blocks of different schemes are never the same."""

    block_size: int
    pairs: bool = False
    """EAGLE-type drafting: a block is cached together with the token after it, and its key covers that too."""


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as 4 bytes each, little-endian; `struct.error` for what is no unsigned 32-bit number."""
    if isinstance(tokens, array) and tokens.typecode == "I":
        return tokens.tobytes()
    return _words(len(tokens)).pack(*tokens)


def root(scheme: Scheme, namespace: str = "") -> int:
    """The key before the first block."""
    return start(scheme.block_size, scheme.pairs, namespace)


def keys(packed: bytes, scheme: Scheme, namespace: str = "") -> list[int]:
    """Keys of all full blocks of a prompt; with pairs the last block needs one more token after it."""
    return extend(root(scheme, namespace), packed, scheme)


def extend(parent: int, packed: bytes, scheme: Scheme, extras: Sequence[bytes | None] | None = None) -> list[int]:
    """Keys of the full blocks in `packed` that follow the block with key `parent`; `extras` are mixed in."""
    step = scheme.block_size * BYTES_PER_TOKEN
    if extras is None and not scheme.pairs:
        return chain(parent, packed, step)
    more = BYTES_PER_TOKEN * scheme.pairs
    blocks = [packed[at : at + step + more] for at in range(0, len(packed) - step - more + 1, step)]
    key = parent
    if extras is None:
        return [key := hash((key, block)) for block in blocks]
    return [
        key := hash((key, block, extra) if extra else (key, block)) for block, extra in zip(blocks, extras, strict=True)
    ]


def start(block_size: int, pairs: bool, namespace: str) -> int:
    """`root`, for the hot path."""
    return hash(("root", block_size, pairs, namespace))


def chain(parent: int, packed: bytes, step: int) -> list[int]:
    """`extend` for what nearly all blocks are: `step` bytes each and nothing else."""
    if len(packed) == step:
        return [hash((parent, packed))]
    key = parent
    whole = packed[: len(packed) // step * step]
    return [key := hash((key, block)) for (block,) in _block(step).iter_unpack(whole)]


@lru_cache(maxsize=256)
def _words(tokens: int) -> struct.Struct:
    return struct.Struct(f"<{tokens}I")


@lru_cache(maxsize=64)
def _block(step: int) -> struct.Struct:
    return struct.Struct(f"{step}s")
