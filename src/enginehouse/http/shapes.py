"""How the two completion APIs differ from each other, and a request of either as what is asked of an engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from enginehouse.core.openai.parse import parse_chat, parse_completion
from enginehouse.core.openai.plan import most_prompt_tokens, plan_max_tokens
from enginehouse.core.openai.render import AnswerStream, ChatStream, CompletionStream, chat_answer, completion_answer
from enginehouse.core.openai.requests import ChatRequest, CompletionRequest
from enginehouse.service.generate import Decided, TokenRequest
from enginehouse.service.models import Models, ServedModel

R = TypeVar("R", bound=ChatRequest | CompletionRequest)


@dataclass(frozen=True)
class Shape(Generic[R]):
    """How one of the two APIs differs from the other."""

    path: str
    prefix: str
    """Of the ids that we give to answers."""
    parse: Callable[[bytes], R]
    encode: Callable[[ServedModel, R, int | None], Awaitable[Sequence[int]]]
    frames: Callable[[str, str, int, bool], AnswerStream]
    whole: Callable[..., bytes]


async def _encode_chat(model: ServedModel, request: ChatRequest, at_most: int | None) -> Sequence[int]:
    return (await model.tokenizer.encode_chat(request.messages, request.template_options, at_most)).token_ids


async def _encode_prompt(model: ServedModel, request: CompletionRequest, at_most: int | None) -> Sequence[int]:
    if isinstance(request.prompt, str):
        return await model.tokenizer.encode(
            request.prompt, add_special_tokens=request.add_special_tokens, at_most=at_most
        )
    return request.prompt


CHAT = Shape("/v1/chat/completions", "chatcmpl", parse_chat, _encode_chat, ChatStream, chat_answer)
COMPLETION = Shape("/v1/completions", "cmpl", parse_completion, _encode_prompt, CompletionStream, completion_answer)


async def for_engines(
    shape: Shape[R], request: R, model: ServedModel, models: Models, session: str | None, decided: Decided | None = None
) -> TokenRequest:
    """Encode a request. Raises what is wrong with it for this model."""
    card = model.card
    most = most_prompt_tokens(card.context_length, card.max_prompt_tokens)
    token_ids = await shape.encode(model, request, most)
    max_tokens = plan_max_tokens(
        request, token_ids, card.context_length, card.max_prompt_tokens, model.tokenizer.vocab_size
    )
    return TokenRequest(token_ids, max_tokens, request.sampling, lambda: models.fits(model), session, decided)
