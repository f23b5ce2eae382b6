"""The parts of an answer, in the order in which the model gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model has finished: never half of one, or a client would run what the model did not ask for."""

    name: str
    arguments: str
    """JSON text of an object."""
    id: str | None = None
    """Where the model gives one itself."""


Piece = Content | Reasoning | ToolCall


class OutputParser(Protocol):
    """Reads one answer. Joined, what comes out does not depend on how the text was cut into pieces."""

    def passes(self, text: str) -> Callable[[str], Piece] | None:
        """What this is as it stands, if it comes next: then it need not be pushed. None: only `push` knows."""

    def push(self, text: str) -> Sequence[Piece]:
        """What is certain now. Takes time linear in the text, however small its pieces."""

    def finish(self, *, cut: bool = False) -> Sequence[Piece]:
        """The rest, at the answer's end. cut: by a limit, in the middle of whatever the model was saying."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that was offered to the model. Some formats do not write down types: its schema tells them."""

    name: str
    parameters: object
    """JSON Schema of its arguments; anything else than an object says nothing."""


@dataclass(frozen=True, slots=True)
class ParserInput:
    """What a parser has to know of the request."""

    tools: tuple[Tool, ...] = ()
    """Empty: nothing is a call, and what looks like one is content."""
    prompt_tail: str = ""
    """The last characters of the prompt (at most some hundred): whether the answer starts inside of reasoning."""
    reasoning: bool = True
    """False: thinking is not told apart, and is content as it stands."""
    begun: str | None = None
    """The text of an answer that is to go on, which the prompt ends with. None: the answer is a new one."""


def joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The same with neighbouring texts of one kind made one."""
    out: list[Piece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if isinstance(piece, Content) and isinstance(last, Content):
            out[-1] = Content(last.text + piece.text)
        elif isinstance(piece, Reasoning) and isinstance(last, Reasoning):
            out[-1] = Reasoning(last.text + piece.text)
        else:
            out.append(piece)
    return tuple(out)
