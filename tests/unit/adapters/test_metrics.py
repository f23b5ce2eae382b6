"""Metrics: the table is all there is, series are bounded, a token is counted without calling Prometheus."""

from __future__ import annotations

import uuid

import pytest
from prometheus_client.parser import text_string_to_metric_families

from enginehouse.adapters.metrics import Metrics
from enginehouse.adapters.metrics.counts import Buckets, Codes
from enginehouse.adapters.metrics.meters import RequestCounts
from enginehouse.adapters.metrics.table import ENDPOINTS, MAX_CODES, TABLE
from enginehouse.core.kv.accuracy import ERROR_BOUNDS
from enginehouse.core.kv.view import Heard, KvView, Policy
from enginehouse.domain.feed import FeedStatus
from enginehouse.domain.kv import Trust
from enginehouse.service.membership import Counters, EngineView, FeedView, FleetView, State, Topology
from enginehouse.service.pair_counts import PairCounts
from tests.unit.kv_views import known, rank_view


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def engine(name: str, state: State = State.SERVING, streams: int = 0, incarnation: int = 1) -> EngineView:
    return EngineView(
        engine_id=name,
        incarnation=incarnation,
        name=name,
        state=state,
        reason="",
        url=f"grpc://{name}",
        role=None,
        info=None,
        feeds=("fixed",),
        pod=None,
        state_seconds=1.0,
        next_try=None,
        kept_for=None,
        drain_left=None,
        streams=streams,
    )


def fleet(*engines: EngineView, feeds: tuple[FeedView, ...] = ()) -> FleetView:
    states = {state: sum(e.state is state for e in engines) for state in State}
    return FleetView(None, Topology.AGGREGATED, "", engines, feeds, (), states)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


class FakeFleet:
    def __init__(self, shown: FleetView, counters: Counters | None = None) -> None:
        self.shown = shown
        self.counters = counters or Counters()

    def view(self) -> FleetView:
        return self.shown


def make(
    view: FleetView | None = None,
    counters: Counters | None = None,
    ready: bool = True,
    kv: KvView | None = None,
    pairs: PairCounts | None = None,
) -> Metrics:
    seen = None if kv is None else lambda: kv
    return Metrics(FakeFleet(view or fleet(), counters), ready=lambda: ready, kv=seen, pairs=pairs, process=False)


def test_what_is_exposed_is_the_table_and_nothing_else() -> None:
    body, _ = make(fleet(engine("a")), kv=known(rank_view("a")), pairs=PairCounts()).render()
    found = {(family.name, family.type) for family in text_string_to_metric_families(body.decode())}
    assert found == {(row.name, row.kind) for row in TABLE}
    body, _ = make(fleet(engine("a"))).render()
    assert "_kv_" not in body.decode(), "of a policy that does not ask"


def test_names_follow_the_conventions_and_every_row_is_explained() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE)
    for row in TABLE:
        assert row.name.startswith("enginehouse_")
        assert not row.name.endswith("_total"), "added when exposed"
        assert row.meaning.endswith(".")
        assert bool(row.buckets) == (row.kind == "histogram")


def test_a_streamed_answer_is_counted() -> None:
    metrics, clock = make(), Clock()
    metrics.requests = RequestCounts(clock)
    meter = metrics.requests.begin("/v1/chat/completions")
    assert value(metrics, "enginehouse_requests_in_flight", endpoint="/v1/chat/completions") == 1
    assert value(metrics, "enginehouse_requests_waiting", endpoint="/v1/chat/completions") == 1
    clock.now += 0.3
    meter.prompt(120, cached=64)
    meter.tokens(1)
    assert value(metrics, "enginehouse_requests_waiting", endpoint="/v1/chat/completions") == 0
    for _ in range(3):
        clock.now += 0.025
        meter.tokens(1)
    clock.now += 0.1
    meter.tokens(4)
    meter.end(200)
    found = samples(metrics)
    none: frozenset[tuple[str, str]] = frozenset()
    assert found["enginehouse_completion_tokens_total", none] == 8
    assert found["enginehouse_prompt_tokens_total", none] == 120
    assert found["enginehouse_cached_tokens_total", none] == 64
    assert found["enginehouse_first_token_seconds_count", none] == 1
    assert found["enginehouse_first_token_seconds_bucket", frozenset({("le", "0.4")})] == 1
    assert found["enginehouse_first_token_seconds_bucket", frozenset({("le", "0.2")})] == 0
    assert found["enginehouse_between_tokens_seconds_count", none] == 7, "each later token once, also those that share"
    assert found["enginehouse_between_tokens_seconds_bucket", frozenset({("le", "0.03")})] == 7
    assert abs(found["enginehouse_between_tokens_seconds_sum", none] - 0.175) < 1e-9
    assert value(metrics, "enginehouse_requests_in_flight", endpoint="/v1/chat/completions") == 0
    assert value(metrics, "enginehouse_requests_total", endpoint="/v1/chat/completions", status="200", code="") == 1


def test_s1_a_client_that_leaves_is_counted_and_every_gauge_returns_to_zero() -> None:
    metrics = make()
    before_first = metrics.requests.begin("/v1/completions")
    after_first = metrics.requests.begin("/v1/completions")
    after_first.tokens(1)
    before_first.end(499)
    after_first.end(499, cut=True)
    assert value(metrics, "enginehouse_client_disconnects_total") == 2
    assert value(metrics, "enginehouse_requests_in_flight", endpoint="/v1/completions") == 0
    assert value(metrics, "enginehouse_requests_waiting", endpoint="/v1/completions") == 0


def test_retries_and_cuts_are_counted_by_code() -> None:
    metrics = make()
    meter = metrics.requests.begin("/v1/completions")
    meter.retried("engine_unavailable")
    meter.retried("engine_unavailable", "prefill")
    meter.tokens(2)
    meter.end(502, "engine_broken", cut=True)
    assert value(metrics, "enginehouse_retries_total", leg="", code="engine_unavailable") == 1
    assert value(metrics, "enginehouse_retries_total", leg="prefill", code="engine_unavailable") == 1
    assert value(metrics, "enginehouse_stream_cuts_total", code="engine_broken") == 1
    assert (
        value(metrics, "enginehouse_requests_total", endpoint="/v1/completions", status="502", code="engine_broken")
        == 1
    )


def test_cached_tokens_that_an_engine_tells_late_are_counted_once() -> None:
    metrics = make()
    meter = metrics.requests.begin("/v1/completions")
    meter.prompt(100)
    meter.prompt(100, cached=64)
    meter.prompt(100, cached=64)
    assert value(metrics, "enginehouse_prompt_tokens_total") == 100
    assert value(metrics, "enginehouse_prompt_length_tokens_count") == 1
    assert value(metrics, "enginehouse_cached_tokens_total") == 64


def test_after_its_end_a_meter_is_harmless() -> None:
    metrics = make()
    meter = metrics.requests.begin("/v1/completions")
    meter.end(200)
    before = samples(metrics)
    meter.end(500)
    meter.tokens(5)
    meter.prompt(5)
    meter.retried("x")
    assert samples(metrics) == before


def test_s6_junk_paths_and_codes_make_no_series() -> None:
    metrics = make()
    metrics.requests.begin("/v1/nothing").end(404, "not_found")
    first = len(samples(metrics))
    for _ in range(1000):
        metrics.requests.begin(f"/{uuid.uuid4()}").end(404, "not_found")
    assert len(samples(metrics)) == first
    for number in range(1000):
        meter = metrics.requests.begin("/v1/completions")
        meter.retried(f"r{number}")
        meter.end(500, f"c{number}", cut=True)
    found = samples(metrics)
    for name in ("enginehouse_requests_total", "enginehouse_retries_total", "enginehouse_stream_cuts_total"):
        assert sum(key[0] == name for key in found) <= MAX_CODES + 2
    # Every kind of failure draws on one supply of codes: here retries and ends took turns.
    assert value(metrics, "enginehouse_retries_total", leg="", code="other") == 1000 - MAX_CODES // 2


def test_s6_a_thousand_pods_that_came_and_went_leave_no_series() -> None:
    known = FakeFleet(fleet(*(engine(f"ns/pod-{n}:30001") for n in range(3))))
    metrics = Metrics(known, ready=lambda: True, process=False)
    few = len(samples(metrics))
    for round_ in range(50):
        known.shown = fleet(*(engine(f"ns/pod-{round_}-{n}:30001", streams=n) for n in range(20)))
        metrics.render()
    known.shown = fleet(*(engine(f"ns/new-{n}:30001") for n in range(3)))
    assert len(samples(metrics)) == few


def test_two_incarnations_of_one_name_are_one_series() -> None:
    view = fleet(engine("a", State.DRAINING, streams=2), engine("a", State.SERVING, streams=3, incarnation=2))
    assert value(make(view), "enginehouse_engine_streams", engine="a") == 5


def test_engines_feeds_and_counters_show() -> None:
    status = FeedStatus("pods", "pods", True, 5.0, listings=4, error="403 forbidden")
    never = FeedStatus("file", "file", False, None)
    view = fleet(
        engine("a"), engine("b", State.FAILED), feeds=(FeedView(status, 12.5, None), FeedView(never, None, 1.0))
    )
    counters = Counters(probes_passed=2, probes_failed=5, probes_timed_out=3, withdrawals=1, streams_cut=7)
    metrics = make(view, counters, ready=False)
    assert value(metrics, "enginehouse_engines", state="serving") == 1
    assert value(metrics, "enginehouse_engines", state="failed") == 1
    assert value(metrics, "enginehouse_engines", state="draining") == 0
    assert value(metrics, "enginehouse_probes_total", outcome="failed") == 2
    assert value(metrics, "enginehouse_probes_total", outcome="timed_out") == 3
    assert value(metrics, "enginehouse_membership_changes_total", change="withdrawn") == 1
    assert value(metrics, "enginehouse_drain_cuts_total") == 7
    assert value(metrics, "enginehouse_feed_age_seconds", feed="pods") == 12.5
    assert ("enginehouse_feed_age_seconds", frozenset({("feed", "file")})) not in samples(metrics), (
        "no age before a sync"
    )
    assert value(metrics, "enginehouse_feed_failing", feed="pods") == 1
    assert value(metrics, "enginehouse_feed_synced", feed="file") == 0
    assert value(metrics, "enginehouse_feed_listings_total", feed="pods") == 4
    assert value(metrics, "enginehouse_ready") == 0


def test_labels_that_are_odd_are_escaped() -> None:
    name = 'grpc://"x"\\\n:1'
    assert value(make(fleet(engine(name, streams=1))), "enginehouse_engine_streams", engine=name) == 1


def test_buckets_hold_their_bounds_inclusively() -> None:
    buckets = Buckets((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 9.0):
        buckets.observe(number)
    assert list(buckets.cumulative()) == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert buckets.total == 14.0


def test_a_bounded_code_keeps_counting_what_it_knew() -> None:
    codes = Codes()
    for number in range(MAX_CODES + 5):
        codes.add(str(number))
    codes.add("0")
    assert codes.values["0"] == 2
    assert codes.values["other"] == 5


def test_endpoints_end_with_other() -> None:
    assert ENDPOINTS[-1] == "other"


def test_choices_and_predictions_are_counted_beside_what_engines_report() -> None:
    metrics = make()
    meter = metrics.requests.begin("/v1/completions")
    meter.decided("best", 96)
    meter.retried("engine_unavailable")
    meter.decided("near-tie", 64)
    meter.prompt(100)
    meter.prompt(100, cached=48)
    meter.end(200)
    meter.decided("best", 32)
    refused = metrics.requests.begin("/v1/completions")
    refused.decided("near-tie", 16)
    refused.end(503, "no_engine")
    assert value(metrics, "enginehouse_decisions_total", rule="best") == 1
    assert value(metrics, "enginehouse_decisions_total", rule="near-tie") == 2
    assert value(metrics, "enginehouse_predicted_cached_tokens_total") == 64, "of the attempt that was taken up"
    assert value(metrics, "enginehouse_cached_tokens_total") == 48


def test_k4_k6_each_rank_shows_what_it_rests_on_and_what_befell_it() -> None:
    sick = rank_view(
        "a",
        rank=1,
        trust=Trust.GAP,
        policy=Policy.APPROXIMATE,
        blocks=0,
        event_age=None,
        correction=0.5,
        orphans=4,
        waiting_age=1.5,
        heard=Heard(
            batches=7, events=21, waiting=31, gaps=3, lost=2, replays=5, restarts=1, malformed=6, misdirected=8
        ),
    )
    new = rank_view("b", event_age=0.0)
    fine = rank_view("a", blocks=12, event_age=2.5, predicted_tokens=160, reported_tokens=150)
    metrics = make(
        fleet(engine("a"), engine("b")), kv=known(fine, sick, new, blocks=12, limit=100, memory=999, evicted=3)
    )
    assert value(metrics, "enginehouse_kv_trust", engine="a", rank="0", trust="synced") == 1
    assert value(metrics, "enginehouse_kv_trust", engine="a", rank="1", trust="gap") == 1
    assert value(metrics, "enginehouse_kv_policy", engine="a", rank="0", policy="events") == 1
    assert value(metrics, "enginehouse_kv_policy", engine="a", rank="1", policy="approximate") == 1
    found = samples(metrics)
    ages = [found[key] for key in found if key[0] == "enginehouse_kv_event_age_seconds"]
    assert ages == [2.5, 0.0], "no age before events"
    assert value(metrics, "enginehouse_kv_blocks", engine="a", rank="0") == 12
    assert value(metrics, "enginehouse_kv_batches_total", engine="a", rank="1") == 7
    assert value(metrics, "enginehouse_kv_events_total", engine="a", rank="1") == 21
    assert value(metrics, "enginehouse_kv_waiting_batches", engine="a", rank="1") == 31
    assert value(metrics, "enginehouse_kv_waiting_seconds", engine="a", rank="1") == 1.5
    assert value(metrics, "enginehouse_kv_waiting_seconds", engine="a", rank="0") == 0
    incidents = {
        "gap": 3,
        "lost": 2,
        "replay": 5,
        "restart": 1,
        "malformed": 6,
        "misdirected": 8,
        "orphan": 4,
        "overflow": 0,
        "duplicate": 0,
    }
    for incident, count in incidents.items():
        got = value(metrics, "enginehouse_kv_incidents_total", engine="a", rank="1", incident=incident)
        assert got == count, incident
    assert value(metrics, "enginehouse_kv_correction", engine="a", rank="1") == 0.5
    assert value(metrics, "enginehouse_kv_predicted_tokens_total", engine="a", rank="0") == 160
    assert value(metrics, "enginehouse_kv_reported_tokens_total", engine="a", rank="0") == 150
    assert value(metrics, "enginehouse_kv_index_blocks") == 12
    assert value(metrics, "enginehouse_kv_index_limit_blocks") == 100
    assert value(metrics, "enginehouse_kv_index_bytes") == 999
    assert value(metrics, "enginehouse_kv_index_evicted_total") == 3


def test_how_far_predictions_were_off_is_a_histogram_around_zero() -> None:
    errors = [0] * len(ERROR_BOUNDS)
    errors[ERROR_BOUNDS.index(0.0)], errors[ERROR_BOUNDS.index(-0.25)] = 5, 2
    metrics = make(fleet(engine("a")), kv=known(rank_view("a", errors=tuple(errors))))
    below, exact, all_ = (
        value(metrics, "enginehouse_kv_prediction_error_bucket", engine="a", rank="0", le=le)
        for le in ("-0.1", "0.0", "+Inf")
    )
    assert (below, exact, all_) == (2, 7, 7)


def test_s6_a_thousand_ranks_that_came_and_went_leave_no_series() -> None:
    shown = FakeFleet(fleet(engine("new")))
    seen = [known(rank_view("new"))]
    metrics = Metrics(shown, ready=lambda: True, kv=lambda: seen[0], process=False)
    few = len(samples(metrics))
    for number in range(100):
        shown.shown = fleet(*(engine(f"e{number}-{n}") for n in range(10)))
        seen[0] = known(*(rank_view(f"e{number}-{n}") for n in range(10)))
        metrics.render()
    shown.shown, seen[0] = fleet(engine("new")), known(rank_view("new"), rank_view("gone"))
    assert len(samples(metrics)) == few


def test_k2_of_two_incarnations_of_one_name_the_newer_is_shown() -> None:
    view = fleet(engine("a", State.DRAINING), engine("a", incarnation=2))
    metrics = make(view, kv=known(rank_view("a", incarnation=2, blocks=3), rank_view("a", blocks=900)))
    assert value(metrics, "enginehouse_kv_blocks", engine="a", rank="0") == 3


def test_legs_of_pairs_are_timed_and_their_failures_told_apart() -> None:
    metrics = make()
    meter = metrics.requests.begin("/v1/completions")
    meter.leg("queue", 0.04)
    meter.leg("prefill", 0.3)
    meter.leg("handover", 0.002)
    meter.leg("decode", 4.0)
    meter.leg_failed("prefill", "engine_failed")
    meter.leg_failed("handover", "handover_failed")
    meter.leg_failed("handover", "handover_failed")
    meter.end(200)
    meter.leg("decode", 4.0)
    meter.leg_failed("decode", "engine_failed")
    for leg, seconds in (("pair_queue", 0.04), ("prefill", 0.3), ("handover", 0.002), ("decode", 4.0)):
        assert value(metrics, f"enginehouse_{leg}_seconds_count") == 1
        assert value(metrics, f"enginehouse_{leg}_seconds_sum") == pytest.approx(seconds)
    failures = {key: count for key, count in samples(metrics).items() if key[0] == "enginehouse_leg_failures_total"}
    assert {
        (labels["leg"], labels["code"]): count for (_, pairs), count in failures.items() if (labels := dict(pairs))
    } == {
        ("prefill", "engine_failed"): 1,
        ("handover", "handover_failed"): 2,
    }


def test_pairs_are_shown_by_engine_while_the_engine_is_known() -> None:
    pairs = PairCounts()
    pairs.begin(("a", 1), ("b", 1))
    pairs.begin(("a", 2), ("c", 1))
    pairs.released, pairs.stranded, pairs.waiting = 3, 1, 2
    metrics = make(fleet(engine("a"), engine("a", incarnation=2), engine("b")), pairs=pairs)
    assert value(metrics, "enginehouse_engine_pairs", engine="a") == 2
    assert value(metrics, "enginehouse_engine_pairs", engine="b") == 1
    assert ("enginehouse_engine_pairs", frozenset({("engine", "c")})) not in samples(metrics)
    assert value(metrics, "enginehouse_kept_caches_total", outcome="released") == 3
    assert value(metrics, "enginehouse_kept_caches_total", outcome="stranded") == 1
    assert value(metrics, "enginehouse_handovers_waiting") == 2
