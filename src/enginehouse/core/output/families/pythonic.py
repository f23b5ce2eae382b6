"""`[get_weather(city="Paris", days=2), get_time()]`: Llama 4, Llama 3.2 (1B, 3B), ToolACE.

A list of calls as Python writes them, with names and literals for arguments; `<|python_start|>` and `<|python_end|>`
may stand around it (LFM2 has marks of its own, and always). Without them it is one only where the content begins, and
only if offered tools are called: else it is text that begins with a bracket. The list counts as a whole: cut off, or
with anything but literals, it is none.

Nothing here is run as Python: literals are written anew as JSON, and a JSON decoder judges the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import arguments, encode, value_text

_STRUCTURE: Final = Marks(*"'\"()[]{},:=")
_STRINGS: Final = {end: Marks(end, "\\\\", "\\" + end[0]) for end in ("'", '"', "'''", '"""')}
_BRACKETS: Final = {"(": ("[", ")"), "[": ("[", "]"), "{": ("{", "}")}
"""How an opening bracket is written in JSON, and what closes it."""
_CLOSERS: Final = {")": "]", "]": "]", "}": "}"}
_LITERALS: Final = frozenset({"null", "boolean", "number"})
_GROUPING: Final = re.compile(r"(?<=\d)_(?=\d)")
_ESCAPE: Final = re.compile(
    r"""\\(?:(?P<same>u[0-9a-fA-F]{4}|[nrtbf\\"])|x(?P<x>[0-9a-fA-F]{2})|U(?P<U>[0-9a-fA-F]{8})|(?P<o>[0-7]{1,3})|.)"""
    r"""|["\x00-\x1f]""",
    re.DOTALL,
)
_ESCAPED: Final = {"\\'": "'", "\\\n": "", "\\a": "\\u0007", "\\v": "\\u000b"}


def _format(begin: str, end: str, bare: Callable[[Reader, ParserInput], Reading[bool]] | None = None) -> ToolFormat:
    def read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
        called = yield from _bare(reader, given)
        if called:
            yield from reader.space()
            yield from reader.next_is(end)
        return called

    return ToolFormat(Marks(begin), read, special=frozenset({begin, end}), bare=bare)


def _bare(reader: Reader, given: ParserInput) -> Reading[bool]:
    yield from reader.space()
    if (yield from reader.next_is("[")) is None:
        return False
    heads = {f"{tool.name}(": tool.name for tool in given.tools}
    calls: list[tuple[str, str]] = []
    separator: str | None = ","
    yield from reader.space()
    while separator == ",":
        head = yield from reader.next_is(*heads)
        text = (yield from python_arguments(reader)) if head is not None else None
        written = arguments(text) if text is not None else None
        if head is None or written is None:
            return False
        calls.append((heads[head], written))
        yield from reader.space()
        separator = yield from reader.next_is(",", "]")
        if separator == ",":
            yield from reader.space()
            separator = (yield from reader.next_is("]")) or separator
    if separator is None:
        return False
    for call in calls:
        reader.call(*call)
    return True


def python_arguments(reader: Reader) -> Reading[str | None]:
    """From behind the bracket of a call to its end, as a JSON object; None: it has no end, or no literals."""
    parts, open_ = ["{"], [_Open(")", 0)]
    while open_:
        text, mark = yield from reader.take(_STRUCTURE)
        if bare := text.strip():
            value = encode(bare) if mark in ("=", ":") else value_text(_GROUPING.sub("", bare), _LITERALS)
            if mark not in ("=", ":") and value.startswith('"'):
                return None
            parts.append(value)
        if mark is None:
            return None
        if mark in _BRACKETS:
            bracket, closer = _BRACKETS[mark]
            open_.append(_Open(closer, len(parts)))
            parts.append(bracket)
        elif mark in _CLOSERS:
            inner = open_.pop()
            if inner.closer != mark:
                return None
            if parts[-1] == "," and parts[-2] not in ("{", "["):  # one more behind the last
                parts.pop()
            if mark == ")" and open_ and not inner.comma and inner.at < len(parts) - 1:
                parts[inner.at] = ""  # no tuple, but a value in brackets
            else:
                parts.append(_CLOSERS[mark] if open_ else "}")
        elif mark in _STRINGS:
            string = yield from _string(reader, mark)
            if string is None:
                return None
            if parts[-1] == '"':  # two strings side by side are one
                parts.pop()
            else:
                parts.append('"')
            parts += string, '"'
        else:
            open_[-1].comma |= mark == ","
            parts.append(":" if mark == "=" else mark)
    return "".join(parts)


@dataclass(slots=True)
class _Open:
    """A bracket that is open."""

    closer: str
    at: int
    comma: bool = False


def _string(reader: Reader, quote: str) -> Reading[str | None]:
    """From behind its first quotation mark to the end of a string, as inside of JSON's; None: it has no end."""
    more = yield from reader.next_is(quote * 2, quote)
    if more == quote:
        return ""
    end = quote * 3 if more else quote
    parts: list[str] = []
    while True:
        text, mark = yield from reader.take(_STRINGS[end])
        if mark is None:
            return None
        parts.append(text)
        if mark == end:
            return _ESCAPE.sub(_escaped, "".join(parts))
        parts.append(mark)


def _escaped(found: re.Match[str]) -> str:
    """In JSON, what has another meaning there. As in Python, an escape that is none is a backslash."""
    text = found[0]
    if found["same"] is not None:
        return text
    code = int(found["o"], 8) if found["o"] else int(found["x"] or found["U"] or "-1", 16)
    if 0 <= code <= 0x10FFFF:
        return encode(chr(code))[1:-1]
    return _ESCAPED.get(text, encode(text)[1:-1])


PYTHONIC: Final = _format("<|python_start|>", "<|python_end|>", _bare)
LFM2: Final = _format("<|tool_call_start|>", "<|tool_call_end|>")
