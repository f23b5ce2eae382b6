"""The HTTP server over real sockets: streams without a task switch, slow and gone clients, malformed requests."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from enginehouse.domain.errors import RequestTimeout
from enginehouse.http.errors import respond_error
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

    def __init__(self, handler: Handler, **settings: float) -> None:
        self.outcomes: asyncio.Queue[str] = asyncio.Queue()
        self._handler = handler
        self._settings = HttpSettings(port=0, **settings)  # type: ignore[arg-type]
        self.http = HttpServer(self._app, self._settings)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, 1 << 24, self._settings.body_timeout)
            stream = open_stream(scope, receive, send)
            try:
                await until_gone(stream, self._handler(stream, body, scope, send))
            finally:
                await stream.close()
            self.outcomes.put_nowait("done")
        except ClientGone:
            self.outcomes.put_nowait("gone")
        except RequestTimeout as error:
            self.outcomes.put_nowait("late")
            await respond_error(send, error, [])

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


def run(handler: Handler, scenario: Callable[[Server], Awaitable[Any]], **settings: float) -> None:
    async def main() -> None:
        async with Server(handler, **settings) as server, asyncio.timeout(30):
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


def test_s2_a_client_that_stays_away_is_cut() -> None:
    async def flood(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        stream.start(200, [])
        while True:
            if not stream.paused:
                stream.write(b"x" * 10_000)
            await asyncio.sleep(0)

    async def scenario(server: Server) -> None:
        _, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post())
        assert await server.outcomes.get() == "gone"
        writer.close()

    run(flood, scenario, stalled_client_timeout=0.2)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcXX0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
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


def test_m15_who_has_connected_before_the_stop_is_answered() -> None:
    """In the queue of the listener, or accepted and about to ask; who never asks is closed."""

    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        _, silent = await server.connect()
        while server.http.connections < 2:
            await asyncio.sleep(0)
        with socket.create_connection(("127.0.0.1", server.http.port), 20) as queued:
            queued.sendall(post(b"queued"))  # the kernel takes it: the server has had no turn since
            server.http.stop_accepting()
            closing = asyncio.create_task(server.http.close(20))
            await asyncio.sleep(0.05)  # a client that has only just connected needs a moment to ask
            writer.write(post(b"accepted"))
            status, headers, body = await answer(reader)
            assert (status, headers["connection"], body) == (200, "close", b"<accepted>")
            received = await asyncio.to_thread(queued.recv, 65536)
            assert received.startswith(b"HTTP/1.1 200 ")
            assert b"queued" in received
            assert await closing == 0
        assert server.http.connections == 0
        for one in (writer, silent):
            one.close()

    run(echo, scenario)


def test_a_whole_answer_with_its_length() -> None:
    async def whole(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        await respond(send, 201, b"{}", [(b"content-type", b"application/json")])

    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(post())
        assert await answer(reader) == (201, {"content-type": "application/json", "content-length": "2"}, b"{}")
        writer.close()

    run(whole, scenario)


@pytest.mark.parametrize("split", [0, 1, 40, 200])
def test_s8_a_request_that_asks_for_an_upgrade_is_served_as_it_is(split: int) -> None:
    """Java's client asks for HTTP/2 in passing; what follows the head is the body, not another request."""

    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        body = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        request = post(body, extra="Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n")
        if split:
            writer.write(request[:-split] if split < len(request) else request[:1])
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(request[-split:] if split < len(request) else request[1:])
        else:
            writer.write(request)
        assert (await answer(reader))[2] == b"<" + body + b">"
        writer.write(post(b"next"))
        assert (await answer(reader))[2] == b"<next>"
        writer.close()

    run(echo, scenario)


def test_s8_an_upgrade_without_a_body_is_declined_too() -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + post(b"next"))
        assert (await answer(reader))[2] == b"<>"
        assert (await answer(reader))[2] == b"<next>"
        writer.close()

    run(echo, scenario)


@pytest.mark.parametrize("lines", [b"X: " + b"x" * 200_000, b"X: y\r\n" * 20_000])
def test_s2_a_head_without_end_is_refused(lines: bytes) -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n" + lines)
        status, _, body = await answer(reader)
        assert (status, json.loads(body)["error"]["code"]) == (431, "headers_too_large")
        writer.close()

    run(echo, scenario)


def test_s2_a_large_body_is_no_large_head() -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        for _ in range(3):
            writer.write(post(b"x" * 1_000_000))
            assert len((await answer(reader))[2]) == 1_000_002
        writer.close()

    run(echo, scenario)


def test_the_end_of_a_client_is_noticed_when_its_large_body_was_left_paused() -> None:
    """More of it came between two turns of the handler than uvicorn likes to have waiting."""

    async def waits(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        await asyncio.Event().wait()

    async def scenario(server: Server) -> None:
        _, writer = await server.connect()
        writer.write(post(b"x" * 90_000)[:-90_000])
        while not server.http.connections:
            await asyncio.sleep(0)
        (protocol,) = server.http._state.connections
        while protocol.unused:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # the handler waits for the body
        for _ in range(9):
            protocol.data_received(b"x" * 10_000)
        assert not protocol.transport.is_reading()
        writer.close()
        assert await server.outcomes.get() == "gone"

    run(waits, scenario)


def test_a_client_that_never_finishes_its_head_is_cut() -> None:
    async def scenario(server: Server) -> None:
        silent, one = await server.connect()
        begun, two = await server.connect()
        two.write(b"POST / HTTP/1.1\r\nHo")
        assert await silent.read() == b""
        with suppress(ConnectionResetError):  # an end in good order, or not, as the kernel sees fit
            assert await begun.read() == b""
        one.close()
        two.close()

    run(echo, scenario, head_timeout=0.1)


def test_a_client_that_never_finishes_its_body_is_told() -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(post(b"x" * 100)[:-1])
        status, _, body = await answer(reader)
        assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
        writer.close()

    run(echo, scenario, body_timeout=0.1)


async def large(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
    await respond(send, 200, bytes(8_000_000), [])


def test_s2_an_unread_answer_of_any_kind_gets_its_client_cut() -> None:
    async def scenario(server: Server) -> None:
        _, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post() + post() + post())
        assert await server.outcomes.get() == "done"
        while server.http.connections or server.http.running:
            await asyncio.sleep(0.01)
        writer.close()

    run(large, scenario, stalled_client_timeout=0.2)


def test_s2_a_stream_behind_an_unread_answer_starts_paused_and_is_cut() -> None:
    states: list[bool] = []

    async def mixed(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        if body == b"large":
            await large(stream, body, scope, send)
        else:
            states.append(stream.paused)
            await asyncio.Event().wait()

    async def scenario(server: Server) -> None:
        _, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post(b"large") + post(b"stream"))
        assert await server.outcomes.get() == "done"
        assert await server.outcomes.get() == "gone"
        assert states == [True]
        writer.close()

    run(mixed, scenario, stalled_client_timeout=0.2)


def test_s1_a_client_that_pipelines_and_leaves_is_noticed() -> None:
    begun = asyncio.Event()

    async def silent(stream: Stream, body: bytes, scope: Scope, send: Send) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def scenario(server: Server) -> None:
        _, writer = await server.connect()
        writer.write(post(b"a") + post(b"b"))
        await begun.wait()
        writer.close()
        assert await server.outcomes.get() == "gone"

    run(silent, scenario)


def test_m15_a_client_that_does_not_read_does_not_hold_the_stop() -> None:
    async def scenario(server: Server) -> None:
        _, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post() * 4)
        assert await server.outcomes.get() == "done"
        await server.http.close(0.1)
        while server.http.connections:
            await asyncio.sleep(0.01)
        writer.close()

    run(large, scenario)


def test_a_stream_for_http_1_0_ends_with_the_connection() -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(b"POST / HTTP/1.0\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\nx")
        head, body = (await reader.read()).split(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body == b"<x>"
        writer.close()

    run(echo, scenario)
