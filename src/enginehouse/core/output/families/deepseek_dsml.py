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

from enginehouse.core.output.families.elements import Elements
from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import encode, value_text

DSML: Final = "｜DSML｜"
_CALL: Final = re.compile(r'name="(.*?)"\s*/?', re.DOTALL)
_ARGUMENT: Final = re.compile(r'name="(?P<name>.*?)"(?:\s+string="(?P<string>true|false)")?\s*', re.DOTALL)


def _named(attributes: str) -> str | None:
    found = _CALL.fullmatch(attributes)
    return found[1] if found is not None else None


def _typed(attributes: str, value: str) -> tuple[str, str] | None:
    found = _ARGUMENT.fullmatch(attributes)
    if found is None:
        return None
    return found["name"], encode(value) if found["string"] == "true" else value_text(value, None)


def _block(name: str, gap: str = "") -> Elements:
    return Elements(
        call=f"<{DSML}{gap}invoke ",
        call_end=f"</{DSML}{gap}invoke>",
        argument=f"<{DSML}{gap}parameter ",
        argument_end=f"</{DSML}{gap}parameter>",
        block_end=f"</{DSML}{name}>",
        tag_end=">",
        named=_named,
        typed=_typed,
    )


_BLOCKS: Final = {
    f"<{DSML}function_calls>": _block("function_calls"),
    f"<{DSML}tool_calls>": _block("tool_calls"),
    f"<{DSML} calls>": _block(" calls", gap=" "),
}


def _read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
    return _BLOCKS[mark](reader, mark, given)


DEEPSEEK_DSML: Final = ToolFormat(Marks(*_BLOCKS), _read, special=frozenset({DSML}), spaced=True)
