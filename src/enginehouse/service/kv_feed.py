"""Drives the cursor of one rank's KV events: what arrives waits, and is worked off in slices.

The cursor decides which batches count, the knowledge what they mean. This file only carries things from one to the
other, in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import structlog

from enginehouse.core.kv import cursor
from enginehouse.core.kv.knowledge import Knowledge
from enginehouse.core.kv.rank import CREDITED
from enginehouse.core.kv.slices import slices, weight
from enginehouse.domain.kv import KvEvent, RankKey, Trust
from enginehouse.ports import KvSubscription
from enginehouse.service.kv_backlog import Backlog
from enginehouse.service.kv_bounds import Replays, Room
from enginehouse.service.kv_lines import Lines

log = structlog.get_logger("enginehouse.kv")

_BYTES_PER_BLOCK = 256
"""Reading so many bytes of a batch takes about as long as applying one block."""


class RankFeed:
    """One rank's events on their way from a subscription into the knowledge."""

    def __init__(
        self,
        key: RankKey,
        knowledge: Knowledge,
        loop: asyncio.AbstractEventLoop,
        stir: Callable[[RankFeed], None],
        room: Room,
        replays: Replays,
    ) -> None:
        """stir: called when there is something to work off; room, replays: shared by all ranks."""
        self.key = key
        self._knowledge = knowledge
        self._loop = loop
        self._stir = stir
        self._backlog = Backlog(room)
        self._replays = replays
        self._lines = Lines()
        self._subscription: KvSubscription | None = None
        self._rank = key.rank
        self._checks_rank = False
        self._state = cursor.CursorState(can_replay=False)
        self._believed = (self._state.trust, self._state.reason)
        self._slices: Iterator[KvEvent] | None = None
        """Of the batch that is being applied."""
        self._asked = 0
        """Number of the replay that was begun last."""
        self._cut_replay = -1
        """The replay of which something found no room."""
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = 0.0
        self._closed = False

    def open(self, subscription: KvSubscription, rank: int, *, checks_rank: bool) -> None:
        """The subscription is there. rank: what it calls this rank; checks_rank: and what its batches must call it."""
        self._subscription = subscription
        self._rank = rank
        self._checks_rank = checks_rank
        self._state = cursor.CursorState(can_replay=subscription.can_replay)
        self._knowledge.believe(self.key, self._state.trust, self._state.reason)

    def close(self) -> None:
        """Nothing that comes or waits changes anything any more."""
        self._closed = True
        self._backlog.clear()
        self._replays.forget(self)
        self._replays.over(self)
        self._slices = None
        if self._timer is not None:
            self._timer.cancel()

    def fail(self) -> None:
        """It cannot go on by a fault of ours. What it brought is not believed any more."""
        self.close()
        self._knowledge.clear(self.key, sent=False)
        self._knowledge.believe(self.key, Trust.NONE, "its events made this frontend fail: see the log")

    # What arrives. Nothing is done here but to remember it.

    def live(self, seq: int, payload: bytes) -> None:
        """A batch as it was published."""
        if self._closed or self._put(cursor.Live(seq, cursor.mark(payload)), payload):
            return
        if not isinstance(self._backlog.newest, cursor.Overflowed):
            self._knowledge.heard(self.key).overflows += 1
            self.say(cursor.Overflowed())

    def replayed(self, seq: int, payload: bytes) -> None:
        """A batch that was asked for. One that finds no room is asked for again, when the replay ends."""
        batch = cursor.Replayed(self._asked, seq, cursor.mark(payload))
        if self._cut_replay != self._asked and self._put(batch, payload):
            self._replays.came(self)
        else:
            self._cut_replay = self._asked

    def replay_ended(self, *, complete: bool) -> None:
        """No more comes of what was asked for."""
        self.say(cursor.ReplayEnded(self._asked, complete=complete and self._cut_replay != self._asked))

    def say(self, event: cursor.Event) -> None:
        """Anything else that happened."""
        self._put(event, b"")

    def distrust(self, reason: str) -> None:
        """Predictions from its events proved wrong."""
        self.say(cursor.Distrusted(reason))

    def _put(self, event: cursor.Event, payload: bytes) -> bool:
        if self._closed or not self._backlog.add(event, payload, self._loop.time()):
            return False
        self._stir(self)
        return True

    # What is done about it.

    @property
    def busy(self) -> bool:
        """There is something to work off."""
        return self.waiting > 0

    @property
    def waiting(self) -> int:
        """Batches, and other news, that are not worked off; one that is begun counts."""
        return len(self._backlog) + (self._slices is not None)

    def report(self) -> None:
        """Bring up to date, in what is known of the rank, what changes without its doing."""
        heard = self._knowledge.heard(self.key)
        heard.waiting = self.waiting
        heard.waiting_since = self._backlog.since if self._slices is None else self._backlog.taken_at

    def work(self, budget: int) -> int:
        """Apply about so many blocks; returns how many it was."""
        left = budget
        while left > 0 and self.busy:
            if self._slices is not None:
                left -= self._apply_next(self._slices)
            else:
                left -= self._step(*self._backlog.take())
        return budget - left

    def _apply_next(self, events: Iterator[KvEvent]) -> int:
        event = next(events, None)
        if event is None:
            self._slices = None
            self._believe()
            return 1
        self._knowledge.apply(self.key, event)
        return weight(event)

    def _step(self, event: cursor.Event, payload: bytes) -> int:
        """Say one thing to the cursor and do as it answers; returns the cost, in blocks."""
        before = self._state
        now = self._loop.time()
        if isinstance(event, cursor.Woke):
            now = max(now, self._wake_at)  # timers may fire a hair early
        if isinstance(event, cursor.ReplayEnded) and event.ask == self._asked:
            self._replays.over(self)  # before it may ask again: others come first
        self._state, intents = cursor.step(before, event, now)
        if self._state.replay is None:
            self._replays.forget(self)
        self._count(before)
        if isinstance(event, cursor.Lost) and before.connected and not before.can_replay:
            self._knowledge.clear(self.key, sent=True)  # nobody can tell whether it is another process that comes back
        if self._state.trust not in CREDITED:
            self._believe()  # at once; better news only when all is applied
        cost = 1
        then: cursor.Event | None = None
        for intent in intents:
            match intent:
                case cursor.Clear():
                    # Another publisher is another process: what we sent the old one is gone with it.
                    self._knowledge.clear(self.key, sent=self._state.counts.restarts > before.counts.restarts)
                case cursor.Apply():
                    assert isinstance(event, cursor.Live | cursor.Held | cursor.Replayed)
                    cost += len(payload) // _BYTES_PER_BLOCK
                    if not self._apply(payload):
                        then = cursor.Undecodable(event.seq)
                case cursor.Hold():
                    assert isinstance(event, cursor.Live | cursor.Held)
                    if not self._backlog.hold(event.seq, payload):
                        self._knowledge.heard(self.key).overflows += 1
                        then = cursor.Overflowed()
                case cursor.Release():
                    self._backlog.release(now)
                case cursor.Discard():
                    self._backlog.discard()
                case cursor.AskReplay():
                    self._replays.ask(self, partial(self._replay, intent.ask, intent.start))
                case cursor.WakeAt():
                    self._wake(intent.at)
                case cursor.Drop():
                    pass
        if then is not None:
            return cost + self._step(then, b"")
        if self._slices is None:
            self._believe()
        return cost

    def _replay(self, ask: int, start: int) -> None:
        assert self._subscription is not None
        self._asked = ask
        self._subscription.replay(self._rank, start)

    def _apply(self, payload: bytes) -> bool:
        """Begin to apply a batch. False: it cannot be read."""
        assert self._subscription is not None
        heard = self._knowledge.heard(self.key)
        try:
            batch = self._subscription.decode(payload)
        except ValueError:
            heard.malformed += 1
            return False
        heard.applied(len(batch.events) + batch.merged, self._loop.time())
        heard.malformed += batch.malformed
        heard.ignored += batch.ignored
        if self._checks_rank and batch.rank is not None and batch.rank != self._rank:
            heard.misdirected += 1
            if heard.misdirected == 1:
                log.warning("kv events of another rank", **self._who(), names=batch.rank)
        self._slices = slices(batch)
        return True

    def _wake(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = at
        self._timer = self._loop.call_at(at, self.say, cursor.Woke())

    def _count(self, before: cursor.CursorState) -> None:
        counts = self._state.counts
        if counts is not before.counts:
            heard = self._knowledge.heard(self.key)
            heard.gaps, heard.lost, heard.replays = counts.gaps, counts.lost, counts.replays
            heard.restarts, heard.duplicates = counts.restarts, counts.duplicates

    def _believe(self) -> None:
        """Tell how far the view may be believed now."""
        trust, reason = self._state.trust, self._state.reason
        if (trust, reason) != self._believed:
            news = trust is not self._believed[0] or trust is Trust.NONE  # its reason is all there is to tell
            self._believed = trust, reason
            self._knowledge.believe(self.key, trust, reason)
            unsaid = self._lines.may(self._loop.time()) if news else None
            if unsaid is not None:
                tell = log.warning if trust in (Trust.GAP, Trust.NONE) else log.info
                more = {"unsaid": unsaid} if unsaid else {}
                tell("kv events", **self._who(), trust=trust.value, reason=reason, **more)

    def _who(self) -> dict[str, str | int]:
        return {"engine": self.key.engine_id, "incarnation": self.key.incarnation, "rank": self._rank}
