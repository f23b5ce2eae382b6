"""When a busy connection is read: on a clock instead of on every arrival, so that tokens come in groups.

Waking the loop costs several times what a token costs. While tokens follow each other closely the transport's reading
is paused and the socket is read every few milliseconds; the first empty read hands it back. Nothing is delayed when
little happens. Only for plain TCP: under TLS the bytes belong to the transport.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

_DENSE_READS = 8
"""So many reads, each within one period of the one before, begin it."""
_CHUNK = 64 * 1024
"""Bytes of one read; a full one is no trickle of tokens, and the transport reads those better."""


class Gatherer:
    """Takes turns with a transport at reading one socket."""

    __slots__ = ("_dense", "_last", "_loop", "_period", "_receive", "_sock", "_timer", "_transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        period: float,
        receive: Callable[[bytes], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._period = period
        self._receive = receive
        self._dense = 0
        self._last = 0.0
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def seen(self) -> None:
        """The transport has read something while many calls are open."""
        now = self._loop.time()
        self._dense = self._dense + 1 if now - self._last < self._period else 0
        self._last = now
        if self._dense >= _DENSE_READS and self._timer is None and not self._transport.is_closing():
            if self._sock is None:
                try:
                    self._sock = _copy(self._transport.get_extra_info("socket").fileno())
                except OSError:  # out of file descriptors: it works without, and may be tried again later
                    self._dense = 0
                    return
            self._transport.pause_reading()
            self._timer = self._loop.call_later(self._period, self._read)

    def close(self) -> None:
        """The transport is gone. Until now our copy has kept the connection open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _read(self) -> None:
        self._timer = None
        assert self._sock is not None
        try:
            data = self._sock.recv(_CHUNK)
        except OSError:  # nothing there, or broken, which the transport will find out for itself
            data = b""
        go_on = False
        try:
            if data and not self._transport.is_closing():
                self._receive(data)
                go_on = len(data) < _CHUNK
        finally:  # if that raised, too, somebody has to read on
            if not self._transport.is_closing():
                if go_on:
                    self._timer = self._loop.call_later(self._period, self._read)
                else:
                    self._dense = 0
                    self._transport.resume_reading()


def _copy(fileno: int) -> socket.socket:
    """The same connection on another descriptor, so that either reader may close its own."""
    sock = socket.socket(fileno=os.dup(fileno))
    sock.setblocking(False)
    return sock
