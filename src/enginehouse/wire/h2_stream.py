"""One call as the wire sees it: what was received of its answer, what is unsent of its request.

Cuts the bytes of DATA frames into gRPC messages. Windows are counted here and granted by `grpc_h2`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from enginehouse.domain.link import LinkError, LinkErrorKind

PREFIX = struct.Struct(">BI")
"""Before each message: compressed flag, length."""
_NOTHING = memoryview(b"")


def _nobody(_: bytes) -> None:
    """Take messages of a call that has ended."""


class Stream:
    """State of one open call. Made and changed by the connection only."""

    __slots__ = (
        "answered",
        "body",
        "body_sent",
        "clean",
        "ended",
        "id",
        "need",
        "on_answered",
        "on_end",
        "on_message",
        "partial",
        "paused",
        "queued",
        "send_window",
        "unacked",
    )

    def __init__(
        self,
        stream_id: int,
        on_message: Callable[[bytes], None],
        on_end: Callable[[LinkError | None], None],
        send_window: int,
        body: bytes,
    ) -> None:
        self.id = stream_id
        self.on_message = on_message
        self.on_end = on_end
        self.on_answered: Callable[[], None] | None = None
        self.answered = False
        """The first header block of the answer has come."""
        self.clean = False
        """Answered, and the next byte of DATA begins a message: the hot path's one condition."""
        self.unacked = 0
        """Bytes received since window was last granted."""
        self.paused = False
        self.partial = bytearray()
        """Received bytes of a message that is not complete."""
        self.need = PREFIX.size
        """How many bytes `partial` must have before it can mean anything."""
        self.send_window = send_window
        self.body: memoryview | None = memoryview(body)
        """Request bytes, until all are handed over; None: the peer can have the whole request."""
        self.body_sent = 0
        self.queued = False
        self.ended = False

    @property
    def request_sent(self) -> bool:
        """Whether the peer can have the whole request; without it no handler has a message to work on."""
        return self.body is None

    def end(self, error: LinkError | None) -> None:
        """Tell the owner, and let go of everything."""
        if self.ended:
            return
        on_end = self.on_end
        self.forget()
        on_end(error)

    def forget(self) -> None:
        """End without telling anybody."""
        self.ended = True
        self.clean = False
        self.on_message = _nobody
        self.on_end = _forgotten
        self.on_answered = None
        self.partial = bytearray()
        if self.body is not None:
            self.body = _NOTHING  # never sent, and megabytes perhaps; the outflow may hold the stream for long

    def take(self, data: bytes, limit: int) -> LinkError | None:
        """Take DATA in any portion and deliver the messages that it completes. An error is the caller's to end with."""
        source: bytes | bytearray = data
        if self.partial:
            source = self.partial
            source += data
        size = len(source)
        if size < self.need:
            self.partial = bytearray(source) if source is data else self.partial
            self.clean = not size
            return None
        start = 0
        need = PREFIX.size
        while size - start >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(source, start)
            if compressed:
                return LinkError(
                    LinkErrorKind.PROTOCOL,
                    f"a message has compressed flag {compressed}, but no compression was offered",
                    may_have_been_processed=True,
                )
            if length > limit:
                return LinkError(
                    LinkErrorKind.TOO_LARGE,
                    f"the peer sends a message of {length} bytes; the limit is {limit}",
                    may_have_been_processed=True,
                )
            end = start + PREFIX.size + length
            if end > size:
                need = end - start
                break
            with memoryview(source) as view:
                message = bytes(view[start + PREFIX.size : end])
            start = end
            self.on_message(message)
            if self.ended:
                return None
        self.need = need
        self.partial = bytearray(source[start:]) if start or source is data else self.partial
        self.clean = start == size
        return None


def _forgotten(_: LinkError | None) -> None:
    """Nobody is told of a second end."""
