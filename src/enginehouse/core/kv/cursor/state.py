"""All state of the cursor of one rank's KV events. It holds numbers, never batches."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from enginehouse.domain.kv import Trust

NOTHING = -1
"""A cursor before batch 0."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What has happened so far, for metrics."""

    gaps: int = 0
    """Times that live batches were found missing."""
    replays: int = 0
    """Replays asked for, tries included."""
    restarts: int = 0
    """Times that another publisher was found behind the same address."""
    duplicates: int = 0
    """Batches dropped because the view had them."""
    lost: int = 0
    """Batches that could not be had by any means, as far as their numbers tell."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay under way: the newest that was asked for."""

    heard: bool = False
    """It has brought a batch, whether we needed it or not."""
    progress: bool = False
    """It has brought one that we needed."""
    hole: bool = False
    """It left some out. What it brought after them is dropped, and asked for again."""
    overflowed: bool = False
    """Live batches were dropped meanwhile, so that its end is not the end."""


@dataclass(frozen=True, slots=True)
class CursorState:
    """How far the view of one rank has come, and how far it may be believed.

    Four situations: not `connected`; a `replay` under way; resting until `retry_at`, as the replay does not answer; or,
    with none of these, flowing: live batches are applied as they come.
    """

    can_replay: bool
    trust: Trust = Trust.NONE
    reason: str = "not connected yet"
    """Why the trust is what it is, for people. Empty: nothing is wrong."""
    connected: bool = False
    cursor: int | None = None
    """The last batch that the view has. NOTHING: none, and 0 comes next. None: none, and any may be the first."""
    mark: bytes = b""
    """Of that batch."""
    cut: str = ""
    """Why the view may lack blocks that the rank holds. Empty: it has seen every batch since 0."""
    doubt: bool = False
    """The connection is another than that which brought the view: is the publisher?"""
    suspect: bool = False
    """The first live batch of this connection had a number that the view has already. Either the replay was faster, or
    a new publisher has begun and the connection did not show it. The next replay must tell."""
    live: int = NOTHING
    """The last live batch of this connection."""
    live_mark: bytes = b""
    owed: int = NOTHING
    """A replay must come at least this far: a live batch has shown that there is so much, and it is not held."""
    replay: Replay | None = None
    asks: int = 0
    """Counts replays, over all publishers; numbers them."""
    tries: int = 0
    """Replays in a row that brought nothing and did not end."""
    rounds: int = 0
    """Times in a row that the tries were used up."""
    retry_at: float | None = None
    deaf: bool = False
    """The replay has been given up, until the next connection or restart."""
    whole_at: float = -inf
    """When a replay from 0 was last asked for."""
    counts: Counts = Counts()

    @property
    def flowing(self) -> bool:
        return self.connected and self.replay is None and self.retry_at is None

    @property
    def can_ask(self) -> bool:
        return self.can_replay and not self.deaf

    @property
    def empty(self) -> bool:
        """No batch is in the view."""
        return self.cursor is None or self.cursor == NOTHING

    def passed(self, seq: int, mark: bytes) -> CursorState:
        """The same, a live batch further: `replace` in a fifth of the time, as this is done for each batch."""
        return CursorState(
            self.can_replay,
            self.trust,
            self.reason,
            self.connected,
            seq,
            mark,
            self.cut,
            self.doubt,
            self.suspect,
            seq,
            mark,
            self.owed,
            self.replay,
            self.asks,
            self.tries,
            self.rounds,
            self.retry_at,
            self.deaf,
            self.whole_at,
            self.counts,
        )

    def check(self) -> None:
        """Assert what must always hold."""
        assert self.replay is None or (self.connected and self.can_ask and self.retry_at is None)
        assert self.retry_at is None or (self.connected and self.can_ask)
        assert (self.replay is None and self.retry_at is None) or self.cursor is not None
        assert not self.doubt or not (self.empty or self.flowing)
        assert not self.suspect or not (self.empty or self.flowing)
        match self.trust:
            case Trust.SYNCED:
                assert self.flowing
                assert self.cursor is not None
                assert not self.cut
                assert not self.reason
            case Trust.PARTIAL:
                assert self.flowing
                assert not self.empty
                assert self.cut
                assert self.reason == self.cut
            case _:
                assert self.reason
