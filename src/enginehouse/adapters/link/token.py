"""The token that engines behind a proxy may ask for: from a file, read again as it rotates, never shown."""

from __future__ import annotations

from pathlib import Path

import structlog

log = structlog.get_logger("enginehouse.link")

_FRESH = 10.0
"""Seconds that a token is used before its file is looked at again."""


def read_token(path: str) -> str:
    """The token in a file. Raises OSError, or ValueError with a text that does not quote it."""
    token = Path(path).read_text().strip()
    if not token:
        raise ValueError("it is empty")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError("it holds something that a header cannot carry; one line with the token is expected")
    return token


class TokenFile:
    """Metadata for each call. While the file cannot be read the last good token stands."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._look_at = 0.0

    def metadata(self, now: float) -> tuple[tuple[str, str], ...]:
        """`authorization` with the token; nothing as long as there was never one. now: the loop's seconds."""
        if now >= self._look_at:
            self._look_at = now + _FRESH
            try:
                self._metadata = (("authorization", f"Bearer {read_token(self._path)}"),)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                log.warning("token file cannot be used", file=self._path, reason=reason)
        return self._metadata
