"""Which formats a model's answers are read by: as its operator says, else its engines, else its chat template."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from enginehouse.core.output import detect
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
    name = settings.reasoning_field
    if not name or name in _TAKEN:
        yield f"--reasoning-field: {name!r} cannot be it; reasoning_content and reasoning are what clients look for"


def _side_by_side(tool_parser: str, reasoning_parser: str) -> Iterator[str]:
    tools, thinking = TOOLS.get(tool_parser), REASONING.get(reasoning_parser)
    if tools is None or thinking is None or tools == thinking:
        return
    why = f"which reads all of an answer; {AUTO} can"
    if isinstance(tools, Family):
        yield f"--reasoning-parser: {reasoning_parser!r} cannot be beside --tool-parser {tool_parser!r}, {why}"
    elif isinstance(thinking, Family):
        yield f"--tool-parser: {tool_parser!r} cannot be beside --reasoning-parser {reasoning_parser!r}, {why}"


@dataclass(frozen=True, slots=True)
class Parser:
    """What reads calls, or thinking, and on whose word."""

    name: str | None = None
    """None: nothing does, they stay in the content."""
    by: Literal["flag", "engine", "template"] | None = None
    """None: nobody has named one."""

    def __str__(self) -> str:
        return f"{self.name or NONE} (by {self.by})" if self.by else NONE


@dataclass(frozen=True, slots=True)
class Selection:
    """The formats of a model's answers, and how they were found."""

    formats: Family = field(default_factory=Family)
    tools: Parser = field(default_factory=Parser)
    reasoning: Parser = field(default_factory=Parser)
    unknown: tuple[str, ...] = ()
    """Sentences on what engines said and nobody understands."""


def select(
    settings: FormatSettings, tool_parser: str | None, reasoning_parser: str | None, template: str | None
) -> Selection:
    """The two names are the engines'."""
    template = template or ""
    tools, no_tools = _name("tool parser", settings.tool_parser, tool_parser, TOOLS)
    thinking, no_thinking = _name("reasoning parser", settings.reasoning_parser, reasoning_parser, REASONING)
    found = formats(tools, thinking, template)
    told = (settings.tool_parser, settings.reasoning_parser)
    partly = isinstance(TOOLS.get(told[0]), ToolFormat) or isinstance(REASONING.get(told[1]), Thinking)
    if found.whole is not None and partly:  # by engines or template, and the operator has said otherwise
        told = tools, thinking = (NONE if told[0] == AUTO else told[0], NONE if told[1] == AUTO else told[1])
        found = formats(tools, thinking)
    reads_calls = _parser(told[0], tools, detect.tool_parser(template))
    reads_thinking = _parser(told[1], thinking, detect.reasoning_parser(template))
    if found.whole is not None:  # one for both, unless the operator wants only a part of it
        one = reads_calls if isinstance(TOOLS.get(reads_calls.name or ""), Family) else reads_thinking
        reads_calls = reads_calls if told[0] == NONE else one
        reads_thinking = reads_thinking if told[1] == NONE else one
    return Selection(found, reads_calls, reads_thinking, (*no_tools, *no_thinking))


def _parser(told: str, name: str, shown: str | None) -> Parser:
    """told: by the operator; name: by the operator or engines; shown: by the template."""
    if told != AUTO:
        return Parser(None if told == NONE else told, "flag")
    if name != AUTO:
        return Parser(name, "engine")
    return Parser(shown, "template") if shown is not None else Parser()


def _name(what: str, told: str, reported: str | None, known: Collection[str]) -> tuple[str, tuple[str, ...]]:
    if told != AUTO or not reported:
        return told, ()
    if reported in known:
        return reported, ()
    return AUTO, (f"the engines' {what} {reported[:64]!r} is not known here",)
