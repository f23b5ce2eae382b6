"""What becomes of each choice of an answer, and the sum of them. Streamed ones are in streaming.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enginehouse.core.openai.choice import AnyChoice, whole_choice
from enginehouse.core.output.answer import Choice, News, Usage
from enginehouse.domain.stream import Delta
from enginehouse.ports import Call, RequestMeter

_UNTOLD = -1
"""The engine has said nothing at all yet."""

NewChoice = Callable[[], AnyChoice]


class Tally:
    """The prompts of a request, each counted once however many answers it gets, and what engines had of them."""

    def __init__(self, prompts: Sequence[int], meter: RequestMeter) -> None:
        self._prompts = prompts
        self._cached: list[int | None] = [None] * len(prompts)
        self._meter = meter
        self._told: int | None = None
        self.prompt_tokens = sum(prompts)

    def took(self, prompt: int, cached: int | None) -> None:
        """An engine has taken the prompt up, and says what it had of it; None: it does not say."""
        if cached is not None:
            cached = min(cached, self._prompts[prompt])  # an engine may say what it likes, and our usage adds up
        self._cached[prompt] = cached
        known = self.cached_tokens or 0
        if known != self._told:
            self._told = known
            self._meter.prompt(self.prompt_tokens, known)

    def forget(self, prompt: int) -> None:
        """An attempt begins: what another engine had counts no more."""
        self._cached[prompt] = None

    @property
    def cached_tokens(self) -> int | None:
        known = [cached for cached in self._cached if cached is not None]
        return sum(known) if known else None

    def usage(self, choices: Sequence[AnyChoice]) -> Usage:
        """With the answers as they are now."""
        reasoning = [choice.reasoning_tokens for choice in choices if choice.reasoning_tokens is not None]
        return Usage(
            self.prompt_tokens,
            sum(choice.tokens for choice in choices),
            self.cached_tokens,
            sum(reasoning) if reasoning else None,
        )


class CountedChoice:
    """What every choice keeps: its reader, and what its engine says of the prompt. An Answer to its attempts."""

    def __init__(self, index: int, new: NewChoice, tally: Tally, prompt: int | None, meter: RequestMeter) -> None:
        """prompt: the one that this is the first answer to; None: another choice counts it."""
        self.index = index
        self._new = new
        self._tally = tally
        self._prompt = prompt
        self._meter = meter
        self._cached: int | None = _UNTOLD
        self.choice: AnyChoice
        self.sent = False

    def begin(self, call: Call) -> None:
        self.choice = self._new()
        self._cached = _UNTOLD
        if self._prompt is not None:
            self._tally.forget(self._prompt)

    def _take(self, delta: Delta) -> str | News:
        """What this delta makes certain."""
        cached = delta.cached_tokens
        if cached != self._cached and (cached is not None or self._cached == _UNTOLD):
            self._cached = cached
            if self._prompt is not None:
                self._tally.took(self._prompt, cached)
        if delta.token_ids:
            self._meter.tokens(len(delta.token_ids))
        return self.choice.push(delta)


class WholeChoice(CountedChoice):
    """Collects an answer; nothing reaches the client before its end, so every attempt may be repeated."""

    def begin(self, call: Call) -> None:
        super().begin(call)
        self._parts: list[str | News] = []

    def push(self, delta: Delta) -> bool:
        part = self._take(delta)
        if part != "":
            self._parts.append(part)
        return self.choice.end is not None

    def whole(self) -> Choice:
        """When it is over."""
        assert self.choice.end is not None
        return whole_choice(self.index, self._parts, self.choice.end)
