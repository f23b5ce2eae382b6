"""Calls with a deadline, protobuf in and out: the few shapes that probing and asking an engine need.

Every call ends by its deadline, because an engine may accept a connection long before it answers. Failures are
LinkErrors; an answer that is not of the expected message counts as a broken protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from enginehouse.domain.link import GrpcStatus, LinkError, LinkErrorKind
from enginehouse.ports import Link

M = TypeVar("M", bound=Message)


async def ask(
    link: Link,
    path: str,
    request: Message,
    answer: type[M],
    *,
    timeout: float,
    metadata: Sequence[tuple[str, str]] = (),
) -> M:
    """One message out, one back."""
    return parse(answer, await link.unary(path, request.SerializeToString(), timeout=timeout, metadata=metadata))


def parse(answer: type[M], message: bytes) -> M:
    """Read one message; LinkError where it is something else."""
    try:
        return answer.FromString(message)
    except DecodeError:
        raise LinkError(
            LinkErrorKind.PROTOCOL, f"what came is not a {answer.DESCRIPTOR.full_name}", may_have_been_processed=True
        ) from None


async def implemented(link: Link, path: str, request: bytes, *, timeout: float) -> bool:
    """Is there such a unary method? Whatever else it answers, only UNIMPLEMENTED says no."""
    try:
        await link.unary(path, request, timeout=timeout)
    except LinkError as error:
        if error.status is None:
            raise
        return error.status is not GrpcStatus.UNIMPLEMENTED
    return True


class _Gather:
    """Sink of a short stream: collects messages until enough came, the stream ended, or they are too many bytes."""

    def __init__(self, *, most: int, limit: int) -> None:
        self.messages: list[bytes] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._most = most
        self._room = limit

    def on_message(self, message: bytes) -> None:
        if self.done.done():
            return
        self._room -= len(message)
        if self._room < 0:
            self.done.set_exception(
                LinkError(LinkErrorKind.TOO_LARGE, "more bytes came than allowed", may_have_been_processed=True)
            )
            return
        self.messages.append(message)
        if len(self.messages) == self._most:
            self.done.set_result(None)

    def on_end(self, error: LinkError | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


async def gather(
    link: Link, path: str, request: Message, answer: type[M], *, timeout: float, limit: int, most: int = 0
) -> list[M]:
    """All messages of a stream that ends by itself, or the first `most` of one that does not.

    limit: bytes of all messages together; beyond it the call is cancelled and LinkError TOO_LARGE raised.
    """
    sink = _Gather(most=most, limit=limit)
    call = link.stream(path, request.SerializeToString(), sink, timeout=timeout)
    try:
        await sink.done
    finally:
        call.cancel()
    return [parse(answer, message) for message in sink.messages]
