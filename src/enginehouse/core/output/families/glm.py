"""GLM 4.5 and later. Values are bare text, so types come from the tool's schema.

    <tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>

GLM 4.5 and 4.6 write a line end behind the name, each key and each value. A value may hold the tags themselves.
"""

from __future__ import annotations

import re
from typing import Final

from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import typed_arguments

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"

_NAME: Final = re.compile(r"[^<>{}\s]*")
_KEY_TEXT: Final = re.compile(r"[^<>\n]*")
_VALUE_ENDS: Final = Marks(VALUE_END, CLOSE)


def _read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
    yield from reader.space()
    name = yield from reader.run(_NAME)
    values: list[tuple[str, str]] = []
    yield from reader.space()
    while (tag := (yield from reader.next_is(KEY, CLOSE))) == KEY:
        key = yield from reader.run(_KEY_TEXT)
        if (yield from reader.next_is(KEY_END)) is None:
            return False
        yield from reader.space()
        if (yield from reader.next_is(VALUE)) is None:
            return False
        value, tag = yield from _value(reader)
        values.append((key.strip(), value))
        if tag == CLOSE:
            break
    if tag is None or not name:
        return False
    reader.call(name, typed_arguments(given, name, values))
    return True


def _value(reader: Reader) -> Reading[tuple[str, str | None]]:
    """(a value, the tag that ended it). A tag in it ends it only where another tag of the call follows, or its end."""
    parts: list[str] = []
    while True:
        text, mark = yield from reader.take(_VALUE_ENDS)
        if mark is None:
            return "", None
        space = yield from reader.space()
        if mark == VALUE_END:
            ends = (yield from reader.ahead(KEY, CLOSE)) is not None
        else:  # the value's own closing tag is missing
            ends = (yield from reader.ahead(OPEN)) is not None or (reader.done and not reader.cut)
        parts.append(text)
        if ends:
            return "".join(parts), mark
        parts.append(mark + space)


GLM: Final = ToolFormat(
    Marks(OPEN),
    _read,
    special=frozenset({OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END}),
    spaced=True,
)
