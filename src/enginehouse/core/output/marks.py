"""Literal marks in a text that arrives in pieces."""

from __future__ import annotations

import re


class Marks:
    """A set of marks: where the first of them is, and how much of a text's end may become one."""

    __slots__ = ("_find", "_firsts", "_longer", "_open", "all")

    def __init__(self, *marks: str) -> None:
        """Of two that begin at the same place the longer one counts."""
        self.all = tuple(sorted(set(marks), key=len, reverse=True))
        self._find = re.compile("|".join(map(re.escape, self.all))) if self.all else None
        self._firsts = frozenset(mark[0] for mark in self.all)
        self._open = frozenset(mark[:length] for mark in self.all for length in range(1, len(mark)))
        self._longer = frozenset(mark for mark in self.all if mark in self._open)

    def __or__(self, other: Marks) -> Marks:
        return Marks(*self.all, *other.all)

    def search(self, text: str, at: int, *, ended: bool) -> tuple[int, str] | None:
        """(place, mark) of the first one from `at` on; None also where more text may make it a longer one."""
        if self._find is None or (found := self._find.search(text, at)) is None:
            return None
        mark = found.group()
        if mark in self._longer and not ended and any(other.startswith(text[found.start() :]) for other in self.all):
            rest = text[found.start() :]
            if any(other != mark and other.startswith(rest) and len(other) > len(rest) for other in self.all):
                return None
        return found.start(), mark

    def held(self, text: str, at: int) -> int:
        """Characters at the end of the text (from `at` on) that more text may complete to a mark."""
        if not self.all:
            return 0
        longest = min(len(self.all[0]), len(text) - at)  # a whole mark too: it may become a longer one
        for length in range(longest, 0, -1):
            start = len(text) - length
            if text[start] in self._firsts and text[start:] in self._open:
                return length
        return 0
