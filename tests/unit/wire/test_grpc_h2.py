from __future__ import annotations

import pytest

from enginehouse.domain.link import GrpcStatus, LinkErrorKind
from enginehouse.wire import h2_frames as h2
from enginehouse.wire.h2_frames import ErrorCode, Setting
from tests.unit.wire.peer import OK, OPENING, Peer, Recorder, Sent, data, frames, message, padded

E = ErrorCode


def test_the_preface_switches_push_off_and_grants_the_windows() -> None:
    peer = Peer(greet=False, stream_window=70_000, connection_window=1_000_000)
    first, update = frames(peer.preface[len(h2.PREFACE) :])
    assert dict(h2.read_settings(first.payload))[Setting.ENABLE_PUSH] == 0
    assert dict(h2.read_settings(first.payload))[Setting.INITIAL_WINDOW_SIZE] == 70_000
    assert update == Sent(h2.WINDOW_UPDATE, 0, 0, (1_000_000 - 65_535).to_bytes(4, "big"))


def test_a_call_is_written_as_the_protocol_says() -> None:
    peer = Peer()
    _, stream = peer.call(b"hello", metadata=[("x-key", "secret")], timeout=1.5)
    head, body = peer.sent()
    assert (head.kind, head.flags, head.stream_id) == (h2.HEADERS, h2.END_HEADERS, stream.id)
    assert [tuple(field) for field in peer.decoder.decode(head.payload)] == [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/s/M"),
        (":authority", "engine:1"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-enginehouse"),
        ("grpc-timeout", "1500000u"),
        ("x-key", "secret"),
    ]
    assert body == Sent(h2.DATA, h2.END_STREAM, stream.id, message(b"hello"))
    assert stream.request_sent


def test_metadata_never_enters_the_peers_table() -> None:
    peer = Peer()
    peer.call(metadata=[("authorization", "Bearer x")])
    peer.decoder.decode(peer.sent(h2.HEADERS)[0].payload)
    assert b"authorization" not in {name for name, _ in peer.decoder.header_table.dynamic_entries}


def test_messages_arrive_in_every_shape_of_frames() -> None:
    peer = Peer()
    sink, stream = peer.answered()
    n = stream.id
    peer.feed(data(n, message(b"whole")))
    peer.feed(data(n, message(b"two") + message(b"in one")))
    peer.feed(data(n, message(b"split")[:3]), data(n, message(b"split")[3:7]), data(n, message(b"split")[7:]))
    peer.feed(data(n, message(b"tail") + message(b"head")[:6]), data(n, message(b"head")[6:]))
    peer.feed(data(n, b""), data(n, message(b"")))
    peer.feed(padded(h2.DATA, 0, n, message(b"padded"), 9))
    peer.feed(peer.headers(n, *OK, end=True))
    assert sink.messages == [b"whole", b"two", b"in one", b"split", b"tail", b"head", b"", b"padded"]
    assert sink.ends == [None]
    assert peer.machine.open_streams == 0
    assert peer.sent() == []


def test_a_large_message_is_put_together() -> None:
    peer = Peer(stream_window=2**20)
    sink, stream = peer.answered()
    body = bytes(range(256)) * 1000
    whole = message(body)
    for start in range(0, len(whole), 16_384):
        peer.feed(data(stream.id, whole[start : start + 16_384]))
    assert sink.messages == [body]


def test_a_part_of_a_message_that_looks_like_a_whole_one_is_a_part() -> None:
    peer = Peer()
    sink, stream = peer.answered()
    body = b"head" + message(b"inner") + b"tail"
    whole = message(body)
    for part in (whole[:9], whole[9:-4], whole[-4:]):
        peer.feed(data(stream.id, part))
    assert sink.messages == [body]


def test_header_blocks_may_be_padded_prioritised_continued_and_interim() -> None:
    peer = Peer()
    sink, stream = peer.call()
    n = stream.id
    peer.feed(peer.headers(n, (":status", "103")))
    block = peer.encoder.encode(OPENING)
    first = bytes(5) + block[:4]
    peer.feed(padded(h2.HEADERS, h2.HAS_PRIORITY, n, first, 7))
    peer.feed(h2.frame(h2.CONTINUATION, 0, n, b""), h2.frame(h2.CONTINUATION, h2.END_HEADERS, n, block[4:]))
    peer.feed(data(n, message(b"m")), h2.frame(h2.PRIORITY, 0, n, bytes(5)), h2.frame(0xFA, 0xFF, n, b"unknown kind"))
    peer.feed(peer.headers(n, *OK, end=True))
    assert (sink.messages, sink.ends) == ([b"m"], [None])


@pytest.mark.parametrize(
    ("fields", "kind", "status", "text"),
    [
        ((*OPENING, ("grpc-status", "3"), ("grpc-message", "b%C3%A4d 100%")), "status", 3, "bäd 100%"),
        ((*OPENING, ("grpc-status", "14")), "status", 14, "UNAVAILABLE with no message"),
        ((*OPENING, ("grpc-status", "77"), ("grpc-message", "odd")), "status", 2, "odd"),
        ((*OPENING, ("grpc-status", "-1")), "protocol", None, "not a number"),
        ((*OPENING, ("grpc-status", "9" * 5000)), "protocol", None, "not a number"),
        (OPENING, "truncated", None, "without a gRPC status"),
        (((":status", "400"),), "status", 13, "HTTP status 400"),
        (((":status", "401"),), "status", 16, "HTTP status 401"),
        (((":status", "403"),), "status", 7, "HTTP status 403"),
        (((":status", "404"), ("content-type", "text/html")), "status", 12, "HTTP status 404"),
        (((":status", "429"),), "status", 14, "HTTP status 429"),
        (((":status", "502"),), "status", 14, "HTTP status 502"),
        (((":status", "503"),), "status", 14, "HTTP status 503"),
        (((":status", "504"),), "status", 14, "HTTP status 504"),
        (((":status", "500"),), "status", 2, "HTTP status 500"),
        (((":status", "500"), ("grpc-status", "8"), ("grpc-message", "full")), "status", 8, "full"),
        (((":status", "200"), ("content-type", "text/html")), "protocol", None, "text/html"),
        (((":status", "200"), ("content-type", "application/grpc-web")), "protocol", None, "grpc-web"),
        ((("content-type", "application/grpc"),), "protocol", None, "HTTP status is missing"),
        ((("X-Upper", "1"),), "protocol", None, "lower case"),
    ],
)
def test_trailers_only_answers(fields: tuple[tuple[str, str], ...], kind: str, status: int | None, text: str) -> None:
    peer = Peer()
    sink, stream = peer.call()
    peer.feed(peer.headers(stream.id, *fields, end=True))
    assert (sink.error.kind, sink.error.status) == (LinkErrorKind(kind), status)
    assert text in sink.error.text
    assert peer.machine.failed is None
    assert peer.machine.open_streams == 0


@pytest.mark.parametrize("raw", ["0", "00", "000000000", "-0", "+0", "", "9" * 40, "\u0660"])
@pytest.mark.parametrize("http", ["200", "404", "", "1xx", "99999"])
@pytest.mark.parametrize("end", [True, False])
def test_no_pair_of_statuses_makes_the_machine_raise(http: str, raw: str, end: bool) -> None:
    peer = Peer()
    sink, stream = peer.call()
    peer.feed(peer.headers(stream.id, (":status", http), ("grpc-status", raw), end=end))
    assert len(sink.ends) == (0 if http.startswith("1") and not end else 1)
    assert peer.machine.failed is None


@pytest.mark.parametrize(
    ("fields", "status"),
    [(((":status", "404"),), GrpcStatus.UNIMPLEMENTED), (((":status", "200"), ("content-type", "text/plain")), None)],
)
def test_an_answer_with_a_foreign_body_is_ended_at_its_first_block(
    fields: tuple[tuple[str, str], ...], status: GrpcStatus | None
) -> None:
    peer = Peer()
    sink, stream = peer.call()
    peer.sent()
    peer.feed(peer.headers(stream.id, *fields), data(stream.id, b"<html>"))
    assert sink.error.status == status
    assert peer.sent() == [Sent(h2.RST_STREAM, 0, stream.id, E.CANCEL.to_bytes(4, "big"))]


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"])
def test_content_types_of_grpc(kind: str) -> None:
    peer = Peer()
    sink, stream = peer.call()
    peer.feed(peer.headers(stream.id, (":status", "200"), ("content-type", kind)))
    peer.feed(peer.headers(stream.id, *OK, end=True))
    assert sink.ends == [None]


def test_a_status_after_messages_is_told_with_its_text() -> None:
    peer = Peer()
    sink, stream = peer.answered()
    peer.feed(data(stream.id, message(b"m")))
    peer.feed(peer.headers(stream.id, ("grpc-status", "8"), ("grpc-message", "voll%0a"), end=True))
    assert sink.messages == [b"m"]
    assert (sink.error.kind, sink.error.status, sink.error.text) == ("status", GrpcStatus.RESOURCE_EXHAUSTED, "voll\n")


@pytest.mark.parametrize(
    ("feed", "kind", "text"),
    [
        (lambda p, n: data(n, message(b"abc")[:6]) + p.headers(n, *OK, end=True), "truncated", "inside a message"),
        (lambda p, n: data(n, message(b"abc"), h2.END_STREAM), "truncated", "without a gRPC status"),
        (lambda p, n: p.headers(n, ("x", "y"), end=True), "truncated", "without a gRPC status"),
        (lambda p, n: p.headers(n, ("x", "y")), "protocol", "middle of the answer"),
        (lambda p, n: data(n, message(b"abc", compressed=1)), "protocol", "compressed"),
        (lambda p, n: data(n, message(b"a" * 1001)), "message-too-large", "1001 bytes; the limit is 1000"),
        (lambda p, n: data(n, b"\0\xff\xff\xff\xff"), "message-too-large", "4294967295 bytes"),
        (lambda p, n: h2.window_update(n, 0), "protocol", "window update"),
        (lambda p, n: h2.window_update(n, 2**31 - 1), "protocol", "window update"),
    ],
)
def test_a_broken_answer_ends_its_call_only(feed, kind: str, text: str) -> None:  # type: ignore[no-untyped-def]
    peer = Peer(receive_limit=1000)
    sink, stream = peer.answered()
    other, other_stream = peer.answered()
    peer.feed(feed(peer, stream.id))
    assert sink.error.kind == kind
    assert text in sink.error.text
    assert sink.error.may_have_been_processed
    peer.feed(data(other_stream.id, message(b"m")), peer.headers(other_stream.id, *OK, end=True))
    assert (other.messages, other.ends) == ([b"m"], [None])
    assert peer.machine.failed is None


def test_data_before_header_fields_is_refused() -> None:
    peer = Peer()
    sink, stream = peer.call()
    peer.feed(data(stream.id, message(b"m")))
    assert (sink.messages, sink.error.kind) == ([], LinkErrorKind.PROTOCOL)


@pytest.mark.parametrize(
    ("code", "sent", "processed"),
    [(E.REFUSED_STREAM, True, False), (E.INTERNAL_ERROR, True, True), (E.CANCEL, False, False), (0x77, True, True)],
)
def test_rst_stream_says_whether_the_call_was_taken_up(code: int, sent: bool, processed: bool) -> None:
    peer = Peer(settings=() if sent else ((Setting.INITIAL_WINDOW_SIZE, 3),))
    sink, stream = peer.call(b"request")
    peer.sent()
    peer.feed(h2.frame(h2.RST_STREAM, 0, stream.id, int(code).to_bytes(4, "big")))
    assert (sink.error.kind, sink.error.may_have_been_processed) == (LinkErrorKind.RESET, processed)
    assert peer.sent() == []


def test_rst_stream_no_error_after_the_trailers_is_no_error() -> None:
    peer = Peer()
    sink, stream = peer.answered()
    peer.feed(peer.headers(stream.id, *OK, end=True), h2.rst_stream(stream.id, E.NO_ERROR))
    assert sink.ends == [None]
    assert peer.machine.failed is None


def test_an_answer_before_the_whole_request_stops_the_request() -> None:
    peer = Peer(settings=((Setting.INITIAL_WINDOW_SIZE, 10),))
    sink, stream = peer.call(b"x" * 100)
    peer.sent()
    peer.feed(peer.headers(stream.id, *OPENING, ("grpc-status", "8"), end=True), h2.window_update(stream.id, 1000))
    assert sink.error.status == GrpcStatus.RESOURCE_EXHAUSTED
    assert [one.kind for one in peer.sent()] == [h2.RST_STREAM]


def test_goaway_ends_what_was_not_taken_up_and_lets_the_rest_go_on() -> None:
    peer = Peer()
    first, first_stream = peer.answered()
    second, _ = peer.answered()
    peer.feed(h2.frame(h2.GOAWAY, 0, 0, first_stream.id.to_bytes(4, "big") + bytes(4) + b"restarting"))
    assert peer.machine.leaving
    assert peer.machine.goaway == (E.NO_ERROR, "restarting")
    assert (second.error.kind, second.error.may_have_been_processed) == (LinkErrorKind.GOAWAY, False)
    assert "restarting" in second.error.text
    peer.feed(data(first_stream.id, message(b"m")), peer.headers(first_stream.id, *OK, end=True))
    assert (first.messages, first.ends) == ([b"m"], [None])


def test_goaway_in_two_steps_as_grpc_servers_do_it() -> None:
    peer = Peer()
    sink, stream = peer.answered()
    peer.feed(h2.frame(h2.GOAWAY, 0, 0, b"\x7f\xff\xff\xff" + bytes(4)), h2.frame(h2.PING, 0, 0, b"12345678"))
    assert sink.ends == []
    assert peer.sent() == [Sent(h2.PING, h2.ACK, 0, b"12345678")]
    peer.feed(h2.frame(h2.GOAWAY, 0, 0, stream.id.to_bytes(4, "big") + bytes(4)))
    peer.feed(peer.headers(stream.id, *OK, end=True))
    assert sink.ends == [None]


def test_a_lost_connection_ends_every_call_with_what_is_known_of_it() -> None:
    peer = Peer(settings=((Setting.INITIAL_WINDOW_SIZE, 10),))
    whole, _ = peer.call(b"abc")
    part, _ = peer.call(b"x" * 100)
    peer.sent()
    peer.machine.lost("the connection broke")
    assert (whole.error.kind, whole.error.may_have_been_processed) == (LinkErrorKind.LOST, True)
    assert (part.error.kind, part.error.may_have_been_processed) == (LinkErrorKind.LOST, False)
    assert peer.machine.cut == 2


def test_close_resets_open_calls_and_says_goaway() -> None:
    peer = Peer()
    sink, stream = peer.answered()
    peer.machine.close(LinkErrorKind.CLOSED, "shut")
    assert sink.error.kind == LinkErrorKind.CLOSED
    assert [(one.kind, one.stream_id) for one in peer.sent()] == [(h2.RST_STREAM, stream.id), (h2.GOAWAY, 0)]


def test_a_reset_call_hears_nothing_more() -> None:
    peer = Peer()
    sink, stream = peer.answered()
    other, _ = peer.answered()
    peer.machine.reset(stream)
    peer.machine.reset(stream)
    assert peer.sent() == [Sent(h2.RST_STREAM, 0, stream.id, E.CANCEL.to_bytes(4, "big"))]
    peer.feed(data(stream.id, message(b"late")), peer.headers(stream.id, *OK, ("x-new", "1"), end=True))
    assert (sink.messages, sink.ends) == ([], [])
    # The late block was decoded all the same: the compression state is common to all streams.
    peer.feed(peer.headers(3, *OK, ("x-new", "1"), end=True))
    assert other.ends == [None]


def test_who_wants_to_is_told_once_when_a_call_is_taken_on() -> None:
    peer = Peer()
    heard: list[str] = []
    sink, stream = peer.call(on_answered=lambda: heard.append("answered"))
    peer.feed(peer.headers(stream.id, (":status", "103")))
    assert not heard
    peer.feed(peer.headers(stream.id, *OPENING))
    assert heard == ["answered"]
    peer.feed(data(stream.id, message(b"m")), peer.headers(stream.id, *OK, end=True))
    assert (heard, sink.messages, sink.ends) == (["answered"], [b"m"], [None])


@pytest.mark.parametrize(
    ("fields", "end"), [((*OPENING, ("grpc-status", "12")), True), (OPENING, True), (((":status", "503"),), False)]
)
def test_a_refusal_takes_no_call_on(fields: tuple[tuple[str, str], ...], end: bool) -> None:
    peer = Peer()
    sink, stream = peer.call(on_answered=lambda: pytest.fail("it was refused"))
    peer.feed(peer.headers(stream.id, *fields, end=end))
    assert sink.error
    assert not peer.machine.sink_errors


def test_who_raises_when_a_call_is_taken_on_ends_it() -> None:
    peer = Peer()
    sink, stream = peer.call(on_answered=lambda: 1 / 0)
    peer.feed(peer.headers(stream.id, *OPENING), data(stream.id, message(b"m")))
    assert (sink.error.kind, sink.messages) == (LinkErrorKind.CANCELLED, [])
    assert len(peer.machine.sink_errors) == 1


def test_a_call_may_be_reset_when_it_is_taken_on() -> None:
    peer = Peer()
    sink, stream = peer.call(on_answered=lambda: peer.machine.reset(stream))
    peer.feed(peer.headers(stream.id, *OPENING), data(stream.id, message(b"m")))
    assert not sink.messages
    assert not sink.ends


def test_a_sink_may_reset_its_call_from_inside_a_message() -> None:
    peer = Peer()
    heard: list[bytes] = []

    def once(received: bytes) -> None:
        heard.append(received)
        peer.machine.reset(stream)

    stream = peer.machine.open("/s/M", b"", once, lambda error: heard.append(b"end"))
    peer.feed(peer.headers(stream.id, *OPENING), data(stream.id, message(b"1") + message(b"2")))
    assert heard == [b"1"]
    fast = peer.machine.open("/s/M", b"", once, lambda error: heard.append(b"end"))
    stream = fast
    peer.feed(peer.headers(fast.id, *OPENING), data(fast.id, message(b"3")), data(fast.id, message(b"4")))
    assert heard == [b"1", b"3"]


@pytest.mark.parametrize("shape", [lambda n: data(n, message(b"m")), lambda n: data(n, message(b"m") + message(b"m"))])
def test_a_sink_that_raises_ends_its_call_and_no_other(shape) -> None:  # type: ignore[no-untyped-def]
    peer = Peer()
    ends = Recorder()
    stream = peer.machine.open("/s/M", b"", lambda _: 1 / 0, ends.on_end)
    other, other_stream = peer.answered()
    peer.feed(peer.headers(stream.id, *OPENING), shape(stream.id))
    peer.feed(data(other_stream.id, message(b"m")), peer.headers(other_stream.id, *OK, end=True))
    assert ends.error.kind == LinkErrorKind.CANCELLED
    assert [type(error) for error in peer.machine.sink_errors] == [ZeroDivisionError]
    assert (other.messages, other.ends) == ([b"m"], [None])


def test_nothing_is_ever_sent_unasked() -> None:
    peer = Peer()
    peer.answered()
    for _ in range(100):
        assert peer.machine.data_to_send() == b""


SETTINGS_ACK = h2.frame(h2.SETTINGS, h2.ACK, 0)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (lambda p, n: b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", E.FRAME_SIZE_ERROR),
        (lambda p, n: data(0, b"x"), E.PROTOCOL_ERROR),
        (lambda p, n: data(2, b"x"), E.PROTOCOL_ERROR),
        (lambda p, n: data(99, b"x"), E.PROTOCOL_ERROR),
        (lambda p, n: p.headers(99, *OPENING), E.PROTOCOL_ERROR),
        (lambda p, n: h2.rst_stream(99, E.CANCEL), E.PROTOCOL_ERROR),
        (lambda p, n: h2.window_update(99, 1), E.PROTOCOL_ERROR),
        (lambda p, n: h2.window_update(0, 0), E.FLOW_CONTROL_ERROR),
        (lambda p, n: h2.window_update(0, 2**31 - 1), E.FLOW_CONTROL_ERROR),
        (lambda p, n: h2.frame(h2.WINDOW_UPDATE, 0, 0, b"abc"), E.FRAME_SIZE_ERROR),
        (lambda p, n: h2.frame(h2.RST_STREAM, 0, n, b"abc"), E.FRAME_SIZE_ERROR),
        (lambda p, n: h2.frame(h2.DATA, h2.PADDED, n, b""), E.FRAME_SIZE_ERROR),
        (lambda p, n: h2.frame(h2.DATA, h2.PADDED, n, b"\x05abcd"), E.PROTOCOL_ERROR),
        (lambda p, n: h2.frame(h2.HEADERS, h2.HAS_PRIORITY, n, b"abcd"), E.PROTOCOL_ERROR),
        (lambda p, n: h2.frame(h2.HEADERS, h2.END_HEADERS, n, b"\xff\xff\xff"), E.COMPRESSION_ERROR),
        (lambda p, n: h2.frame(h2.HEADERS, h2.END_HEADERS, n, b"\x40"), E.COMPRESSION_ERROR),
        (lambda p, n: h2.frame(h2.CONTINUATION, 0, n, b""), E.PROTOCOL_ERROR),
        (lambda p, n: h2.frame(h2.HEADERS, 0, n, b"") + data(n, message(b"m")), E.PROTOCOL_ERROR),
        (lambda p, n: h2.frame(h2.HEADERS, 0, n, b"") + h2.frame(h2.CONTINUATION, 4, 99, b""), E.PROTOCOL_ERROR),
        (lambda p, n: h2.frame(h2.HEADERS, 0, n) + h2.frame(h2.CONTINUATION, 0, n) * 40_000, E.ENHANCE_YOUR_CALM),
        (lambda p, n: h2.frame(h2.PUSH_PROMISE, 4, n, bytes(4)), E.PROTOCOL_ERROR),
        (lambda p, n: h2.frame(h2.PING, 0, 0, b"short"), E.PROTOCOL_ERROR),
        (lambda p, n: h2.frame(h2.PING, 0, n, bytes(8)), E.PROTOCOL_ERROR),
        (lambda p, n: h2.frame(h2.GOAWAY, 0, 0, bytes(7)), E.FRAME_SIZE_ERROR),
        (lambda p, n: h2.frame(h2.GOAWAY, 0, n, bytes(8)), E.PROTOCOL_ERROR),
        (lambda p, n: h2.frame(h2.SETTINGS, 0, 0, bytes(5)), E.FRAME_SIZE_ERROR),
        (lambda p, n: h2.frame(h2.SETTINGS, 0, n, b""), E.PROTOCOL_ERROR),
        (lambda p, n: h2.frame(h2.SETTINGS, h2.ACK, 0, bytes(6)), E.PROTOCOL_ERROR),
        (lambda p, n: h2.settings([(Setting.ENABLE_PUSH, 1)]), E.PROTOCOL_ERROR),
        (lambda p, n: h2.settings([(Setting.INITIAL_WINDOW_SIZE, 2**31)]), E.FLOW_CONTROL_ERROR),
        (lambda p, n: h2.settings([(Setting.MAX_FRAME_SIZE, 16_383)]), E.PROTOCOL_ERROR),
        (lambda p, n: h2.settings([(Setting.MAX_FRAME_SIZE, 2**24)]), E.PROTOCOL_ERROR),
    ],
)
def test_a_peer_that_breaks_http2_ends_the_connection(bad, code: ErrorCode) -> None:  # type: ignore[no-untyped-def]
    peer = Peer()
    sink, stream = peer.answered()
    peer.feed(bad(peer, stream.id), data(stream.id, message(b"after")))
    assert peer.machine.failed is not None
    assert sink.messages == []
    assert (sink.error.kind, sink.error.may_have_been_processed) == (LinkErrorKind.PROTOCOL, True)
    (last,) = peer.sent(h2.GOAWAY)
    assert int.from_bytes(last.payload[4:8], "big") == code
    assert code.name in sink.error.text
    peer.feed(data(stream.id, message(b"more")))
    assert peer.sent() == []


@pytest.mark.parametrize(
    ("greeting", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP port"),
        (b"HTTP/1.0 505", "HTTP port"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS; use grpcs://"),
        (b"SSH-2.0-OpenSSH_9", "does not speak HTTP/2; it begins with b'SSH-2.0-O'"),
        (SETTINGS_ACK, "does not speak HTTP/2"),
        (h2.frame(h2.PING, 0, 0, bytes(8)), "does not speak HTTP/2"),
    ],
)
def test_a_port_that_is_not_grpc_is_named(greeting: bytes, text: str) -> None:
    for at_once in (True, False):
        peer = Peer(greet=False)
        for part in [greeting] if at_once else [greeting[i : i + 1] for i in range(len(greeting))]:
            peer.feed(part)
        assert peer.machine.failed is not None
        assert (peer.machine.failed.kind, peer.machine.failed.may_have_been_processed) == ("protocol", False)
        assert text in peer.machine.failed.text


def test_a_flood_of_pings_by_a_peer_that_does_not_read_ends_the_connection() -> None:
    peer = Peer()
    ping = h2.frame(h2.PING, 0, 0, bytes(8))
    peer.feed(ping * 3000)
    assert len(peer.sent(h2.PING)) == 3000
    peer.machine.hold()
    peer.feed(ping * 3000)
    assert peer.machine.failed is not None
    assert len(peer.sent(h2.PING)) <= 1000


def test_settings_are_applied_and_acknowledged() -> None:
    peer = Peer()
    values = [
        (Setting.MAX_CONCURRENT_STREAMS, 7),
        (Setting.MAX_FRAME_SIZE, 20_000),
        (Setting.HEADER_TABLE_SIZE, 0),
        (99, 1),
    ]
    peer.feed(h2.settings(values))
    assert peer.sent() == [Sent(h2.SETTINGS, h2.ACK, 0, b"")]
    assert peer.machine.max_streams == 7
    _, stream = peer.call(b"x" * 30_000, metadata=[("long", "y" * 30_000)])
    sent = peer.sent()
    assert [(one.kind, len(one.payload)) for one in sent if len(one.payload) == 20_000] == [
        (h2.HEADERS, 20_000),
        (h2.DATA, 20_000),
    ]
    assert [one.kind for one in sent] == [h2.HEADERS, h2.CONTINUATION, h2.DATA, h2.DATA]
    peer.decoder.max_allowed_table_size = 0
    block = b"".join(one.payload for one in sent if one.kind != h2.DATA)
    assert ("long", "y" * 30_000) in [tuple(field) for field in peer.decoder.decode(block)]
    assert sent[-1].flags == h2.END_STREAM
    assert stream.request_sent


def test_used_up_stream_ids_end_the_connections_use() -> None:
    peer = Peer()
    peer.machine._next_id = 2**31 - 1
    _, stream = peer.call()
    assert stream.id == 2**31 - 1
    assert peer.machine.leaving
