"""One answer from some engines: choose, hold, stream, retry while nothing was sent, settle on every exit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final, TypeVar

import structlog

from enginehouse.core.constrained import told, unheld
from enginehouse.core.kv.knowledge import Knowledge
from enginehouse.core.kv.prompt import KvPrompt
from enginehouse.core.membership.roles import Topology
from enginehouse.core.retry import may_retry
from enginehouse.core.routing.candidate import PlainPrompt, Prompt
from enginehouse.core.routing.decision import Decision
from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.pairs import Busy, NoPrefill, PairDecision
from enginehouse.core.routing.policy import AllExcluded, AllFull, RoutingSettings
from enginehouse.domain.errors import EngineError, ModelNotFound
from enginehouse.domain.kv import namespace
from enginehouse.domain.stream import Embedding
from enginehouse.ports import RequestMeter
from enginehouse.service.able import EMBEDS, GENERATES, Needs, Unable
from enginehouse.service.attempt import Answer
from enginehouse.service.choosing import Chooser, Sought
from enginehouse.service.fleet import Fleet
from enginehouse.service.leg import Books, Leg
from enginehouse.service.pair import Pair, PairTools
from enginehouse.service.pair_counts import PairCounts
from enginehouse.service.pools import Pool, Pools
from enginehouse.service.pools_view import PoolsView
from enginehouse.service.releases import Releases
from enginehouse.service.request import Choice, Decided, Outcome, Outdated, RequestSettings, TokenRequest
from enginehouse.service.turns import Turns
from enginehouse.service.vector import Vector
from enginehouse.service.waiting import Tried, Waiting, refusal
from enginehouse.service.whole import Whole
from enginehouse.service.work import Work

__all__ = ["Choice", "Decided", "Generator", "Outcome", "Outdated", "RequestSettings", "TokenRequest"]

W = TypeVar("W", bound=Work)

_PLAIN: Final = Needs(GENERATES)
"""What nearly all requests need."""

log = structlog.get_logger("enginehouse.generate")


class Generator:
    """Sends requests to the fleet's engines."""

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        settings: RequestSettings,
        routing: RoutingSettings,
        *,
        rng: Random,
        knowledge: Knowledge | None = None,
        handover: HandoverSettings | None = None,
    ) -> None:
        """knowledge: what the engines' caches hold; None: the policy does not ask."""
        handover = handover or HandoverSettings()
        self.pairs = PairCounts()
        self._handover = handover
        self._knowledge = knowledge
        self._sessions = routing.affinity != "off"
        self._fleet = fleet
        self._settings = settings
        self._books = Books(fleet, ledger, knowledge)
        self._pools = Pools(fleet, ledger)
        self._chooser = Chooser(fleet, self._pools, routing, handover, rng)
        turns = Turns(self.pairs)
        self._waiting = Waiting(self._pools, turns, settings, handover)
        self._tools = PairTools(
            settings.first_token_timeout,
            settings.token_timeout,
            handover.handover_timeout,
            rng,
            self.pairs,
            turns,
            Releases(self.pairs),
        )

    async def run(self, request: TokenRequest, answer: Answer, meter: RequestMeter) -> Outcome:
        """Bring one whole answer, or raise: EngineError (the last attempt's), NoEngine, Overloaded, Outdated,
        InvalidRequest where no engine can do what it needs, and ModelNotFound where none has its adapter.

        Cancelling it (the client went away) aborts the engines and settles everything.
        """
        sought = self._sought(request, _needs(request))
        return (await self._bring(sought, meter, partial(self._work, sought, answer)))[1]

    async def embed(self, request: TokenRequest, meter: RequestMeter) -> Embedding:
        """What an embedding model makes of a prompt. `max_tokens` and `sampling` play no part; else as `run`."""

        def work(choice: Choice, tried: Tried) -> Vector:
            assert isinstance(choice, Decision)
            pool, excluded = self._pools.serving, tried.excluded
            leg = self._leg(pool, choice)
            return Vector(choice, leg, request, lambda: pool.others(leg.key, excluded, needs), self._settings, loop)

        loop = asyncio.get_running_loop()
        needs = Needs(EMBEDS)
        brought, _ = await self._bring(self._sought(request, needs), meter, work)
        assert brought.found is not None
        return brought.found

    async def _bring(
        self, sought: Sought, meter: RequestMeter, make: Callable[[Choice, Tried], W]
    ) -> tuple[W, Outcome]:
        """Make attempts until one is good."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        request, prompt, tried = sought.request, sought.prompt, Tried()
        try:
            while True:
                tried.seen = self._pools.changes.version
                if isinstance(prompt, KvPrompt):
                    prompt.again(loop.time())
                try:
                    choice = self._chooser.choose(sought, tried.excluded, explain=request.decided is not None)
                except (AllExcluded, AllFull, NoPrefill, Busy) as why:
                    await self._waiting.out(why, tried)
                    continue
                except (Unable, ModelNotFound) as why:
                    raise tried.error or why from None
                if not request.fits():
                    raise Outdated
                work = make(choice, tried)
                if (lost := work.hold()) is not None:
                    tried.excluded.add(lost.key)
                    continue
                self._waiting.took(tried, room=isinstance(choice, PairDecision))
                tried.attempts += 1
                work.tell(meter)
                if isinstance(choice, PairDecision):
                    meter.leg("queue", loop.time() - since)
                if request.decided is not None:
                    request.decided(choice)
                await work.run(prompt, meter)
                if work.attempt.bug is not None:
                    raise work.attempt.bug
                error, field = work.attempt.error, request.constraint_field
                if unheld(error, field):
                    tried.unheld += 1
                else:
                    work.report()
                if error is None:
                    return work, Outcome(work.engine, tried.attempts, choice, work.attempt.tokens)
                self._exclude(sought, work.blamed(), tried)
                tried.error = told(error, field, tokens=work.attempt.tokens, engines=tried.unheld)
                self._failed(work, tried.error, tried, meter)
                since = loop.time()
        finally:
            self._waiting.passed(tried)

    def explain(self, request: TokenRequest) -> Choice:
        """Where the request would go now, with what it would cost on each rank. Nothing is sent, booked or remembered.

        Raises NoEngine, Overloaded, InvalidRequest, ModelNotFound.
        """
        sought = self._sought(request, _needs(request))
        try:
            return self._chooser.choose(replace(sought, prompt=sought.shown), (), explain=True, aside=True)
        except (AllExcluded, AllFull, NoPrefill, Busy) as why:
            raise refusal(why) from None

    def lack(self) -> str | None:
        """Why requests with long prompts would find no engines now; None: they would, though perhaps not at once."""
        return self._chooser.lack()

    def pools(self) -> PoolsView | None:
        """The two pools as they are now, for people; None: the fleet is not of two."""
        if self._fleet.topology is not Topology.DISAGGREGATED:
            return None
        lack, alone = self._chooser.pools_lack()
        return PoolsView(lack, alone, self._handover, self.pairs)

    async def close(self) -> None:
        """End what goes on after its request."""
        await self._tools.releases.close()

    def _work(self, sought: Sought, answer: Answer, choice: Choice, tried: Tried) -> Work:
        loop = asyncio.get_running_loop()
        pools, excluded = self._pools, tried.excluded
        request, needs = sought.request, sought.needs
        if isinstance(choice, PairDecision):
            prefill, decode = self._leg(pools.prefill, choice.prefill), self._leg(pools.serving, choice.decode)
            elsewhere = (
                lambda: pools.prefill.others(prefill.key, excluded, needs),
                lambda: pools.serving.others(decode.key, excluded, needs),
            )
            return Pair(choice, prefill, decode, request, answer, elsewhere, self._tools, loop)
        leg = self._leg(pools.serving, choice if isinstance(choice, Decision) else choice.decode)
        return Whole(
            choice, leg, request, answer, lambda: pools.serving.others(leg.key, excluded, needs), self._settings, loop
        )

    def _leg(self, pool: Pool, decision: Decision) -> Leg:
        return Leg(self._books, pool.member(decision.chosen), decision)

    def _exclude(self, sought: Sought, blamed: Collection[Leg], tried: Tried) -> None:
        """Either engine of a hand-over may be at fault: both are left out; where nothing were left to try, only one."""
        keys = [leg.key for leg in blamed]
        if len(keys) > 1:
            ways = (keys, *([key] for key in keys))
            keys = next((way for way in ways if self._chooser.left(sought, tried.excluded.union(way))), keys)
        tried.excluded.update(keys)

    def _failed(self, work: Work, error: EngineError, tried: Tried, meter: RequestMeter) -> None:
        """Raises the error, unless the request may be tried again."""
        code, part = error.code or type(error).__name__, work.failed_part
        if part is not None:
            meter.leg_failed(part, code)
        sent = work.attempt.answer.sent
        most = self._settings.attempts
        if not may_retry(error, sent=sent, attempts=tried.attempts, max_attempts=most, unheld=tried.unheld):
            raise error
        meter.retried(code, part)
        log.info(
            "retry",
            engine=[leg.member.name for leg in work.blamed()],
            attempt=tried.attempts,
            error=type(error).__name__,
            reason=error.message,
        )

    def _sought(self, request: TokenRequest, needs: Needs) -> Sought:
        """With what the policy may ask of the prompt; where it asks nothing, nothing is paid for."""
        prompt: Prompt | None = None
        if self._knowledge is not None:
            now = asyncio.get_running_loop().time()
            prompt = self._knowledge.prompt(
                request.token_ids, namespace=namespace(request.lora, None), session=request.session, now=now
            )
        elif self._sessions:
            prompt = PlainPrompt(len(request.token_ids), request.session)
        return Sought(request, needs, prompt)


def _needs(request: TokenRequest) -> Needs:
    if not request.needs and request.lora is None:
        return _PLAIN
    return Needs(request.needs | GENERATES if request.needs else GENERATES, request.lora)
