"""Qwen3-Coder, Qwen3.5 and later. Values are bare text on lines of their own, so types come from the tool's schema.

<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

from typing import Final

from enginehouse.core.output.families.tagged import Tags
from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks

OPEN: Final = "<tool_call>"
_TAGS: Final = Tags("<function=", "</function>", "<parameter=", "</parameter>", "</tool_call>", lines=True)

QWEN_XML: Final = ToolFormat(
    Marks(OPEN, _TAGS.call),  # models forget the outer tag
    _TAGS.read,
    special=frozenset({OPEN, _TAGS.calls_end}),
    spaced=True,
)
