"""Everything that the fleet reducer can ask of its shell, and what it reports. Closed, like the events."""

from __future__ import annotations

from dataclasses import dataclass

from enginehouse.core.membership.states import Cause, State
from enginehouse.domain.engine import Target


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Probe in a task of its own; answer with Probed or ProbeRefused."""

    engine_id: str
    incarnation: int
    target: Target


@dataclass(frozen=True, slots=True)
class CancelProbe:
    """Cancel the running probe; its answer is not wanted."""

    engine_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class StartCheck:
    """Check over the open link; answer with CheckPassed or CheckFailed.

    canary: let it also generate a few tokens, because health alone has been seen to lie.
    """

    engine_id: str
    incarnation: int
    canary: bool


@dataclass(frozen=True, slots=True)
class Drain:
    """Say StreamsIdle as soon as this incarnation has no stream: now, or at the end of the last."""

    engine_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class CutStreams:
    """The drain deadline passed: end what still runs."""

    engine_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Forsake:
    """A check failed: requests that have nothing of their answer yet are better off elsewhere, if there is another."""

    engine_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class CloseEngine:
    """Close the link, cancel its check, forget the incarnation."""

    engine_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send Woke at this time; replaces the time asked for before. None: no wish."""

    time: float | None


@dataclass(frozen=True, slots=True)
class Moved:
    """For logs and counters: an incarnation changed its state."""

    engine_id: str
    incarnation: int
    name: str
    was: State
    now: State
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """For counters: an event of an incarnation that is over (or knows nothing of it) changed nothing."""

    engine_id: str
    incarnation: int


Intent = StartProbe | CancelProbe | StartCheck | Drain | CutStreams | Forsake | CloseEngine | WakeAt | Moved | Ignored
