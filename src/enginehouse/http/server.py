"""The HTTP server: uvicorn's httptools protocol, a synchronous way to the client's transport, an ordered stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from enginehouse.core.openai.answers import error_body
from enginehouse.domain.errors import InvalidRequest
from enginehouse.http.exchange import EXTENSION, Headers

_UNSENT = 128 * 1024
"""Bytes that the kernel may hold for one client beyond what is on the wire."""


@dataclass(frozen=True)
class HttpSettings:
    """Where clients come in, and how the frontend leaves."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 or :: for all."""
    port: int = 8000
    """TCP port; 0 takes a free one."""
    max_body_bytes: int = 32 * 1024 * 1024
    """Largest request body; above it 413."""
    keep_alive_timeout: float = 75.0
    """Seconds that an idle client connection is kept."""
    backlog: int = 2048
    """Connections that may wait to be accepted."""
    shutdown_grace: float = 5.0
    """Seconds between saying "not ready" and refusing new connections, in which load balancers notice."""
    shutdown_timeout: float = 60.0
    """Seconds that running answers have to end once no new ones come in; then they are cut."""


class DirectStream:
    """A Stream (see exchange.py) on the transport of one uvicorn request."""

    __slots__ = ("_cycle", "_head", "_on_gone", "_on_pause", "_on_resume", "_transport", "paused")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head = b""
        self._on_pause: Callable[[], None] | None = None
        self._on_resume: Callable[[], None] | None = None
        self._on_gone: Callable[[], None] | None = None
        self.paused = cycle.flow.write_paused

    def start(self, status: int, headers: Headers) -> None:
        cycle = self._cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.chunked_encoding = True
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"transfer-encoding: chunked\r\n\r\n")
        self._head = b"".join(parts)

    def write(self, data: bytes) -> None:
        if not self._cycle.disconnected:
            head, self._head = self._head, b""
            self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(data), data))

    def finish(self, data: bytes) -> None:
        cycle = self._cycle
        if cycle.disconnected:
            return
        head, self._head = self._head, b""
        if data:
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

    def abort(self) -> None:
        self._transport.abort()

    async def close(self) -> None:
        self._on_pause = self._on_resume = self._on_gone = None

    def lost(self) -> None:
        """The protocol's word that the connection is lost."""
        if self._on_gone is not None and not self._cycle.response_complete:
            self._on_gone()

    def set_paused(self, paused: bool) -> None:
        """The protocol's word that the transport's buffer is full, or has room again."""
        self.paused = paused
        callback = self._on_pause if paused else self._on_resume
        if callback is not None:
            callback()


class _State(ServerState):
    """What the connections share."""

    leaving = False
    """Every answer from now on says `Connection: close`."""


class DirectProtocol(HttpToolsProtocol):
    """uvicorn's protocol; adds the extension, and errors in the shape that clients of this API parse."""

    server_state: _State
    stream: DirectStream | None = None
    """Of the request that is being answered; pipelined ones wait."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            # Without it the kernel takes megabytes for a client that does not read, and we would notice late.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)

    def on_headers_complete(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            if self.server_state.leaving:
                self.cycle.keep_alive = False
            stream = DirectStream(self.cycle)
            self.scope["extensions"] = {EXTENSION: stream}  # type: ignore[dict-item]
            if not answering:
                self.stream = stream

    def on_response_complete(self) -> None:
        self.stream = self.pipeline[-1][0].scope["extensions"][EXTENSION] if self.pipeline else None  # type: ignore
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.stream is not None:
            self.stream.set_paused(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.stream is not None:
            self.stream.set_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.stream is not None:
            self.stream.lost()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # answered long ago and never read: closing in good order would wait for ever
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        body = error_body(InvalidRequest(f"{msg} Send well-formed HTTP/1.1.", code="bad_http"))
        self.transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[400], len(body), body)
        )
        self.transport.close()


class HttpServer:
    """Listens, and stops in two steps: no new work, then an end for what runs."""

    def __init__(self, app: Any, settings: HttpSettings) -> None:
        self._settings = settings
        self._config = Config(
            app,
            http=DirectProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_timeout,  # type: ignore[arg-type]
        )
        self._state = _State()
        self._server: asyncio.Server | None = None
        self.port = settings.port

    async def start(self) -> None:
        """Bind and accept. Raises OSError with the address in its text."""
        self._config.load()
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_UNSPEC
        self._server = await loop.create_server(
            lambda: DirectProtocol(config=self._config, server_state=self._state, app_state={}),
            self._settings.host,
            self._settings.port,
            family=family,
            backlog=self._settings.backlog,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    @property
    def running(self) -> int:
        """Requests being answered."""
        return len(self._state.tasks)

    def discourage(self) -> None:
        """Answer with `Connection: close` from now on, so that kept connections end between requests, not under one."""
        self._state.leaving = True

    def stop_accepting(self) -> None:
        """Refuse new connections, close idle ones."""
        self.discourage()
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def close(self, deadline: float) -> int:
        """Wait up to `deadline` seconds for running requests, then cut the rest; returns how many were cut."""
        self.stop_accepting()
        until = asyncio.get_running_loop().time() + deadline
        while (tasks := set(self._state.tasks)) and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        cut = set(self._state.tasks)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut)
        for connection in list(self._state.connections):
            connection.transport.close()
        return len(cut)
