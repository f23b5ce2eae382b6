"""One attempt at an embedding: one engine, one answer in one piece."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from enginehouse.core.routing.candidate import Prompt
from enginehouse.core.routing.decision import Decision
from enginehouse.domain.errors import EngineError
from enginehouse.domain.stream import Delta, Embedding
from enginehouse.ports import Call, RequestMeter
from enginehouse.service.attempt import Attempt
from enginehouse.service.leg import Leg
from enginehouse.service.request import RequestSettings, TokenRequest
from enginehouse.service.single import Single


class Vector(Single):
    """A Work whose result is `found`."""

    __slots__ = ("_limits", "_request", "found")

    def __init__(
        self,
        choice: Decision,
        leg: Leg,
        request: TokenRequest,
        elsewhere: Callable[[], bool],
        limits: RequestSettings,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(choice, leg, Attempt(_Nowhere(), loop, elsewhere))
        self._limits = limits
        self._request = request
        self.found: Embedding | None = None

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


class _Nowhere:
    """An Answer: nothing of an embedding is sent before all of it is there."""

    sent = False

    def begin(self, call: Call) -> None:
        pass

    def push(self, delta: Delta) -> bool:
        return False
