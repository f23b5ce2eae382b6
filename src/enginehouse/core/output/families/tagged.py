"""Calls in tags, one for each parameter, as Qwen and MiniMax write them; values stand there bare, without escapes.

So a value may hold the very tags that end it. A tag ends a value only where the next tag of a call follows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import typed_arguments

_NAME: Final = re.compile(r"[^<>\n]*")


@dataclass(frozen=True)
class Tags:
    """The tags of one family. Opening ones end before the name, which goes up to the next `>`."""

    call: str
    call_end: str
    parameter: str
    parameter_end: str
    calls_end: str
    """What ends all calls. A model that forgets it, or what opens them, is understood."""
    lines: bool = False
    """A value stands on lines of its own."""

    def read(self, reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
        """Calls, one after the other, up to the end of them."""
        if mark != self.call:
            yield from reader.space()
            if (yield from reader.next_is(self.call)) is None:
                return False
        while True:
            if not (yield from self._call(reader, given)):
                return False
            space = yield from reader.space()
            next_tag = yield from reader.next_is(self.call, self.calls_end)
            if next_tag != self.call:
                if next_tag is None and not reader.done:
                    reader.say(space)
                return True

    def _call(self, reader: Reader, given: ParserInput) -> Reading[bool]:
        name = yield from _name(reader)
        values: list[tuple[str, str]] = []
        yield from reader.space()
        tag = yield from reader.next_is(self.parameter, self.call_end)
        while tag == self.parameter:
            key = yield from _name(reader)
            if not key:
                return False
            value, tag = yield from self._value(reader)
            values.append((key, value))
        if tag is None or not name:
            return False
        reader.call(name, typed_arguments(given, name, values))
        return True

    def _value(self, reader: Reader) -> Reading[tuple[str, str | None]]:
        """(a value, the tag behind it, which is taken); None: the answer ended before."""
        begins_line = self.lines and (yield from reader.next_is("\n")) is not None
        parts = [""]
        while True:
            text, mark = yield from reader.take(self._ends)
            parts += [text] if text else []
            if mark is None:
                return "", None
            fits = not begins_line or not parts[-1] or parts[-1].endswith("\n")
            space = ""
            if mark == self.parameter_end:
                space = yield from reader.space()
                if (fits or "\n" in space) and (yield from reader.ahead(self.parameter, self.call_end)) is not None:
                    tag = yield from reader.next_is(self.parameter, self.call_end)
                    return _bare(parts, begins_line), tag
            elif mark == self.call_end and fits:  # its own closing tag is missing, as also below
                space = yield from reader.space()
                after = yield from reader.ahead(self.calls_end, self.call)
                if after is not None or (reader.done and not reader.cut):
                    return _bare(parts, begins_line), mark
            elif mark == self.parameter and fits:
                return _bare(parts, begins_line), mark
            parts.append(mark + space)

    @cached_property
    def _ends(self) -> Marks:
        return Marks(self.parameter_end, self.parameter, self.call_end)


def _bare(parts: list[str], begins_line: bool) -> str:
    """The value; the line ends around one that stands on lines of its own are not its own."""
    value = "".join(parts)
    return value.removesuffix("\n") if begins_line else value


def _name(reader: Reader) -> Reading[str]:
    """The name in a tag, without quotes; nothing, if the tag is none."""
    text = (yield from reader.run(_NAME)).strip()
    if (yield from reader.next_is(">")) is None:
        return ""
    return text[1:].partition(text[0])[0] if text[:1] in ("'", '"') else text
