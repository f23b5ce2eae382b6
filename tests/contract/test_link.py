"""The link against grpcio's server: what every real engine must be able to rely on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from enginehouse.domain.link import GrpcStatus, LinkErrorKind
from tests.contract.link_peers import GrpcPeer, Run, Sink, failure, linked, runner
from tests.support import until

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@pytest.fixture(scope="module")
def peer() -> Iterator[GrpcPeer]:
    with GrpcPeer(options=UNLIMITED) as peer:
        yield peer


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


def test_unary(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        async with linked(peer.port) as link:
            assert await link.unary("/t.T/Echo", b"hello", timeout=20) == b"hello"
            assert await link.unary("/t.T/Echo", b"", timeout=20) == b""

    run(main())


def test_server_streaming(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        async with linked(peer.port) as link:
            for count in (0, 1, 3000):
                sink = Sink()
                link.stream("/t.T/Count", b"%d" % count, sink)
                assert await sink.end() is None
                assert sink.messages == [b"%d" % number for number in range(count)]

    run(main())


def test_a_status_comes_with_its_text(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        async with linked(peer.port) as link:
            error = await failure(link.unary("/t.T/Fail", "schön: 100 % kaputt\n".encode(), timeout=20))
            assert (error.kind, error.status) == (LinkErrorKind.STATUS, GrpcStatus.INVALID_ARGUMENT)
            assert error.text == "schön: 100 % kaputt\n"
            error = await failure(link.unary("/t.T/Missing", b"", timeout=20))
            assert error.status == GrpcStatus.UNIMPLEMENTED
            sink = Sink()
            link.stream("/t.T/CountThenFail", b"5", sink)
            assert (await sink.error()).status == GrpcStatus.RESOURCE_EXHAUSTED
            assert (await sink.error()).text == "genug: 100 % voll\n"
            assert len(sink.messages) == 5

    run(main())


def test_an_answer_that_does_not_fit_a_unary_call(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        async with linked(peer.port) as link:
            many = await failure(link.unary("/t.T/Count", b"3", timeout=20))
            none = await failure(link.unary("/t.T/Count", b"0", timeout=20))
            assert (many.kind, none.kind) == (LinkErrorKind.PROTOCOL, LinkErrorKind.PROTOCOL)
            assert "more than one" in many.text
            assert "without a message" in none.text

    run(main())


def test_g3_large_messages_pass_both_ways(peer: GrpcPeer, run: Run) -> None:
    """A prompt of a million tokens is about 4 MB; 20 MB is a fat answer with log probabilities."""

    async def main() -> None:
        async with linked(peer.port) as link:
            for size in (5_000_000, 20_000_000):
                body = bytes(range(256)) * (size // 256)
                assert await link.unary("/t.T/Echo", body, timeout=50) == body

    run(main())


def test_g3_a_million_token_prompt_is_refused_with_a_status_where_the_engine_has_small_limits() -> None:
    prompt = b"\xff\xff\x07" * 1_500_000  # as many varints

    async def main(port: int) -> None:
        async with linked(port) as link:
            error = await failure(link.unary("/t.T/Echo", prompt, timeout=20))
            assert (error.kind, error.status) == (LinkErrorKind.STATUS, GrpcStatus.RESOURCE_EXHAUSTED)
            assert await link.unary("/t.T/Echo", b"x", timeout=20) == b"x"

    with GrpcPeer() as small:
        uvloop.run(main(small.port))


def test_g3_our_own_limits(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        async with linked(peer.port, send_limit=1000, receive_limit=10) as link:
            error = await failure(link.unary("/t.T/Echo", bytes(1001), timeout=20))
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.TOO_LARGE, False)
            error = await failure(link.unary("/t.T/Echo", bytes(11), timeout=20))
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.TOO_LARGE, True)
            assert await link.unary("/t.T/Echo", bytes(10), timeout=20) == bytes(10)

    run(main())


def test_metadata_arrives(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        async with linked(peer.port) as link:
            metadata = [("authorization", "Bearer a b"), ("x-request-id", "17")]
            seen = (await link.unary("/t.T/Metadata", b"", timeout=20, metadata=metadata)).decode()
            assert "('authorization', 'Bearer a b')" in seen
            assert "('x-request-id', '17')" in seen

    run(main())


@pytest.mark.parametrize(
    "field", [("Upper", "x"), ("grpc-timeout", "1S"), (":path", "/x"), ("x", "new\nline"), ("x-bin", "x")]
)
def test_metadata_that_must_not_go_out_is_a_bug(peer: GrpcPeer, field: tuple[str, str]) -> None:
    async def main() -> None:
        async with linked(peer.port) as link:
            with pytest.raises(ValueError, match="metadata"):
                link.stream("/t.T/Count", b"1", Sink(), metadata=[field])

    uvloop.run(main())


def test_s9_a_token_file_goes_with_every_call_and_is_read_again(peer: GrpcPeer, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")

    async def main() -> None:
        async with linked(peer.port, token_file=str(file)) as link:

            async def seen() -> str:
                return (await link.unary("/t.T/Metadata", b"", timeout=20, metadata=[("x-a", "b")])).decode()

            first = await seen()
            assert "Bearer one" in first
            assert "x-a" in first
            assert link._token is not None
            file.write_text("two")
            assert "Bearer one" in await seen()
            for content in ("two", "", "a\x1bb"):  # what cannot be used leaves the last good one
                file.write_text(content)
                link._token._look_at = 0.0
                assert "Bearer two" in await seen()
            file.unlink()
            link._token._look_at = 0.0
            assert "Bearer two" in await seen()

    run(main())


def test_the_server_is_told_the_deadline(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        async with linked(peer.port) as link:
            assert 20 < float(await link.unary("/t.T/TimeLeft", b"", timeout=30)) <= 30

    run(main())


def test_a_deadline_ends_the_call_here_and_there(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        peer.cancelled.clear()
        async with linked(peer.port) as link:
            sink = Sink()
            link.stream("/t.T/Never", b"", sink, timeout=0.3)
            error = await sink.error()
            # Both sides hold it; whose word is first is chance.
            ours, theirs = error.kind is LinkErrorKind.DEADLINE, error.status is GrpcStatus.DEADLINE_EXCEEDED
            assert ours or theirs
            assert error.may_have_been_processed
            assert sink.messages == [b"started"]
            assert await asyncio.to_thread(peer.cancelled.wait, 20)

    run(main())


def test_the_server_sees_a_cancellation(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        async with linked(peer.port) as link:
            for _ in range(3):
                peer.cancelled.clear()
                sink = Sink()
                call = link.stream("/t.T/Never", b"", sink)
                await sink.reaches(1)
                call.cancel()
                call.cancel()
                call.pause()
                call.resume()
                assert await asyncio.to_thread(peer.cancelled.wait, 20)
                assert not sink.ended

    run(main())


def test_a_cancelled_unary_call_is_cancelled_at_the_server(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        peer.cancelled.clear()
        async with linked(peer.port) as link:
            peer.started.clear()
            task = asyncio.ensure_future(link.unary("/t.T/Never", b"", timeout=60))
            assert await asyncio.to_thread(peer.started.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(peer.cancelled.wait, 20)

    run(main())


def test_g12_500_streams_to_one_engine_are_open_together(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        peer._crowd = 0
        peer._loop.call_soon_threadsafe(peer._crowded.clear)
        async with linked(peer.port) as link:
            sinks = [Sink() for _ in range(500)]
            for sink in sinks:
                link.stream("/t.T/Together", b"500", sink, timeout=50)
            for sink in sinks:
                assert await sink.end() is None
                assert sink.messages == [b"all here"]

    run(main())


def test_g12_a_servers_limit_on_streams_opens_more_connections(run: Run) -> None:
    async def main(port: int) -> None:
        async with linked(port, connections=2) as link:
            sinks = [Sink() for _ in range(50)]
            for sink in sinks:
                link.stream("/t.T/Together", b"50", sink, timeout=50)
            for sink in sinks:
                assert await sink.end() is None

    with GrpcPeer(options=(("grpc.max_concurrent_streams", 10),)) as peer:
        run(main(peer.port))


def test_s2_a_paused_call_stops_its_server_and_nobody_else(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        peer.sent = 0
        async with linked(peer.port, stream_window=64 * 1024, connections=1) as link:
            slow = Sink(each=lambda message: None)
            call = link.stream("/t.T/Flood", b"counted", slow)
            call.pause()
            fast = Sink(each=lambda message: None)
            other = link.stream("/t.T/Flood", b"", fast)
            await fast.reaches(30_000)  # about 30 MB, which is above the connection's window
            assert slow.count <= 64 * 1024 // 1005
            stopped = peer.sent
            await fast.reaches(fast.count + 3000)
            # The server's own buffer may take a few more; what it can send us it cannot exceed.
            assert peer.sent - stopped < 200
            assert slow.count <= 64 * 1024 // 1005
            call.resume()
            await slow.reaches(3000)
            call.cancel()
            other.cancel()

    run(main())


def test_many_calls_mixed_with_cancellations_leave_nothing_behind(peer: GrpcPeer, run: Run) -> None:
    async def main() -> None:
        async with linked(peer.port) as link:
            kept = [Sink() for _ in range(100)]
            for number, sink in enumerate(kept):
                link.stream("/t.T/Count", b"20", sink)
                call = link.stream("/t.T/Flood", b"", Sink(each=lambda message: None))
                if number % 2:
                    call.cancel()
                else:
                    asyncio.get_running_loop().call_later(0.01, call.cancel)
            for sink in kept:
                assert await sink.end() is None
                assert len(sink.messages) == 20
            deadline = time.monotonic() + 20
            while any(one.machine.open_streams for one in link._connections):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            assert not link._waiting

    run(main())


def test_an_engine_that_dies_ends_its_calls_with_lost(run: Run) -> None:
    async def main(peer: GrpcPeer) -> None:
        async with linked(peer.port) as link:
            lost: list[str] = []
            link.on_lost(lambda error: lost.append(error.kind))
            sink = Sink()
            link.stream("/t.T/Never", b"", sink)
            await sink.reaches(1)
            peer.__exit__()
            error = await sink.error()
            # grpcio resets or ends its streams first if it has the time for it.
            assert error.kind in (LinkErrorKind.LOST, LinkErrorKind.STATUS, LinkErrorKind.RESET)
            refused = await failure(link.unary("/t.T/Echo", b"", timeout=20))
            assert (refused.kind, refused.may_have_been_processed) == (LinkErrorKind.CONNECT, False)
            assert "connection refused" in refused.text
            assert LinkErrorKind.CONNECT in lost

    peer = GrpcPeer().__enter__()
    run(main(peer))
    until(lambda: not peer._thread.is_alive())
