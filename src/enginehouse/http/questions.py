"""Paths that take one body and give one back: nothing is streamed, and nothing comes before all of it is there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence

import structlog

from enginehouse.core.openai.answers import error_body
from enginehouse.domain.errors import EnginehouseError, ShuttingDown
from enginehouse.http.completions import EdgeOptions, client_id
from enginehouse.http.errors import internal_error, respond_error
from enginehouse.http.exchange import (
    JSON,
    ClientGone,
    Headers,
    Receive,
    Scope,
    Send,
    open_stream,
    read_body,
    respond,
    until_gone,
)
from enginehouse.ports import Meters, RequestMeter

log = structlog.get_logger("enginehouse.http")

Reply = Callable[[bytes, RequestMeter], Awaitable[bytes]]
"""A body to an answer. Raises EnginehouseError; is cancelled when the client goes."""


class Question:
    """One such path, as an ASGI application."""

    def __init__(
        self,
        path: str,
        reply: Reply,
        meters: Meters,
        options: EdgeOptions,
        error: Callable[[EnginehouseError], bytes] = error_body,
        id_headers: Sequence[bytes] = (b"x-request-id",),
    ) -> None:
        """error, id_headers: as an Api has them."""
        self.path = path
        self._reply = reply
        self._meters = meters
        self._options = options
        self._error = error
        self._id_headers = id_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meter = self._meters.begin(self.path)
        request_id = client_id(scope) or uuid.uuid4().hex.encode()
        headers: Headers = [(name, request_id) for name in self._id_headers]
        try:
            body = await read_body(scope, receive, self._options.max_body_bytes, self._options.body_timeout)
        except ClientGone:
            meter.end(499)
            return
        except EnginehouseError as error:
            await self._fail(error, send, headers, meter)  # the rest of the body is read and dropped
            return
        stream = open_stream(scope, receive, send)
        try:
            await until_gone(stream, self._serve(body, send, headers, meter))
        except ClientGone:
            meter.end(499)
        except asyncio.CancelledError:
            if not stream.gone:
                cut = ShuttingDown("this frontend is shutting down; send the request again", retry_after=1)
                await self._fail(cut, send, headers, meter)
        finally:
            meter.end(500)  # counts only when nothing else was said
            await stream.close()

    async def _serve(self, body: bytes, send: Send, headers: Headers, meter: RequestMeter) -> None:
        try:
            answer = await self._reply(body, meter)
        except EnginehouseError as error:
            await self._fail(error, send, headers, meter)
        except Exception:
            log.exception("request failed by a fault of ours", path=self.path)
            await self._fail(internal_error(), send, headers, meter)
        else:
            await respond(send, 200, answer, [*JSON, *headers])
            meter.end(200)

    async def _fail(self, error: EnginehouseError, send: Send, headers: Headers, meter: RequestMeter) -> None:
        meter.end(error.status, error.code)
        await respond_error(send, error, headers, self._error)
