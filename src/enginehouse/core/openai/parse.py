"""Request bodies to requests. What is not understood is refused by name, never ignored.

One way for every body: plain JSON first, then the parameters that are not ours, then types and limits. A key that
stands twice counts as it stands last, as in every common JSON reader.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from enginehouse.core.openai.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    ChatFields,
    CompletionFields,
    Fields,
    TokenId,
)
from enginehouse.core.openai.messages import read_messages
from enginehouse.core.openai.refusals import kind, not_json, settle, wrong_field
from enginehouse.core.openai.requests import ChatRequest, CompletionRequest
from enginehouse.domain.errors import InvalidRequest
from enginehouse.domain.request import Sampling

_F = TypeVar("_F", bound=Fields)
_OURS_IN_TEMPLATES = ("messages", "tools", "documents", "add_generation_prompt", "chat_template")


def parse_chat(body: bytes) -> ChatRequest:
    """Read a body of `/v1/chat/completions`. Raises InvalidRequest."""
    fields = _read(body, ChatFields, CHAT_FIELDS)
    limit, limit_param = fields.max_tokens, "max_tokens"
    if fields.max_completion_tokens is not None:
        if limit is not None and limit != fields.max_completion_tokens:
            raise InvalidRequest(
                f"'max_tokens' is {limit} and 'max_completion_tokens' is {fields.max_completion_tokens}; give one only",
                param="max_completion_tokens",
            )
        limit, limit_param = fields.max_completion_tokens, "max_completion_tokens"
    options: dict[str, Any] = {"add_generation_prompt": fields.add_generation_prompt is not False}
    if fields.chat_template_kwargs:
        for name in _OURS_IN_TEMPLATES:
            if name in fields.chat_template_kwargs:
                where = f"chat_template_kwargs.{name}"
                raise InvalidRequest(f"'{where}' is refused: it is not an option of a template", param=where)
        options["chat_template_kwargs"] = fields.chat_template_kwargs
    return ChatRequest(
        **_common(fields, limit),
        max_tokens_param=limit_param,
        messages=read_messages(fields.messages),
        template_options=options,
    )


def parse_completion(body: bytes) -> CompletionRequest:
    """Read a body of `/v1/completions`. Raises InvalidRequest."""
    fields = _read(body, CompletionFields, COMPLETION_FIELDS)
    return CompletionRequest(
        **_common(fields, fields.max_tokens),
        prompt=_prompt(fields.prompt),
        add_special_tokens=fields.add_special_tokens is not False,
    )


def _read(body: bytes, shape: type[_F], known: frozenset[str]) -> _F:
    if not body.strip():
        raise InvalidRequest("the body is empty; it must be a JSON object", code="invalid_json")
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise not_json(error) from None
    if not isinstance(decoded, dict):
        raise InvalidRequest(f"the body is {kind(decoded)}; it must be a JSON object", code="invalid_json")
    settle(decoded, known)
    try:
        return msgspec.convert(decoded, shape)
    except msgspec.ValidationError as error:
        raise wrong_field(error, decoded) from None


def _common(fields: Fields, limit: int | None) -> dict[str, Any]:
    options = fields.stream_options
    min_tokens = fields.min_tokens or 0
    if limit is not None and min_tokens > limit:
        raise InvalidRequest(f"'min_tokens' is {min_tokens}, above the {limit} tokens allowed", param="min_tokens")
    stop = fields.stop
    return {
        "model": fields.model,
        "stream": fields.stream is True,
        "include_usage": options is not None and options.include_usage is True,
        "max_tokens": limit,
        "stop": () if stop is None else (stop,) if isinstance(stop, str) else tuple(dict.fromkeys(stop)),
        "skip_special_tokens": fields.skip_special_tokens is not False,
        "sampling": Sampling(
            temperature=fields.temperature,
            top_p=fields.top_p,
            top_k=-1 if fields.top_k == 0 else fields.top_k,
            min_p=fields.min_p,
            frequency_penalty=fields.frequency_penalty,
            presence_penalty=fields.presence_penalty,
            repetition_penalty=fields.repetition_penalty,
            seed=fields.seed,
            stop_token_ids=tuple(fields.stop_token_ids or ()),
            ignore_eos=fields.ignore_eos is True,
            min_tokens=min_tokens,
        ),
    }


def _prompt(prompt: str | list[Any]) -> str | tuple[int, ...]:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise InvalidRequest(
                f"'prompt' is a list of {len(prompt)} prompts; only one prompt in a request is supported yet",
                param="prompt",
                code="unsupported_value",
            )
        prompt = prompt[0]
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidRequest("'prompt' is empty; it must hold at least one character or token", param="prompt")
        return prompt
    if not prompt:
        raise InvalidRequest("'prompt' is empty; it must hold at least one character or token", param="prompt")
    try:
        return tuple(msgspec.convert(prompt, list[TokenId]))
    except msgspec.ValidationError:
        at, item = next((at, item) for at, item in enumerate(prompt) if type(item) is not int or not 0 <= item < 2**31)
        problem = "out of range" if type(item) is int else kind(item)
        raise InvalidRequest(
            f"'prompt[{at}]' is {problem}; 'prompt' must be a string, or a list of token ids from 0", param="prompt"
        ) from None
