"""Whole bodies: answers that are not streamed, the list of models, errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from enginehouse.core.openai.logprobs import chat_logprobs, completion_logprobs
from enginehouse.core.output.answer import Choice, Echo, End, Identity, Usage
from enginehouse.core.output.pieces import Content, Reasoning, ToolCall
from enginehouse.domain.errors import EnginehouseError
from enginehouse.domain.stream import Finish


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model, as `/v1/models` shows it."""

    name: str
    created: int
    context_length: int | None = None
    root: str | None = None
    """The name that this one is an alias or an adapter of."""
    parent: str | None = None
    """The model that this one is an adapter of."""


def usage_of(usage: Usage) -> dict[str, Any]:
    """The `usage` object; details are null where nobody knows them."""
    cached, reasoning = usage.cached_tokens, usage.reasoning_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "completion_tokens_details": None if reasoning is None else {"reasoning_tokens": reasoning},
    }


def finish_reason(end: End) -> str:
    """A model that was cut off while it called may have wanted more calls: that is `length`, whatever there is."""
    return "tool_calls" if end.called and end.finish is Finish.STOP else end.finish.value


def chat_answer(identity: Identity, choices: Sequence[Choice], usage: Usage, reasoning_field: str) -> bytes:
    """Body of a chat completion."""
    more: dict[str, Any] = {}
    for choice in choices:
        if choice.echo is not None and choice.echo.token_ids is not None:
            more["prompt_token_ids"] = choice.echo.token_ids
    return _answer("chat.completion", identity, [_chat_choice(one, reasoning_field) for one in choices], usage, more)


def completion_answer(identity: Identity, choices: Sequence[Choice], usage: Usage) -> bytes:
    """Body of a text completion."""
    return _answer("text_completion", identity, [_completion_choice(choice) for choice in choices], usage, {})


def _chat_choice(choice: Choice, reasoning_field: str) -> dict[str, Any]:
    content = "".join([piece.text for piece in choice.pieces if isinstance(piece, Content)])
    reasoning = "".join([piece.text for piece in choice.pieces if isinstance(piece, Reasoning)])
    calls = [call_of(piece) for piece in choice.pieces if isinstance(piece, ToolCall)]
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        message[reasoning_field] = reasoning
    if calls:
        message["tool_calls"] = calls
    if not content and len(message) > 3:
        message["content"] = None
    return {
        "index": choice.index,
        "message": message,
        "logprobs": None if choice.likelihoods is None else chat_logprobs(choice.likelihoods),
        "finish_reason": finish_reason(choice.end),
        **({} if choice.token_ids is None else {"token_ids": choice.token_ids}),
    }


def call_of(call: ToolCall) -> dict[str, Any]:
    """A call as messages have it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _completion_choice(choice: Choice) -> dict[str, Any]:
    echo = choice.echo or Echo()
    prompt = echo.text or ""
    logprobs = None
    if choice.likelihoods is not None:
        logprobs = completion_logprobs(choice.likelihoods, len(prompt), echo.likelihoods or ())
    return {
        "index": choice.index,
        "text": prompt + "".join([piece.text for piece in choice.pieces if isinstance(piece, Content)]),
        "logprobs": logprobs,
        "finish_reason": finish_reason(choice.end),
        **({} if choice.token_ids is None else {"token_ids": choice.token_ids}),
        **({} if echo.token_ids is None else {"prompt_token_ids": echo.token_ids}),
    }


def _answer(
    kind: str, identity: Identity, choices: Sequence[dict[str, Any]], usage: Usage, more: Mapping[str, Any]
) -> bytes:
    return msgspec.json.encode(
        {
            "id": identity.answer_id,
            "object": kind,
            "created": identity.created,
            "model": identity.model,
            "system_fingerprint": None,
            "choices": choices,
            "usage": usage_of(usage),
            **more,
        }
    )


def model_body(model: ModelEntry) -> bytes:
    """Body of `/v1/models/NAME`."""
    return msgspec.json.encode(_model(model))


def models_list(models: Iterable[ModelEntry]) -> bytes:
    """Body of `/v1/models`."""
    data = [_model(model) for model in models]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return msgspec.json.encode({"object": "list", "data": data, "has_more": False, **ends})


def _model(model: ModelEntry) -> dict[str, Any]:
    """For Anthropic's clients too, which ask on the same path and read other members."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "enginehouse",
        "root": model.root or model.name,
        "parent": model.parent,
        "max_model_len": model.context_length,
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, UTC),
        "lifecycle": "active",
        "max_input_tokens": model.context_length,
    }


def error_body(error: EnginehouseError) -> bytes:
    """The nested envelope that clients of OpenAI's API read; all four members always."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )
