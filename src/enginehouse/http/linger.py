"""The end of a connection whose client may still be sending."""

from __future__ import annotations

import asyncio

LINGER = 2.0
"""Seconds that the client has to read its last answer before the connection is closed over what it sends."""
MAX_DROPPED = 16 * 1024 * 1024
"""Bytes that are dropped before that: twice the largest body, by default."""


class Linger:
    """Drops what still comes, so that the client can read the answer: closed at once, the kernel would take it back.

    Both the time and the bytes are bounded.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The last answer is written."""
        if self._timer is not None or self._transport.is_closing():
            return
        self._transport.write_eof()
        self._timer = self._loop.call_later(LINGER, self._hang_up)

    def drop(self, size: int) -> bool:
        """So many bytes came for nobody. False: that was enough, read no more."""
        self._dropped += size
        if self._dropped <= MAX_DROPPED:
            return True
        if self._timer is not None:
            self._hang_up()
        return False

    def cancel(self) -> None:
        """The connection is lost."""
        if self._timer is not None:
            self._timer.cancel()

    def _hang_up(self) -> None:
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # it does not read: closing in good order would wait for ever
        else:
            self._transport.close()
