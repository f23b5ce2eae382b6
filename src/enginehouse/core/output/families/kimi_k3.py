"""Kimi K3: an answer in channels, each with marks of several tokens; arguments with their types.

    …<|close|>think<|sep|><|open|>response<|sep|>…<|close|>response<|sep|><|open|>tools<|sep|>
    <|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|>
    <|close|>tools<|sep|><|close|>message<|sep|>

The prompt opens `think`, or `response` where the model is not to think.
"""

from __future__ import annotations

import re
from typing import Final

from enginehouse.core.output.family import Family, ToolFormat, read_calls
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import Content, ParserInput, Reasoning
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import encode, object_text, value_text

OPEN, CLOSE, SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
THINK, TOOLS = f"{OPEN}think{SEPARATOR}", f"{OPEN}tools{SEPARATOR}"
CALL, CALL_END, ARGUMENT, ARGUMENT_END, TOOLS_END = (
    f"{OPEN}call ",
    f"{CLOSE}call{SEPARATOR}",
    f"{OPEN}argument ",
    f"{CLOSE}argument{SEPARATOR}",
    f"{CLOSE}tools{SEPARATOR}",
)

_CHANNELS: Final = Marks(
    THINK,
    f"{CLOSE}think{SEPARATOR}",
    f"{OPEN}response{SEPARATOR}",
    f"{CLOSE}response{SEPARATOR}",
    f"{CLOSE}message{SEPARATOR}",
)
_SEPARATOR: Final = Marks(SEPARATOR)
_IN_TOOLS: Final = Marks(CALL, TOOLS_END)
_IN_CALL: Final = Marks(ARGUMENT, CALL_END, TOOLS_END)
_ARGUMENT_END: Final = Marks(ARGUMENT_END)
_ATTRIBUTE: Final = re.compile(r'(\w+)="([^"]*)"')


def _read(reader: Reader, given: ParserInput) -> Reading[None]:
    thinks = Reasoning if given.reasoning else Content
    reader.kind = thinks if given.prompt_tail.rstrip().endswith(THINK) else Content
    marks = _CHANNELS | _TOOLS.marks if given.tools else _CHANNELS
    while (mark := (yield from reader.until(marks))) is not None:
        if mark == TOOLS:
            yield from read_calls(_TOOLS, mark, reader, given)
        reader.kind = thinks if mark == THINK else Content


def _read_tools(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
    good = True
    while True:
        between, at = yield from reader.take(_IN_TOOLS)
        good = good and not between.strip()
        while at == CALL:
            good, at = yield from _read_call(reader)
        if at is None or at == TOOLS_END:
            return good


def _read_call(reader: Reader) -> Reading[tuple[bool, str | None]]:
    """(whether it was one, the mark that ended it)."""
    name = (yield from _attributes(reader)).get("tool")
    members: list[tuple[str, str]] = []
    between, at = yield from reader.take(_IN_CALL)
    while at == ARGUMENT:
        attributes = yield from _attributes(reader)
        text, at = yield from _value(reader)
        if at is None:
            return False, at
        kind = attributes.get("type")
        value = encode(text) if kind == "string" else value_text(text, frozenset({kind}) if kind else None)
        members.append((attributes.get("key", ""), value))
    if not name or between.strip() or at != CALL_END:
        return False, at
    reader.call(name, object_text(members))
    return True, at


def _attributes(reader: Reader) -> Reading[dict[str, str]]:
    text, _ = yield from reader.take(_SEPARATOR)
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(text)}


def _value(reader: Reader) -> Reading[tuple[str, str | None]]:
    """(text up to its end mark, the mark behind that). Where none of a call follows, the end is a part of the text."""
    parts: list[str] = []
    while True:
        text, end = yield from reader.take(_ARGUMENT_END)
        parts.append(text)
        if end is None:
            return "", None
        space = yield from reader.space()
        if (after := (yield from reader.next_is(*_IN_CALL.all))) is not None:
            return "".join(parts), after
        parts += end, space


_TOOLS: Final = ToolFormat(Marks(TOOLS), _read_tools)

KIMI_K3: Final = Family(whole=_read, special=frozenset({OPEN, CLOSE, SEPARATOR}))
