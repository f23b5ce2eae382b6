"""`/v1/chat/completions` and `/v1/completions`: parse, encode, plan, generate, answer, fail in OpenAI's envelope."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import structlog

from enginehouse.core.openai.render import error_frame
from enginehouse.core.openai.requests import Request
from enginehouse.core.openai.stops import StopMatcher
from enginehouse.core.openai.text import AnswerText
from enginehouse.domain.errors import EnginehouseError, NoEngine, ShuttingDown
from enginehouse.http import debug
from enginehouse.http.answers import StreamedAnswer, WholeAnswer
from enginehouse.http.errors import internal_error, respond_error
from enginehouse.http.exchange import (
    JSON,
    ClientGone,
    Headers,
    Receive,
    Scope,
    Send,
    Stream,
    open_stream,
    read_body,
    respond,
    until_gone,
)
from enginehouse.http.session import SessionOf, no_session
from enginehouse.http.shapes import R, Shape, for_engines
from enginehouse.ports import Meters, RequestMeter
from enginehouse.service.generate import Generator, Outdated
from enginehouse.service.models import Models, ServedModel

log = structlog.get_logger("enginehouse.http")

_ENCODINGS = 3
"""Times that one request is encoded, when the model's engines are replaced under it."""


@dataclass(frozen=True)
class EdgeOptions:
    """What the edge needs of the settings."""

    max_body_bytes: int
    body_timeout: float
    session_of: SessionOf = no_session
    debug_headers: bool = False


class Endpoint(Generic[R]):
    """One of the two paths, as an ASGI application."""

    def __init__(
        self, shape: Shape[R], models: Models, generator: Generator, meters: Meters, options: EdgeOptions
    ) -> None:
        self._shape = shape
        self._models = models
        self._generator = generator
        self._meters = meters
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meter = self._meters.begin(self._shape.path)
        answer_id = f"{self._shape.prefix}-{uuid.uuid4().hex}"
        headers: Headers = [(b"x-request-id", _client_id(scope) or answer_id.encode())]
        try:
            body = await read_body(scope, receive, self._options.max_body_bytes, self._options.body_timeout)
        except ClientGone:
            meter.end(499)
            return
        except EnginehouseError as error:
            meter.end(error.status, error.code)
            await respond_error(send, error, headers)  # the rest of the body is read and dropped
            return
        stream = open_stream(scope, receive, send)
        try:
            await until_gone(stream, self._serve(body, scope, answer_id, stream, send, headers, meter))
        except ClientGone:
            meter.end(499)
            log.debug("client gone", request=answer_id)
        except asyncio.CancelledError:
            log.warning("request cut by our leaving", request=answer_id)  # its client was told; the task ends here
        finally:
            meter.end(500)  # counts only when nothing else was said
            await stream.close()

    async def _serve(
        self,
        body: bytes,
        scope: Scope,
        answer_id: str,
        stream: Stream,
        send: Send,
        headers: Headers,
        meter: RequestMeter,
    ) -> None:
        answer: StreamedAnswer | WholeAnswer | None = None
        try:
            request = self._shape.parse(body)
            del body  # a prompt may be large, and an answer long
            session = self._options.session_of(scope, request)
            decided = debug.teller(headers) if self._options.debug_headers and debug.asks(scope) else None
            created = int(time.time())
            for _ in range(_ENCODINGS):
                model = await self._models.find(request.model)
                wanted = await for_engines(self._shape, request, model, self._models, session, decided)
                new_text = _text_maker(request, model, wanted.max_tokens)
                prompt_tokens = len(wanted.token_ids)
                if request.stream:
                    frames = self._shape.frames(answer_id, model.card.model, created, request.include_usage)
                    answer = StreamedAnswer(new_text, prompt_tokens, meter, stream, frames, headers)
                else:
                    answer = WholeAnswer(new_text, prompt_tokens, meter)
                try:
                    await self._generator.run(wanted, answer, meter)
                    break
                except Outdated:  # engines of another generation took over since: encode for them
                    continue
            else:
                raise NoEngine("the engines of this model are being replaced; try again", retry_after=1)
            if isinstance(answer, StreamedAnswer):
                await answer.flushed()
            else:
                assert answer.finish is not None
                whole = self._shape.whole(
                    answer_id,
                    model.card.model,
                    created,
                    answer.text,
                    answer.finish,
                    prompt_tokens=answer.prompt_tokens,
                    completion_tokens=answer.completion_tokens,
                    cached_tokens=answer.cached_tokens,
                )
                await respond(send, 200, whole, [*JSON, *headers])
            meter.end(200)
        except EnginehouseError as error:
            await self._fail(error, answer, send, headers, meter, answer_id)
        except asyncio.CancelledError:
            if not stream.gone:
                cut = ShuttingDown("this frontend is shutting down; send the request again", retry_after=1)
                await self._fail(cut, answer, send, headers, meter, answer_id)
            raise
        except Exception:
            log.exception("request failed by a fault of ours", request=answer_id)
            await self._fail(internal_error(), answer, send, headers, meter, answer_id)

    async def _fail(
        self,
        error: EnginehouseError,
        answer: StreamedAnswer | WholeAnswer | None,
        send: Send,
        headers: Headers,
        meter: RequestMeter,
        answer_id: str,
    ) -> None:
        begun = isinstance(answer, StreamedAnswer) and answer.sent
        meter.end(error.status, error.code, cut=begun)
        if error.status >= 500:
            log.warning(
                "request failed",
                request=answer_id,
                status=error.status,
                code=error.code,
                begun=begun,
                reason=error.message,
            )
        if isinstance(answer, StreamedAnswer) and answer.sent:
            if not answer.complete:
                answer.fail(error_frame(error))
        else:
            await respond_error(send, error, headers)


def _text_maker(request: Request, model: ServedModel, max_tokens: int) -> Callable[[], AnswerText]:
    """For each attempt its own text: what a failed one held back must not come out of the next."""
    tokenizer, skip, stops = model.tokenizer, request.skip_special_tokens, request.stop
    min_tokens = request.sampling.min_tokens
    return lambda: AnswerText(
        tokenizer.decoder(skip_special_tokens=skip), StopMatcher(stops) if stops else None, min_tokens, max_tokens
    )


def _client_id(scope: Scope) -> bytes | None:
    """The client's own X-Request-Id, to be echoed and for nothing else; None when none is fit to print."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            fit = 0 < len(value) <= 128 and all(0x21 <= byte <= 0x7E for byte in value)
            return bytes(value) if fit else None
    return None
