"""`/tokenize` and `/detokenize`: the frontend's own tokenizer, shown. No engine is asked."""

from __future__ import annotations

from enginehouse.core.openai.tokenize import (
    Text,
    check_tokens,
    detokenize_answer,
    parse_detokenize,
    parse_tokenize,
    tokenize_answer,
)
from enginehouse.domain.errors import NoEngine
from enginehouse.http.completions import EdgeOptions
from enginehouse.http.questions import Question
from enginehouse.ports import Meters, RequestMeter
from enginehouse.service.models import Models, ServedModel


def tokenize(models: Models, meters: Meters, options: EdgeOptions) -> Question:
    """The way there."""

    async def reply(body: bytes, meter: RequestMeter) -> bytes:
        request = parse_tokenize(body)
        model = await _model(models, request.model)
        tokenizer, of = model.tokenizer, request.of
        if isinstance(of, Text):
            ids = await tokenizer.encode(of.text, add_special_tokens=of.add_special_tokens)
        else:
            ids = (await tokenizer.encode_chat(of.messages, of.options)).token_ids
        texts = [tokenizer.token_text(token) for token in ids] if request.with_texts else None
        return tokenize_answer(ids, model.card.context_length, texts)

    return Question("/tokenize", reply, meters, options)


def detokenize(models: Models, meters: Meters, options: EdgeOptions) -> Question:
    """And back: special tokens too, and what is no text as U+FFFD."""

    async def reply(body: bytes, meter: RequestMeter) -> bytes:
        fields = parse_detokenize(body)
        model = await _model(models, fields.model)
        check_tokens(fields.tokens, model.tokenizer.vocab_size)
        decoder = model.tokenizer.decoder(skip_special_tokens=False)
        return detokenize_answer(decoder.push(fields.tokens) + decoder.flush())

    return Question("/detokenize", reply, meters, options)


async def _model(models: Models, name: str | None) -> ServedModel:
    if name is not None:
        return await models.find(name)
    if models.current is None:
        raise NoEngine("no model is served yet", retry_after=2)
    return models.current
