"""`/v1/chat/completions` and `/v1/completions`: parse, encode, plan, generate, answer, fail in OpenAI's envelope."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from enginehouse.core.openai.parse import parse_chat, parse_completion
from enginehouse.core.openai.plan import most_prompt_tokens, plan_max_tokens
from enginehouse.core.openai.render import (
    AnswerStream,
    ChatStream,
    CompletionStream,
    chat_answer,
    completion_answer,
    error_frame,
)
from enginehouse.core.openai.requests import ChatRequest, CompletionRequest
from enginehouse.core.openai.stops import StopMatcher
from enginehouse.core.openai.text import AnswerText
from enginehouse.domain.errors import EnginehouseError, NoEngine, ShuttingDown
from enginehouse.http.answers import StreamedAnswer, WholeAnswer
from enginehouse.http.errors import internal_error, respond_error
from enginehouse.http.exchange import (
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
from enginehouse.ports import Meters, RequestMeter
from enginehouse.service.generate import Generator, Outdated, TokenRequest
from enginehouse.service.models import Models, ServedModel
from enginehouse.wire.sse import CONTENT_TYPE

log = structlog.get_logger("enginehouse.http")

_R = TypeVar("_R", bound=ChatRequest | CompletionRequest)

SSE: Headers = [
    (b"content-type", CONTENT_TYPE.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_ENCODINGS = 3
"""Times that one request is encoded, when the model's engines are replaced under it."""

JSON: Headers = [(b"content-type", b"application/json")]


@dataclass(frozen=True)
class EdgeLimits:
    """What the edge needs of the settings."""

    max_body_bytes: int
    body_timeout: float


@dataclass(frozen=True)
class Shape(Generic[_R]):
    """How one of the two APIs differs from the other."""

    path: str
    prefix: str
    """Of the ids that we give to answers."""
    parse: Callable[[bytes], _R]
    encode: Callable[[ServedModel, _R, int | None], Awaitable[Sequence[int]]]
    frames: Callable[[str, str, int, bool], AnswerStream]
    whole: Callable[..., bytes]


async def _encode_chat(model: ServedModel, request: ChatRequest, at_most: int | None) -> Sequence[int]:
    return await model.tokenizer.encode_chat(request.messages, request.template_options, at_most)


async def _encode_prompt(model: ServedModel, request: CompletionRequest, at_most: int | None) -> Sequence[int]:
    if isinstance(request.prompt, str):
        return await model.tokenizer.encode(
            request.prompt, add_special_tokens=request.add_special_tokens, at_most=at_most
        )
    return request.prompt


CHAT = Shape("/v1/chat/completions", "chatcmpl", parse_chat, _encode_chat, ChatStream, chat_answer)
COMPLETION = Shape("/v1/completions", "cmpl", parse_completion, _encode_prompt, CompletionStream, completion_answer)


class Endpoint(Generic[_R]):
    """One of the two paths, as an ASGI application."""

    def __init__(
        self, shape: Shape[_R], models: Models, generator: Generator, meters: Meters, limits: EdgeLimits
    ) -> None:
        self._shape = shape
        self._models = models
        self._generator = generator
        self._meters = meters
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meter = self._meters.begin(self._shape.path)
        answer_id = f"{self._shape.prefix}-{uuid.uuid4().hex}"
        headers: Headers = [(b"x-request-id", _client_id(scope) or answer_id.encode())]
        try:
            body = await read_body(scope, receive, self._limits.max_body_bytes, self._limits.body_timeout)
        except ClientGone:
            meter.end(499)
            return
        except EnginehouseError as error:
            meter.end(error.status, error.code)
            await respond_error(send, error, headers)  # the rest of the body is read and dropped
            return
        stream = open_stream(scope, receive, send)
        try:
            await until_gone(stream, self._serve(body, answer_id, stream, send, headers, meter))
        except ClientGone:
            meter.end(499)
            log.debug("client gone", request=answer_id)
        except asyncio.CancelledError:
            log.warning("request cut by our leaving", request=answer_id)  # its client was told; the task ends here
        finally:
            meter.end(500)  # counts only when nothing else was said
            await stream.close()

    async def _serve(
        self, body: bytes, answer_id: str, stream: Stream, send: Send, headers: Headers, meter: RequestMeter
    ) -> None:
        answer: StreamedAnswer | WholeAnswer | None = None
        try:
            request = self._shape.parse(body)
            del body  # a prompt may be large, and an answer long
            created = int(time.time())
            for _ in range(_ENCODINGS):
                model = await self._models.find(request.model)
                wanted = await self._encode(request, model)
                new_text = _text_maker(request, model)
                prompt_tokens = len(wanted.token_ids)
                if request.stream:
                    frames = self._shape.frames(answer_id, model.card.model, created, request.include_usage)
                    answer = StreamedAnswer(new_text, prompt_tokens, meter, stream, frames, [*SSE, *headers])
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

    async def _encode(self, request: _R, model: ServedModel) -> TokenRequest:
        card = model.card
        most = most_prompt_tokens(card.context_length, card.max_prompt_tokens)
        token_ids = await self._shape.encode(model, request, most)
        max_tokens = plan_max_tokens(
            request, token_ids, card.context_length, card.max_prompt_tokens, model.tokenizer.vocab_size
        )
        return TokenRequest(token_ids, max_tokens, request.sampling, lambda: self._models.fits(model))

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


def _text_maker(request: ChatRequest | CompletionRequest, model: ServedModel) -> Callable[[], AnswerText]:
    """For each attempt its own text: what a failed one held back must not come out of the next."""
    tokenizer, skip, stops = model.tokenizer, request.skip_special_tokens, request.stop
    min_tokens = request.sampling.min_tokens
    return lambda: AnswerText(
        tokenizer.decoder(skip_special_tokens=skip), StopMatcher(stops) if stops else None, min_tokens
    )


def _client_id(scope: Scope) -> bytes | None:
    """The client's own X-Request-Id, to be echoed and for nothing else; None when none is fit to print."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            fit = 0 < len(value) <= 128 and all(0x21 <= byte <= 0x7E for byte in value)
            return bytes(value) if fit else None
    return None
