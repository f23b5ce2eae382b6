"""A scripted peer for the wire machine: bytes that a server may send, and what the machine sent, as frames."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hpack import Decoder, Encoder

from enginehouse.domain.link import LinkError
from enginehouse.wire import h2_frames as h2
from enginehouse.wire.grpc_h2 import Connection
from enginehouse.wire.h2_client import ConnectionLimits
from enginehouse.wire.h2_stream import Stream

OPENING = ((":status", "200"), ("content-type", "application/grpc"))
OK = (("grpc-status", "0"),)


class Recorder:
    """A sink that keeps all that it hears."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ends: list[LinkError | None] = []

    def on_message(self, message: bytes) -> None:
        assert not self.ends, "a message after the end"
        self.messages.append(message)

    def on_end(self, error: LinkError | None) -> None:
        assert not self.ends, "two ends"
        self.ends.append(error)

    @property
    def error(self) -> LinkError:
        (error,) = self.ends
        assert error is not None, "ended well"
        return error


@dataclass(frozen=True)
class Sent:
    """One frame from the machine."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def number(self) -> int:
        return int(struct.unpack(">I", self.payload)[0])


class Peer:
    """Server side of one machine: makes bytes, feeds them, reads what comes back."""

    def __init__(self, *, settings: tuple[tuple[int, int], ...] = (), greet: bool = True, **limits: int) -> None:
        self.machine = Connection("engine:1", limits=ConnectionLimits(**limits))
        self.encoder = Encoder()
        self.decoder = Decoder()
        self._received = b""
        self.preface = self.sent_raw()
        assert self.preface.startswith(h2.PREFACE)
        if greet:
            self.feed(h2.settings(settings))
            assert self.sent(h2.SETTINGS) == [Sent(h2.SETTINGS, h2.ACK, 0, b"")]

    def call(self, message: bytes = b"", **options: object) -> tuple[Recorder, Stream]:
        sink = Recorder()
        stream = self.machine.open("/s/M", message, sink.on_message, sink.on_end, **options)  # type: ignore[arg-type]
        return sink, stream

    def answered(self, message: bytes = b"", **options: object) -> tuple[Recorder, Stream]:
        """A call whose answer has begun; what the machine sent for it is dropped."""
        sink, stream = self.call(message, **options)
        self.feed(self.headers(stream.id, *OPENING))
        self.sent_raw()
        return sink, stream

    def feed(self, *data: bytes) -> None:
        self.machine.receive(b"".join(data))

    def headers(self, stream_id: int, *fields: tuple[str, str], end: bool = False) -> bytes:
        flags = h2.END_HEADERS | (h2.END_STREAM if end else 0)
        return h2.frame(h2.HEADERS, flags, stream_id, self.encoder.encode(fields))

    def sent_raw(self) -> bytes:
        data = b""
        while more := self.machine.data_to_send():
            data += more
        return data

    def sent(self, *kinds: int) -> list[Sent]:
        """Frames since last asked, of the given kinds only if any are given."""
        return [one for one in frames(self.sent_raw()) if not kinds or one.kind in kinds]


def frames(data: bytes) -> list[Sent]:
    found = []
    while data:
        head, flags, stream_id = h2.HEAD.unpack_from(data)
        end = 9 + (head >> 8)
        assert end <= len(data)
        found.append(Sent(head & 0xFF, flags, stream_id, data[9:end]))
        data = data[end:]
    return found


def message(body: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(body)) + body


def data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return h2.frame(h2.DATA, flags, stream_id, payload)


def padded(kind: int, flags: int, stream_id: int, payload: bytes, padding: int) -> bytes:
    return h2.frame(kind, flags | h2.PADDED, stream_id, bytes([padding]) + payload + bytes(padding))
