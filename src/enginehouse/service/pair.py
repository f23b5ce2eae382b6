"""One attempt in which one engine prefills and another decodes; the KV cache passes between them, not through us.

SGLang: both legs leave at once and meet under a number. vLLM: the prefill leg first; what it answers goes with the
decode leg, which leaves from inside the callback that brought it. Either way both are watched until the decode leg's
first token: the first that fails ends the attempt, and with it the other. From that token on only the decode leg
counts.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from enginehouse.core.routing.candidate import Prompt
from enginehouse.core.routing.pairs import PairDecision
from enginehouse.core.routing.room import room
from enginehouse.domain.engine import ProtocolName
from enginehouse.domain.errors import EngineError, EngineTimeout, HandoverFailed, HandoverTimeout
from enginehouse.domain.handover import Fetch, Handover, Keep, Rendezvous
from enginehouse.domain.request import EngineRequest
from enginehouse.domain.stream import Delta
from enginehouse.ports import Call, LegName, RequestMeter
from enginehouse.service.attempt import Answer, WatchedCall
from enginehouse.service.leg import Leg
from enginehouse.service.pair_counts import PairCounts
from enginehouse.service.pair_sinks import Decoding, Prefilling
from enginehouse.service.releases import Releases
from enginehouse.service.request import TokenRequest
from enginehouse.service.turns import Turns
from enginehouse.service.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class PairTools:
    """What all pairs of a generator share."""

    first_token_timeout: float
    token_timeout: float
    handover_timeout: float
    """Seconds, as in the settings of the same names."""
    rng: Random
    counts: PairCounts
    turns: Turns
    releases: Releases


class Pair:
    """A Work with two legs."""

    def __init__(
        self,
        choice: PairDecision,
        prefill: Leg,
        decode: Leg,
        request: TokenRequest,
        answer: Answer,
        elsewhere: tuple[Callable[[], bool], Callable[[], bool]],
        tools: PairTools,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """elsewhere: whether there is another prefill, and another decode engine to try."""
        self._meets = prefill.member.info.protocol is ProtocolName.SGLANG
        self._prefill = prefill
        self._decode = decode
        self._request = request
        self._tools = tools
        self._loop = loop
        self._decode_sent = False
        self._started = 0.0
        self._prefilled_at: float | None = None
        self._first_at: float | None = None
        self._unmet: tuple[Leg, ...] = ()
        self._meter: RequestMeter | None = None
        self.choice = choice
        self.attempt = Decoding(answer, loop, elsewhere[1], told=self._meets)
        self._prefilling = Prefilling(self.attempt, elsewhere[0], self._prefilled)
        self.attempt.prefilling = self._prefilling
        self.attempt.begun = self._begun
        self._watchdog = Watchdog(self.attempt, tools.token_timeout, loop)

    @property
    def engine(self) -> str:
        return self._decode.member.name

    def hold(self) -> Leg | None:
        if not self._prefill.hold(self._prefilling.cut, self._prefilling.forsake):
            return self._prefill
        if not self._decode.hold(self.attempt.cut, self.attempt.forsake):
            self._prefill.settle()
            return self._decode
        return None

    def tell(self, meter: RequestMeter) -> None:
        first = self.choice.prefill
        meter.decided(first.rule, first.predicted)

    async def run(self, prompt: Prompt | None, meter: RequestMeter) -> None:
        tokens = len(self._request.token_ids)
        self._meter = meter
        self._prefill.book(prompt, tokens, tokens - self._prefill.decision.predicted)
        # SGLang's decode engines forget what they fetched, by default. One that keeps it tells so by its events.
        self._decode.book(None if self._meets else prompt, tokens, 0)
        self._tools.counts.begin(self._prefill.key, self._decode.key)
        self._started = self._loop.time()
        gone = False
        try:
            if self._meets:
                self._meet()
            else:
                self._keep()
            await self.attempt.done
        except asyncio.CancelledError:
            gone = True
            raise
        finally:
            self._settle(gone)

    def _meet(self) -> None:
        tools, member = self._tools, self._prefill.member
        point = member.meeting_point
        assert point is not None
        number = room(tools.rng.getrandbits(64), self._prefill.decision.chosen.rank, member.info.ranks)
        place = Rendezvous(*point, number)
        self._send_prefill(place)
        self._send_decode(place)
        self._watchdog.expect(self._started + min(tools.first_token_timeout, tools.handover_timeout), self._late)

    def _keep(self) -> None:
        timeout = self._tools.first_token_timeout
        self._send_prefill(Keep())
        self._watchdog.expect(
            self._started + timeout,
            lambda: self._prefilling.fail(EngineTimeout(f"the prompt was not prefilled within {timeout:g} s")),
        )

    def _fetch(self, kept: bytes | None, now: float) -> None:
        assert kept is not None
        tools = self._tools
        self._send_decode(Fetch(kept))
        due = min(self._started + tools.first_token_timeout, now + tools.handover_timeout)
        self._watchdog.expect(due, self._late)

    def _send_prefill(self, handover: Handover) -> None:
        rank = self._prefill.decision.chosen.rank
        self._prefill.send(self._to_engine(1, rank, handover, prefill_only=True), self._prefilling)

    def _send_decode(self, handover: Handover) -> None:
        self.attempt.answer.begin(WatchedCall(self._call_decode(handover, self._request.max_tokens), self.attempt))

    def _call_decode(self, handover: Handover, max_tokens: int) -> Call:
        self._decode_sent = True
        rank = self._decode.decision.chosen.rank
        return self._decode.send(self._to_engine(max_tokens, rank, handover), self.attempt)

    def _to_engine(
        self, max_tokens: int, rank: int | None, handover: Handover, *, prefill_only: bool = False
    ) -> EngineRequest:
        request = self._request
        return EngineRequest(
            uuid.uuid4().hex,
            request.token_ids,
            max_tokens,
            request.sampling,
            rank,
            handover,
            prefill_only,
            request.lora,
        )

    def _prefilled(self) -> None:
        """The prefill leg ended well, or failed when the cache had passed. From inside its callback."""
        now = self._loop.time()
        self._computed(now)
        if self._meets:
            self._make_room()  # the cache has passed. vLLM's stays on the prefill engine until it was fetched
        if self._first_at is not None:
            self._prefill.settle(self._prefilling.cached, linger=True)
        if self._meets or self.attempt.done.done():
            return
        try:
            self._fetch(self._prefilling.kept, now)
        except Exception as bug:  # raised to the request's own coroutine, which is not on this stack
            self.attempt.fail_by(bug)

    def _begun(self, first: Delta) -> None:
        """The answer's first token came: the cache has passed."""
        if first.cached_tokens is None:
            first.cached_tokens = self._prefilling.cached  # an answer that we end has no last word of the engine's
        now = self._first_at = self._loop.time()
        self._computed(now)
        self._make_room()
        self._tools.counts.met(now, self._prefill.key, self._decode.key)
        assert self._prefilled_at is not None
        assert self._meter is not None
        self._meter.leg("prefill", self._prefilled_at - self._started)
        self._meter.leg("handover", now - self._prefilled_at)
        self._decode.computed(now)
        if self._prefilling.finished:
            self._prefill.settle(self._prefilling.cached, linger=True)

    def _computed(self, now: float) -> None:
        if self._prefilled_at is None:
            self._prefilled_at = now
            self._prefill.computed(now)

    def _make_room(self) -> None:
        if self._prefill.unload():
            self._tools.turns.next()

    def _late(self) -> None:
        waited = self._loop.time() - (self._started if self._meets else self._prefilled_at or self._started)
        met_since = self._tools.counts.met_since
        self._unmet = tuple(leg for leg in (self._prefill, self._decode) if not met_since(leg.key, self._started))
        self.attempt.fail(HandoverTimeout(f"the decode engine had no first token after {waited:g} s"))

    def _settle(self, gone: bool) -> None:
        self._watchdog.stop()
        self._tools.counts.end(self._prefill.key, self._decode.key)
        attempt, begun = self.attempt, self._first_at is not None
        if begun and attempt.error is None and not gone:
            assert self._meter is not None
            assert self._first_at is not None
            self._meter.leg("decode", self._loop.time() - self._first_at)
        unfetched = not self._decode_sent or (gone and not attempt.ended)
        if self._prefilling.kept is not None and not begun and unfetched:
            attempt.detach()
            self._tools.releases.start(self._release(Fetch(self._prefilling.kept)))
        else:
            self._give_back(linger_prefill=begun or attempt.finished)

    async def _release(self, fetch: Fetch) -> EngineError | None:
        try:
            if not self._decode_sent:
                self._call_decode(fetch, 1)
            await self.attempt.done
            return self.attempt.error
        finally:
            self._give_back(linger_prefill=True)

    def _give_back(self, *, linger_prefill: bool) -> None:
        self._make_room()
        self._decode.settle(linger=self.attempt.finished)
        self._prefill.settle(self._prefilling.cached, linger=linger_prefill)
        self.attempt.loosen()
        self._prefilling.loosen()

    def report(self) -> None:
        blamed, error = self.blamed(), self.attempt.error
        for leg in blamed:
            assert error is not None
            if leg in self._unmet:
                leg.unmet(error)
            else:
                leg.failed(error)
        if error is None:
            self._decode.succeeded()
        if self._prefilling.finished and self._prefill not in blamed:
            self._prefill.succeeded()
        if self._prefilling.error is not None and not self._prefilling.at_fault:
            self._prefill.failed(self._prefilling.error)

    def blamed(self) -> tuple[Leg, ...]:
        part = self.failed_part
        if part is None:
            return ()
        return (self._prefill, self._decode) if part == "handover" else (self._leg(part),)

    @property
    def failed_part(self) -> LegName | None:
        error = self.attempt.error
        if error is None:
            return None
        if isinstance(error, HandoverFailed) and self._decode_sent:
            return "handover"
        return "prefill" if self._prefilling.at_fault else "decode"

    def _leg(self, part: LegName) -> Leg:
        return self._prefill if part == "prefill" else self._decode
