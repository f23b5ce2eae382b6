"""Opens and closes ZMQ sockets on one event loop, a subscription's in each of its passes: they take a millisecond."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Chores:
    """What is to be done soon, in its order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Callable[[], None]] = deque()
        self._next: asyncio.Handle | None = None

    def add(self, chore: Callable[[], None]) -> None:
        """Do it when those before it are done, never at once."""
        self._queue.append(chore)
        if self._next is None:
            self._next = self._loop.call_soon(self._turn)

    def finish(self) -> None:
        """Do all that is left, now."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        while self._queue:
            self._queue.popleft()()

    def _turn(self) -> None:
        chore = self._queue.popleft()
        self._next = self._loop.call_soon(self._turn) if self._queue else None
        chore()
