"""How a front is put on a grpcio server: raw bytes in and out, and the failures that all fronts share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc

from enginehouse.mock.engine import Engine
from enginehouse.mock.settings import Faults

Context = Any
"""grpc.aio.ServicerContext; grpcio has no types."""

UnaryHandler = Callable[[bytes, Context], Awaitable[Any]]
"""Takes the request's bytes, returns a protobuf message."""
StreamHandler = Callable[[bytes, Context], Awaitable[None]]
"""Takes the request's bytes, writes bytes to the context."""
Services = Mapping[str, Mapping[str, UnaryHandler | StreamHandler]]
"""Full service name to method name to handler."""


class Refused(Exception):
    """A call ends with this status and text."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Front(Protocol):
    """One contract over one engine."""

    @property
    def options(self) -> Sequence[tuple[str, int]]:
        """grpcio server options that follow the real server's limits."""

    @property
    def streaming(self) -> frozenset[str]:
        """Names of the streaming methods."""

    def services(self) -> Services:
        """What it answers."""


def generic_handlers(front: Front) -> tuple[Any, ...]:
    """What a grpc.aio server is given to serve a front."""
    return tuple(
        grpc.method_handlers_generic_handler(
            service,
            {
                name: (
                    grpc.unary_stream_rpc_method_handler(_guarded(handler))
                    if name in front.streaming
                    else grpc.unary_unary_rpc_method_handler(_guarded(handler), response_serializer=_serialize)
                )
                for name, handler in methods.items()
            },
        )
        for service, methods in front.services().items()
    )


def _serialize(message: Any) -> Any:
    return message.SerializeToString()


def _guarded(handler: Callable[[bytes, Context], Awaitable[Any]]) -> Callable[[bytes, Context], Awaitable[Any]]:
    async def call(request: bytes, context: Context) -> Any:
        try:
            return await handler(request, context)
        except Refused as refusal:
            await context.abort(refusal.code, refusal.text)

    return call


def refuse_if_told(faults: Faults) -> None:
    """The `refuse` fault: every new request ends with the status it names."""
    if faults.refuse:
        raise Refused(grpc.StatusCode[faults.refuse], "injected refusal")


ADMISSION: dict[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""vLLM's translation of its admission refusals."""


def check_rank(engine: Engine, rank: int | None, refusal: Callable[[int], Refused]) -> int | None:
    """The rank a request names, if there is such a one."""
    if rank is not None and not 0 <= rank < len(engine.simulator.ranks):
        raise refusal(rank)
    return rank
