"""Questions whose answers only refine what an engine says of itself: however they fail, the engine may serve.

They have a short deadline, so that one call that hangs takes neither probe nor check down with it. Where no answer
comes the last one stands, or the engine would seem to be another with each delay, until the connection has been lost.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from enginehouse.adapters.engines.calls import ask, gather
from enginehouse.domain.link import GrpcStatus, LinkError
from enginehouse.ports import Link

M = TypeVar("M", bound=Message)

_ABSENT = (GrpcStatus.UNIMPLEMENTED, GrpcStatus.FAILED_PRECONDITION)
_LIMIT = 16 * 1024 * 1024


class Extras:
    """One engine's optional answers."""

    def __init__(self, link: Link, timeout: float) -> None:
        self._link = link
        self._timeout = timeout
        self._last: dict[str, Message] = {}
        link.on_lost(self._forget)

    async def ask(self, path: str, request: Message, answer: type[M]) -> M | None:
        """What it answers, or did last; None where this release, or this way of running it, has no such call."""
        try:
            found = await ask(self._link, path, request, answer, timeout=self._timeout)
        except LinkError as error:
            return self._instead(path, error, answer)
        self._last[path] = found
        return found

    async def first(self, path: str, request: Message, answer: type[M]) -> M | None:
        """The same of a stream's first message. The stream would stay open for ever, so it is dropped at once."""
        try:
            found = await gather(self._link, path, request, answer, timeout=self._timeout, limit=_LIMIT, most=1)
        except LinkError as error:
            return self._instead(path, error, answer)
        if not found:
            return None
        self._last[path] = found[0]
        return found[0]

    def _instead(self, path: str, error: LinkError, answer: type[M]) -> M | None:
        if error.status in _ABSENT:
            self._last.pop(path, None)
        last = self._last.get(path)
        return last if isinstance(last, answer) else None

    def _forget(self, _: LinkError) -> None:
        """Another process may answer from here on."""
        self._last.clear()
