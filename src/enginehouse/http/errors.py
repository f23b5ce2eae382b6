"""Our errors as HTTP answers: OpenAI's nested envelope, always."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from enginehouse.core.openai.answers import error_body
from enginehouse.domain.errors import EnginehouseError, MethodNotAllowed, NotFound
from enginehouse.http.exchange import Headers, Send, respond


class InternalError(EnginehouseError):
    """A fault of ours. Says nothing of its insides."""

    default_code = "internal_error"


def internal_error() -> InternalError:
    """What a client is told of a fault of ours."""
    return InternalError("the frontend failed while handling this request; its log says why")


async def respond_error(send: Send, error: EnginehouseError, headers: Headers) -> None:
    """Answer with this error; nothing may have been sent before."""
    extra: Headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        extra.append((b"retry-after", str(error.retry_after).encode()))
    await respond(send, error.status, error_body(error), [*extra, *headers])


async def http_exception(request: Request, error: Exception) -> Response:
    """What the router itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    known: EnginehouseError
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        known = MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}; allowed: {allowed}")
    else:
        known = NotFound(f"no such path: {request.url.path}")
    return Response(error_body(known), known.status, headers=dict(error.headers or {}), media_type="application/json")


async def unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours outside the two completion endpoints."""
    return Response(error_body(internal_error()), 500, media_type="application/json")


HANDLERS: dict[Any, Any] = {HTTPException: http_exception, Exception: unexpected}
