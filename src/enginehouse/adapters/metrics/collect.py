"""From our own numbers to Prometheus families, at scrape time: each family is a row of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from enginehouse.adapters.metrics import table as t
from enginehouse.adapters.metrics.counts import Buckets
from enginehouse.adapters.metrics.meters import RequestCounts
from enginehouse.core.membership.states import LINKED
from enginehouse.service.membership import Counters, FleetView, State
from enginehouse.service.pair_counts import PairCounts

Labels = tuple[str, ...]


def request_families(counts: RequestCounts) -> Iterator[Family]:
    """Everything counted of requests."""
    yield numbers(t.REQUESTS, counts.answered)
    yield histograms(t.REQUEST_TIME, {(name,): buckets for name, buckets in counts.seconds.items()})
    yield numbers(t.IN_FLIGHT, _one_label(counts.in_flight))
    yield numbers(t.WAITING, _one_label(counts.waiting))
    yield numbers(t.PROMPT, {(): counts.prompt_tokens})
    yield histograms(t.PROMPT_LENGTH, {(): counts.prompt_length})
    yield numbers(t.CACHED, {(): counts.cached_tokens})
    yield numbers(t.PREDICTED, {(): counts.predicted_tokens})
    yield numbers(t.DECISIONS, _one_label(counts.decisions))
    yield numbers(t.COMPLETION, {(): counts.completion_tokens})
    yield histograms(t.FIRST_TOKEN, {(): counts.first_token})
    yield histograms(t.BETWEEN_TOKENS, {(): counts.between_tokens})
    yield numbers(t.RETRIES, counts.retries)
    for leg, buckets in counts.legs.items():
        yield histograms(t.LEG_TIME[leg], {(): buckets})
    yield numbers(t.LEG_FAILURES, counts.leg_failures)
    yield numbers(t.CUTS, _one_label(counts.cuts.values))
    yield numbers(t.DISCONNECTS, {(): counts.disconnects})


def fleet_families(view: FleetView, counters: Counters) -> Iterator[Family]:
    """Everything known of engines and feeds. Series exist for engines and feeds that exist, and for no others."""
    yield numbers(t.ENGINES, {(state.value,): count for state, count in view.states.items() if state is not State.GONE})
    streams: dict[Labels, float] = {}
    for engine in view.engines:
        if engine.state in LINKED:  # two incarnations of one name add up while the older one drains
            streams[(engine.name,)] = streams.get((engine.name,), 0) + engine.streams
    yield numbers(t.STREAMS, streams)
    yield numbers(
        t.PROBES,
        {
            ("passed",): counters.probes_passed,
            ("failed",): counters.probes_failed - counters.probes_timed_out,
            ("timed_out",): counters.probes_timed_out,
            ("cancelled",): counters.probes_cancelled,
        },
    )
    yield numbers(t.CHECKS, {("passed",): counters.checks_passed, ("failed",): counters.checks_failed})
    yield numbers(
        t.CHANGES,
        {
            ("admitted",): counters.admissions,
            ("refused",): counters.refusals,
            ("suspected",): counters.suspicions,
            ("withdrawn",): counters.withdrawals,
            ("closed",): counters.engines_closed,
        },
    )
    yield numbers(t.STREAMS_CUT, {(): counters.streams_cut})
    yield numbers(t.IGNORED, {(): counters.events_ignored})
    feeds = {(feed.status.feed,): feed for feed in view.feeds}
    yield numbers(t.FEED_AGE, {name: feed.age for name, feed in feeds.items() if feed.age is not None})
    yield numbers(t.FEED_SYNCED, {name: int(feed.status.synced) for name, feed in feeds.items()})
    yield numbers(t.FEED_FAILING, {name: int(feed.status.error is not None) for name, feed in feeds.items()})
    yield numbers(t.LISTINGS, {name: feed.status.listings for name, feed in feeds.items()})


def pair_families(pairs: PairCounts, view: FleetView) -> Iterator[Family]:
    """Everything counted of pairs of engines."""
    flying: dict[Labels, float] = {}
    for engine in view.engines:
        if count := pairs.in_flight.get((engine.engine_id, engine.incarnation)):
            flying[(engine.name,)] = flying.get((engine.name,), 0) + count
    yield numbers(t.PAIRS, flying)
    yield numbers(t.HANDOVERS_WAITING, {(): pairs.waiting})
    yield numbers(t.RELEASES, {("released",): pairs.released, ("stranded",): pairs.stranded})


def numbers(row: t.Metric, values: Mapping[Labels, float]) -> Family:
    """A counter or gauge, one sample per label set."""
    family: CounterMetricFamily | GaugeMetricFamily
    if row.kind == "counter":
        family = CounterMetricFamily(row.name, row.meaning, labels=row.labels)
    else:
        family = GaugeMetricFamily(row.name, row.meaning, labels=row.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def histograms(row: t.Metric, values: Mapping[Labels, Buckets]) -> Family:
    """A histogram, one set of buckets per label set."""
    family = HistogramMetricFamily(row.name, row.meaning, labels=row.labels)
    for labels, buckets in values.items():
        family.add_metric(labels, buckets=list(buckets.cumulative()), sum_value=buckets.total)
    return family


def _one_label(values: Mapping[str, int] | Iterable[tuple[str, int]]) -> dict[Labels, float]:
    return {(name,): value for name, value in dict(values).items()}
