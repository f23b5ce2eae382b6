"""The text of an answer as a parser sees it: a parser is a generator that reads on, and waits by yielding.

What is read leaves the buffer at once, so that all of it together takes time linear in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from enginehouse.core.output.json_scan import JsonScan
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import Content, Piece

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Waits for more text by yielding; ends with what was read."""


class Reader:
    """Text in, pieces out."""

    __slots__ = ("_at", "_text", "cut", "ended", "out")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self.ended = False
        """No more text will come."""
        self.cut = False
        """It ended by a limit, in the middle of whatever it was."""
        self.out: list[Piece] = []

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, cut: bool) -> None:
        self.ended, self.cut = True, cut

    def say(self, text: str, kind: Callable[[str], Piece] = Content) -> None:
        if text:
            self.out.append(kind(text))

    def until(self, marks: Marks, kind: Callable[[str], Piece] = Content) -> Reading[str | None]:
        """Let text out up to the first mark, which is taken and returned; None: the text ended before."""
        while True:
            text, at = self._text, self._at
            found = marks.search(text, at, ended=self.ended)
            if found is not None:
                self.say(text[at : found[0]], kind)
                self._at = found[0] + len(found[1])
                return found[1]
            keep = 0 if self.ended else marks.held(text, at)
            self.say(text[at : len(text) - keep], kind)
            self._at = len(text) - keep
            if self.ended:
                return None
            yield

    def take(self, marks: Marks) -> Reading[tuple[str, str | None]]:
        """(text up to the first mark, the mark), both taken; None: the text ended before."""
        parts: list[str] = []
        while True:
            text, at = self._text, self._at
            found = marks.search(text, at, ended=self.ended)
            if found is not None:
                self._at = found[0] + len(found[1])
                return "".join([*parts, text[at : found[0]]]), found[1]
            keep = 0 if self.ended else marks.held(text, at)
            parts.append(text[at : len(text) - keep])
            self._at = len(text) - keep
            if self.ended:
                return "".join(parts), None
            yield

    def space(self) -> Reading[str]:
        """White space up to what is none."""
        parts: list[str] = []
        while True:
            rest = self._text[self._at :]
            bare = rest.lstrip()
            parts.append(rest[: len(rest) - len(bare)])
            self._at = len(self._text) - len(bare)
            if bare or self.ended:
                return "".join(parts)
            yield

    def next_is(self, *texts: str) -> Reading[str | None]:
        """Which of these comes next (the longest), and is taken; None, with nothing taken: none of them."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, texts))]
            open_ = not self.ended and any(len(text) > len(rest) and text.startswith(rest) for text in texts)
            if not open_:
                found = max((text for text in texts if rest.startswith(text)), key=len, default=None)
                if found is not None:
                    self._at += len(found)
                return found
            yield

    def json(self) -> Reading[tuple[str, bool]]:
        """(a JSON value, as it was written; whether it is whole). White space before it is taken too.

        What no JSON value begins with is left where it is: ("", False).
        """
        yield from self.space()
        parts: list[str] = []
        scan = JsonScan()
        while True:
            end = scan.feed(self._text, self._at, ended=self.ended)
            if end is not None:
                parts.append(self._text[self._at : end])
                self._at = end
                return "".join(parts), scan.whole
            parts.append(self._text[self._at :])
            self._at = len(self._text)
            yield


class GeneratorParser:
    """An OutputParser whose work a generator does."""

    __slots__ = ("_reader", "_run")

    def __init__(self, run: Callable[[Reader], Reading[None]]) -> None:
        self._reader = Reader()
        self._run = run(self._reader)
        next(self._run)  # to its first wait: there is nothing to read yet

    def push(self, text: str) -> list[Piece]:
        reader = self._reader
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
