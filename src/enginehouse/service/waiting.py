"""Decides what a request does that no engine can take now: waits, for how long and for what, or gives up with what."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final, Literal, assert_never

from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.core.routing.pairs import Busy, Lack, NoPrefill
from enginehouse.core.routing.policy import AllExcluded, AllFull
from enginehouse.domain.errors import EngineError, EnginehouseError, NoEngine, Overloaded
from enginehouse.service.pools import Pools
from enginehouse.service.request import RequestSettings
from enginehouse.service.turns import Ticket, Turns

Awaited = Literal["turn", "engine", "prefill engine"]
Unchosen = AllExcluded | AllFull | NoPrefill | Busy

_ALL_FULL: Final = "every engine has all the requests it may have; try again later"
_NONE_NOW: Final = "no engine can take a request for this model now"
_ALL_BUSY: Final = "every prefill engine has all the prompts it may have; try again later"
_NO_PREFILL: Final[dict[Lack, str]] = {
    "none": "no prefill engine can take a request for this model now",
    "incompatible": "no decode engine can take over from the prefill engines that are there",
    "tried": "no other prefill engine can take a request for this model now",
}


@dataclass(slots=True)
class Tried:
    """What one request has been through."""

    excluded: set[tuple[str, int]] = field(default_factory=set)
    """Id and incarnation of engines that failed it."""
    attempts: int = 0
    unheld: int = 0
    """Attempts that failed, perhaps because of what the answer is held to."""
    error: EngineError | None = None
    """The last attempt's."""
    seen: int = 0
    """Version of the pools at the last look."""
    until: dict[Awaited, float] = field(default_factory=dict)
    """When it stops waiting for each."""
    ticket: Ticket | None = None
    """Its place among those that wait for a turn, if it has had to wait."""
    has_turn: bool = False
    """It was woken because there was room."""


class Waiting:
    """One for all requests."""

    def __init__(self, pools: Pools, turns: Turns, settings: RequestSettings, handover: HandoverSettings) -> None:
        self._pools = pools
        self._turns = turns
        self._settings = settings
        self._handover = handover
        pools.changes.listen(lambda _: turns.all())

    async def out(self, why: Unchosen, tried: Tried) -> None:
        """Return when it is worth choosing again. Raises what the client gets when it is not."""
        match why:
            case Busy():
                await self._turn(tried)
            case AllFull():
                raise tried.error or refusal(why) from None
            case AllExcluded():
                await self._engine(why, tried, "engine", self._settings.hold_timeout)
            case NoPrefill() if self._handover.prefill_missing != "wait":
                raise tried.error or refusal(why) from None
            case NoPrefill() if why.lack == "tried":
                await self._engine(why, tried, "engine", self._settings.hold_timeout)
            case NoPrefill():
                await self._engine(why, tried, "prefill engine", self._handover.prefill_wait)
            case _:
                assert_never(why)

    def took(self, tried: Tried, *, room: bool) -> None:
        """It was given engines. room: a prefill engine among them, whose next free place is for somebody else."""
        tried.until.clear()
        if room:
            tried.has_turn = False
        self.passed(tried)

    def passed(self, tried: Tried) -> None:
        """It has no use for a turn, if it has one."""
        if tried.has_turn:
            tried.has_turn = False
            self._turns.next()

    async def _turn(self, tried: Tried) -> None:
        if tried.ticket is None:
            tried.ticket = self._turns.ticket()
        elif tried.has_turn and tried.excluded:
            self._turns.next(tried.ticket)  # the room may be at an engine that this request alone may not use
        tried.has_turn = False
        if not await self._turns.wait(tried.ticket, _left(tried, "turn", self._settings.first_token_timeout)):
            raise tried.error or Overloaded(_ALL_BUSY) from None
        tried.has_turn = True

    async def _engine(self, why: Unchosen, tried: Tried, awaited: Awaited, timeout: float) -> None:
        self.passed(tried)
        # One that is out returns only after a check, so it may be tried again; one that is in failed just now.
        there = self._pools.there()
        checked = not tried.excluded <= there or awaited in tried.until
        tried.excluded &= there
        error = tried.error
        if error is not None and tried.excluded and not checked and not error.suspect:
            raise error  # nothing says that another engine is about to come
        if not await self._changed(tried.seen, _left(tried, awaited, timeout)):
            raise error or refusal(why) from None

    async def _changed(self, seen: int, timeout: float) -> bool:
        """Wait for other pools than those of version `seen`; False when the time is up."""
        if timeout <= 0:
            return False
        try:
            async with asyncio.timeout(timeout):
                await self._pools.changes.changed(seen)
        except TimeoutError:
            return False
        return True


def _left(tried: Tried, awaited: Awaited, timeout: float) -> float:
    """Seconds of `timeout`, which began when it was first awaited."""
    now = asyncio.get_running_loop().time()
    return tried.until.setdefault(awaited, now + timeout) - now


def refusal(why: Unchosen) -> EnginehouseError:
    """What a client is told that does not wait, or has waited long enough."""
    match why:
        case AllFull():
            return Overloaded(_ALL_FULL, retry_after=1)
        case Busy():
            return Overloaded(_ALL_BUSY, retry_after=1)
        case AllExcluded():
            return NoEngine(_NONE_NOW, retry_after=1)
        case NoPrefill():
            return NoEngine(_NO_PREFILL[why.lack], retry_after=1)
        case _:
            assert_never(why)
