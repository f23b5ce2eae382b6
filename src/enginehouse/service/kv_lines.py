"""Owns how often one rank's events are spoken of in the log: a publisher that keeps losing batches must not fill it."""

from __future__ import annotations

BURST = 8
"""Lines at once: joining takes two, a fault and its end as many again."""
EVERY = 60.0
"""Seconds for one more."""


class Lines:
    """Lines that may be written, and how many were not."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = 0.0
        self._unsaid = 0

    def may(self, now: float) -> int | None:
        """Whether one may be written; then, how many before it were not."""
        self._left = min(float(BURST), self._left + (now - self._at) / EVERY)
        self._at = now
        if self._left < 1:
            self._unsaid += 1
            return None
        self._left -= 1
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid
