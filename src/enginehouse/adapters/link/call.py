"""One call of a link: waiting for a connection, then open on it, then ended; never twice."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from enginehouse.domain.link import LinkError, LinkErrorKind
from enginehouse.ports import MessageSink

if TYPE_CHECKING:
    from enginehouse.adapters.link.connection import LinkConnection
    from enginehouse.wire.h2_stream import Stream


class LinkCall:
    """`ports.Call`. Messages go from the wire to the sink directly; only the end passes here."""

    __slots__ = (
        "_connection",
        "_deadline",
        "_leave_queue",
        "_loop",
        "_message",
        "_metadata",
        "_on_answered",
        "_path",
        "_paused",
        "_sink",
        "_stream",
        "_timeout",
        "_timer",
    )

    def __init__(
        self,
        loop: AbstractEventLoop,
        path: str,
        message: bytes,
        sink: MessageSink,
        metadata: Sequence[tuple[str, str]],
        timeout: float | None,
        leave_queue: Callable[[LinkCall], None],
        on_answered: Callable[[], None] | None,
    ) -> None:
        self._loop = loop
        self._path = path
        self._message = message
        self._sink: MessageSink | None = sink
        self._metadata = metadata
        self._timeout = timeout
        self._leave_queue = leave_queue
        self._on_answered = on_answered
        self._paused = False
        self._connection: LinkConnection | None = None
        self._stream: Stream | None = None
        self._deadline = 0.0
        self._timer: TimerHandle | None = None
        if timeout is not None:
            self._deadline = loop.time() + timeout
            self._timer = loop.call_later(timeout, self._expire)

    @property
    def ended(self) -> bool:
        """Whether the sink has heard its last."""
        return self._sink is None

    def pause(self) -> None:
        """Grant no more window; before the call is open this is remembered."""
        self._paused = True
        if self._connection is not None and self._stream is not None:
            self._connection.machine.pause(self._stream)

    def resume(self) -> None:
        """Grant window again."""
        self._paused = False
        if self._connection is not None and self._stream is not None:
            self._connection.machine.resume(self._stream)
            self._connection.flush()

    def cancel(self) -> None:
        """Reset the stream; the sink hears nothing more."""
        if self._sink is not None:
            self._withdraw()
            self._let_go()

    def open_on(self, connection: LinkConnection) -> None:
        """Start on a connection that has room. The caller flushes."""
        left = None if self._timeout is None else max(0.001, self._deadline - self._loop.time())
        assert self._sink is not None
        self._connection = connection
        message, self._message = self._message, b""
        self._stream = connection.machine.open(
            self._path,
            message,
            self._sink.on_message,
            self.end,
            metadata=self._metadata,
            timeout=left,
            paused=self._paused,
            on_answered=self._on_answered,
        )

    def end(self, error: LinkError | None) -> None:
        """Tell the sink, once."""
        sink = self._sink
        if sink is None:
            return
        self._let_go()
        try:
            sink.on_end(error)
        except Exception as raised:
            self._loop.call_exception_handler({"message": "on_end of a message sink raised", "exception": raised})

    def _expire(self) -> None:
        sent = self._stream is not None and self._stream.request_sent
        self._withdraw()
        self.end(
            LinkError(
                LinkErrorKind.DEADLINE,
                f"no complete answer within {self._timeout:g} s",
                may_have_been_processed=sent,
            )
        )

    def _withdraw(self) -> None:
        """Leave the queue, or reset the stream."""
        connection, stream = self._connection, self._stream
        if connection is None or stream is None:
            self._leave_queue(self)
        elif not stream.ended:
            connection.machine.reset(stream)
            connection.flush()

    def _let_go(self) -> None:
        self._sink = self._on_answered = None
        self._connection = None
        self._stream = None
        self._message = b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
