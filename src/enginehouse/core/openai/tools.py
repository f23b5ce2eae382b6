"""Tools as a client offers them: checked, as a template takes them, and what an answer must be that has to call one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from enginehouse.core.openai.refusals import kind, printable, too_much
from enginehouse.core.openai.requests import ToolChoice, ToolChoiceMode
from enginehouse.core.openai.schema import check_schema, has_refs, json_text, moved
from enginehouse.core.output.pieces import Tool
from enginehouse.domain.constraint import JsonSchema
from enginehouse.domain.errors import InvalidRequest

MAX_TOOLS: Final = 1024
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_CHOICES: Final = "none, auto, required, or {'type': 'function', 'function': {'name': '...'}}"
_ONLY_FUNCTIONS: Final = "only tools of type 'function' are supported"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a request says of tools."""

    choice: ToolChoice
    tools: tuple[Tool, ...] = ()
    for_template: tuple[dict[str, Any], ...] = ()
    """The same tools in OpenAI's form, which chat templates read."""


_NOTHING: Final = Offer(ToolChoice(ToolChoiceMode.AUTO))


def read_tools(tools: Any, choice: Any) -> Offer:
    """The values of `tools` and `tool_choice`, None where they are absent. Raises InvalidRequest.

    With choice `none` nothing is offered: what the model does not see it does not call. Only parameters that an answer
    has to keep to are looked at closely.
    """
    if tools is None and choice is None:
        return _NOTHING
    items = [] if tools is None else tools
    if not isinstance(items, list):
        raise _wrong("tools", f"is {kind(tools)}; it must be a list of tools")
    if len(items) > MAX_TOOLS:
        raise too_much("tools", f"has {len(items)} tools; at most {MAX_TOOLS} are taken")
    shown: dict[str, dict[str, Any]] = {}
    for at, item in enumerate(items):
        function = _function(item, f"tools[{at}]")
        name = function["name"]
        if name in shown:
            raise _wrong(f"tools[{at}].function.name", "is the name of an earlier tool; each must have its own")
        shown[name] = {"type": "function", "function": function}
    mode, allowed = _choice(choice, shown)
    if mode.mode is ToolChoiceMode.NONE:
        return Offer(mode)
    if mode.mode is not ToolChoiceMode.AUTO and not shown:
        raise _wrong("tool_choice", "asks for a call, and there are no 'tools'")
    if mode.mode is not ToolChoiceMode.AUTO:
        for at, (name, tool) in enumerate(shown.items()):
            if mode.name in (None, name) and (allowed is None or name in allowed):
                check_schema(tool["function"]["parameters"], f"tools[{at}].function.parameters")
    kept = [tool for name, tool in shown.items() if allowed is None or name in allowed]
    offered = [Tool(tool["function"]["name"], tool["function"]["parameters"]) for tool in kept]
    return Offer(mode, tuple(offered), tuple(kept))


def _function(item: Any, where: str) -> dict[str, Any]:
    """`strict` is for servers, not for the model, and is not shown to it: calls that must be are always strict."""
    if not isinstance(item, dict):
        raise _wrong(where, f"is {kind(item)}; it must be an object with 'type' and 'function'")
    if item.get("type") not in (None, "function"):
        shown = f"is '{printable(item['type'])}'" if isinstance(item["type"], str) else f"is {kind(item['type'])}"
        raise InvalidRequest(
            f"'{where}.type' {shown}; {_ONLY_FUNCTIONS}", param=f"{where}.type", code="unsupported_value"
        )
    function = item.get("function")
    where = f"{where}.function"
    if not isinstance(function, dict):
        problem = "is missing" if function is None else f"is {kind(function)}"
        raise _wrong(where, f"{problem}; it must be an object with 'name' and 'parameters'")
    name = function.get("name")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        problem = "is missing" if name is None else "is not a name" if isinstance(name, str) else f"is {kind(name)}"
        raise _wrong(f"{where}.name", f"{problem}; it must be 1 to 128 letters, digits, '_', '-' or '.'")
    for key, right, words in (
        ("description", str, "a string"),
        ("strict", bool, "true or false"),
        ("parameters", dict, "a JSON Schema, which is an object"),
    ):
        if function.get(key) is not None and not isinstance(function[key], right):
            raise _wrong(f"{where}.{key}", f"is {kind(function[key])}; it must be {words}")
    taken = {key: value for key, value in function.items() if value is not None and key != "strict"}
    taken.setdefault("parameters", {"type": "object", "properties": {}})
    return taken


def _choice(choice: Any, known: dict[str, Any]) -> tuple[ToolChoice, frozenset[str] | None]:
    """(what is chosen, the tools that remain; None: all)."""
    match choice:
        case None:
            return ToolChoice(ToolChoiceMode.AUTO), None
        case "none" | "auto" | "required":
            return ToolChoice(ToolChoiceMode(choice)), None
        case {"type": "function"}:
            name = _name_in(choice, "tool_choice", known)
            return ToolChoice(ToolChoiceMode.NAMED, name), None
        case {"type": "allowed_tools"}:
            return _allowed(choice.get("allowed_tools"), known)
        case {"type": other}:
            told = f"'{printable(other)}'" if isinstance(other, str) else kind(other)
            raise InvalidRequest(
                f"'tool_choice.type' is {told}; {_ONLY_FUNCTIONS}",
                param="tool_choice.type",
                code="unsupported_value",
            )
    shown = f"'{printable(choice)}'" if isinstance(choice, str) else kind(choice)
    raise _wrong("tool_choice", f"is {shown}; it must be {_CHOICES}")


def _allowed(allowed: Any, known: dict[str, Any]) -> tuple[ToolChoice, frozenset[str]]:
    where = "tool_choice.allowed_tools"
    match allowed:
        case {"mode": "auto" | "required" as mode, "tools": [_, *_] as tools}:
            names = [_name_in(tool, f"{where}.tools[{at}]", known) for at, tool in enumerate(tools)]
            return ToolChoice(ToolChoiceMode(mode)), frozenset(names)
    raise _wrong(where, "must be an object with 'mode' (auto or required) and 'tools', a list of at least one")


def _name_in(item: Any, where: str, known: dict[str, Any]) -> str:
    match item:
        case {"type": "function", "function": {"name": str() as name}}:
            if name not in known:
                raise _wrong(f"{where}.function.name", "is not the name of one of 'tools'")
            return name
    raise _wrong(where, "must be an object {'type': 'function', 'function': {'name': '...'}}")


def forced_schema(offer: Offer, parallel: bool) -> JsonSchema | None:
    """What an answer must be that has to call tools; None: it has not.

    A named tool: its arguments. Else a list of objects with `name` and `parameters`, of one only unless several calls
    may stand side by side. Raises InvalidRequest.
    """
    if offer.choice.mode not in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED):
        return None
    if offer.choice.name is not None:
        return JsonSchema(json_text(_schemas(offer)[offer.choice.name], "tools"))
    calls, shared = call_schemas(offer)
    most = {} if parallel else {"maxItems": 1}
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    whole: dict[str, Any] = {"type": "array", "minItems": 1, **most, "items": items}
    return JsonSchema(json_text({**whole, "$defs": shared} if shared else whole, "tools"))


def _schemas(offer: Offer) -> dict[str, dict[str, Any]]:
    """Of the arguments, by the tools' names."""
    schemas: dict[str, dict[str, Any]] = {}
    for tool in offer.for_template:
        schema = tool["function"]["parameters"]
        schemas[tool["function"]["name"]] = schema if "type" in schema else {"type": "object", **schema}
    return schemas


def call_schemas(offer: Offer) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(for each tool the schema of an object that calls it, the definitions that they refer to)."""
    shared: dict[str, Any] = {}
    calls = []
    for name, schema in _schemas(offer).items():
        if has_refs(schema):  # its references are from its root, which is another one here
            to = f"#/$defs/{name}"
            shared[name] = moved(schema, to)
            schema = {"$ref": to}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"type": "string", "enum": [name]}, "parameters": schema},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    return calls, shared


def _wrong(where: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"'{where}' {problem}", param=where)
