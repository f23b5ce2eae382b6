"""Metrics: counted in plain Python where things happen, turned into Prometheus' text when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

import enginehouse
from enginehouse.adapters.metrics import table
from enginehouse.adapters.metrics.collect import fleet_families, numbers, pair_families, request_families
from enginehouse.adapters.metrics.collect_kv import kv_families
from enginehouse.adapters.metrics.meters import RequestCounts
from enginehouse.core.kv.view import KvView
from enginehouse.service.membership import Counters, FleetView
from enginehouse.service.pair_counts import PairCounts

__all__ = ["Metrics"]


class Fleet(Protocol):
    """What is measured of a fleet; `service.fleet.Fleet` is one."""

    counters: Counters

    def view(self) -> FleetView: ...


class Metrics(Collector):
    """All metrics of one frontend. `requests` is the `Meters` port; `render` is what `/metrics` answers.

    ready: what `/readyz` would say; kv: what is known of KV caches, where the policy asks for it; pairs: the
    generator's; process: with the operating system's view of this process.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        ready: Callable[[], bool],
        kv: Callable[[], KvView] | None = None,
        pairs: PairCounts | None = None,
        process: bool = True,
    ) -> None:
        self.requests = RequestCounts()
        self._fleet = fleet
        self._ready = ready
        self._kv = kv
        self._pairs = pairs
        self._registry = CollectorRegistry()
        self._registry.register(self)
        if process:
            ProcessCollector(registry=self._registry)

    def render(self) -> tuple[bytes, str]:
        """Body and content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterator[Family]:
        """Called by the registry for each scrape."""
        yield numbers(table.INFO, {(enginehouse.__version__,): 1})
        yield from request_families(self.requests)
        view = self._fleet.view()
        yield from fleet_families(view, self._fleet.counters)
        if self._pairs is not None:
            yield from pair_families(self._pairs, view)
        if self._kv is not None:
            yield from kv_families(self._kv(), view)
        yield numbers(table.READY, {(): int(self._ready())})

    def describe(self) -> Iterator[Family]:
        """Names only, so that registering does not ask the fleet."""
        return (numbers(row, {}) for row in table.TABLE if row.kind != "histogram")
