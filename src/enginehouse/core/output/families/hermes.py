"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes 2 and later, Qwen 2.5, Qwen3."""

from __future__ import annotations

from typing import Final

from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import named_call

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


def _read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
    yield from reader.space()
    if (yield from reader.ahead("{")) is None:
        return False
    text, _ = yield from reader.json()
    yield from reader.space()
    closed = yield from reader.next_is(CLOSE)
    if closed is None and (reader.cut or not reader.done):  # a model may stop without the closing mark
        return False
    call = named_call(text)
    if call is None:
        return False
    reader.call(*call)
    return True


HERMES: Final = ToolFormat(Marks(OPEN), _read, special=frozenset({OPEN, CLOSE}), spaced=True)
