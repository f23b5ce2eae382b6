"""Owns one engine's part in an attempt: held, booked and called. All of it is given back once, on every exit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from enginehouse.core.kv.knowledge import Knowledge, Sent
from enginehouse.core.kv.prompt import KvPrompt
from enginehouse.core.routing.candidate import Prompt
from enginehouse.core.routing.decision import Decision
from enginehouse.core.routing.ledger import Charge, Ledger
from enginehouse.domain.errors import EngineError
from enginehouse.domain.request import EngineRequest
from enginehouse.ports import Call, DeltaSink
from enginehouse.service.fleet import Fleet
from enginehouse.service.membership import Member

_TRAILERS_GRACE = 5.0
"""Seconds that an engine may take between what we wait for and the end of its stream before we end it ourselves."""


@dataclass(frozen=True, slots=True)
class Books:
    """Where a leg is written down."""

    fleet: Fleet
    ledger: Ledger
    knowledge: Knowledge | None
    """What the engines' caches hold; None: the policy does not ask."""


class Leg:
    """One engine, chosen for one attempt."""

    __slots__ = ("_books", "_charge", "_release", "_sent", "call", "decision", "member")

    def __init__(self, books: Books, member: Member, decision: Decision) -> None:
        self._books = books
        self._charge: Charge | None = None
        self._release: Callable[[], None] | None = None
        self._sent: Sent | None = None
        self.member = member
        self.decision = decision
        self.call: Call | None = None
        """Once sent."""

    @property
    def key(self) -> tuple[str, int]:
        return self.member.engine_id, self.member.incarnation

    def hold(self, cut: Callable[[], None], forsake: Callable[[], None]) -> bool:
        """Keep the engine from being closed; False: it was withdrawn since the list was read. As Fleet.hold."""
        self._release = self._books.fleet.hold(self.member, cut, forsake)
        return self._release is not None

    def book(self, prompt: Prompt | None, tokens: int, uncached: int) -> None:
        """From now on its rank has this much work, and will hold the prompt."""
        self._charge = self._books.ledger.charge(self.decision.chosen, tokens, uncached)
        if self._books.knowledge is not None and isinstance(prompt, KvPrompt):
            self._sent = self._books.knowledge.dispatched(prompt, self.decision.chosen)

    def send(self, request: EngineRequest, sink: DeltaSink) -> Call:
        self.call = self.member.engine.generate(request, sink)
        return self.call

    def computed(self, now: float) -> None:
        """Nothing of the prompt is left to compute: it is in the cache."""
        if self._charge is not None:
            self._charge.prefilled()
        if self._sent is not None:
            self._sent.answered(now)

    def unload(self) -> bool:
        """Its rank's work is done, though its stream may still be open. False: it had none, or no more."""
        charge, self._charge = self._charge, None
        if charge is None:
            return False
        charge.release()
        return True

    def succeeded(self) -> None:
        self._books.fleet.report_success(self.member)

    def failed(self, error: EngineError) -> None:
        self._books.fleet.report_failure(self.member, error)

    def unmet(self, error: EngineError) -> None:
        self._books.fleet.report_unmet(self.member, error.message)

    def settle(self, cached: int | None = None, *, linger: bool = False) -> None:
        """Give everything back; harmless when done before.

        cached: tokens of the prompt that it said it had; linger: what we wanted came, so its stream may end by itself.
        """
        self.unload()
        if self._sent is not None:
            self._sent.ended(cached)
            self._sent = None
        if self._release is not None:
            self._release()
        if self.call is not None:
            if linger:
                asyncio.get_running_loop().call_later(_TRAILERS_GRACE, self.call.cancel)
            else:
                self.call.cancel()
            self.call = None
