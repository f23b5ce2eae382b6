"""Owns the words in which the rest of the program sees the fleet: members for requests, views for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from enginehouse.core.handover import meeting_point, pairing
from enginehouse.core.membership.card import ModelCard
from enginehouse.core.membership.projections import RuntimeConfig
from enginehouse.core.membership.roles import Topology
from enginehouse.core.membership.states import State
from enginehouse.core.routing.candidate import Pairing
from enginehouse.domain.engine import EngineInfo, Role, Target
from enginehouse.domain.feed import FeedStatus, PodRef
from enginehouse.ports import Engine

__all__ = [
    "Counters",
    "EngineView",
    "FeedView",
    "FleetView",
    "Member",
    "ModelCard",
    "RuntimeConfig",
    "State",
    "Topology",
]


@dataclass(frozen=True, slots=True)
class Member:
    """One engine that may be sent new requests. Equal if id, incarnation and what it says of itself are equal."""

    engine_id: str
    incarnation: int
    name: str
    role: Role
    info: EngineInfo
    target: Target
    engine: Engine = field(compare=False, repr=False)

    def __hash__(self) -> int:
        return hash((self.engine_id, self.incarnation))

    @property
    def pairing(self) -> Pairing:
        """What must agree with the other engine of a pair."""
        return pairing(self.target, self.info)

    @property
    def meeting_point(self) -> tuple[str, int] | None:
        """Host and port for Rendezvous; never None for a prefill engine of SGLang, which is not admitted without."""
        return meeting_point(self.target, self.info)


@dataclass(slots=True)
class Counters:
    """What happened since the start. Plain numbers; whoever measures reads them."""

    probes_started: int = 0
    probes_passed: int = 0
    probes_failed: int = 0
    probes_timed_out: int = 0
    """Also counted as failed."""
    probes_cancelled: int = 0
    checks_passed: int = 0
    checks_failed: int = 0
    admissions: int = 0
    """Incarnations that came into the serving state, each return from doubt or unreadiness included."""
    refusals: int = 0
    suspicions: int = 0
    withdrawals: int = 0
    """Serving incarnations that were taken out of it, for whatever cause."""
    streams_cut: int = 0
    engines_closed: int = 0
    listings: dict[str, int] = field(default_factory=dict)
    """By feed."""
    events_ignored: int = 0
    """Late words of incarnations that were over."""
    removals_missed: int = 0
    """`remove` of an engine that nobody had added."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """One incarnation, for people."""

    engine_id: str
    incarnation: int
    name: str
    state: State
    reason: str
    """Why it does not serve; empty when it does."""
    url: str | None
    role: Role | None
    """Its work; before it has joined, what the operator said."""
    info: EngineInfo | None
    feeds: tuple[str, ...]
    pod: PodRef | None
    state_seconds: float
    """How long it has been in this state."""
    next_try: float | None
    """Seconds until the next probe or check of an engine that does not serve. None: it serves, one is under way, or it
    waits for its feed to say that it may."""
    kept_for: float | None
    """UNREADY: seconds until its link is given up."""
    drain_left: float | None
    """DRAINING: seconds until its streams are cut."""
    streams: int
    """In flight."""
    group: str | None = None
    """Only engines of the same one are paired."""
    meeting_point: tuple[str, int] | None = None
    """Where decode engines meet a prefill engine of SGLang."""


@dataclass(frozen=True, slots=True)
class FeedView:
    """One feed, for people."""

    status: FeedStatus
    age: float | None
    """Seconds since the source last confirmed what we know; None: never yet."""
    next_try: float | None
    """Seconds until it is asked again, while that waits."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """Everything that there is to know, at one moment."""

    card: ModelCard | None
    topology: Topology
    topology_reason: str
    engines: tuple[EngineView, ...]
    """By name, then incarnation."""
    feeds: tuple[FeedView, ...]
    missing: tuple[str, ...]
    """What is still to come before requests can be served."""
    states: Mapping[State, int]
    """How many incarnations are in each state, zeros included."""
