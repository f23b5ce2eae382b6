"""SGLang's hand-over: both legs of a request have its room's number, and meet at the prefill engine.

As there, the prefill engine computes only once the decode engine has come, and draws the answer's first token; a leg
that waits in vain ends with an abort message. What is not modelled: heartbeats. A decode engine learns at once that its
prefill engine died.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from enginehouse.mock.handover.legs import Meet, Offer
from enginehouse.mock.handover.lines import hear, say, until_gone
from enginehouse.mock.simulator import Answer, Drawn

if TYPE_CHECKING:
    from enginehouse.mock.handover.desk import Desk

_AGAIN = 0.02
"""Seconds after which a decode engine knocks again at a port that nobody listens on."""


@dataclass(eq=False)
class Visitor:
    """A decode engine that wants a room."""

    room: int
    prompt: int
    writer: asyncio.StreamWriter
    met: Room | None = None


@dataclass(eq=False)
class Room:
    """A prefill leg that waits or is met."""

    answer: Answer
    met: asyncio.Future[Visitor] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    over: bool = False
    """The cache was handed over."""


class Rooms:
    """Both sides of one engine."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._rooms: dict[int, Room] = {}
        self._visitors: set[Visitor] = set()

    async def visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A decode engine has come; it stays until it has what it wants or gives up."""
        asked = await hear(reader)
        if asked is None:
            return
        visitor = Visitor(int(asked["room"]), int(asked["prompt"]), writer)
        self._visitors.add(visitor)
        self._desk.journal.write("knock", room=visitor.room)
        self.match()
        try:
            await until_gone(reader)
        finally:
            self._visitors.discard(visitor)
            room = visitor.met
            if room is not None and not room.over:
                self._desk.fail(room.answer, _text("Prefill transfer failed", room.answer, visitor.room))

    def match(self) -> None:
        """Bring together who is there for the same room, the same prompt, and on the rank that the room names."""
        if self._desk.faults.handover_mute:
            return
        for visitor in self._visitors:
            room = self._rooms.get(visitor.room)
            if visitor.met is not None or room is None or room.met.done():
                continue
            answer, ranks = room.answer, self._desk.settings.ranks
            if answer.seed == visitor.prompt and answer.rank == visitor.room % ranks:
                visitor.met = room
                room.met.set_result(visitor)

    async def offer(self, answer: Answer, leg: Offer) -> None:
        """The prefill leg."""
        desk, number = self._desk, self._number(leg.room)
        if number in self._rooms:
            desk.fail(answer, f"Prefill bootstrap failed: bootstrap_room={number} is in use")
            return
        room = self._rooms[number] = Room(answer)
        self.match()
        try:
            async with asyncio.timeout(desk.settings.bootstrap_timeout):
                visitor = await room.met
        except TimeoutError:
            desk.fail(answer, _text("Prefill bootstrap failed", answer, leg.room))
            return
        finally:
            del self._rooms[number]
        try:
            say(visitor.writer, met=True)
            await desk.met(answer)
            desk.release(answer)
            await desk.computed(answer)
            await desk.transfer(answer)
            if desk.faults.handover_fails:
                desk.fail(answer, _text("Prefill transfer failed", answer, leg.room))
                return
            room.over = True
            say(visitor.writer, passed=True, cached=answer.cached, drawn=asdict(desk.draw(answer)))
            desk.pass_on(answer)
        finally:
            if not room.over:
                room.over = True
                say(visitor.writer, passed=False)

    async def meet(self, answer: Answer, leg: Meet) -> None:
        """The decode leg."""
        desk = self._desk
        try:
            async with asyncio.timeout(desk.settings.bootstrap_timeout):
                reader, writer = await self._knock(answer, leg)
        except TimeoutError:
            desk.fail(answer, _text("Decode handshake failed", answer, leg.room))
            return
        try:
            await desk.met(answer)
            line = await hear(reader)
            if line is None or not line["passed"] or desk.faults.handover_fails:
                desk.fail(answer, _text("Decode transfer failed", answer, leg.room))
                return
            desk.journal.write("passed", rid=answer.job.rid)
            desk.release(answer, cached=line["cached"], drawn=Drawn(**line["drawn"]))
        finally:
            writer.close()

    async def _knock(self, answer: Answer, leg: Meet) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        desk = self._desk
        while True:
            # A stored room 0 looks to SGLang's decode side like none, and it waits on.
            while desk.faults.handover_mute or leg.room == 0:
                await desk.next_change()
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(leg.host.strip("[]"), leg.port)
                try:
                    say(writer, room=self._number(leg.room), prompt=answer.seed)
                    if await hear(reader) is not None:
                        return reader, writer
                except asyncio.CancelledError:
                    writer.close()
                    raise
                writer.close()
            await asyncio.sleep(_AGAIN)

    def _number(self, room: int) -> int:
        return room ^ 1 if self._desk.faults.handover_wrong_room else room


def _text(what: str, answer: Answer, room: int) -> str:
    return f"{what} for request rank={answer.rank} rid='{answer.job.rid}' bootstrap_room={room}"
