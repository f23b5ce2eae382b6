"""Everything that can be said to the fleet reducer. Closed: add a case and the type checker finds each match.

Each event about an engine carries its incarnation; from any but the current one it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from enginehouse.domain.engine import EngineInfo
from enginehouse.domain.feed import FeedApplied, FeedListed


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe passed; the link is open."""

    engine_id: str
    incarnation: int
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class ProbeRefused:
    """A probe failed. `chance` (random, 0 to below 1) spreads the next try."""

    engine_id: str
    incarnation: int
    reason: str
    permanent: bool = False
    chance: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckPassed:
    """A check of an open engine passed; `info` was read again."""

    engine_id: str
    incarnation: int
    info: EngineInfo
    chance: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckFailed:
    """A check of an open engine failed."""

    engine_id: str
    incarnation: int
    reason: str
    chance: float = 0.0


class Doubt(StrEnum):
    """What speaks against an engine that serves."""

    LOST = "lost"
    """A connection broke or could not be made."""
    BROKEN = "broken"
    """It answered against its protocol."""
    MUTE = "mute"
    """It let a request wait too long: dead, or only full."""
    FAILING = "failing"
    """It failed several requests in a row: broken, or they were at fault themselves."""
    UNMET = "unmet"
    """A hand-over with it took too long, and none with it got on meanwhile. Its health says nothing of that."""


@dataclass(frozen=True, slots=True)
class Doubted:
    """The request path, or the link, saw a failure that says more about the engine than about one request."""

    engine_id: str
    incarnation: int
    doubt: Doubt
    reason: str
    chance: float = 0.0
    in_a_row: int = 1
    """UNMET: how often by now, with no request that it served well in between."""


@dataclass(frozen=True, slots=True)
class StreamsIdle:
    """A draining incarnation has no stream (any more)."""

    engine_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Woke:
    """The time asked for with WakeAt has come."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """This frontend shuts down: withdraw everything, give streams `drain` seconds."""

    drain: float


EngineEvent = Probed | ProbeRefused | CheckPassed | CheckFailed | Doubted | StreamsIdle
Event = FeedListed | FeedApplied | EngineEvent | Woke | Leaving
