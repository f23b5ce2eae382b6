"""One attempt in which one engine does everything."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from enginehouse.core.routing.candidate import Prompt
from enginehouse.domain.errors import EngineTimeout
from enginehouse.domain.request import EngineRequest
from enginehouse.ports import RequestMeter
from enginehouse.service.attempt import Answer, Attempt, WatchedCall
from enginehouse.service.leg import Leg
from enginehouse.service.request import Choice, RequestSettings, TokenRequest
from enginehouse.service.single import Single
from enginehouse.service.watchdog import Watchdog


class Whole(Single):
    """A Work that brings tokens."""

    __slots__ = ("_limits", "_loop", "_request")

    def __init__(
        self,
        choice: Choice,
        leg: Leg,
        request: TokenRequest,
        answer: Answer,
        elsewhere: Callable[[], bool],
        limits: RequestSettings,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(choice, leg, Attempt(answer, loop, elsewhere))
        self._limits = limits
        self._loop = loop
        self._request = request

    async def run(self, prompt: Prompt | None, meter: RequestMeter) -> None:
        leg, attempt, loop, limits = self._leg, self.attempt, self._loop, self._limits
        request = self._request
        tokens = len(request.token_ids)
        leg.book(prompt, tokens, tokens - leg.decision.predicted)
        attempt.begun = lambda _: leg.computed(loop.time())
        watchdog = Watchdog(attempt, limits.token_timeout, loop)
        timeout = limits.first_token_timeout
        try:
            rank = leg.decision.chosen.rank
            asked = EngineRequest(
                uuid.uuid4().hex, request.token_ids, request.max_tokens, request.sampling, rank, lora=request.lora
            )
            call = leg.send(asked, attempt)
            attempt.answer.begin(WatchedCall(call, attempt))
            watchdog.expect(
                loop.time() + timeout,
                lambda: attempt.fail(EngineTimeout(f"no first token within {timeout:g} s")),
            )
            await attempt.done
        finally:
            watchdog.stop()
            leg.settle(attempt.cached, linger=attempt.finished)
