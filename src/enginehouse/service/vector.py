"""One attempt at an embedding: one engine, one answer in one piece."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from enginehouse.core.routing.candidate import Prompt
from enginehouse.core.routing.decision import Decision
from enginehouse.domain.errors import EngineError
from enginehouse.domain.stream import Delta, Embedding
from enginehouse.ports import Call, LegName, RequestMeter
from enginehouse.service.attempt import Attempt
from enginehouse.service.leg import Leg
from enginehouse.service.request import RequestSettings, TokenRequest


class Vector:
    """A Work whose result is `found`."""

    __slots__ = ("_leg", "_limits", "_request", "attempt", "choice", "found")

    def __init__(
        self,
        choice: Decision,
        leg: Leg,
        request: TokenRequest,
        elsewhere: Callable[[], bool],
        limits: RequestSettings,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._leg = leg
        self._limits = limits
        self._request = request
        self.choice = choice
        self.attempt = Attempt(_Nowhere(), loop, elsewhere)
        self.found: Embedding | None = None

    @property
    def engine(self) -> str:
        return self._leg.member.name

    def hold(self) -> Leg | None:
        return None if self._leg.hold(self.attempt.cut, self.attempt.forsake) else self._leg

    def tell(self, meter: RequestMeter) -> None:
        meter.decided(self._leg.decision.rule, self._leg.decision.predicted)

    async def run(self, prompt: Prompt | None, meter: RequestMeter) -> None:
        tokens = len(self._request.token_ids)
        self._leg.book(None, tokens, tokens)  # no prompt: embedding models keep nothing of it for the next
        try:
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(self._ask(), name="embed")
                await self.attempt.done
                asking.cancel()
        finally:
            self._leg.settle()
        if self.found is not None:
            meter.prompt(self.found.prompt_tokens)

    async def _ask(self) -> None:
        attempt, request = self.attempt, self._request
        try:
            self.found = await self._leg.member.engine.embed(
                uuid.uuid4().hex, request.token_ids, timeout=self._limits.first_token_timeout
            )
        except EngineError as error:
            attempt.fail(error)
        except Exception as bug:
            attempt.fail_by(bug)
        else:
            attempt.on_end(None)

    def report(self) -> None:
        error = self.attempt.error
        if error is None:
            self._leg.succeeded()
        else:
            self._leg.failed(error)

    def blamed(self) -> tuple[Leg, ...]:
        return (self._leg,)

    @property
    def failed_part(self) -> LegName | None:
        return None


class _Nowhere:
    """An Answer: nothing of an embedding is sent before all of it is there."""

    sent = False

    def begin(self, call: Call) -> None:
        pass

    def push(self, delta: Delta) -> bool:
        return False
