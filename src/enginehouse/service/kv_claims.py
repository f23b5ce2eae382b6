"""Owns which rank a publisher is followed for: what it holds is credited to nobody else.

Two engines on one host that were given the same port would both be found at the one socket that is there.
"""

from __future__ import annotations

from collections.abc import Iterable

from enginehouse.domain.kv import RankKey


class Claims:
    """Endpoints of publishers, each of one rank; its incarnations follow each other at the same one."""

    def __init__(self) -> None:
        self._of: dict[str, RankKey] = {}

    def claim(self, endpoint: str, key: RankKey) -> RankKey | None:
        """It is this rank's from now on; unless it is another's, which is returned."""
        other = self._of.get(endpoint)
        if other is not None and (other.engine_id, other.rank) != (key.engine_id, key.rank):
            return other
        self._of[endpoint] = key
        return None

    def release(self, endpoints: Iterable[str], engine_id: str, incarnation: int) -> None:
        """This incarnation has gone; where a newer one has claimed them meanwhile, they stay claimed."""
        for endpoint in endpoints:
            owner = self._of.get(endpoint)
            if owner is not None and owner[:2] == (engine_id, incarnation):
                del self._of[endpoint]

    def free(self, endpoint: str) -> bool:
        """Nobody's."""
        return endpoint not in self._of
