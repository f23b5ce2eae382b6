"""Any portions of a valid byte stream mean the same; any bytes at all end in an error that has a name."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from enginehouse.domain.link import LinkError, LinkErrorKind
from enginehouse.wire import h2_frames as h2
from enginehouse.wire.h2_frames import ErrorCode, Setting
from tests.unit.wire.peer import OK, OPENING, Peer, Recorder, data, message, padded

CALLS = 4


def start() -> tuple[Peer, list[Recorder]]:
    peer = Peer(stream_window=4000, connection_window=65_535, receive_limit=2000)
    return peer, [peer.call(b"request")[0] for _ in range(CALLS)]


def heard(peer: Peer, sinks: list[Recorder]) -> list[object]:
    shown: list[object] = [
        (sink.messages, [None if error is None else (error.kind, error.text) for error in sink.ends]) for sink in sinks
    ]
    failed = peer.machine.failed
    return [*shown, None if failed is None else failed.text, peer.machine.goaway]


def valid_stream(draw: st.DrawFn) -> bytes:
    """Answers of several calls, mixed, with everything between them that a server may send."""
    source = Peer()  # only for its encoder; blocks are encoded in the order in which they go out
    wire = b"".join(source.headers(2 * number + 1, *OPENING) for number in range(CALLS))
    queues: list[list[bytes]] = []
    for number in range(CALLS):
        frames = []
        content = b"".join(message(b"m" * size) for size in draw(st.lists(st.integers(0, 300), max_size=5)))
        while content:
            size = draw(st.integers(1, 400))
            if draw(st.booleans()):
                frames.append(data(2 * number + 1, content[:size]))
            else:
                frames.append(padded(h2.DATA, 0, 2 * number + 1, content[:size], draw(st.integers(0, 20))))
            content = content[size:]
        queues.append(frames)
    extras = [
        h2.frame(h2.PING, 0, 0, b"12345678"),
        h2.settings([(Setting.MAX_CONCURRENT_STREAMS, 9)]),
        h2.window_update(0, 1000),
        h2.frame(0xEE, 0, 0, b"unknown"),
    ]
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        wire += queue.pop(0)
        if draw(st.integers(0, 4)) == 0:
            wire += draw(st.sampled_from(extras))
    for number in range(CALLS):
        n = 2 * number + 1
        end = draw(st.sampled_from(["ok", "status", "reset", "open", "continued"]))
        if end == "ok":
            wire += source.headers(n, *OK, end=True)
        elif end == "status":
            wire += source.headers(n, ("grpc-status", "13"), ("grpc-message", "x%20y"), end=True)
        elif end == "reset":
            wire += h2.rst_stream(n, ErrorCode.INTERNAL_ERROR)
        elif end == "continued":
            block = source.encoder.encode(OK)
            wire += h2.frame(h2.HEADERS, h2.END_STREAM, n, block[:1])
            wire += h2.frame(h2.CONTINUATION, h2.END_HEADERS, n, block[1:])
    if draw(st.booleans()):
        wire += h2.frame(h2.GOAWAY, 0, 0, (3).to_bytes(4, "big") + bytes(4) + b"bye")
    return wire


valid = st.composite(valid_stream)()


@given(valid, st.data())
def test_any_portions_give_the_same_events(wire: bytes, draw: st.DataObject) -> None:
    whole, whole_sinks = start()
    whole.feed(wire)
    assert whole.machine.failed is None
    parts, part_sinks = start()
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(wire)), max_size=40)))
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        parts.feed(wire[begin:end])
    assert heard(parts, part_sinks) == heard(whole, whole_sinks)


def test_byte_by_byte_gives_the_same_events() -> None:
    @given(valid)
    @settings(max_examples=10)
    def check(wire: bytes) -> None:
        whole, whole_sinks = start()
        whole.feed(wire)
        parts, part_sinks = start()
        for index in range(len(wire)):
            parts.feed(wire[index : index + 1])
        assert heard(parts, part_sinks) == heard(whole, whole_sinks)

    check()


def conclude(peer: Peer, sinks: list[Recorder]) -> None:
    """After whatever came: the connection can end, and every call has then ended once, with a LinkError if not well."""
    peer.machine.lost("the end of the test")
    assert isinstance(peer.machine.failed, LinkError)
    for sink in sinks:
        (error,) = sink.ends
        assert error is None or isinstance(error, LinkError)
        if error is not None and error.kind is not LinkErrorKind.STATUS:
            assert error.status is None
    assert peer.machine.open_streams == 0


@given(valid, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_corrupted_bytes_never_raise(wire: bytes, damage: list[tuple[int, int]]) -> None:
    broken = bytearray(wire)
    for place, value in damage:
        broken[place % len(broken)] = value
    peer, sinks = start()
    peer.feed(bytes(broken[: len(broken) // 2]))
    peer.feed(bytes(broken[len(broken) // 2 :]))
    conclude(peer, sinks)


@given(st.binary(max_size=200))
def test_garbage_instead_of_a_greeting_never_raises(garbage: bytes) -> None:
    peer = Peer(greet=False)
    peer.feed(garbage)
    conclude(peer, [])


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 12), st.binary(max_size=40)), max_size=20
    )
)
def test_random_frames_never_raise(frames: list[tuple[int, int, int, bytes]]) -> None:
    peer, sinks = start()
    for kind, flags, stream_id, payload in frames:
        peer.feed(h2.frame(kind, flags, stream_id, payload))
    conclude(peer, sinks)
