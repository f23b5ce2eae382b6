"""The prompts of a request as token ids, and what each choice asks of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from enginehouse.core.openai.needs import asks_for, needs
from enginehouse.core.openai.plan import most_prompt_tokens, plan_max_tokens
from enginehouse.core.openai.requests import ChatRequest, Request
from enginehouse.domain.errors import InvalidRequest
from enginehouse.domain.request import Sampling
from enginehouse.service.generate import Decided, TokenRequest
from enginehouse.service.models import Models, ServedModel

_SEEDS = 1 << 63


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, encoded."""

    token_ids: Sequence[int]
    text: str | None = None
    """As the client gave it; None: as messages, or as token ids."""
    tail: str = ""
    """The end of what a template made of messages."""


async def encode(request: Request, model: ServedModel) -> list[Prompt]:
    """The prompts of a request, one of a chat. Raises what is wrong with them for this model."""
    card, tokenizer = model.card, model.tokenizer
    most = most_prompt_tokens(card.context_length, card.max_prompt_tokens)
    if isinstance(request, ChatRequest):
        try:
            encoded = await tokenizer.encode_chat(request.messages, request.template_options, most)
        except InvalidRequest as error:
            if error.param == "messages":  # as a chat calls what makes the prompt
                error.param = request.prompt_param
            raise
        return [Prompt(encoded.token_ids, tail=encoded.tail)]
    prompts = []
    for prompt in (request.prompt, *request.more_prompts):
        if isinstance(prompt, str):
            ids = await tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens, at_most=most)
            prompts.append(Prompt(ids, prompt))
        else:
            prompts.append(Prompt(prompt))
    return prompts


def token_requests(
    request: Request,
    prompts: Sequence[Prompt],
    model: ServedModel,
    models: Models,
    session: str | None,
    decided: Decided | None = None,
) -> list[TokenRequest]:
    """What is asked of engines: `n` answers to the first prompt, then those to the next."""
    card = model.card
    needed = needs(request)
    params = {ability: asks_for(request, ability) for ability in needed}
    asked = []
    for prompt in prompts:
        max_tokens = plan_max_tokens(
            request, prompt.token_ids, card.context_length, card.max_prompt_tokens, model.tokenizer.vocab_size
        )
        for choice in range(request.n):
            sampling = _seeded(request.sampling, choice)
            asked.append(
                TokenRequest(
                    prompt.token_ids,
                    max_tokens,
                    sampling,
                    lambda: models.fits(model),
                    session,
                    decided,
                    needed,
                    params,
                    model.lora,
                )
            )
    return asked


def _seeded(sampling: Sampling, choice: int) -> Sampling:
    """Each choice with a seed of its own: with the same one they would all be the same."""
    if sampling.seed is None or not choice:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice + _SEEDS) % (2 * _SEEDS) - _SEEDS)
