"""Subscriptions over ZMQ, all in one context on one event loop."""

from __future__ import annotations

import asyncio

import structlog
import zmq

from enginehouse.adapters.kv_events.rota import Rota
from enginehouse.adapters.kv_events.settings import KvEventSettings
from enginehouse.adapters.kv_events.sockets import Context
from enginehouse.adapters.kv_events.subscription import ZmqSubscription
from enginehouse.domain.engine import KvEventSource
from enginehouse.domain.kv import KvBatch
from enginehouse.ports import KvSink, KvSubscription

_log = structlog.get_logger("enginehouse.kv_events")


class ZmqKvEvents:
    """Implements ports.KvEvents. Close it on the loop that it was used on."""

    def __init__(self, settings: KvEventSettings | None = None) -> None:
        self._settings = settings or KvEventSettings()
        self._context: Context | None = None
        self._rota: Rota | None = None
        self._open: set[ZmqSubscription] = set()

    def subscribe(self, source: KvEventSource, sink: KvSink) -> KvSubscription:
        if self._context is None or self._rota is None:
            self._rota = Rota(asyncio.get_running_loop())
            self._context = zmq.Context()
            # Three for each rank, five while it replays; the default of 1023 is a fleet of some hundred ranks.
            self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))
        try:
            subscription = ZmqSubscription(self._context, self._rota, source, sink, self._settings, self._open.discard)
        except zmq.ZMQError as error:
            return _Unusable(f"{source.endpoint} cannot be subscribed to: {error.strerror}", self._rota.loop, sink)
        self._open.add(subscription)
        return subscription

    def close(self) -> None:
        """End what is still open. May wait some milliseconds for ZMQ's own thread."""
        for subscription in tuple(self._open):
            subscription.close()
        context, self._context = self._context, None
        if context is not None:
            context.destroy(linger=0)


class _Unusable:
    """A ports.KvSubscription to an endpoint that nothing can be connected to."""

    can_replay = False

    def __init__(self, reason: str, loop: asyncio.AbstractEventLoop, sink: KvSink) -> None:
        _log.warning("kv_events_unusable", reason=reason)
        self._tell = loop.call_soon(lambda: sink.on_lost(reason, permanent=True))

    def decode(self, payload: bytes) -> KvBatch:
        raise ValueError("nothing comes from there")

    def replay(self, rank: int, start: int) -> None:
        pass

    def close(self) -> None:
        self._tell.cancel()
