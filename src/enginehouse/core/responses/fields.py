"""What `/v1/responses` takes: its fields, items and tools, their types and limits."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from enginehouse.core.api.body import Body
from enginehouse.core.openai.fields import TOKEN_ID_MAX, Effort

_Status = Literal["in_progress", "completed", "incomplete"]
_Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    # Of items that there are none of here.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]
_NOT_KEPT: Final = "nothing is kept here, so send the whole conversation as 'input'"


class InputText(Struct, tag="input_text", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Text that the model reads."""

    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None


class OutputText(Struct, tag="output_text", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Text of an earlier answer."""

    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Refusal(Struct, tag="refusal", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Text of an earlier answer that declined, as other servers tell it."""

    refusal: str


class Caller(Struct, tag="direct", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """The model made the call itself, and no code that it wrote."""


class InputMessage(Struct, forbid_unknown_fields=True, frozen=True):
    """Somebody says something."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText | OutputText | Refusal]
    type: Literal["message"] = "message"
    id: str | None = None
    status: _Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCall(Struct, forbid_unknown_fields=True, frozen=True):
    """The model called a tool."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None
    status: _Status | None = None
    caller: Caller | None = None


class FunctionCallOutput(Struct, forbid_unknown_fields=True, frozen=True):
    """What came of the call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]
    id: str | None = None
    status: _Status | None = None
    caller: Caller | None = None
    name: str | None = None
    namespace: str | None = None


class SummaryText(Struct, tag="summary_text", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """A part of a summary of thinking."""

    text: str


class ReasoningText(Struct, tag="reasoning_text", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """A part of the model's thinking."""

    text: str


class ReasoningItem(Struct, forbid_unknown_fields=True, frozen=True):
    """What the model thought. `encrypted_content` is what an answer of ours had there."""

    type: Literal["reasoning"]
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: _Status | None = None


Item = InputMessage | FunctionCall | FunctionCallOutput | ReasoningItem
ITEMS: Final[dict[str, type[InputMessage] | type[FunctionCall] | type[FunctionCallOutput] | type[ReasoningItem]]] = {
    "message": InputMessage,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": ReasoningItem,
}
"""By type; an item without one is a message."""


class FunctionTool(Struct, tag="function", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """A tool that the client runs. `output_schema` is not shown to the model."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Meta(min_length=1)] | None = None


class Namespace(Struct, tag="namespace", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Tools that belong together."""

    name: str
    tools: list[FunctionTool]
    description: str | None = None


class WebSearch(Struct, tag="web_search", tag_field="type", frozen=True):
    """A search that the server would run. There is none here, so the model is not offered it."""


class ToolName(Struct, tag="function", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """The tool that has to be called, or may be."""

    name: str


class AllowedTools(Struct, tag="allowed_tools", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolName], Meta(min_length=1)]


class PlainFormat(Struct, tag="text", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Any text."""


class JsonFormat(Struct, tag="json_object", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Any JSON object."""


class SchemaFormat(Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """JSON of a schema. `strict` changes nothing: the schema is always kept to."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """What the text of the answer must be."""

    format: PlainFormat | JsonFormat | SchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """How much the model thinks. Thinking is told as it is, whatever summary is asked for."""

    effort: Effort | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """Obfuscation pads events against eavesdroppers; a server is free not to."""

    include_obfuscation: bool | None = None


class ResponseFields(Struct, kw_only=True, frozen=True):
    """`POST /v1/responses`."""

    model: Annotated[str, Meta(min_length=1)]
    input: str | list[Any]  # read_input checks the items
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=TOKEN_ID_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=2.0**-126, le=1)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: list[FunctionTool | Namespace | WebSearch] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolName | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    include: list[_Include] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: dict[str, Annotated[str, Meta(max_length=512)]] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


RESPONSES: Final = Body(
    ResponseFields,
    harmless={
        "store": (False,),
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "prompt": (),
        "truncation": ("disabled",),
        "service_tier": ("auto", "default"),
        "context_management": ([],),
        "moderation": (),
    },
    large=frozenset({"input", "instructions", "tools"}),
    # `max_tool_calls` counts calls of tools that servers run.
    ignored=frozenset({"client_metadata", "max_tool_calls", "prompt_cache_retention", "prompt_cache_options"}),
    reasons={
        "store": "nothing is kept here",
        "previous_response_id": _NOT_KEPT,
        "conversation": _NOT_KEPT,
        "background": "nothing is kept here",
    },
)
