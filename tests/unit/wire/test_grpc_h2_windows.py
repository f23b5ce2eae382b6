"""Windows: what may be sent and received when, and that nobody waits for ever."""

from __future__ import annotations

import weakref

from hypothesis import given
from hypothesis import strategies as st

from enginehouse.domain.link import LinkErrorKind
from enginehouse.wire import h2_frames as h2
from enginehouse.wire.h2_frames import ErrorCode, Setting
from tests.unit.wire.peer import OK, Peer, Sent, data, message


def size_of(frames: list[Sent], stream_id: int | None = None) -> int:
    return sum(len(one.payload) for one in frames if one.kind == h2.DATA and stream_id in (None, one.stream_id))


def test_a_body_of_megabytes_waits_for_both_windows_and_goes_on() -> None:
    peer = Peer()
    _, stream = peer.call(b"x" * 3_000_000)
    assert size_of(peer.sent()) == 65_535
    peer.feed(h2.window_update(stream.id, 1_000_000))
    assert peer.sent() == []
    peer.feed(h2.window_update(0, 500_000))
    assert size_of(peer.sent()) == 500_000
    peer.feed(h2.window_update(0, 10_000_000))
    assert size_of(peer.sent()) == 500_000
    peer.feed(h2.window_update(stream.id, 10_000_000))
    rest = peer.sent()
    assert size_of(rest) == 3_000_005 - 1_065_535
    assert [one.flags for one in rest if one.flags] == [h2.END_STREAM]
    assert max(len(one.payload) for one in rest) == 16_384


def test_a_changed_initial_window_moves_the_windows_of_open_calls() -> None:
    peer = Peer(settings=((Setting.INITIAL_WINDOW_SIZE, 100),))
    _, stream = peer.call(b"x" * 1000)
    assert size_of(peer.sent()) == 100
    peer.feed(h2.settings([(Setting.INITIAL_WINDOW_SIZE, 40)]))
    peer.feed(h2.window_update(stream.id, 60))
    assert size_of(peer.sent()) == 0
    peer.feed(h2.window_update(stream.id, 1))
    assert size_of(peer.sent()) == 1
    peer.feed(h2.settings([(Setting.INITIAL_WINDOW_SIZE, 240)]))
    assert size_of(peer.sent()) == 200


def test_calls_take_turns_when_the_connections_window_is_short() -> None:
    peer = Peer(settings=((Setting.INITIAL_WINDOW_SIZE, 2**20),))
    peer.call(b"x" * 200_000)
    peer.sent()
    _, small_stream = peer.call(b"y" * 10)
    peer.feed(h2.window_update(0, 2 * 16_384))
    assert size_of(peer.sent(), small_stream.id) == 15
    assert small_stream.request_sent


def test_s2_a_cancelled_calls_body_is_let_go_of_while_the_connections_window_is_shut() -> None:
    peer = Peer(settings=((Setting.INITIAL_WINDOW_SIZE, 2**20),))
    peer.call(b"x" * 65_530)
    assert size_of(peer.sent()) == 65_535
    sink, stream = peer.call(b"y" * 1_000_000)
    assert stream.body is not None
    body = weakref.ref(stream.body)
    peer.machine.reset(stream)
    assert body() is None
    assert not stream.request_sent
    peer.feed(h2.window_update(0, 2**20))
    assert size_of(peer.sent()) == 0
    assert not sink.ends


def test_a_full_transport_holds_bodies_back_but_not_answers_to_pings() -> None:
    peer = Peer()
    peer.machine.hold()
    _, stream = peer.call(b"x" * 1000)
    peer.feed(h2.frame(h2.PING, 0, 0, b"12345678"))
    assert [one.kind for one in peer.sent()] == [h2.HEADERS, h2.PING]
    peer.machine.release()
    assert size_of(peer.sent(), stream.id) == 1005


def test_window_is_granted_in_large_steps() -> None:
    peer = Peer(stream_window=1000, connection_window=100_000)
    _, stream = peer.answered()
    for _ in range(9):
        peer.feed(data(stream.id, message(b"x" * 45)))
    assert peer.sent() == []
    peer.feed(data(stream.id, message(b"x" * 45)))
    assert peer.sent() == [Sent(h2.WINDOW_UPDATE, 0, stream.id, (500).to_bytes(4, "big"))]
    for _ in range(1000 - 10):
        peer.feed(data(stream.id, message(b"x" * 45)))
    assert [one.number for one in peer.sent() if one.stream_id == 0] == [50_000]


def test_s2_a_paused_call_gets_no_window_while_others_and_the_connection_do() -> None:
    peer = Peer(stream_window=1000, connection_window=65_535)
    slow, slow_stream = peer.answered()
    fast, fast_stream = peer.answered()
    peer.machine.pause(slow_stream)
    peer.feed(data(slow_stream.id, message(b"x" * 995)))
    for _ in range(500):
        peer.feed(data(fast_stream.id, message(b"y" * 495)))
    granted = peer.sent(h2.WINDOW_UPDATE)
    assert {one.stream_id for one in granted} == {0, fast_stream.id}
    received = 1000 + 500 * 500
    assert received - sum(one.number for one in granted if one.stream_id == 0) < 65_535 / 2
    assert (len(slow.messages), len(fast.messages)) == (1, 500)
    peer.machine.resume(slow_stream)
    assert peer.sent() == [Sent(h2.WINDOW_UPDATE, 0, slow_stream.id, (1000).to_bytes(4, "big"))]
    peer.machine.resume(slow_stream)
    assert peer.sent() == []


def test_a_call_may_begin_paused() -> None:
    peer = Peer(stream_window=1000)
    _, stream = peer.answered(paused=True)
    peer.feed(data(stream.id, message(b"x" * 900)))
    assert peer.sent() == []


def test_more_than_a_streams_window_ends_the_call() -> None:
    for shape in (message(b"x" * 496), message(b"x" * 100) + message(b"x" * 391)):
        peer = Peer(stream_window=1000)
        sink, stream = peer.answered(paused=True)
        peer.feed(data(stream.id, message(b"x" * 495)))
        peer.feed(data(stream.id, shape))
        assert sink.error.kind == LinkErrorKind.PROTOCOL
        assert [one.number for one in peer.sent(h2.RST_STREAM)] == [ErrorCode.FLOW_CONTROL_ERROR]
        assert peer.machine.failed is None


def test_more_than_the_connections_window_ends_the_connection() -> None:
    peer = Peer(stream_window=2**20, connection_window=65_535)
    sink, stream = peer.answered()
    peer.feed(*[data(stream.id, message(b"x" * 16_000))] * 5)
    assert peer.machine.failed is not None
    assert "FLOW_CONTROL_ERROR" in sink.error.text


def test_padding_counts_against_both_windows() -> None:
    peer = Peer(stream_window=1000)
    _, stream = peer.answered()
    for _ in range(2):
        peer.feed(h2.frame(h2.DATA, h2.PADDED, stream.id, b"\xff" + bytes(255)))
    assert [one.number for one in peer.sent()] == [512]


def test_data_of_ended_calls_still_counts_for_the_connection() -> None:
    peer = Peer(connection_window=65_535)
    _, stream = peer.answered()
    peer.machine.reset(stream)
    peer.sent()
    peer.feed(*[data(stream.id, bytes(16_384))] * 2)
    assert [(one.stream_id, one.number) for one in peer.sent()] == [(0, 32_768)]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["data", "pause", "resume", "reset"]), st.integers(0, 400)),
        max_size=80,
    )
)
def test_what_is_granted_never_exceeds_what_was_received(steps: list[tuple[int, str, int]]) -> None:
    """For a peer that keeps to its windows: no grant is lost, none is made up, and nobody is stopped for good."""
    peer = Peer(stream_window=1000, connection_window=65_535)
    calls = [peer.answered() for _ in range(4)]
    window = dict.fromkeys((stream.id for _, stream in calls), 1000)
    connection = 65_535
    received = 0

    def settle() -> None:
        nonlocal connection
        for update in peer.sent(h2.WINDOW_UPDATE):
            if update.stream_id:
                window[update.stream_id] += update.number
            else:
                connection += update.number

    for which, action, size in steps:
        stream = calls[which][1]
        if action == "data":
            payload = message(b"x" * size)
            if len(payload) <= window[stream.id]:
                window[stream.id] -= len(payload)
                connection -= len(payload)
                received += len(payload)
                peer.feed(data(stream.id, payload))
        else:
            getattr(peer.machine, action)(stream)
        settle()
        assert 0 <= window[stream.id] <= 1000
        assert 65_535 // 2 <= connection <= 65_535
        if not stream.paused and not stream.ended:
            assert window[stream.id] > 500
    assert peer.machine.failed is None
    for sink, stream in calls:
        if not stream.ended:
            peer.feed(peer.headers(stream.id, *OK, end=True))
            assert sink.ends == [None]


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=5),
    st.integers(1, 4000),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 2000)), max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4000)), max_size=5),
)
def test_bodies_never_pass_a_window_and_arrive_whole(
    sizes: list[int], initial: int, grants: list[tuple[int, int]], changes: list[tuple[int, int]]
) -> None:
    peer = Peer(settings=((Setting.INITIAL_WINDOW_SIZE, initial),))
    calls = [peer.call(bytes([number]) * size)[1] for number, size in enumerate(sizes)]
    window = {stream.id: initial for stream in calls}
    connection = 65_535
    arrived = {stream.id: b"" for stream in calls}
    ended: set[int] = set()

    def settle() -> None:
        nonlocal connection
        for one in peer.sent(h2.DATA):
            assert one.stream_id not in ended
            window[one.stream_id] -= len(one.payload)
            connection -= len(one.payload)
            assert connection >= 0
            assert window[one.stream_id] >= 0
            arrived[one.stream_id] += one.payload
            if one.flags & h2.END_STREAM:
                ended.add(one.stream_id)

    settle()
    for step, (which, increment) in enumerate(grants):
        for at, value in changes:
            if at == step:
                for stream_id in window:
                    window[stream_id] += value - initial
                initial = value
                peer.feed(h2.settings([(Setting.INITIAL_WINDOW_SIZE, value)]))
                settle()
        stream_id = calls[which].id if which < len(calls) else 0
        if stream_id:
            window[stream_id] += increment
        else:
            connection += increment
        peer.feed(h2.window_update(stream_id, increment))
        settle()
    for stream in calls:
        window[stream.id] += 100_000
        peer.feed(h2.window_update(stream.id, 100_000))
    connection += 1_000_000
    peer.feed(h2.window_update(0, 1_000_000))
    settle()
    assert ended == set(window)
    for number, (stream, size) in enumerate(zip(calls, sizes, strict=True)):
        assert arrived[stream.id] == message(bytes([number]) * size)
