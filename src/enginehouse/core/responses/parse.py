"""A body of `/v1/responses` to a request. What is not understood is refused by name, never ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from enginehouse.core.api.body import convert, renamed
from enginehouse.core.api.history import History
from enginehouse.core.api.sealed import unsealed
from enginehouse.core.openai.bounds import MAX_MESSAGES
from enginehouse.core.openai.constraints import json_schema
from enginehouse.core.openai.forms import constraint_of
from enginehouse.core.openai.refusals import kind, printable, too_much
from enginehouse.core.openai.template_options import effort_options
from enginehouse.core.openai.tools import Offer, read_tools
from enginehouse.core.responses.fields import (
    ITEMS,
    RESPONSES,
    AllowedTools,
    FunctionCall,
    FunctionCallOutput,
    FunctionTool,
    InputMessage,
    InputText,
    JsonFormat,
    Namespace,
    OutputText,
    ReasoningItem,
    Refusal,
    ResponseFields,
    SchemaFormat,
    ToolName,
    WebSearch,
)
from enginehouse.core.responses.request import ResponseRequest
from enginehouse.domain.constraint import Constraint, JsonObject
from enginehouse.domain.errors import InvalidRequest
from enginehouse.domain.request import Sampling

_NAMES = ((".function", ""),)
"""A tool's members stand one level deeper in chat."""
_AT: Final = re.compile(r"tools\[(\d+)\]")


def parse_response(body: bytes) -> ResponseRequest:
    """Raises InvalidRequest."""
    fields = RESPONSES.read(body)
    parallel = fields.parallel_tool_calls is not False
    offer = _offer(fields)
    constraint, source = _constraint(fields, offer, parallel)
    return ResponseRequest(
        model=fields.model,
        stream=fields.stream is True,
        include_usage=True,
        max_tokens=fields.max_output_tokens,
        max_tokens_param="max_output_tokens",
        sampling=Sampling(
            temperature=fields.temperature, top_p=fields.top_p, logprobs=_logprobs(fields), constraint=constraint
        ),
        constraint_param=source,
        user=fields.user,
        prompt_cache_key=fields.prompt_cache_key,
        messages=_messages(fields),
        template_options=_template_options(fields, offer),
        tools=offer.tools,
        tool_choice=offer.choice,
        parallel_tool_calls=parallel,
        repeated=_repeated(fields),
        names={one.name: (one.namespace, one.tool.name) for one in _functions(fields) if one.namespace is not None},
        seals="reasoning.encrypted_content" in (fields.include or ()),
    )


def _messages(fields: ResponseFields) -> tuple[dict[str, Any], ...]:
    history = History("input")
    if fields.instructions:
        history.says("system", fields.instructions)
    if isinstance(fields.input, str):
        history.says("user", fields.input)
        return history.messages()
    if len(fields.input) > MAX_MESSAGES:
        raise too_much("input", f"has {len(fields.input)} items; at most {MAX_MESSAGES} are taken")
    for index, item in enumerate(fields.input):
        _take(item, f"input[{index}]", history)
    if not fields.input:
        raise InvalidRequest("'input' is empty; it must hold at least one item", param="input")
    messages = history.messages()
    if not messages:
        raise InvalidRequest("'input' holds nothing that the model could read", param="input")
    return messages


def _take(item: Any, where: str, history: History) -> None:
    name = item.get("type") if isinstance(item, dict) else None
    if not isinstance(item, dict):
        raise InvalidRequest(f"'{where}' is {kind(item)}; it must be an object with a 'type'", param=where)
    if name is None:
        name = "message"
    if not isinstance(name, str) or name not in ITEMS:
        shown = f"'{printable(name)}'" if isinstance(name, str) else kind(name)
        raise InvalidRequest(
            f"'{where}.type' is {shown}; it must be one of {', '.join(ITEMS)}",
            param=f"{where}.type",
            code="unsupported_value",
        )
    match convert(item, ITEMS[name], where):
        case InputMessage(role, content):
            history.says(role, content if isinstance(content, str) else [_text(part) for part in content])
        case FunctionCall(_, call_id, tool, arguments, namespace):
            history.calls(call_id, _shown(namespace, tool), history.arguments(arguments, f"{where}.arguments"))
        case FunctionCallOutput(_, call_id, output):
            history.returns(call_id, output if isinstance(output, str) else [part.text for part in output])
        case ReasoningItem() as reasoning:
            history.thinks(_thought(reasoning, where))


def _text(part: InputText | OutputText | Refusal) -> str:
    return part.refusal if isinstance(part, Refusal) else part.text


def _thought(item: ReasoningItem, where: str) -> str:
    if item.content or not item.encrypted_content:
        return "".join([part.text for part in item.content or item.summary or ()])
    text = unsealed(item.encrypted_content)
    if text is None:
        raise InvalidRequest(
            f"'{where}.encrypted_content' is not of an answer of this server; it must be null or of one that is",
            param=f"{where}.encrypted_content",
            code="unsupported_value",
        )
    return text


def _offer(fields: ResponseFields) -> Offer:
    found = list(_functions(fields))
    tools = [
        {
            "type": "function",
            "function": {"name": one.name, "description": one.description, "parameters": one.tool.parameters},
        }
        for one in found
    ]
    choice: Any = fields.tool_choice
    match fields.tool_choice:
        case ToolName(name):
            choice = _named(name)
        case AllowedTools(mode, names):
            allowed = {"mode": mode, "tools": [_named(one.name) for one in names]}
            choice = {"type": "allowed_tools", "allowed_tools": allowed}
    try:
        return read_tools(tools, choice)
    except InvalidRequest as error:
        told = renamed(error, *_NAMES, ("tool_choice.allowed_tools", "tool_choice"))
        at = _AT.match(told.param or "")
        raise (told if at is None else renamed(told, (at[0], found[int(at[1])].where))) from None


@dataclass(frozen=True, slots=True)
class _Function:
    """A tool that the model may call."""

    tool: FunctionTool
    name: str
    """As the model has it."""
    description: str | None
    where: str
    namespace: str | None = None


def _functions(fields: ResponseFields) -> Iterator[_Function]:
    for at, tool in enumerate(fields.tools or ()):
        if isinstance(tool, FunctionTool):
            yield _Function(tool, tool.name, tool.description, f"tools[{at}]")
        elif isinstance(tool, Namespace):
            about = tool.description  # of all of them: it stands with the first
            for inner, one in enumerate(tool.tools):
                told = "\n".join([text for text in (about, one.description) if text]) or None
                about = None
                yield _Function(one, _shown(tool.name, one.name), told, f"tools[{at}].tools[{inner}]", tool.name)


def _shown(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace}__{name}"


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _constraint(fields: ResponseFields, offer: Offer, parallel: bool) -> tuple[Constraint | None, str]:
    form: Constraint | None = None
    match fields.text.format if fields.text is not None else None:
        case SchemaFormat(schema=schema):
            form = json_schema(schema, "text.format.schema")
        case JsonFormat():
            form = JsonObject()
    try:
        return constraint_of(form, "text.format", offer, parallel)
    except InvalidRequest as error:
        raise renamed(error, *_NAMES) from None


def _logprobs(fields: ResponseFields) -> int | None:
    if fields.top_logprobs or "message.output_text.logprobs" in (fields.include or ()):
        return fields.top_logprobs or 0
    return None


def _template_options(fields: ResponseFields, offer: Offer) -> dict[str, Any]:
    options: dict[str, Any] = {"add_generation_prompt": True}
    if offer.for_template:
        options["tools"] = offer.for_template
    if variables := effort_options(fields.reasoning.effort if fields.reasoning is not None else None):
        options["chat_template_kwargs"] = variables
    return options


def _repeated(fields: ResponseFields) -> dict[str, Any]:
    """What the response object says of the request. What the client left to the engine is null."""
    form = fields.text.format if fields.text is not None else None
    effort = fields.reasoning.effort if fields.reasoning is not None else None
    return {
        "background": False,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": None,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": None},
        "safety_identifier": fields.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": fields.temperature,
        "text": {"format": {"type": "text"} if form is None else form},
        "tool_choice": "auto" if fields.tool_choice is None else fields.tool_choice,
        "tools": [tool for tool in fields.tools or () if not isinstance(tool, WebSearch)],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": fields.top_p,
        "truncation": "disabled",
        "user": fields.user,
    }
