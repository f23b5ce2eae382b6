"""Kimi K2 and K2.x: tokens around JSON arguments; the call's id holds its name.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}
    <|tool_call_end|><|tool_calls_section_end|>

The number counts the calls of a whole conversation, so the id is kept: the model has to meet it again.
"""

from __future__ import annotations

import re
from typing import Final

from enginehouse.core.output.families.section import Section
from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks

SECTIONS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
"""Models also write the second one."""
SECTION_ENDS = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
CALL, CALL_END, ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"

_ID: Final = re.compile(r"(?:functions\.)?(?P<name>.+):\d+", re.DOTALL)


def _named(head: str) -> tuple[str, str | None]:
    found = _ID.fullmatch(head.strip())
    return (found["name"], found.group()) if found is not None else (head.strip(), None)


KIMI_K2 = ToolFormat(
    Marks(*SECTIONS, CALL),
    Section(call=CALL, separator=ARGUMENTS, call_end=CALL_END, ends=SECTION_ENDS, named=_named),
    frozenset({*SECTIONS, *SECTION_ENDS, CALL, CALL_END, ARGUMENTS}),
)
