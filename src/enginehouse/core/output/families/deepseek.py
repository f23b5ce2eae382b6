"""DeepSeek's tokens around JSON arguments: V3 and R1-0528 with a fence, V3.1 (and V3.2-Exp) without.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}
    <｜tool▁call▁end｜><｜tool▁calls▁end｜>

The second form is one line, and the bar and the block in the marks are no ASCII.
"""

from __future__ import annotations

from enginehouse.core.output.families.section import Section
from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
FENCE, FENCE_END = "```json", "```"

_SPECIAL = frozenset({SECTION, SECTION_END, CALL, CALL_END, SEPARATOR})


def _fenced_name(head: str) -> tuple[str, None]:
    return head.partition(SEPARATOR)[2].strip(), None  # the first part is the kind of tool


def _name(head: str) -> tuple[str, None]:
    return head.strip(), None


DEEPSEEK_V3 = ToolFormat(
    Marks(SECTION, CALL),
    Section(call=CALL, separator=FENCE, call_end=CALL_END, ends=(SECTION_END,), named=_fenced_name, padding=FENCE_END),
    _SPECIAL,
)
DEEPSEEK_V31 = ToolFormat(
    Marks(SECTION, CALL),
    Section(call=CALL, separator=SEPARATOR, call_end=CALL_END, ends=(SECTION_END,), named=_name),
    _SPECIAL,
)
