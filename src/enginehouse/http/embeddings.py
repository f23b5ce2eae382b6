"""`/v1/embeddings`: each input is a request to an engine; the answer comes when all of them are there."""

from __future__ import annotations

import asyncio

from enginehouse.core.openai.embeddings import EmbeddingRequest, check_input, embedding_answer, parse_embedding
from enginehouse.core.openai.refusals import printable
from enginehouse.domain.errors import InvalidRequest, NoEngine
from enginehouse.domain.request import Sampling
from enginehouse.domain.stream import Embedding
from enginehouse.http.completions import EdgeOptions
from enginehouse.http.questions import Question
from enginehouse.ports import LegName, Meters, RequestMeter
from enginehouse.service.generate import Generator, Outdated, TokenRequest
from enginehouse.service.models import Models, ServedModel

_ENCODINGS = 3
"""Times that one request is encoded, when the model's engines are replaced under it."""
_AT_ONCE = 64
"""Inputs of one request that engines may have at a time."""


def embeddings(models: Models, generator: Generator, meters: Meters, options: EdgeOptions) -> Question:
    """The path."""

    async def reply(body: bytes, meter: RequestMeter) -> bytes:
        request = parse_embedding(body)
        for _ in range(_ENCODINGS):
            model = await models.find(request.model)
            asked = await _asked(request, model, models)
            try:
                found = await _all(asked, generator, meter)
            except Outdated:  # engines of another generation took over since: encode for them
                continue
            tokens = sum(one.prompt_tokens for one in found)
            meter.prompt(tokens)
            return embedding_answer(model.card.model, [one.values for one in found], tokens, request.as_base64)
        raise NoEngine("the engines of this model are being replaced; try again", retry_after=1)

    return Question("/v1/embeddings", reply, meters, options)


async def _asked(request: EmbeddingRequest, model: ServedModel, models: Models) -> list[TokenRequest]:
    if model.lora is not None:
        text = f"'model' {printable(model.lora)!r} is an adapter; embeddings are made by the model itself"
        raise InvalidRequest(text, param="model", code="unsupported_value")
    card, tokenizer = model.card, model.tokenizer
    longest = card.context_length if card.max_prompt_tokens is None else card.max_prompt_tokens
    asked = []
    for given in request.inputs:
        if isinstance(given, str):
            ids = await tokenizer.encode(given, add_special_tokens=request.add_special_tokens, at_most=longest)
        else:
            ids = given
        check_input(ids, longest, tokenizer.vocab_size)
        asked.append(TokenRequest(ids, 1, Sampling(), lambda: models.fits(model)))
    return asked


async def _all(asked: list[TokenRequest], generator: Generator, meter: RequestMeter) -> list[Embedding]:
    room = asyncio.Semaphore(_AT_ONCE)
    part = _Part(meter)

    async def one(request: TokenRequest) -> Embedding:
        async with room:
            return await generator.embed(request, part)

    if len(asked) == 1:
        return [await generator.embed(asked[0], part)]
    try:
        async with asyncio.TaskGroup() as tasks:
            found = [tasks.create_task(one(request), name="embedding") for request in asked]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in found]


class _Part:
    """The meter of one input: what is counted once for a request is left to the whole."""

    def __init__(self, whole: RequestMeter) -> None:
        self._whole = whole

    def tokens(self, count: int) -> None:
        pass

    def prompt(self, tokens: int, cached: int = 0) -> None:
        pass

    def decided(self, rule: str, predicted: int) -> None:
        self._whole.decided(rule, predicted)

    def retried(self, code: str, leg: LegName | None = None) -> None:
        self._whole.retried(code, leg)

    def leg(self, leg: LegName, seconds: float) -> None:
        pass

    def leg_failed(self, leg: LegName, code: str) -> None:
        pass

    def end(self, status: int, code: str | None = None, *, cut: bool = False) -> None:
        pass
