"""One TCP (or TLS) connection of a link: an asyncio protocol that feeds the wire machine and writes what it gives.

Everything that one read brings is delivered inside `data_received`, and everything that it makes us send is one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, cast

from enginehouse.adapters.link.gather import Gatherer
from enginehouse.domain.link import LinkErrorKind
from enginehouse.wire.grpc_h2 import Connection

_CROWD = 64
"""Calls in flight on the connection from which on tokens are worth gathering."""

if TYPE_CHECKING:
    from enginehouse.adapters.link.link import Link
    from enginehouse.adapters.link.settings import LinkSettings


class LinkConnection(asyncio.Protocol):
    """Transport and machine of one connection. Its link decides which calls it gets."""

    def __init__(
        self, link: Link, machine: Connection, loop: asyncio.AbstractEventLoop, settings: LinkSettings
    ) -> None:
        self.machine = machine
        self.greeted: asyncio.Future[None] = loop.create_future()
        """Done when calls may be opened; fails with a LinkError when that will never be."""
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the transport is closed."""
        self.reported = False
        """The link has told its listeners of this connection's end."""
        self._link = link
        self._loop = loop
        self._silence_limit = settings.silence_limit
        self._gather = settings.gather
        self._gatherer: Gatherer | None = None
        self._transport: asyncio.Transport | None = None
        self._sock: socket.socket | None = None
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the HTTP/2 preface."""
        self._transport = cast(asyncio.Transport, transport)
        self._sock = sock = transport.get_extra_info("socket")
        if sock is not None:
            _tune(sock, self._silence_limit)
            if self._gather > 0 and transport.get_extra_info("ssl_object") is None:
                self._gatherer = Gatherer(self._loop, self._transport, self._gather, self._received)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Deliver, then write what came of it, then look at what changed."""
        self._received(data)
        if self._gatherer is not None and self.machine.open_streams >= _CROWD:
            self._gatherer.seen()

    def eof_received(self) -> bool:
        """Let the transport close: a peer that stopped sending cannot end our calls well."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Every call that is open ends with LOST."""
        self._transport = None
        if self._gatherer is not None:
            self._gatherer.close()
        self.machine.lost(f"the connection broke: {exc}" if exc is not None else "the peer closed the connection")
        if not self.gone.done():
            self.gone.set_result(None)
        self._look()

    def pause_writing(self) -> None:
        """Keep request bodies back; what is short goes on."""
        self.machine.hold()

    def resume_writing(self) -> None:
        """Go on with the bodies."""
        self.machine.release()
        self.flush()

    def flush(self) -> None:
        """Write what the machine has, unless a read is being handled, which ends with a flush."""
        if self._busy:
            return
        transport = self._transport
        if transport is not None and not transport.is_closing() and (data := self.machine.data_to_send()):
            transport.write(data)
            while data := self.machine.data_to_send():
                transport.write(data)
            _hurry(self._sock)
        if self.machine.changed:
            self._look()

    def close(self, kind: LinkErrorKind, text: str) -> None:
        """End it from our side: open calls end with `kind`."""
        self.machine.close(kind, text)
        self._busy = False
        self.flush()
        if self._transport is None and not self.gone.done():
            self.gone.set_result(None)

    @property
    def connected(self) -> bool:
        """Whether there is a transport, perhaps one that is closing."""
        return self._transport is not None

    def abort(self) -> None:
        """Drop it without a word."""
        if self._transport is not None:
            self._transport.abort()

    def _received(self, data: bytes) -> None:
        self._busy = True
        try:
            self.machine.receive(data)
        except Exception as fault:  # of ours, whatever the peer sent; this connection cannot go on, the others can
            self._loop.call_exception_handler({"message": "reading from an engine failed", "exception": fault})
            self.close(LinkErrorKind.PROTOCOL, f"a fault while reading ({type(fault).__name__})")
        finally:
            self._busy = False
        self.flush()

    def _look(self) -> None:
        """Act on what changed in the machine."""
        machine = self.machine
        machine.changed = False
        for error in machine.sink_errors:
            self._loop.call_exception_handler({"message": "a message sink raised", "exception": error})
        machine.sink_errors.clear()
        if not self.greeted.done():
            if machine.failed is not None:
                self.greeted.set_exception(machine.failed)
                # The link may have stopped waiting; then nobody needs to hear it.
                self.greeted.exception()
            elif machine.ready:
                self.greeted.set_result(None)
        # Once only: a second close() of asyncio's TLS transport makes it forget that it can be aborted.
        if machine.failed is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.close()
        self._link.connection_changed(self)


def _tune(sock: socket.socket, silence_limit: float) -> None:
    """No delay for small writes; let the kernel find out about a peer that is gone."""
    with contextlib.suppress(OSError):  # not a TCP socket (a test), or an option that this kernel lacks
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_limit / 2)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(silence_limit / 6)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_limit * 1000))


def _hurry(sock: socket.socket | None) -> None:
    """Have the kernel acknowledge the answer's first bytes at once.

    SGLang's server leaves Nagle's algorithm on: what follows its first small packet waits for our acknowledgement,
    which the kernel would delay by 40 ms. It forgets this wish, so it is said again with each write. Linux only.
    """
    if sock is not None:
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
