"""DeepSeek's markup (DSML): V3.2, V4, and V4.1 with a space in its marks.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 has `tool_calls` in place of `function_calls`, V4.1 ` calls` (and ` invoke`, ` parameter`). Strings stand there as
they are, other values as JSON. Models also write `<｜DSML｜invoke name="get_time"/>`, and one JSON object in place of
parameters.
"""

from __future__ import annotations

import re
from typing import Final

from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import arguments, encode, object_text, value_text

DSML: Final = "｜DSML｜"


class _Tags:
    """The marks of one way to write a block."""

    def __init__(self, block: str, gap: str = "") -> None:
        self.block, self.block_end = f"<{DSML}{block}>", f"</{DSML}{block}>"
        self.invoke, self.invoke_end = f"<{DSML}{gap}invoke ", f"</{DSML}{gap}invoke>"
        self.parameter, parameter_end = f"<{DSML}{gap}parameter ", f"</{DSML}{gap}parameter>"
        self.in_block = Marks(self.invoke, self.block_end)
        self.in_invoke = Marks(self.parameter, self.invoke_end, self.invoke, self.block_end)
        self.in_value = Marks(parameter_end)


_TAGS: Final = {tags.block: tags for tags in (_Tags("function_calls"), _Tags("tool_calls"), _Tags(" calls", gap=" "))}
_TAG_END: Final = Marks(">")
_NAME: Final = re.compile(r'name="(?P<name>.*?)"(?: string="(?P<string>true|false)")?\s*/?', re.DOTALL)


def _read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
    tags, good = _TAGS[mark], True
    while True:
        between, at = yield from reader.take(tags.in_block)
        good = good and not between.strip()
        while at == tags.invoke:
            good, at = yield from _read_call(reader, tags)
        if at is None or at == tags.block_end:
            return good


def _read_call(reader: Reader, tags: _Tags) -> Reading[tuple[bool, str | None]]:
    """(whether it was one, the mark that ended it)."""
    tag, _ = yield from reader.take(_TAG_END)
    name = _NAME.fullmatch(tag)
    if name is not None and tag.endswith("/"):
        reader.call(name["name"], "{}")
        return True, tags.invoke_end
    call, at = yield from _arguments(reader, tags)
    if name is None or call is None or at is None:
        return False, at
    reader.call(name["name"], call)
    return True, at


def _arguments(reader: Reader, tags: _Tags) -> Reading[tuple[str | None, str | None]]:
    """(JSON text of the arguments, the mark behind them)."""
    members: list[tuple[str, str]] = []
    between, at = yield from reader.take(tags.in_invoke)
    while at == tags.parameter:
        tag, _ = yield from reader.take(_TAG_END)
        name = _NAME.fullmatch(tag)
        text, end = yield from reader.take(tags.in_value)
        if name is None or end is None:
            return None, at if end else None
        members.append((name["name"], encode(text) if name["string"] == "true" else value_text(text, None)))
        between, at = yield from reader.take(tags.in_invoke)
    if between.strip():
        return (None if members else arguments(between)), at
    return object_text(members), at


DEEPSEEK_DSML: Final = ToolFormat(Marks(*_TAGS), _read, special=frozenset({DSML}), spaced=True)
