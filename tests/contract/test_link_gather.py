"""Reading on a clock while tokens are dense: nothing is lost, doubled or reordered when readers change."""

from __future__ import annotations

import asyncio

import h2.events
import pytest

from enginehouse.adapters.link import connection, gather
from enginehouse.domain.link import LinkErrorKind
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
