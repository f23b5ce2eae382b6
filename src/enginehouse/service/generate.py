"""One answer from some engine: choose, charge, stream, retry while nothing was sent, settle on every exit."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import structlog

from enginehouse.core.kv.knowledge import Knowledge
from enginehouse.core.kv.prompt import KvPrompt
from enginehouse.core.membership.roles import Topology
from enginehouse.core.retry import may_retry
from enginehouse.core.routing.candidate import Candidate, PlainPrompt, Prompt
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.policy import AllExcluded, AllFull, Decision, Router, RoutingSettings
from enginehouse.domain.errors import EngineError, EngineTimeout, NoEngine, Overloaded
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.ports import Call, RequestMeter
from enginehouse.service.attempt import Answer, Attempt, WatchedCall
from enginehouse.service.fleet import Fleet
from enginehouse.service.membership import Member

log = structlog.get_logger("enginehouse.generate")

NO_HANDOVER = "this fleet is disaggregated, and the hand-over from prefill to decode engines is not supported yet"

ALL_FULL = "every engine has all the requests it may have; try again later"
NONE_NOW = "no engine can take a request for this model now"

_TRAILERS_GRACE = 5.0
"""Seconds that an engine may take between the last token and the end of its stream before we end it ourselves."""


@dataclass(frozen=True)
class RequestSettings:
    """Deadlines and retries of one request."""

    attempts: int = 3
    """Engines that one request may be tried on, as long as nothing of the answer was sent to the client."""
    first_token_timeout: float = 120.0
    """Seconds from dispatch to the first token, queueing and prefill at the engine included. Above it the engine is
    checked and the request tried elsewhere."""
    token_timeout: float = 60.0
    """Seconds between two tokens of a running answer, not counting time in which the client does not read."""
    hold_timeout: float = 1.0
    """Seconds that a request waits for an engine when the fleet has none (any more), so that the moment between two
    generations of a rolling update costs no errors; then 503, or the error of the engine that was lost."""


Decided = Callable[[Decision], None]


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What the edge asks for: token ids in, at most so many out."""

    token_ids: Sequence[int]
    max_tokens: int
    sampling: Sampling
    fits: Callable[[], bool] = lambda: True
    """Whether the engines of now still take these ids: another generation may have another tokenizer."""
    session: str | None = None
    """Requests with the same one belong together; None: it belongs to none."""
    decided: Decided | None = None
    """Hears each attempt's choice before the engine does, where somebody wants to know."""


class Outdated(Exception):
    """Between encoding and dispatch the engines were replaced by such as need the prompt encoded anew."""


@dataclass(slots=True)
class Outcome:
    """How a finished request went."""

    engine: str
    attempts: int
    decision: Decision
    engine_tokens: int
    """Tokens received, whatever became of them."""


class Generator:
    """Sends requests to the fleet's serving engines."""

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        settings: RequestSettings,
        routing: RoutingSettings,
        *,
        rng: Random,
        knowledge: Knowledge | None = None,
    ) -> None:
        """knowledge: what the engines' caches hold; None: the policy does not ask."""
        self._knowledge = knowledge
        self._sessions = routing.affinity != "off"
        self._fleet = fleet
        self._ledger = ledger
        self._settings = settings
        self._router = Router(routing, rng)
        self._members: tuple[Member, ...] = ()
        self._candidates: tuple[Candidate, ...] = ()

    async def run(self, request: TokenRequest, answer: Answer, meter: RequestMeter) -> Outcome:
        """Bring one whole answer, or raise: EngineError (the last attempt's), NoEngine, Overloaded, Outdated.

        Cancelling it (the client went away) aborts the engine and settles everything.
        """
        if self._fleet.topology is Topology.DISAGGREGATED:
            raise NoEngine(NO_HANDOVER)
        settings = self._settings
        excluded: set[tuple[str, int]] = set()
        attempts = 0
        hold_until: float | None = None
        error: EngineError | None = None
        loop = asyncio.get_running_loop()
        prompt = self._prompt(request, loop.time())

        def elsewhere() -> bool:
            return any((m.engine_id, m.incarnation) not in excluded for m in self._fleet.serving.get())

        while True:
            seen = self._fleet.serving.version
            if isinstance(prompt, KvPrompt):
                prompt.again(loop.time())
            try:
                decision = self._router.choose(self._pool(), excluded, prompt, explain=request.decided is not None)
            except AllFull:
                if error is not None:
                    raise error from None
                raise Overloaded(ALL_FULL, retry_after=1) from None
            except AllExcluded:
                # One that is out returns only after a check, so it may be tried again; one that is in failed just now.
                excluded &= {(m.engine_id, m.incarnation) for m in self._fleet.serving.get()}
                if error is not None and excluded and not error.suspect:
                    raise error from None  # nothing says that another engine is about to come
                hold_until = hold_until or loop.time() + settings.hold_timeout
                if not await self._changed(seen, hold_until - loop.time()):
                    if error is not None:
                        raise error from None
                    raise NoEngine(NONE_NOW, retry_after=1) from None
                continue
            if not request.fits():
                raise Outdated
            member = self._members[decision.chosen.member]
            excluded.add((member.engine_id, member.incarnation))
            attempt = Attempt(answer, loop, elsewhere)
            release = self._fleet.hold(member, attempt.cut, attempt.forsake)
            if release is None:  # withdrawn since the list was read
                continue
            attempts += 1
            hold_until = None
            meter.decided(decision.rule, decision.predicted)
            if request.decided is not None:
                request.decided(decision)
            await self._attempt(request, prompt, answer, attempt, member, decision, release)
            if attempt.bug is not None:
                raise attempt.bug
            if attempt.error is None:
                self._fleet.report_success(member)
                return Outcome(member.name, attempts, decision, attempt.tokens)
            error = attempt.error
            self._fleet.report_failure(member, error)
            if not may_retry(error, sent=answer.sent, attempts=attempts, max_attempts=settings.attempts):
                raise error
            meter.retried(error.code or type(error).__name__)
            log.info("retry", engine=member.name, attempt=attempts, error=type(error).__name__, reason=error.message)

    def explain(self, request: TokenRequest) -> Decision:
        """Where the request would go now, with what it would cost on each rank. Nothing is sent, booked or remembered.

        Raises NoEngine, Overloaded.
        """
        if self._fleet.topology is Topology.DISAGGREGATED:
            raise NoEngine(NO_HANDOVER)
        try:
            prompt = self._prompt(request, asyncio.get_running_loop().time())
            if prompt is None:
                prompt = PlainPrompt(len(request.token_ids), request.session)
            return self._router.choose(self._pool(), prompt=prompt, explain=True)
        except AllFull:
            raise Overloaded(ALL_FULL, retry_after=1) from None
        except AllExcluded:
            raise NoEngine(NONE_NOW, retry_after=1) from None

    async def _attempt(
        self,
        request: TokenRequest,
        prompt: Prompt | None,
        answer: Answer,
        attempt: Attempt,
        member: Member,
        decision: Decision,
        release: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        tokens = len(request.token_ids)
        charge = self._ledger.charge(decision.chosen, tokens, tokens - decision.predicted)
        sent = None
        if self._knowledge is not None and isinstance(prompt, KvPrompt):
            sent = self._knowledge.dispatched(prompt, decision.chosen)

        def begun() -> None:
            charge.prefilled()
            if sent is not None:
                sent.answered(loop.time())

        attempt.begun = begun
        call: Call | None = None
        watchdog: asyncio.TimerHandle | None = None
        try:
            call = member.engine.generate(
                EngineRequest(
                    uuid.uuid4().hex, request.token_ids, request.max_tokens, request.sampling, decision.chosen.rank
                ),
                attempt,
            )
            answer.begin(WatchedCall(call, attempt))
            started = loop.time()

            def watch() -> None:
                nonlocal watchdog
                now = loop.time()
                if attempt.paused:
                    due = now + self._settings.token_timeout
                elif attempt.tokens:
                    due = attempt.last_at + self._settings.token_timeout
                else:
                    due = started + self._settings.first_token_timeout
                if due > now:
                    watchdog = loop.call_at(due, watch)
                elif attempt.tokens:
                    attempt.fail(EngineTimeout(f"no token for {self._settings.token_timeout:g} s"))
                else:
                    attempt.fail(EngineTimeout(f"no first token within {self._settings.first_token_timeout:g} s"))

            first = min(self._settings.first_token_timeout, self._settings.token_timeout)
            watchdog = loop.call_at(started + first, watch)
            await attempt.done
        finally:
            charge.release()
            if sent is not None:
                sent.ended(attempt.cached)
            release()
            if watchdog is not None:
                watchdog.cancel()
            if call is not None:
                if attempt.finished:
                    loop.call_later(_TRAILERS_GRACE, call.cancel)
                else:
                    call.cancel()

    def _prompt(self, request: TokenRequest, now: float) -> Prompt | None:
        """What the policy may ask of the request; None: it asks nothing, and nothing is paid for."""
        if self._knowledge is not None:
            return self._knowledge.prompt(request.token_ids, session=request.session, now=now)
        return PlainPrompt(len(request.token_ids), request.session) if self._sessions else None

    def _pool(self) -> tuple[Candidate, ...]:
        """Candidates of the fleet as it is now; made anew only when it has changed."""
        members = self._fleet.serving.get()
        if members is not self._members:
            load = self._ledger.load
            self._members = members
            self._candidates = tuple(
                Candidate(
                    m.engine_id,
                    m.incarnation,
                    m.name,
                    rank,
                    load(m.engine_id, m.incarnation, rank),
                    position,
                    m.info.kv_capacity_tokens,
                    m.info.max_running,
                )
                for position, m in enumerate(members)
                for rank in _ranks(m)
            )
            self._ledger.keep_only(frozenset((c.engine_id, c.incarnation, c.rank) for c in self._candidates))
        return self._candidates

    async def _changed(self, seen: int, timeout: float) -> bool:
        """Wait for another fleet than version `seen`; False when the time is up."""
        if timeout <= 0:
            return False
        try:
            async with asyncio.timeout(timeout):
                await self._fleet.serving.changed(seen)
        except TimeoutError:
            return False
        return True


def _ranks(member: Member) -> Sequence[int | None]:
    info = member.info
    return (None,) if info.ranks <= 1 else range(info.first_rank, info.first_rank + info.ranks)
