"""The sink of a unary call: exactly one message, then OK."""

from __future__ import annotations

import asyncio

from enginehouse.domain.link import LinkError, LinkErrorKind
from enginehouse.ports import Call


class UnaryAnswer:
    """Turns messages and end into one result."""

    __slots__ = ("_message", "call", "future")

    def __init__(self, future: asyncio.Future[bytes]) -> None:
        self.future = future
        self.call: Call | None = None
        self._message: bytes | None = None

    def on_message(self, message: bytes) -> None:
        """Keep the first; a second is an error."""
        if self._message is None:
            self._message = message
        elif not self.future.done():
            self._fail("more than one message in the answer of a unary call")
            if self.call is not None:
                self.call.cancel()

    def on_end(self, error: LinkError | None) -> None:
        """Give the result."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        elif self._message is None:
            self._fail("status OK without a message in the answer of a unary call")
        else:
            self.future.set_result(self._message)

    def _fail(self, text: str) -> None:
        self.future.set_exception(LinkError(LinkErrorKind.PROTOCOL, text, may_have_been_processed=True))
