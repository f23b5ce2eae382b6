"""Counting in plain Python: what the hot path touches. One process, one loop, so no locks; rendered at scrape time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from enginehouse.adapters.metrics.table import MAX_CODES


class Buckets:
    """One histogram."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Upper bound as text and number of values up to it, as the exposition wants them."""
        seen = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            yield bound, seen


class Codes:
    """A counter with one label whose values come from our error tree, held to a bound all the same."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def add(self, code: str) -> str:
        """Count it; returns the label value that it is counted under."""
        label = code if code in self.values or len(self.values) < MAX_CODES else "other"
        self.values[label] = self.values.get(label, 0) + 1
        return label
