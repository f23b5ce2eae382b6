"""The HTTP/2 side of a connection to an engine: frames, windows, settings, and how streams and connections end.

What the bytes in the streams mean is left to `grpc_h2`, which is built on this. A peer that breaks HTTP/2 ends the
connection: `failed` says why and every open call ends with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from enginehouse.domain.link import LinkError, LinkErrorKind
from enginehouse.wire import h2_frames
from enginehouse.wire.h2_frames import ErrorCode, Setting, Violation, code_name
from enginehouse.wire.h2_header_blocks import HeaderBlocks
from enginehouse.wire.h2_outflow import Outflow
from enginehouse.wire.h2_stream import Stream

_SEND_BUDGET = 256 * 1024
"""Request bytes given out at once: enough to keep a socket busy, little enough for other calls to get between."""
_REPLY_LIMIT = 1000
"""Answers to PING and SETTINGS that may wait for a peer that sends them but does not read."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection allows its peer. Sizes in bytes."""

    stream_window: int = 64 * 1024
    connection_window: int = 16 * 1024 * 1024
    receive_limit: int = 256 * 1024 * 1024


class Http2Client:
    """One HTTP/2 connection, client side. Its owner acts through `grpc_h2.Connection`."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._window = limits.connection_window
        self._stream_window = limits.stream_window
        self._grant_at = max(1, limits.stream_window // 2)
        self._unacked = 0
        self._streams: dict[int, Stream] = {}
        self._next_id = 1
        self._blocks = HeaderBlocks()
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
        self._out = [
            h2_frames.PREFACE,
            h2_frames.settings(
                [
                    (Setting.ENABLE_PUSH, 0),
                    (Setting.INITIAL_WINDOW_SIZE, limits.stream_window),
                    (Setting.MAX_HEADER_LIST_SIZE, self._blocks.largest_list),
                ]
            ),
        ]
        if limits.connection_window > h2_frames.DEFAULT_WINDOW:
            self._out.append(h2_frames.window_update(0, limits.connection_window - h2_frames.DEFAULT_WINDOW))
        else:
            self._window = h2_frames.DEFAULT_WINDOW

    @property
    def open_streams(self) -> int:
        """Calls in flight."""
        return len(self._streams)

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
        if self.failed is not None:
            return
        for stream_id in self._streams:
            self._out.append(h2_frames.rst_stream(stream_id, ErrorCode.CANCEL))
        self._out.append(h2_frames.goaway(ErrorCode.NO_ERROR, ""))
        self._end_all(error, text)

    def lost(self, text: str) -> None:
        """The transport is gone."""
        self._end_all(LinkErrorKind.LOST, text)

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self._blocks.check(kind, stream_id)
        if kind == h2_frames.DATA:
            self._data(flags, stream_id, payload)
        elif kind == h2_frames.HEADERS:
            self._known(stream_id, kind)
            self._blocks.begin(stream_id, flags)
            self._header_block(flags, h2_frames.unpad(flags, payload, kind))
        elif kind == h2_frames.CONTINUATION:
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
        last = bool(flags & h2_frames.END_STREAM)
        stream.unacked += len(payload)
        if stream.unacked >= self._grant_at and not self._may_go_on(stream, last=last):
            return
        self._content(stream, data, last)

    def _header_block(self, flags: int, part: bytes) -> None:
        whole = self._blocks.add(flags, part)
        if whole is None:
            return
        stream_id, last, decoded = whole
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        self._answer(stream, decoded, last)

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
            if key == Setting.ENABLE_PUSH and value:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "a server cannot enable push")
            if key == Setting.MAX_CONCURRENT_STREAMS:
                self.max_streams = value
            elif key == Setting.INITIAL_WINDOW_SIZE:
                fits = value <= h2_frames.LARGEST_WINDOW
                if not fits or not self._outflow.change_initial(value, self._streams.values()):
                    raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "an initial window above 2^31-1")
            elif key == Setting.MAX_FRAME_SIZE:
                if not h2_frames.DEFAULT_FRAME_SIZE <= value <= h2_frames.LARGEST_FRAME_SIZE:
                    raise Violation(ErrorCode.PROTOCOL_ERROR, f"a maximum frame size of {value}")
                self._outflow.frame_size = value
            # A limit of the header table is kept whatever it is: `grpc_request` uses none.
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
            self._refuse(stream, protocol_error(f"a window update of the stream by {increment}"), code)

    def _may_go_on(self, stream: Stream, *, last: bool = False) -> bool:
        """Half of a stream's window is used: grant it again unless paused; False if the peer sent more than allowed."""
        if stream.unacked > self._stream_window:
            self._refuse(
                stream, protocol_error("more DATA than the stream's window allows"), ErrorCode.FLOW_CONTROL_ERROR
            )
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

    def _content(self, stream: Stream, data: bytes, last: bool) -> None:
        """Take DATA of an open stream, its padding gone and its windows counted."""
        raise NotImplementedError

    def _answer(self, stream: Stream, decoded: list[tuple[bytes, bytes]], last: bool) -> None:
        """Take a header block of an open stream."""
        raise NotImplementedError


def protocol_error(text: str) -> LinkError:
    """The peer broke a rule within one stream."""
    return LinkError(LinkErrorKind.PROTOCOL, text, may_have_been_processed=True)
