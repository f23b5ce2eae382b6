"""Decides which batches of one rank's KV events reach its view, and how far the view may be believed.

It knows numbers only: no sockets, no batches, no clock. One state for each rank of each subscription.

How to drive it. Say everything that happens in the order in which it happened, and carry out all that is answered
before saying the next: then `state.trust` always speaks of the view as it is.

- A batch (Live, Held, Replayed) is answered by exactly one of Apply, Drop, Hold; a Clear comes before its Apply.
- Hold: append it to a bounded buffer. When that is full, forget all that it holds and say Overflowed. Say so too when
  live batches had to be dropped before they could be said.
- Release: take everything out of the buffer and say each as Held, oldest first; what is answered by Hold goes into the
  buffer again. Nothing else may be said in between.
- What a replay brings carries the number of the newest AskReplay at the moment when it *arrived*. Each replay must
  end, by the publisher's word or by silence, unless a newer one took its place.
- Apply decodes the batch; if it cannot be read, say Undecodable.
- WakeAt: one timer for each rank.
"""

from enginehouse.core.kv.cursor.state import NOTHING, Counts, CursorState, Replay
from enginehouse.core.kv.cursor.step import step
from enginehouse.core.kv.cursor.words import (
    Apply,
    AskReplay,
    Clear,
    Connected,
    Discard,
    Distrusted,
    Drop,
    Event,
    Held,
    Hold,
    Intent,
    Live,
    Lost,
    Overflowed,
    Release,
    Replayed,
    ReplayEnded,
    Undecodable,
    WakeAt,
    Woke,
    mark,
)

__all__ = [
    "NOTHING",
    "Apply",
    "AskReplay",
    "Clear",
    "Connected",
    "Counts",
    "CursorState",
    "Discard",
    "Distrusted",
    "Drop",
    "Event",
    "Held",
    "Hold",
    "Intent",
    "Live",
    "Lost",
    "Overflowed",
    "Release",
    "Replay",
    "ReplayEnded",
    "Replayed",
    "Undecodable",
    "WakeAt",
    "Woke",
    "mark",
    "step",
]
