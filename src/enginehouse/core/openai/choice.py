"""What comes out of one choice: ids of its engine in, text or news for its client out, and at last its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from enginehouse.core.openai.likelihood import Aligned, TokenNames, likelihood, prompt_likelihoods
from enginehouse.core.openai.text import AnswerText, TextDecoder
from enginehouse.core.output.answer import Choice, Echo, End, Likelihood, News, together
from enginehouse.core.output.pieces import Content, OutputParser, Piece, Reasoning, ToolCall, joined
from enginehouse.domain.stream import Delta, Finish


class PlainChoice:
    """Text and nothing else: what most requests ask for, and all that they pay for."""

    __slots__ = ("_text", "end")

    reasoning_tokens: int | None = None

    def __init__(self, text: AnswerText) -> None:
        self._text = text
        self.end: End | None = None

    @property
    def tokens(self) -> int:
        return self._text.tokens

    def push(self, delta: Delta) -> str:
        """Text that is certain now; sets `end` with the last of it."""
        finish = delta.finish
        text, ours = self._text.push(delta.token_ids, finish)
        if ours is not None or finish is not None:
            self.end = End(ours or finish or Finish.STOP, stop=self._text.stop)
        return text


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request wants of its choices besides text."""

    names: TokenNames | None = None
    """Likelihoods are wanted, and this names tokens."""
    ending: bool = False
    """The token that ended the answer is one of them, though no text."""
    token_ids: bool = False
    one_call: bool = False
    """The answer ends with its first call."""
    new_call_id: Callable[[], str] = str
    echo: Echo | None = None
    """What is repeated of the prompt; its likelihoods come from the engine."""
    prompt_decoder: Callable[[], TextDecoder] | None = None
    """Likelihoods of the prompt are wanted, and this says where its tokens begin."""
    prompt_ids: Sequence[int] = ()


class RichChoice:
    """Text in which reasoning and calls are told apart, tokens with their likelihoods, ids, the prompt again."""

    __slots__ = (
        "_aligned",
        "_called",
        "_echo",
        "_only_pieces",
        "_out",
        "_parser",
        "_pending",
        "_spoke",
        "_text",
        "_wishes",
        "end",
        "reasoning_tokens",
    )

    def __init__(self, text: AnswerText, parser: OutputParser | None, wishes: Wishes, *, thinks: bool) -> None:
        """thinks: the parser tells thinking apart, and its tokens are to be counted."""
        self._text = text
        self._parser = parser
        self._wishes = wishes
        self._aligned = Aligned()
        self._out = 0
        """Characters that came out of the text."""
        self._echo = wishes.echo
        self._only_pieces = wishes.names is None and wishes.echo is None and not wishes.token_ids
        self._called = self._spoke = False
        """It has called; it has said something that is no thinking."""
        self._pending = 0
        """Tokens since the last piece came out."""
        self.reasoning_tokens = 0 if thinks else None
        self.end: End | None = None

    @property
    def tokens(self) -> int:
        return self._text.tokens

    def push(self, delta: Delta) -> str | News:
        """What is certain now, as text where it is nothing else; sets `end` with the last of it."""
        if self._only_pieces and delta.finish is None and (self._spoke or len(delta.token_ids) == 1):
            return self._next(delta.token_ids)
        wishes = self._wishes
        before = self._text.tokens
        echo = None if self._echo is None else self._repeat(self._echo, delta)
        pieces: list[Piece] = []
        likelihoods: list[Likelihood] | None = None
        if wishes.names is not None:
            likelihoods = self._one_by_one(delta, wishes.names, pieces)
        elif self.reasoning_tokens is not None and not self._spoke:
            self._one_by_one(delta, None, pieces)
        else:
            self._step(delta.token_ids, delta.finish, pieces)
        if likelihoods is None and echo is None and not wishes.token_ids:
            return _told(pieces)
        ids = delta.token_ids[: self._text.tokens - before] if wishes.token_ids else None
        return News(joined(pieces), likelihoods, ids, echo)

    def _next(self, token_ids: Sequence[int]) -> str | News:
        """The hot path of answers that are parsed: more of the same, mostly."""
        text, ours = self._text.push(token_ids, None)
        kind = self._parser.passes(text) if ours is None and self._parser is not None else None
        if kind is Content:
            self._spoke = True
            self._pending = 0
            return text
        if kind is Reasoning and self.reasoning_tokens is not None:
            self.reasoning_tokens += self._pending + len(token_ids)
            self._pending = 0
            return News((Reasoning(text),)) if text else ""
        pieces: list[Piece] = []
        self._take(text, ours, len(token_ids), pieces)
        return _told(pieces)

    def _one_by_one(self, delta: Delta, names: TokenNames | None, pieces: list[Piece]) -> list[Likelihood]:
        ids, last = delta.token_ids, len(delta.token_ids) - 1
        told = delta.logprobs or ()
        if not ids:
            self._step((), delta.finish, pieces)
            if delta.finish is Finish.STOP and not self._wishes.ending:
                self._aligned.forget_last()  # what ended the answer came before the news that it did
        for at in range(len(ids)):
            offset, tokens = self._out + self._text.held, self._text.tokens
            finish = delta.finish if at == last else None
            self._step(ids[at : at + 1], finish, pieces)
            listed = finish is not Finish.STOP or self._wishes.ending
            if names is not None and listed and self._text.tokens > tokens:
                self._aligned.add(likelihood(told[at], names, offset))
            if self.end is not None:
                break
        if names is None:
            return []
        if self.end is not None and self.end.stop is None:
            return self._aligned.rest()
        return self._aligned.out(self._out)

    def _step(self, token_ids: Sequence[int], finish: Finish | None, pieces: list[Piece]) -> None:
        text, ours = self._text.push(token_ids, finish)
        self._out += len(text)
        self._take(text, ours or finish, len(token_ids), pieces)

    def _take(self, text: str, ended: Finish | None, tokens: int, pieces: list[Piece]) -> None:
        found = self._read(text, ended)
        if self.reasoning_tokens is not None:
            self._pending += tokens
            if found:
                # What comes out with tokens, or next after them, is what they are tokens of.
                self.reasoning_tokens += self._pending if isinstance(found[0], Reasoning) else 0
                self._pending = 0
        for piece in found:
            self._spoke = self._spoke or not isinstance(piece, Reasoning)
            if isinstance(piece, ToolCall):
                self._called = True
                if piece.id is None:
                    piece = replace(piece, id=self._wishes.new_call_id())
            pieces.append(piece)
            if self._called and self._wishes.one_call:
                ended = Finish.STOP
                break
        if ended is not None:
            self.end = End(ended, self._called, self._text.stop)
            if self.reasoning_tokens is not None:  # the last ones may not have been taken
                self.reasoning_tokens = min(self.reasoning_tokens, self._text.tokens)

    def _read(self, text: str, ended: Finish | None) -> Sequence[Piece]:
        if self._parser is None:
            return (Content(text),) if text else ()
        found = self._parser.push(text) if text else ()
        if ended is None:
            return found
        if self._text.stop is not None:
            return [*found, *_stopped(self._parser, self._text.removed)]
        return [*found, *self._parser.finish(cut=ended is Finish.LENGTH)]

    def _repeat(self, echo: Echo, delta: Delta) -> Echo | None:
        wishes = self._wishes
        if wishes.names is not None and wishes.prompt_decoder is not None:
            if delta.prompt_logprobs is None:  # before the first ids
                return None
            found = prompt_likelihoods(delta.prompt_logprobs, wishes.prompt_ids, wishes.names, wishes.prompt_decoder())
            echo = replace(echo, likelihoods=found)
        self._echo = None
        return echo


def _stopped(parser: OutputParser, stop: str) -> Sequence[Piece]:
    """The rest at a stop string, which cuts as a limit does: what the model did not finish is no call, and no content.

    stop: as far as it was taken off the text. It may be what finishes a call or a mark, and is no text itself.
    """
    rest: list[Piece] = []
    for at in range(len(stop)):
        rest.extend(_without(stop[: at + 1], parser.push(stop[at])))
    rest.extend(_without(stop, parser.finish(cut=True)))
    return rest


def _without(read: str, pieces: Sequence[Piece]) -> Sequence[Piece]:
    """What has just come out, but for the end of it that is the end of what was read."""
    if not pieces or isinstance(last := pieces[-1], ToolCall):
        return pieces
    text = last.text
    begin = next(at for at in range(max(0, len(text) - len(read)), len(text) + 1) if read.endswith(text[at:]))
    kept = text[:begin]
    return [*pieces[:-1], replace(last, text=kept)] if kept else pieces[:-1]


def _told(pieces: Sequence[Piece]) -> str | News:
    if not pieces:
        return ""
    told = joined(pieces)
    if len(told) == 1 and isinstance(told[0], Content):
        return told[0].text
    return News(told)


AnyChoice = PlainChoice | RichChoice


def whole_choice(index: int, parts: Sequence[str | News], end: End) -> Choice:
    """A choice that is over, of everything that it pushed."""
    told = together(parts)
    if isinstance(told, str):
        return Choice(index, (Content(told),) if told else (), end)
    return Choice(index, told.pieces, end, told.likelihoods, told.token_ids, told.echo)
