"""The HTTP server over real sockets: streams without a task switch, slow and gone clients, malformed requests."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from enginehouse.http.exchange import (
    ClientGone,
    Receive,
    Scope,
    Send,
    Stream,
    open_stream,
    read_body,
    respond,
    until_gone,
)
from enginehouse.http.server import HttpServer, HttpSettings

Handler = Callable[[Stream, bytes, Scope, Send], Awaitable[None]]


class Server:
    """Runs a handler behind the real server on a free port, and notes what became of each request."""

    def __init__(self, handler: Handler) -> None:
        self.outcomes: asyncio.Queue[str] = asyncio.Queue()
        self._handler = handler
        self.http = HttpServer(self._app, HttpSettings(port=0, keep_alive_timeout=30))

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, 1 << 24)
            stream = open_stream(scope, receive, send)
            try:
                await until_gone(stream, self._handler(stream, body, scope, send))
            finally:
                await stream.close()
            self.outcomes.put_nowait("done")
        except ClientGone:
            self.outcomes.put_nowait("gone")

    async def __aenter__(self) -> "Server":
        await self.http.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close(0)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.http.port, limit=1 << 24)


def post(body: bytes = b"", path: str = "/", extra: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    else:
        body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, body


def run(handler: Handler, scenario: Callable[[Server], Awaitable[Any]]) -> None:
    async def main() -> None:
        async with Server(handler) as server, asyncio.timeout(30):
            await scenario(server)

    asyncio.run(main())


async def echo(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
    stream.start(200, [(b"content-type", b"text/plain")])
    stream.write(b"<")
    stream.write(body)
    stream.finish(b">")


def test_a_stream_and_then_another_on_the_same_connection() -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        for text in (b"one", b"two" * 100_000):
            writer.write(post(text))
            assert await answer(reader) == (
                200,
                {"content-type": "text/plain", "transfer-encoding": "chunked"},
                b"<" + text + b">",
            )
        writer.close()

    run(echo, scenario)


def test_pipelined_requests_are_answered_in_order_each_to_its_own() -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(post(b"a") + post(b"b") + post(b"c"))
        assert [(await answer(reader))[2] for _ in range(3)] == [b"<a>", b"<b>", b"<c>"]
        writer.close()

    run(echo, scenario)


@pytest.mark.parametrize("size", [0, 300_000])
def test_s1_a_client_that_leaves_cancels_the_work_before_anything_was_sent(size: int) -> None:
    async def silent(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        server_side.set()
        await asyncio.Event().wait()

    server_side = asyncio.Event()

    async def scenario(server: Server) -> None:
        _, writer = await server.connect()
        writer.write(post(b"x" * size))
        await server_side.wait()
        writer.close()
        assert await server.outcomes.get() == "gone"

    run(silent, scenario)


def test_s1_a_client_that_leaves_in_the_middle_of_a_stream_cancels_the_work() -> None:
    async def endless(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        stream.start(200, [])
        stream.write(b"begun")
        await asyncio.Event().wait()

    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(post())
        await reader.readuntil(b"begun")
        writer.close()
        assert await server.outcomes.get() == "gone"

    run(endless, scenario)


def test_s2_a_client_that_does_not_read_pauses_the_stream_and_resumes_it() -> None:
    paused, resumed = asyncio.Event(), asyncio.Event()

    async def flood(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        stream.watch(paused.set, resumed.set)
        stream.start(200, [])
        written = 0
        while not stream.paused:
            stream.write(b"x" * 10_000)
            written += 10_000
            assert written < 1 << 26, "never paused"
            await asyncio.sleep(0)
        await resumed.wait()
        stream.finish(b"end")

    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post())
        await paused.wait()
        assert not resumed.is_set()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await answer(reader))[2].endswith(b"end")
        assert await server.outcomes.get() == "done"
        writer.close()

    run(flood, scenario)


def test_a_stalled_client_can_be_cut() -> None:
    async def flood(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        stream.watch(stream.abort, lambda: None)
        stream.start(200, [])
        while True:
            stream.write(b"x" * 10_000)
            await asyncio.sleep(0)

    async def scenario(server: Server) -> None:
        _, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post())
        assert await server.outcomes.get() == "gone"
        writer.close()

    run(flood, scenario)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcXX0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_s8_malformed_framing_is_answered_400_in_the_envelope_and_closed(request_bytes: bytes) -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(request_bytes)
        status, headers, body = await answer(reader)
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert await reader.read() == b""
        writer.close()

    run(echo, scenario)


def test_m15_after_discourage_every_answer_closes_its_connection() -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(post(b"a"))
        assert "connection" not in (await answer(reader))[1]
        server.http.discourage()
        writer.write(post(b"b"))
        status, headers, body = await answer(reader)
        assert (status, headers["connection"], body) == (200, "close", b"<b>")
        assert await reader.read() == b""
        writer.close()

    run(echo, scenario)


def test_m15_stopping_lets_a_running_answer_end_and_refuses_new_connections() -> None:
    go = asyncio.Event()

    async def waits(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        stream.start(200, [])
        stream.write(b"begun")
        await go.wait()
        stream.finish(b" and whole")

    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(post())
        await asyncio.sleep(0)
        while not server.http.running:
            await asyncio.sleep(0)
        server.http.stop_accepting()
        with pytest.raises(ConnectionError):
            await server.connect()
        closing = asyncio.create_task(server.http.close(20))
        go.set()
        assert (await answer(reader))[2] == b"begun and whole"
        assert await closing == 0
        writer.close()

    run(waits, scenario)


def test_a_whole_answer_with_its_length() -> None:
    async def whole(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        await respond(send, 201, b"{}", [(b"content-type", b"application/json")])

    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(post())
        assert await answer(reader) == (201, {"content-type": "application/json", "content-length": "2"}, b"{}")
        writer.close()

    run(whole, scenario)
