"""Owns the queue of requests that wait for room at a prefill engine: in order, and one is woken for each free place."""

from __future__ import annotations

import asyncio
from collections import deque

from enginehouse.service.pair_counts import PairCounts


class Turns:
    """Whoever finds no room waits here for one that became free; a fleet that changed is news for all."""

    def __init__(self, counts: PairCounts) -> None:
        self._counts = counts
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self, timeout: float, *, again: bool) -> bool:
        """Wait for a turn; False when the time is up. again: a turn came to nothing, and the first place is kept."""
        if timeout <= 0:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if again:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        self._counts.waiting += 1
        try:
            async with asyncio.timeout(timeout):
                await turn
        except BaseException as end:
            if turn.done() and not turn.cancelled():
                self.next()  # it was ours, and we are going
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(end, TimeoutError):
                return False
            raise
        finally:
            self._counts.waiting -= 1
        return True

    def next(self) -> None:
        """There is room for one more."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def all(self) -> None:
        """Everything may have changed."""
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)
