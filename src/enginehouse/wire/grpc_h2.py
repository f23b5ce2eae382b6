"""The HTTP/2 client for gRPC unary and server-streaming calls: bytes in, messages out, with no I/O and no clock.

`receive` parses what the socket gave and calls the sinks from inside; `data_to_send` gives what the socket must take.
The owner opens a call only after `ready`, and asks `data_to_send` after everything that it calls. A peer that breaks
HTTP/2 ends the connection: `failed` says why and every open call ends with it; a peer that breaks gRPC ends one call.

This is the per-token path: one DATA frame with one whole message costs one unpack, one lookup, one slice and one call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpack import Decoder, Encoder, HeaderTuple, HPACKError, NeverIndexedHeaderTuple

from enginehouse.domain.link import LinkError, LinkErrorKind
from enginehouse.wire import grpc_answer, h2_frames
from enginehouse.wire.h2_frames import ErrorCode, Setting, Violation, code_name
from enginehouse.wire.h2_outflow import Outflow
from enginehouse.wire.h2_stream import PREFIX, Stream

_FAST = struct.Struct(">IBIBI")
"""Header of a DATA frame and of the gRPC message in it."""
_SEND_BUDGET = 256 * 1024
"""Request bytes given out at once: enough to keep a socket busy, little enough for other calls to get between."""
_BLOCK_LIMIT = 256 * 1024
"""Bytes of one header block, frame headers counted, so that endless CONTINUATIONs end."""
_HEADER_TABLE = 4096
_REPLY_LIMIT = 1000
"""Answers to PING and SETTINGS that may wait for a peer that sends them but does not read."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection allows its peer. Sizes in bytes."""

    stream_window: int = 64 * 1024
    connection_window: int = 16 * 1024 * 1024
    receive_limit: int = 256 * 1024 * 1024


class Connection:
    """One HTTP/2 connection."""

    def __init__(
        self, authority: str, *, scheme: str = "http", user_agent: str = "grpc-enginehouse", limits: ConnectionLimits
    ) -> None:
        self._authority = authority
        self._scheme = scheme
        self._user_agent = user_agent
        self._receive_limit = limits.receive_limit
        self._window = limits.connection_window
        self._stream_window = limits.stream_window
        self._grant_at = max(1, limits.stream_window // 2)
        self._unacked = 0
        self._fast_limit = min(h2_frames.DEFAULT_FRAME_SIZE, limits.receive_limit + PREFIX.size)
        self._streams: dict[int, Stream] = {}
        self._next_id = 1
        self._rest = b""
        self._block = bytearray()
        self._block_cost = 0
        self._block_of: tuple[int, bool] | None = None
        self._decoder = Decoder()
        self._encoder = Encoder()
        self._outflow = Outflow()
        self._replies = 0
        self.ready = False
        """The peer's SETTINGS have come: calls may be opened."""
        self.leaving = False
        """No new calls: the peer said GOAWAY, or stream ids are used up."""
        self.goaway: tuple[int, str] | None = None
        """Error code and debug text of the peer's GOAWAY."""
        self.failed: LinkError | None = None
        """Why the connection is over."""
        self.cut = 0
        """How many open calls ended with it."""
        self.max_streams = h2_frames.LARGEST_STREAM_ID
        """How many calls the peer takes at once."""
        self.changed = False
        """`ready`, `leaving`, `failed`, `max_streams` moved, or an open call ended; the owner clears it."""
        self.sink_errors: list[Exception] = []
        """What sinks raised although they must not; the owner reports and clears it."""
        self._out = [
            h2_frames.PREFACE,
            h2_frames.settings(
                [
                    (Setting.ENABLE_PUSH, 0),
                    (Setting.INITIAL_WINDOW_SIZE, limits.stream_window),
                    (Setting.MAX_HEADER_LIST_SIZE, self._decoder.max_header_list_size),
                ]
            ),
        ]
        if limits.connection_window > h2_frames.DEFAULT_WINDOW:
            self._out.append(h2_frames.window_update(0, limits.connection_window - h2_frames.DEFAULT_WINDOW))
        else:
            self._window = h2_frames.DEFAULT_WINDOW

    # What the owner does.

    @property
    def open_streams(self) -> int:
        """Calls in flight."""
        return len(self._streams)

    def open(
        self,
        path: str,
        message: bytes,
        on_message: Callable[[bytes], None],
        on_end: Callable[[LinkError | None], None],
        *,
        metadata: Sequence[tuple[str, str]] = (),
        timeout: float | None = None,
        paused: bool = False,
    ) -> Stream:
        """Start a call. Only on a connection that is ready, not leaving, and has room."""
        assert self.ready
        assert not self.leaving
        fields: list[HeaderTuple] = grpc_answer.request_fields(
            scheme=self._scheme, authority=self._authority, path=path, user_agent=self._user_agent
        )
        # Deadlines and ids are worth no place in the peer's table, and credentials must never enter one.
        if timeout is not None:
            fields.append(NeverIndexedHeaderTuple("grpc-timeout", grpc_answer.encode_timeout(timeout)))
        fields += [NeverIndexedHeaderTuple(name, value) for name, value in metadata]
        block = self._encoder.encode(fields, huffman=False)
        stream = Stream(
            self._next_id, on_message, on_end, self._outflow.initial, PREFIX.pack(0, len(message)) + message
        )
        stream.paused = paused
        self._streams[stream.id] = stream
        self._next_id += 2
        if self._next_id > h2_frames.LARGEST_STREAM_ID:
            self.leaving = self.changed = True
        self._out += h2_frames.headers(stream.id, block, self._outflow.frame_size)
        self._outflow.submit(stream)
        return stream

    def pause(self, stream: Stream) -> None:
        """Grant this stream no more window; the connection's window goes on being granted."""
        stream.paused = True

    def resume(self, stream: Stream) -> None:
        """Grant this stream window again."""
        stream.paused = False
        if stream.unacked >= self._grant_at and not stream.ended:
            self._grant(stream)

    def reset(self, stream: Stream, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """End a call on our side without a word to its sink."""
        if not stream.ended:
            stream.forget()
            self._drop(stream, code)

    def hold(self) -> None:
        """Give out no request bodies until `release`: the transport is full."""
        self._outflow.held = True

    def release(self) -> None:
        """The transport takes bytes again."""
        self._outflow.held = False
        self._replies = 0

    def data_to_send(self) -> bytes:
        """Bytes for the socket; empty when there are none now. Call again after writing them."""
        out = self._out
        self._outflow.take(_SEND_BUDGET, out)
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def close(self, error: LinkErrorKind, text: str) -> None:
        """End the connection on our side: reset what is open, say GOAWAY."""
        for stream_id in self._streams:
            self._out.append(h2_frames.rst_stream(stream_id, ErrorCode.CANCEL))
        self._out.append(h2_frames.goaway(ErrorCode.NO_ERROR, ""))
        self._end_all(error, text)

    def lost(self, text: str) -> None:
        """The transport is gone."""
        self._end_all(LinkErrorKind.LOST, text)

    # What the peer does.

    def receive(self, data: bytes) -> None:
        """Take bytes from the socket, in any portions. Never raises for what the peer does."""
        if self.failed is not None:
            return
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position = 0
        try:
            if not self.ready and not self._greeted(data):
                self._rest = data
                return
            position = self._frames(data)
        except Violation as violation:
            self._fail(violation)
        if self.failed is None:
            self._rest = data[position:]
            if self._unacked * 2 >= self._window:
                self._out.append(h2_frames.window_update(0, self._unacked))
                self._unacked = 0

    def _frames(self, data: bytes) -> int:
        """Handle every whole frame of `data`; how far that is."""
        position = 0
        size = len(data)
        streams = self._streams
        unpack = _FAST.unpack_from
        fast_limit = self._fast_limit
        grant_at = self._grant_at
        while size - position >= h2_frames.HEAD_SIZE:
            if size - position >= _FAST.size:
                head, flags, stream_id, compressed, length = unpack(data, position)
                # One unpadded DATA frame that is exactly one uncompressed message, and not the last.
                if head == (length + 5) << 8 and not flags and not compressed and length + 5 <= fast_limit:
                    end = position + length + 14
                    stream = streams.get(stream_id)
                    if stream is not None and stream.clean and end <= size:
                        self._unacked += length + 5
                        stream.unacked += length + 5
                        if stream.unacked >= grant_at and not self._may_go_on(stream):
                            position = end
                            continue
                        try:
                            stream.on_message(data[position + 14 : end])
                        except Exception as error:
                            self._sink_failed(stream, error)
                        position = end
                        continue
            head, flags, stream_id = h2_frames.HEAD.unpack_from(data, position)
            length = head >> 8
            if length > h2_frames.DEFAULT_FRAME_SIZE:
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes; 16384 are allowed")
            end = position + h2_frames.HEAD_SIZE + length
            if end > size:
                break
            self._frame(
                head & 0xFF,
                flags,
                stream_id & h2_frames.LARGEST_STREAM_ID,
                data[position + h2_frames.HEAD_SIZE : end],
            )
            position = end
            if self.failed is not None:
                break
        if self._unacked > self._window:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
        return position

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block_of is not None and (kind != h2_frames.CONTINUATION or stream_id != self._block_of[0]):
            raise Violation(ErrorCode.PROTOCOL_ERROR, "another frame inside a header block")
        if kind == h2_frames.DATA:
            self._data(flags, stream_id, payload)
        elif kind == h2_frames.HEADERS:
            self._known(stream_id, kind)
            block = h2_frames.unpad(flags, payload, kind)
            self._block_of = (stream_id, bool(flags & h2_frames.END_STREAM))
            self._header_block(flags, block)
        elif kind == h2_frames.CONTINUATION:
            if self._block_of is None:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "CONTINUATION with nothing to continue")
            self._header_block(flags, payload)
        elif kind == h2_frames.RST_STREAM:
            self._rst_stream(stream_id, h2_frames.read_u32(payload, kind))
        elif kind == h2_frames.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == h2_frames.PING:
            if stream_id or len(payload) != 8:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "PING on a stream or not of 8 bytes")
            if not flags & h2_frames.ACK:
                self._reply(h2_frames.frame(h2_frames.PING, h2_frames.ACK, 0, payload))
        elif kind == h2_frames.GOAWAY:
            if stream_id:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
            self._goaway(*h2_frames.read_goaway(payload))
        elif kind == h2_frames.WINDOW_UPDATE:
            self._window_update(stream_id, h2_frames.read_u32(payload, kind) & h2_frames.LARGEST_WINDOW)
        elif kind == h2_frames.PUSH_PROMISE:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE although push is off")
        # PRIORITY and unknown kinds mean nothing to a client.

    def _known(self, stream_id: int, kind: int) -> Stream | None:
        """The open stream; None if it has ended. A stream that never was is a violation."""
        stream = self._streams.get(stream_id)
        if stream is None and (not stream_id & 1 or stream_id >= self._next_id):
            raise Violation(
                ErrorCode.PROTOCOL_ERROR, f"{h2_frames.KIND_NAMES[kind]} on stream {stream_id}, never opened"
            )
        return stream

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        stream = self._known(stream_id, h2_frames.DATA)
        self._unacked += len(payload)
        data = h2_frames.unpad(flags, payload, h2_frames.DATA)
        if stream is None:
            return
        if not stream.answered:
            self._refuse(stream, _protocol("DATA before the answer's header fields"))
            return
        last = bool(flags & h2_frames.END_STREAM)
        stream.unacked += len(payload)
        if stream.unacked >= self._grant_at and not self._may_go_on(stream, last=last):
            return
        try:
            error = stream.take(data, self._receive_limit)
        except Exception as raised:
            self._sink_failed(stream, raised)
            return
        if error is not None:
            self._refuse(stream, error)
        elif last and not stream.ended:
            self._finish(stream, _truncated("the answer ended without a gRPC status"))

    def _header_block(self, flags: int, part: bytes) -> None:
        assert self._block_of is not None
        self._block += part
        self._block_cost += h2_frames.HEAD_SIZE + len(part)
        if self._block_cost > _BLOCK_LIMIT:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if not flags & h2_frames.END_HEADERS:
            return
        (stream_id, last), self._block_of = self._block_of, None
        self._block_cost = 0
        block, self._block = bytes(self._block), bytearray()
        try:
            decoded = self._decoder.decode(block, raw=True)
        except (HPACKError, IndexError, ValueError) as error:
            raise Violation(ErrorCode.COMPRESSION_ERROR, f"a header block cannot be decoded: {error}") from error
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        try:
            fields = grpc_answer.collect(decoded)
        except ValueError as error:
            self._refuse(stream, _protocol(str(error)))
            return
        self._answer(stream, fields, last)

    def _answer(self, stream: Stream, fields: grpc_answer.Fields, last: bool) -> None:
        if last:
            verdict = grpc_answer.judge_end(fields, only_block=not stream.answered)
            if verdict is None and stream.partial:
                verdict = _truncated("the answer ended inside a message")
            self._finish(stream, verdict)
        elif stream.answered:
            self._refuse(stream, _protocol("header fields in the middle of the answer"))
        elif not grpc_answer.is_interim(fields):
            error = grpc_answer.judge_opening(fields)
            if error is not None:
                self._refuse(stream, error)
            else:
                stream.answered = stream.clean = True

    def _rst_stream(self, stream_id: int, code: int) -> None:
        stream = self._known(stream_id, h2_frames.RST_STREAM)
        if stream is None:
            return
        refused = code == ErrorCode.REFUSED_STREAM
        error = LinkError(
            LinkErrorKind.RESET,
            f"the peer reset the stream ({code_name(code)})",
            may_have_been_processed=stream.request_sent and not refused,
        )
        self._drop(stream, None)
        stream.end(error)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or (flags & h2_frames.ACK and payload):
            raise Violation(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream, or an acknowledgement with content")
        if flags & h2_frames.ACK:
            return
        for key, value in h2_frames.read_settings(payload):
            if key == Setting.HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, _HEADER_TABLE)
            elif key == Setting.ENABLE_PUSH and value:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "a server cannot enable push")
            elif key == Setting.MAX_CONCURRENT_STREAMS:
                self.max_streams = value
            elif key == Setting.INITIAL_WINDOW_SIZE:
                fits = value <= h2_frames.LARGEST_WINDOW
                if not fits or not self._outflow.change_initial(value, self._streams.values()):
                    raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "an initial window above 2^31-1")
            elif key == Setting.MAX_FRAME_SIZE:
                if not h2_frames.DEFAULT_FRAME_SIZE <= value <= h2_frames.LARGEST_FRAME_SIZE:
                    raise Violation(ErrorCode.PROTOCOL_ERROR, f"a maximum frame size of {value}")
                self._outflow.frame_size = value
        self._reply(h2_frames.frame(h2_frames.SETTINGS, h2_frames.ACK, 0))
        self.ready = self.changed = True

    def _goaway(self, last: int, code: int, text: str) -> None:
        self.leaving = self.changed = True
        self.goaway = (code, text)
        said = f"{code_name(code)}: {text}" if text else code_name(code)
        for stream in [stream for stream in self._streams.values() if stream.id > last]:
            self._drop(stream, None)
            stream.end(
                LinkError(
                    LinkErrorKind.GOAWAY,
                    f"the peer is leaving and did not take this call up ({said})",
                    may_have_been_processed=False,
                )
            )

    def _window_update(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            if not increment or not self._outflow.grant_connection(increment):
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, f"a window update of the connection by {increment}")
            return
        stream = self._known(stream_id, h2_frames.WINDOW_UPDATE)
        if stream is not None and (not increment or not self._outflow.grant(stream, increment)):
            code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
            self._refuse(stream, _protocol(f"a window update of the stream by {increment}"), code)

    # Common ends of the above.

    def _greeted(self, data: bytes) -> bool:
        """Whether the peer's first bytes are the SETTINGS of HTTP/2; False: too few to tell."""
        if data[:2] == b"\x15\x03" and len(data) >= 3:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "the port speaks TLS; use grpcs://")
        if data[:7] == b"HTTP/1.":
            raise Violation(ErrorCode.HTTP_1_1_REQUIRED, "this is an HTTP port (it answers HTTP/1), not gRPC")
        if len(data) < h2_frames.HEAD_SIZE:
            return False
        head, flags, stream_id = h2_frames.HEAD.unpack_from(data)
        if head & 0xFF != h2_frames.SETTINGS or flags & h2_frames.ACK or stream_id or head >> 8 > 16_384:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"the peer does not speak HTTP/2; it begins with {data[:16]!r}")
        return True

    def _may_go_on(self, stream: Stream, *, last: bool = False) -> bool:
        """Half of a stream's window is used: grant it again unless paused; False if the peer sent more than allowed."""
        if stream.unacked > self._stream_window:
            self._refuse(stream, _protocol("more DATA than the stream's window allows"), ErrorCode.FLOW_CONTROL_ERROR)
            return False
        if not stream.paused and not last:
            self._grant(stream)
        return True

    def _grant(self, stream: Stream) -> None:
        self._out.append(h2_frames.window_update(stream.id, stream.unacked))
        stream.unacked = 0

    def _reply(self, data: bytes) -> None:
        if self._outflow.held:
            self._replies += 1
            if self._replies > _REPLY_LIMIT:
                raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "a flood of PING or SETTINGS by a peer that does not read")
        self._out.append(data)

    def _sink_failed(self, stream: Stream, error: Exception) -> None:
        """A sink raised, which is a bug of ours: its call ends, the others go on."""
        self.sink_errors.append(error)
        self._refuse(
            stream,
            LinkError(
                LinkErrorKind.CANCELLED, f"the receiver of messages failed: {error!r}", may_have_been_processed=True
            ),
        )

    def _finish(self, stream: Stream, error: LinkError | None) -> None:
        """The peer ended its side. What we have not sent yet nobody wants."""
        self._drop(stream, None if stream.request_sent else ErrorCode.CANCEL)
        stream.end(error)

    def _refuse(self, stream: Stream, error: LinkError, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """End one call with an error of the peer's doing."""
        self._drop(stream, code)
        stream.end(error)

    def _drop(self, stream: Stream, code: ErrorCode | None) -> None:
        if self._streams.pop(stream.id, None) is not None:
            self.changed = True
            if code is not None:
                self._out.append(h2_frames.rst_stream(stream.id, code))

    def _fail(self, violation: Violation) -> None:
        self._out.append(h2_frames.goaway(violation.code, violation.text))
        what = violation.text if not self.ready else f"the peer broke HTTP/2 ({violation.code.name}): {violation.text}"
        self._end_all(LinkErrorKind.PROTOCOL, what)

    def _end_all(self, kind: LinkErrorKind, text: str) -> None:
        if self.failed is not None:
            return
        self.failed = LinkError(kind, text, may_have_been_processed=self.ready)
        self.changed = self.leaving = True
        streams = list(self._streams.values())
        self._streams.clear()
        self.cut = len(streams)
        for stream in streams:
            stream.end(LinkError(kind, text, may_have_been_processed=stream.request_sent))


def _protocol(text: str) -> LinkError:
    return LinkError(LinkErrorKind.PROTOCOL, text, may_have_been_processed=True)


def _truncated(text: str) -> LinkError:
    return LinkError(LinkErrorKind.TRUNCATED, text, may_have_been_processed=True)
