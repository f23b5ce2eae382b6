"""HTTP/2 frames as bytes: numbers, builders, and the small parsers of frame payloads (RFC 9113).

Knows no state of a connection; `grpc_h2` decides what a frame means.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
KIND_NAMES = (
    "DATA HEADERS PRIORITY RST_STREAM SETTINGS PUSH_PROMISE PING GOAWAY WINDOW_UPDATE CONTINUATION".split()  # noqa: SIM905
)

ACK = 0x1
END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_SIZE = 16_384
LARGEST_FRAME_SIZE = 16_777_215
LARGEST_WINDOW = 2**31 - 1
LARGEST_STREAM_ID = 2**31 - 1

HEAD = struct.Struct(">IBI")
"""Frame header: length and type together, flags, stream id."""
HEAD_SIZE = HEAD.size
_U32 = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_TWO_U32 = struct.Struct(">II")


class Setting(IntEnum):
    """Parameters of a SETTINGS frame that mean something to us."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Violation(Exception):
    """The peer broke a rule that ends the whole connection."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def code_name(code: int) -> str:
    """Name of an error code, also of one that nobody defined."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"code {code:#x}"


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values))


def window_update(stream_id: int, increment: int) -> bytes:
    """Grant `increment` bytes; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """End one stream."""
    return frame(RST_STREAM, 0, stream_id, _U32.pack(code))


def goaway(code: ErrorCode, text: str) -> bytes:
    """Leave. A client takes up no streams, so the last stream id is always 0."""
    return frame(GOAWAY, 0, 0, _TWO_U32.pack(0, code) + text.encode()[:200])


def headers(stream_id: int, block: bytes, frame_size: int) -> Iterator[bytes]:
    """HEADERS that keep the stream open, with as many CONTINUATIONs as the peer's frame size asks for."""
    kind = HEADERS
    while len(block) > frame_size:
        yield frame(kind, 0, stream_id, block[:frame_size])
        block = block[frame_size:]
        kind = CONTINUATION
    yield frame(kind, END_HEADERS, stream_id, block)


def unpad(flags: int, payload: bytes, kind: int) -> bytes:
    """Payload of DATA or HEADERS without its padding (and, for HEADERS, without its priority)."""
    end = len(payload)
    start = 0
    if flags & PADDED:
        if not payload:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"{KIND_NAMES[kind]} is padded but empty")
        start = 1
        end -= payload[0]
    if kind == HEADERS and flags & HAS_PRIORITY:
        start += 5
    if end < start:
        raise Violation(ErrorCode.PROTOCOL_ERROR, f"{KIND_NAMES[kind]} has more padding than payload")
    return payload[start:end]


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Parameters of a SETTINGS frame in order, those unknown to us included."""
    if len(payload) % _SETTING.size:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return _SETTING.iter_unpack(payload)


def read_u32(payload: bytes, kind: int) -> int:
    """The one number of a RST_STREAM or WINDOW_UPDATE frame."""
    if len(payload) != 4:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"{KIND_NAMES[kind]} of {len(payload)} bytes instead of 4")
    return int.from_bytes(payload, "big")


def read_goaway(payload: bytes) -> tuple[int, int, str]:
    """Last stream id, error code, debug text."""
    if len(payload) < 8:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    last, code = _TWO_U32.unpack_from(payload)
    return last & LARGEST_STREAM_ID, code, payload[8:208].decode("utf-8", "backslashreplace")


def is_greeting(data: bytes) -> bool:
    """Whether the peer's first bytes are the SETTINGS of HTTP/2; False: too few to tell. Others are named if known."""
    if len(data) >= 3 and data.startswith(b"\x15\x03"):  # a TLS alert
        raise Violation(ErrorCode.PROTOCOL_ERROR, "the port speaks TLS; use grpcs://")
    if data.startswith(b"HTTP/1."):
        raise Violation(ErrorCode.HTTP_1_1_REQUIRED, "this is an HTTP port (it answers HTTP/1), not gRPC")
    if len(data) < HEAD_SIZE:
        return False
    head, flags, stream_id = HEAD.unpack_from(data)
    if head & 0xFF != SETTINGS or flags & ACK or stream_id or head >> 8 > DEFAULT_FRAME_SIZE:
        raise Violation(ErrorCode.PROTOCOL_ERROR, f"the peer does not speak HTTP/2; it begins with {data[:9]!r}")
    return True
