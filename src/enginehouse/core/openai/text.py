"""The text of one answer: ids in, text that may be sent out, the count of tokens, the cut at a stop string."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from enginehouse.core.openai.stops import StopMatcher
from enginehouse.domain.stream import Finish


class TextDecoder(Protocol):
    """What is needed of a decoder; see ports.TextDecoder, which is the same and lies above this layer."""

    def push(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class AnswerText:
    """Text and token count of one answer.

    `tokens` counts every id that the engine generated, the one that ended the answer included, as engines do. With stop
    strings it counts up to the id that completed the stop, however many ids came with it. The first `min_tokens` are
    never looked at for stops, as engines do it too. What comes beyond `max_tokens` is not taken. An engine that made
    just so many has not ignored the limit: its finish may come in a message of its own.
    """

    __slots__ = ("_decoder", "_matcher", "_max_tokens", "_min_tokens", "tokens")

    def __init__(
        self,
        decoder: TextDecoder,
        matcher: StopMatcher | None = None,
        min_tokens: int = 0,
        max_tokens: int = sys.maxsize,
    ) -> None:
        self._decoder = decoder
        self._matcher = matcher or None  # one without stops has nothing to do
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self.tokens = 0

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer."""
        return None if self._matcher is None else self._matcher.stop

    @property
    def removed(self) -> str:
        """What that took off the end of the text."""
        return "" if self._matcher is None else self._matcher.removed

    @property
    def held(self) -> int:
        """Characters that are decoded and may yet turn out to be the beginning of a stop string."""
        return 0 if self._matcher is None else self._matcher.held

    def push(self, token_ids: Sequence[int], finish: Finish | None = None) -> tuple[str, Finish | None]:
        """(text that is certain now, how we end the answer: at a stop string, or where an engine exceeds its limit).

        With `finish` everything that was held comes out. Finish.STOP means that the last id ended the answer: it never
        gives text, also when special tokens are shown. After an end of ours, or a finish, push no more.
        """
        tokens = self.tokens + len(token_ids)
        over = tokens > self._max_tokens
        if over:
            token_ids, finish = token_ids[: self._max_tokens - self.tokens], Finish.LENGTH
        elif finish is None and self._matcher is None:  # nearly always
            self.tokens = tokens
            return self._decoder.push(token_ids), None
        text, stopped = self._push(token_ids, finish)
        return text, Finish.STOP if stopped else Finish.LENGTH if over else None

    def _push(self, token_ids: Sequence[int], finish: Finish | None) -> tuple[str, bool]:
        """(text, whether a stop string ended the answer)."""
        if self._matcher is not None:
            return self._push_matching(self._matcher, token_ids, finish)
        self.tokens += len(token_ids)
        if finish is Finish.STOP:
            token_ids = token_ids[:-1]
        return self._decoder.push(token_ids) + self._decoder.flush(), False

    def _push_matching(self, matcher: StopMatcher, token_ids: Sequence[int], finish: Finish | None) -> tuple[str, bool]:
        out = ""
        last = len(token_ids) - 1
        for at, token in enumerate(token_ids):
            self.tokens += 1
            if finish is Finish.STOP and at == last:
                break
            text = self._decoder.push((token,))
            if self.tokens <= self._min_tokens:
                out += text
                continue
            out += matcher.push(text)
            if matcher.stopped:
                return out, True
        if finish is not None:
            out += matcher.push(self._decoder.flush())
            if matcher.stopped:
                return out, True
            out += matcher.flush()
        return out, False


class EndingText(AnswerText):
    """Some engines tell of an end only after the token that made it: one that may be such a token waits for more.

    For answers in which such a token would show.
    """

    __slots__ = ("_ending", "_ends")

    def __init__(
        self,
        decoder: TextDecoder,
        matcher: StopMatcher | None = None,
        min_tokens: int = 0,
        max_tokens: int = sys.maxsize,
        *,
        ends: frozenset[int],
    ) -> None:
        """ends: ids that end an answer."""
        super().__init__(decoder, matcher, min_tokens, max_tokens)
        self._ends = ends
        self._ending: Sequence[int] = ()

    def push(self, token_ids: Sequence[int], finish: Finish | None = None) -> tuple[str, Finish | None]:
        if self._ending:
            token_ids, self._ending = (*self._ending, *token_ids), ()
            self.tokens -= 1
        fits = self.tokens + len(token_ids) <= self._max_tokens
        if finish is not None or not fits or not token_ids or token_ids[-1] not in self._ends:
            return super().push(token_ids, finish)
        text, ours = super().push(token_ids[:-1])
        if ours is None:
            self._ending = token_ids[-1:]
            self.tokens += 1
        return text, ours
