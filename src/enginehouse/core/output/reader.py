"""The text of an answer as a parser sees it: a parser is a generator that reads on, and waits by yielding.

What is read leaves the buffer at once, so that all of it together takes time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from enginehouse.core.output.json_scan import JsonScan
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import Content, Piece, ToolCall

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Waits for more text by yielding; ends with what was read."""

SPACE: Final = re.compile(r"\s*")


class Reader:
    """Text in, pieces out."""

    __slots__ = ("_at", "_record", "_text", "cut", "ended", "kind", "out", "passed", "passing", "trimmed")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._record: list[str] | None = None
        self.ended = False
        """No more text will come."""
        self.cut = False
        """It ended by a limit, in the middle of whatever it was."""
        self.kind: Callable[[str], Piece] = Content
        """What text is at this place, unless something else is said."""
        self.trimmed = ""
        """The white space that the mark found last was taken to own."""
        self.passing: re.Pattern[str] | None = None
        """Until more is fed: text in which this finds nothing is of kind `passed` as it stands, and need not be fed."""
        self.passed: Callable[[str], Piece] = Content
        self.out: list[Piece] = []

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, cut: bool) -> None:
        self.ended, self.cut = True, cut

    @property
    def done(self) -> bool:
        """All is read, and no more will come."""
        return self.ended and self._at == len(self._text)

    # What comes out.

    def say(self, text: str, kind: Callable[[str], Piece] | None = None) -> None:
        if text:
            self.out.append((kind or self.kind)(text))

    def call(self, name: str, arguments: str, call_id: str | None = None) -> None:
        """A call is finished: what was read up to here is dealt with. A model that calls has thought enough."""
        self.kind = Content
        self.out.append(ToolCall(name, arguments, call_id))
        if self._record is not None:
            self._record.clear()

    def record(self, text: str) -> None:
        """From here on remember what is read, behind this text."""
        self._record = [text]

    def give_up(self, mark: str) -> None:
        """What was read up to this mark, which begins something new, is none of what it looked like: it is text."""
        text, self._record = "".join(self._record or ()), [mark]
        self.say(text[: len(text) - len(mark)])

    def recorded(self) -> str:
        """What was read since then and is in no call. It is not remembered any longer."""
        record, self._record = self._record, None
        return "".join(record or ())

    # What goes in.

    def until(
        self, marks: Marks, kind: Callable[[str], Piece] | None = None, *, trim: bool = False, lead: str = ""
    ) -> Reading[str | None]:
        """Let text out up to the first mark, which is taken and returned; None: the text ended before.

        trim: white space in front of the mark belongs to the mark. lead: what comes before the text.
        """
        space = [lead]
        while True:
            part, mark = self._part(marks)
            if trim:
                bare = part.rstrip()
                if bare:
                    self.say("".join([*space, bare]), kind)
                    space.clear()
                space.append(part[len(bare) :])
            else:
                self.say("".join([*space, part]), kind)
                space.clear()
            if mark is not None:
                self.trimmed = "".join(space)
                return mark
            if self.ended:
                self.say("".join(space), kind)
                return None
            if not any(space) and self._at == len(self._text) and self._record is None:
                self.passing, self.passed = marks.stirs_trimmed if trim else marks.stirs, kind or self.kind
            yield

    def take(self, marks: Marks) -> Reading[tuple[str, str | None]]:
        """(text up to the first mark, the mark), both taken; None: the text ended before."""
        parts: list[str] = []
        while True:
            part, mark = self._part(marks)
            parts.append(part)
            if mark is not None or self.ended:
                return "".join(parts), mark
            yield

    def _part(self, marks: Marks) -> tuple[str, str | None]:
        """What is sure to come before the next mark, and the mark if it is there."""
        text, at = self._text, self._at
        found = marks.search(text, at, ended=self.ended)
        if found is not None:
            start, mark = found
            self._advance(start + len(mark))
            return text[at:start], mark
        held = marks.held(text, at)
        if self.ended:
            self._advance(len(text))
            # Half a mark at a cut would have become one; a single character is as likely just that.
            return text[at : len(text) - held] if self.cut and held > 1 else text[at:], None
        return self._advance(len(text) - held), None

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """The characters that come next as long as the pattern takes them; it matches any number of one class."""
        parts: list[str] = []
        while True:
            found = pattern.match(self._text, self._at)
            end = found.end() if found is not None else self._at
            parts.append(self._advance(end))
            if end < len(self._text) or self.ended:
                return "".join(parts)
            yield

    def space(self) -> Reading[str]:
        """White space up to what is none."""
        return (yield from self.run(SPACE))

    def next_is(self, *texts: str) -> Reading[str | None]:
        """Which of these comes next (the longest), and is taken; None, with nothing taken: none of them.

        What a cut left of one is taken with it.
        """
        found = yield from self.ahead(*texts)
        if found is not None:
            self._advance(self._at + len(found))
        elif self.cut and len(rest := self._text[self._at :]) > 1 and any(text.startswith(rest) for text in texts):
            self._advance(len(self._text))
        return found

    def ahead(self, *texts: str) -> Reading[str | None]:
        """The same, with nothing taken."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, texts))]
            if self.ended or not any(len(text) > len(rest) and text.startswith(rest) for text in texts):
                return max((text for text in texts if rest.startswith(text)), key=len, default=None)
            yield

    def json(self, begun: str = "") -> Reading[tuple[str, bool]]:
        """(a JSON value, as it was written; whether it is whole). White space before it is taken too.

        What no JSON value begins with is left where it is: ("", False). begun: how it begins, where that is taken.
        """
        if not begun:
            yield from self.space()
        parts = [begun]
        scan = JsonScan()
        scan.feed(begun, 0, ended=False)
        while True:
            end = scan.feed(self._text, self._at, ended=self.ended)
            parts.append(self._advance(len(self._text) if end is None else end))
            if end is not None:
                return "".join(parts), scan.whole
            yield

    def _advance(self, end: int) -> str:
        """Take the text up to there."""
        taken = self._text[self._at : end]
        self._at = end
        if self._record is not None:
            self._record.append(taken)
        return taken


class GeneratorParser:
    """An OutputParser whose work a generator does."""

    __slots__ = ("_reader", "_run")

    def __init__(self, run: Callable[[Reader], Reading[None]]) -> None:
        self._reader = Reader()
        self._run = run(self._reader)
        next(self._run)  # to its first wait: there is nothing to read yet
        if self._reader.out:  # it has said something that comes before all that is read
            self._reader.passing = None

    def passes(self, text: str) -> Callable[[str], Piece] | None:
        reader = self._reader
        return reader.passed if reader.passing is not None and reader.passing.search(text) is None else None

    def push(self, text: str) -> list[Piece]:
        reader = self._reader
        reader.passing = None
        reader.feed(text)
        next(self._run)
        out, reader.out = reader.out, []
        return out

    def finish(self, *, cut: bool = False) -> list[Piece]:
        reader = self._reader
        reader.end(cut=cut)
        for _ in self._run:
            raise AssertionError("a parser waits for text though there is no more")
        out, reader.out = reader.out, []
        return out
