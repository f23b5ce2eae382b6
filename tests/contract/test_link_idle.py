"""What the link does when nothing happens: nothing. Ten minutes pass on a virtual clock, every write is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from enginehouse.adapters.link import Link, LinkSettings
from enginehouse.domain.engine import Target
from enginehouse.wire import h2_frames as h2
from tests.unit.wire.peer import OK, OPENING, Peer, Recorder, data, frames, message


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.transports: list[RecordingTransport] = []

    def time(self) -> float:
        return getattr(self, "now", 0.0)

    def _run_once(self) -> None:
        timers = [one.when() for one in self._scheduled if not one.cancelled()]  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self.now = max(self.now, min(timers))
        super()._run_once()  # type: ignore[misc]

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], *_: Any, **__: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        protocol = factory()
        transport = RecordingTransport(self, protocol)
        self.transports.append(transport)
        protocol.connection_made(transport)
        return transport, protocol


class RecordingTransport(asyncio.Transport):
    """Keeps what is written, and when."""

    def __init__(self, loop: VirtualLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.written: list[tuple[float, bytes]] = []
        self.protocol = protocol
        self._loop = loop
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written.append((self._loop.time(), bytes(data)))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close


def opened(transport: RecordingTransport) -> list[int]:
    """Stream ids of the calls begun on it."""
    return [one.stream_id for _, raw in transport.written[1:] for one in frames(raw) if one.kind == h2.HEADERS]


def test_g2_ten_idle_minutes_send_nothing() -> None:
    async def main() -> None:
        server = Peer()  # only for its encoder
        link = Link(Target("engine", 1), LinkSettings())
        sink = Recorder()
        call = link.stream("/t.T/M", b"prompt", sink)
        await asyncio.sleep(0)
        (transport,) = loop.transports
        transport.protocol.data_received(h2.settings([]))
        transport.protocol.data_received(server.headers(1, *OPENING) + data(1, message(b"first")))
        await asyncio.sleep(0)
        kinds = [one.kind for _, raw in transport.written[1:] for one in frames(raw)]
        assert kinds == [h2.SETTINGS, h2.HEADERS, h2.DATA]

        # A call that is open and silent, as a long prefill or an unstreamed answer is.
        written = len(transport.written)
        await asyncio.sleep(600)
        assert len(transport.written) == written
        transport.protocol.data_received(data(1, message(b"second")) + server.headers(1, *OK, end=True))
        assert (sink.messages, sink.ends) == ([b"first", b"second"], [None])

        # No call at all.
        await asyncio.sleep(600)
        assert len(transport.written) == written
        assert loop.time() >= 1200
        call.cancel()
        await link.close()

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_one_read_is_answered_with_one_write() -> None:
    async def main() -> None:
        server = Peer()
        link = Link(Target("engine", 1), LinkSettings(stream_window=1000, connection_window=65_535))
        sinks = [Recorder() for _ in range(3)]
        for sink in sinks:
            link.stream("/t.T/M", b"prompt", sink)
        await asyncio.sleep(0)
        (transport,) = loop.transports
        transport.protocol.data_received(h2.settings([]))
        openings = b"".join(server.headers(n, *OPENING) for n in (1, 3, 5))
        transport.protocol.data_received(openings)
        written = len(transport.written)
        read = b"".join(data(n, message(b"x" * 600)) for n in (1, 3, 5)) + h2.frame(h2.PING, 0, 0, bytes(8))
        transport.protocol.data_received(read)
        ((_, raw),) = transport.written[written:]
        assert [one.kind for one in frames(raw)] == [h2.WINDOW_UPDATE] * 3 + [h2.PING]
        assert [sink.messages for sink in sinks] == [[b"x" * 600]] * 3
        await link.close()

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_g2_too_many_pings_makes_us_wait_longer_each_time() -> None:
    calm = h2.frame(h2.GOAWAY, 0, 0, (1).to_bytes(4, "big") + (11).to_bytes(4, "big") + b"too_many_pings")

    async def main() -> None:
        link = Link(Target("engine", 1), LinkSettings(calm_down=8.0))
        waited = []
        for number in range(7):
            if number == 5:
                await asyncio.sleep(61.0)
            begun = loop.time()
            sink = Recorder()
            link.stream("/t.T/M", b"", sink)
            while len(loop.transports) == number:
                await asyncio.sleep(1.0)
            waited.append(loop.time() - begun)
            deliver = loop.transports[number].protocol.data_received
            deliver(h2.settings([]))
            deliver(calm + Peer().headers(1, *OPENING, *OK, end=True))
            assert sink.ends == [None]
        assert waited == [1, 8, 16, 30, 30, 1, 8], "after a quiet time it begins anew"
        await link.close()

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_m14_a_peer_that_takes_no_calls_for_now_is_waited_for_on_one_connection() -> None:
    def limit(calls: int) -> bytes:
        return h2.settings([(h2.Setting.MAX_CONCURRENT_STREAMS, calls)])

    async def main() -> None:
        server = Peer()
        link = Link(Target("engine", 1), LinkSettings())
        sinks = [Recorder() for _ in range(5)]
        for sink in sinks:
            link.stream("/t.T/M", b"", sink)
        await asyncio.sleep(0)
        (transport,) = loop.transports
        deliver = transport.protocol.data_received
        deliver(limit(0))
        await asyncio.sleep(60.0)
        link.stream("/t.T/M", b"", Recorder()).cancel()
        assert opened(transport) == []
        assert len(loop.transports) == 1, "more connections would not change what it takes"
        deliver(limit(5))
        assert opened(transport) == [1, 3, 5, 7, 9]
        for stream_id in opened(transport):
            deliver(server.headers(stream_id, *OPENING, *OK, end=True))
        assert [sink.ends for sink in sinks] == [[None]] * 5
        await link.close()

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_calls_take_what_there_is_when_another_connection_cannot_be_made() -> None:
    async def main() -> None:
        settings = LinkSettings(streams_per_connection=1, connections=2, connect_timeout=3.0)
        link = Link(Target("engine", 1), settings)
        lost: list[str] = []
        link.on_lost(lambda error: lost.append(error.kind))
        sinks = [Recorder(), Recorder()]
        for sink in sinks:
            link.stream("/t.T/M", b"", sink)
        await asyncio.sleep(0)
        well, _silent = loop.transports
        well.protocol.data_received(h2.settings([]))
        assert opened(well) == [1]
        await asyncio.sleep(4.0)
        assert lost == ["connect"]
        assert opened(well) == [1, 3]
        server = Peer()
        for stream_id in (1, 3):
            well.protocol.data_received(server.headers(stream_id, *OPENING, *OK, end=True))
        assert [sink.ends for sink in sinks] == [[None], [None]]
        await link.close()

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
