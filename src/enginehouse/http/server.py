"""The HTTP server: where it listens, and how it stops in order. What a connection does is in protocol.py."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config

from enginehouse.http.protocol import ConnectionsState, DirectProtocol

_FIRST_WORDS = 0.5
"""Seconds that a client which has connected has for its first request once we accept no more."""
_LAST_WORDS = 1.0
"""Seconds for telling clients that are cut why."""


@dataclass(frozen=True)
class HttpSettings:
    """Where clients come in, and how the frontend leaves."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 or :: for all."""
    port: int = 8000
    """TCP port; 0 takes a free one."""
    max_body_bytes: int = 8 * 1024 * 1024
    """Largest request body; above it 413. A prompt of a million token ids takes 6 MB. It bounds what one request may
    cost: at this size 120 MB and a fifth of a second, whatever it holds."""
    head_timeout: float = 30.0
    """Seconds that a client has from connecting, or from the first byte of a request, to the end of its headers."""
    body_timeout: float = 60.0
    """Seconds that a client has for the body of its request; then 408."""
    stalled_client_timeout: float = 30.0
    """Seconds that a client may read nothing, with every buffer on the way to it full, before it is cut off."""
    keep_alive_timeout: float = 75.0
    """Seconds that an idle client connection is kept."""
    backlog: int = 2048
    """Connections that may wait to be accepted."""
    affinity_header: str = "x-session-id"
    """Header that names a request's session, for `affinity: header`."""
    client_priority: bool = False
    """Let clients say with `priority` how urgent their request is, to engines that schedule by it: smaller numbers go
    first. Off by default: whoever may say it can put others last."""
    debug_headers: bool = False
    """Tell a client that sends `x-enginehouse-debug: explain` in the header `x-enginehouse-decision` of its answer
    which engine was chosen, by which rule, and what it was believed to hold of the prompt. Off by default: engines'
    names and caches are not for every client to know."""
    shutdown_grace: float = 5.0
    """Seconds between saying "not ready" and refusing new connections, in which load balancers notice."""
    shutdown_timeout: float = 60.0
    """Seconds that running answers have to end once no new ones come in; then they are cut."""


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
        self._state = ConnectionsState(settings.head_timeout, settings.stalled_client_timeout)
        self._server: asyncio.Server | None = None
        self._last: set[asyncio.Task[object]] = set()
        self.port = settings.port

    async def start(self) -> None:
        """Bind and accept. Raises OSError with the address in its text."""
        self._config.load()
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_UNSPEC
        self._server = await loop.create_server(
            self._protocol,
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
        """Refuse new connections, close idle ones. Who has connected and asked nothing yet may still ask."""
        self.discourage()
        if self._server is not None:
            self._accept_the_last(self._server)
            self._server.close()
        for connection in list(self._state.connections):
            if not connection.unused:
                connection.shutdown()

    async def close(self, deadline: float) -> int:
        """Wait up to `deadline` seconds for running requests, then cut the rest; returns how many were cut."""
        self.stop_accepting()
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline
        await self._hear_the_last(min(deadline, _FIRST_WORDS))
        while (tasks := set(self._state.tasks)) and (left := until - loop.time()) > 0:
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        cut = set(self._state.tasks)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut, timeout=_LAST_WORDS)
        for connection in list(self._state.connections):
            if connection.transport.get_write_buffer_size():
                connection.transport.abort()  # who does not read would be waited for
            else:
                connection.transport.close()
        if left_over := set(self._state.tasks):
            await asyncio.wait(left_over, timeout=_LAST_WORDS)
        return len(cut)

    def _protocol(self) -> DirectProtocol:
        return DirectProtocol(config=self._config, server_state=self._state, app_state={})

    def _accept_the_last(self, server: asyncio.Server) -> None:
        """Take those who wait to be accepted: closing the listener would reset them, and they did nothing wrong."""
        loop = asyncio.get_running_loop()
        for listening in server.sockets:
            with socket.socket(fileno=os.dup(listening.fileno())) as sock:
                while True:
                    try:
                        client, _ = sock.accept()
                    except OSError:  # nobody is left
                        break
                    client.setblocking(False)
                    task = loop.create_task(loop.connect_accepted_socket(self._protocol, client), name="last-client")
                    self._last.add(task)

    async def _hear_the_last(self, patience: float) -> None:
        """Wait for the first requests of those who have connected, then close those that have none."""
        last, self._last = self._last, set()
        await asyncio.gather(*last, return_exceptions=True)  # one that has left again is no matter
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while any(one.unused for one in self._state.connections) and loop.time() < until:  # noqa: ASYNC110 - soon over
            await asyncio.sleep(0.01)
        for connection in list(self._state.connections):
            connection.shutdown()
