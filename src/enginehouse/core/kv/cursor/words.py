"""What may be said to the cursor of one rank's KV events, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

_MARK_BYTES = 64


def mark(payload: bytes) -> bytes:
    """What tells this batch from another of the same number: its start, which has the time, and the first event."""
    return payload[:_MARK_BYTES]


@dataclass(frozen=True, slots=True)
class Connected:
    """Live batches can come from here on. None that follows was sent over an earlier connection."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection broke or could not be made. permanent: it will not come back."""

    reason: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class Live:
    """A batch arrived, in the publisher's order. Answered by Apply, Drop or Hold."""

    seq: int
    mark: bytes


@dataclass(frozen=True, slots=True)
class Held:
    """A batch that was held is offered again, after Release. Answered by Apply, Drop or Hold."""

    seq: int
    mark: bytes


@dataclass(frozen=True, slots=True)
class Replayed:
    """A batch of a replay. Answered by Apply or Drop."""

    ask: int
    """Number of the newest AskReplay when it arrived: what was still on its way from an older one counts no more."""
    seq: int
    mark: bytes


@dataclass(frozen=True, slots=True)
class ReplayEnded:
    """complete: the publisher said so; else it fell silent, which proves nothing."""

    ask: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Overflowed:
    """There was no room: live batches had to be dropped unseen, or all that were held."""


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A batch that was to be applied cannot be read. What it removed is not known."""

    seq: int


@dataclass(frozen=True, slots=True)
class Distrusted:
    """The view has proven wrong: start it over."""

    reason: str


@dataclass(frozen=True, slots=True)
class Woke:
    """Time has passed."""


Event = Connected | Lost | Live | Held | Replayed | ReplayEnded | Overflowed | Undecodable | Distrusted | Woke


@dataclass(frozen=True, slots=True)
class Apply:
    """Put the batch of this event into the view."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the batch of this event: it is known, or comes again."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the batch of this event until Release or Discard."""


@dataclass(frozen=True, slots=True)
class Release:
    """Offer what is held again, oldest first, each as Held, before anything else is said."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget what is held."""


@dataclass(frozen=True, slots=True)
class Clear:
    """The rank's view is void: remove all its blocks, in every tier."""


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask for the batches from `start` on. It takes the place of a replay that is under way."""

    ask: int
    start: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Say Woke at this time (or later). A newer one takes its place."""

    at: float


Intent = Apply | Drop | Hold | Release | Discard | Clear | AskReplay | WakeAt
