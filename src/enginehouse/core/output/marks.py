"""Literal marks in a text that arrives in pieces."""

from __future__ import annotations

import re
from typing import Final

_NEVER: Final = re.compile("(?!)")
_SPACE_LAST: Final = r"\s\Z"


class Marks:
    """A set of marks: where the first of them is, and how much of a text's end may become one."""

    __slots__ = ("_find", "_first", "_longest", "_nested", "_open", "all", "stirs", "stirs_trimmed")

    def __init__(self, *marks: str) -> None:
        """Of two that begin at the same place the longer one counts."""
        self.all = tuple(sorted(set(marks), key=lambda mark: (-len(mark), mark)))
        self._find = re.compile("|".join(map(re.escape, self.all))) if self.all else None
        self._first = re.compile(f"[{re.escape(''.join({mark[0] for mark in self.all}))}]") if self.all else None
        self.stirs = self._first or _NEVER
        """Finds something in every text in which, or with the end of which, a mark may begin."""
        self.stirs_trimmed = re.compile(f"{self._first.pattern}|{_SPACE_LAST}" if self._first else _SPACE_LAST)
        """The same where white space in front of a mark belongs to it."""
        self._longest = len(self.all[0]) if self.all else 0
        self._open = frozenset(mark[:length] for mark in self.all for length in range(1, len(mark)))
        self._nested = any(mark in part for part in self._open for mark in self.all)

    def __or__(self, other: Marks) -> Marks:
        return Marks(*self.all, *other.all)

    def search(self, text: str, at: int, *, ended: bool) -> tuple[int, str] | None:
        """(place, mark) of the first one from `at` on; None also while it may be a part of one that began no later."""
        if self._find is None or (found := self._find.search(text, at)) is None:
            return None
        if self._nested and not ended and len(text) - self.held(text, at) <= found.start():
            return None
        return found.start(), found.group()

    def held(self, text: str, at: int) -> int:
        """Characters at the end of the text (from `at` on) that more text may complete to a mark."""
        if self._first is None:
            return 0
        size = len(text)
        for first in self._first.finditer(text, max(at, size - self._longest + 1)):
            if text[first.start() :] in self._open:
                return size - first.start()
        return 0
