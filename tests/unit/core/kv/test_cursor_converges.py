"""Whatever publishers, channels and replays do: what is credited is held, and what can be had is had in the end.

The publisher is a model: numbered batches over a few blocks, a replay buffer that forgets, replies that are dropped
without a word or do not come. The shell does nothing but obey.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enginehouse.core.kv import cursor
from enginehouse.domain.kv import Trust

BLOCKS = "ab"
ROOM = 4
"""Batches that the shell can hold."""
Change = tuple[str, str]


@dataclass(frozen=True)
class Batch:
    publisher: int
    seq: int
    changes: tuple[Change, ...]
    readable: bool = True

    @property
    def mark(self) -> bytes:
        return f"{self.publisher}:{self.seq}".encode()


def apply(view: Counter[str], changes: tuple[Change, ...]) -> None:
    for what, block in changes:
        if what == "store":
            view[block] += 1
        elif what == "clear":
            view.clear()
        elif view[block] > 1:
            view[block] -= 1
        else:
            del view[block]


@dataclass
class Publisher:
    """One engine process: what it holds, and what it can replay."""

    number: int
    seq: int = -1
    held: Counter[str] = field(default_factory=Counter)
    truth: dict[int, frozenset[str]] = field(default_factory=lambda: {-1: frozenset()})
    buffer: list[Batch] = field(default_factory=list)
    whole: bool = True
    """Its buffer has every batch since 0, and all can be read."""

    def publish(self, wanted: list[Change], *, encoded: bool, readable: bool) -> Batch | None:
        changes = []
        for what, block in wanted:
            if what == "remove" and not self.held[block]:
                continue
            changes.append((what, block))
            apply(self.held, ((what, block),))
        self.seq += 1
        self.truth[self.seq] = frozenset(self.held)
        batch = Batch(self.number, self.seq, tuple(changes), readable)
        self.whole = self.whole and encoded and readable
        if not encoded:
            return None
        self.buffer.append(batch)
        return batch


CHANGES = st.lists(
    st.tuples(st.sampled_from(["store", "store", "remove", "remove", "clear"]), st.sampled_from(BLOCKS)), max_size=4
)

FATES = st.sampled_from(["sent"] * 6 + ["lost"] * 3 + ["twice", "not encoded", "unreadable"])


class World(RuleBasedStateMachine):
    """Publisher, network, adapter, inbox, shell and view of one rank."""

    can_replay = True

    @initialize(early=st.lists(CHANGES, max_size=4), up=st.sampled_from([True, True, False]))
    def start(self, early: list[list[Change]], up: bool) -> None:
        self.now = 0.0
        self.publishers = [Publisher(0)]
        self.state = cursor.CursorState(can_replay=self.can_replay)
        self.connected = False
        self.wire: deque[Batch] = deque()
        self.request: int | None = None
        """Start of a replay that the publisher has not seen."""
        self.answering = False
        self.replies: deque[Batch | None] = deque()
        """None: the end marker."""
        self.inbox: deque[tuple[cursor.Event, Batch | None]] = deque()
        self.held: deque[Batch] = deque()
        self.view: Counter[str] = Counter()
        self.of: Batch | None = None
        """The last batch in the view."""
        self.newest = 0
        """Newest publisher of which something was said."""
        self.steps = 0
        for changes in early:
            self.publisher.publish(changes, encoded=True, readable=True)
        if up:
            self.connect()
            self.look(1)
            if self.request is not None:
                self.answer_all()

    @property
    def publisher(self) -> Publisher:
        return self.publishers[-1]

    # The shell.

    def say(self, event: cursor.Event, batch: Batch | None = None) -> None:
        self.steps += 1
        assert self.steps < 5000, "it goes round in circles"
        verdicts = 0
        self.state, intents = cursor.step(self.state, event, self.now)
        self.state.check()
        if batch is not None and self.state.connected and not isinstance(event, cursor.Replayed):
            self.newest = max(self.newest, batch.publisher)
        unread: Batch | None = None
        for intent in intents:
            match intent:
                case cursor.Apply():
                    assert batch is not None
                    verdicts += 1
                    if batch.readable:
                        apply(self.view, batch.changes)
                    else:
                        unread = batch
                    self.of = batch
                case cursor.Drop():
                    verdicts += 1
                case cursor.Hold():
                    assert batch is not None
                    verdicts += 1
                    if len(self.held) == ROOM:
                        self.held.clear()
                        self.say(cursor.Overflowed())
                    self.held.append(batch)
                case cursor.Discard():
                    self.held.clear()
                case cursor.Clear():
                    self.view.clear()
                    self.of = None
                case cursor.AskReplay(start=start):
                    self.request, self.answering = start, False
                    self.replies.clear()
                case cursor.Release():
                    held, self.held = self.held, deque()
                    for one in held:
                        self.say(cursor.Held(one.seq, one.mark), one)
                case cursor.WakeAt(at):
                    assert at >= self.now
        assert verdicts == (batch is not None)
        if unread is not None:
            self.say(cursor.Undecodable(unread.seq))

    def post(self, event: cursor.Event, batch: Batch | None = None) -> None:
        self.inbox.append((event, batch))

    # The world.

    @rule(batches=st.lists(st.tuples(CHANGES, FATES, st.booleans()), min_size=3, max_size=8))
    def work(self, batches: list[tuple[list[Change], str, bool]]) -> None:
        """The engine works for a while."""
        for changes, fate, quick in batches:
            self.publish(changes, fate)
            if quick:
                self.catch_up()

    def publish(self, changes: list[Change], fate: str) -> None:
        first = self.publisher.seq == -1 and self.publisher.number > 0
        if first and fate in ("lost", "not encoded"):
            fate = "sent"  # a restart that is not seen and has no first batch either can be known by nobody
        batch = self.publisher.publish(changes, encoded=fate != "not encoded", readable=fate != "unreadable")
        if batch is not None and self.connected and fate != "lost":
            self.wire.extend([batch] * (2 if fate == "twice" else 1))

    @rule()
    def catch_up(self) -> None:
        """All live batches arrive, and the shell looks at all that has."""
        while self.wire:
            self.arrive()
        self.look(len(self.inbox))

    @precondition(lambda self: self.request is not None or self.replies)
    @rule()
    def answer_all(self) -> None:
        """A replay without faults."""
        if self.request is not None:
            self.answer(set(), True)
        while self.replies:
            self.reply()
        self.look(len(self.inbox))

    @precondition(lambda self: not self.connected)
    @rule()
    def connect(self) -> None:
        self.connected = True
        self.post(cursor.Connected())

    @precondition(lambda self: self.connected)
    @rule(arrived=st.integers(0, 3))
    def break_connection(self, arrived: int) -> None:
        for _ in range(min(arrived, len(self.wire))):
            self.arrive()
        self.wire.clear()
        self.connected = False
        self.post(cursor.Lost("the connection broke"))

    @precondition(lambda self: len(self.publishers) < 4)
    @rule(seen=st.booleans(), more=st.lists(CHANGES, max_size=6))
    def restart(self, seen: bool, more: list[list[Change]]) -> None:
        """Another process takes its place; not seen: something between keeps the connection up."""
        if seen and self.connected:
            self.break_connection(0)
            self.replies.clear()
        self.publishers.append(Publisher(len(self.publishers)))
        if not self.connected:
            for changes in more:
                self.publisher.publish(changes, encoded=True, readable=True)
        else:
            self.publish(more[0] if more else [], "sent")

    @precondition(lambda self: self.publisher.buffer)
    @rule(keep=st.integers(1, 3))
    def forget(self, keep: int) -> None:
        """The replay buffer is shorter than history."""
        if len(self.publisher.buffer) > keep:
            self.publisher.whole = False
        self.publisher.buffer = self.publisher.buffer[-keep:]

    @precondition(lambda self: self.wire)
    @rule()
    def arrive(self) -> None:
        batch = self.wire.popleft()
        self.post(cursor.Live(batch.seq, batch.mark), batch)

    @precondition(lambda self: self.request is not None)
    @rule(dropped=st.sets(st.integers(0, 8), max_size=3), marker=st.sampled_from([True, True, True, False]))
    def answer(self, dropped: set[int], marker: bool) -> None:
        """The publisher answers; an old one drops replies, or the end, without a word."""
        replies = [batch for batch in self.publisher.buffer if batch.seq >= (self.request or 0)]
        self.replies.extend(batch for at, batch in enumerate(replies) if at not in dropped)
        if marker:
            self.replies.append(None)
        self.request, self.answering = None, True

    @precondition(lambda self: self.replies)
    @rule()
    def reply(self) -> None:
        batch = self.replies.popleft()
        if batch is None:
            self.answering = False
            self.post(cursor.ReplayEnded(self.state.asks, complete=True))
        else:
            self.post(cursor.Replayed(self.state.asks, batch.seq, batch.mark), batch)

    @precondition(lambda self: self.request is not None or (self.answering and not self.replies))
    @rule()
    def fall_silent(self) -> None:
        self.request, self.answering = None, False
        self.post(cursor.ReplayEnded(self.state.asks, complete=False))

    @rule(really=st.sampled_from([True, False, False, False]))
    def distrust(self, really: bool) -> None:
        if really:
            self.post(cursor.Distrusted("predictions were wrong"))

    @precondition(lambda self: any(isinstance(event, cursor.Live) for event, _ in self.inbox))
    @rule()
    def overflow(self) -> None:
        """The shell has no room for live batches that it has not looked at."""
        kept = deque(
            (event, batch)
            for event, batch in self.inbox
            if not isinstance(event, cursor.Live) or (batch and batch.publisher > 0 and batch.seq == 0)
        )
        self.inbox = kept
        self.post(cursor.Overflowed())

    @rule(seconds=st.sampled_from([0.5, 3.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.post(cursor.Woke())

    @precondition(lambda self: self.inbox)
    @rule(most=st.integers(1, 6))
    def look(self, most: int) -> None:
        for _ in range(min(most, len(self.inbox))):
            self.say(*self.inbox.popleft())

    # What must hold.

    @invariant()
    def credit_is_true(self) -> None:
        if self.state.trust not in (Trust.SYNCED, Trust.PARTIAL):
            return
        if self.of is None:
            assert not self.view
            return
        assert self.of.seq == self.state.cursor
        truth = self.publishers[self.of.publisher].truth[self.of.seq]
        if self.state.trust is Trust.SYNCED:
            assert set(self.view) == truth
        assert set(self.view) <= truth
        assert self.of.publisher >= self.newest, "what is credited is of a publisher that is known to be gone"

    @invariant()
    def nothing_is_held_in_vain(self) -> None:
        assert not self.held or self.state.replay is not None

    def teardown(self) -> None:
        if hasattr(self, "publishers"):
            self.all_is_well()
            self.post(cursor.Distrusted("once more"))
            self.all_is_well()
            if self.state.can_replay and self.publisher.whole:
                assert self.state.trust is Trust.SYNCED

    def all_is_well(self) -> None:
        """No more faults: everything sent arrives, every replay is answered in full."""
        if not self.connected:
            self.connect()
        for change in ("store", "store", "remove"):
            self.publish([(change, "a")], "sent")
            self.run_dry()
        assert self.state.trust in (Trust.SYNCED, Trust.PARTIAL), self.state
        assert self.of is not None
        assert (self.of.publisher, self.of.seq) == (self.publisher.number, self.publisher.seq)
        self.credit_is_true()

    def run_dry(self) -> None:
        while True:
            if self.inbox:
                self.look(1)
            elif self.wire:
                self.arrive()
            elif self.replies:
                self.reply()
            elif self.request is not None:
                self.answer(set(), True)
            elif self.answering:
                self.fall_silent()
            elif self.state.retry_at is not None:
                self.now = max(self.now, self.state.retry_at)
                self.post(cursor.Woke())
            else:
                return


class LiveOnly(World):
    """The engine has no replay."""

    can_replay = False


World.TestCase.settings = LiveOnly.TestCase.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)
TestConverges = World.TestCase
TestConvergesWithoutReplay = LiveOnly.TestCase
