"""Whole bodies: answers that are not streamed, the list of models, errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from enginehouse.domain.errors import EnginehouseError


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model, as `/v1/models` shows it."""

    name: str
    created: int
    context_length: int | None = None
    root: str | None = None
    """The name that this one is an alias of."""


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    """The `usage` object; without details when the engine did not say what came from its cache."""
    details = None if cached_tokens is None else {"cached_tokens": cached_tokens}
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": details,
    }


def chat_answer(
    answer_id: str,
    model: str,
    created: int,
    text: str,
    finish: str,
    *,
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int | None = None,
    fingerprint: str = "",
) -> bytes:
    """Body of a chat completion with one choice."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    usage = usage_of(prompt_tokens, completion_tokens, cached_tokens)
    return _answer(answer_id, "chat.completion", model, created, choice, usage, fingerprint)


def completion_answer(
    answer_id: str,
    model: str,
    created: int,
    text: str,
    finish: str,
    *,
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int | None = None,
    fingerprint: str = "",
) -> bytes:
    """Body of a text completion with one choice."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    usage = usage_of(prompt_tokens, completion_tokens, cached_tokens)
    return _answer(answer_id, "text_completion", model, created, choice, usage, fingerprint)


def _answer(
    answer_id: str,
    kind: str,
    model: str,
    created: int,
    choice: dict[str, Any],
    usage: dict[str, Any],
    fingerprint: str,
) -> bytes:
    return msgspec.json.encode(
        {
            "id": answer_id,
            "object": kind,
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint or None,
            "choices": [choice],
            "usage": usage,
        }
    )


def model_body(model: ModelEntry) -> bytes:
    """Body of `/v1/models/NAME`."""
    return msgspec.json.encode(_model(model))


def models_list(models: Iterable[ModelEntry]) -> bytes:
    """Body of `/v1/models`."""
    return msgspec.json.encode({"object": "list", "data": [_model(model) for model in models]})


def _model(model: ModelEntry) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "enginehouse",
        "root": model.root or model.name,
        "max_model_len": model.context_length,
    }


def error_body(error: EnginehouseError) -> bytes:
    """The nested envelope that clients of OpenAI's API read; all four members always."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )
