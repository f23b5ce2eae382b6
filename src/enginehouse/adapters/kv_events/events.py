"""Subscriptions over ZMQ, all in one context on one event loop."""

from __future__ import annotations

import asyncio

import zmq

from enginehouse.adapters.kv_events.chores import Chores
from enginehouse.adapters.kv_events.rota import Rota
from enginehouse.adapters.kv_events.settings import KvEventSettings
from enginehouse.adapters.kv_events.sockets import Context
from enginehouse.adapters.kv_events.subscription import ZmqSubscription
from enginehouse.domain.engine import KvEventSource
from enginehouse.ports import KvSink, KvSubscription


class ZmqKvEvents:
    """Implements ports.KvEvents. Close it on the loop that it was used on."""

    def __init__(self, settings: KvEventSettings | None = None) -> None:
        self._settings = settings or KvEventSettings()
        self._context: Context | None = None
        self._rota: Rota | None = None
        self._chores: Chores | None = None
        self._open: set[ZmqSubscription] = set()

    def subscribe(self, source: KvEventSource, sink: KvSink) -> KvSubscription:
        if self._context is None or self._rota is None or self._chores is None:
            self._rota = Rota(asyncio.get_running_loop())
            self._chores = Chores(self._rota.loop)
            self._context = zmq.Context()
            # Three for each rank, five while it replays; the default of 1023 is a fleet of some hundred ranks.
            self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))
            # ZMQ's threads start with the first socket, and abort the process when out of descriptors: not some time.
            self._context.socket(zmq.PAIR).close()
        subscription = ZmqSubscription(
            self._context, self._rota, self._chores, source, sink, self._settings, self._open.discard
        )
        self._open.add(subscription)
        return subscription

    def close(self) -> None:
        """End what is still open. May wait some milliseconds for ZMQ's own thread."""
        for subscription in tuple(self._open):
            subscription.close()
        if self._chores is not None:
            self._chores.finish()
        context, self._context = self._context, None
        if context is not None:
            context.destroy(linger=0)
