"""How many data-parallel ranks an engine may say that it has: each costs memory here, so it is not just believed."""

from __future__ import annotations

from enginehouse.domain.errors import ProbeFailed

_MOST = 1024


def sound_ranks(ranks: int) -> int:
    """The number, if it can be true. Raises ProbeFailed."""
    if ranks > _MOST:
        raise ProbeFailed(f"says that it has {ranks} data-parallel ranks; at most {_MOST} are taken", permanent=True)
    return ranks
