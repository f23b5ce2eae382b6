"""How often something happens, as a rate that forgets: what people read as "events per second"."""

from __future__ import annotations

from math import exp

MEMORY = 30.0
"""Seconds after which what happened weighs 1/e of what happens now."""


class Pace:
    """A rate per second, from counts that come at any time."""

    __slots__ = ("_at", "_rate")

    def __init__(self) -> None:
        self._rate = self._at = 0.0

    def add(self, count: int, now: float) -> None:
        """So many at this moment."""
        self._rate = self.at(now) + count / MEMORY
        self._at = now

    def at(self, now: float) -> float:
        """Per second, as of now."""
        return self._rate * exp(min(0.0, self._at - now) / MEMORY) if self._rate else 0.0
