"""Owns what the fleet knows: immutable records of every engine that a feed names or that still drains.

How they change is the reducer's business; what may be read out of them is in `projections`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from enginehouse.core.membership.card import ModelCard
from enginehouse.core.membership.roles import Topology
from enginehouse.core.membership.settings import MembershipSettings
from enginehouse.core.membership.states import State
from enginehouse.domain.engine import EngineInfo, Role, Target
from enginehouse.domain.feed import Wanted


@dataclass(frozen=True, slots=True)
class Entry:
    """One incarnation of an engine."""

    incarnation: int
    name: str
    target: Target | None
    generations: Mapping[str, str]
    """What each feed that wants it calls this process."""
    state: State
    since: float
    """When it came into this state."""
    reason: str = ""
    """Why it does not serve, for people."""
    info: EngineInfo | None = None
    """What it said last; None until a probe has passed."""
    role: Role | None = None
    """Its work in this fleet, once it has joined."""
    next_at: float | None = None
    """FAILED: next probe. REFUSED, SERVING, SUSPECT: next check, None while one runs. UNREADY: kept until. DRAINING:
    streams are cut, and after that the link is closed."""
    failures: int = 0
    """Probes or checks failed in a row."""
    checking: bool = False
    """A check is under way."""
    canary: bool = False
    """The next check has to generate a token too."""
    lost: bool = False
    """The link broke, or a check failed, since the last check passed."""
    returns: int = 0
    """How often it came back from out of reach with nothing to prove that it is the process of before."""
    doubts: int = 0
    """How often it came into doubt, each time soon after the last."""
    doubted_at: float | None = None
    cut: bool = False
    """DRAINING: the deadline has passed and the streams were cut."""

    @property
    def due_at(self) -> float | None:
        """When it wants to be looked at. A next check has to wait for the end of the one that is under way."""
        return None if self.checking and self.state is not State.UNREADY else self.next_at


@dataclass(frozen=True, slots=True)
class Slot:
    """All that goes by one engine id."""

    engine_id: str
    wants: Mapping[str, Wanted] = field(default_factory=lambda: MappingProxyType({}))
    """Feed name to what that feed says."""
    current: Entry | None = None
    draining: tuple[Entry, ...] = ()
    """Incarnations that were withdrawn for good, oldest first."""
    address: tuple[str, int] | None = None
    claimed: int = 0
    """Grows with each engine that comes to an address: of two that may serve at one address the later one has it."""

    @property
    def entries(self) -> Iterator[Entry]:
        """Every incarnation there is, oldest first."""
        yield from self.draining
        if self.current is not None:
            yield self.current


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything, as of the last event."""

    settings: MembershipSettings
    model: str | None
    """The model's name as the operator gave it."""
    topology: Topology
    """AUTO until the first engine may join; then it stays."""
    topology_reason: str
    slots: Mapping[str, Slot] = field(default_factory=lambda: MappingProxyType({}))
    card: ModelCard | None = None
    listed: frozenset[str] = frozenset()
    """Feeds that have said once what there is."""
    last_number: int = 0
    """The last incarnation (or claim) number given out."""
    wake_at: float | None = None
    leaving: float | None = None
    """Drain time in seconds once we shut down."""
    revision: int = 0
    """Grows with each step that changed a state, what an engine says of itself, or who has listed."""

    @classmethod
    def start(
        cls,
        settings: MembershipSettings | None = None,
        *,
        model: str | None = None,
        topology: Topology = Topology.AUTO,
    ) -> Fleet:
        """A fleet that knows nothing yet."""
        reason = "not decided: no engine has joined yet" if topology is Topology.AUTO else "as configured"
        return cls(settings or MembershipSettings(), model, topology, reason)

    def current(self, engine_id: str) -> Entry | None:
        """The incarnation that counts; None if the id is unknown or only drains."""
        slot = self.slots.get(engine_id)
        return None if slot is None else slot.current

    def find(self, engine_id: str, incarnation: int) -> Entry | None:
        """This very incarnation, draining ones included."""
        slot = self.slots.get(engine_id)
        if slot is None:
            return None
        return next((entry for entry in slot.entries if entry.incarnation == incarnation), None)
