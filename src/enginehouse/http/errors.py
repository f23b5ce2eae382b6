"""Our errors as HTTP answers: in OpenAI's nested envelope, but for APIs that have another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from enginehouse.core.anthropic.answer import error_answer
from enginehouse.core.openai.answers import error_body
from enginehouse.domain.errors import EnginehouseError, MethodNotAllowed, NotFound
from enginehouse.http.exchange import Headers, Send, respond
from enginehouse.ports import Meters

_SHOWN = 256
"""Characters of a path of the client's that its error repeats."""


class InternalError(EnginehouseError):
    """A fault of ours. Says nothing of its insides."""

    default_code = "internal_error"


def internal_error() -> InternalError:
    """What a client is told of a fault of ours."""
    return InternalError("the frontend failed while handling this request; its log says why")


async def respond_error(
    send: Send, error: EnginehouseError, headers: Headers, body: Callable[[EnginehouseError], bytes] = error_body
) -> None:
    """Answer with this error; nothing may have been sent before. body: the form that the API gives to errors."""
    extra: Headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        extra.append((b"retry-after", str(error.retry_after).encode()))
    await respond(send, error.status, body(error), [*extra, *headers])


def refusals(meters: Meters) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Handler of what the router itself refuses: unknown paths and methods. Counted under one name."""

    async def refuse(request: Request, error: Exception) -> Response:
        response = _refusal(request, error)
        meters.begin("other").end(response.status_code)
        return response

    return refuse


def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known: EnginehouseError
    path = request.url.path[:_SHOWN]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        known = MethodNotAllowed(f"{request.method} is not allowed on {path}; allowed: {allowed}")
    else:
        known = NotFound(f"no such path: {path}")
    body = error_answer if path.startswith("/v1/messages") else error_body
    return Response(body(known), known.status, headers=dict(error.headers or {}), media_type="application/json")


async def unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours outside the two completion endpoints."""
    return Response(error_body(internal_error()), 500, media_type="application/json")


def handlers(meters: Meters) -> dict[Any, Any]:
    """For the application: exception class to handler."""
    return {HTTPException: refusals(meters), Exception: unexpected}
