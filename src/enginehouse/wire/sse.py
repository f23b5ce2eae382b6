"""Server-sent events: how one event is framed, and JSON that is safe inside of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"

_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
_LINE_ENDS: Final = tuple((end.encode(), b"\\u%04x" % ord(end)) for end in ("\x85", "\u2028", "\u2029"))


def frame(data: bytes) -> bytes:
    """One event. `data` has no line end in it, as JSON text never does."""
    return b"data: " + data + b"\n\n"


def named(event: bytes, data: bytes) -> bytes:
    """One event with a name."""
    return b"event: " + event + b"\ndata: " + data + b"\n\n"


def to_json(value: object) -> bytes:
    """JSON in which the characters that some readers take for line ends are escaped: they stand in texts only."""
    encoded = _encode(value)
    if not encoded.isascii():
        for end, escape in _LINE_ENDS:
            if end in encoded:
                encoded = encoded.replace(end, escape)
    return encoded
