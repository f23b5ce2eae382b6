"""Calls with JSON arguments in a section of their own: DeepSeek V3 and V3.1, Kimi K2.

    CALL head SEPARATOR {…} CALL_END CALL … SECTION_END

The arguments end where their JSON does, so strings in it may hold the marks. A call without a section around it is one
as well.
"""

from __future__ import annotations

from collections.abc import Callable

from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import arguments


class Section:
    """Reads one from behind its opening mark, or that of a call: `ToolFormat.read`."""

    def __init__(
        self,
        *,
        call: str,
        separator: str,
        call_end: str,
        ends: tuple[str, ...],
        named: Callable[[str], tuple[str, str | None]],
        padding: str = "",
    ) -> None:
        """Marks; `named` has (name, id) from the head of a call, `padding` may stand behind its arguments."""
        self._call, self._separator, self._ends = call, separator, ends
        self._named, self._paddings = named, ("", padding)
        self._to_call = Marks(call, *ends)
        self._to_arguments = Marks(separator, call, call_end, *ends)
        self._to_end = Marks(call, call_end, *ends)

    def __call__(self, reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
        """What stands between calls is no text for the reader, unless there are no calls at all."""
        if mark == self._call:
            return (yield from self._read_alone(reader))
        called = broken = False
        good = True
        while True:
            between, at = yield from reader.take(self._to_call)
            good = good and (not between.strip() or (called and at is not None))
            while at == self._call:
                if broken:
                    reader.give_up(at)
                good, at = yield from self._read_call(reader)
                called, broken = True, not good
            if at is None or at in self._ends:
                return good

    def _read_alone(self, reader: Reader) -> Reading[bool]:
        """Calls whose section a model forgot to begin; it may end it all the same."""
        at: str | None = self._call
        good, space = True, ""
        while at == self._call:
            if not good:
                reader.give_up(at)
            good, at = yield from self._read_call(reader)
            if at not in (self._call, *self._ends):
                space = yield from reader.space()
                at = yield from reader.next_is(self._call, *self._ends)
        if good and at is None:
            reader.say(space)
        return good

    def _read_call(self, reader: Reader) -> Reading[tuple[bool, str | None]]:
        """(whether it was one, the mark that ended it)."""
        head, at = yield from reader.take(self._to_arguments)
        if at != self._separator:
            return False, at
        value, _ = yield from reader.json()
        rest, at = yield from reader.take(self._to_end)
        name, call_id = self._named(head)
        call = arguments(value or "{}")
        if not name or call is None or rest.strip() not in self._paddings or (at is None and reader.cut):
            return False, at
        reader.call(name, call, call_id)
        return True, at
