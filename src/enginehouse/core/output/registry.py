"""The names that engines give to their parsers, and the formats that they stand for.

Names are vLLM's and SGLang's (`--tool-call-parser`, `--reasoning-parser`), so that what an engine reports, and what its
operator knows, needs no translation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from enginehouse.core.output.families.hermes import HERMES
from enginehouse.core.output.family import Family, Thinking, ToolFormat

T = TypeVar("T")

AUTO: Final = "auto"
NONE: Final = "none"

THINK: Final = Thinking("<think>", "</think>")
"""Opened by the prompt or by the model, with the tags that most families use."""

TOOLS: Final[Mapping[str, ToolFormat | Family]] = {
    "hermes": HERMES,
    "qwen": HERMES,
    "qwen25": HERMES,
}
"""A Family reads all of an answer, thinking too."""

REASONING: Final[Mapping[str, Thinking | Family]] = {
    "qwen3": THINK,
    "glm45": THINK,
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
