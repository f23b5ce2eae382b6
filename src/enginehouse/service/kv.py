"""Follows the KV events of every member: subscribed before a request can be sent to it, forgotten when it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from enginehouse.core.kv.knowledge import Knowledge
from enginehouse.core.kv.view import KvView
from enginehouse.core.membership.projections import RuntimeConfig
from enginehouse.domain.engine import LINK, KvEventSource
from enginehouse.domain.kv import RankKey, Trust
from enginehouse.ports import Engine, KvEvents, KvSubscription
from enginehouse.service.kv_bounds import Replays, Room
from enginehouse.service.kv_claims import Claims
from enginehouse.service.kv_feed import RankFeed
from enginehouse.service.kv_intake import Intake
from enginehouse.service.kv_sink import Sink
from enginehouse.service.watch import Watch

log = structlog.get_logger("enginehouse.kv")

FindEngine = Callable[[str, int], Engine]
"""The open engine of an id and incarnation."""


class KvFollower:
    """Subscribes to the engines in a watch of configurations, and keeps the knowledge of what they hold."""

    def __init__(self, knowledge: Knowledge, events: KvEvents, engine: FindEngine) -> None:
        """To be made and used on the event loop."""
        self._knowledge = knowledge
        self._events = events
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._intake = Intake(knowledge, self._loop)
        self._room = Room()
        self._replays = Replays(self._loop)
        self._claims = Claims()
        self._followed: dict[tuple[str, int], _Followed] = {}

    def follow(self, configs: Watch[tuple[RuntimeConfig, ...]]) -> None:
        """From now on, and from inside each change: who is published after it finds everything in place."""
        configs.listen(self._changed)

    def view(self) -> KvView:
        """Everything that is known, at this moment."""
        for followed in self._followed.values():
            for feed in followed.feeds:
                feed.report()
        return self._knowledge.view(self._loop.time())

    def close(self) -> None:
        """End every subscription."""
        for key in list(self._followed):
            self._leave(key)
        self._intake.close()

    def _changed(self, configs: tuple[RuntimeConfig, ...]) -> None:
        wanted = {(config.engine_id, config.incarnation): config for config in configs}
        for key, followed in list(self._followed.items()):
            config = wanted.get(key)
            if config is None or _shape(config) != _shape(followed.config):
                self._leave(key)
        self._take_over()
        for key, config in wanted.items():
            if key not in self._followed:
                self._followed[key] = self._join(config)
            elif config.returns != self._followed[key].config.returns:
                self._followed[key].config = config
                for feed in self._followed[key].feeds:
                    self._knowledge.lost(feed.key)

    def _leave(self, key: tuple[str, int]) -> None:
        followed = self._followed.pop(key)
        for subscription in followed.subscriptions:
            subscription.close()
        for feed in followed.feeds:
            feed.close()
            self._knowledge.leave(feed.key)
        self._claims.release((source.endpoint for source in followed.config.kv_event_sources), *key)
        self._intake.sweep()

    def _take_over(self) -> None:
        """Who was refused a publisher begins anew when it is free: it may well be its own."""
        for key, followed in list(self._followed.items()):
            if any(self._claims.free(endpoint) for endpoint in followed.refused):
                self._leave(key)

    def _join(self, config: RuntimeConfig) -> _Followed:
        followed = _Followed(config)
        engine_id, incarnation = config.engine_id, config.incarnation
        ranks = range(config.first_rank, config.first_rank + config.ranks) if config.ranks > 1 else (0,)
        feeds = {
            rank: RankFeed(
                RankKey(engine_id, incarnation, rank),
                self._knowledge,
                self._loop,
                self._intake.stir,
                self._room,
                self._replays,
            )
            for rank in ranks
        }
        opened: dict[int, tuple[KvSubscription, int]] = {}
        for source in config.kv_event_sources:
            named = _named(source, config, feeds)
            if not named:
                log.warning("kv events of a rank that the engine does not have", engine=engine_id, rank=source.rank)
            taken = [rank for rank in named.values() if rank in opened]
            if not named or taken or self._refused(source, followed, next(iter(named.values()))):
                continue
            sink = Sink(engine_id, {name: feeds[rank] for name, rank in named.items()}, _only(feeds))
            subscription = self._subscribe(source, config, sink)
            if subscription is not None:
                followed.subscriptions.append(subscription)
                opened |= {rank: (subscription, name) for name, rank in named.items()}
        for rank, feed in feeds.items():
            self._knowledge.join(
                feed.key,
                block_size=config.block_size,
                capacity_tokens=config.capacity_tokens,
                events=rank in opened,
                wrong=feed.distrust,
            )
            followed.feeds.append(feed)
            if rank in opened:
                feed.open(*opened[rank], checks_rank=config.ranks > 1)
            elif rank in followed.reasons:
                self._knowledge.believe(feed.key, Trust.NONE, followed.reasons[rank])
        return followed

    def _refused(self, source: KvEventSource, followed: _Followed, rank: int) -> bool:
        """The publisher is followed for another rank already, and is hardly that of both."""
        if source.endpoint == LINK:
            return False
        key = RankKey(followed.config.engine_id, followed.config.incarnation, rank)
        other = self._claims.claim(source.endpoint, key)
        if other is None:
            return False
        reason = (
            f"{source.endpoint} is followed for rank {other.rank} of {other.engine_id} already: is it the right port?"
        )
        log.warning("kv events refused", engine=key.engine_id, rank=rank, reason=reason)
        followed.refused.append(source.endpoint)
        followed.reasons[rank] = reason
        return True

    def _subscribe(self, source: KvEventSource, config: RuntimeConfig, sink: Sink) -> KvSubscription | None:
        if source.endpoint == LINK:
            return self._engine(config.engine_id, config.incarnation).kv_events(sink)
        return self._events.subscribe(source, sink)


class _Followed:
    """What is open for one incarnation."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config
        self.subscriptions: list[KvSubscription] = []
        self.feeds: list[RankFeed] = []
        self.refused: list[str] = []
        """Endpoints that are followed for another rank."""
        self.reasons: dict[int, str] = {}
        """By the rank that was refused one."""


def _named(source: KvEventSource, config: RuntimeConfig, feeds: Mapping[int, RankFeed]) -> dict[int, int]:
    """The ranks that a source is of: as it calls them, and as they are called here."""
    if config.ranks == 1:
        return {source.rank: 0}
    if source.endpoint == LINK:
        return {rank: rank for rank in feeds}
    return {source.rank: source.rank} if source.rank in feeds else {}


def _only(feeds: Mapping[int, RankFeed]) -> RankFeed | None:
    return next(iter(feeds.values())) if len(feeds) == 1 else None


def _shape(config: RuntimeConfig) -> tuple[object, ...]:
    """What a subscription and the knowledge depend on: when it changes, both begin anew."""
    return (
        config.ranks,
        config.first_rank,
        config.block_size,
        config.capacity_tokens,
        config.kv_event_sources,
    )
