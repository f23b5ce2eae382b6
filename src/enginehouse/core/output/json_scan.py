"""Where a JSON value ends, in a text that arrives in pieces: strings, escapes and brackets, each character once.

It finds the end and judges little more than that: whether it is JSON all through, a decoder will say.
"""

from __future__ import annotations

import re
from typing import Final

_IN_STRING: Final = re.compile(r'["\\]')
_IN_STRUCTURE: Final = re.compile(r'["{}\[\]]|[^\s\w,:.+-]')
_IN_SCALAR: Final = re.compile(r"[^-+.0-9A-Za-z]")


class JsonScan:
    """State of one value. Feed it text until it says where the value ends."""

    __slots__ = ("_begun", "_depth", "_escaped", "_scalar", "_string", "whole")

    def __init__(self) -> None:
        self._begun = self._string = self._escaped = self._scalar = False
        self._depth = 0
        self.whole = False
        """The value was complete when it ended."""

    def feed(self, text: str, at: int, *, ended: bool) -> int | None:
        """Where the value ends in `text[at:]`; None: not in it. With `ended` it always ends, whole or not."""
        end = self._scan(text, at)
        if end is None and ended:
            self.whole = self._scalar
            return len(text)
        return end

    def _scan(self, text: str, at: int) -> int | None:
        if not self._begun:
            if at >= len(text):
                return None
            self._begun = True
            first = text[at]
            if first == '"':
                self._string = True
            elif first in "{[":
                self._depth = 1
            elif first.isalnum() or first == "-":
                self._scalar = True
            else:
                return at  # nothing that a value begins with
            at += 1
        if self._scalar:
            found = _IN_SCALAR.search(text, at)
            if found is None:
                return None
            self.whole = True
            return found.start()
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._string else _IN_STRUCTURE).search(text, at)
            if found is None:
                return None
            at = found.end()
            match found.group():
                case "\\":
                    self._escaped = True
                case '"':
                    self._string = not self._string
                case "{" | "[":
                    self._depth += 1
                case "}" | "]":
                    self._depth -= 1
                case _:
                    return found.start()  # nothing that is in JSON outside of strings
            if self._depth <= 0 and not self._string:
                self.whole = True
                return at
        return None
