"""How much a body may hold, told from its bytes before anything is built of them.

A few megabytes of `[],[],[],...` become hundreds of megabytes of objects. Counting bytes is a thousand times cheaper.
"""

from __future__ import annotations

import re
from typing import Final

MAX_VALUES: Final = 200_000
"""Objects, lists and entries of them, in whatever the body holds besides token ids and what is ignored."""
MAX_PROMPT_IDS: Final = 4_000_000
"""Token ids of all prompts, whatever the model: four times the longest contexts there are."""
MAX_PROMPTS: Final = 1024
MAX_ANSWERS: Final = 1024
"""Answers to all prompts of a request together: each is a request to an engine."""
MAX_KEYS: Final = 1000
"""Keys of the body itself; we know a hundred."""
MAX_MESSAGES: Final = 10_000
MAX_PARTS: Final = 10_000
"""Content parts of all messages together."""
MAX_FIELD_BYTES: Final = 256 * 1024
"""Bytes of a field that is not one of LARGE: 16 stop strings of 1024 characters, each an escape, fit."""
LARGE: Final = frozenset({"messages", "prompt", "tools", "documents"})
"""Fields that may be as large as the body."""

_SMALL: Final = 64 * 1024
"""Bytes that cannot become more memory than is worth a look."""
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A text, or the open end of one: what is not JSON must not take longer either."""


def plainly_few(data: bytes) -> bool:
    """Whether there are at most MAX_VALUES values, texts taken for structure too. False says nothing."""
    return len(data) <= _SMALL or _structure(data) <= MAX_VALUES


def few_strings(data: bytes) -> bool:
    """Whether there are at most MAX_VALUES texts and keys: so many cannot be, with fewer closing quotes.

    An escaped quote counts for nothing, and of the two quotes around a text only the second can look escaped: at least
    one is left for each text, at most two.
    """
    return data.count(b'"') - data.count(b'\\"') <= 2 * MAX_VALUES


def values_in(data: bytes) -> int:
    """How many values JSON text has: exactly where there are many. Call it only where `few_strings`."""
    crude = _structure(data)
    return crude if crude <= 1000 else _structure(_STRING.sub(b"", data))


def _structure(data: bytes) -> int:
    return data.count(b",") + data.count(b"{") + data.count(b"[")
