"""Owns the queue of requests that wait for room at a prefill engine: in order, and one is woken for each free place."""

from __future__ import annotations

import asyncio
from bisect import bisect, insort

from enginehouse.service.pair_counts import PairCounts

Ticket = int
"""Place in the order of arrival. Whoever waits once more keeps it."""


class Turns:
    """Whoever finds no room waits here for one that became free; a fleet that changed is news for all."""

    def __init__(self, counts: PairCounts) -> None:
        self._counts = counts
        self._last: Ticket = 0
        self._waiting: list[tuple[Ticket, asyncio.Future[None]]] = []
        """In order."""

    def ticket(self) -> Ticket:
        """The place behind all others."""
        self._last += 1
        return self._last

    async def wait(self, ticket: Ticket, timeout: float) -> bool:
        """Wait for a turn, in seconds; False when the time is up."""
        if timeout <= 0:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = ticket, turn
        insort(self._waiting, place)
        self._counts.waiting += 1
        try:
            async with asyncio.timeout(timeout):
                await turn
        except BaseException as end:
            if turn.done() and not turn.cancelled():
                self.next()  # it was ours, and we are going
            elif place in self._waiting:
                self._waiting.remove(place)
            if isinstance(end, TimeoutError):
                return False
            raise
        finally:
            self._counts.waiting -= 1
        return True

    def next(self, after: Ticket = 0) -> None:
        """There is room for one more; for one behind that ticket."""
        at = bisect(self._waiting, after, key=_ticket)
        while at < len(self._waiting):
            _, turn = self._waiting.pop(at)
            if not turn.done():
                turn.set_result(None)
                return

    def all(self) -> None:
        """Everything may have changed."""
        waiting, self._waiting = self._waiting, []
        for _, turn in waiting:
            if not turn.done():
                turn.set_result(None)


def _ticket(place: tuple[Ticket, asyncio.Future[None]]) -> Ticket:
    return place[0]
