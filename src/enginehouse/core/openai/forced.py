"""Answers that had to be calls: with tool_choice `required` or a name they are JSON, whatever the model's own form is.

Some engines hold an answer to it from the first token, others only after the model's thinking, so either is read. What
is no such JSON though nothing cut it short comes from an engine that held the answer to nothing: it passes as content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from enginehouse.core.openai.requests import ChatRequest, ToolChoiceMode
from enginehouse.core.output.family import Family
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import Content, OutputParser, ParserInput, Piece, Reasoning
from enginehouse.core.output.reader import GeneratorParser, Reader, Reading
from enginehouse.core.output.values import arguments, named_call


def forced_family(request: ChatRequest, usual: Family | None) -> Family | None:
    """What reads the answers to a request; `usual` unless they have to be calls."""
    choice = request.tool_choice
    if choice.mode not in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED):
        return usual
    return ForcedFamily(special=usual.shown if usual is not None else frozenset(), usual=usual, name=choice.name)


@dataclass(frozen=True)
class ForcedFamily(Family):
    """Reads thinking as the family does, and the rest as the JSON that was asked for."""

    usual: Family | None = None
    name: str | None = None
    """The tool whose arguments the JSON is; None: it is a list of calls."""

    def parser(self, given: ParserInput) -> OutputParser:
        before = self.usual.parser(replace(given, tools=())) if self.usual is not None else None
        marks = Marks(*self.shown)
        if self.name is None:
            return JsonAfterThinking(before, ("[",), GeneratorParser(partial(_calls, marks)))
        return JsonAfterThinking(before, ("{",), GeneratorParser(partial(_arguments, self.name, marks)))


class JsonAfterThinking:
    """An OutputParser of answers that are JSON, perhaps with thinking before it."""

    __slots__ = ("_before", "_begun", "_json", "_openings")

    def __init__(self, before: OutputParser | None, openings: tuple[str, ...], json: OutputParser) -> None:
        """before: what tells thinking apart; openings: how the JSON begins."""
        self._before = before
        self._begun = False
        self._openings = openings
        self._json = json

    def passes(self, text: str) -> Callable[[str], Piece] | None:
        """Thinking may."""
        kind = self._before.passes(text) if self._begun and self._before is not None else None
        return kind if kind is Reasoning else None

    def push(self, text: str) -> Sequence[Piece]:
        if not self._begun and (bare := text.lstrip()):
            self._begun = True
            if bare.startswith(self._openings):  # no thinking, whatever the prompt ends with
                self._before = None
        return self._json.push(text) if self._before is None else self._read(self._before.push(text))

    def finish(self, *, cut: bool = False) -> Sequence[Piece]:
        pieces = [] if self._before is None else self._read(self._before.finish(cut=cut))
        return [*pieces, *self._json.finish(cut=cut)]

    def _read(self, pieces: Sequence[Piece]) -> list[Piece]:
        out: list[Piece] = []
        for piece in pieces:
            out.extend(self._json.push(piece.text) if isinstance(piece, Content) else [piece])
        return out


def _arguments(name: str, marks: Marks, reader: Reader) -> Reading[None]:
    reader.record("")
    text, whole = yield from reader.json()
    if whole and (found := arguments(text)) is not None:
        reader.call(name, found)
    yield from _rest(reader, marks)


def _calls(marks: Marks, reader: Reader) -> Reading[None]:
    reader.record("")
    yield from reader.space()
    if (yield from reader.next_is("[")) is not None:
        while True:
            text, whole = yield from reader.json()
            if not whole or (call := named_call(text)) is None:
                break
            reader.call(*call)
            yield from reader.space()
            if (yield from reader.next_is(",")) is None:
                yield from reader.next_is("]")
                break
    yield from _rest(reader, marks)


def _rest(reader: Reader, marks: Marks) -> Reading[None]:
    left = reader.recorded().strip()
    if left and left != "]" and not reader.cut:
        reader.say(left)
    yield from reader.space()
    yield from rest(reader, marks)


def rest(reader: Reader, marks: Marks) -> Reading[None]:
    """Behind the JSON: nothing, if all is as it should be, or the token that ends the answer, where that shows.

    marks: what is shown of the model's special tokens; here they mean no more than its end.
    """
    while (yield from reader.until(marks)) is not None:
        yield from reader.space()
