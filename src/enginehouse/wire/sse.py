"""Server-sent events: how one event is framed."""

from __future__ import annotations

from typing import Final

CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"


def frame(data: bytes) -> bytes:
    """One event. `data` has no line end in it, as JSON text never does."""
    return b"data: " + data + b"\n\n"
