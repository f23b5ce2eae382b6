"""One table from what can go wrong on the link to our errors.

Messages are made for clients: they never carry addresses or internals. Only a rejection repeats the engine's own words
(cut short), since the caller has to know what to change; the rest is on the error's `__cause__` for the log.
"""

from __future__ import annotations

from enginehouse.domain.errors import (
    AdapterNotLoaded,
    EngineBroken,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    ProbeFailed,
)
from enginehouse.domain.link import GrpcStatus, LinkError, LinkErrorKind

_LONGEST_TEXT = 300
_HTTP_HINT = "; if it is the engine's HTTP port, give its gRPC port"

_BY_STATUS: dict[GrpcStatus, type[EngineError]] = {
    GrpcStatus.CANCELLED: EngineFailed,  # an abort that we did not ask for
    GrpcStatus.UNKNOWN: EngineFailed,
    GrpcStatus.INVALID_ARGUMENT: EngineRejected,
    GrpcStatus.DEADLINE_EXCEEDED: EngineTimeout,
    GrpcStatus.NOT_FOUND: EngineRejected,
    GrpcStatus.ALREADY_EXISTS: EngineRejected,
    GrpcStatus.PERMISSION_DENIED: EngineUnavailable,  # our credentials, not the caller's
    GrpcStatus.RESOURCE_EXHAUSTED: EngineOverloaded,
    GrpcStatus.FAILED_PRECONDITION: EngineRejected,
    GrpcStatus.ABORTED: EngineFailed,
    GrpcStatus.OUT_OF_RANGE: EngineRejected,
    GrpcStatus.UNIMPLEMENTED: EngineBroken,  # it was probed, so it has the method
    GrpcStatus.INTERNAL: EngineFailed,
    GrpcStatus.UNAVAILABLE: EngineUnavailable,
    GrpcStatus.DATA_LOSS: EngineBroken,
    GrpcStatus.UNAUTHENTICATED: EngineUnavailable,
}

_BY_KIND: dict[LinkErrorKind, type[EngineError]] = {
    LinkErrorKind.CONNECT: EngineUnavailable,
    LinkErrorKind.LOST: EngineUnavailable,
    LinkErrorKind.GOAWAY: EngineUnavailable,
    LinkErrorKind.CLOSED: EngineUnavailable,
    LinkErrorKind.RESET: EngineBroken,
    LinkErrorKind.PROTOCOL: EngineBroken,
    LinkErrorKind.TRUNCATED: EngineBroken,
    LinkErrorKind.TOO_LARGE: EngineRejected,
    LinkErrorKind.DEADLINE: EngineTimeout,
    LinkErrorKind.CANCELLED: EngineBroken,  # not by us, or nobody would be told: its message could not be taken
}

_TEXTS: dict[type[EngineError], str] = {
    EngineUnavailable: "the engine is not available",
    EngineTimeout: "the engine took too long",
    EngineBroken: "the engine broke off or gave an answer that cannot be read",
    EngineOverloaded: "the engine takes no more requests for now",
    EngineFailed: "the engine failed this request",
}


def engine_error(error: LinkError) -> EngineError:
    """What a failed call means for the request."""
    kind = _kind(error)
    if kind is not EngineRejected:
        made = kind(_TEXTS[kind])
    elif error.kind is not LinkErrorKind.TOO_LARGE:
        made = rejected(error.text)
    elif error.may_have_been_processed:
        made = EngineRejected("the engine's answer is larger than this frontend takes in one piece")
    else:
        made = EngineRejected("the prompt is larger than the engine takes in one message")
    made.__cause__ = error
    return made


def _kind(error: LinkError) -> type[EngineError]:
    if error.kind is LinkErrorKind.STATUS:
        if error.status is GrpcStatus.RESOURCE_EXHAUSTED and "larger than max" in error.text:
            return EngineRejected  # gRPC's own servers refuse long messages with this status
        return _BY_STATUS.get(error.status or GrpcStatus.UNKNOWN, EngineFailed)
    if error.kind is LinkErrorKind.RESET and not error.may_have_been_processed:
        return EngineUnavailable
    return _BY_KIND[error.kind]


def not_loaded(error: LinkError) -> AdapterNotLoaded:
    """The engine said that it does not have the adapter; it had when it was asked last."""
    made = AdapterNotLoaded("the adapter is not loaded any more", param="model")
    made.__cause__ = error
    return made


def rejected(text: str) -> EngineRejected:
    """A rejection in the engine's words."""
    return EngineRejected(
        f"the engine rejected the request: {short(text)}" if text else "the engine rejected the request"
    )


def short(text: str) -> str:
    """One line of bounded length, for texts that others wrote."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else line[: _LONGEST_TEXT - 1] + "…"


def probe_failed(error: LinkError, asked: str, timeout: float) -> ProbeFailed:
    """Why probing stopped, for operators. asked: the call that failed."""
    match error.kind:
        case LinkErrorKind.DEADLINE:
            made = ProbeFailed(
                f"connected, but no answer to {asked} within {timeout:g} s"
                " (vLLM's native port does so until its engine is ready)"
            )
        case LinkErrorKind.CONNECT:
            made = ProbeFailed(f"cannot connect: {short(error.text)}{_HTTP_HINT if 'HTTP/2' in error.text else ''}")
        case LinkErrorKind.PROTOCOL | LinkErrorKind.TRUNCATED:
            made = ProbeFailed(
                f"this port does not speak gRPC as asked ({short(error.text)});"
                " give the engine's gRPC port, not its HTTP port, and grpcs:// if it wants TLS",
                permanent=True,
            )
        case LinkErrorKind.STATUS:
            status = error.status.name if error.status is not None else "?"
            made = ProbeFailed(f"{asked} answered {status}: {short(error.text)}")
        case _:
            made = ProbeFailed(f"{asked} failed: {error.kind} ({short(error.text)})")
    made.__cause__ = error
    return made
