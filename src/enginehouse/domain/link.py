"""How a call to an engine can fail below the engine's own protocol."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class GrpcStatus(IntEnum):
    """gRPC status codes (grpc.io, statuscodes)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class LinkErrorKind(StrEnum):
    """What went wrong on the way to an engine and back."""

    CONNECT = "connect"
    """No connection: refused, unreachable, TLS failed, or no answer in time. Never processed."""
    LOST = "connection-lost"
    """The connection broke while the call was open."""
    GOAWAY = "goaway"
    """The peer is leaving and says that it did not take this call up. Never processed."""
    RESET = "stream-reset"
    """The peer reset this stream (REFUSED_STREAM: never processed)."""
    PROTOCOL = "protocol"
    """The peer broke HTTP/2 or gRPC rules, or is something else altogether."""
    TOO_LARGE = "message-too-large"
    """A message is above the limit in force."""
    TRUNCATED = "truncated"
    """The stream ended inside a message, or without a status."""
    DEADLINE = "deadline"
    """Our deadline for the call passed."""
    CANCELLED = "cancelled"
    """We cancelled the call."""
    STATUS = "status"
    """The peer answered with a gRPC status other than OK."""
    CLOSED = "closed"
    """The link was closed on our side. A call that still waited for a connection was never processed."""


class LinkError(Exception):
    """One failed call, or one failed link.

    kind: what went wrong; text: the reason for people; may_have_been_processed: False only when the engine certainly
    never took the call up, so that sending it elsewhere repeats nothing; status: the gRPC status, with STATUS only.
    """

    def __init__(
        self, kind: LinkErrorKind, text: str, *, may_have_been_processed: bool, status: GrpcStatus | None = None
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.may_have_been_processed = may_have_been_processed
        self.status = status

    def __repr__(self) -> str:
        status = f", status={self.status.name}" if self.status is not None else ""
        return f"LinkError({self.kind}, {self.text!r}, may_have_been_processed={self.may_have_been_processed}{status})"
