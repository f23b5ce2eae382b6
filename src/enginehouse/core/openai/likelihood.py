"""Log probabilities as clients see them: tokens as text, each let out together with the text that it is in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from enginehouse.core.openai.text import TextDecoder
from enginehouse.core.output.answer import Likelihood
from enginehouse.domain.stream import TokenLogprob


class TokenNames(Protocol):
    """What is needed of a tokenizer; see ports.Tokenizer."""

    def token_text(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...


def likelihood(token: TokenLogprob, names: TokenNames, offset: int) -> Likelihood:
    """offset: characters of the text before it."""
    text, raw, number = names.token_text, names.token_bytes, token.token_id
    top = tuple([(text(other), raw(other), logprob) for other, logprob in token.top])
    return Likelihood(text(number), raw(number), token.logprob, top, number, offset)


def prompt_likelihoods(
    logprobs: Sequence[TokenLogprob | None], token_ids: Sequence[int], names: TokenNames, decoder: TextDecoder
) -> list[Likelihood]:
    """Those of a prompt; the decoder is a new one, which says where each token begins."""
    out = []
    offset = 0
    for number, told in zip(token_ids, logprobs, strict=True):
        if told is None:
            out.append(Likelihood(names.token_text(number), names.token_bytes(number), None, (), number, offset))
        else:
            out.append(likelihood(told, names, offset))
        offset += len(decoder.push((number,)))
    return out


class Aligned:
    """Holds tokens back as their text is held back: a token comes out when the first character of its text does.

    So the same tokens come out whether the answer is streamed or not, and none that a stop string cut off.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Likelihood] = deque()

    def add(self, token: Likelihood) -> None:
        self._waiting.append(token)

    def forget_last(self) -> None:
        """The last one turns out to be none of the text, unless it is out."""
        if self._waiting:
            self._waiting.pop()

    def out(self, characters: int) -> list[Likelihood]:
        """Those of which something is within the first so many characters."""
        waiting = self._waiting
        out = []
        while waiting and waiting[0].offset < characters:
            out.append(waiting.popleft())
        return out

    def rest(self) -> list[Likelihood]:
        """All that wait, when the text is over and nothing was cut off."""
        out = list(self._waiting)
        self._waiting.clear()
        return out
