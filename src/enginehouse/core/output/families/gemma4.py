"""`<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>`: Gemma 4.

Arguments are like JSON, but strings stand between marks, with nothing escaped in them, and names have no quotes.
Thinking stands in a channel: `<|channel>thought` … `<channel|>`.
"""

from __future__ import annotations

import re
from typing import Final

from enginehouse.core.output.family import Thinking, ToolFormat
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import arguments, encode, value_text

OPEN: Final = "<|tool_call>"
CLOSE: Final = "<tool_call|>"
QUOTE: Final = '<|"|>'
CHANNEL: Final = "<|channel>"
_NAME: Final = re.compile(r"[\w.:/-]*")
_QUOTE: Final = Marks(QUOTE)
_LITERALS: Final = frozenset({"null", "boolean", "number"})
_STRUCTURE: Final = Marks(QUOTE, OPEN, CLOSE, *"{}[]:,")


def _read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
    if (yield from reader.next_is("call:")) is None:
        return False
    name = yield from reader.run(_NAME)
    if not name or (yield from reader.next_is("{")) is None:
        return False
    text = yield from _object(reader)
    written = arguments(text) if text is not None else None
    if written is None:
        return False
    yield from reader.space()
    if (yield from reader.next_is(CLOSE)) is None and (reader.cut or not reader.done):
        return False
    reader.call(name, written)
    return True


def _object(reader: Reader) -> Reading[str | None]:
    """From behind its bracket to the end of an object, as JSON; None: it has no end."""
    parts = ["{"]
    depth = 1
    while depth:
        text, mark = yield from reader.take(_STRUCTURE)
        if bare := text.strip():
            parts.append(encode(bare) if mark == ":" else value_text(bare, _LITERALS))
        if mark == QUOTE:
            text, mark = yield from reader.take(_QUOTE)
            parts.append(encode(text))
        if mark is None or mark in (OPEN, CLOSE):
            return None
        if mark != QUOTE:
            parts.append(mark)
            depth += (mark in "{[") - (mark in "}]")
    return "".join(parts)


GEMMA4: Final = ToolFormat(Marks(OPEN), _read, special=frozenset({OPEN, CLOSE, QUOTE}))
GEMMA4_THINKING: Final = Thinking(CHANNEL + "thought", "<channel|>", special=frozenset({CHANNEL}))
