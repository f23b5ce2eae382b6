"""Answers of `/v1/responses`, of Anthropic's paths and of the operators' own, declared."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from enginehouse.core.openapi.answers import TokenLogprob
from enginehouse.core.responses.fields import (
    AllowedTools,
    FunctionTool,
    JsonFormat,
    Namespace,
    PlainFormat,
    SchemaFormat,
    ToolName,
)


class _Answer(Struct, forbid_unknown_fields=True, kw_only=True):
    """Nothing that is not declared is in an answer."""


_Status = Literal["in_progress", "completed", "incomplete"]


class OutputTextPart(_Answer, tag="output_text", tag_field="type"):
    """Text for the reader."""

    text: str
    annotations: list[None]
    logprobs: list[TokenLogprob]


class OutputMessage(_Answer, tag="message", tag_field="type"):
    """What the model says."""

    id: str
    status: _Status
    role: Literal["assistant"]
    content: list[OutputTextPart]


class ReasoningTextPart(_Answer, tag="reasoning_text", tag_field="type"):
    """What the model thinks."""

    text: str


class OutputReasoning(_Answer, tag="reasoning", tag_field="type"):
    """The model's thinking, as it is."""

    id: str
    status: _Status
    summary: list[None]
    content: list[ReasoningTextPart]
    encrypted_content: str | UnsetType = UNSET


class OutputCall(_Answer, tag="function_call", tag_field="type"):
    """A call that the client is to make."""

    id: str
    status: _Status
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class ResponseFailure(_Answer):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class Incomplete(_Answer):
    """Why it is not complete."""

    reason: Literal["max_output_tokens"]


class InputDetails(_Answer):
    """Of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(_Answer):
    """Of the answer's tokens."""

    reasoning_tokens: int


class ResponseUsage(_Answer):
    """Tokens; 0 where nobody knows."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ReasoningEcho(_Answer):
    """What was asked for."""

    effort: str | None
    summary: None


class TextEcho(_Answer):
    """What was asked for."""

    format: PlainFormat | JsonFormat | SchemaFormat


class Response(_Answer):
    """A whole answer of `/v1/responses`; the last event of a stream has the same."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseFailure | None
    incomplete_details: Incomplete | None
    output: list[OutputMessage | OutputReasoning | OutputCall]
    usage: ResponseUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float | None
    text: TextEcho
    tool_choice: Literal["none", "auto", "required"] | ToolName | AllowedTools
    tools: list[FunctionTool | Namespace]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    user: str | None


class TextAnswer(_Answer, tag="text", tag_field="type"):
    """Text for the reader."""

    text: str


class ThinkingAnswer(_Answer, tag="thinking", tag_field="type"):
    """The model's thinking, as it is."""

    thinking: str
    signature: str


class ToolUseAnswer(_Answer, tag="tool_use", tag_field="type"):
    """A call that the client is to make."""

    id: str
    name: str
    input: dict[str, Any]


class ThinkingDetails(_Answer):
    """Of the answer's tokens."""

    thinking_tokens: int


class MessageUsage(_Answer):
    """Tokens; those that came from a cache are not input tokens too."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingDetails


class MessageAnswer(_Answer, tag="message", tag_field="type"):
    """A whole answer of `/v1/messages`."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[TextAnswer | ThinkingAnswer | ToolUseAnswer]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(_Answer):
    """The answer of `/v1/messages/count_tokens`."""

    input_tokens: int


class MessageErrorDetail(_Answer):
    """What went wrong."""

    type: str
    message: str


class MessageError(_Answer, tag="error", tag_field="type"):
    """Any failure, as Anthropic's paths tell it."""

    error: MessageErrorDetail


class Readiness(_Answer):
    """Whether requests can be served, and why not."""

    ready: bool
    reasons: list[str]


class Health(_Answer):
    """The same for people, with counts."""

    status: Literal["ok", "unavailable"]
    reasons: list[str]
    model: str | None
    engines: dict[str, int]
    """How many there are in each state."""


class Topology(_Answer):
    """How the engines share work."""

    name: str
    why: str | None


class Engines(_Answer):
    """The fleet as it is: every engine, every pod that matched, the sources that name them."""

    ready: bool
    reasons: list[str]
    model: dict[str, Any] | None
    topology: Topology
    policy: str
    requests_in_flight: int
    pools: dict[str, Any] | None
    kv_index: dict[str, Any] | None
    engines: list[dict[str, Any]]
    feeds: list[dict[str, Any]]
