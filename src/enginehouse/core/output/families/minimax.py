"""MiniMax M2. Values are bare text, so types come from the tool's schema; one block may hold several calls.

<minimax:tool_call>
<invoke name="get_weather">
<parameter name="city">Paris</parameter>
</invoke>
</minimax:tool_call>
"""

from __future__ import annotations

from typing import Final

from enginehouse.core.output.families.tagged import Tags
from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks

OPEN: Final = "<minimax:tool_call>"
_TAGS: Final = Tags("<invoke name=", "</invoke>", "<parameter name=", "</parameter>", "</minimax:tool_call>")

MINIMAX: Final = ToolFormat(Marks(OPEN), _TAGS.read, special=frozenset({OPEN, _TAGS.calls_end}), spaced=True)
