"""Stop strings in a text that arrives in pieces.

The stop that is complete first ends the text, so nothing has to be generated to know it; of two that are complete at
the same character the one that began first counts. What is let out never depends on how the text was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Holds back only what may be the beginning of a stop string: always less than the longest of them."""

    __slots__ = ("_first", "_held", "_keep", "_stops", "stop")

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        """keep: the stop string that ends the text stays in it."""
        if not all(stops):
            raise ValueError("an empty stop string would stop everything")
        self._keep = keep
        self._stops = tuple(stops)
        self._first = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.stop: str | None = None
        """The one that ended the text."""

    @property
    def stopped(self) -> bool:
        return self.stop is not None

    @property
    def removed(self) -> str:
        """The same as far as it does not stay in the text."""
        return "" if self._keep or self.stop is None else self.stop

    @property
    def held(self) -> int:
        """Characters held back."""
        return len(self._held)

    def __bool__(self) -> bool:
        return bool(self._stops)

    def push(self, piece: str) -> str:
        """Text that is certain now. Once `stopped`, the text is over: nothing more may be pushed."""
        if not self._held and self._first.isdisjoint(piece):  # nearly always: no stop begins here
            return piece
        text = self._held + piece
        first_end = begin = -1
        found = ""
        open_ = 0
        for stop in self._stops:
            at = text.find(stop)
            if at >= 0:
                end = at + len(stop)
                if first_end < 0 or end < first_end or (end == first_end and at < begin):
                    first_end, begin, found = end, at, stop
            elif first_end < 0:
                open_ = max(open_, _open_tail(text, stop))
        if found:
            self.stop = found
            self._held = ""
            return text[: first_end if self._keep else begin]
        self._held = text[len(text) - open_ :]
        return text[: len(text) - open_]

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
