"""Owns when KV events are worked off: a millisecond at a time, in turns, between everything else of the loop.

They may wait a moment, so that what comes from several ranks is worked off together: code and index are then in the
processor's caches, and the loop wakes less often. They may not wait long: when the loop has much else to do, its passes
are long and few, so how much waits decides how much each of them takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

import structlog

from enginehouse.core.kv.knowledge import Knowledge
from enginehouse.service.kv_feed import RankFeed

log = structlog.get_logger("enginehouse.kv")

PAUSE = 0.01
"""Seconds from the first news until something is done about it: less than the step of an engine that they tell of."""
TURN = 384
"""Blocks applied in one go: about a millisecond, reading the batches included."""
MOST_TURNS = 4
"""Of these in one, while much waits."""
EASY = 16
"""Batches that may wait without a longer turn."""
_SHARE = 128
"""Of a turn, for one rank while others wait."""
_LOOKED_AT = 64
"""Ranks whose batches are counted: so many, each with one, make a turn as long as it gets."""


class Intake:
    """Works off all ranks' feeds. It runs only while there is something to do."""

    def __init__(self, knowledge: Knowledge, loop: asyncio.AbstractEventLoop) -> None:
        self._knowledge = knowledge
        self._loop = loop
        self._waiting: deque[RankFeed] = deque()
        self._queued: set[RankFeed] = set()
        self._handle: asyncio.Handle | None = None

    def stir(self, feed: RankFeed) -> None:
        """This rank has something to work off."""
        if feed not in self._queued:
            self._queued.add(feed)
            self._waiting.append(feed)
        if self._handle is None:
            self._handle = self._loop.call_later(PAUSE, self._work)

    def sweep(self) -> None:
        """There may be something to take apart."""
        if self._handle is None:
            self._handle = self._loop.call_soon(self._work)

    def close(self) -> None:
        """Work off nothing any more."""
        if self._handle is not None:
            self._handle.cancel()

    def _work(self) -> None:
        self._handle = None
        left = self._budget()
        while left > 0 and self._waiting:
            feed = self._waiting.popleft()
            try:
                left -= feed.work(min(left, _SHARE))
            except Exception:  # a bug, and one odd engine's: the others go on
                log.exception("kv events failed by a fault of ours", engine=feed.key.engine_id, rank=feed.key.rank)
                feed.fail()
            if feed.busy:
                self._waiting.append(feed)
            else:
                self._queued.discard(feed)
        more = left <= 0 or self._knowledge.sweep(left)
        if more or self._waiting:
            self.sweep()

    def _budget(self) -> int:
        """Blocks of this turn."""
        waiting = sum(feed.waiting for feed in islice(self._waiting, _LOOKED_AT))
        return TURN * min(MOST_TURNS, 1 + waiting // EASY)
