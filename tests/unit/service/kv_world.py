"""A fleet of fake engines with fake publishers, followed, and a generator that chooses by what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from enginehouse.core.kv.knowledge import Knowledge
from enginehouse.core.kv.settings import KvSettings
from enginehouse.core.kv.view import RankView
from enginehouse.core.routing.decision import Decision
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.policy import RoutingSettings
from enginehouse.domain.engine import KvEventSource
from enginehouse.domain.request import Sampling
from enginehouse.domain.stream import Delta, Finish
from enginehouse.ports import Call, LegName
from enginehouse.service.fleet import Fleet
from enginehouse.service.generate import Generator, RequestSettings, TokenRequest
from enginehouse.service.kv import KvFollower
from enginehouse.service.kv_intake import PAUSE
from enginehouse.testing.clock import run_virtual
from enginehouse.testing.engines import FakeCall, FakeEngines, FakeProcess
from enginehouse.testing.feeds import FakeFeed, fake_wanted
from enginehouse.testing.kv import FakeKvEvents, FakePublisher

TOKENS = list(range(1000, 1100))
"""Six blocks of 16, and four tokens."""


class Sink:
    """An answer that nobody reads."""

    def __init__(self) -> None:
        self.sent = False
        self.finish: Finish | None = None

    def begin(self, call: Call) -> None:
        pass

    def push(self, delta: Delta) -> bool:
        self.sent = True
        self.finish = delta.finish
        return False


class Meter:
    def tokens(self, count: int) -> None: ...

    def prompt(self, tokens: int, cached: int = 0) -> None: ...

    def decided(self, rule: str, predicted: int) -> None: ...

    def retried(self, code: str, leg: LegName | None = None) -> None: ...

    def leg(self, leg: LegName, seconds: float) -> None: ...

    def leg_failed(self, leg: LegName, code: str) -> None: ...

    def end(self, status: int, code: str | None = None, *, cut: bool = False) -> None: ...


class World:
    def __init__(self) -> None:
        self.engines = FakeEngines()
        self.feed = FakeFeed()
        self.fleet = Fleet(self.engines, [self.feed], rng=Random(1))
        self.events = FakeKvEvents()
        self.knowledge = Knowledge(KvSettings(kv_index_blocks=100_000))
        self.follower = KvFollower(self.knowledge, self.events, self.fleet.engine)
        self.ledger = Ledger()
        self.generator = Generator(
            self.fleet,
            self.ledger,
            RequestSettings(),
            RoutingSettings(policy="kv"),
            rng=Random(2),
            knowledge=self.knowledge,
        )
        self.process: dict[str, FakeProcess] = {}

    def address(self, name: str) -> str:
        return f"10.0.0.{ord(name) - ord('a') + 1}:9000"

    def start(self, name: str, *, replays: bool = True, listens: bool = True, **fields: object) -> FakePublisher:
        """An engine with one rank that publishes; returns its publisher."""
        endpoint = f"tcp://{name}:5557"
        source = KvEventSource(0, endpoint, replay_endpoint=f"tcp://{name}:6557" if replays else None)
        fields = {"kv_event_sources": (source,)} | fields
        publisher = self.events.listen(endpoint, replays=replays) if listens else FakePublisher()
        self.process[name] = self.engines.listen(self.address(name), **fields)
        self.process[name].answers = False
        return publisher

    def know(self, names: str, **fields: str) -> None:
        self.feed.list(*[fake_wanted(name, self.address(name), **fields) for name in names])  # type: ignore[arg-type]

    async def joined(self, names: str) -> None:
        """These, and no others, serve; and what their publishers said is worked off."""
        self.know(names)
        while {member.engine_id for member in self.fleet.serving.get()} != set(names):
            await self.fleet.serving.changed(self.fleet.serving.version)
        await self.settle()

    async def settle(self) -> None:
        """Until nothing is left to be done of what has happened."""
        await asyncio.sleep(2 * PAUSE)
        self.knowledge.check()

    def rank(self, name: str, rank: int = 0) -> RankView:
        """The newest incarnation's."""
        return [r for r in self.follower.view().ranks if (r.key.engine_id, r.key.rank) == (name, rank)][-1]

    def explain(self, tokens: Sequence[int] = TOKENS) -> Decision:
        return self.generator.explain(TokenRequest(tokens, 4, Sampling()))

    def held(self, tokens: Sequence[int] = TOKENS) -> dict[tuple[str, int | None], int | None]:
        """What the request would find, by engine and rank."""
        return {(part.engine_id, part.rank): part.held for part in self.explain(tokens).parts}

    def send(self, tokens: Sequence[int] = TOKENS) -> asyncio.Task[object]:
        request = TokenRequest(tokens, 4, Sampling())
        return asyncio.create_task(self.generator.run(request, Sink(), Meter()))

    def open_calls(self, name: str) -> list[FakeCall]:
        return [call for engine in self.process[name].opened for call in engine.calls if not call.over]

    async def ask(self, tokens: Sequence[int] = TOKENS, *, cached: int = 0) -> str:
        """One request from begin to end; who answered it."""
        task = self.send(tokens)
        await self.settle()
        (name,) = [name for name in self.process if self.open_calls(name)]
        self.open_calls(name)[0].deliver([1], Finish.STOP, cached)
        await task
        await self.settle()
        return name


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run a scenario in virtual time, and look whether all is as it must be at its end."""

    async def main() -> None:
        world = World()
        world.follower.follow(world.fleet.runtime_configs)
        running = asyncio.create_task(world.fleet.run())
        await scenario(world)
        await world.settle()
        await world.fleet.close(0)
        await world.settle()
        assert not world.events.following
        assert not world.follower.view().ranks
        assert (world.follower.view().blocks, world.ledger.in_flight) == (0, 0)
        assert not world.knowledge.sweep(0), "what is gone has been taken apart"
        world.ledger.check()
        world.follower.close()
        await running

    run_virtual(main())
