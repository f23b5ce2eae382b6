"""A body of `/v1/messages` to a request. What is not understood is refused by name, never ignored."""

from __future__ import annotations

from typing import Any

from enginehouse.core.anthropic.fields import (
    COUNT,
    MESSAGES,
    AnyChoice,
    AssistantMessage,
    CountFields,
    MessageFields,
    NoChoice,
    SystemMessage,
    TextBlock,
    ThinkingAsItWants,
    ThinkingBlock,
    ThinkingOff,
    ThinkingOn,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from enginehouse.core.anthropic.request import MessageRequest
from enginehouse.core.api.body import renamed
from enginehouse.core.api.history import History
from enginehouse.core.api.sealed import unsealed
from enginehouse.core.openai.constraints import json_schema
from enginehouse.core.openai.forms import constraint_of
from enginehouse.core.openai.requests import ChatRequest
from enginehouse.core.openai.template_options import effort_options
from enginehouse.core.openai.tools import Offer, read_tools
from enginehouse.domain.constraint import Constraint
from enginehouse.domain.errors import InvalidRequest
from enginehouse.domain.request import Sampling

_NAMES = ((".function.parameters", ".input_schema"), (".function", ""))
"""A tool's members are called otherwise in chat."""


def parse_message(body: bytes) -> MessageRequest:
    """A message that is asked for. Raises InvalidRequest."""
    fields = MESSAGES.read(body)
    offer, parallel = _offer(fields)
    constraint, source = _constraint(fields, offer, parallel)
    thinking = fields.thinking
    return MessageRequest(
        model=fields.model,
        stream=fields.stream is True,
        include_usage=True,
        max_tokens=fields.max_tokens,
        sampling=Sampling(
            temperature=fields.temperature,
            top_p=fields.top_p,
            top_k=-1 if fields.top_k == 0 else fields.top_k,
            constraint=constraint,
        ),
        constraint_param=source,
        stop=tuple(dict.fromkeys(fields.stop_sequences or ())),
        user=fields.metadata.user_id if fields.metadata is not None else None,
        messages=_messages(fields),
        template_options=_template_options(fields, offer),
        tools=offer.tools,
        tool_choice=offer.choice,
        parallel_tool_calls=parallel,
        omits_thinking=isinstance(thinking, ThinkingOn | ThinkingAsItWants) and thinking.display == "omitted",
    )


def parse_count(body: bytes) -> ChatRequest:
    """A message of which only the prompt is wanted. Raises InvalidRequest."""
    fields = COUNT.read(body)
    offer, _ = _offer(fields)
    return ChatRequest(
        model=fields.model, messages=_messages(fields), template_options=_template_options(fields, offer)
    )


def _messages(fields: CountFields) -> tuple[dict[str, Any], ...]:
    history = History("messages")
    if fields.system:
        history.says("system", _texts(fields.system))
    for message in fields.messages:
        match message:
            case UserMessage(content):
                _user(content, history)
            case AssistantMessage(content):
                _assistant(content, history)
            case SystemMessage(content):
                history.says("system", _texts(content))
    return history.messages()


def _user(content: str | list[TextBlock | ToolResultBlock], history: History) -> None:
    """What it says and the results in it, each a message of its own, in their order."""
    if isinstance(content, str):
        history.says("user", content)
        return
    texts: list[str] = []
    for block in content:
        match block:
            case TextBlock(text):
                texts.append(text)
            case ToolResultBlock(tool_use_id, result):
                if texts:
                    history.says("user", texts)
                    texts = []
                history.returns(tool_use_id, _texts(result or ""))
    if texts or not content:
        history.says("user", texts)


def _assistant(content: str | list[TextBlock | ThinkingBlock | ToolUseBlock], history: History) -> None:
    history.end_turn()
    texts: list[str] = []
    for block in [TextBlock(content)] if isinstance(content, str) else content:
        if isinstance(block, TextBlock):
            texts.append(block.text)
            continue
        if texts:
            history.says("assistant", texts)
            texts = []
        if isinstance(block, ThinkingBlock):
            history.thinks(block.thinking or unsealed(block.signature or "") or "")
        else:
            history.calls(block.id, block.name, block.input)
    if texts or not history.in_turn:
        history.says("assistant", texts)


def _texts(content: str | list[TextBlock]) -> str | list[str]:
    return content if isinstance(content, str) else [block.text for block in content]


def _offer(fields: CountFields) -> tuple[Offer, bool]:
    """(what is offered, whether several calls may stand side by side)."""
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in fields.tools or ()
    ]
    choice: Any = None
    match fields.tool_choice:
        case ToolChoice(name=name):
            choice = {"type": "function", "function": {"name": name}}
        case AnyChoice():
            choice = "required"
        case NoChoice():
            choice = "none"
    parallel = fields.tool_choice is None or fields.tool_choice.disable_parallel_tool_use is not True
    try:
        return read_tools(tools, choice), parallel
    except InvalidRequest as error:
        raise renamed(error, *_NAMES) from None


def _constraint(fields: MessageFields, offer: Offer, parallel: bool) -> tuple[Constraint | None, str]:
    form = fields.output_config.format if fields.output_config is not None else None
    schema = None if form is None else json_schema(form.schema, "output_config.format.schema")
    try:
        return constraint_of(schema, "output_config.format", offer, parallel)
    except InvalidRequest as error:
        raise renamed(error, *_NAMES) from None


def _template_options(fields: CountFields, offer: Offer) -> dict[str, Any]:
    """A last message of the assistant's is gone on with, unless it has calls, which wait for their results."""
    last = fields.messages[-1]
    goes_on = isinstance(last, AssistantMessage) and not any(isinstance(block, ToolUseBlock) for block in last.content)
    options: dict[str, Any] = {"add_generation_prompt": not goes_on}
    if goes_on:
        options["continue_final_message"] = True
    if offer.for_template:
        options["tools"] = offer.for_template
    variables = effort_options(fields.output_config.effort if fields.output_config is not None else None)
    if isinstance(fields.thinking, ThinkingOn | ThinkingOff):
        # Templates know one name or the other, and do not look at what they do not know.
        variables |= dict.fromkeys(("enable_thinking", "thinking"), isinstance(fields.thinking, ThinkingOn))
    if variables:
        options["chat_template_kwargs"] = variables
    return options
