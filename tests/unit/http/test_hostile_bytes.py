"""Clients that send without end, too slowly, in crumbs, or nonsense behind a good request: bounded, told, closed."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from enginehouse.http.exchange import ClientGone, Receive, Scope, Send, open_stream, read_body, respond
from enginehouse.http.server import HttpServer, HttpSettings

CHUNKED = b"POST /%b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
KIB = 1024


class Site:
    """A server with three paths: /whole reads and echoes, /early answers unread, /slow streams until told to end."""

    def __init__(self, **settings: float) -> None:
        self.http = HttpServer(self._app, HttpSettings(port=0, **settings))  # type: ignore[arg-type]
        self.end = asyncio.Event()
        self.served: list[str] = []
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self.gone = 0
        self.clients: list[asyncio.StreamWriter] = []

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.served.append(scope["path"])
        if scope["path"] == "/early":
            await respond(send, 404, b"early", [])
            return
        try:
            body = await read_body(scope, receive, 1 << 20, 30)
        except ClientGone:
            self.gone += 1
            return
        self.headers.append(scope["headers"])
        if scope["path"] == "/whole":
            await respond(send, 200, b"%d" % len(body), [])
            return
        stream = open_stream(scope, receive, send)
        stream.start(200, [])
        stream.write(b"begun ")
        await self.end.wait()
        stream.finish(b"and whole")
        await stream.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http.port)
        self.clients.append(writer)
        return reader, writer

    async def empty(self) -> None:
        """Wait until no connection is left."""
        while self.http.connections:
            await asyncio.sleep(0.01)


def run(scenario: Callable[[Site], Awaitable[None]], **settings: float) -> None:
    async def main() -> None:
        site = Site(**settings)
        await site.http.start()
        try:
            async with asyncio.timeout(40):
                await scenario(site)
        finally:
            for writer in site.clients:
                writer.close()
            await site.http.close(0)

    asyncio.run(main())


def post(path: str, body: bytes = b"", *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n" % (path.encode(), len(body), lines) + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Status, head in lower case, body by its length."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
    return int(head.split()[1]), head, await reader.readexactly(length)


async def pour(writer: asyncio.StreamWriter, unit: bytes, limit: int) -> int:
    """Send it again and again until the other side has had enough; how many bytes that took."""
    sent = 0
    with suppress(ConnectionError):
        while sent < limit:
            writer.write(unit)
            await writer.drain()
            sent += len(unit)
    return sent


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param(b"0\r\n" + b"a: b\r\n" * 40_000, id="trailers"),
        pytest.param(b"0\r\na: " + b"b" * 200_000, id="one trailer"),
        pytest.param(b"2;" + b"e" * 200_000, id="an extension"),
        pytest.param(b"2;" + b"e" * 2000 + b"\r\n{}\r\n", id="extensions"),
        pytest.param(b"1\r\na\r\n" * 40_000, id="crumbs"),
    ],
)
def test_s8_what_is_not_body_is_bounded_after_the_head_too(unit: bytes) -> None:
    """Trailers and the framing of chunks may have what a head may have, and what they carry besides."""

    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(CHUNKED % b"whole" + unit * (200_000 // len(unit) + 1))
        status, head, body = await answer(reader)
        assert (status, json.loads(body)["error"]["code"]) == (431, "headers_too_large")
        assert b"connection: close" in head
        assert await reader.read() == b""
        writer.close()
        await site.empty()
        assert site.gone == 1

    run(scenario)


def test_s8_trailers_are_dropped_and_no_headers() -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        for _ in range(2):
            writer.write(CHUNKED % b"whole" + b"2;x=y\r\n{}\r\n0\r\nAuthorization: x\r\nHost: y\r\n\r\n")
            status, head, body = await answer(reader)
            assert (status, body) == (200, b"2")
            assert b"connection" not in head
        assert all(dict(headers) == {b"host": b"x", b"transfer-encoding": b"chunked"} for headers in site.headers)
        writer.close()

    run(scenario)


def test_s8_small_chunks_of_a_large_body_are_taken() -> None:
    """As much framing as content: five bytes and more in a chunk are never too small."""

    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(CHUNKED % b"whole" + b"6\r\n[1, 2,\r\n" * 100_000 + b"0\r\n\r\n")
        assert (await answer(reader))[::2] == (200, b"600000")
        writer.close()

    run(scenario)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000000\r\n\r\n", id="by length"),
        pytest.param(CHUNKED % b"early", id="in chunks"),
    ],
)
def test_s8_nothing_is_taken_after_an_answer_that_came_early(head: bytes) -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(head)
        status, told, _ = await answer(reader)
        assert (status, b"connection: close" in told) == (404, True)
        unit = b"a" * 65_536 if b"Length" in head else b"10000\r\n" + b"a" * 65_536 + b"\r\n"
        assert await pour(writer, unit, 500_000_000) < 100_000_000
        writer.close()
        await site.empty()

    run(scenario)


def test_s8_a_client_that_was_answered_early_can_read_it_while_it_sends_on() -> None:
    """Closed at once, the kernel would reset the connection and take the answer back."""

    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n")
        while "/early" not in site.served:
            await asyncio.sleep(0)
        assert await pour(writer, b"a" * 90_000, 9_000_000) == 9_000_000
        assert (await answer(reader))[::2] == (404, b"early")
        assert await reader.read() == b""
        writer.close()

    run(scenario)


def test_s8_a_client_that_dribbles_after_an_early_answer_is_closed() -> None:
    async def scenario(site: Site) -> None:
        _, writer = await site.connect()
        writer.write(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n")
        while "/early" not in site.served:
            await asyncio.sleep(0)
        while site.http.connections:
            writer.write(b"a")
            await asyncio.sleep(0.02)
        writer.close()

    run(scenario)


def test_an_answer_without_a_look_at_a_body_that_is_here_keeps_the_connection() -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        for _ in range(3):
            writer.write(post("/early", b"{}"))
            status, head, _ = await answer(reader)
            assert (status, b"connection" in head) == (404, False)
        writer.close()

    run(scenario)


@pytest.mark.parametrize("more", [0, 300_000])
def test_s8_a_head_is_measured_to_the_byte(more: int) -> None:
    """However it arrives, and whatever body comes with it."""

    def request(size: int) -> bytes:
        padding = size - len(b"/whole") - len(b"hostx") - len(b"content-length%d" % more) - len(b"x") - 3 * 4
        return post("/whole", b"b" * more, b"x: " + b"y" * padding)

    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(request(64 * KIB))
        assert (await answer(reader))[::2] == (200, b"%d" % more)
        writer.write(request(64 * KIB + 1))
        assert (await answer(reader))[0] == 431
        writer.close()
        assert site.served == ["/whole"]

    run(scenario)


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"GARBAGE\r\n\r\n", id="garbage"),
        pytest.param(post("/whole", b"", b"x: " + b"y" * 70_000), id="a large head"),
        pytest.param(CHUNKED % b"whole" + b"zz\r\n", id="a broken body"),
    ],
)
def test_s8_nonsense_behind_a_request_does_not_end_up_in_its_answer(junk: bytes) -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(post("/slow"))
        await reader.readuntil(b"begun ")
        writer.write(post("/whole", b"1234") + junk + b"a" * 100_000)
        await writer.drain()
        await asyncio.sleep(0.05)  # let a server that does say something say it
        site.end.set()
        assert await reader.readuntil(b"\r\n0\r\n\r\n") == b"\r\n9\r\nand whole\r\n0\r\n\r\n"
        assert (await answer(reader))[::2] == (200, b"4")  # asked for in good order, before the nonsense
        assert await reader.read() == b""
        writer.close()
        await site.empty()
        assert site.served == ["/slow", "/whole"]

    run(scenario)


def test_a_line_end_too_many_does_not_cut_the_answer_when_the_next_head_is_late() -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(post("/slow"))
        await reader.readuntil(b"begun ")
        writer.write(b"\r\n")
        while next(iter(site.http._state.connections))._taking:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        site.end.set()
        assert (await reader.read()).endswith(b"and whole\r\n0\r\n\r\n")
        writer.close()

    run(scenario, head_timeout=0.1)


def test_s8_one_read_of_crumbs_is_parsed_in_turns() -> None:
    """A quarter of a megabyte in one-byte chunks would hold the loop for tens of milliseconds."""

    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(CHUNKED % b"whole")
        while not site.served:
            await asyncio.sleep(0)
        protocol = next(iter(site.http._state.connections))
        chunk = b"ff\r\n" + b"a" * 255 + b"\r\n"
        protocol.data_received(chunk * 1000)  # type: ignore[union-attr]
        assert 0 < len(protocol.cycle.body) <= 16 * KIB  # type: ignore[union-attr]
        writer.write(b"0\r\n\r\n")
        assert (await answer(reader))[::2] == (200, b"255000")
        writer.close()

    run(scenario)
