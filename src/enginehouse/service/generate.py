"""One answer from some engine: choose, charge, stream, retry while nothing was sent, settle on every exit."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import structlog

from enginehouse.core.membership.roles import Topology
from enginehouse.core.retry import may_retry
from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.policy import AllExcluded, AllFull, Decision, Router, RoutingSettings
from enginehouse.domain.errors import EngineError, EngineTimeout, EngineUnavailable, NoEngine, Overloaded
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Delta
from enginehouse.ports import Call, RequestMeter
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


class Answer(Protocol):
    """Where one answer goes. Called from inside the loop's read callback: never blocks."""

    sent: bool
    """Something of it has been handed to the client's socket."""

    def begin(self, call: Call) -> None:
        """An attempt starts (again): forget what an earlier one brought; pause and resume this call as needed."""

    def push(self, delta: Delta) -> bool:
        """Take news. True: the answer is complete by our own judgement (a stop string), the engine may stop."""


@dataclass(slots=True)
class Outcome:
    """How a finished request went."""

    engine: str
    attempts: int
    decision: Decision
    engine_tokens: int
    """Tokens received, whatever became of them."""


class _Attempt:
    """One call to one engine, from dispatch to its end. A DeltaSink."""

    __slots__ = (
        "_clock",
        "_elsewhere",
        "answer",
        "bug",
        "done",
        "error",
        "finished",
        "last_at",
        "paused",
        "tokens",
    )

    def __init__(self, answer: Answer, loop: asyncio.AbstractEventLoop, elsewhere: Callable[[], bool]) -> None:
        self._clock = loop.time
        self._elsewhere = elsewhere
        self.answer = answer
        self.done: asyncio.Future[None] = loop.create_future()
        self.error: EngineError | None = None
        self.bug: Exception | None = None
        self.finished = False
        self.paused = False
        self.last_at = 0.0
        self.tokens = 0

    def on_delta(self, delta: Delta) -> None:
        if self.done.done():
            return
        self.last_at = self._clock()
        self.tokens += len(delta.token_ids)
        try:
            enough = self.answer.push(delta)
        except Exception as bug:  # raised to the request's own coroutine, which is not on this stack
            self.bug = bug
            self.done.set_result(None)
            return
        if delta.finish is not None:
            self.finished = True
            self.done.set_result(None)
        elif enough:
            self.done.set_result(None)

    def on_end(self, error: EngineError | None) -> None:
        if not self.done.done():
            self.error = error
            self.done.set_result(None)

    def fail(self, error: EngineError) -> None:
        """End it from our side."""
        self.on_end(error)

    def cut(self) -> None:
        """The engine was withdrawn, and has had its time."""
        self.fail(EngineUnavailable("the engine was withdrawn and its drain deadline has passed"))

    def forsake(self) -> None:
        """The engine failed a check: hung, most likely. What it has begun may still come; the rest others can do."""
        if not self.tokens and self._elsewhere():
            self.fail(EngineUnavailable("the engine failed its health check before it answered"))


class _WatchedCall:
    """The call as the answer sees it: time in which the client does not read counts for no deadline."""

    __slots__ = ("_attempt", "_call")

    def __init__(self, call: Call, attempt: _Attempt) -> None:
        self._call = call
        self._attempt = attempt

    def pause(self) -> None:
        self._attempt.paused = True
        self._call.pause()

    def resume(self) -> None:
        self._attempt.paused = False
        self._attempt.last_at = self._attempt._clock()
        self._call.resume()

    def cancel(self) -> None:
        self._call.cancel()


class Generator:
    """Sends requests to the fleet's serving engines."""

    def __init__(
        self, fleet: Fleet, ledger: Ledger, settings: RequestSettings, routing: RoutingSettings, *, rng: Random
    ) -> None:
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

        def elsewhere() -> bool:
            return any((m.engine_id, m.incarnation) not in excluded for m in self._fleet.serving.get())

        while True:
            seen = self._fleet.serving.version
            try:
                decision = self._router.choose(self._pool(), excluded)
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
            attempt = _Attempt(answer, loop, elsewhere)
            release = self._fleet.hold(member, attempt.cut, attempt.forsake)
            if release is None:  # withdrawn since the list was read
                continue
            attempts += 1
            hold_until = None
            if request.decided is not None:
                request.decided(decision)
            await self._attempt(request, answer, attempt, member, decision, release)
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
            return self._router.choose(self._pool(), explain=True)
        except AllFull:
            raise Overloaded(ALL_FULL, retry_after=1) from None
        except AllExcluded:
            raise NoEngine(NONE_NOW, retry_after=1) from None

    async def _attempt(
        self,
        request: TokenRequest,
        answer: Answer,
        attempt: _Attempt,
        member: Member,
        decision: Decision,
        release: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        charge = self._ledger.charge(decision.chosen, len(request.token_ids), len(request.token_ids))
        call: Call | None = None
        watchdog: asyncio.TimerHandle | None = None
        try:
            call = member.engine.generate(
                EngineRequest(
                    uuid.uuid4().hex, request.token_ids, request.max_tokens, request.sampling, decision.chosen.rank
                ),
                attempt,
            )
            answer.begin(_WatchedCall(call, attempt))
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
            release()
            if watchdog is not None:
                watchdog.cancel()
            if call is not None:
                if attempt.finished:
                    loop.call_later(_TRAILERS_GRACE, call.cancel)
                else:
                    call.cancel()

    def _pool(self) -> tuple[Candidate, ...]:
        """Candidates of the fleet as it is now; made anew only when it has changed."""
        members = self._fleet.serving.get()
        if members is not self._members:
            load = self._ledger.load
            self._members = members
            self._candidates = tuple(
                Candidate(m.engine_id, m.incarnation, m.name, rank, load(m.engine_id, m.incarnation, rank), position)
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
