"""Answers as every API sees them: what is the same for chat, completions, responses and messages before it is bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from enginehouse.core.output.pieces import Content, Piece, joined
from enginehouse.domain.errors import EnginehouseError
from enginehouse.domain.stream import Finish

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Identity:
    """What names one answer to its client."""

    answer_id: str
    model: str
    created: int
    """Unix seconds."""
    prompt_tokens: int = 0
    """Of all prompts together."""


@dataclass(frozen=True, slots=True)
class Likelihood:
    """A token of the answer with how likely it was, in text: what `logprobs` shows."""

    token: str
    raw: bytes
    """UTF-8, or a part of it where a token ends within a character."""
    logprob: float | None
    """None: the first of a prompt, which nothing foretells."""
    top: tuple[tuple[str, bytes, float], ...] = ()
    """The most likely tokens at its place, best first."""
    token_id: int = 0
    offset: int = 0
    """Characters of the text before it: of the answer's, or of the prompt's."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all choices together; the prompt counts once for each prompt, not for each choice."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """None: the engine did not say."""
    reasoning_tokens: int | None = None
    """None: thinking was not told apart."""


@dataclass(frozen=True, slots=True)
class End:
    """Why one choice ended."""

    finish: Finish
    called: bool = False
    """It has tool calls."""
    stop: str | None = None
    """The stop string that ended it."""


@dataclass(frozen=True, slots=True)
class Echo:
    """What an answer repeats of its prompt, as far as it was asked to."""

    text: str | None = None
    likelihoods: Sequence[Likelihood] | None = None
    """One for each token of the prompt."""
    token_ids: Sequence[int] | None = None


@dataclass(slots=True)
class News:
    """What came of one choice at once. A choice of plain text has none of it but its text: see Frames.text."""

    pieces: Sequence[Piece] = ()
    """Calls have their ids."""
    likelihoods: Sequence[Likelihood] | None = None
    """None: not asked for."""
    token_ids: Sequence[int] | None = None
    """None: not asked for."""
    echo: Echo | None = None
    """With the first news of a choice, where something of the prompt was asked for."""

    def __bool__(self) -> bool:
        return bool(self.pieces or self.likelihoods or self.token_ids or self.echo)


def together(parts: Sequence[str | News]) -> str | News:
    """What was told of one choice in several parts, as if all of it had come at once."""
    if all(isinstance(part, str) for part in parts):
        return "".join([part for part in parts if isinstance(part, str)])
    news = [News((Content(part),)) if isinstance(part, str) else part for part in parts if part != ""]
    return News(
        joined([piece for part in news for piece in part.pieces]),
        _chained([part.likelihoods for part in news]),
        _chained([part.token_ids for part in news]),
        next((part.echo for part in news if part.echo is not None), None),
    )


def _chained(parts: Sequence[Sequence[_T] | None]) -> Sequence[_T] | None:
    asked = [part for part in parts if part is not None]
    return [one for part in asked for one in part] if asked else None


@dataclass(slots=True)
class Choice:
    """One whole answer."""

    index: int
    """Prompt-major: the answers to the first prompt come first."""
    pieces: Sequence[Piece]
    end: End
    likelihoods: Sequence[Likelihood] | None = None
    token_ids: Sequence[int] | None = None
    echo: Echo | None = None


class Frames(Protocol):
    """One streamed answer in the bytes of one API. Everything that does not change is put together once.

    The choices of an answer share it: what is said of one may stand between the begin and the finish of another.
    """

    def begin(self, choice: int) -> bytes:
        """Before anything else of this choice. The first call begins the answer itself, whichever choice it is for."""

    def text(self, choice: int, text: str) -> bytes:
        """Plain content: the hot path."""

    def news(self, choice: int, news: News) -> bytes:
        """Anything else."""

    def finish(self, choice: int, end: End) -> bytes:
        """Once for each choice, after its last news."""

    def end(self, usage: Usage) -> bytes:
        """After the last choice: the usage where it was asked for, and whatever closes the stream."""

    def error(self, error: EnginehouseError) -> bytes:
        """Instead of all that is left, when the answer fails after it has begun."""
