"""Peers for the link: grpcio's server in a thread, a server on the `h2` library that a test scripts, and sinks."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio
import h2.config
import h2.connection
import h2.events
import h2.settings
import uvloop

from enginehouse.adapters.link import Link, LinkSettings
from enginehouse.domain.engine import Target
from enginehouse.domain.link import LinkError

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, None]], None]


def runner(name: str) -> Run:
    """`asyncio.run` on one of the two loops, which gives up in time to say where it waits."""

    async def limited(main: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(40):
            await main

    return lambda main: (uvloop.run if name == "uvloop" else asyncio.run)(limited(main))


class Sink:
    """Keeps what it hears; a test waits on it."""

    def __init__(self, each: Callable[[bytes], None] | None = None) -> None:
        self.messages: list[bytes] = []
        self.count = 0
        self._each = each
        self._moved = asyncio.Event()
        self._end: asyncio.Future[LinkError | None] = asyncio.get_running_loop().create_future()

    def on_message(self, message: bytes) -> None:
        assert not self._end.done(), "a message after the end"
        self.count += 1
        if self._each is None:
            self.messages.append(message)
        else:
            self._each(message)
        self._moved.set()

    def on_end(self, error: LinkError | None) -> None:
        self._end.set_result(error)  # raises on a second end

    @property
    def ended(self) -> bool:
        return self._end.done()

    async def end(self) -> LinkError | None:
        return await self._end

    async def error(self) -> LinkError:
        error = await self._end
        assert error is not None, "ended well"
        return error

    async def reaches(self, count: int) -> None:
        while self.count < count:
            self._moved.clear()
            await self._moved.wait()


async def failure(answer: Awaitable[bytes]) -> LinkError:
    """The LinkError that a unary call must end with."""
    try:
        await answer
    except LinkError as error:
        return error
    raise AssertionError("the call succeeded")


@asynccontextmanager
async def linked(port: int, *, tls: bool = False, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[Link]:
    link = Link(Target(host, port, tls), LinkSettings(**options))
    try:
        yield link
    finally:
        await link.close()


class GrpcPeer:
    """`grpc.aio` in a thread of its own, with methods that do what their names say."""

    def __init__(
        self, credentials: grpc.ServerCredentials | None = None, options: tuple[tuple[str, Any], ...] = ()
    ) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()
        self.sent = 0
        self._credentials = credentials
        self._options = options
        self._crowd = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="grpc peer")

    def __enter__(self) -> GrpcPeer:
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._crowded = asyncio.Event()
        server = grpc.aio.server(options=self._options)
        streams = {name: grpc.unary_stream_rpc_method_handler(getattr(self, f"_{name.lower()}")) for name in STREAMS}
        unaries = {name: grpc.unary_unary_rpc_method_handler(getattr(self, f"_{name.lower()}")) for name in UNARIES}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", streams | unaries),))
        if self._credentials is None:
            self.port = server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = server.add_secure_port("127.0.0.1:0", self._credentials)
        await server.start()
        self._started.set()
        await self._over.wait()
        await server.stop(None)

    async def _echo(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return request

    async def _metadata(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return repr(sorted((key, value) for key, value in context.invocation_metadata())).encode()

    async def _timeleft(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return str(context.time_remaining()).encode()

    async def _fail(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.decode())
        raise AssertionError

    async def _never(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        self.started.set()
        try:
            yield b"started"
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _count(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number

    async def _countthenfail(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "genug: 100 % voll\n")

    async def _flood(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        while True:
            yield bytes(1000)
            if request == b"counted":
                self.sent += 1

    async def _together(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """Speak only when so many calls are here together."""
        self._crowd += 1
        if self._crowd == int(request):
            self._crowded.set()
        await self._crowded.wait()
        yield b"all here"


STREAMS = ("Never", "Count", "CountThenFail", "Flood", "Together")
UNARIES = ("Echo", "Metadata", "TimeLeft", "Fail")


class H2Peer:
    """One connection of a scripted server on the `h2` library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8", validate_inbound_headers=True)
        )
        self.reader = reader
        self.writer = writer
        self.events: list[h2.events.Event] = []
        self.bodies: dict[int, bytes] = {}
        self.headers: dict[int, dict[str, str]] = {}

    def greet(self, **values: int) -> None:
        codes = {getattr(h2.settings.SettingCodes, name): value for name, value in values.items()}
        self.h2.local_settings = h2.settings.Settings(client=False, initial_values=codes)
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    def raw(self, data: bytes) -> None:
        """Bytes that `h2` would not send."""
        self.flush()
        self.writer.write(data)

    async def event(self, kind: type[T]) -> T:
        """The next event of a kind; those before it are dropped, requests are kept on the side."""
        while True:
            while self.events:
                event = self.events.pop(0)
                if isinstance(event, kind):
                    return event
            data = await self.reader.read(65_536)
            if not data:
                raise ConnectionError("the client closed")
            for event in self.h2.receive_data(data):
                self.events.append(event)
                if isinstance(event, h2.events.RequestReceived):
                    self.headers[event.stream_id] = dict(event.headers)
                    self.bodies[event.stream_id] = b""
                elif isinstance(event, h2.events.DataReceived):
                    self.bodies[event.stream_id] += event.data
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.flush()

    async def request(self) -> int:
        """Stream id of the next call whose request is whole."""
        ended: h2.events.StreamEnded = await self.event(h2.events.StreamEnded)
        assert ended.stream_id is not None
        return ended.stream_id

    def open_answer(self, stream_id: int) -> None:
        self.h2.send_headers(stream_id, [(":status", "200"), ("content-type", "application/grpc")])
        self.flush()

    def message(self, stream_id: int, body: bytes, padding: int | None = None) -> None:
        data = b"\0" + len(body).to_bytes(4, "big") + body
        for start in range(0, len(data), 16_000):
            self.h2.send_data(stream_id, data[start : start + 16_000], pad_length=padding)
        self.flush()

    def end_answer(self, stream_id: int, *more: tuple[str, str]) -> None:
        self.h2.send_headers(stream_id, [("grpc-status", "0"), *more], end_stream=True)
        self.flush()

    def answer(self, stream_id: int, *messages: bytes) -> None:
        self.open_answer(stream_id)
        for body in messages:
            self.message(stream_id, body)
        self.end_answer(stream_id)


Script = Callable[[H2Peer], Awaitable[None]]


class Server:
    """Runs a script for each connection. What a script raises fails the test, unless the client just left."""

    def __init__(self, script: Script, context: ssl.SSLContext | None = None) -> None:
        self.peers: list[H2Peer] = []
        self.port = 0
        self._script = script
        self._context = context
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, ConnectionError):
                raise result

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = H2Peer(reader, writer)
        self.peers.append(peer)
        self._tasks.append(asyncio.ensure_future(self._run(peer)))

    async def _run(self, peer: H2Peer) -> None:
        try:
            await self._script(peer)
        finally:
            peer.writer.close()
