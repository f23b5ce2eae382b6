"""One client connection: uvicorn's httptools protocol, with a synchronous way to the client's transport for streams.

It takes less than uvicorn does: framing that two readers could understand differently is refused; heads, trailers and
the framing of chunks are bounded; nothing is taken after an answer that came before the end of its request. It relies
on names inside uvicorn, which is why its version is pinned and tests hold each of them.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import httptools
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from enginehouse.core.openai.answers import error_body
from enginehouse.domain.errors import EnginehouseError, HeadersTooLarge, InvalidRequest
from enginehouse.http import framing
from enginehouse.http.direct_stream import DirectStream
from enginehouse.http.exchange import EXTENSION
from enginehouse.http.linger import Linger

_UNSENT = 128 * 1024
"""Bytes that the kernel may hold for one client beyond what is on the wire."""
_MAX_HEAD = 64 * 1024
"""Bytes of a request line and its headers; of what is not body after them: chunk sizes, extensions, trailers. A body
may have as much framing as content besides."""
_MAX_PIPELINE = 8
"""Requests that may wait behind the one that is answered before the connection is read no further."""
_TURN = 16 * 1024
"""Bytes that are parsed at a time before others have their turn: as one-byte chunks they cost a millisecond."""


class ConnectionsState(ServerState):
    """What the connections of one server share."""

    connections: set[DirectProtocol]  # type: ignore[assignment]
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
    _raw = 0
    """Bytes of the message that is being read, those of its body taken off: twice, once as content, once as credit."""
    _head_size = 0
    _head_timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _unread = 0
    _rest = b""
    """Received, and to be parsed when others have had their turn."""
    _taking = True
    """False: what still comes is dropped, and the connection ends with the answers that are under way."""
    _declining = False
    """A parser is being told again what was said of a request whose upgrade is ignored."""

    @property
    def unused(self) -> bool:
        """No request has come yet."""
        return self.cycle is None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._linger = Linger(transport, self.loop)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            # Without it the kernel takes megabytes for a client that does not read, and we would notice late.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        if self._rest:  # somebody resumed reading meanwhile
            self._rest += data
            self.transport.pause_reading()
            return
        if len(data) > _TURN and self._taking:
            data, self._rest = data[:_TURN], data[_TURN:]
            self.transport.pause_reading()
            self.loop.call_soon(self._go_on)
        self._take(data)

    def on_message_begin(self) -> None:
        if not self._declining:
            self._head_size = 0
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._declining:
            self._count_head(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head and not self._declining:  # else a trailer, or told a second time
            self._count_head(len(name) + len(value) + 4)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._declining:
            return
        framing.check(self.headers, self.parser.get_http_version())
        self._head_is_here()
        answering = self.cycle is not None and not self.cycle.response_complete
        super().on_headers_complete()
        self._in_head = False
        self._raw -= self._head_size
        if self.server_state.leaving:
            self.cycle.keep_alive = False
        if framing.has_body(self.headers):
            self.cycle.send = partial(self._send, self.cycle)  # type: ignore[method-assign]
        stream = DirectStream(self.cycle)
        self.scope["extensions"] = {EXTENSION: stream}  # type: ignore[dict-item]
        if not answering:
            self.stream = stream
        elif len(self.pipeline) < _MAX_PIPELINE:
            self.flow.resume_reading()  # else the end of a client that pipelines would go unnoticed

    def on_body(self, body: bytes) -> None:
        self._raw -= 2 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._declining or (self.parser.should_upgrade() and framing.has_body(self.headers)):
            return  # the parser leaves the body of a request that asks for an upgrade to whoever upgrades
        self._in_head, self._raw = True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.stream = self.pipeline[-1][0].scope["extensions"][EXTENSION] if self.pipeline else None  # type: ignore
        if self.stream is not None:
            self.stream.becomes_current()
        super().on_response_complete()
        if not self._taking and self.stream is None:
            self._linger.begin()

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
        self._taking, self._rest = False, b""
        self._linger.cancel()
        if self._stalled is not None:
            self._stalled.cancel()
        if self.stream is not None:
            self.stream.lost()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # answered long ago and never read: closing in good order would wait for ever
        else:
            super().timeout_keep_alive_handler()

    def _go_on(self) -> None:
        """Parse the next piece of what is here already."""
        data, self._rest = self._rest[:_TURN], self._rest[_TURN:]
        self._take(data)
        if self._rest and self._taking:
            self.loop.call_soon(self._go_on)
            return
        self._rest = b""
        if not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.resume_reading()

    def _take(self, data: bytes) -> None:
        if not self._taking:
            if not self._linger.drop(len(data)):
                self.flow.pause_reading()
            return
        self._unset_keepalive_if_required()
        self._raw += len(data)
        if self._in_head and self._head_timer is None:
            self._wait_for_head()
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                    self._decline_upgrade()
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, HeadersTooLarge):
                self._refuse(error.__context__)
            else:
                self._refuse(
                    InvalidRequest("Invalid HTTP request received. Send well-formed HTTP/1.1.", code="bad_http")
                )
            return
        if self._raw > _MAX_HEAD:  # in what the parser has not told of: a line without end, extensions, trailers
            what = "the request line and headers" if self._in_head else "the framing or the trailers of the body"
            self._refuse(HeadersTooLarge(f"{what} are larger than {_MAX_HEAD} bytes"))

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > _MAX_HEAD:
            raise HeadersTooLarge(f"the request line and headers are larger than {_MAX_HEAD} bytes")

    def _still_stalled(self) -> None:
        """The client has had its time: unless it has read something, cut it, whatever kind of answer it leaves."""
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread:
            self._unread = unread
            self._stalled = self.loop.call_later(self.server_state.stalled_client_timeout, self._still_stalled)
        else:
            self.transport.abort()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.server_state.head_timeout, self._head_is_late)

    def _head_is_here(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if self.stream is not None and self.stream.pending:
            self._stop_taking()  # of a pipelined request, or just a line end too many: the answer before it goes on
        else:
            self.transport.abort()

    def _decline_upgrade(self) -> None:
        """Go on with HTTP/1.1: clients that would like HTTP/2 ask for it in passing and take no for an answer."""
        self.parser = httptools.HttpRequestParser(self)
        if framing.has_body(self.headers):
            self._declining = True
            self.parser.feed_data(framing.same_body(self.headers))
            self._declining = False

    async def _send(self, cycle: RequestResponseCycle, message: ASGISendEvent) -> None:
        """In place of the cycle's own: an answer that comes before the end of its request is the last one."""
        early = cycle.more_body and not cycle.response_started
        if early:
            self._taking = False
            cycle.keep_alive = False
        await RequestResponseCycle.send(cycle, message)
        if early:
            cycle.keep_alive = True  # the client was told; closing is ours, once it has had time to read

    def _refuse(self, error: EnginehouseError) -> None:
        """Say what is wrong with what came last, unless that would end up in the middle of another answer."""
        answering = self.stream is not None and self.stream.pending
        own = answering and not self._in_head and self.stream is self.scope["extensions"][EXTENSION]  # type: ignore
        if answering and not own:
            self._stop_taking()
            return
        if own:
            self.stream.lost()  # type: ignore[union-attr]
        self._taking = False
        self._head_is_here()
        body = error_body(error)
        self.transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[error.status], len(body), body)
        )
        self.flow.resume_reading()
        self._linger.begin()

    def _stop_taking(self) -> None:
        """Nothing that can be understood follows: finish the answers that are asked for, then close."""
        self._taking = False
        self._head_is_here()
        if not self._in_head and self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()  # its request has no end
