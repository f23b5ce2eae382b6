"""Answers that are a call of a tool or a text in a form: where a client offers tools and gives a form for the text.

The engine holds the answer to the one or the other from its first token, so that either is exact: a call in JSON,
whatever the model's own form of calls is, or JSON of the client's schema. Which it is, its first few words tell.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import msgspec

from enginehouse.core.openai.forced import JsonAfterThinking, forced_family, rest
from enginehouse.core.openai.requests import ChatRequest, ToolChoiceMode
from enginehouse.core.openai.schema import check_schema, has_refs, json_text, moved
from enginehouse.core.openai.tools import Offer, call_schemas
from enginehouse.core.output.family import Family
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import OutputParser, ParserInput
from enginehouse.core.output.reader import GeneratorParser, Reader, Reading
from enginehouse.core.output.values import named_call
from enginehouse.domain.constraint import JsonObject, JsonSchema

_CALL: Final = "$call"
_FORM: Final = "$form"
"""Places among the definitions; no tool has such a name."""


def either_schema(form: JsonSchema | JsonObject, offer: Offer, parallel: bool, where: str) -> JsonSchema:
    """JSON of the form, or a call, or a list of calls unless only one is wanted. where: the field of the form.

    Raises InvalidRequest for tools whose parameters are no schema.
    """
    for at, tool in enumerate(offer.for_template):
        check_schema(tool["function"]["parameters"], f"tools[{at}].function.parameters")
    calls, shared = call_schemas(offer)
    schema: Any = msgspec.json.decode(form.schema) if isinstance(form, JsonSchema) else {"type": "object"}
    if isinstance(schema, dict) and has_refs(schema):
        to = f"#/$defs/{_FORM}"
        shared[_FORM] = moved(schema, to)
        schema = {"$ref": to}
    call = {"$ref": f"#/$defs/{_CALL}"}  # engines take their time over schemas: what stands twice is said once
    shared[_CALL] = {"anyOf": calls}
    lists = [{"type": "array", "minItems": 1, "items": call}] if parallel else []
    return JsonSchema(json_text({"anyOf": [call, *lists, schema], "$defs": shared}, where))


def answer_family(request: ChatRequest, usual: Family | None) -> Family | None:
    """What reads the answers to a request: `usual`, unless they are held to JSON that stands for calls."""
    held = request.tools and isinstance(request.sampling.constraint, JsonSchema)
    if not held or request.tool_choice.mode is not ToolChoiceMode.AUTO:
        return forced_family(request, usual)
    names = frozenset(tool.name for tool in request.tools)
    return EitherFamily(special=usual.shown if usual is not None else frozenset(), usual=usual, names=names)


@dataclass(frozen=True)
class EitherFamily(Family):
    """Reads thinking as the family does, and the rest as calls or as text."""

    usual: Family | None = None
    names: frozenset[str] = field(default_factory=frozenset)
    """Of the tools."""

    def parser(self, given: ParserInput) -> OutputParser:
        before = self.usual.parser(replace(given, tools=())) if self.usual is not None else None
        read = partial(_read, self.names, Marks(*self.shown))
        return JsonAfterThinking(before, ("{", "["), GeneratorParser(read))


def _read(names: Set[str], marks: Marks, reader: Reader) -> Reading[None]:
    reader.record("")
    yield from reader.space()
    many = (yield from reader.next_is("[")) is not None
    yield from reader.space()
    lead = reader.recorded()
    reader.record("")
    if (yield from _calls(names, reader)):
        text, whole = yield from reader.json(reader.recorded())
        while whole and _is_call(text) and (call := named_call(text)) is not None:
            reader.call(*call)
            lead = text = ""
            yield from reader.space()
            if not many or (yield from reader.next_is(",")) is None:
                yield from reader.next_is("]")
                yield from reader.space()
                break
            text, whole = yield from reader.json()
        if not reader.cut:
            reader.say(lead + text)
    else:
        reader.say(lead + reader.recorded())
    yield from rest(reader, marks)


def _calls(names: Set[str], reader: Reader) -> Reading[bool]:
    """Whether what comes begins as a call does: with the name of a tool."""
    for mark in ("{", '"name"', ":"):
        if (yield from reader.next_is(mark)) is None:
            return False
        yield from reader.space()
    if (yield from reader.ahead('"')) is None:
        return False
    text, whole = yield from reader.json()
    return whole and text[1:-1] in names


def _is_call(text: str) -> bool:
    """A text may begin like one; a call has this and nothing else."""
    try:
        return set(msgspec.json.decode(text, type=dict[str, msgspec.Raw])) == {"name", "parameters"}
    except msgspec.DecodeError:
        return False
