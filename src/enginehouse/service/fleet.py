"""Owns the fleet: the only place where membership changes. Events in, one step at a time; tasks and watches out.

All decisions are `core.membership`'s. A step happens inside the call that brings its event, so a withdrawal or a doubt
holds for the very next request; there is no queue in which a dead engine could still look alive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import assert_never

import structlog

from enginehouse.core.membership import projections
from enginehouse.core.membership.card import ModelCard
from enginehouse.core.membership.events import Doubt, Doubted, Event, Leaving, StreamsIdle, Woke
from enginehouse.core.membership.fleet import Entry
from enginehouse.core.membership.fleet import Fleet as FleetState
from enginehouse.core.membership.intents import (
    CancelProbe,
    CloseEngine,
    CutStreams,
    Drain,
    Ignored,
    Intent,
    Moved,
    StartCheck,
    StartProbe,
    WakeAt,
)
from enginehouse.core.membership.reducer import step
from enginehouse.core.membership.roles import Topology
from enginehouse.core.membership.settings import MembershipSettings
from enginehouse.core.membership.states import Cause, State
from enginehouse.domain.engine import Role, Target
from enginehouse.domain.errors import EngineBroken, EngineError, EngineTimeout, ProbeFailed
from enginehouse.domain.feed import FeedApplied, FeedEvent, FeedListed, FeedStatus, Wanted
from enginehouse.ports import Engines, Feed
from enginehouse.service.membership import Counters, FleetView, Member, RuntimeConfig
from enginehouse.service.membership_holds import Holds, Key
from enginehouse.service.membership_tasks import EngineTasks
from enginehouse.service.membership_view import view
from enginehouse.service.watch import Watch

__all__ = ["Fleet", "Member"]

log = structlog.get_logger("enginehouse.fleet")

_API = "api"
"""The feed that `add` and `remove` speak for."""


class Fleet:
    """All engines of one model.

    `run` does the work; everything else may be called while it runs, from the same event loop. What changes is followed
    through the watches; what a request needs (`hold`, `report_failure`) is synchronous.
    """

    def __init__(
        self,
        engines: Engines,
        feeds: Sequence[Feed] = (),
        settings: MembershipSettings | None = None,
        *,
        model: str | None = None,
        topology: Topology | str = Topology.AUTO,
        clock: Callable[[], float] | None = None,
        rng: Random | None = None,
    ) -> None:
        """model: the served name, where the operator fixes it; clock: the event loop's own unless given."""
        settings = settings or MembershipSettings()
        self._state = FleetState.start(settings, model=model, topology=Topology(topology))
        self._feeds = tuple(feeds)
        self._clock = clock
        self._inbox: deque[Event] = deque()
        self._stepping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._members: dict[Key, Member] = {}
        self._steps = Watch(0)
        self.counters = Counters(listings={feed.name: 0 for feed in self._feeds})
        self._tasks = EngineTasks(engines, settings, self.counters, self._post, rng or Random())
        self._holds = Holds(lambda key: self._post(StreamsIdle(*key)))
        self.serving: Watch[tuple[Member, ...]] = Watch(())
        """Engines that take requests: aggregated, or decode in a disaggregated fleet."""
        self.prefill: Watch[tuple[Member, ...]] = Watch(())
        """Engines that take prefill work."""
        self.runtime_configs: Watch[tuple[RuntimeConfig, ...]] = Watch(())
        """What is known of each member, those included that may not serve just now."""
        self.card: Watch[ModelCard | None] = Watch(None)
        self.missing: Watch[tuple[str, ...]] = Watch(self._missing())
        """What is still to come before requests can be served, for people; empty when nothing is."""

    @property
    def topology(self) -> Topology:
        """AUTO until it is decided."""
        return self._state.topology

    @property
    def topology_reason(self) -> str:
        """Why it is what it is."""
        return self._state.topology_reason

    # Requests.

    def hold(self, member: Member, cut: Callable[[], None] | None = None) -> Callable[[], None] | None:
        """Count a stream on this very incarnation; the answer ends it. None: it may not be sent anything (any more).

        cut: called when the engine was withdrawn and its drain deadline has passed.
        """
        if self._serving_entry(member) is None:
            return None
        return self._holds.take((member.engine_id, member.incarnation), cut)

    def report_failure(self, member: Member, error: EngineError) -> None:
        """An attempt failed. If that speaks against the engine it gets nothing more until a check has passed."""
        if not error.suspect or self._serving_entry(member) is None:
            return
        doubt = Doubt.LOST
        if isinstance(error, EngineTimeout):
            doubt = Doubt.MUTE
        elif isinstance(error, EngineBroken):
            doubt = Doubt.BROKEN
        self._post(Doubted(member.engine_id, member.incarnation, doubt, error.message, self._tasks.chance()))

    # Operators.

    async def add(self, target: Target) -> Member:
        """Bring an engine in; return when it serves. Adding what is there changes nothing and returns the same.

        Raises ProbeFailed when it cannot join; then nothing of it stays.
        """
        engine_id = target.url
        ours = self._state.current(engine_id) is None
        if ours:
            wanted = Wanted(engine_id, engine_id, target.url, target, generation="", eligible=True)
            self._post(FeedApplied(_API, engine_id, (wanted,)))
        else:
            self._refuse_other_options(engine_id, target)
        try:
            return await self._admitted(engine_id)
        except BaseException:
            if ours:
                self._post(FeedApplied(_API, engine_id, ()))
            raise

    def remove(self, engine_id: str) -> bool:
        """Withdraw an engine that was added; its streams go on. False: nothing of this id was added.

        What a feed brought only the feed can take.
        """
        slot = self._state.slots.get(engine_id)
        if slot is None or _API not in slot.wants:
            self.counters.removals_missed += 1
            log.warning("nothing to remove", engine=engine_id, known=slot is not None)
            return False
        self._post(FeedApplied(_API, engine_id, ()))
        return True

    def view(self) -> FleetView:
        """Everything that there is to know now."""
        return view(self._state, self.feed_status(), self._missing(), self._holds.count, self._now())

    def feed_status(self) -> tuple[FeedStatus, ...]:
        """How fresh each feed's knowledge is."""
        return tuple(feed.status() for feed in self._feeds)

    # Life.

    async def run(self) -> None:
        """Serve until closed or cancelled. A bug anywhere in membership ends it with that error."""
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_future()
        try:
            async with asyncio.TaskGroup() as group:
                self._tasks.start(group)
                feeds = [group.create_task(feed.run(self._heard), name=f"feed {feed.name}") for feed in self._feeds]
                self._work_off()
                await self._end
                for task in feeds:
                    task.cancel()
        except BaseExceptionGroup as several:
            if len(several.exceptions) == 1:
                raise several.exceptions[0] from None
            raise
        finally:
            self._loop = None
            if self._timer is not None:
                self._timer.cancel()
            self._steps.publish(self._steps.get() + 1)
            await self._tasks.close_all()

    async def first_listing(self) -> None:
        """Wait until every feed has said once what there is."""
        names = {feed.name for feed in self._feeds}
        while not names <= self._state.listed:
            await self._steps.changed(self._steps.version)

    async def ready(self, timeout: float) -> tuple[str, ...]:
        """Wait for the first serving engine of each pool that is needed; return what is missing after `timeout` s.

        Empty: nothing is. Requests may be taken meanwhile.
        """
        try:
            async with asyncio.timeout(timeout):
                while self.missing.get():
                    log.info("waiting for the first engines", missing=list(self.missing.get()))
                    await self.missing.changed(self.missing.version)
        except TimeoutError:
            log.warning("not ready yet", waited=timeout, missing=list(self.missing.get()))
        return self.missing.get()

    async def close(self, drain: float) -> int:
        """Withdraw everything, give streams `drain` seconds, close every link; return how many streams were cut."""
        before = self.counters.streams_cut
        if self._loop is not None:
            self._post(Leaving(drain))
            while self._state.slots and self._loop is not None:
                await self._steps.changed(self._steps.version)
            await self._tasks.closed()
        for watch in (self.serving, self.prefill, self.runtime_configs, self.card, self.missing, self._steps):
            watch.close()
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
        return self.counters.streams_cut - before

    # The machine's hands.

    def _heard(self, event: FeedEvent) -> None:
        if isinstance(event, FeedListed):
            self.counters.listings[event.feed] = self.counters.listings.get(event.feed, 0) + 1
        self._post(event)

    def _post(self, event: Event) -> None:
        self._inbox.append(event)
        if self._loop is not None and not self._stepping:
            self._work_off()

    def _work_off(self) -> None:
        assert self._end is not None
        self._stepping = True
        try:
            while self._inbox and not self._end.done():
                before = self._state.revision
                self._state, intents = step(self._state, self._inbox.popleft(), self._now())
                if self._state.revision != before:
                    self._publish()
                for intent in intents:
                    self._carry_out(intent)
        except Exception as bug:  # it ends run(), whose task is not on this stack
            self._end.set_exception(bug)
        finally:
            self._stepping = False

    def _carry_out(self, intent: Intent) -> None:
        match intent:
            case StartProbe():
                self._tasks.probe((intent.engine_id, intent.incarnation), intent.target)
            case CancelProbe():
                self._tasks.cancel_probe((intent.engine_id, intent.incarnation))
            case StartCheck():
                self._tasks.check((intent.engine_id, intent.incarnation), with_canary=intent.canary)
            case Drain():
                self._holds.drain((intent.engine_id, intent.incarnation))
            case CutStreams():
                self.counters.streams_cut += self._holds.cut((intent.engine_id, intent.incarnation))
            case CloseEngine():
                key = intent.engine_id, intent.incarnation
                self._holds.forget(key)
                self._members.pop(key, None)
                self._tasks.close(key)
            case WakeAt():
                self._wake_at(intent.time)
            case Moved():
                self._moved(intent)
            case Ignored():
                self.counters.events_ignored += 1
            case _:
                assert_never(intent)

    def _wake_at(self, time: float | None) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if time is not None:
            self._timer = self._loop.call_later(max(0.0, time - self._now()), self._woke)

    def _woke(self) -> None:
        self._timer = None
        self._post(Woke())
        # A timer may fire a hair early. Then nothing was due, the wish is the same as before, and is not repeated.
        if self._timer is None and self._loop is not None:
            self._wake_at(self._state.wake_at)

    def _publish(self) -> None:
        members = [self._member(engine_id, entry) for engine_id, entry in projections.routable(self._state)]
        self.serving.publish(tuple(member for member in members if member.role is not Role.PREFILL))
        self.prefill.publish(tuple(member for member in members if member.role is Role.PREFILL))
        self.runtime_configs.publish(projections.runtime_configs(self._state))
        self.card.publish(self._state.card)
        self.missing.publish(self._missing())
        self._steps.publish(self._steps.get() + 1)

    def _moved(self, move: Moved) -> None:
        counters = self.counters
        counters.admissions += move.now is State.SERVING
        counters.withdrawals += move.was is State.SERVING
        counters.refusals += move.now is State.REFUSED
        counters.suspicions += move.now is State.SUSPECT
        failing = move.cause is Cause.PROBE_FAILED
        tell = log.info if self._worth_telling(move) else log.debug
        tell(
            "probe failed" if failing else f"engine {move.now}",
            engine=move.name,
            incarnation=move.incarnation,
            was=move.was.value,
            cause=move.cause.value,
            reason=move.reason,
        )

    def _worth_telling(self, move: Moved) -> bool:
        """Whether operators want to read it: not each try of an engine that has been failing for long."""
        if move.cause is not Cause.PROBE_FAILED:
            return move.now is not State.PROBING
        entry = self._state.find(move.engine_id, move.incarnation)
        return entry is None or entry.failures.bit_count() == 1

    def _member(self, engine_id: str, entry: Entry) -> Member:
        key = engine_id, entry.incarnation
        known = self._members.get(key)
        assert entry.info is not None
        assert entry.role is not None
        assert entry.target is not None
        if known is None or known.info != entry.info or known.role is not entry.role:
            engine = self._tasks.engine(key)
            known = Member(*key, entry.name, entry.role, entry.info, entry.target, engine)
            self._members[key] = known
        return known

    def _serving_entry(self, member: Member) -> Entry | None:
        entry = self._state.current(member.engine_id)
        current = entry is not None and entry.incarnation == member.incarnation and entry.state is State.SERVING
        return entry if current and self._loop is not None else None

    async def _admitted(self, engine_id: str) -> Member:
        while True:
            entry = self._state.current(engine_id)
            if entry is None and not self._inbox:
                raise ProbeFailed(f"{engine_id} was removed while it was being added")
            if entry is not None and entry.state is State.SERVING:
                return self._member(engine_id, entry)
            if entry is not None and entry.state not in (State.PROBING, State.SUSPECT):
                raise ProbeFailed(entry.reason, permanent=entry.state is State.REFUSED)
            await self._steps.changed(self._steps.version)

    def _refuse_other_options(self, engine_id: str, target: Target) -> None:
        entry = self._state.current(engine_id)
        there = entry.target if entry is not None else None
        for what in ("role", "protocol"):
            asked, has = getattr(target, what), getattr(there, what, None)
            if asked is not None and asked != has:
                raise ProbeFailed(f"{engine_id} is there already, with {what} {has or 'not given'}", permanent=True)

    def _missing(self) -> tuple[str, ...]:
        return projections.missing(self._state, tuple(feed.name for feed in self._feeds))

    def _now(self) -> float:
        if self._clock is not None:
            return self._clock()
        return (self._loop or asyncio.get_running_loop()).time()
