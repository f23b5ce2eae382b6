"""Knowledge of KV caches as people and metrics get to see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from enginehouse.core.kv.accuracy import Verdict
from enginehouse.core.kv.pace import Pace
from enginehouse.domain.kv import RankKey, Trust


class Policy(StrEnum):
    """What the prediction for a rank rests on."""

    EVENTS = "events"
    """What the engine says it holds."""
    APPROXIMATE = "approximate"
    """What we sent it, and guess that it still holds."""


@dataclass(slots=True)
class Heard:
    """What came from one rank since it joined. Whoever hears counts; numbers only grow."""

    batches: int = 0
    """Applied."""
    events: int = 0
    last_at: float | None = None
    """When the last batch was applied, by the clock of whoever counts."""
    malformed: int = 0
    """Events that could not be read, and batches of which nothing could."""
    ignored: int = 0
    """Events that were meant for others."""
    misdirected: int = 0
    """Batches that name another rank than the socket that they came from: a wrong port, most likely."""
    duplicates: int = 0
    gaps: int = 0
    """Times that batches were missing."""
    lost: int = 0
    """Times that what was missing could not be had any more."""
    replays: int = 0
    """Asked for."""
    restarts: int = 0
    """Times that its numbers began anew."""
    overflows: int = 0
    """Times that batches came faster than they could be applied."""
    waiting: int = 0
    """Batches that came and are not applied, when last asked."""
    waiting_since: float | None = None
    """When the oldest of them came, by the clock of whoever counts."""
    pace: Pace = field(default_factory=Pace)
    """Of the events."""

    def applied(self, events: int, now: float) -> None:
        """A batch of so many was taken in."""
        self.batches += 1
        self.events += events
        self.last_at = now
        self.pace.add(events, now)


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank at one moment."""

    key: RankKey
    trust: Trust
    trust_reason: str
    policy: Policy
    policy_reason: str
    """Why it is approximate; empty for events."""
    block_size: int | None
    """As its events say, else as the engine told."""
    block_sizes_disagree: bool
    """The engine told another block size than its events have. These are believed."""
    blocks: int
    """In the index, by its events."""
    approximate_blocks: int
    expected_blocks: int
    """Of requests on their way."""
    orphans: int
    """Stored runs that were dropped because the block before them is not known."""
    heard: Heard
    event_age: float | None
    """Seconds since the last batch; None: there was none. Silence is normal for an engine that has nothing to do."""
    waiting_age: float | None
    """Seconds for which the oldest batch waits to be applied; None: none does."""
    event_rate: float
    """Events per second, of about the last half minute."""
    verdict: Verdict
    """On the predictions from events."""
    correction: float
    """Factor for predictions of the policy in force."""
    requests: int
    """That ended and of which the engine said how much was cached."""
    hits: int
    """Of these, with a block or more from the engine's cache."""
    predicted_tokens: int
    """Sum of what was predicted under the policy then in force, before correction."""
    reported_tokens: int
    """Sum of what the engine reported."""
    prompt_tokens: int
    errors: tuple[int, ...]
    """Requests by (reported - predicted) / prompt, in the bounds of `accuracy.ERROR_BOUNDS`, not summed up."""


@dataclass(frozen=True)
class KvView:
    """Everything known of KV caches at one moment."""

    ranks: tuple[RankView, ...]
    blocks: int
    """In the index, each rank that holds a block counted."""
    memory: int
    """Bytes of the index, from counts."""
    evicted: int
    """Blocks that were forgotten for want of room."""
    limit: int
    """Most blocks in the index."""

    @cached_property
    def by_engine(self) -> Mapping[tuple[str, int], Sequence[RankView]]:
        """The ranks of each engine id and incarnation."""
        found: dict[tuple[str, int], list[RankView]] = {}
        for rank in self.ranks:
            found.setdefault((rank.key.engine_id, rank.key.incarnation), []).append(rank)
        return found
