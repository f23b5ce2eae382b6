"""One HTTP exchange as handlers see it: read the request, write the answer, notice a client that is slow or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from enginehouse.domain.errors import RequestTimeout, RequestTooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON: Headers = [(b"content-type", b"application/json")]

EXTENSION = "enginehouse.stream"
"""ASGI extension: `scope["extensions"][EXTENSION]` is a Stream that writes to the client without a task switch."""


class Stream(Protocol):
    """Writes one streamed body. All methods are synchronous; after the client is gone they do nothing."""

    paused: bool
    """The client reads too slowly: everything on the way to it is full."""

    @property
    def gone(self) -> bool:
        """The client has closed the connection."""

    def start(self, status: int, headers: Headers) -> None:
        """Status and headers; they leave together with the first write."""

    def write(self, data: bytes) -> None: ...

    def finish(self, data: bytes) -> None:
        """The last piece and the end of the body."""

    def watch(self, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        """Call back when the client stops and starts reading again."""

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call back when the client goes away before the end of its answer, at once if it has gone already."""

    async def close(self) -> None:
        """Let go of everything; what was written is on its way first."""


class ClientGone(Exception):
    """The client closed the connection before it had its answer."""


async def read_body(scope: Scope, receive: Receive, limit: int, timeout: float) -> bytes:
    """The whole request body. Raises RequestTooLarge above `limit` bytes, RequestTimeout, ClientGone."""
    try:
        async with asyncio.timeout(timeout):
            return await _read_body(scope, receive, limit)
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {timeout:g} s") from None


async def _read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise RequestTooLarge(f"the body has {int(value)} bytes; at most {limit} are taken")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise RequestTooLarge(f"the body is larger than {limit} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def respond(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A whole answer at once."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, (b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def until_gone(stream: Stream, work: Awaitable[None]) -> None:
    """Await `work`, and cancel it at once when the client goes away, at whatever stage. Raises ClientGone then."""
    worker = asyncio.current_task()
    assert worker is not None
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        worker.cancel()

    stream.on_gone(leave)
    try:
        await work
    except asyncio.CancelledError:
        if gone and not worker.uncancel():
            raise ClientGone from None
        raise
    finally:
        stream.on_gone(None)


def open_stream(scope: Scope, receive: Receive, send: Send) -> Stream:
    """The way to this client, once the request body has been read."""
    stream: Stream | None = scope.get("extensions", {}).get(EXTENSION)
    return stream if stream is not None else AsgiStream(receive, send)


class AsgiStream:
    """A Stream on plain ASGI: one task sends what was written, one listens for the client's end.

    For servers without the extension, and for tests.
    """

    high_water = 64 * 1024
    """Bytes that may wait before the stream counts as paused."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.paused = False
        self._receive = receive
        self._send = send
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._waiting = 0
        self._started = self._gone = False
        self._on_pause: Callable[[], None] | None = None
        self._on_resume: Callable[[], None] | None = None
        self._on_gone: Callable[[], None] | None = None
        self._pump = asyncio.create_task(self._run(), name="asgi-stream")
        self._listener = asyncio.create_task(self._listen(), name="asgi-listener")

    def start(self, status: int, headers: Headers) -> None:
        self._started = True
        self._messages.put_nowait({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, data: bytes) -> None:
        self._put(data, more=True)

    def finish(self, data: bytes) -> None:
        self._listener.cancel()
        self._put(data, more=False)
        self._messages.put_nowait(None)

    def watch(self, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        self._on_pause, self._on_resume = on_pause, on_resume

    @property
    def gone(self) -> bool:
        return self._gone

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        self._on_gone = callback
        if callback is not None and self._gone:
            callback()

    async def close(self) -> None:
        self._listener.cancel()
        if not self._started:
            self._pump.cancel()
        await asyncio.wait([self._pump, self._listener])

    def _leave(self) -> None:
        self._gone = True
        if self._on_gone is not None:
            self._on_gone()

    def _put(self, data: bytes, *, more: bool) -> None:
        self._waiting += len(data)
        self._messages.put_nowait({"type": "http.response.body", "body": data, "more_body": more})
        if self._waiting > self.high_water and not self.paused:
            self.paused = True
            if self._on_pause is not None:
                self._on_pause()

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._pump.cancel()
        self._leave()

    async def _run(self) -> None:
        while (message := await self._messages.get()) is not None:
            await self._send(message)
            self._waiting -= len(message.get("body", b""))
            if self.paused and self._waiting < self.high_water // 2:
                self.paused = False
                if self._on_resume is not None:
                    self._on_resume()
