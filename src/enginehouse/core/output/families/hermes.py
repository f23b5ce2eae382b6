"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes 2 and later, Qwen 2.5, Qwen3."""

from __future__ import annotations

from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def _read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
    raise NotImplementedError
    yield


HERMES = ToolFormat(Marks(OPEN), _read, special=frozenset({OPEN, CLOSE}))
