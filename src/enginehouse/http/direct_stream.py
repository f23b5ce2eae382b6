"""A streamed answer on the transport of one uvicorn request: written as it comes, without a task switch."""

from __future__ import annotations

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from enginehouse.http.exchange import Headers


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

    @property
    def pending(self) -> bool:
        """The answer is not out yet, whether it is streamed or not."""
        return not self._cycle.response_complete

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
