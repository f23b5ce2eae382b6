"""Calls as elements with attributes, and an element for each argument: DeepSeek's DSML, Kimi K3.

    CALL … TAG_END ARGUMENT … TAG_END value ARGUMENT_END CALL_END … BLOCK_END

Values stand there bare, so one may hold the very mark that ends it: that counts only where the call goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import arguments, object_text


class Elements:
    """Reads a block from behind its opening mark: `ToolFormat.read`. Before another mark, a call needs no end."""

    def __init__(
        self,
        *,
        call: str,
        call_end: str,
        argument: str,
        argument_end: str,
        block_end: str,
        tag_end: str,
        named: Callable[[str], str | None],
        typed: Callable[[str, str], tuple[str, str] | None],
    ) -> None:
        """Marks, opening ones up to their attributes. `named` has a call's name from its attributes, `typed` an
        argument's name and JSON text from its attributes and bare value."""
        self._call, self._call_end, self._argument, self._block_end = call, call_end, argument, block_end
        self._named, self._typed = named, typed
        self._calls = Marks(call, block_end)
        self._arguments = Marks(argument, call_end, call, block_end)
        self._tag_end, self._value_end = Marks(tag_end), Marks(argument_end, call_end)

    def __call__(self, reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
        good, broken = True, False
        while True:
            between, at = yield from reader.take(self._calls)
            good = good and not between.strip()
            while at == self._call:
                if broken:
                    reader.give_up(at)
                good, at = yield from self._read_call(reader)
                broken = not good
            if at is None or at == self._block_end:
                return good

    def _read_call(self, reader: Reader) -> Reading[tuple[bool, str | None]]:
        """(whether it was one, the mark that ended it)."""
        attributes, _ = yield from reader.take(self._tag_end)
        name = self._named(attributes)
        call, at = yield from self._read_arguments(reader)
        if not name or call is None or at is None:
            return False, at
        reader.call(name, call)
        return True, at

    def _read_arguments(self, reader: Reader) -> Reading[tuple[str | None, str | None]]:
        """(JSON text of them, the mark behind them)."""
        members: list[tuple[str, str]] = []
        between, at = yield from reader.take(self._arguments)
        while at == self._argument and not between.strip():
            attributes, _ = yield from reader.take(self._tag_end)
            value, at = yield from self._read_value(reader)
            member = self._typed(attributes, value)
            if member is None:
                return None, at
            members.append(member)
            between = ""
        if between.strip():
            return None if members else arguments(between), at
        return object_text(members), at

    def _read_value(self, reader: Reader) -> Reading[tuple[str, str | None]]:
        """(a value, the mark behind its end, which is taken); None: the answer ended before."""
        parts: list[str] = []
        while True:
            text, end = yield from reader.take(self._value_end)
            parts.append(text)
            if end is None:
                return "", None
            space = yield from reader.space()
            if end == self._call_end:  # a model may forget the mark behind its last value
                if (yield from reader.ahead(self._call)) is not None:
                    return "".join(parts), end
            elif (after := (yield from reader.next_is(*self._arguments.all))) is not None:
                return "".join(parts), after
            parts += end, space
