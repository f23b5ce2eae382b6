"""The link and peers that are gone, silent, or something else: one named error each, and nothing left open."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from enginehouse.adapters.link import Link, LinkSettings
from enginehouse.adapters.link import link as link_module
from enginehouse.domain.engine import Target
from enginehouse.domain.link import LinkError, LinkErrorKind
from enginehouse.wire import h2_frames as frames
from tests.contract.link_peers import H2Peer, Run, Server, Sink, failure, linked, runner
from tests.support import free_port

PATH = "/t.T/M"


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


def test_nobody_listens(run: Run) -> None:
    async def main() -> None:
        port = free_port()
        async with linked(port) as link:
            lost: list[LinkError] = []
            link.on_lost(lost.append)
            first, second = await asyncio.gather(
                failure(link.unary(PATH, b"", timeout=20)), failure(link.unary(PATH, b"", timeout=20))
            )
            for error in (first, second):
                assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.CONNECT, False)
                assert error.text == f"grpc://127.0.0.1:{port}: connection refused"
            assert [error.kind for error in lost] == [LinkErrorKind.CONNECT]

    run(main())


def test_a_fault_of_ours_while_connecting_fails_the_calls_that_wait(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def faulty(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def main() -> None:
        monkeypatch.setattr(link_module, "dial", faulty)
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        async with linked(1) as link:
            lost: list[LinkError] = []
            link.on_lost(lost.append)
            error = await failure(link.unary(PATH, b"", timeout=20))
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.CONNECT, False)
            assert "a fault while connecting (ZeroDivisionError)" in error.text
            assert [one.kind for one in lost] == [LinkErrorKind.CONNECT]
            assert [type(one) for one in reported] == [ZeroDivisionError]

    run(main())


def test_a_host_that_cannot_be_found(run: Run) -> None:
    async def main() -> None:
        async with linked(1, host="no-such-host.invalid") as link:
            error = await failure(link.unary(PATH, b"", timeout=20))
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.CONNECT, False)
            assert "no-such-host.invalid" in error.text

    run(main())


def test_a_peer_that_accepts_and_stays_silent(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        await peer.reader.read()

    async def main() -> None:
        async with Server(script) as server, linked(server.port, connect_timeout=0.3) as link:
            error = await failure(link.unary(PATH, b"", timeout=20))
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.CONNECT, False)
            assert "no HTTP/2 SETTINGS of the peer within 0.3 s" in error.text

    run(main())


def test_a_backlog_that_never_accepts(run: Run) -> None:
    """The kernel completes the TCP handshake; the process behind it hangs."""

    async def main() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            async with linked(listener.getsockname()[1], connect_timeout=0.3) as link:
                error = await failure(link.unary(PATH, b"", timeout=20))
                assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.CONNECT, False)

    run(main())


def test_a_peer_that_falls_silent_in_the_middle(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        stream = await peer.request()
        peer.open_answer(stream)
        peer.message(stream, b"begun")
        await asyncio.Event().wait()

    async def main() -> None:
        async with Server(script) as server, linked(server.port, close_timeout=0.1) as link:
            sink = Sink()
            link.stream(PATH, b"", sink, timeout=0.5)
            error = await sink.error()
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.DEADLINE, True)
            assert sink.messages == [b"begun"]

    run(main())


@pytest.mark.parametrize(
    ("greeting", "kind", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n", LinkErrorKind.PROTOCOL, "HTTP port"),
        (b"\x15\x03\x03\x00\x02\x02\x46", LinkErrorKind.PROTOCOL, "use grpcs://"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", LinkErrorKind.PROTOCOL, "does not speak HTTP/2"),
        (b"", LinkErrorKind.CONNECT, "use grpcs://"),
        (b"\x00\x00", LinkErrorKind.CONNECT, "closed the connection before it spoke HTTP/2"),
    ],
)
def test_a_port_of_another_kind(run: Run, greeting: bytes, kind: LinkErrorKind, text: str) -> None:
    async def script(peer: H2Peer) -> None:
        await peer.reader.readexactly(24)
        peer.writer.write(greeting)

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            lost: list[LinkError] = []
            link.on_lost(lost.append)
            error = await failure(link.unary(PATH, b"", timeout=20))
            assert (error.kind, error.may_have_been_processed) == (kind, False)
            assert text in error.text
            assert error.text.startswith(f"grpc://127.0.0.1:{server.port}: ")
            assert len(lost) == 1

    run(main())


@pytest.mark.parametrize(
    ("garbage", "text"),
    [
        (b"\x7f" * 64, "FRAME_SIZE_ERROR"),
        (frames.frame(frames.DATA, 0, 0, b"x"), "PROTOCOL_ERROR"),
        (frames.frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff"), "COMPRESSION_ERROR"),
        (b"\x00\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(65_535), "FRAME_SIZE_ERROR"),
    ],
)
def test_garbage_in_the_middle(run: Run, garbage: bytes, text: str) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        stream = await peer.request()
        if len(server.peers) == 1:
            peer.raw(garbage)
            tail = await peer.reader.read()
            assert tail[3] == frames.GOAWAY
        else:
            peer.answer(stream, b"well")
            await peer.request()

    server = Server(script)

    async def main() -> None:
        async with server, linked(server.port) as link:
            error = await failure(link.unary(PATH, b"", timeout=20))
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.PROTOCOL, True)
            assert text in error.text
            assert await link.unary(PATH, b"", timeout=20) == b"well"

    run(main())


@pytest.mark.parametrize("abort", [True, False])
def test_a_connection_that_breaks(run: Run, abort: bool) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet(INITIAL_WINDOW_SIZE=100)
        for _ in range(2):
            await peer.event(peer_events.RequestReceived)
        if abort:
            peer.writer.transport.abort()

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            lost: list[LinkError] = []
            link.on_lost(lost.append)
            whole, part = Sink(), Sink()
            link.stream(PATH, b"x", whole)
            link.stream(PATH, bytes(1000), part)
            assert [(await sink.error()).kind for sink in (whole, part)] == [LinkErrorKind.LOST] * 2
            assert (await whole.error()).may_have_been_processed
            assert not (await part.error()).may_have_been_processed
            assert [error.kind for error in lost] == [LinkErrorKind.LOST]

    import h2.events as peer_events

    run(main())


@pytest.mark.parametrize(("orderly", "told"), [(True, 0), (False, 1)])
def test_an_idle_connection_that_ends_is_told_only_when_it_broke(run: Run, orderly: bool, told: int) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        peer.answer(await peer.request(), b"x")
        if orderly:
            peer.h2.close_connection()
            peer.flush()
            await peer.reader.read()

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            lost: list[LinkError] = []
            link.on_lost(lost.append)
            await link.unary(PATH, b"", timeout=20)
            while link._connections or link._leaving:
                await asyncio.sleep(0.01)
            assert len(lost) == told
            # The next call simply opens another.
            assert await link.unary(PATH, b"", timeout=20) == b"x"

    run(main())


def test_failures_never_arrive_before_stream_has_returned(run: Run) -> None:
    async def main() -> None:
        link = Link(Target("127.0.0.1", free_port()), LinkSettings(send_limit=10))
        too_large, cancelled = Sink(), Sink()
        link.stream(PATH, bytes(11), too_large)
        assert not too_large.ended
        link.stream(PATH, bytes(11), cancelled).cancel()
        assert (await too_large.error()).kind == LinkErrorKind.TOO_LARGE
        await link.close()
        closed = Sink()
        link.stream(PATH, b"", closed)
        assert not closed.ended
        error = await closed.error()
        assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.CLOSED, False)
        assert not cancelled.ended

    run(main())


def test_close_ends_open_and_waiting_calls(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet(MAX_CONCURRENT_STREAMS=1)
        stream = await peer.request()
        peer.open_answer(stream)
        peer.message(stream, b"begun")
        await peer.event(peer_events.ConnectionTerminated)

    import h2.events as peer_events

    async def main() -> None:
        async with Server(script) as server, linked(server.port, connections=1, max_connections=1) as link:
            lost: list[LinkError] = []
            link.on_lost(lost.append)
            began, waiting = Sink(), Sink()
            link.stream(PATH, b"", began)
            link.stream(PATH, b"", waiting)
            await began.reaches(1)
            await link.close()
            assert ((await began.error()).kind, (await waiting.error()).kind) == (LinkErrorKind.CLOSED,) * 2
            assert (await began.error()).may_have_been_processed
            assert not (await waiting.error()).may_have_been_processed
            assert lost == []
            await link.close()

    run(main())


def test_close_while_connecting(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        await peer.reader.read()

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            now, later = Sink(), Sink()
            link.stream(PATH, b"", now)
            await link.close()
            assert (await now.error()).kind == LinkErrorKind.CLOSED
            other = Link(Target("127.0.0.1", server.port), LinkSettings())
            other.stream(PATH, b"", later)
            while not server.peers:
                await asyncio.sleep(0.01)
            await other.close()
            assert (await later.error()).kind == LinkErrorKind.CLOSED

    run(main())


def test_100_links_opened_and_closed_leave_no_task_and_no_socket(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        peer.answer(await peer.request(), b"x")
        await peer.request()

    async def main() -> None:
        async with Server(script) as server:
            before = len(asyncio.all_tasks())
            for _ in range(100):
                async with linked(server.port) as link:
                    await link.unary(PATH, b"", timeout=20)
            await _settles(lambda: all(task.done() for task in server._tasks))
            assert len(asyncio.all_tasks()) <= before

    run(main())


async def _settles(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_a_sink_that_raises_is_reported_and_its_call_ended(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        for _ in range(2):
            stream = await peer.request()
            peer.answer(stream, b"x")
        await peer.request()

    def explode(_: bytes) -> None:
        raise ZeroDivisionError("bug")

    async def main() -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        async with Server(script) as server, linked(server.port) as link:
            sink = Sink(each=explode)
            link.stream(PATH, b"", sink)
            assert (await sink.error()).kind == LinkErrorKind.CANCELLED
            assert [type(error) for error in reported] == [ZeroDivisionError]
            assert await link.unary(PATH, b"", timeout=20) == b"x"

    run(main())
