"""Kimi K3: an answer in channels, each with marks of several tokens; arguments with their types.

    …<|close|>think<|sep|><|open|>response<|sep|>…<|close|>response<|sep|><|open|>tools<|sep|>
    <|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|>
    <|close|>tools<|sep|><|close|>message<|sep|>

(in one line). The prompt opens `think`, or `response` where the model is not to think; it may skip either.
"""

from __future__ import annotations

import re
from typing import Final

from enginehouse.core.output.families.elements import Elements
from enginehouse.core.output.family import Family, ToolFormat, read_calls
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import Content, ParserInput, Reasoning
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import encode, value_text

OPEN, CLOSE, SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
THINK, TOOLS = f"{OPEN}think{SEPARATOR}", f"{OPEN}tools{SEPARATOR}"
_CHANNELS: Final = Marks(
    THINK,
    f"{CLOSE}think{SEPARATOR}",
    f"{OPEN}response{SEPARATOR}",
    f"{CLOSE}response{SEPARATOR}",
    f"{CLOSE}message{SEPARATOR}",
)
_ATTRIBUTE: Final = re.compile(r'\b(\w+)="([^"]*)"')


def _read(reader: Reader, given: ParserInput) -> Reading[None]:
    thinks = Reasoning if given.reasoning else Content
    reader.kind = thinks if given.prompt_tail.endswith(THINK) else Content
    marks = _ALL if given.tools else _CHANNELS
    while (mark := (yield from reader.until(marks))) is not None:
        if mark == TOOLS:
            yield from read_calls(_TOOLS, mark, reader, given)
        reader.kind = thinks if mark == THINK else Content


def _attributes(text: str) -> dict[str, str]:
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(text)}


def _named(attributes: str) -> str | None:
    return _attributes(attributes).get("tool")


def _typed(attributes: str, value: str) -> tuple[str, str] | None:
    found = _attributes(attributes)
    if "key" not in found:
        return None
    return found["key"], encode(value) if found.get("type") == "string" else value_text(value, None)


_TOOLS: Final = ToolFormat(
    Marks(TOOLS),
    Elements(
        call=f"{OPEN}call ",
        call_end=f"{CLOSE}call{SEPARATOR}",
        argument=f"{OPEN}argument ",
        argument_end=f"{CLOSE}argument{SEPARATOR}",
        block_end=f"{CLOSE}tools{SEPARATOR}",
        tag_end=SEPARATOR,
        named=_named,
        typed=_typed,
    ),
)
_ALL: Final = _CHANNELS | _TOOLS.marks

KIMI_K3: Final = Family(whole=_read, special=frozenset({OPEN, CLOSE, SEPARATOR}))
