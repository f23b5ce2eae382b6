"""A disaggregated fleet of fake engines, and a generator on it, in virtual time. Prefill engines are p, q, r; decode
engines a, b, c."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from enginehouse.core.kv.knowledge import Knowledge
from enginehouse.core.kv.settings import KvSettings
from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.policy import RoutingSettings
from enginehouse.domain.engine import ProtocolName, Role
from enginehouse.domain.request import Sampling
from enginehouse.domain.stream import Delta, Finish
from enginehouse.ports import Call, LegName
from enginehouse.service.fleet import Fleet
from enginehouse.service.generate import Generator, Outcome, RequestSettings, TokenRequest
from enginehouse.service.kv import KvFollower
from enginehouse.testing.clock import run_virtual
from enginehouse.testing.engines import FakeCall, FakeEngines, FakeProcess, is_canary
from enginehouse.testing.feeds import FakeFeed, fake_wanted
from enginehouse.testing.kv import FakeKvEvents

REQUEST = TokenRequest([1, 2, 3], 4, Sampling(temperature=0.5))
PREFILL, DECODE = "pqr", "abc"
SGLANG, VLLM = ProtocolName.SGLANG, ProtocolName.VLLM


class Sink:
    """An answer that keeps what it is given; as a streamed one it counts as sent with its first token."""

    def __init__(self, *, streamed: bool = True, enough_after: int = 0) -> None:
        self.ids: list[int] = []
        self.sent = False
        self.finish: Finish | None = None
        self.cached: int | None = None
        self.begun = 0
        self.call: Call | None = None
        self._streamed = streamed
        self._enough_after = enough_after

    def begin(self, call: Call) -> None:
        assert not self.sent, "tokens of two attempts would be mixed"
        self.begun += 1
        self.ids.clear()
        self.call = call

    def push(self, delta: Delta) -> bool:
        self.ids += delta.token_ids
        self.sent = self.sent or (self._streamed and bool(delta.token_ids))
        self.finish = delta.finish
        if delta.cached_tokens is not None:
            self.cached = delta.cached_tokens
        return bool(self._enough_after) and len(self.ids) >= self._enough_after


class Meter:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.retries: list[str] = []
        self.retried_legs: list[LegName | None] = []
        self.legs: dict[LegName, list[float]] = {"queue": [], "prefill": [], "handover": [], "decode": []}
        self.failed: list[tuple[LegName, str]] = []
        self.choices: list[tuple[str, int]] = []

    def tokens(self, count: int) -> None: ...

    def prompt(self, tokens: int, cached: int = 0) -> None: ...

    def decided(self, rule: str, predicted: int) -> None:
        self.choices.append((rule, predicted))

    def retried(self, code: str, leg: LegName | None = None) -> None:
        self.retries.append(code)
        self.retried_legs.append(leg)

    def leg(self, leg: LegName, seconds: float) -> None:
        self.legs[leg].append(seconds)

    def leg_failed(self, leg: LegName, code: str) -> None:
        self.failed.append((leg, code))

    def end(self, status: int, code: str | None = None, *, cut: bool = False) -> None: ...


class World:
    def __init__(
        self, protocol: ProtocolName, limits: RequestSettings, routing: RoutingSettings, handover: HandoverSettings
    ) -> None:
        self.protocol = protocol
        self.engines = FakeEngines()
        self.feed = FakeFeed()
        self.fleet = Fleet(self.engines, [self.feed], rng=Random(1), topology="disaggregated")
        self.ledger = Ledger()
        self.knowledge = Knowledge(KvSettings(kv_index_blocks=1000)) if routing.policy == "kv" else None
        if self.knowledge is not None:
            KvFollower(self.knowledge, FakeKvEvents(), self.fleet.engine).follow(self.fleet.runtime_configs)
        self.generator = Generator(
            self.fleet, self.ledger, limits, routing, rng=Random(2), handover=handover, knowledge=self.knowledge
        )
        self.process: dict[str, FakeProcess] = {}
        self.meter = Meter()

    def start(self, name: str, **fields: object) -> FakeProcess:
        """An engine that says what one of its role and protocol says; `fields` as well."""
        role = Role.PREFILL if name in PREFILL else Role.DECODE
        told: dict[str, object] = {"protocol": self.protocol}
        if self.protocol is SGLANG:
            told |= {"role": role, "bootstrap_port": 8998 if role is Role.PREFILL else None}
        process = self.process[name] = self.engines.listen(self.address(name), **(told | fields))
        process.answers, process.lives = False, True
        return process

    def address(self, name: str) -> str:
        return f"10.0.0.{ord(name) - ord('a') + 1}:9000"

    def know(self, names: str) -> None:
        wanted = [
            fake_wanted(name, self.address(name), role=Role.PREFILL if name in PREFILL else Role.DECODE)
            for name in names
        ]
        self.feed.list(*wanted)

    async def joined(self, names: str) -> None:
        """These serve, and no others."""
        for name in names:
            if name not in self.process:
                self.start(name)
        self.know(names)
        while {m.engine_id for m in (*self.fleet.serving.get(), *self.fleet.prefill.get())} != set(names):
            await self._moment()

    async def _moment(self) -> None:
        """Time passes, though not for ever."""
        await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() < 1000, "what is waited for does not come"

    def ask(self, sink: Sink | None = None, request: TokenRequest = REQUEST) -> asyncio.Task[Outcome]:
        return asyncio.create_task(self.generator.run(request, sink or Sink(), self.meter))

    def calls(self, names: str, *, canaries: bool = False) -> list[FakeCall]:
        """All that these were asked, by clients or only to see whether they are well."""
        return [
            call
            for name in names
            if name in self.process
            for engine in self.process[name].opened
            for call in engine.calls
            if is_canary(call.request) is canaries
        ]

    def open(self, names: str) -> list[FakeCall]:
        return [call for call in self.calls(names) if not call.over]

    def whose(self, call: FakeCall) -> str:
        (name,) = [name for name in self.process if call in self.calls(name)]
        return name

    def whose_canary(self, call: FakeCall) -> str:
        (name,) = [name for name in self.process if call in self.calls(name, canaries=True)]
        return name

    async def call(self, names: str) -> FakeCall:
        """The one open call at these engines, once there is one."""
        while not (calls := self.open(names)):
            await self._moment()
        (call,) = calls
        return call

    async def legs(self) -> tuple[FakeCall, FakeCall]:
        """Both legs of the one request, once the decode leg is there; of vLLM the prefill leg ends for that."""
        await asyncio.sleep(0.001)  # those of an attempt that failed just now are gone by then
        prefill = await self.call(PREFILL)
        if self.protocol is not SGLANG:
            prefill.deliver([9], Finish.LENGTH)
        return prefill, await self.call(DECODE)

    async def answer(self) -> None:
        """Let the one request that is under way have tokens 7 and 8."""
        decode = await self.call(DECODE)
        for call in self.open(PREFILL):
            call.deliver([9], Finish.LENGTH)
        decode.deliver([7])
        decode.deliver([8], Finish.STOP)

    def settled(self) -> None:
        """No trace is left of any request, but for what its answer may still linger."""
        assert self.ledger.in_flight == 0
        self.ledger.check()
        assert all(engine.streams == 0 for engine in self.fleet.view().engines)
        assert self.generator.pairs.in_flight == Counter()
        assert not self.generator.pairs._met_at
        assert self.generator.pairs.waiting == 0


def play(
    scenario: Callable[[World], Awaitable[None]],
    names: str = "pa",
    protocol: ProtocolName = SGLANG,
    *,
    limits: RequestSettings | None = None,
    routing: RoutingSettings | None = None,
    handover: HandoverSettings | None = None,
) -> None:
    """Run a scenario on a fleet of these engines, and look whether all is settled at its end."""

    async def main() -> None:
        world = World(
            protocol, limits or RequestSettings(), routing or RoutingSettings(), handover or HandoverSettings()
        )
        running = asyncio.create_task(world.fleet.run())
        await world.joined(names)
        await scenario(world)
        await asyncio.sleep(30)  # what lingers, or is released, has had its time
        world.settled()
        assert not world.open("".join(world.process)), "a leg was left running"
        await world.generator.close()
        await world.fleet.close(0)
        await running

    run_virtual(main())
