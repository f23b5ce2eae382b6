"""Calls as JSON objects behind a mark, one or a list of them: models of several families that differ in the marks.

<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]                  Granite 3
functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]                      Phi-4-mini
<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>          Nemotron before 3
<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>      Jamba, Hunyuan A13B
<longcat_tool_call>{"name": "get_weather", "arguments": {}}</longcat_tool_call>         LongCat
<|action_start|><|plugin|>{"name": "get_weather", "parameters": {}}<|action_end|>       InternLM, Intern-S1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import named_call


def read_list(reader: Reader) -> Reading[bool]:
    """From behind its bracket to the end of a list of calls: `ToolFormat.read`.

    Each is handed out for itself, so that one cut off takes no other with it.
    """
    while (yield from _object(reader)):
        yield from reader.space()
        if (yield from reader.next_is(",")) is None:
            return (yield from reader.next_is("]")) is not None
    return False


def _object(reader: Reader) -> Reading[bool]:
    text, whole = yield from reader.json()
    call = named_call(text) if whole else None
    if call is None:
        return False
    reader.call(*call)
    return True


def _read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
    """One object or a list, which nothing closes."""
    yield from reader.space()
    listed = mark.endswith("[") or (yield from reader.next_is("[")) is not None
    return (yield from read_list(reader) if listed else _object(reader))


def _up_to(close: str) -> Callable[[Reader, str, ParserInput], Reading[bool]]:
    """Objects or lists one behind the other, up to the closing mark, which a model may forget."""

    def read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
        while (yield from _read(reader, mark, given)):
            space = yield from reader.space()
            if (yield from reader.next_is(close)) is not None or reader.done:
                return True
            if (yield from reader.ahead("{")) is None:
                reader.say(space)
                return True
        return False

    return read


def _tags(name: str) -> ToolFormat:
    return ToolFormat(
        Marks(f"<{name}>"), _up_to(f"</{name}>"), special=frozenset({f"<{name}>", f"</{name}>"}), spaced=True
    )


_ACTION: Final = ("<|action_start|>", "<|plugin|>", "<|action_end|>")

GRANITE: Final = ToolFormat(
    Marks("<|tool_call|>", "<tool_call>"), _read, special=frozenset({"<|tool_call|>", "<tool_call>"}), spaced=True
)
GRANITE_20B: Final = ToolFormat(Marks("<function_call>"), _read, frozenset({"<function_call>"}), spaced=True)
PHI4_MINI: Final = ToolFormat(
    Marks("functools[", "<|tool_call|>"),
    _up_to("<|/tool_call|>"),
    special=frozenset({"<|tool_call|>", "<|/tool_call|>"}),
    spaced=True,
)
NEMOTRON: Final = _tags("TOOLCALL")
TOOL_CALLS: Final = _tags("tool_calls")
LONGCAT: Final = _tags("longcat_tool_call")
INTERN: Final = ToolFormat(Marks(_ACTION[0] + _ACTION[1]), _up_to(_ACTION[2]), special=frozenset(_ACTION), spaced=True)
