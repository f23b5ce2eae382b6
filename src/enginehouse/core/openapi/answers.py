"""Answers of OpenAI's paths, declared: what `core/openai/answers.py` and its like put together."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class _Answer(Struct, forbid_unknown_fields=True, kw_only=True):
    """Nothing that is not declared is in an answer."""


class ErrorDetail(_Answer):
    """What went wrong, and by whose fault."""

    message: str
    type: str
    param: str | None
    """The field of the request that is at fault."""
    code: str | None


class Error(_Answer):
    """Any failure."""

    error: ErrorDetail


class PromptDetails(_Answer):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(_Answer):
    """Of the answer's tokens."""

    reasoning_tokens: int


class Usage(_Answer):
    """Tokens; details are null where nobody knows them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None
    completion_tokens_details: CompletionDetails | None


class TopLogprob(_Answer):
    """A token that was likely."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(_Answer):
    """A token with how likely it was."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Answer):
    """Of all tokens of a message."""

    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(_Answer):
    """Of all tokens of a text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CalledFunction(_Answer):
    """Which one, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(_Answer):
    """A call that the client is to make."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(_Answer):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


_Reason = Literal["stop", "length", "tool_calls"]


class ChatChoice(_Answer):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: _Reason
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(_Answer):
    """A whole answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(_Answer):
    """One answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: _Reason
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(_Answer):
    """A whole answer of `/v1/completions`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[CompletionChoice]
    usage: Usage


class Embedding(_Answer):
    """A vector: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(_Answer):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(_Answer):
    """The answer of `/v1/embeddings`."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Model(_Answer):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    type: Literal["model"]
    display_name: str
    created_at: datetime
    lifecycle: Literal["active"]
    max_input_tokens: int | None


class Models(_Answer):
    """All of them."""

    object: Literal["list"]
    data: list[Model]
    has_more: Literal[False]
    first_id: str | None
    last_id: str | None


class Tokens(_Answer):
    """The answer of `/tokenize`."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(_Answer):
    """The answer of `/detokenize`."""

    prompt: str
