"""`/openapi.json`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache

from starlette.requests import Request
from starlette.responses import Response

from enginehouse import __version__
from enginehouse.core.openapi.document import document

_made = cache(document)


def openapi(reasoning_field: str, client_priority: bool) -> Callable[[Request], Awaitable[Response]]:
    """The handler."""

    async def show(request: Request) -> Response:
        return Response(
            _made(__version__, reasoning_field, client_priority=client_priority), media_type="application/json"
        )

    return show
