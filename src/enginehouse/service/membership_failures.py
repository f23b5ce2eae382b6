"""Counts what an engine failed in a row: requests, until too many to be at fault themselves, and hand-overs."""

from __future__ import annotations

from enginehouse.service.membership_holds import Key


class Failures:
    """By incarnation. Only those are held that failed their last request, so an answer costs next to nothing."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row: dict[Key, int] = {}
        self._unmet: dict[Key, int] = {}

    def failed(self, key: Key) -> bool:
        """Count one; whether the limit is reached, which begins the count anew."""
        count = self._in_a_row.get(key, 0) + 1
        if count == self._limit:
            self._begin_anew(key)
            return True
        self._in_a_row[key] = count
        return False

    def unmet(self, key: Key) -> int:
        """Count a hand-over that took too long; how many by now."""
        self._unmet[key] = count = self._unmet.get(key, 0) + 1
        return count

    def forget(self, key: Key) -> None:
        """It answered well, or is gone."""
        self._begin_anew(key)
        if self._unmet:
            self._unmet.pop(key, None)

    def _begin_anew(self, key: Key) -> None:
        if self._in_a_row:
            self._in_a_row.pop(key, None)
