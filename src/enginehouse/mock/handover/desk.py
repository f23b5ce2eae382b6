"""The hand-over of one engine: which part each request plays, and what that does to the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from enginehouse.domain.engine import ProtocolName, Role
from enginehouse.mock.handover.leases import Leases
from enginehouse.mock.handover.legs import Fetch, Keep, Meet, Offer, told
from enginehouse.mock.handover.lines import Door
from enginehouse.mock.handover.rooms import Rooms
from enginehouse.mock.journal import Journal
from enginehouse.mock.settings import Faults, MockSettings
from enginehouse.mock.simulator import Answer, Drawn

if TYPE_CHECKING:
    from enginehouse.mock.engine import Engine


class Desk:
    """What rooms and leases need of their engine, and what the engine needs of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.settings: MockSettings = engine.settings
        self.leases = Leases(self)
        self._rooms = Rooms(self)
        self._sglang = self.settings.protocol is ProtocolName.SGLANG
        self._door = Door(self._rooms.visit if self._sglang else self.leases.visit)
        self._legs: dict[Answer, asyncio.Task[None]] = {}
        self._computed: dict[Answer, asyncio.Future[None]] = {}
        self._closed = False
        """Stopped or dead: what happens to its legs now is no news."""

    @property
    def faults(self) -> Faults:
        """How the engine misbehaves now."""
        return self.engine.faults

    @property
    def journal(self) -> Journal:
        """Where it tells."""
        return self.engine.journal

    @property
    def port(self) -> int:
        """Where other engines come; 0: they do not."""
        return self._door.port

    @property
    def connector(self) -> bool:
        """vLLM: the engine takes `kv_transfer_params`."""
        return self.settings.role is not Role.AGGREGATED or self.settings.side_channel_port is not None

    async def open(self) -> None:
        """Let other engines come, where this one has something to give. Raises OSError."""
        settings, prefill = self.settings, self.settings.role is Role.PREFILL
        if self._sglang:
            port = settings.bootstrap_port if prefill else None
        else:
            port = settings.side_channel_port
            if port is None and prefill:
                port = 0
        if port is not None:
            await self._door.open(settings.host, port)

    def close(self) -> None:
        """Meet nobody any more."""
        self._closed = True
        self._door.close()
        self.leases.close()
        for leg in self._legs.values():
            leg.cancel()

    def begin(self, answer: Answer) -> None:
        """A request has come."""
        leg = answer.job.leg
        if leg is None:
            return
        job = answer.job
        self.journal.write("leg", rid=job.rid, role=self.settings.role, **told(leg))
        work: Coroutine[Any, Any, None]
        match leg:
            case Offer():
                work = self._rooms.offer(answer, leg)
            case Meet():
                work = self._rooms.meet(answer, leg)
            case Fetch():
                work = self.leases.fetch(answer, leg)
            case Keep():
                return
        task = self._legs[answer] = asyncio.create_task(work, name=f"mock-leg {job.rid}")
        task.add_done_callback(lambda _: self._legs.pop(answer, None))

    def end(self, answer: Answer) -> None:
        """Its front has let go of a request."""
        if (leg := self._legs.get(answer)) is not None:
            leg.cancel()

    def stepped(self, answer: Answer) -> None:
        """There is news of an answer."""
        computed = self._computed.get(answer)
        if computed is not None and answer.passing and not computed.done():
            computed.set_result(None)

    def changed(self) -> None:
        """Faults have changed."""
        self._rooms.match()

    async def next_change(self) -> None:
        """Wait until something about the engine changes, faults among it."""
        await self.engine.next_change()

    async def met(self, answer: Answer) -> None:
        """The two legs of a request have found each other."""
        self.journal.write("met", rid=answer.job.rid)
        if self.faults.handover_dies:
            self.engine.die()
            await asyncio.get_running_loop().create_future()  # the dead do nothing more

    def release(self, answer: Answer, cached: int | None = None, drawn: Drawn | None = None) -> None:
        """Work on a request that waited; cached: its prompt's cache has come."""
        self._act(answer, lambda: self.engine.simulator.release(answer, cached, drawn))

    def draw(self, answer: Answer) -> Drawn:
        """The first token of an answer, with what is known of it."""
        return Drawn(self.engine.simulator.token(answer, 0), answer.job.wishes.logprobs)

    async def computed(self, answer: Answer) -> None:
        """Wait until the prompt of a released request is computed."""
        waiter = self._computed[answer] = asyncio.get_running_loop().create_future()
        try:
            self.stepped(answer)
            await waiter
        finally:
            del self._computed[answer]

    async def transfer(self, answer: Answer) -> None:
        """Take the time that it takes to pass a prompt's cache on."""
        speed = self.settings.transfer_tokens_per_second
        if speed:
            await asyncio.sleep(len(answer.job.prompt) / speed)
        while self.faults.handover_hold:
            await self.next_change()

    def pass_on(self, answer: Answer) -> None:
        """The cache has gone over: the request may end."""
        self.journal.write("passed", rid=answer.job.rid)
        self._act(answer, lambda: self.engine.simulator.pass_on(answer))

    def fail(self, answer: Answer, text: str) -> None:
        """The hand-over of a request has failed."""
        if answer.end is None and not self._closed:
            self.journal.write("leg_failed", rid=answer.job.rid, text=text)
            self._act(answer, lambda: self.engine.simulator.fail(answer, text))

    def _act(self, answer: Answer, what: Callable[[], None]) -> None:
        if answer.end is None and not self._closed:
            what()
            self.engine.acted(answer)
