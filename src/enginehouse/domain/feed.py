"""What a feed (fixed list, file, pod selector) tells the fleet: which engines should exist and which may serve."""

from __future__ import annotations

from dataclasses import dataclass

from enginehouse.domain.engine import Target


@dataclass(frozen=True, slots=True)
class PodRef:
    """The pod behind an engine."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """One engine that a feed knows: where it is and whether it may serve."""

    engine_id: str
    """Stable identity: `<pod uid>:<port>` in Kubernetes, else the target's normal URL."""
    owner: str
    """What brings and takes this engine: the pod's uid, or the engine id itself."""
    name: str
    """For people: `namespace/pod:port` or the URL."""
    target: Target | None
    """None when no address can be made (no IP yet, unusable port)."""
    generation: str
    """Opaque. Another value for the same engine id means another process or address: a new incarnation."""
    eligible: bool
    reason: str = ""
    """Why it may not serve; empty when `eligible`."""
    pod: PodRef | None = None


@dataclass(frozen=True, slots=True)
class FeedListed:
    """Everything that the feed knows now. Replaces all it said before; what is missing is gone."""

    feed: str
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class FeedApplied:
    """Everything that one owner (a pod) stands for now. Empty: the owner is gone."""

    feed: str
    owner: str
    wanted: tuple[Wanted, ...]


FeedEvent = FeedListed | FeedApplied


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """How fresh a feed's knowledge is. Times are the event loop's monotonic seconds."""

    feed: str
    kind: str
    """`fixed`, `file` or `pods`."""
    synced: bool
    """It has listed at least once."""
    confirmed_at: float | None
    """When the source last confirmed what we know (a listing, an event, a bookmark)."""
    listings: int = 0
    state: str = ""
    """For people: `watching`, `listing`, `backing off`, …"""
    error: str | None = None
    """The failure that stands now; None when all is well."""
    next_try_at: float | None = None
