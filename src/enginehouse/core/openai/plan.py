"""How long an answer may get: the client's limit, else the room that the prompt leaves in the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from enginehouse.core.openai.requests import CompletionRequest, Request
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
        _check_token_ids(request, token_ids, vocab_size)
    prompt = len(token_ids)
    if prompt == 0:
        raise InvalidRequest("the prompt has no tokens; it must have at least one", param=request.prompt_param)
    wanted = request.max_tokens
    if max_prompt_tokens is not None and prompt > max_prompt_tokens:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens; this model takes prompts of at most {max_prompt_tokens}",
            param=request.prompt_param,
            asked=(prompt,),
            limit=max_prompt_tokens,
        )
    if context_length is None:
        return wanted if wanted is not None else max(UNKNOWN_CONTEXT_ANSWER, request.sampling.min_tokens)
    room = context_length - prompt
    if room < 1:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens; this model's context is {context_length} tokens for prompt and answer "
            f"together, so a prompt of at most {context_length - 1} fits",
            param=request.prompt_param,
            asked=(prompt,),
            limit=context_length - 1,
        )
    if wanted is not None and wanted > room:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens and '{request.max_tokens_param}' is {wanted}, together {prompt + wanted}; "
            f"this model's context is {context_length} tokens, so '{request.max_tokens_param}' can be at most {room}",
            param=request.max_tokens_param,
            asked=(prompt, wanted),
            limit=context_length,
        )
    if request.sampling.min_tokens > room:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens and 'min_tokens' is {request.sampling.min_tokens}; this model's context "
            f"is {context_length} tokens, so 'min_tokens' can be at most {room}",
            param="min_tokens",
        )
    return wanted if wanted is not None else room


def _check_token_ids(request: Request, token_ids: Sequence[int], vocab_size: int) -> None:
    """Those that the client gave; what our tokenizer made is right."""
    if (
        isinstance(request, CompletionRequest)
        and isinstance(request.prompt, tuple)
        and max(token_ids, default=0) >= vocab_size
    ):
        raise _no_token_of_prompt(request, token_ids, vocab_size)
    for at, token in enumerate(request.sampling.stop_token_ids):
        if token >= vocab_size:
            raise _no_token(f"stop_token_ids[{at}]", token, vocab_size, "stop_token_ids")
    for token, _ in request.sampling.logit_bias:
        if token >= vocab_size:
            raise InvalidRequest(
                f"'logit_bias' has the key {token}; this model's token ids end at {vocab_size - 1}", param="logit_bias"
            )


def _no_token_of_prompt(request: CompletionRequest, token_ids: Sequence[int], vocab_size: int) -> InvalidRequest:
    at, token = next((at, token) for at, token in enumerate(token_ids) if token >= vocab_size)
    prompts = (request.prompt, *request.more_prompts)
    which = next((which for which, prompt in enumerate(prompts) if prompt is token_ids), 0)
    where = f"prompt[{which}][{at}]" if len(prompts) > 1 else f"prompt[{at}]"
    return _no_token(where, token, vocab_size, "prompt")


def _no_token(where: str, token: int, vocab_size: int, param: str) -> InvalidRequest:
    return InvalidRequest(f"'{where}' is {token}; this model's token ids end at {vocab_size - 1}", param=param)
