"""The HTTP/2 client for gRPC unary and server-streaming calls: bytes in, messages out, with no I/O and no clock.

`receive` parses what the socket gave and calls the sinks from inside; `data_to_send` gives what the socket must take.
The owner opens a call only after `ready`, and asks `data_to_send` after everything that it calls. A peer that breaks
HTTP/2 ends the connection: `failed` says why and every open call ends with it; a peer that breaks gRPC ends one call.

This is the per-token path: one DATA frame with one whole message costs one unpack, one lookup, one slice and one call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from enginehouse.domain.link import LinkError, LinkErrorKind
from enginehouse.wire import grpc_answer, h2_frames
from enginehouse.wire.grpc_request import RequestBlocks
from enginehouse.wire.h2_client import ConnectionLimits, Http2Client, protocol_error
from enginehouse.wire.h2_frames import ErrorCode, Violation
from enginehouse.wire.h2_stream import PREFIX, Stream

_FAST = struct.Struct(">IBIBI")
"""Header of a DATA frame and of the gRPC message in it."""


class Connection(Http2Client):
    """One HTTP/2 connection that carries gRPC calls."""

    def __init__(
        self, authority: str, *, scheme: str = "http", user_agent: str = "grpc-enginehouse", limits: ConnectionLimits
    ) -> None:
        super().__init__(limits)
        self._requests = RequestBlocks(scheme=scheme, authority=authority, user_agent=user_agent)
        self._receive_limit = limits.receive_limit
        self._fast_limit = min(h2_frames.DEFAULT_FRAME_SIZE, limits.receive_limit + PREFIX.size)
        self._rest = b""
        self.sink_errors: list[Exception] = []
        """What sinks raised although they must not; the owner reports and clears it."""

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
        on_answered: Callable[[], None] | None = None,
    ) -> Stream:
        """Start a call. Only on a connection that is ready, not leaving, and has room."""
        assert self.ready
        assert not self.leaving
        block = self._requests.block(path, metadata, timeout)
        stream = Stream(
            self._next_id, on_message, on_end, self._outflow.initial, PREFIX.pack(0, len(message)) + message
        )
        stream.paused = paused
        stream.on_answered = on_answered
        self._streams[stream.id] = stream
        self._next_id += 2
        if self._next_id > h2_frames.LARGEST_STREAM_ID:
            self.leaving = self.changed = True
        self._out += h2_frames.headers(stream.id, block, self._outflow.frame_size)
        self._outflow.submit(stream)
        return stream

    def receive(self, data: bytes) -> None:
        """Take bytes from the socket, in any portions. Never raises for what the peer does."""
        if self.failed is not None:
            return
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position = 0
        try:
            if not self.ready and not h2_frames.is_greeting(data):
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
        fast_limit = -1 if self._blocks.pending else self._fast_limit
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
            fast_limit = -1 if self._blocks.pending else self._fast_limit
        if self._unacked > self._window:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
        return position

    def _content(self, stream: Stream, data: bytes, last: bool) -> None:
        if not stream.answered:
            self._refuse(stream, protocol_error("DATA before the answer's header fields"))
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

    def _answer(self, stream: Stream, decoded: list[tuple[bytes, bytes]], last: bool) -> None:
        try:
            fields = grpc_answer.collect(decoded)
        except ValueError as error:
            self._refuse(stream, protocol_error(str(error)))
            return
        if last:
            verdict = grpc_answer.judge_end(fields, only_block=not stream.answered)
            if verdict is None and stream.partial:
                verdict = _truncated("the answer ended inside a message")
            self._finish(stream, verdict)
        elif stream.answered:
            self._refuse(stream, protocol_error("header fields in the middle of the answer"))
        elif not grpc_answer.is_interim(fields):
            refusal = grpc_answer.judge_opening(fields)
            if refusal is not None:
                self._refuse(stream, refusal)
            else:
                stream.answered = stream.clean = True
                if stream.on_answered is not None:
                    try:
                        stream.on_answered()
                    except Exception as error:
                        self._sink_failed(stream, error)

    def _sink_failed(self, stream: Stream, error: Exception) -> None:
        """A sink raised, which is a bug of ours: its call ends, the others go on."""
        self.sink_errors.append(error)
        self._refuse(
            stream,
            LinkError(
                LinkErrorKind.CANCELLED, f"the receiver of messages failed: {error!r}", may_have_been_processed=True
            ),
        )


def _truncated(text: str) -> LinkError:
    return LinkError(LinkErrorKind.TRUNCATED, text, may_have_been_processed=True)
