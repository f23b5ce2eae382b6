"""KV events over ZMQ against a publisher of plain sockets: order, connection, replay, and what can be wrong there."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any

import pytest
import uvloop
import zmq

from enginehouse.adapters.kv_events import KvEventSettings, ZmqKvEvents, replay, subscription
from enginehouse.adapters.kv_events.rota import AT_ONCE, weight
from enginehouse.adapters.kv_events.sockets import new_socket
from enginehouse.domain.engine import KvEventSource
from enginehouse.ports import KvSubscription
from tests.contract.kv_peers import WITHIN, Heard, Publisher
from tests.support import free_port

QUICK = KvEventSettings(connect_timeout=0.5, reconnect_limit=0.1, replay_idle_limit=0.2)
PATIENT = KvEventSettings(replay_idle_limit=60)
"""For tests in which nothing may be given up, however slow the machine is."""


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def go(test: Any) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test)

    return go


@contextmanager
def opened(settings: KvEventSettings = PATIENT) -> Iterator[ZmqKvEvents]:
    with closing(ZmqKvEvents(settings)) as events:
        yield events


@contextmanager
def publisher(**options: Any) -> Iterator[Publisher]:
    with closing(Publisher(**options)) as made:
        yield made


@asynccontextmanager
async def joined(
    settings: KvEventSettings = PATIENT, *, rank: int = 0, topic: str = "", replay: bool = True
) -> AsyncIterator[tuple[Publisher, Heard, KvSubscription]]:
    """A publisher and a subscription to it that has reached it."""
    with publisher() as peer, opened(settings) as events:
        heard = Heard()
        source = KvEventSource(rank, peer.endpoint, topic, peer.replay_endpoint if replay else None)
        subscription = events.subscribe(source, heard)
        assert not heard.told, "nothing may come before subscribe has returned"
        assert await peer.subscribed() == topic.encode()
        await heard.until(lambda: heard.connections)
        yield peer, heard, subscription


def test_batches_arrive_in_order_with_their_rank(run: Any) -> None:
    async def test() -> None:
        async with joined(rank=3) as (peer, heard, _):
            peer.publish(*range(500))
            await heard.until(lambda: len(heard.live) == 500)
            assert heard.live == [(3, n, b"batch %d" % n) for n in range(500)]
            assert heard.told[0] == "connected"

    run(test())


def test_a_connection_is_told_before_what_came_over_it(run: Any) -> None:
    async def test() -> None:
        with publisher() as peer, opened() as events:
            heard = Heard()
            followed = events.subscribe(KvEventSource(0, peer.endpoint), heard)
            await asyncio.sleep(0)
            assert isinstance(followed, subscription.ZmqSubscription)
            assert followed._sockets is not None
            live, _ = followed._sockets
            # The loop stands still until there is both to read.
            assert peer.live.poll(WITHIN * 1000)
            peer.publish(0)
            assert live.poll(WITHIN * 1000)
            assert not heard.told
            await heard.until(lambda: heard.live)
            assert heard.told == ["connected", "0"]

    run(test())


def test_only_the_topic_that_was_asked_for(run: Any) -> None:
    async def test() -> None:
        async with joined(topic="kv@pod") as (peer, heard, _):
            peer.publish(1, topic=b"other")
            peer.publish(2, topic=b"kv@pod")
            await heard.until(lambda: heard.live)
            assert heard.numbers == [2]

    run(test())


def test_odd_frames_cost_only_themselves() -> None:
    async def test() -> None:
        async with joined() as (peer, heard, subscription):
            odd: tuple[tuple[bytes, ...], ...] = (
                (b"",),
                (b"", b"\0" * 8),
                (b"", b"\0" * 7, b"x"),
                (b"", b"\0" * 9, b"x"),
                (b"", b"\0" * 8, b"x", b"y"),
                (b"", b"\xff" * 8, b""),
            )
            for frames in odd:
                peer.send(*frames)
            peer.publish(7)
            await heard.until(lambda: heard.live)
            assert heard.numbers == [7]
            assert subscription.ignored == len(odd)  # type: ignore[attr-defined]

    asyncio.run(test())


@pytest.mark.parametrize("old", [False, True])
def test_replay_from_a_number_to_the_end(run: Any, old: bool) -> None:
    async def test() -> None:
        async with joined(rank=1) as (peer, heard, subscription):
            assert subscription.can_replay
            subscription.replay(1, 40)
            asker, start = await peer.asked()
            assert start == 40
            peer.answer(asker, range(40, 60), old=old)
            peer.end(asker, old=old)
            await heard.until(lambda: heard.ends)
            assert heard.replayed == [(1, n, b"batch %d" % n) for n in range(40, 60)]
            assert heard.ends == [(1, True)]
            assert not heard.live

    run(test())


def test_a_replay_goes_on_beside_live_batches(run: Any) -> None:
    async def test() -> None:
        async with joined() as (peer, heard, subscription):
            subscription.replay(0, 0)
            asker, _ = await peer.asked()
            peer.answer(asker, range(3))
            peer.publish(4, 5)
            await heard.until(lambda: len(heard.live) == 2 and len(heard.replayed) == 3)
            assert not heard.ends
            peer.answer(asker, range(3, 5))
            peer.end(asker)
            await heard.until(lambda: heard.ends)
            assert heard.replayed_numbers == [0, 1, 2, 3, 4]

    run(test())


def test_a_silent_replay_ends_incomplete(run: Any) -> None:
    async def test() -> None:
        async with joined(QUICK) as (peer, heard, subscription):
            subscription.replay(0, 0)
            asker, _ = await peer.asked()
            peer.answer(asker, range(2))
            await heard.until(lambda: heard.ends)
            assert heard.ends == [(0, False)]
            assert set(heard.replayed_numbers) <= {0, 1}

    run(test())


def test_a_replay_that_nobody_answers_ends_incomplete() -> None:
    async def test() -> None:
        with publisher() as peer, opened(QUICK) as events:
            heard = Heard()
            nobody = f"tcp://127.0.0.1:{free_port()}"
            subscription = events.subscribe(KvEventSource(0, peer.endpoint, "", nobody), heard)
            subscription.replay(0, 0)
            await heard.until(lambda: heard.ends)
            assert heard.ends == [(0, False)]

    asyncio.run(test())


@pytest.mark.parametrize("endpoint", [None, "tcp://not an endpoint"])
def test_without_a_replay_endpoint_a_replay_ends_at_once(endpoint: str | None) -> None:
    async def test() -> None:
        with publisher() as peer, opened() as events:
            heard = Heard()
            subscription = events.subscribe(KvEventSource(0, peer.endpoint, "", endpoint), heard)
            assert subscription.can_replay is (endpoint is not None)
            subscription.replay(0, 0)
            assert not heard.ends
            await heard.until(lambda: heard.ends)
            assert heard.ends == [(0, False)]

    asyncio.run(test())


def test_closed_before_it_was_told_that_there_is_no_replay() -> None:
    async def test() -> None:
        with publisher() as peer, opened() as events:
            heard = Heard()
            subscription = events.subscribe(KvEventSource(0, peer.endpoint), heard)
            subscription.replay(0, 0)
            subscription.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not heard.told

    asyncio.run(test())


def test_odd_frames_of_a_replay_cost_only_themselves() -> None:
    async def test() -> None:
        async with joined() as (peer, heard, subscription):
            subscription.replay(0, 0)
            asker, _ = await peer.asked()
            for frames in ([b""], [b"", b"x"], [b"\0" * 8, b"x"], [b"", b"\0" * 7, b"x"], [b"", b"", b"short", b"x"]):
                peer.router.send_multipart([asker, *frames])
            peer.answer(asker, range(1))
            peer.end(asker)
            await heard.until(lambda: heard.ends)
            assert heard.replayed_numbers == [0]

    asyncio.run(test())


def test_a_new_replay_takes_the_place_of_one_under_way() -> None:
    async def test() -> None:
        async with joined() as (peer, heard, subscription):
            subscription.replay(0, 0)
            first, _ = await peer.asked()
            subscription.replay(0, 100)
            second, start = await peer.asked()
            assert start == 100
            peer.answer(first, range(3))
            peer.end(first)
            peer.answer(second, range(100, 102))
            peer.end(second)
            await heard.until(lambda: heard.ends)
            assert heard.replayed_numbers == [100, 101]

    asyncio.run(test())


def test_a_replay_of_ten_thousand_batches_is_complete_and_leaves_room(run: Any) -> None:
    """Others get their turn between slices: never more than one slice of batches between two turns of the loop."""

    async def test() -> None:
        async with joined() as (peer, heard, subscription):
            most = 0

            async def others() -> None:
                nonlocal most
                seen = 0
                while not heard.ends:
                    await asyncio.sleep(0)
                    most = max(most, len(heard.replayed) - seen)
                    seen = len(heard.replayed)

            subscription.replay(0, 0)
            asker, _ = await peer.asked()
            peer.answer(asker, range(10_000))
            peer.end(asker)
            await asyncio.gather(others(), heard.until(lambda: heard.ends))
            assert heard.replayed_numbers == list(range(10_000))
            assert heard.ends == [(0, True)]
            assert 0 < most <= 2 * AT_ONCE, "too many at once"

    run(test())


def test_closed_in_the_middle_of_a_replay_nothing_more_is_heard(run: Any) -> None:
    async def test() -> None:
        async with joined() as (peer, heard, subscription):
            subscription.replay(0, 0)
            asker, _ = await peer.asked()
            peer.answer(asker, range(1000))
            peer.publish(*range(1000))
            await heard.until(lambda: heard.live and heard.replayed)
            subscription.close()
            told = list(heard.told)
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert heard.told == told
            subscription.replay(0, 0)
            subscription.close()

    run(test())


@pytest.mark.parametrize("moment", ["connected", "0", "r0", "end"])
def test_a_sink_may_close_from_inside_any_callback(moment: str) -> None:
    async def test() -> None:
        with publisher() as peer, opened() as events:

            class Closing(Heard):
                def _tell(self, word: str) -> None:
                    super()._tell(word)
                    if word == moment:
                        subscription.close()

            reported: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
            heard = Closing()
            subscription = events.subscribe(KvEventSource(0, peer.endpoint, "", peer.replay_endpoint), heard)
            if moment != "connected":
                await peer.subscribed()
                subscription.replay(0, 0)
                asker, _ = await peer.asked()
                if moment == "0":
                    peer.publish(*range(100))
                peer.answer(asker, range(100))
                peer.end(asker)
            await heard.until(lambda: moment in heard.told)
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert heard.told[-1] == moment
            assert not reported

    asyncio.run(test())


def test_a_sink_that_raises_costs_one_batch_and_is_reported() -> None:
    async def test() -> None:
        with publisher() as peer, opened() as events:

            class Faulty(Heard):
                def on_batch(self, rank: int, seq: int, payload: bytes) -> None:
                    super().on_batch(rank, seq, payload)
                    if seq == 1:
                        raise RuntimeError("a bug")

            reported: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
            heard = Faulty()
            events.subscribe(KvEventSource(0, peer.endpoint), heard)
            await peer.subscribed()
            peer.publish(0, 1, 2, 3)
            await heard.until(lambda: 3 in heard.numbers)
            assert heard.numbers == [0, 1, 2, 3]
            assert len(reported) == 1

    asyncio.run(test())


def test_k2_a_restarted_publisher_is_lost_and_found_again(run: Any) -> None:
    async def test() -> None:
        with opened(QUICK) as events:
            heard = Heard()
            with publisher(port=free_port()) as first:  # one that nobody else is given until the second has it
                events.subscribe(KvEventSource(0, first.endpoint), heard)
                await first.subscribed()
                first.publish(0, 1)
                await heard.until(lambda: len(heard.live) == 2)
            await heard.until(lambda: heard.lost)
            assert not heard.lost[0][1]
            assert "broke" in heard.lost[0][0]
            with publisher(port=first.port) as second:
                await second.subscribed()
                second.publish(0)
                await heard.until(lambda: len(heard.live) == 3)
            assert heard.told[:4] == ["connected", "0", "1", "lost"]
            assert [word for word in heard.told[4:] if word != "lost"] == ["connected", "0"]  # lost: why it still is

    run(test())


def test_k6_an_endpoint_where_nobody_listens_is_told_until_somebody_does() -> None:
    async def test() -> None:
        with opened(QUICK) as events:
            heard = Heard()
            port = free_port()
            events.subscribe(KvEventSource(0, f"tcp://127.0.0.1:{port}"), heard)
            await heard.until(lambda: heard.lost)
            reason, permanent = heard.lost[0]
            assert f"127.0.0.1:{port} cannot be reached" in reason
            assert not permanent
            with publisher(port=port) as late:
                await late.subscribed()
                await heard.until(lambda: heard.connections)
            assert heard.told[:2] == ["lost", "connected"]

    asyncio.run(test())


def test_k6_the_same_trouble_again_is_not_told_again() -> None:
    async def test() -> None:
        tries = 0
        enough = asyncio.Event()

        def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal tries
            writer.close()
            tries += 1
            if tries == 5:
                enough.set()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        with opened(QUICK) as events:
            heard = Heard()
            port = server.sockets[0].getsockname()[1]
            events.subscribe(KvEventSource(0, f"tcp://127.0.0.1:{port}"), heard)
            await asyncio.wait_for(enough.wait(), 30)
            assert heard.told == ["lost"]
        server.close()
        await server.wait_closed()

    asyncio.run(test())


def test_k6_a_host_that_has_no_address_is_told() -> None:
    async def test() -> None:
        with opened(QUICK) as events:
            heard = Heard()
            events.subscribe(KvEventSource(0, "tcp://no-such-host.invalid:5557"), heard)
            await heard.until(lambda: heard.lost)
            assert "cannot be reached" in heard.lost[0][0]

    asyncio.run(test())


def test_k6_a_port_of_another_kind_is_told_and_tried_again() -> None:
    """ZMQ itself gives up for good after a peer that breaks its protocol."""

    async def test() -> None:
        with opened(QUICK) as events:
            heard = Heard()
            port = free_port()
            with publisher(replay_port=port) as wrong:
                events.subscribe(KvEventSource(0, wrong.replay_endpoint), heard)
                await heard.until(lambda: heard.lost)
                assert "ZMQ publisher" in heard.lost[0][0]
            with publisher(port=port) as right:
                await right.subscribed()
                right.publish(1)
                await heard.until(lambda: heard.live)

    asyncio.run(test())


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10])
def test_k6_a_server_that_is_no_publisher_is_told(greeting: bytes) -> None:
    async def test() -> None:
        held: list[asyncio.StreamWriter] = []

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(greeting)
            held.append(writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            with opened(QUICK) as events:
                heard = Heard()
                port = server.sockets[0].getsockname()[1]
                events.subscribe(KvEventSource(0, f"tcp://127.0.0.1:{port}"), heard)
                await heard.until(lambda: heard.lost)
                assert "ZMQ publisher" in heard.lost[0][0]
                assert not heard.connections
        finally:
            for writer in held:
                writer.close()
            server.close()
            await server.wait_closed()

    asyncio.run(test())


def test_k6_an_unusable_endpoint_is_told_and_permanent() -> None:
    async def test() -> None:
        with opened() as events:
            heard = Heard()
            subscription = events.subscribe(KvEventSource(0, "tcp://not an endpoint"), heard)
            assert not heard.told
            await heard.until(lambda: heard.lost)
            reason, permanent = heard.lost[0]
            assert permanent
            assert "tcp://not an endpoint cannot be subscribed to" in reason
            subscription.close()

    asyncio.run(test())


def test_k6_closed_before_it_was_told_that_an_endpoint_is_unusable() -> None:
    async def test() -> None:
        with opened() as events:
            heard = Heard()
            events.subscribe(KvEventSource(0, "tcp://not an endpoint"), heard).close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not heard.told

    asyncio.run(test())


@pytest.mark.parametrize(
    ("endpoint", "ipv6"), [("tcp://10.0.0.1:1", 0), ("tcp://engine-0:1", 0), ("tcp://[fd00::5]:1", 1)]
)
def test_no_socket_drops_what_it_is_sent_and_names_are_ipv4(endpoint: str, ipv6: int) -> None:
    context = zmq.Context()
    with new_socket(context, zmq.DEALER, endpoint, PATIENT) as made:
        assert made.getsockopt(zmq.RCVHWM) == 0
        assert made.getsockopt(zmq.IPV6) == ipv6
        assert made.getsockopt(zmq.LINGER) == 0
        assert made.getsockopt(zmq.TCP_KEEPALIVE) == 1
    context.term()


def test_a_frame_beyond_the_limit_ends_the_connection_and_the_next_one_works() -> None:
    async def test() -> None:
        async with joined(KvEventSettings(reconnect_limit=0.1, message_limit=1000)) as (peer, heard, _):
            peer.send(b"", b"\0" * 8, b"x" * 2000)
            await heard.until(lambda: heard.lost)
            await peer.subscribed()
            peer.publish(5)
            await heard.until(lambda: heard.live)
            assert heard.numbers == [5]

    asyncio.run(test())


def test_d19_an_ipv6_publisher() -> None:
    async def test() -> None:
        try:
            peer = Publisher(host="::1")
        except zmq.ZMQError:
            pytest.skip("no IPv6 here")
        with closing(peer), opened() as events:
            heard = Heard()
            assert "[::1]" in peer.endpoint
            subscription = events.subscribe(KvEventSource(0, peer.endpoint, "", peer.replay_endpoint), heard)
            await peer.subscribed()
            subscription.replay(0, 0)
            asker, _ = await peer.asked()
            peer.end(asker)
            peer.publish(1)
            await heard.until(lambda: heard.live and heard.ends)

    asyncio.run(test())


def test_a_host_name_means_its_ipv4_address() -> None:
    """`localhost` has two; publishers that bind `tcp://*` listen on one."""

    async def test() -> None:
        with publisher() as peer, opened() as events:
            heard = Heard()
            events.subscribe(KvEventSource(0, f"tcp://localhost:{peer.port}"), heard)
            await peer.subscribed()
            await heard.until(lambda: heard.connections)

    asyncio.run(test())


@pytest.mark.parametrize("what", ["a socket", "its monitor"])
def test_k6_out_of_descriptors_it_is_told_and_tried_again(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "_FIRST_WAIT", 0.01)
    left = 3

    def shortage(real: Callable[..., zmq.Socket[bytes]], *args: Any) -> zmq.Socket[bytes]:
        nonlocal left
        left -= 1
        if left >= 0:
            raise zmq.ZMQError(errno.EMFILE)
        return real(*args)

    if what == "a socket":
        monkeypatch.setattr(subscription, "new_socket", partial(shortage, new_socket))
    else:
        real = zmq.Socket.get_monitor_socket
        monkeypatch.setattr(zmq.Socket, "get_monitor_socket", lambda *args: shortage(real, *args))

    async def test() -> None:
        with publisher() as peer, opened() as events:
            heard = Heard()
            events.subscribe(KvEventSource(0, peer.endpoint), heard)
            await heard.until(lambda: heard.connections)
            assert heard.told == ["lost", "connected"], "the same trouble is told once"
            reason, permanent = heard.lost[0]
            assert "Too many open files" in reason
            assert not permanent

    asyncio.run(test())


def test_k6_out_of_descriptors_a_replay_ends_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    def shortage(*_: object) -> zmq.Socket[bytes]:
        raise zmq.ZMQError(errno.EMFILE)

    async def test() -> None:
        async with joined() as (_, heard, followed):
            monkeypatch.setattr(subscription, "new_socket", shortage)
            followed.replay(0, 0)
            assert not heard.ends
            await heard.until(lambda: heard.ends)
            assert heard.ends == [(0, False)]

    asyncio.run(test())


def test_sockets_of_many_are_opened_and_closed_in_as_many_passes_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(word: str, real: Callable[..., Any], *args: Any) -> Any:
        done.append(word)
        return real(*args)

    monkeypatch.setattr(subscription, "new_socket", partial(noted, "open", new_socket))
    monkeypatch.setattr(subscription, "_close", partial(noted, "close", subscription._close))

    async def passes(word: str) -> None:
        assert not done
        for _ in range(10):
            before = len(done)
            await asyncio.sleep(0)
            assert len(done) <= before + 1
        assert done == [word] * 5
        done.clear()

    async def test() -> None:
        with opened() as events:
            source = KvEventSource(0, f"tcp://127.0.0.1:{free_port()}")
            subscriptions = [events.subscribe(source, Heard()) for _ in range(5)]
            await passes("open")
            for one in subscriptions:
                one.close()
            await passes("close")
            for _ in range(5):
                events.subscribe(source, Heard())
            await passes("open")
            events.subscribe(source, Heard()).close()
        assert done == ["close"] * 5, "those that are left are closed at the end"

    asyncio.run(test())


def test_large_batches_take_more_of_a_turn() -> None:
    assert [weight(bytes(size)) for size in (0, 1000, 1 << 20)] == [1, 1, AT_ONCE + 1]


def test_a_large_batch_ends_a_turn_of_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [b"", bytes(8), bytes(1 << 20)]

    async def test() -> None:
        async with joined() as (peer, heard, followed):
            followed.replay(0, 0)
            await peer.asked()
            for module in (subscription, replay):
                monkeypatch.setattr(module, "has_more", lambda _: True)
                monkeypatch.setattr(module, "receive", lambda _: large)
            assert isinstance(followed, subscription.ZmqSubscription)
            assert followed._replay is not None
            assert [followed.read(AT_ONCE), followed._replay.read(AT_ONCE)] == [AT_ONCE + 1] * 2
            assert (heard.numbers, heard.replayed_numbers) == ([0], [0])
            monkeypatch.undo()

    asyncio.run(test())


def test_closing_leaves_no_descriptor(run: Any) -> None:
    async def test() -> None:
        def descriptors() -> int:
            return len(os.listdir("/proc/self/fd"))

        with publisher() as peer:
            before = descriptors()
            for _ in range(3):
                with opened(QUICK) as events:
                    nobody = f"tcp://127.0.0.1:{free_port()}"
                    heard = Heard()
                    for endpoint in (peer.endpoint, nobody, "tcp://not an endpoint"):
                        source = KvEventSource(0, endpoint, "", peer.replay_endpoint)
                        events.subscribe(source, heard).replay(0, 0)
                    await heard.until(lambda heard=heard: heard.connections and heard.lost)  # type: ignore[misc]
            async with asyncio.timeout(30):
                while descriptors() > before:  # the other end lets go a moment later
                    await asyncio.sleep(0.01)

    run(test())


def test_many_subscriptions_at_once() -> None:
    """More sockets than ZMQ allows a context by itself."""

    async def test() -> None:
        with publisher() as peer, opened() as events:
            heard = [Heard() for _ in range(400)]
            for rank, each in enumerate(heard):
                events.subscribe(KvEventSource(rank, peer.endpoint), each)
            for each in heard:
                await each.until(lambda each=each: each.connections)  # type: ignore[misc]
            assert not any(each.lost for each in heard)

    asyncio.run(test())
