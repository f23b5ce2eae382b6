"""Stop strings in a text that arrives in pieces.

The stop that is complete first ends the text, so nothing has to be generated to know it; of two that are complete at
the same character the one that began first counts. What is let out never depends on how the text was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Holds back only what may be the beginning of a stop string: always less than the longest of them."""

    __slots__ = ("_first", "_held", "_stops", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would stop everything")
        self._stops = tuple(stops)
        self._first = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.stopped = False

    def __bool__(self) -> bool:
        return bool(self._stops)

    def push(self, piece: str) -> str:
        """Text that is certain now. Once `stopped`, the text is over: nothing more may be pushed."""
        if not self._held and self._first.isdisjoint(piece):  # nearly always: no stop begins here
            return piece
        text = self._held + piece
        first_end = begin = -1
        keep = 0
        for stop in self._stops:
            at = text.find(stop)
            if at >= 0:
                end = at + len(stop)
                if first_end < 0 or end < first_end or (end == first_end and at < begin):
                    first_end, begin = end, at
            elif first_end < 0:
                keep = max(keep, _open_tail(text, stop))
        if first_end >= 0:
            self.stopped = True
            self._held = ""
            return text[:begin]
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, when the text is over without a stop."""
        held, self._held = self._held, ""
        return held


def _open_tail(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with, short of the whole stop."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
