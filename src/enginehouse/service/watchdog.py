"""Owns the deadlines of one attempt: its first token, and then each next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from enginehouse.domain.errors import EngineTimeout
from enginehouse.service.attempt import Attempt


class Watchdog:
    """Ends an attempt that is late. Tokens set no timer: the one there is looks again when it was too early."""

    __slots__ = ("_attempt", "_between", "_due", "_late", "_loop", "_timer")

    def __init__(self, attempt: Attempt, between: float, loop: asyncio.AbstractEventLoop) -> None:
        """between: seconds that may lie between two tokens, not counting time in which the client does not read."""
        self._attempt = attempt
        self._between = between
        self._loop = loop
        self._due = 0.0
        self._late: Callable[[], None] = _nothing
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, due: float, late: Callable[[], None]) -> None:
        """The first token has to be there by `due`; else `late` has to end the attempt."""
        self.stop()
        self._due = due
        self._late = late
        self._timer = self._loop.call_at(min(due, self._loop.time() + self._between), self._look)

    def stop(self) -> None:
        """The attempt is over."""
        self._late = _nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        attempt = self._attempt
        if attempt.paused:
            due = now + self._between
        elif attempt.tokens:
            due = attempt.last_at + self._between
        else:
            due = self._due
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
        elif attempt.tokens:
            attempt.fail(EngineTimeout(f"no token for {self._between:g} s"))
        else:
            self._late()


def _nothing() -> None:
    pass
