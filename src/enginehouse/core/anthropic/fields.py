"""What `/v1/messages` takes: its fields, blocks and tools, their types and limits."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from enginehouse.core.api.body import Body
from enginehouse.core.openai.fields import MAX_STOP_LENGTH, MAX_STOPS, TOKEN_ID_MAX

_Effort = Literal["low", "medium", "high", "xhigh", "max"]
_Nothing = Annotated[list[Any], Meta(max_length=0)]
_Direct = Literal["direct"]
"""Who calls a tool: the model, and no code that it wrote."""


class _Cached(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where Anthropic's cache should end. Engines cache by themselves: it is taken and without effect."""

    cache_control: dict[str, Any] | None = None


class TextBlock(_Cached, tag="text", tag_field="type", frozen=True):
    """Text."""

    text: str
    citations: _Nothing | None = None


class ThinkingBlock(_Cached, tag="thinking", tag_field="type", frozen=True):
    """What the model thought in an earlier answer."""

    thinking: str
    signature: str | None = None


class DirectCaller(Struct, tag="direct", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """The model made the call itself."""


class ToolUseBlock(_Cached, tag="tool_use", tag_field="type", frozen=True):
    """The model called a tool."""

    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller | None = None


class ToolResultBlock(_Cached, tag="tool_result", tag_field="type", frozen=True):
    """What came of the call. Whether it is an error has to stand in the content too: the model sees no more."""

    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


class UserMessage(Struct, tag="user", tag_field="role", forbid_unknown_fields=True, frozen=True):
    """What the user says, and what tools gave."""

    content: str | list[TextBlock | ToolResultBlock]


class AssistantMessage(Struct, tag="assistant", tag_field="role", forbid_unknown_fields=True, frozen=True):
    """An earlier answer; as the last message, the beginning of the one to come."""

    content: str | list[TextBlock | ThinkingBlock | ToolUseBlock]


class SystemMessage(Struct, tag="system", tag_field="role", forbid_unknown_fields=True, frozen=True):
    """Instructions in the middle of a conversation."""

    content: str | list[TextBlock]


class CustomTool(_Cached, frozen=True):
    """A tool that the client runs. `strict` and `eager_input_streaming` change nothing."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: Annotated[list[_Direct], Meta(min_length=1)] | None = None
    input_examples: _Nothing | None = None


class _Choice(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How tools may be called."""

    disable_parallel_tool_use: bool | None = None


class AutoChoice(_Choice, tag="auto", tag_field="type", frozen=True):
    """The model may call tools."""


class AnyChoice(_Choice, tag="any", tag_field="type", frozen=True):
    """It must call one."""


class ToolChoice(_Choice, tag="tool", tag_field="type", frozen=True):
    """It must call this one."""

    name: str


class NoChoice(_Choice, tag="none", tag_field="type", frozen=True):
    """It sees no tools."""


class ThinkingOn(Struct, tag="enabled", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """The model thinks. The budget is for servers that can hold it: here `max_tokens` bounds both."""

    budget_tokens: Annotated[int, Meta(ge=1, le=TOKEN_ID_MAX)]
    display: Literal["summarized", "omitted"] | None = None


class ThinkingOff(Struct, tag="disabled", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """It does not."""


class ThinkingAsItWants(Struct, tag="adaptive", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """As its template has it."""

    display: Literal["summarized", "omitted"] | None = None


class OutputSchema(Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """JSON of a schema."""

    schema: dict[str, Any]


class OutputConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """How much effort the model makes, and what its text must be."""

    effort: _Effort | None = None
    format: OutputSchema | None = None


class Metadata(Struct, forbid_unknown_fields=True, frozen=True):
    """Who asks."""

    user_id: str | None = None


class CountFields(Struct, kw_only=True, frozen=True):
    """`POST /v1/messages/count_tokens`."""

    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[UserMessage | AssistantMessage | SystemMessage], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[CustomTool] | None = None
    tool_choice: AutoChoice | AnyChoice | ToolChoice | NoChoice | None = None
    thinking: ThinkingOn | ThinkingOff | ThinkingAsItWants | None = None
    output_config: OutputConfig | None = None


class MessageFields(CountFields, kw_only=True, frozen=True):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=1, le=TOKEN_ID_MAX)]
    stream: bool | None = None
    stop_sequences: (
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]], Meta(max_length=MAX_STOPS)]
        | None
    ) = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=2.0**-126, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=TOKEN_ID_MAX)] | None = None
    metadata: Metadata | None = None


_HARMLESS: Final[dict[str, tuple[Any, ...]]] = {
    "container": (),
    "context_management": (
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    "inference_geo": ("global",),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "thread": (),
}
_REASONS: Final = {"thread": "nothing is kept here, so send the whole conversation"}
_LARGE: Final = frozenset({"messages", "system", "tools"})
_IGNORED: Final = frozenset({"betas", "cache_control", "diagnostics", "user_profile_id", "workspace_id"})
"""Betas name features; the fields that they bring are taken or refused by themselves."""

MESSAGES: Final = Body(MessageFields, _HARMLESS, _LARGE, ignored=_IGNORED, reasons=_REASONS)
COUNT: Final = Body(CountFields, _HARMLESS, _LARGE, ignored=_IGNORED, reasons=_REASONS)
