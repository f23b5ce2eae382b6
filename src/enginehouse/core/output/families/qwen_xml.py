"""Qwen3-Coder, Qwen3.5 and later; Seed-OSS, with `<seed:tool_call>` around it.

Values are bare text on lines of their own, so types come from the tool's schema.

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


def _format(name: str) -> ToolFormat:
    tags = Tags("<function=", "</function>", "<parameter=", "</parameter>", f"</{name}>", lines=True)
    return ToolFormat(
        Marks(f"<{name}>", tags.call),  # models forget the outer tag
        tags.read,
        special=frozenset({f"<{name}>", f"</{name}>"}),
        spaced=True,
    )


QWEN_XML: Final = _format("tool_call")
SEED_OSS: Final = _format("seed:tool_call")
