"""How long an answer may get: the client's limit, else the room that the prompt leaves in the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from enginehouse.core.openai.requests import Request
from enginehouse.domain.errors import ContextLengthExceeded, InvalidRequest

UNKNOWN_CONTEXT_ANSWER: Final = 4096
"""Tokens of an answer when neither the client gives a limit nor the engine says how long its context is."""


UNKNOWN_CONTEXT_PROMPT: Final = 2_000_000
"""Tokens above which a prompt may be refused when the engine does not say how long its context is."""


def most_prompt_tokens(context_length: int | None, max_prompt_tokens: int | None = None) -> int:
    """Tokens of a prompt above which `plan_max_tokens` refuses it; for the tokenizer, which can stop early then."""
    room = UNKNOWN_CONTEXT_PROMPT if context_length is None else max(context_length - 1, 1)
    return room if max_prompt_tokens is None else min(room, max_prompt_tokens)


def plan_max_tokens(
    request: Request,
    token_ids: Sequence[int],
    context_length: int | None,
    max_prompt_tokens: int | None = None,
    vocab_size: int | None = None,
) -> int:
    """`max_tokens` for the engine: at least 1, and prompt and answer together fit the context.

    Raises ContextLengthExceeded (with the numbers) for what does not fit, InvalidRequest for an empty prompt and for
    token ids of the client's that the model does not have. None: the engine does not say.
    """
    if vocab_size is not None:
        _check_token_ids(request, vocab_size)
    prompt = len(token_ids)
    if prompt == 0:
        raise InvalidRequest("the prompt has no tokens; it must have at least one", param=request.prompt_param)
    wanted = request.max_tokens
    if max_prompt_tokens is not None and prompt > max_prompt_tokens:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens; this model takes prompts of at most {max_prompt_tokens}",
            param=request.prompt_param,
        )
    if context_length is None:
        return wanted if wanted is not None else max(UNKNOWN_CONTEXT_ANSWER, request.sampling.min_tokens)
    room = context_length - prompt
    if room < 1:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens; this model's context is {context_length} tokens for prompt and answer "
            f"together, so a prompt of at most {context_length - 1} fits",
            param=request.prompt_param,
        )
    if wanted is not None and wanted > room:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens and '{request.max_tokens_param}' is {wanted}, together {prompt + wanted}; "
            f"this model's context is {context_length} tokens, so '{request.max_tokens_param}' can be at most {room}",
            param=request.max_tokens_param,
        )
    if request.sampling.min_tokens > room:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens and 'min_tokens' is {request.sampling.min_tokens}; this model's context "
            f"is {context_length} tokens, so 'min_tokens' can be at most {room}",
            param="min_tokens",
        )
    return wanted if wanted is not None else room


def _check_token_ids(request: Request, vocab_size: int) -> None:
    prompt = getattr(request, "prompt", None)
    if isinstance(prompt, tuple) and max(prompt) >= vocab_size:
        at = next(at for at, token in enumerate(prompt) if token >= vocab_size)
        raise InvalidRequest(
            f"'prompt[{at}]' is {prompt[at]}; this model's token ids end at {vocab_size - 1}", param="prompt"
        )
    for at, token in enumerate(request.sampling.stop_token_ids):
        if token >= vocab_size:
            raise InvalidRequest(
                f"'stop_token_ids[{at}]' is {token}; this model's token ids end at {vocab_size - 1}",
                param="stop_token_ids",
            )
