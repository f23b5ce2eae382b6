"""Which formats a model's answers are read by: as its operator says, else its engines, else its chat template."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from enginehouse.core.output.family import Family, Thinking, ToolFormat
from enginehouse.core.output.registry import AUTO, NONE, REASONING, TOOLS, formats

_TAKEN: Final = ("role", "content", "refusal", "tool_calls")


@dataclass(frozen=True)
class FormatSettings:
    """How answers of chats are read."""

    tool_parser: str = AUTO
    """How the model writes calls of tools, by the name that vLLM or SGLang has for it (`hermes`, `qwen3_coder`, ...).
    `auto`: the name that its engines report, else what its chat template shows. `none`: calls stay in the content."""
    reasoning_parser: str = AUTO
    """How the model marks its thinking, likewise (`qwen3`, `deepseek_r1`, ...). `none`: it stays in the content."""
    reasoning_field: str = "reasoning_content"
    """Name of the field in which `/v1/chat/completions` gives out the thinking; some clients look for `reasoning`."""


def format_problems(settings: FormatSettings) -> Iterator[str]:
    """One sentence for each: the setting, its value, what is wrong, what is right."""
    for flag, name, known in (
        ("--tool-parser", settings.tool_parser, TOOLS),
        ("--reasoning-parser", settings.reasoning_parser, REASONING),
    ):
        if name not in known and name not in (AUTO, NONE):
            yield f"{flag}: {name!r} is not known; {AUTO}, {NONE} and these are: {', '.join(sorted(known))}"
    yield from _side_by_side(settings.tool_parser, settings.reasoning_parser)
    field = settings.reasoning_field
    if not field or field in _TAKEN:
        yield f"--reasoning-field: {field!r} cannot be it; reasoning_content and reasoning are what clients look for"


def _side_by_side(tool_parser: str, reasoning_parser: str) -> Iterator[str]:
    tools, thinking = TOOLS.get(tool_parser), REASONING.get(reasoning_parser)
    if tools is None or thinking is None or tools == thinking:
        return
    why = f"which reads all of an answer; {AUTO} can"
    if isinstance(tools, Family):
        yield f"--reasoning-parser: {reasoning_parser!r} cannot be beside --tool-parser {tool_parser!r}, {why}"
    elif isinstance(thinking, Family):
        yield f"--tool-parser: {tool_parser!r} cannot be beside --reasoning-parser {reasoning_parser!r}, {why}"


def select(
    settings: FormatSettings, tool_parser: str | None, reasoning_parser: str | None, template: str | None
) -> tuple[Family, tuple[str, ...]]:
    """(the formats, sentences on what engines said and nobody understands); the two names are the engines'."""
    tools, no_tools = _name("tool parser", settings.tool_parser, tool_parser, TOOLS)
    thinking, no_thinking = _name("reasoning parser", settings.reasoning_parser, reasoning_parser, REASONING)
    found = formats(tools, thinking, template or "")
    told = (settings.tool_parser, settings.reasoning_parser)
    partly = isinstance(TOOLS.get(told[0]), ToolFormat) or isinstance(REASONING.get(told[1]), Thinking)
    if found.whole is not None and partly:  # by engines or template, and the operator has said otherwise
        found = formats(*(NONE if name == AUTO else name for name in told))
    return found, (*no_tools, *no_thinking)


def _name(what: str, told: str, reported: str | None, known: Collection[str]) -> tuple[str, tuple[str, ...]]:
    if told != AUTO or not reported:
        return told, ()
    if reported in known:
        return reported, ()
    return AUTO, (f"the engines' {what} {reported[:64]!r} is not known here",)
