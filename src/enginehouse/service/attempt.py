"""One call to one engine as the request sees it: what came of it, when, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from enginehouse.domain.errors import EngineError, EngineUnavailable
from enginehouse.domain.stream import Delta
from enginehouse.ports import Call


class Answer(Protocol):
    """Where one answer goes. Called from inside the loop's read callback: never blocks."""

    sent: bool
    """Something of it has been handed to the client's socket."""

    def begin(self, call: Call) -> None:
        """An attempt starts (again): forget what an earlier one brought; pause and resume this call as needed."""

    def push(self, delta: Delta) -> bool:
        """Take news. True: the answer is complete, perhaps by our own judgement (a stop string, more tokens than were
        asked for): the engine may stop."""


class Attempt:
    """One call to one engine, from dispatch to its end. A DeltaSink."""

    __slots__ = (
        "_elsewhere",
        "answer",
        "begun",
        "bug",
        "cached",
        "clock",
        "done",
        "error",
        "finished",
        "last_at",
        "paused",
        "tokens",
    )

    def __init__(self, answer: Answer, loop: asyncio.AbstractEventLoop, elsewhere: Callable[[], bool]) -> None:
        self.clock = loop.time
        self._elsewhere = elsewhere
        self.answer = answer
        self.begun: Callable[[Delta], None] = _nothing
        """Called with what brings the first token."""
        self.cached: int | None = None
        """Tokens of the prompt that the engine says it had in its cache."""
        self.done: asyncio.Future[None] = loop.create_future()
        self.error: EngineError | None = None
        self.bug: Exception | None = None
        self.finished = False
        self.paused = False
        self.last_at = 0.0
        self.tokens = 0

    def on_delta(self, delta: Delta) -> None:
        if self.done.done():
            return
        self.last_at = self.clock()
        if delta.token_ids:
            if not self.tokens:
                self.begun(delta)
            self.tokens += len(delta.token_ids)
        if delta.cached_tokens is not None:
            self.counted(delta)
        try:
            enough = self.answer.push(delta)
        except Exception as bug:
            self.fail_by(bug)
            return
        if delta.finish is not None:
            self.finished = True
            self.done.set_result(None)
        elif enough:
            self.done.set_result(None)

    def counted(self, delta: Delta) -> None:
        """The engine says how many tokens of the prompt it had."""
        self.cached = delta.cached_tokens

    def on_end(self, error: EngineError | None) -> None:
        if not self.done.done():
            self.error = error
            self.done.set_result(None)

    def fail(self, error: EngineError) -> None:
        """End it from our side."""
        self.on_end(error)

    def fail_by(self, bug: Exception) -> None:
        """A fault of ours, to be raised to the request's own coroutine, which is not on this stack."""
        self.bug = bug
        if not self.done.done():
            self.done.set_result(None)

    def cut(self) -> None:
        """The engine was withdrawn, and has had its time."""
        self.fail(EngineUnavailable("the engine was withdrawn and its drain deadline has passed"))

    def forsake(self) -> None:
        """The engine failed a check: hung, most likely. What it has begun may still come; the rest others can do."""
        if not self.tokens and self._elsewhere():
            self.fail(EngineUnavailable("the engine failed its health check before it answered"))


class WatchedCall:
    """The call as the answer sees it: time in which the client does not read counts for no deadline."""

    __slots__ = ("_attempt", "_call")

    def __init__(self, call: Call, attempt: Attempt) -> None:
        self._call = call
        self._attempt = attempt

    def pause(self) -> None:
        self._attempt.paused = True
        self._call.pause()

    def resume(self) -> None:
        self._attempt.paused = False
        self._attempt.last_at = self._attempt.clock()
        self._call.resume()

    def cancel(self) -> None:
        self._call.cancel()


def _nothing(delta: Delta) -> None:
    pass
