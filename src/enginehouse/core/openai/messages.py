"""Chat messages: which are taken, and the form in which a chat template gets them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enginehouse.core.openai.arguments import Arguments
from enginehouse.core.openai.bounds import MAX_MESSAGES, MAX_PARTS, MAX_VALUES, few_strings, values_in
from enginehouse.core.openai.refusals import kind, printable, too_much, wrong_value
from enginehouse.domain.errors import InvalidRequest

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_KNOWN: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "refusal"}
)
_ECHOED: Final = frozenset({"annotations", "audio", "function_call", "refusal"})
"""Fields of answers that clients send back with the history. Empty ones are dropped."""
_DROPPED: Final = frozenset({"annotations", "parsed", "provider_specific_fields"})
"""The same, of which templates know nothing: what OpenAI's client has parsed of the content; a field of LiteLLM's."""
_TYPES: Final = ("message", "text")
"""What clients also say that a message is: lm-eval says `text` of each."""


class _Taken:
    """What all messages together have so far."""

    __slots__ = ("parts", "values")

    def __init__(self) -> None:
        self.parts = self.values = 0


def read_messages(messages: Any) -> tuple[dict[str, Any], ...]:
    """Checked messages without nulls: one that only calls tools has no content.

    Raises InvalidRequest that names the place, e.g. `messages[0].content[1]`.
    """
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise wrong_value("messages", messages)
    so_far = _Taken()
    return tuple([_message(message, index, so_far) for index, message in enumerate(messages)])


def _message(message: Any, index: int, so_far: _Taken) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _wrong(index, "", f"is {kind(message)}; it must be an object with 'role' and 'content'")
    role = message.get("role")
    if role not in ROLES:
        problem = (
            "is missing" if role is None else f"is '{printable(role)}'" if isinstance(role, str) else f"is {kind(role)}"
        )
        raise _wrong(index, ".role", f"{problem}; it must be one of {', '.join(ROLES)}")
    taken: dict[str, Any] = {"role": role}
    if message.get("content") is not None or not (role == "assistant" and message.get("tool_calls")):
        taken["content"] = _content(message.get("content"), role, index, so_far)
    for name, value in message.items():
        if name in ("role", "content") or value is None or name in _DROPPED:
            continue
        if name == "type" and value in _TYPES:
            continue
        if name in _ECHOED and not value:
            continue
        if name not in _KNOWN or name == "refusal":
            raise _wrong(index, f".{printable(name)}", "is not supported; leave it out")
        if name == "tool_calls":
            value = _tool_calls(value, role, index, so_far)
            if not value:
                continue
        elif not isinstance(value, str):
            raise _wrong(index, f".{name}", f"is {kind(value)}; it must be a string")
        taken[name] = value
    return taken


def _content(content: Any, role: str, index: int, so_far: _Taken) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return ""
        raise _wrong(index, ".content", "is missing; it must be a string or a list of text parts")
    if not isinstance(content, list):
        raise _wrong(index, ".content", f"is {kind(content)}; it must be a string or a list of text parts")
    so_far.parts += len(content)
    if so_far.parts > MAX_PARTS:
        raise too_much("messages", f"have more than {MAX_PARTS} content parts together, which is the limit")
    return [_part(part, index, at) for at, part in enumerate(content)]


def _part(part: Any, index: int, at: int) -> dict[str, str]:
    where = f".content[{at}]"
    if not isinstance(part, dict):
        raise _wrong(index, where, f"is {kind(part)}; it must be an object, e.g. {{'type': 'text', 'text': '...'}}")
    match part.get("type"):
        case "text":
            text = part.get("text")
            if not isinstance(text, str):
                raise _wrong(index, f"{where}.text", f"is {kind(text)}; it must be a string")
            return {"type": "text", "text": text}
        case str() as other:
            raise _wrong(index, where, f"is of type '{printable(other)}'; only parts of type 'text' are supported yet")
    raise _wrong(index, f"{where}.type", "is missing or not a string; only 'text' is supported yet")


def _tool_calls(calls: Any, role: str, index: int, so_far: _Taken) -> list[dict[str, Any]]:
    """Earlier calls, their arguments as objects: templates write them out again in the model's own form."""
    if role != "assistant":
        raise _wrong(index, ".tool_calls", "is only for messages of the role assistant")
    if not isinstance(calls, list):
        raise _wrong(index, ".tool_calls", f"is {kind(calls)}; it must be a list")
    taken = []
    for at, call in enumerate(calls):
        where = f".tool_calls[{at}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _wrong(index, where, "must be an object of type 'function', with 'function.name' a string")
        if call.get("type") not in (None, "function"):
            raise _wrong(index, f"{where}.type", "must be 'function'")
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        if isinstance(arguments, str):
            decoded = _arguments(arguments, f"{where}.function.arguments", index, so_far)
            if decoded is None:  # as clients write arguments that there are none of
                decoded, arguments = {}, "{}"
            arguments = Arguments(decoded, arguments) if isinstance(decoded, dict) else decoded
        if not isinstance(arguments, dict):
            raise _wrong(index, f"{where}.function.arguments", "must hold an object")
        identity = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
        taken.append({**identity, "type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return taken


def _arguments(text: str, where: str, index: int, so_far: _Taken) -> Any:
    data = text.encode()
    if few_strings(data):
        so_far.values += values_in(data)
    else:
        so_far.values += MAX_VALUES + 1
    if so_far.values > MAX_VALUES:
        raise too_much("messages", f"have more than {MAX_VALUES} values in arguments of tool calls, which is the limit")
    try:
        return msgspec.json.decode(data) if data.strip() else None
    except RecursionError:
        raise _wrong(index, where, "is nested too deeply") from None
    except msgspec.DecodeError:
        raise _wrong(index, where, "is not JSON text") from None


def _wrong(index: int, where: str, problem: str) -> InvalidRequest:
    name = f"messages[{index}]{where}"
    return InvalidRequest(f"'{name}' {problem}", param=name)
