"""The number under which the two legs of a request meet at an SGLang prefill engine. Randomness is an argument."""

from __future__ import annotations

LAST = 2**63 - 1
"""Rooms are 1 to this. Never 0, which a decode engine takes for "not there yet" and waits on."""


def room(drawn: int, rank: int | None, ranks: int) -> int:
    """A room for the prefill rank, out of a random number of 64 bits; the rank is the room's rest by all the ranks.

    Every room of that rest may come, each as likely as any other (within one part in 2**63 / ranks).
    """
    if rank is None or ranks <= 1:
        rank, ranks = 0, 1
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks}")
    first = rank or ranks
    return first + ranks * (drawn % ((LAST - first) // ranks + 1))
