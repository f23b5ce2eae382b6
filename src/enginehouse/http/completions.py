"""The APIs that generate: parse, encode, plan, generate, answer, fail in the API's own envelope."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import structlog

from enginehouse.core.openai.requests import Request
from enginehouse.core.output.answer import Identity
from enginehouse.domain.errors import EnginehouseError, NoEngine, ShuttingDown
from enginehouse.http import debug
from enginehouse.http.answers import NewChoice, Tally, WholeChoice
from enginehouse.http.api import Api, R
from enginehouse.http.choices import choice_maker
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
from enginehouse.http.prompts import encode, token_requests
from enginehouse.http.session import SessionOf, no_session
from enginehouse.http.streaming import StreamedAnswer, StreamedChoice
from enginehouse.ports import Meters, RequestMeter
from enginehouse.service.attempt import Answer
from enginehouse.service.generate import Generator, Outdated, TokenRequest
from enginehouse.service.models import Models

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
    reasoning_field: str = "reasoning_content"
    client_priority: bool = False


class Endpoint(Generic[R]):
    """An API's path, as an ASGI application."""

    def __init__(self, api: Api[R], models: Models, generator: Generator, meters: Meters, options: EdgeOptions) -> None:
        self._api = api
        self._models = models
        self._generator = generator
        self._meters = meters
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meter = self._meters.begin(self._api.path)
        answer_id = f"{self._api.prefix}{uuid.uuid4().hex}"
        request_id = client_id(scope) or answer_id.encode()
        headers: Headers = [(name, request_id) for name in self._api.id_headers]
        try:
            body = await read_body(scope, receive, self._options.max_body_bytes, self._options.body_timeout)
        except ClientGone:
            meter.end(499)
            return
        except EnginehouseError as error:
            meter.end(error.status, error.code)
            await respond_error(send, error, headers, self._api.error)  # the rest of the body is read and dropped
            return
        stream = open_stream(scope, receive, send)
        exchange = _Exchange(scope, stream, send, answer_id, headers, meter)
        try:
            served = self._serve(body, exchange)
            del body  # a prompt may be large, and an answer long; _serve lets go of it too
            await until_gone(stream, served)
        except ClientGone:
            meter.end(499)
            log.debug("client gone", request=answer_id)
        except asyncio.CancelledError:
            log.warning("request cut by our leaving", request=answer_id)  # its client was told; the task ends here
        finally:
            meter.end(500)  # counts only when nothing else was said
            await stream.close()

    async def _serve(self, body: bytes, exchange: _Exchange) -> None:
        try:
            request = self._api.parse(body)
            del body
            await self._answer(request, exchange)
            exchange.meter.end(200)
        except EnginehouseError as error:
            await self._fail(error, exchange)
        except asyncio.CancelledError:
            if not exchange.stream.gone:
                cut = ShuttingDown("this frontend is shutting down; send the request again", retry_after=1)
                await self._fail(cut, exchange)
            raise
        except Exception:
            log.exception("request failed by a fault of ours", request=exchange.answer_id)
            await self._fail(internal_error(), exchange)

    async def _answer(self, request: R, exchange: _Exchange) -> None:
        scope, headers = exchange.scope, exchange.headers
        session = self._options.session_of(scope, request)
        decided = debug.teller(headers) if self._options.debug_headers and debug.asks(scope) else None
        created = int(time.time())
        for _ in range(_ENCODINGS):
            model = await self._models.find(request.model)
            prompts = await encode(request, model)
            asked = token_requests(request, prompts, model, self._models, session, decided)
            tally = Tally([len(prompt.token_ids) for prompt in prompts], exchange.meter)
            identity = Identity(exchange.answer_id, model.name, created, tally.prompt_tokens)
            makers = [
                choice_maker(request, model, prompt, asked[at * request.n].max_tokens)
                for at, prompt in enumerate(prompts)
            ]
            new = [makers[index // request.n] for index in range(len(asked))]
            try:
                if request.stream:
                    await self._stream(identity, request, asked, new, tally, exchange)
                else:
                    await self._whole(identity, request, asked, new, tally, exchange)
                return
            except Outdated:  # engines of another generation took over since: encode for them
                if exchange.begun is not None and exchange.begun.sent:
                    break
        raise NoEngine("the engines of this model are being replaced; try again", retry_after=1)

    async def _stream(
        self,
        identity: Identity,
        request: R,
        asked: Sequence[TokenRequest],
        new: Sequence[NewChoice],
        tally: Tally,
        exchange: _Exchange,
    ) -> None:
        answer = StreamedAnswer(exchange.stream, self._api.frames(identity, request), exchange.headers, tally)
        exchange.begun = answer
        choices = [
            StreamedChoice(index, one, tally, _counts(index, request), exchange.meter, answer)
            for index, one in enumerate(new)
        ]
        for choice in choices:
            answer.add(choice)
        await self._generate(asked, choices, exchange.meter)
        await answer.flushed()

    async def _whole(
        self,
        identity: Identity,
        request: R,
        asked: Sequence[TokenRequest],
        new: Sequence[NewChoice],
        tally: Tally,
        exchange: _Exchange,
    ) -> None:
        choices = [
            WholeChoice(index, one, tally, _counts(index, request), exchange.meter) for index, one in enumerate(new)
        ]
        await self._generate(asked, choices, exchange.meter)
        usage = tally.usage([choice.choice for choice in choices])
        whole = self._api.whole(identity, request, [choice.whole() for choice in choices], usage)
        await respond(exchange.send, 200, whole, [*JSON, *exchange.headers])

    async def _generate(self, asked: Sequence[TokenRequest], choices: Sequence[Answer], meter: RequestMeter) -> None:
        """All choices at once, each on an engine of its own and with retries of its own; the first error ends all."""
        if len(asked) == 1:
            await self._generator.run(asked[0], choices[0], meter)
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for index, (one, choice) in enumerate(zip(asked, choices, strict=True)):
                    tasks.create_task(self._generator.run(one, choice, meter), name=f"choice-{index}")
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _fail(self, error: EnginehouseError, exchange: _Exchange) -> None:
        answer = exchange.begun
        begun = answer is not None and answer.sent
        exchange.meter.end(error.status, error.code, cut=begun)
        if error.status >= 500:
            log.warning(
                "request failed",
                request=exchange.answer_id,
                status=error.status,
                code=error.code,
                begun=begun,
                reason=error.message,
            )
        if answer is not None and answer.sent:
            if not answer.complete:
                answer.fail(error)
        else:
            await respond_error(exchange.send, error, exchange.headers, self._api.error)


@dataclass(slots=True)
class _Exchange:
    """One request on its way through the endpoint."""

    scope: Scope
    stream: Stream
    send: Send
    answer_id: str
    headers: Headers
    """Of the answer, besides those of its kind."""
    meter: RequestMeter
    begun: StreamedAnswer | None = None
    """The answer, if it is a streamed one."""


def _counts(index: int, request: Request) -> int | None:
    """The prompt that this choice is the first answer to."""
    prompt, again = divmod(index, request.n)
    return None if again else prompt


def client_id(scope: Scope) -> bytes | None:
    """The client's own X-Request-Id, to be echoed and for nothing else; None when none is fit to print."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            fit = 0 < len(value) <= 128 and all(0x21 <= byte <= 0x7E for byte in value)
            return bytes(value) if fit else None
    return None
