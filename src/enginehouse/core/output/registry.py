"""The names that engines give to their parsers, and the formats that they stand for.

Names are vLLM's and SGLang's (`--tool-call-parser`, `--reasoning-parser`), so that what an engine reports, and what its
operator knows, needs no translation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from enginehouse.core.output.families.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from enginehouse.core.output.families.deepseek_dsml import DEEPSEEK_DSML
from enginehouse.core.output.families.glm import GLM
from enginehouse.core.output.families.hermes import HERMES
from enginehouse.core.output.families.kimi import KIMI_K2
from enginehouse.core.output.families.kimi_k3 import KIMI_K3
from enginehouse.core.output.families.minimax import MINIMAX
from enginehouse.core.output.families.qwen_xml import QWEN_XML
from enginehouse.core.output.families.thinking import THINKING
from enginehouse.core.output.family import Family, Thinking, ToolFormat

T = TypeVar("T")

AUTO: Final = "auto"
NONE: Final = "none"

TOOLS: Final[Mapping[str, ToolFormat | Family]] = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseekv3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseekv31": DEEPSEEK_V31,
    "deepseek_v32": DEEPSEEK_DSML,
    "deepseekv32": DEEPSEEK_DSML,
    "deepseek_v4": DEEPSEEK_DSML,
    "deepseekv4": DEEPSEEK_DSML,
    "deepseek_v41": DEEPSEEK_DSML,
    "deepseekv41": DEEPSEEK_DSML,
    "hermes": HERMES,
    "kimi_k2": KIMI_K2,
    "kimi_k3": KIMI_K3,
    "qwen": HERMES,
    "qwen25": HERMES,
    "qwen3_coder": QWEN_XML,
    "qwen3_xml": QWEN_XML,
    "glm": GLM,
    "glm45": GLM,
    "glm47": GLM,
    "minimax_m2": MINIMAX,
    "minimax-m2": MINIMAX,
}
"""A Family reads all of an answer, thinking too."""

REASONING: Final[Mapping[str, Thinking | Family]] = {
    **THINKING,
    "kimi_k3": KIMI_K3,
}


def formats(tool_parser: str = AUTO, reasoning_parser: str = AUTO, template: str = "") -> Family:
    """The family that these names stand for. Raises ValueError."""
    tools = _named("tool parser", tool_parser, TOOLS)
    thinking = _named("reasoning parser", reasoning_parser, REASONING)
    for whole in (tools, thinking):
        if isinstance(whole, Family):
            return whole
    assert not isinstance(tools, Family)
    assert not isinstance(thinking, Family)
    return Family(thinking, tools)


def _named(what: str, name: str, known: Mapping[str, T]) -> T | None:
    if name in (AUTO, NONE):
        return None
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}: known are {', '.join(sorted(known))}, and {AUTO} and {NONE}")
    return known[name]
