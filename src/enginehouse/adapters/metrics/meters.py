"""What is counted of requests, and how: per token two clock reads less one, a bisection and two additions.

Prometheus is not called here: its own counters take a lock and cost more than a token may. `collect.py` reads these
numbers when somebody scrapes.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from enginehouse.adapters.metrics.counts import Buckets, Codes
from enginehouse.adapters.metrics.table import (
    BETWEEN_TOKENS_SECONDS,
    ENDPOINTS,
    FIRST_TOKEN_SECONDS,
    HANDOVER_SECONDS,
    PROMPT_TOKENS,
    REQUEST_SECONDS,
)
from enginehouse.ports import LegName

CLIENT_GONE = 499


class RequestCounts:
    """Everything counted of requests since the start; implements the `Meters` port."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.answered: dict[tuple[str, ...], int] = {}
        self.codes = Codes()
        self.in_flight = dict.fromkeys(ENDPOINTS, 0)
        self.waiting = dict.fromkeys(ENDPOINTS, 0)
        self.seconds = {endpoint: Buckets(REQUEST_SECONDS) for endpoint in ENDPOINTS}
        self.first_token = Buckets(FIRST_TOKEN_SECONDS)
        self.between_tokens = Buckets(BETWEEN_TOKENS_SECONDS)
        self.prompt_length = Buckets(PROMPT_TOKENS)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.predicted_tokens = 0
        self.decisions: dict[str, int] = {}
        self.completion_tokens = 0
        self.retries: dict[tuple[str, ...], int] = {}
        self.cuts = Codes()
        self.disconnects = 0
        self.legs: dict[LegName, Buckets] = {
            "queue": Buckets(HANDOVER_SECONDS),
            "prefill": Buckets(FIRST_TOKEN_SECONDS),
            "handover": Buckets(HANDOVER_SECONDS),
            "decode": Buckets(REQUEST_SECONDS),
        }
        self.leg_failures: dict[tuple[str, ...], int] = {}

    def begin(self, endpoint: str) -> Meter:
        """A request arrived on this path."""
        return Meter(self, endpoint if endpoint in self.in_flight else "other")


class Meter:
    """One request's share of the counts; implements the `RequestMeter` port."""

    __slots__ = ("_cached", "_counts", "_endpoint", "_last", "_open", "_predicted", "_start")

    def __init__(self, counts: RequestCounts, endpoint: str) -> None:
        self._counts = counts
        self._endpoint = endpoint
        self._start = counts.clock()
        self._last: float | None = None
        self._cached: int | None = None
        self._predicted = 0
        self._open = True
        counts.in_flight[endpoint] += 1
        counts.waiting[endpoint] += 1

    def tokens(self, count: int) -> None:
        if not self._open or count < 1:
            return
        counts = self._counts
        counts.completion_tokens += count
        now = counts.clock()
        last, self._last = self._last, now
        if last is None:
            counts.waiting[self._endpoint] -= 1
            counts.first_token.observe(now - self._start)
        else:
            counts.between_tokens.observe((now - last) / count, count)

    def prompt(self, tokens: int, cached: int = 0) -> None:
        if not self._open:
            return
        counts = self._counts
        if self._cached is None:
            counts.prompt_tokens += tokens
            counts.prompt_length.observe(tokens)
            counts.predicted_tokens += self._predicted
        # Some engines say what was cached with the last message only: a later call adds what an earlier one lacked.
        counts.cached_tokens += cached - (self._cached or 0)
        self._cached = cached

    def decided(self, rule: str, predicted: int) -> None:
        if self._open:
            decisions = self._counts.decisions
            decisions[rule] = decisions.get(rule, 0) + 1
            self._predicted = predicted

    def retried(self, code: str, leg: LegName | None = None) -> None:
        if self._open:
            counts = self._counts
            label = counts.codes.add(code)
            counts.retries[leg or "", label] = counts.retries.get((leg or "", label), 0) + 1

    def leg(self, leg: LegName, seconds: float) -> None:
        if self._open:
            self._counts.legs[leg].observe(seconds)

    def leg_failed(self, leg: LegName, code: str) -> None:
        if self._open:
            counts = self._counts
            label = counts.codes.add(code)
            counts.leg_failures[leg, label] = counts.leg_failures.get((leg, label), 0) + 1

    def end(self, status: int, code: str | None = None, *, cut: bool = False) -> None:
        if not self._open:
            return
        self._open = False
        counts, endpoint = self._counts, self._endpoint
        counts.in_flight[endpoint] -= 1
        if self._last is None:
            counts.waiting[endpoint] -= 1
        counts.seconds[endpoint].observe(counts.clock() - self._start)
        label = counts.codes.add(code) if code else ""
        key = (endpoint, str(status), label)
        counts.answered[key] = counts.answered.get(key, 0) + 1
        if status == CLIENT_GONE:
            counts.disconnects += 1
        elif cut:
            counts.cuts.add(label or "unknown")
