"""Longest prefix per holder, by jumping along the keys of a prompt instead of walking them.

Engines cache a block only behind the block before it and give up the last blocks of a chain first, so the set of
holders only shrinks along a prompt. Two positions with equal sets are taken to have the same set all between them;
where the sets differ, the change is found by halving. A hole is noticed when a probe falls on it, and then ends that
holder's prefix there, so one as long as a jump always is; a shorter one between two probes is not, and what lies behind
it is credited. Where a probe says that a holder has a block or lacks it, that is never contradicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

SHORTEST_JUMP = 8
"""Blocks."""
MOST_JUMPS = 16
"""Of longer prompts the jumps are longer, not more."""


def longest(holding: Callable[[int], int], keys: Sequence[int]) -> list[tuple[int, int]]:
    """Masks of holders with the number of blocks that each has from the start: disjoint, and shortest prefixes first.

    `holding(key)` is the mask of who holds a block. Holders of nothing are left out.
    """
    if not keys:
        return []
    last = len(keys) - 1
    jump = max(SHORTEST_JUMP, last // MOST_JUMPS)
    at, here = 0, holding(keys[0])
    ends: list[tuple[int, int]] = []
    ahead: list[tuple[int, int]] = []
    """Positions already probed, nearest last."""
    while here and at < last:
        if ahead:
            there, mask = ahead.pop()
            mask &= here
        else:
            there = min(at + jump, last)
            mask = holding(keys[there]) & here
        while mask != here and there - at > 1:
            ahead.append((there, mask))
            there = (at + there) // 2
            mask = holding(keys[there]) & here
        if mask != here:
            ends.append((here & ~mask, at + 1))
        at, here = there, mask
    if here:
        ends.append((here, last + 1))
    return ends


def members(mask: int) -> list[int]:
    """Numbers of the bits that are set."""
    if mask.bit_count() * 8 > mask.bit_length():
        return [number for number, bit in enumerate(bin(mask)[:1:-1]) if bit == "1"]
    numbers = []
    while mask:
        lowest = mask & -mask
        numbers.append(lowest.bit_length() - 1)
        mask ^= lowest
    return numbers
