"""One subscription's KvSink: each rank's batches go to its own feed, news of the connection to all."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from enginehouse.core.kv.cursor import Connected, Lost
from enginehouse.service.kv_feed import RankFeed

log = structlog.get_logger("enginehouse.kv")
_NAMED = 8
"""Ranks that an engine does not have, told of by name."""


class Sink:
    """Implements ports.KvSink."""

    def __init__(self, engine_id: str, feeds: Mapping[int, RankFeed], only: RankFeed | None = None) -> None:
        """feeds: by the rank that the subscription names; only: of an engine with one rank, whatever it calls it."""
        self._engine_id = engine_id
        self._feeds = feeds
        self._only = only
        self._strange: set[int] = set()

    def on_batch(self, rank: int, seq: int, payload: bytes) -> None:
        feed = self._feed(rank)
        if feed is not None:
            feed.live(seq, payload)

    def on_replayed(self, rank: int, seq: int, payload: bytes) -> None:
        feed = self._feed(rank)
        if feed is not None:
            feed.replayed(seq, payload)

    def on_replay_end(self, rank: int, *, complete: bool) -> None:
        feed = self._feed(rank)
        if feed is not None:
            feed.replay_ended(complete=complete)

    def on_connected(self) -> None:
        for feed in self._feeds.values():
            feed.say(Connected())

    def on_lost(self, reason: str, *, permanent: bool = False) -> None:
        for feed in self._feeds.values():
            feed.say(Lost(reason, permanent))

    def _feed(self, rank: int) -> RankFeed | None:
        feed = self._only or self._feeds.get(rank)
        if feed is None and rank not in self._strange and len(self._strange) < _NAMED:
            self._strange.add(rank)
            log.warning("kv events of a rank that the engine does not have", engine=self._engine_id, rank=rank)
        return feed
