"""Whatever the history of events, cuts, expiries and duplicates: what was posted equals what the API server says.

The API server is a model: pods with versions, an event log of which the oldest part may be forgotten, and requests that
can be answered late, cut anywhere, refused, or never answered at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enginehouse.core import watch
from enginehouse.core.pods import PodRecord
from enginehouse.domain.engine import Target
from enginehouse.domain.feed import FeedListed, Wanted

PACE = watch.Pace(resync_interval=30, watch_timeout=300, idle_limit=45, backoff_limit=10)
NAMES = st.sampled_from("abcd")


def record(owner: str, version: int) -> PodRecord:
    eligible = version % 2 == 0
    one = Wanted(f"{owner}:1", owner, owner, Target("10.0.0.1", 1), owner, eligible, "" if eligible else "not ready")
    return PodRecord(owner, str(version), (one,))


@dataclass
class Event:
    version: int
    owner: str
    record: PodRecord | None


class ApiServer:
    """Pods, and the log of what happened to them."""

    def __init__(self) -> None:
        self.version = 1
        self.forgotten = 0
        self.pods: dict[str, PodRecord] = {}
        self.log: list[Event] = []

    def change(self, owner: str) -> None:
        self.version += 1
        self.pods[owner] = record(owner, self.version)
        self.log.append(Event(self.version, owner, self.pods[owner]))

    def delete(self, owner: str) -> None:
        if owner in self.pods:
            self.version += 1
            del self.pods[owner]
            self.log.append(Event(self.version, owner, None))


@dataclass
class Stream:
    attempt: int
    sent: int
    """Version up to which events were delivered."""
    deaf: bool = False
    """Half open: says nothing any more, and no end either."""


@dataclass
class Snapshot:
    attempt: int
    version: int
    pods: list[PodRecord]


class Converges(RuleBasedStateMachine):
    """The machine under test, its API server, and the fleet that listens."""

    @initialize(pods=st.lists(NAMES, max_size=4))
    def start(self, pods: list[str]) -> None:
        self.server = ApiServer()
        self.state = watch.WatchState(feed="pods")
        self.now = 0.0
        self.fleet: dict[str, tuple[Wanted, ...]] = {}
        self.told: dict[str, int] = {}
        self.list_asked: tuple[int, str | None] | None = None
        self.snapshot: Snapshot | None = None
        self.stream: Stream | None = None
        self.watch_asked: tuple[int, int] | None = None
        for owner in pods:
            self.server.change(owner)
        self.say(watch.Tick())

    def say(self, happened: watch.Input, roll: float = 0.5) -> None:
        self.state, intents = watch.step(self.state, happened, self.now, PACE, roll)
        for intent in intents:
            match intent:
                case watch.Post(FeedListed(wanted=wanted)):
                    self.fleet = {}
                    for owner, known in self.state.known.items():
                        self.told[owner] = max(int(known.version), self.told.get(owner, 0))
                    for one in wanted:
                        self.fleet[one.owner] = (*self.fleet.get(one.owner, ()), one)
                case watch.Post(applied):
                    assert not isinstance(applied, FeedListed)
                    self.fleet.pop(applied.owner, None)
                    if applied.wanted:
                        self.fleet[applied.owner] = applied.wanted
                case watch.ListPage(attempt, more):
                    self.list_asked = (attempt, more)
                case watch.OpenWatch(attempt, version, _):
                    assert self.stream is None
                    assert self.watch_asked is None
                    self.watch_asked = (attempt, int(version))
                case watch.StopWatch(attempt):
                    assert attempt in (self.stream and self.stream.attempt, self.watch_asked and self.watch_asked[0])
                    self.stream = self.watch_asked = None

    # The world.

    @rule(owner=NAMES)
    def pod_changes(self, owner: str) -> None:
        self.server.change(owner)

    @rule(owner=NAMES)
    def pod_goes(self, owner: str) -> None:
        self.server.delete(owner)

    @rule()
    def history_is_forgotten(self) -> None:
        self.server.forgotten = self.server.version

    @rule(seconds=st.sampled_from([0.1, 1.0, 31.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.say(watch.Tick())

    # Listings: the answer is fixed at some moment, and comes at another.

    @precondition(lambda self: self.list_asked is not None and self.snapshot is None)
    @rule()
    def list_is_taken(self) -> None:
        assert self.list_asked is not None
        self.snapshot = Snapshot(self.list_asked[0], self.server.version, list(self.server.pods.values()))

    @precondition(lambda self: self.snapshot is not None)
    @rule(split=st.booleans())
    def list_answers(self, split: bool) -> None:
        taken = self.snapshot
        assert taken is not None
        self.snapshot = self.list_asked = None
        if split:
            self.say(watch.PageListed(taken.attempt, str(taken.version), tuple(taken.pods[:1]), "more"))
            self.list_asked = None
            taken.pods = taken.pods[1:]
        self.say(watch.PageListed(taken.attempt, str(taken.version), tuple(taken.pods)))

    @precondition(lambda self: self.list_asked is not None)
    @rule(status=st.sampled_from([None, 401, 403, 410, 503]))
    def list_fails(self, status: int | None) -> None:
        assert self.list_asked is not None
        attempt = self.list_asked[0]
        self.list_asked = self.snapshot = None
        self.say(watch.ListFailed(attempt, failure(status)))

    @precondition(lambda self: self.list_asked is None and self.stream is not None and not self.stream.deaf)
    @rule(owner=NAMES, goes=st.booleans())
    def the_watch_overtakes_a_listing(self, owner: str, goes: bool) -> None:
        """A listing is taken, and before it arrives the watch tells of something newer."""
        self.now = max(self.now, self.state.list_at)
        self.say(watch.Tick())
        if self.list_asked is None or self.stream is None:
            return
        self.list_is_taken()
        self.server.delete(owner) if goes else self.server.change(owner)
        while self.stream is not None and self.stream.sent < self.server.version:
            self.watch_speaks(0)

    # The watch.

    @precondition(lambda self: self.watch_asked is not None)
    @rule(status=st.sampled_from([0, 0, 0, None, 403, 500]))
    def watch_opens(self, status: int | None) -> None:
        assert self.watch_asked is not None
        attempt, version = self.watch_asked
        self.watch_asked = None
        if version < self.server.forgotten:
            status = 410
        if status != 0:
            self.say(watch.WatchEnded(attempt, failure(status)))
            return
        self.stream = Stream(attempt, version)
        self.say(watch.WatchOpened(attempt))

    @precondition(lambda self: self.stream is not None and not self.stream.deaf)
    @rule(again=st.integers(0, 2))
    def watch_speaks(self, again: int) -> None:
        """The next event, some of them more than once."""
        assert self.stream is not None
        stream = self.stream
        events = [event for event in self.server.log if event.version > stream.sent]
        for event in events[:1] * (1 + again):
            self.told[event.owner] = max(event.version, self.told.get(event.owner, 0))
            if event.record is None:
                self.say(watch.PodGone(stream.attempt, event.owner, str(event.version)))
            else:
                self.say(watch.PodChanged(stream.attempt, event.record))
            stream.sent = event.version
        if not events:
            self.say(watch.Bookmark(stream.attempt, str(self.server.version)))
            stream.sent = self.server.version

    @precondition(lambda self: self.stream is not None)
    @rule(how=st.sampled_from(["deaf", "end", "broken", "expired", "error", "late"]))
    def watch_suffers(self, how: str) -> None:
        assert self.stream is not None
        stream = self.stream
        match how:
            case "deaf":
                stream.deaf = True
            case "end" | "broken":
                self.stream = None
                self.say(watch.WatchEnded(stream.attempt, None if how == "end" else failure(None)))
            case "expired" | "error":
                self.say(watch.StreamFailed(stream.attempt, failure(410 if how == "expired" else 500)))
            case "late":
                self.say(watch.PodChanged(stream.attempt - 1, record("ghost", 2)))

    # What must hold.

    @invariant()
    def state_is_sound(self) -> None:
        self.state.check()
        posted = {owner: known.wanted for owner, known in self.state.known.items()}
        assert self.fleet == posted

    @invariant()
    def nothing_moves_backwards(self) -> None:
        """Once something is told of a pod, or of its end, no older word about it counts."""
        for owner, known in self.state.known.items():
            assert int(known.version) >= self.told.get(owner, 0)

    @invariant()
    def something_is_under_way(self) -> None:
        """It never sits there with nothing asked and no time to wake."""
        assert self.list_asked or self.stream or self.watch_asked or watch.wake_at(self.state) is not None
        assert self.state.watch is not None or (self.stream is None and self.watch_asked is None)

    @rule(steps=st.integers(1, 6))
    def a_good_spell(self, steps: int) -> None:
        for _ in range(steps):
            self.serve_one()

    def serve_one(self) -> None:
        """The API server answers what is open; if nothing is, time passes."""
        if self.list_asked is not None:
            if self.snapshot is None:
                self.list_is_taken()
            self.list_answers(False)
        elif self.watch_asked is not None:
            self.watch_opens(0)
        elif self.stream is not None and not self.stream.deaf:
            self.watch_speaks(0)
        else:
            wake = watch.wake_at(self.state)
            assert wake is not None
            self.now = max(self.now, wake)
            self.say(watch.Tick())

    @rule()
    def peace(self) -> None:
        """The API server answers everything for a while: the fleet is what it says, and stays so with live events."""
        for _ in range(100):
            if self.settled():
                break
            self.serve_one()
        assert self.settled()
        assert self.fleet == {owner: known.wanted for owner, known in self.server.pods.items()}

    def settled(self) -> bool:
        """An open watch that hears and has heard everything, after a listing."""
        hears = self.stream is not None and not self.stream.deaf and self.stream.sent >= self.server.version
        return hears and self.state.synced and self.list_asked is None

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.peace()


def failure(status: int | None) -> watch.Failure:
    if status is None:
        return watch.Failure(watch.FailureKind.BROKEN, "cut")
    return watch.Failure(watch.FailureKind.REFUSED, f"HTTP {status}", status)


TestConverges = Converges.TestCase
TestConverges.settings = settings(max_examples=60, stateful_step_count=40)
