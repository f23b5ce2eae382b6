"""Counts requests that an engine failed in a row, and says when that is too many to be the requests' own fault."""

from __future__ import annotations

from enginehouse.service.membership_holds import Key


class Failures:
    """By incarnation. Only those are held that failed their last request, so an answer costs next to nothing."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row: dict[Key, int] = {}

    def failed(self, key: Key) -> bool:
        """Count one; whether the limit is reached, which begins the count anew."""
        count = self._in_a_row.get(key, 0) + 1
        if count == self._limit:
            self.forget(key)
            return True
        self._in_a_row[key] = count
        return False

    def forget(self, key: Key) -> None:
        """It answered well, or is gone."""
        if self._in_a_row:
            self._in_a_row.pop(key, None)
