"""Reading on a clock while tokens are dense: nothing is lost, doubled or reordered when readers change."""

from __future__ import annotations

import asyncio
import socket

import h2.events
import pytest

from enginehouse.adapters.link import connection, gather
from enginehouse.domain.link import LinkErrorKind
from enginehouse.wire.grpc_h2 import Connection
from tests.contract.link_peers import H2Peer, Run, Server, Sink, linked, runner

PATH = "/t.T/M"


class Reads:
    """How often the clock has read."""

    count = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Gathering from the first call on, and counted."""
    seen = Reads()
    read = gather.Gatherer._read

    def counting(self: gather.Gatherer) -> None:
        seen.count += 1
        read(self)

    monkeypatch.setattr(gather.Gatherer, "_read", counting)
    monkeypatch.setattr(connection, "_CROWD", 1)
    return seen


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


async def speak(peer: H2Peer, stream: int, reads: Reads, more: int) -> int:
    """Messages close together until the clock reads, then so many more; how many that were."""
    sent = 0
    while reads.count < 3 or more:
        peer.message(stream, b"%d" % sent)
        sent += 1
        if reads.count >= 3:
            more -= 1
        await asyncio.sleep(0)
    return sent


def test_every_message_arrives_once_and_in_order(reads: Reads, run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        stream = await peer.request()
        peer.open_answer(stream)
        for _ in range(5):
            reads.count = 0
            sent.append(await speak(peer, stream, reads, 100))
            peer.message(stream, bytes(40_000))
            await heard.wait()
            heard.clear()
            await peer.event(h2.events.WindowUpdated)
        peer.end_answer(stream)
        await peer.request()

    sent: list[int] = []
    heard = asyncio.Event()

    async def main() -> None:
        async with Server(script) as server, linked(server.port, stream_window=16_384 * 4) as link:
            sink = Sink(each=lambda body: (got.append(body), heard.set() if len(body) == 40_000 else None))  # type: ignore[func-returns-value,arg-type]
            got: list[bytes] = []
            link.stream(PATH, b"", sink)
            assert await sink.end() is None
            expected: list[bytes] = []
            for count in sent:
                expected += [b"%d" % number for number in range(count)] + [bytes(40_000)]
            assert got == expected

    run(main())


@pytest.mark.parametrize("abort", [True, False])
def test_the_end_of_the_connection_is_seen(reads: Reads, run: Run, abort: bool) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        stream = await peer.request()
        peer.open_answer(stream)
        sent.append(await speak(peer, stream, reads, 0))
        if abort:
            peer.writer.transport.abort()

    sent: list[int] = []

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            sink = Sink()
            link.stream(PATH, b"", sink)
            assert (await sink.error()).kind == LinkErrorKind.LOST
            assert sink.messages == [b"%d" % number for number in range(sink.count)]
            if not abort:
                assert sink.count == sent[0]

    run(main())


def test_m3_a_fault_while_the_clock_reads_ends_the_connection_and_not_the_link(
    reads: Reads, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        stream = await peer.request()
        peer.open_answer(stream)
        while not fault.is_set():
            peer.message(stream, b"x")
            await asyncio.sleep(0)
        await peer.reader.read()

    async def well(peer: H2Peer) -> None:
        peer.greet()
        peer.answer(await peer.request(), b"x")
        await peer.request()

    fault = asyncio.Event()
    receive = Connection.receive

    def faulty(self: Connection, data: bytes) -> None:
        if reads.count == 3:
            reads.count += 1
            fault.set()
            raise ZeroDivisionError("a bug")
        receive(self, data)

    async def main() -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        monkeypatch.setattr(Connection, "receive", faulty)
        turns = iter((script, well))
        async with Server(lambda peer: next(turns)(peer)) as server, linked(server.port) as link:
            sink = Sink()
            link.stream(PATH, b"", sink)
            assert (await sink.error()).kind == LinkErrorKind.PROTOCOL
            assert [type(error) for error in reported] == [ZeroDivisionError]
            assert await link.unary(PATH, b"", timeout=20) == b"x"

    run(main())


def test_a_raising_reader_hands_the_socket_back(run: Run) -> None:
    """Whatever raises behind it: somebody has to read on."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            heard: list[bytes] = []
            read: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

            class Reader(asyncio.Protocol):
                def data_received(self, data: bytes) -> None:
                    read.set_result(data)

            def receive(data: bytes) -> None:
                heard.append(data)
                raise ZeroDivisionError("a bug")

            loop = asyncio.get_running_loop()
            reported: list[object] = []
            loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
            transport, _ = await loop.create_connection(Reader, sock=ours)
            gatherer = gather.Gatherer(loop, transport, 60.0, receive)
            while gatherer._timer is None:
                gatherer.seen()
            theirs.sendall(b"one")
            with pytest.raises(ZeroDivisionError):
                gatherer._read()
            theirs.sendall(b"two")
            assert await read == b"two"
            assert heard == [b"one"]
            gatherer.close()
            transport.close()

    run(main())


@pytest.mark.parametrize(("size", "reader"), [(7, "clock"), (8, "transport")])
def test_a_full_read_hands_the_socket_back_to_the_transport(
    run: Run, monkeypatch: pytest.MonkeyPatch, size: int, reader: str
) -> None:
    async def main() -> None:
        monkeypatch.setattr(gather, "_CHUNK", 8)
        ours, theirs = socket.socketpair()
        with theirs:
            heard: list[str] = []
            again = asyncio.Event()

            class Reader(asyncio.Protocol):
                def data_received(self, data: bytes) -> None:
                    heard.append("transport")
                    again.set()

            def receive(data: bytes) -> None:
                heard.append("clock")
                if len(heard) > 1:
                    again.set()

            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(Reader, sock=ours)
            gatherer = gather.Gatherer(loop, transport, 0.01, receive)
            while gatherer._timer is None:
                gatherer.seen()
            theirs.sendall(bytes(size))
            while not heard:
                await asyncio.sleep(0.001)
            theirs.sendall(b"x")
            await again.wait()
            assert heard == ["clock", reader]
            gatherer.close()
            transport.close()

    run(main())


def test_without_file_descriptors_it_goes_on_without_gathering(
    reads: Reads, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def none_left(fileno: int) -> int:
        asked.append(fileno)
        raise OSError(24, "Too many open files")

    async def script(peer: H2Peer) -> None:
        peer.greet()
        stream = await peer.request()
        peer.open_answer(stream)
        while len(asked) < 3:
            peer.message(stream, b"%d" % len(sent))
            sent.append(0)
            await asyncio.sleep(0)
        peer.end_answer(stream)
        await peer.request()

    sent: list[int] = []

    async def main() -> None:
        monkeypatch.setattr(gather.os, "dup", none_left)
        async with Server(script) as server, linked(server.port) as link:
            sink = Sink()
            link.stream(PATH, b"", sink)
            assert await sink.end() is None
            assert sink.messages == [b"%d" % number for number in range(len(sent))]
            assert reads.count == 0

    run(main())


def test_closing_while_the_clock_reads(reads: Reads, run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        stream = await peer.request()
        peer.open_answer(stream)
        speaker = asyncio.ensure_future(speak(peer, stream, reads, 10**9))
        await peer.event(h2.events.StreamReset)
        speaker.cancel()
        await asyncio.gather(speaker, return_exceptions=True)

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            sink = Sink()
            link.stream(PATH, b"", sink)
            while reads.count < 3:
                await asyncio.sleep(0.001)
            await link.close()
            assert (await sink.error()).kind == LinkErrorKind.CLOSED
            read = reads.count
            await asyncio.sleep(0.01)
            assert reads.count == read

    run(main())
