"""Every metric: its name, type, labels and meaning. Nothing is exposed that does not stand here.

Labels are bounded by construction: endpoints and outcomes are closed sets, feeds and engines are those that exist now
(the series of one that left goes with it), and nothing that a client sends becomes a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from enginehouse.core.kv.accuracy import ERROR_BOUNDS

Kind = Literal["counter", "gauge", "histogram"]

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "other",
)
"""Values of the label `endpoint`; any other path counts as `other`, so junk paths make no series."""

MAX_CODES = 64
"""Distinct values of the label `code`; later ones count as `other`. Our error tree has far fewer."""

FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 30.0, 60.0, 120.0)
BETWEEN_TOKENS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0)
HANDOVER_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0)
REQUEST_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
PROMPT_TOKENS = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. Counters are exposed with `_total` at the end of their name."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()

    @property
    def exposed(self) -> str:
        """The name as Prometheus sees it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


INFO = Metric("enginehouse_info", "gauge", ("version",), "1; the label says which version runs.")
REQUESTS = Metric(
    "enginehouse_requests",
    "counter",
    ("endpoint", "status", "code"),
    "Requests answered, by HTTP status (499: the client went away) and error code (empty: none).",
)
REQUEST_TIME = Metric(
    "enginehouse_request_seconds",
    "histogram",
    ("endpoint",),
    "Time from the request's arrival to the end of its answer.",
    REQUEST_SECONDS,
)
IN_FLIGHT = Metric("enginehouse_requests_in_flight", "gauge", ("endpoint",), "Requests that are being answered now.")
WAITING = Metric(
    "enginehouse_requests_waiting", "gauge", ("endpoint",), "Requests in flight that have no token of their answer yet."
)
PROMPT = Metric("enginehouse_prompt_tokens", "counter", (), "Tokens of prompts that an engine took up.")
PROMPT_LENGTH = Metric(
    "enginehouse_prompt_length_tokens", "histogram", (), "Tokens in one prompt that an engine took up.", PROMPT_TOKENS
)
CACHED = Metric("enginehouse_cached_tokens", "counter", (), "Prompt tokens that engines took from their prefix caches.")
PREDICTED = Metric(
    "enginehouse_predicted_cached_tokens",
    "counter",
    (),
    "Prompt tokens that the chosen engine was predicted to have cached, of the prompts that were taken up. Policy kv.",
)
DECISIONS = Metric(
    "enginehouse_decisions",
    "counter",
    ("rule",),
    "Choices of an engine, each attempt one, by the rule that decided: policy (weighs no costs), only-one, affinity, "
    "best, near-tie, temperature.",
)
COMPLETION = Metric("enginehouse_completion_tokens", "counter", (), "Tokens that engines generated for clients.")
FIRST_TOKEN = Metric(
    "enginehouse_first_token_seconds",
    "histogram",
    (),
    "Time from the request's arrival to the first token of its answer.",
    FIRST_TOKEN_SECONDS,
)
BETWEEN_TOKENS = Metric(
    "enginehouse_between_tokens_seconds",
    "histogram",
    (),
    "Time between two tokens of one answer; tokens that arrive in one message share its gap evenly.",
    BETWEEN_TOKENS_SECONDS,
)
RETRIES = Metric(
    "enginehouse_retries",
    "counter",
    ("leg", "code"),
    "Attempts that failed with nothing sent to the client and were repeated on another engine, by the failure's code; "
    "of attempts on two engines by the leg at fault too (prefill, decode, handover).",
)
LEG_TIME = {
    leg: Metric(
        f"enginehouse_{name}_seconds", "histogram", (), f"Where prefill and decode are apart: {meaning}", buckets
    )
    for leg, name, meaning, buckets in (
        (
            "queue",
            "pair_queue",
            "time that an attempt waited for two engines, with its prompt encoded already, to its dispatch.",
            HANDOVER_SECONDS,
        ),
        (
            "prefill",
            "prefill",
            "time from a pair's dispatch to the end of its prefill leg, in the engine's queue included.",
            FIRST_TOKEN_SECONDS,
        ),
        (
            "handover",
            "handover",
            "time from the end of the prefill leg to the first token of the decode engine. On SGLang the prefill leg "
            "ends when the cache has passed.",
            HANDOVER_SECONDS,
        ),
        ("decode", "decode", "time from the decode engine's first token to the end of the answer.", REQUEST_SECONDS),
    )
}
LEG_FAILURES = Metric(
    "enginehouse_leg_failures",
    "counter",
    ("leg", "code"),
    "Attempts on two engines that failed, by the leg at fault: prefill, decode, or handover (either, or the way "
    "between them); and by the failure's code.",
)
PAIRS = Metric(
    "enginehouse_engine_pairs",
    "gauge",
    ("engine",),
    "Pairs in flight in which an engine takes part, to prefill or to decode.",
)
HANDOVERS_WAITING = Metric(
    "enginehouse_handovers_waiting",
    "gauge",
    (),
    "Requests that wait because each prefill engine has all the hand-overs that it may have.",
)
RELEASES = Metric(
    "enginehouse_kept_caches",
    "counter",
    ("outcome",),
    "Caches that a prefill engine kept for a client that then left: released (a decode engine took it off), or "
    "stranded until the engine gives it up.",
)
CUTS = Metric(
    "enginehouse_stream_cuts",
    "counter",
    ("code",),
    "Streams that ended in an error after their first token had been sent, by the error's code.",
)
DISCONNECTS = Metric("enginehouse_client_disconnects", "counter", (), "Requests that their client left before the end.")
ENGINES = Metric("enginehouse_engines", "gauge", ("state",), "Engines known to the fleet, by state.")
STREAMS = Metric("enginehouse_engine_streams", "gauge", ("engine",), "Streams in flight on each engine with a link.")
PROBES = Metric(
    "enginehouse_probes",
    "counter",
    ("outcome",),
    "Probes of engines, by how they ended: passed, failed, timed_out, cancelled.",
)
CHECKS = Metric("enginehouse_checks", "counter", ("outcome",), "Health checks of admitted engines: passed, failed.")
CHANGES = Metric(
    "enginehouse_membership_changes",
    "counter",
    ("change",),
    "What happened to engines: admitted (each return included), refused, suspected, withdrawn, closed.",
)
STREAMS_CUT = Metric(
    "enginehouse_drain_cuts", "counter", (), "Streams cut because their withdrawn engine reached its drain deadline."
)
IGNORED = Metric(
    "enginehouse_late_events", "counter", (), "Late words of engines that were over; they changed nothing."
)
FEED_AGE = Metric(
    "enginehouse_feed_age_seconds",
    "gauge",
    ("feed",),
    "Seconds since the feed's source last confirmed what we know. The one to alert on when engines come from pods.",
)
FEED_SYNCED = Metric("enginehouse_feed_synced", "gauge", ("feed",), "1 once the feed has listed, else 0.")
FEED_FAILING = Metric("enginehouse_feed_failing", "gauge", ("feed",), "1 while a failure of the feed stands, else 0.")
LISTINGS = Metric("enginehouse_feed_listings", "counter", ("feed",), "Complete listings that the feed has made.")
_RANK = ("engine", "rank")
KV_TRUST = Metric(
    "enginehouse_kv_trust",
    "gauge",
    (*_RANK, "trust"),
    "1 for how far a rank's KV events are believed now: none, replaying, synced, partial, gap. This and what follows: "
    "policy kv alone, ranks without numbers are rank 0.",
)
KV_POLICY = Metric(
    "enginehouse_kv_policy",
    "gauge",
    (*_RANK, "policy"),
    "1 for what predictions for a rank rest on now: events, or approximate (on what it was sent).",
)
KV_EVENT_AGE = Metric(
    "enginehouse_kv_event_age_seconds",
    "gauge",
    _RANK,
    "Seconds since the last batch of KV events of a rank; no series before the first. Idle engines are silent.",
)
KV_BATCHES = Metric("enginehouse_kv_batches", "counter", _RANK, "Batches of KV events applied.")
KV_EVENTS = Metric("enginehouse_kv_events", "counter", _RANK, "KV events applied.")
KV_WAITING = Metric(
    "enginehouse_kv_waiting_batches", "gauge", _RANK, "Batches of KV events of a rank that came and are not applied."
)
KV_WAITING_AGE = Metric(
    "enginehouse_kv_waiting_seconds", "gauge", _RANK, "Seconds for which the oldest of them waits; 0 when none does."
)
KV_INCIDENTS = Metric(
    "enginehouse_kv_incidents",
    "counter",
    (*_RANK, "incident"),
    "What befell a rank's stream of KV events: gap (batches missing), replay (asked for), lost (a gap that could not "
    "be mended), restart, overflow, duplicate, orphan (a run whose parent is unknown), malformed, misdirected (of "
    "another rank).",
)
KV_BLOCKS = Metric("enginehouse_kv_blocks", "gauge", _RANK, "Blocks that a rank holds by its KV events.")
KV_CORRECTION = Metric(
    "enginehouse_kv_correction", "gauge", _RANK, "Factor for predictions of a rank, from what its engine reported."
)
KV_PREDICTED = Metric(
    "enginehouse_kv_predicted_tokens",
    "counter",
    _RANK,
    "Cached tokens predicted for prompts of which the engine then said how many it had.",
)
KV_REPORTED = Metric("enginehouse_kv_reported_tokens", "counter", _RANK, "Cached tokens that it said it had for them.")
KV_ERROR = Metric(
    "enginehouse_kv_prediction_error",
    "histogram",
    _RANK,
    "(reported - predicted cached tokens) / prompt tokens, one observation per such prompt; 0 is exact, below it the "
    "prediction promised too much.",
    ERROR_BOUNDS,
)
KV_INDEX_BLOCKS = Metric(
    "enginehouse_kv_index_blocks", "gauge", (), "Blocks in the index, each rank that holds one counted."
)
KV_INDEX_LIMIT = Metric("enginehouse_kv_index_limit_blocks", "gauge", (), "Most blocks that the index takes.")
KV_INDEX_BYTES = Metric("enginehouse_kv_index_bytes", "gauge", (), "Memory of the index, reckoned from counts.")
KV_EVICTED = Metric("enginehouse_kv_index_evicted", "counter", (), "Blocks forgotten because the index was full.")
READY = Metric("enginehouse_ready", "gauge", (), "1 while /readyz answers 200, else 0.")

TABLE: tuple[Metric, ...] = (
    INFO,
    REQUESTS,
    REQUEST_TIME,
    IN_FLIGHT,
    WAITING,
    PROMPT,
    PROMPT_LENGTH,
    CACHED,
    PREDICTED,
    DECISIONS,
    COMPLETION,
    FIRST_TOKEN,
    BETWEEN_TOKENS,
    RETRIES,
    *LEG_TIME.values(),
    LEG_FAILURES,
    CUTS,
    DISCONNECTS,
    ENGINES,
    STREAMS,
    PAIRS,
    HANDOVERS_WAITING,
    RELEASES,
    PROBES,
    CHECKS,
    CHANGES,
    STREAMS_CUT,
    IGNORED,
    FEED_AGE,
    FEED_SYNCED,
    FEED_FAILING,
    LISTINGS,
    KV_TRUST,
    KV_POLICY,
    KV_EVENT_AGE,
    KV_BATCHES,
    KV_EVENTS,
    KV_WAITING,
    KV_WAITING_AGE,
    KV_INCIDENTS,
    KV_BLOCKS,
    KV_CORRECTION,
    KV_PREDICTED,
    KV_REPORTED,
    KV_ERROR,
    KV_INDEX_BLOCKS,
    KV_INDEX_LIMIT,
    KV_INDEX_BYTES,
    KV_EVICTED,
    READY,
)
