"""The link against a server on the `h2` library: everything that a peer may do and grpcio does not do on demand."""

from __future__ import annotations

import asyncio

import h2.events
import pytest
from h2.errors import ErrorCodes

from enginehouse.domain.link import GrpcStatus, LinkError, LinkErrorKind
from enginehouse.wire import h2_frames as frames
from tests.contract.link_peers import H2Peer, Run, Server, Sink, failure, linked, runner

PATH = "/t.T/M"


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


def goaway(last: int, code: int = 0, text: bytes = b"") -> bytes:
    return frames.frame(frames.GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big") + text)


def test_h2_accepts_what_we_send(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        stream = await peer.request()
        assert peer.headers[stream] == {
            ":method": "POST",
            ":scheme": "http",
            ":path": PATH,
            ":authority": f"127.0.0.1:{server.port}",
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "grpc-enginehouse",
            "grpc-timeout": peer.headers[stream]["grpc-timeout"],
            "x-id": "7",
        }
        assert peer.bodies[stream] == b"\0\0\0\0\x05hello"
        peer.answer(stream, b"world")
        await peer.request()

    server = Server(script)

    async def main() -> None:
        async with server, linked(server.port) as link:
            assert await link.unary(PATH, b"hello", timeout=20, metadata=[("x-id", "7")]) == b"world"

    run(main())


def test_padding_continuation_and_pings(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        stream = await peer.request()
        peer.open_answer(stream)
        peer.message(stream, b"padded", padding=200)
        peer.h2.ping(b"12345678")
        peer.flush()
        acknowledged = await peer.event(h2.events.PingAckReceived)
        assert acknowledged.ping_data == b"12345678"
        peer.end_answer(stream, ("x-long", "v" * 40_000))  # three frames

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            assert await link.unary(PATH, b"", timeout=20) == b"padded"

    run(main())


@pytest.mark.parametrize("window", [1, 10, 1000])
def test_tiny_windows_let_a_large_request_through(run: Run, window: int) -> None:
    body = bytes(range(256)) * (2 * window)

    async def script(peer: H2Peer) -> None:
        peer.greet(INITIAL_WINDOW_SIZE=window)
        stream = await peer.request()
        assert peer.bodies[stream][5:] == body
        peer.answer(stream, b"whole")

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            assert await link.unary(PATH, body, timeout=20) == b"whole"

    run(main())


def test_a_window_that_grows_while_the_request_waits(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet(INITIAL_WINDOW_SIZE=0)
        await peer.event(h2.events.RequestReceived)
        peer.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 100_000})
        peer.flush()
        stream = await peer.request()
        peer.answer(stream, peer.bodies[stream][5:])

    async def main() -> None:
        async with Server(script) as server, linked(server.port, stream_window=65_536) as link:
            assert await link.unary(PATH, bytes(50_000), timeout=20) == bytes(50_000)

    run(main())


def test_messages_may_come_before_the_request_is_whole(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet(INITIAL_WINDOW_SIZE=1000)
        opened = await peer.event(h2.events.RequestReceived)
        peer.open_answer(opened.stream_id)
        peer.message(opened.stream_id, b"early")
        while len(peer.bodies[opened.stream_id]) < 50_000:
            await peer.event(h2.events.DataReceived)
        peer.message(opened.stream_id, b"half")
        stream = await peer.request()
        assert len(peer.bodies[stream]) == 100_005
        peer.message(stream, b"late")
        peer.end_answer(stream)
        await peer.request()

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            sink = Sink()
            link.stream(PATH, bytes(100_000), sink, timeout=20)
            assert await sink.end() is None
            assert sink.messages == [b"early", b"half", b"late"]

    run(main())


def test_goaway_moves_new_calls_to_a_new_connection_and_keeps_the_old_ones(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        if len(server.peers) == 1:
            first = await peer.request()
            second = await peer.request()
            assert (first, second) == (1, 3)
            peer.raw(goaway(1, text=b"rolling"))
            peer.open_answer(1)
            await server.peers_are(2)
            peer.message(1, b"old")
            peer.end_answer(1)
            with pytest.raises(ConnectionError):
                await peer.event(h2.events.StreamEnded)
        else:
            peer.answer(await peer.request(), b"new")
            await peer.request()

    class Counting(Server):
        async def peers_are(self, count: int) -> None:
            while len(self.peers) < count:
                await asyncio.sleep(0.01)

    server = Counting(script)

    async def main() -> None:
        async with server, linked(server.port) as link:
            lost: list[LinkError] = []
            link.on_lost(lost.append)
            kept, refused = Sink(), Sink()
            link.stream(PATH, b"", kept)
            link.stream(PATH, b"", refused)
            error = await refused.error()
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.GOAWAY, False)
            assert "rolling" in error.text
            assert await link.unary(PATH, b"", timeout=20) == b"new"
            assert await kept.end() is None
            assert kept.messages == [b"old"]
            assert lost == []
            while link._leaving:
                await asyncio.sleep(0.01)

    run(main())


@pytest.mark.parametrize(("code", "processed"), [(ErrorCodes.REFUSED_STREAM, False), (ErrorCodes.INTERNAL_ERROR, True)])
def test_rst_stream(run: Run, code: ErrorCodes, processed: bool) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        stream = await peer.request()
        peer.h2.reset_stream(stream, code)
        peer.flush()
        peer.answer(await peer.request(), b"next")
        await peer.request()

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            error = await failure(link.unary(PATH, b"", timeout=20))
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.RESET, processed)
            assert code.name in error.text
            assert await link.unary(PATH, b"", timeout=20) == b"next"
            assert len(server.peers) == 1

    run(main())


def test_rst_stream_no_error_after_an_early_answer_is_not_an_error(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet(INITIAL_WINDOW_SIZE=10)
        opened = await peer.event(h2.events.RequestReceived)
        peer.open_answer(opened.stream_id)
        peer.h2.send_headers(opened.stream_id, [("grpc-status", "8"), ("grpc-message", "full")], end_stream=True)
        peer.h2.reset_stream(opened.stream_id, ErrorCodes.NO_ERROR)
        peer.flush()
        peer.answer(await peer.request(), b"next")
        await peer.request()

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            error = await failure(link.unary(PATH, bytes(1000), timeout=20))
            assert (error.kind, error.status) == (LinkErrorKind.STATUS, GrpcStatus.RESOURCE_EXHAUSTED)
            assert await link.unary(PATH, b"", timeout=20) == b"next"

    run(main())


def test_at_the_peers_limit_calls_wait_their_turn(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet(MAX_CONCURRENT_STREAMS=2)
        while True:
            stream = await peer.request()  # h2 itself refuses a third open stream
            peer.answer(stream, peer.bodies[stream][5:])

    async def main() -> None:
        async with Server(script) as server, linked(server.port, connections=1, max_connections=1) as link:
            answers = await asyncio.gather(*(link.unary(PATH, b"%d" % n, timeout=20) for n in range(30)))
            assert answers == [b"%d" % n for n in range(30)]
            assert len(server.peers) == 1

    run(main())


def test_a_waiting_call_can_be_cancelled_or_run_out_of_time(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet(MAX_CONCURRENT_STREAMS=1)
        await peer.request()
        await peer.event(h2.events.StreamReset)
        peer.answer(await peer.request(), b"third")
        await peer.request()

    async def main() -> None:
        async with Server(script) as server, linked(server.port, connections=1, max_connections=1) as link:
            holder = link.stream(PATH, b"", Sink())
            waiting = Sink()
            call = link.stream(PATH, b"", waiting)
            late = Sink()
            link.stream(PATH, b"", late, timeout=0.3)
            error = await late.error()
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.DEADLINE, False)
            call.cancel()
            last = asyncio.ensure_future(link.unary(PATH, b"", timeout=20))
            await asyncio.sleep(0)
            holder.cancel()
            assert await last == b"third"
            assert not waiting.ended

    run(main())


def test_calls_are_spread_over_connections_only_when_one_is_full(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        while True:
            stream = await peer.request()
            peer.open_answer(stream)
            peer.message(stream, b"begun")

    async def main() -> None:
        async with Server(script) as server, linked(server.port, streams_per_connection=3, connections=2) as link:
            sinks: list[Sink] = []
            for _ in range(10):
                sinks.append(Sink())
                link.stream(PATH, b"", sinks[-1])
                await sinks[-1].reaches(1)
                assert len(server.peers) == (1 if len(sinks) < 3 else 2)
            assert sorted(len(peer.bodies) for peer in server.peers) == [5, 5]

    run(main())


def test_one_broken_connection_ends_only_its_calls(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        first = server.peers[0] is peer
        stream = await peer.request()
        peer.open_answer(stream)
        peer.message(stream, b"begun")
        await broken.wait()
        if first:
            peer.raw(b"\xff" * 100)
            await peer.reader.read()
        else:
            peer.message(stream, b"more")
            peer.end_answer(stream)
            await peer.request()

    server = Server(script)
    broken = asyncio.Event()

    async def main() -> None:
        async with server, linked(server.port, streams_per_connection=1, connections=2) as link:
            lost: list[LinkError] = []
            link.on_lost(lost.append)
            one, two = Sink(), Sink()
            link.stream(PATH, b"", one)
            link.stream(PATH, b"", two)
            await one.reaches(1)
            await two.reaches(1)
            broken.set()
            error = await one.error()
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.PROTOCOL, True)
            assert await two.end() is None
            assert two.messages == [b"begun", b"more"]
            assert [one.kind for one in lost] == [LinkErrorKind.PROTOCOL]

    run(main())


def test_too_many_pings_is_answered_with_patience(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        times.append(asyncio.get_running_loop().time())
        peer.greet()
        if len(times) == 1:
            stream = await peer.request()
            times[0] = asyncio.get_running_loop().time()  # when it is told; it hears of it no sooner
            peer.raw(goaway(stream, ErrorCodes.ENHANCE_YOUR_CALM, b"too_many_pings"))
            peer.answer(stream, b"last")
            await peer.reader.read()
        else:
            peer.answer(await peer.request(), b"later")
            await peer.request()

    times: list[float] = []

    async def main() -> None:
        async with Server(script) as server, linked(server.port, calm_down=0.5) as link:
            lost: list[LinkError] = []
            link.on_lost(lost.append)
            assert await link.unary(PATH, b"", timeout=20) == b"last"
            assert await link.unary(PATH, b"", timeout=20) == b"later"
            assert times[1] - times[0] > 0.4
            assert [error.kind for error in lost] == [LinkErrorKind.GOAWAY]
            assert "too_many_pings" in lost[0].text

    run(main())


def test_trailers_only_and_foreign_answers(run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        peer.greet()
        for fields in (
            [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "16")],
            [(":status", "404"), ("content-type", "text/html")],
            [(":status", "200"), ("content-type", "text/html")],
        ):
            peer.h2.send_headers(await peer.request(), fields, end_stream=True)
            peer.flush()
        await peer.request()

    async def main() -> None:
        async with Server(script) as server, linked(server.port) as link:
            assert (await failure(link.unary(PATH, b"", timeout=20))).status == GrpcStatus.UNAUTHENTICATED
            assert (await failure(link.unary(PATH, b"", timeout=20))).status == GrpcStatus.UNIMPLEMENTED
            assert (await failure(link.unary(PATH, b"", timeout=20))).kind == LinkErrorKind.PROTOCOL

    run(main())
