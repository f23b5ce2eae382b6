"""A fleet in a test: say events, read states and intents.

After each step the invariants are checked, and that looking at everything again
finds nothing to do.
"""

from __future__ import annotations

from enginehouse.core.membership.events import (
    CheckFailed,
    CheckPassed,
    Doubt,
    Doubted,
    Event,
    Leaving,
    Probed,
    ProbeRefused,
    StreamsIdle,
    Woke,
)
from enginehouse.core.membership.fleet import Entry, Fleet
from enginehouse.core.membership.intents import Ignored, Intent, Moved, WakeAt
from enginehouse.core.membership.invariants import check
from enginehouse.core.membership.reducer import settle, step
from enginehouse.core.membership.roles import Topology
from enginehouse.core.membership.settings import MembershipSettings
from enginehouse.core.membership.states import State
from enginehouse.domain.feed import FeedApplied, FeedListed, Wanted
from enginehouse.testing.engines import fake_info
from enginehouse.testing.feeds import fake_wanted

wanted = fake_wanted
info = fake_info


class Playbook:
    def __init__(
        self,
        *,
        model: str | None = None,
        topology: Topology = Topology.AUTO,
        settings: MembershipSettings | None = None,
    ) -> None:
        self.fleet = Fleet.start(settings or MembershipSettings(retry_jitter=0.0), model=model, topology=topology)
        self.now = 0.0
        self.moves: list[Moved] = []
        self.ignored = 0

    def say(self, event: Event) -> list[Intent]:
        """One step; the intents that ask for something."""
        self.fleet, intents = step(self.fleet, event, self.now)
        check(self.fleet)
        again, more = settle(self.fleet, self.now)
        assert not more, f"reconciling twice does more: {more}"
        assert again == self.fleet
        assert self.fleet.wake_at is None or self.fleet.wake_at > self.now or event != Woke(), "it wakes for nothing"
        self.moves += [intent for intent in intents if isinstance(intent, Moved)]
        self.ignored += sum(isinstance(intent, Ignored) for intent in intents)
        return [intent for intent in intents if not isinstance(intent, Moved | WakeAt | Ignored)]

    def list(self, *wants: Wanted, feed: str = "pods") -> list[Intent]:
        return self.say(FeedListed(feed, wants))

    def apply(self, *wants: Wanted, feed: str = "pods") -> list[Intent]:
        return self.say(FeedApplied(feed, wants[0].owner, wants))

    def delete(self, owner: str, feed: str = "pods") -> list[Intent]:
        return self.say(FeedApplied(feed, owner, ()))

    def probed(self, engine_id: str, incarnation: int | None = None, **fields: object) -> list[Intent]:
        return self.say(Probed(engine_id, incarnation or self.number(engine_id), fake_info(**fields)))  # type: ignore[arg-type]

    def refused(self, engine_id: str, reason: str = "connection refused", *, permanent: bool = False) -> list[Intent]:
        return self.say(ProbeRefused(engine_id, self.number(engine_id), reason, permanent))

    def passed(self, engine_id: str, **fields: object) -> list[Intent]:
        return self.say(CheckPassed(engine_id, self.number(engine_id), fake_info(**fields)))  # type: ignore[arg-type]

    def failed(self, engine_id: str, reason: str = "not serving") -> list[Intent]:
        return self.say(CheckFailed(engine_id, self.number(engine_id), reason))

    def doubted(self, engine_id: str, doubt: Doubt = Doubt.LOST, in_a_row: int = 1) -> list[Intent]:
        return self.say(Doubted(engine_id, self.number(engine_id), doubt, f"{doubt}", in_a_row=in_a_row))

    def idle(self, engine_id: str, incarnation: int) -> list[Intent]:
        return self.say(StreamsIdle(engine_id, incarnation))

    def leave(self, drain: float = 10.0) -> list[Intent]:
        return self.say(Leaving(drain))

    def wait(self, seconds: float) -> list[Intent]:
        """Let time pass, waking whenever that was asked for."""
        until = self.now + seconds
        intents: list[Intent] = []
        while self.fleet.wake_at is not None and self.fleet.wake_at <= until:
            self.now = max(self.now, self.fleet.wake_at)
            intents += self.say(Woke())
        self.now = until
        return intents

    def serve(self, engine_id: str, authority: str = "10.0.0.1:9000", **fields: object) -> int:
        """Bring one engine all the way in; its incarnation."""
        self.apply(fake_wanted(engine_id, authority))
        self.probed(engine_id, **fields)
        assert self.state(engine_id) is State.SERVING, self.entry(engine_id).reason
        return self.number(engine_id)

    def entry(self, engine_id: str) -> Entry:
        entry = self.fleet.current(engine_id)
        assert entry is not None
        return entry

    def number(self, engine_id: str) -> int:
        return self.entry(engine_id).incarnation

    def state(self, engine_id: str) -> State | None:
        entry = self.fleet.current(engine_id)
        return None if entry is None else entry.state

    def reason(self, engine_id: str) -> str:
        return self.entry(engine_id).reason

    @property
    def serving(self) -> set[str]:
        return {
            engine_id
            for engine_id, slot in self.fleet.slots.items()
            if slot.current is not None and slot.current.state is State.SERVING
        }
