"""Owns when KV events are worked off: a millisecond at a time, in turns, between everything else of the loop."""

from __future__ import annotations

import asyncio
from collections import deque

import structlog

from enginehouse.core.kv.knowledge import Knowledge
from enginehouse.service.kv_feed import RankFeed

log = structlog.get_logger("enginehouse.kv")

TURN = 384
"""Blocks applied in one go: about a millisecond, reading the batches included."""
_SHARE = 128
"""Of these, for one rank while others wait."""


class Intake:
    """Works off all ranks' feeds. It runs only while there is something to do."""

    def __init__(self, knowledge: Knowledge, loop: asyncio.AbstractEventLoop) -> None:
        self._knowledge = knowledge
        self._loop = loop
        self._waiting: deque[RankFeed] = deque()
        self._queued: set[RankFeed] = set()
        self._handle: asyncio.Handle | None = None
        self.turns = 0
        """Pieces of work so far."""

    def stir(self, feed: RankFeed) -> None:
        """This rank has something to work off."""
        if feed not in self._queued:
            self._queued.add(feed)
            self._waiting.append(feed)
        self.sweep()

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
        self.turns += 1
        left = TURN
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
