"""`[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}`: Mistral Small 3.2 and later, Ministral 3, Devstral, Magistral.

`[CALL_ID]` with an id may come before `[ARGS]`, and each call has its own `[TOOL_CALLS]`. Older models (Mistral 7B
v0.3, Nemo, Large 2) write `[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]`; some of those in
between leave `[ARGS]` out.

Magistral and other reasoning models think between `[THINK]` and `[/THINK]`; the first Magistral wrote `<think>`.
"""

from __future__ import annotations

import re
from typing import Final

from enginehouse.core.output.families.json_calls import read_list
from enginehouse.core.output.family import Thinking, ToolFormat
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import arguments

CALLS: Final = "[TOOL_CALLS]"
CALL_ID: Final = "[CALL_ID]"
ARGS: Final = "[ARGS]"
_NAME: Final = re.compile(r"[\w.:/-]*")


def _read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
    yield from reader.space()
    if (yield from reader.next_is("[")) is not None:
        return (yield from read_list(reader))
    name = yield from reader.run(_NAME)
    call_id = None
    found = yield from reader.next_is(CALL_ID, ARGS, "{")
    if found == CALL_ID:
        call_id = yield from reader.run(_NAME)
        found = yield from reader.next_is(ARGS, "{")
    if not name or found is None:
        return False
    text, whole = yield from reader.json("{" if found == "{" else "")
    written = arguments(text) if whole else None
    if written is None:
        return False
    reader.call(name, written, call_id or None)
    return True


MISTRAL: Final = ToolFormat(Marks(CALLS), _read, special=frozenset({CALLS, CALL_ID, ARGS}), id_length=9)
MISTRAL_THINKING: Final = Thinking("[THINK]", "[/THINK]", alone=True, other=Thinking("<think>", "</think>"))
