"""Which bytes of which request may be sent now: the peer's windows, and turns between the calls.

Header and control frames do not pass here: no window holds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from enginehouse.wire.h2_frames import (
    DATA,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_STREAM,
    HEAD,
    LARGEST_WINDOW,
)
from enginehouse.wire.h2_stream import Stream


class Outflow:
    """Request bodies that wait, and the windows that they wait for."""

    __slots__ = ("_turns", "frame_size", "held", "initial", "window")

    def __init__(self) -> None:
        self.window = DEFAULT_WINDOW
        self.initial = DEFAULT_WINDOW
        """Window that the peer gives to a new stream."""
        self.frame_size = DEFAULT_FRAME_SIZE
        self.held = False
        """The transport has enough to write for now."""
        self._turns: deque[Stream] = deque()

    def submit(self, stream: Stream) -> None:
        """Let a stream take part while it has something to send and a window for it."""
        if stream.body is not None and stream.send_window > 0 and not stream.queued and not stream.ended:
            stream.queued = True
            self._turns.append(stream)

    def grant(self, stream: Stream, increment: int) -> bool:
        """Take a WINDOW_UPDATE of a stream; False if the window grew beyond what HTTP/2 allows."""
        stream.send_window += increment
        self.submit(stream)
        return stream.send_window <= LARGEST_WINDOW

    def grant_connection(self, increment: int) -> bool:
        """Take a WINDOW_UPDATE of the connection; False as above."""
        self.window += increment
        return self.window <= LARGEST_WINDOW

    def change_initial(self, initial: int, streams: Iterable[Stream]) -> bool:
        """Apply a new initial window to open streams too; a window may go below zero. False as above."""
        difference = initial - self.initial
        self.initial = initial
        fit = True
        for stream in streams:
            fit &= self.grant(stream, difference)
        return fit

    def take(self, budget: int, out: list[bytes]) -> None:
        """Append DATA frames of about `budget` bytes, one frame for each stream in turn."""
        turns = self._turns
        while turns and budget > 0 and self.window > 0 and not self.held:
            stream = turns.popleft()
            stream.queued = False
            body = stream.body
            if stream.ended or body is None or stream.send_window <= 0:
                continue
            left = len(body) - stream.body_sent
            size = min(left, self.window, stream.send_window, self.frame_size)
            chunk = body[stream.body_sent : stream.body_sent + size]
            out.append(HEAD.pack(size << 8 | DATA, END_STREAM if size == left else 0, stream.id))
            out.append(bytes(chunk))
            self.window -= size
            stream.send_window -= size
            budget -= size
            if size == left:
                stream.body = None
            else:
                stream.body_sent += size
                self.submit(stream)
