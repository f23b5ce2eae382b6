"""Owns the numbers of pairs: how many each engine takes part in now, and what became of caches that nobody wanted."""

from __future__ import annotations

from collections import Counter

Key = tuple[str, int]
"""Engine id and incarnation."""


class PairCounts:
    """Plain numbers; whoever measures reads them."""

    def __init__(self) -> None:
        self.in_flight: Counter[Key] = Counter()
        """Pairs that an engine takes part in now, from dispatch to the end of the answer. Absent: none."""
        self._met_at: dict[Key, float] = {}
        self.waiting = 0
        """Requests that wait because each prefill engine has all the hand-overs that it may have."""
        self.released = 0
        """Caches that a prefill engine kept for a client that had left, and that a decode engine took off it."""
        self.stranded = 0
        """Those that no decode engine took: they stay until the engine gives them up."""

    def begin(self, *keys: Key) -> None:
        """A pair of these engines was dispatched."""
        for key in keys:
            self.in_flight[key] += 1

    def met(self, now: float, *keys: Key) -> None:
        """A pair of these engines, still in flight, had its first token."""
        for key in keys:
            self._met_at[key] = now

    def met_since(self, key: Key, moment: float) -> bool:
        """Whether a pair of it had its first token after that; the one who asks is in flight since then."""
        return self._met_at.get(key, moment) > moment

    def end(self, *keys: Key) -> None:
        """It is over."""
        for key in keys:
            self.in_flight[key] -= 1
            if not self.in_flight[key]:
                del self.in_flight[key]
                self._met_at.pop(key, None)
