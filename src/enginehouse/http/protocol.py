"""One client connection: uvicorn's httptools protocol, with a synchronous way to the client's transport for streams.

It takes less than uvicorn does: framing that two readers could understand differently is refused, heads are bounded. It
relies on names inside uvicorn, which is why its version is pinned and tests hold each of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from enginehouse.core.openai.answers import error_body
from enginehouse.domain.errors import EnginehouseError, HeadersTooLarge, InvalidRequest
from enginehouse.http.exchange import EXTENSION, Headers

_UNSENT = 128 * 1024
"""Bytes that the kernel may hold for one client beyond what is on the wire."""
_MAX_HEAD = 64 * 1024
"""Bytes of a request line and its headers."""
_MAX_PIPELINE = 8
"""Requests that may wait behind the one that is answered before the connection is read no further."""


class BadFraming(Exception):
    """Headers that leave it open where the request ends, or for whom it is. The parser passes it on as its own."""


class DirectStream:
    """A Stream (see exchange.py) on the transport of one uvicorn request."""

    __slots__ = ("_chunked", "_cycle", "_head", "_on_gone", "_on_pause", "_on_resume", "_transport", "paused")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head = b""
        self._chunked = True
        self._on_pause: Callable[[], None] | None = None
        self._on_resume: Callable[[], None] | None = None
        self._on_gone: Callable[[], None] | None = None
        self.paused = cycle.flow.write_paused

    def start(self, status: int, headers: Headers) -> None:
        cycle = self._cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        self._chunked = cycle.chunked_encoding = cycle.scope["http_version"] != "1.0"
        if not self._chunked:
            cycle.keep_alive = False  # the end of the body is the end of the connection
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n")
        self._head = b"".join(parts)

    def write(self, data: bytes) -> None:
        if data and not self._cycle.disconnected:  # an empty chunk would end the body
            head, self._head = self._head, b""
            self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(data), data) if self._chunked else head + data)

    def finish(self, data: bytes) -> None:
        cycle = self._cycle
        if cycle.disconnected:
            return
        head, self._head = self._head, b""
        if not self._chunked:
            self._transport.write(head + data)
        elif data:
            self._transport.write(b"%b%x\r\n%b\r\n0\r\n\r\n" % (head, len(data), data))
        else:
            self._transport.write(head + b"0\r\n\r\n")
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._transport.close()
        cycle.on_response()

    def watch(self, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        self._on_pause, self._on_resume = on_pause, on_resume

    @property
    def gone(self) -> bool:
        return self._cycle.disconnected

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        self._on_gone = callback
        if callback is not None:
            # A large body left reading paused, and a transport that does not read does not notice the client's end.
            self._cycle.flow.resume_reading()
            if self._cycle.disconnected:
                callback()

    async def close(self) -> None:
        self._on_pause = self._on_resume = self._on_gone = None

    def becomes_current(self) -> None:
        """The protocol's word that the answers before this one are out, or at least written."""
        self.paused = self._cycle.flow.write_paused

    def lost(self) -> None:
        """The protocol's word that the connection is lost."""
        self._cycle.disconnected = True  # uvicorn marks the newest request only, and clients may pipeline
        if self._on_gone is not None and not self._cycle.response_complete:
            self._on_gone()

    def set_paused(self, paused: bool) -> None:
        """The protocol's word that the transport's buffer is full, or has room again."""
        self.paused = paused
        callback = self._on_pause if paused else self._on_resume
        if callback is not None:
            callback()


class ConnectionsState(ServerState):
    """What the connections of one server share."""

    leaving = False
    """Every answer from now on says `Connection: close`."""

    def __init__(self, head_timeout: float, stalled_client_timeout: float) -> None:
        super().__init__()
        self.head_timeout = head_timeout
        self.stalled_client_timeout = stalled_client_timeout


class DirectProtocol(HttpToolsProtocol):
    """Adds the stream extension, and errors in the shape that clients of this API parse."""

    server_state: ConnectionsState
    stream: DirectStream | None = None
    """Of the request that is being answered; pipelined ones wait."""
    _in_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _unread = 0
    _declining = False
    """A parser is being told again what was said of a request whose upgrade is ignored."""

    _FRAMING: ClassVar = (b"content-length", b"transfer-encoding")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            # Without it the kernel takes megabytes for a client that does not read, and we would notice late.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._wait_for_head()
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                    self._decline_upgrade()
        except httptools.HttpParserError:
            self._refuse(InvalidRequest("Invalid HTTP request received. Send well-formed HTTP/1.1.", code="bad_http"))
            return
        if self._in_head and self._head_bytes > _MAX_HEAD:
            self._refuse(HeadersTooLarge(f"the request line and headers are larger than {_MAX_HEAD} bytes"))

    def on_message_begin(self) -> None:
        if not self._declining:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._declining:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._declining:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._declining:
            return
        self._check_framing()
        self._in_head, self._head_bytes = False, 0
        self._head_is_here()
        answering = self.cycle is not None and not self.cycle.response_complete
        super().on_headers_complete()
        if self.server_state.leaving:
            self.cycle.keep_alive = False
        stream = DirectStream(self.cycle)
        self.scope["extensions"] = {EXTENSION: stream}  # type: ignore[dict-item]
        if not answering:
            self.stream = stream
        elif len(self.pipeline) < _MAX_PIPELINE:
            self.flow.resume_reading()  # else the end of a client that pipelines would go unnoticed

    def on_message_complete(self) -> None:
        if self._declining or (self.parser.should_upgrade() and self._has_body()):
            return  # the parser leaves the body of a request that asks for an upgrade to whoever upgrades
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.stream = self.pipeline[-1][0].scope["extensions"][EXTENSION] if self.pipeline else None  # type: ignore
        if self.stream is not None:
            self.stream.becomes_current()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.stream is not None:
            self.stream.set_paused(True)
        self._unread = self.transport.get_write_buffer_size()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.server_state.stalled_client_timeout, self._still_stalled)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()
        if self.stream is not None:
            self.stream.set_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if self._stalled is not None:
            self._stalled.cancel()
        if self.stream is not None:
            self.stream.lost()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # answered long ago and never read: closing in good order would wait for ever
        else:
            super().timeout_keep_alive_handler()

    def _still_stalled(self) -> None:
        """The client has had its time: unless it has read something, cut it, whatever kind of answer it leaves."""
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread:
            self._unread = unread
            self._stalled = self.loop.call_later(self.server_state.stalled_client_timeout, self._still_stalled)
        else:
            self.transport.abort()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.server_state.head_timeout, self.transport.abort)

    def _head_is_here(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _check_framing(self) -> None:
        """Raise BadFraming for what proxies and servers are known to understand differently."""
        names = [name for name, _ in self.headers]
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        version = self.parser.get_http_version()
        if names.count(b"host") > 1 or (version == "1.1" and b"host" not in names):
            raise BadFraming
        if codings and (codings != [b"chunked"] or version == "1.0"):
            raise BadFraming

    def _has_body(self) -> bool:
        return any(name in self._FRAMING and value.strip() != b"0" for name, value in self.headers)

    def _decline_upgrade(self) -> None:
        """Go on with HTTP/1.1: clients that would like HTTP/2 ask for it in passing and take no for an answer."""
        self.parser = httptools.HttpRequestParser(self)
        if self._has_body():
            framing = b"".join(b"%b: %b\r\n" % pair for pair in self.headers if pair[0] in self._FRAMING)
            self._declining = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)
            self._declining = False

    def _refuse(self, error: EnginehouseError) -> None:
        body = error_body(error)
        self.transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[error.status], len(body), body)
        )
        self.transport.close()
