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

from enginehouse.core.membership.card import ModelCard
from enginehouse.core.membership.events import Doubt, Doubted, Event, Leaving, StreamsIdle, Woke
from enginehouse.core.membership.fleet import Entry
from enginehouse.core.membership.fleet import Fleet as FleetState
from enginehouse.core.membership.intents import (
    CancelProbe,
    CloseEngine,
    CutStreams,
    Drain,
    Forsake,
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
from enginehouse.core.membership.states import State
from enginehouse.domain.engine import Target
from enginehouse.domain.errors import EngineBroken, EngineError, EngineFailed, EngineTimeout
from enginehouse.domain.feed import FeedEvent, FeedListed, FeedStatus
from enginehouse.ports import Engine, Engines, Feed
from enginehouse.service.membership import Counters, FleetView, Member, RuntimeConfig
from enginehouse.service.membership_additions import Additions
from enginehouse.service.membership_failures import Failures
from enginehouse.service.membership_holds import Holds
from enginehouse.service.membership_journal import record
from enginehouse.service.membership_tasks import EngineTasks
from enginehouse.service.membership_view import view
from enginehouse.service.membership_watches import Watches
from enginehouse.service.watch import Watch, WatchClosed

__all__ = ["Fleet", "Member"]

log = structlog.get_logger("enginehouse.fleet")


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
        self.counters = Counters(listings={feed.name: 0 for feed in self._feeds})
        self._tasks = EngineTasks(engines, settings, self.counters, self._post, rng or Random())
        self._holds = Holds(lambda key: self._post(StreamsIdle(*key)))
        self._failures = Failures(settings.failures_in_a_row)
        self._watches = Watches(self._state, tuple(feed.name for feed in self._feeds), self._tasks.engine)
        self._additions = Additions(
            self._post, lambda: self._state, lambda: bool(self._inbox), self._watches, self.counters
        )

    @property
    def serving(self) -> Watch[tuple[Member, ...]]:
        """Engines that take requests: aggregated, or decode in a disaggregated fleet."""
        return self._watches.serving

    @property
    def prefill(self) -> Watch[tuple[Member, ...]]:
        """Engines that take prefill work."""
        return self._watches.prefill

    @property
    def runtime_configs(self) -> Watch[tuple[RuntimeConfig, ...]]:
        """What is known of each member, those included that may not serve just now."""
        return self._watches.runtime_configs

    def engine(self, engine_id: str, incarnation: int) -> Engine:
        """The open engine of an incarnation in `runtime_configs`."""
        return self._tasks.engine((engine_id, incarnation))

    @property
    def card(self) -> Watch[ModelCard | None]:
        """The one model; None while the fleet is empty."""
        return self._watches.card

    @property
    def missing(self) -> Watch[tuple[str, ...]]:
        """What is still to come before requests can be served, for people; empty when nothing is."""
        return self._watches.missing

    @property
    def topology(self) -> Topology:
        """AUTO until it is decided."""
        return self._state.topology

    @property
    def topology_reason(self) -> str:
        """Why it is what it is."""
        return self._state.topology_reason

    def hold(
        self, member: Member, cut: Callable[[], None] | None = None, forsake: Callable[[], None] | None = None
    ) -> Callable[[], None] | None:
        """Count a stream on this very incarnation; the answer ends it. None: it may not be sent anything (any more).

        cut: called when the engine was withdrawn and its drain deadline has passed; forsake: called after each check
        that the engine fails, when it is out already: a stream without any news is better off elsewhere.
        """
        if self._serving_entry(member) is None:
            return None
        return self._holds.take((member.engine_id, member.incarnation), cut, forsake)

    def report_failure(self, member: Member, error: EngineError) -> None:
        """An attempt failed. If that speaks against the engine it gets nothing more until a check has passed."""
        if self._serving_entry(member) is None:
            return
        doubt, reason = Doubt.LOST, error.message
        if isinstance(error, EngineFailed):
            if not self._failures.failed((member.engine_id, member.incarnation)):
                return
            doubt, reason = Doubt.FAILING, "it failed several requests in a row"
        elif not error.suspect:
            return
        elif isinstance(error, EngineTimeout):
            doubt = Doubt.MUTE
        elif isinstance(error, EngineBroken):
            doubt = Doubt.BROKEN
        self._post(Doubted(member.engine_id, member.incarnation, doubt, reason, self._tasks.chance()))

    def report_unmet(self, member: Member, reason: str) -> None:
        """A hand-over with it took too long, and none with it got on meanwhile."""
        if self._serving_entry(member) is None:
            return
        key = (member.engine_id, member.incarnation)
        self._post(Doubted(*key, Doubt.UNMET, reason, self._tasks.chance(), self._failures.unmet(key)))

    def report_success(self, member: Member) -> None:
        """An answer ended well: what failed before it was not the engine."""
        self._failures.forget((member.engine_id, member.incarnation))

    async def add(self, target: Target) -> Member:
        """Bring an engine in; return when it serves. Adding what is there changes nothing and returns the same.

        Raises ProbeFailed when it cannot join; then nothing of it stays.
        """
        return await self._additions.add(target)

    def remove(self, engine_id: str) -> bool:
        """Withdraw an engine that was added; its streams go on. False: nothing of this id was added.

        What a feed brought only the feed can take.
        """
        return self._additions.remove(engine_id)

    def view(self) -> FleetView:
        """Everything that there is to know now."""
        return view(self._state, self.feed_status(), self.missing.get(), self._holds.count, self._now())

    def feed_status(self) -> tuple[FeedStatus, ...]:
        """How fresh each feed's knowledge is."""
        return tuple(feed.status() for feed in self._feeds)

    async def run(self) -> None:
        """Serve until closed or cancelled. A bug anywhere in membership ends it with that error."""
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_future()
        try:
            async with asyncio.TaskGroup() as group:
                self._tasks.start(group)
                feeds = [group.create_task(feed.run(self._heard), name=f"feed {feed.name}") for feed in self._feeds]
                self._tell_topology()
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
            self._watches.stir()
            await self._tasks.close_all()

    async def first_listing(self) -> None:
        """Wait until every feed has said once what there is. Raises WatchClosed if the fleet is closed before."""
        names = {feed.name for feed in self._feeds}
        while not names <= self._state.listed:
            await self._watches.steps.changed(self._watches.steps.version)

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
        except WatchClosed:
            pass
        return self.missing.get()

    async def close(self, drain: float) -> int:
        """Withdraw everything, give streams `drain` seconds, close every link; return how many streams were cut."""
        before = self.counters.streams_cut
        if self._loop is not None:
            self._post(Leaving(drain))
            while self._state.slots and self._loop is not None:
                await self._watches.steps.changed(self._watches.steps.version)
            await self._tasks.closed()
        self._watches.close()
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
        return self.counters.streams_cut - before

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
                before, topology = self._state.revision, self._state.topology
                self._state, intents = step(self._state, self._inbox.popleft(), self._now())
                if self._state.topology is not topology:
                    self._tell_topology()
                if self._state.revision != before:
                    self._watches.publish(self._state)
                for intent in intents:
                    self._carry_out(intent)
        except Exception as bug:  # it ends run(), whose task is not on this stack
            self._end.set_exception(bug)
        finally:
            self._stepping = False

    def _tell_topology(self) -> None:
        if self.topology is not Topology.AUTO:
            log.info("topology", topology=self.topology.value, reason=self.topology_reason)

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
            case Forsake():
                self._holds.forsake((intent.engine_id, intent.incarnation))
            case CloseEngine():
                key = intent.engine_id, intent.incarnation
                self._holds.forget(key)
                self._failures.forget(key)
                self._watches.forget(key)
                self._tasks.close(key)
            case WakeAt():
                self._wake_at(intent.time)
            case Moved():
                record(intent, self._state, self.counters)
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

    def _serving_entry(self, member: Member) -> Entry | None:
        entry = self._state.current(member.engine_id)
        current = entry is not None and entry.incarnation == member.incarnation and entry.state is State.SERVING
        return entry if current and self._loop is not None else None

    def _now(self) -> float:
        if self._clock is not None:
            return self._clock()
        return (self._loop or asyncio.get_running_loop()).time()
