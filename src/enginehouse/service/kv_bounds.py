"""Owns what all ranks' KV events share: room for those that wait, and turns at replays.

A frontend that starts, or that a network fault cut off, asks every engine for its history; each may send megabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

AT_ONCE = 4
"""Replays under way."""
LOOK = 0.5
"""Seconds without a batch, with none waiting either, after which a replay no longer counts as under way: it takes no
memory. It goes on, beside that which comes next; many engines that do not answer must not keep the others waiting."""
LONGEST = 60.0
"""Seconds after which it no longer counts, whatever comes."""
MOST_BYTES = 256 * 1024 * 1024
"""Of live batches that wait or are held, over all ranks. Those of replays are bounded by how many run at once: if these
two shared their room, what is held until a replay is over could leave none for the replay."""


class Room:
    """Bytes of live batches in memory."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self.used = 0

    def take(self, size: int) -> bool:
        """Is there room for it? Then it is taken."""
        if self.used + size > self._most:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """It is needed no more."""
        self.used -= size


class Asker(Protocol):
    """A rank whose history is asked for."""

    @property
    def waiting(self) -> int:
        """What came and is not worked off."""


@dataclass(slots=True, eq=False)
class _Turn:
    until: float
    came: bool = False


class Replays:
    """Who may ask now, in the order of asking."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turns: dict[Asker, _Turn] = {}
        self._queue: dict[Asker, Callable[[], None]] = {}
        self._handle: asyncio.Handle | None = None

    def ask(self, who: Asker, begin: Callable[[], None]) -> None:
        """Begin in a moment, or when others have ended. It takes the place of what that rank asked for before."""
        if who in self._turns:
            begin()
        else:
            self._queue[who] = begin
            self._next()

    def came(self, who: Asker) -> None:
        """A batch of its replay has come, and waits."""
        turn = self._turns.get(who)
        if turn is not None:
            turn.came = True

    def over(self, who: Asker) -> None:
        """Its replay has ended, and nothing of it waits any more."""
        self._turns.pop(who, None)
        self._next()

    def forget(self, who: Asker) -> None:
        """It need not begin any more, if it has not."""
        self._queue.pop(who, None)

    def _next(self) -> None:
        # Not at once: when a fleet leaves, those that wait are about to leave, too.
        if self._queue and self._handle is None and len(self._turns) < AT_ONCE:
            self._handle = self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._handle = None
        while self._queue and len(self._turns) < AT_ONCE:
            who = next(iter(self._queue))
            begin = self._queue.pop(who)
            turn = self._turns[who] = _Turn(self._loop.time() + LONGEST)
            self._loop.call_later(LOOK, self._look, who, turn)
            begin()

    def _look(self, who: Asker, turn: _Turn) -> None:
        if self._turns.get(who) is not turn:
            return
        if (turn.came or who.waiting) and self._loop.time() < turn.until:
            turn.came = False
            self._loop.call_later(LOOK, self._look, who, turn)
        else:
            self.over(who)
