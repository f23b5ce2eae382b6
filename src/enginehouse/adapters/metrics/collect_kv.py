"""What is known of KV caches as Prometheus families. Series exist for ranks that exist, and for no others."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric as Family

from enginehouse.adapters.metrics import table as t
from enginehouse.adapters.metrics.collect import Labels, histograms, numbers
from enginehouse.adapters.metrics.counts import Buckets
from enginehouse.core.kv.view import KvView, RankView
from enginehouse.service.membership import FleetView


def kv_families(view: KvView, fleet: FleetView) -> Iterator[Family]:
    """Everything: each rank under its engine's name, and the index."""
    ranks = _by_labels(view, fleet)
    yield numbers(t.KV_TRUST, {(*labels, rank.trust.value): 1 for labels, rank in ranks.items()})
    yield numbers(t.KV_POLICY, {(*labels, rank.policy.value): 1 for labels, rank in ranks.items()})
    ages = {labels: rank.event_age for labels, rank in ranks.items()}
    yield numbers(t.KV_EVENT_AGE, {labels: age for labels, age in ages.items() if age is not None})
    yield numbers(t.KV_BATCHES, {labels: rank.heard.batches for labels, rank in ranks.items()})
    yield numbers(t.KV_EVENTS, {labels: rank.heard.events for labels, rank in ranks.items()})
    yield numbers(t.KV_WAITING, {labels: rank.heard.waiting for labels, rank in ranks.items()})
    yield numbers(t.KV_WAITING_AGE, {labels: rank.waiting_age or 0.0 for labels, rank in ranks.items()})
    yield numbers(
        t.KV_INCIDENTS,
        {(*labels, what): count for labels, rank in ranks.items() for what, count in _incidents(rank).items()},
    )
    yield numbers(t.KV_BLOCKS, {labels: rank.blocks for labels, rank in ranks.items()})
    yield numbers(t.KV_CORRECTION, {labels: rank.correction for labels, rank in ranks.items()})
    yield numbers(t.KV_PREDICTED, {labels: rank.predicted_tokens for labels, rank in ranks.items()})
    yield numbers(t.KV_REPORTED, {labels: rank.reported_tokens for labels, rank in ranks.items()})
    yield histograms(t.KV_ERROR, {labels: _errors(rank) for labels, rank in ranks.items()})
    yield numbers(t.KV_INDEX_BLOCKS, {(): view.blocks})
    yield numbers(t.KV_INDEX_LIMIT, {(): view.limit})
    yield numbers(t.KV_INDEX_BYTES, {(): view.memory})
    yield numbers(t.KV_EVICTED, {(): view.evicted})


def _by_labels(view: KvView, fleet: FleetView) -> dict[Labels, RankView]:
    """The newest incarnation where two share a name: the older one drains, and its cache counts for no choice."""
    names = {(engine.engine_id, engine.incarnation): engine.name for engine in fleet.engines}
    found: dict[Labels, RankView] = {}
    for rank in sorted(view.ranks, key=lambda rank: rank.key.incarnation):
        if name := names.get((rank.key.engine_id, rank.key.incarnation)):
            found[(name, str(rank.key.rank))] = rank
    return found


def _incidents(rank: RankView) -> dict[str, int]:
    heard = rank.heard
    return {
        "gap": heard.gaps,
        "replay": heard.replays,
        "lost": heard.lost,
        "restart": heard.restarts,
        "overflow": heard.overflows,
        "duplicate": heard.duplicates,
        "orphan": rank.orphans,
        "malformed": heard.malformed,
        "misdirected": heard.misdirected,
    }


def _errors(rank: RankView) -> Buckets:
    buckets = Buckets(t.KV_ERROR.buckets)
    buckets.counts[: len(rank.errors)] = rank.errors
    return buckets
