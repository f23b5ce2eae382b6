"""What the two legs of a pair deliver to, and which of them ends the attempt."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable

from enginehouse.domain.errors import EngineError, EngineUnavailable
from enginehouse.domain.stream import Delta
from enginehouse.ports import Call
from enginehouse.service.attempt import Answer, Attempt


class Prefilling:
    """The prefill leg's DeltaSink. Its token is nobody's; what counts is how it ends, and when.

    It ends the attempt when it fails before the answer has begun, and no later: then the cache has passed, and nothing
    of the answer depends on the prefill engine any more.
    """

    __slots__ = ("_attempt", "_elsewhere", "_over", "at_fault", "cached", "error", "finished", "kept")

    def __init__(self, attempt: Attempt, elsewhere: Callable[[], bool], over: Callable[[], None]) -> None:
        """over: called when it ended well, or failed too late to matter."""
        self._attempt = attempt
        self._elsewhere = elsewhere
        self._over = over
        self.at_fault = False
        """It is what ended the attempt."""
        self.cached: int | None = None
        """Tokens of the prompt that the engine says it had in its cache."""
        self.error: EngineError | None = None
        """How it failed, if nobody told it to stop."""
        self.finished = False
        self.kept: bytes | None = None

    def on_delta(self, delta: Delta) -> None:
        if delta.cached_tokens is not None:
            self.cached = delta.cached_tokens
        if delta.finish is not None and not self.finished:
            self.finished = True
            self.kept = delta.kept
            self._over()

    def on_end(self, error: EngineError | None) -> None:
        if error is not None:
            self.fail(error)

    def fail(self, error: EngineError) -> None:
        attempt = self._attempt
        if self.finished or attempt.done.done():
            return
        self.error = error
        if not attempt.tokens:
            self.at_fault = True
            attempt.fail(error)
        else:
            self._over()

    def loosen(self) -> None:
        """All is over. What refers to each other is not left to the garbage collector."""
        self._over = _done

    def cut(self) -> None:
        """The engine was withdrawn, and has had its time. What it kept for the decode engine goes with it."""
        self._lose("the prefill engine was withdrawn and its drain deadline has passed")

    def forsake(self) -> None:
        """The engine failed a check. What it has computed can still be fetched, if it can at all."""
        if not self.finished and self._elsewhere():
            self._lose("the prefill engine failed its health check before it was done")

    def _lose(self, reason: str) -> None:
        attempt = self._attempt
        if not attempt.tokens and not attempt.done.done():
            self.error = EngineUnavailable(reason)
            self.at_fault = True
            attempt.fail(self.error)


class Decoding(Attempt):
    """The decode leg's DeltaSink, and the pair's one end."""

    __slots__ = ("_loop", "_told", "ended", "prefilling")

    def __init__(self, answer: Answer, loop: AbstractEventLoop, elsewhere: Callable[[], bool], *, told: bool) -> None:
        """told: the decode engine has heard from the other one what was cached; else it counts what it has fetched."""
        super().__init__(answer, loop, elsewhere)
        self._loop = loop
        self._told = told
        self.ended = False
        """Its stream has, or we gave it up; if nobody waits any more, too."""
        self.prefilling: Prefilling | None = None

    def counted(self, delta: Delta) -> None:
        if self.prefilling is not None:
            known = self.prefilling.cached
            if known is not None or not self._told:
                delta.cached_tokens = known  # what the prompt has cost only the prefill engine knows
        if delta.cached_tokens is not None:
            super().counted(delta)

    def on_end(self, error: EngineError | None) -> None:
        self.ended = True
        super().on_end(error)

    def loosen(self) -> None:
        """All is over."""
        self.begun = _nothing
        self.prefilling = None

    def detach(self) -> None:
        """The client has left. From now on the first token is the end."""
        self.answer = _Nobody()
        self.begun = _nothing
        self.error = None
        self.done = self._loop.create_future()


class _Nobody:
    """An Answer that nobody reads."""

    sent = False

    def begin(self, call: Call) -> None:
        pass

    def push(self, delta: Delta) -> bool:
        return bool(delta.token_ids)


def _nothing(delta: Delta) -> None:
    pass


def _done() -> None:
    pass
